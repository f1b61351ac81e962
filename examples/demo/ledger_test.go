package main

import (
	"math"
	"testing"
	"time"
)

// A shop with one burst of 35: 15 run at once, the rest as the limit allows.
func TestLedger(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := plan{shops: []shopPlan{{"a", 35}}, bursts: []burst{{first: 0, after: 35}}, orders: 35}
	check := func(l *ledger, ms int, want shopNow) {
		t.Helper()
		want.name, want.orders = "a", 35
		if got := l.snapshot(at(ms)).shops[0]; got != want {
			t.Errorf("at %d ms: got %+v, want %+v", ms, got, want)
		}
	}
	run := func(l *ledger, first, after, ms int) {
		for n := first; n < after; n++ {
			l.asked(n)
			l.accepted(n, at(ms))
			l.answered(n, at(ms+100))
		}
	}
	begin := func() *ledger {
		l := newLedger(p, rule{Size: 40, PerSecond: 8}, start)
		for n := range 35 {
			l.published(n, at(500))
		}
		run(l, 0, 15, 600)
		for n := 15; n < 35; n++ {
			l.asked(n)
		}
		check(l, 900, shopNow{done: 15, postponed: 20, used: 15, limit: 15, eta: 3 * time.Second})
		run(l, 15, 25, 1001)
		check(l, 1100, shopNow{done: 25, postponed: 10, used: 10, limit: 10, eta: 2 * time.Second})
		return l
	}

	l := begin()
	run(l, 25, 35, 2005)
	check(l, 2900, shopNow{done: 35, used: 10, limit: 10})
	if !l.snapshot(at(2900)).finished() {
		t.Error("not finished although all is done")
	}
	want := result{name: "a", orders: 35, calls: 35, postponements: 20, most: 1, wait: 1505 * time.Millisecond, took: 1605 * time.Millisecond}
	if got := l.results(); got[0] != want {
		t.Errorf("got %+v, want %+v", got[0], want)
	}

	// An interval that nobody used was allowed all the same. A call that comes twice is not a second order done,
	// nor is one of an order that there is not.
	l = begin()
	for n := 25; n < 35; n++ {
		l.asked(n)
	}
	l.refused(25, "")
	run(l, 25, 35, 3010)
	run(l, 7, 8, 3020)
	run(l, 4000, 4001, 3020)
	check(l, 3900, shopNow{done: 35, used: 11, limit: 15, refused: 1})
	want = result{name: "all", orders: 35, calls: 36, refused: 1, twice: 1, postponements: 30, most: 2, wait: 2510 * time.Millisecond, took: 2610 * time.Millisecond}
	if got := l.results(); got[1] != want {
		t.Errorf("got %+v, want %+v", got[1], want)
	}

	// Orders that were never done.
	l = begin()
	if l.snapshot(at(4000)).finished() {
		t.Error("finished although orders are not done")
	}
	if got := l.results()[1]; got.undone != 10 {
		t.Errorf("undone %d; want 10", got.undone)
	}
	missing := l.missing(3)
	if len(missing) != 3 || missing[0] != "message 25 of a: published true, decisions 1, calls accepted 0" {
		t.Errorf("missing: %q", missing)
	}
}

// The app's limit counts while more shops have something to do than it is enough for.
func TestSharedUse(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	p := plan{shops: []shopPlan{{"a", 20}, {"b", 21}}, bursts: []burst{{after: 20}, {shop: 1, first: 20, after: 41}}, orders: 41, urgent: 40}
	l := newLedger(p, rule{Size: 40, PerSecond: 10}, start)
	for n := range 20 {
		l.published(n, at(0))
	}
	for n := range 5 { // shop a alone cannot use more than the limit
		l.accepted(n, at(0))
	}
	for n := 20; n < 41; n++ {
		l.published(n, at(100)) // the bucket has 4 calls in it
	}
	for n := 5; n < 41; n++ {
		if n == 9 {
			if got := l.shared(); got.used != 0 {
				t.Errorf("used %v of a time that has not ended, want 0", got.used)
			}
		}
		l.accepted(n, at(1000))
		l.answered(n, at(1100))
	}
	l.refused(3, appLimit)
	l.refused(3, stockLimit)
	l.refused(4, "")
	// It was short until the last call of shop a, for 36 in the bucket and 9 that have leaked.
	got := l.shared()
	if want := 15 / 45.0; math.Abs(got.used-want) > 1e-9 {
		t.Errorf("used %v, want %v", got.used, want)
	}
	if got.calls[appLimit] != 41 || got.calls[stockLimit] != 4 || got.refused[appLimit] != 1 || got.refused[stockLimit] != 1 {
		t.Errorf("calls %v, refused %v", got.calls, got.refused)
	}
	if got.urgent != 1 || got.urgentMean != 900*time.Millisecond || got.urgentMost != got.urgentMean || got.othersMean == 0 {
		t.Errorf("of urgent ones: %+v", got)
	}
	if all := l.results()[2]; all.refused != 3 || all.calls != 41 {
		t.Errorf("all: %+v", all)
	}
}

func TestPlan(t *testing.T) {
	for _, c := range []struct{ shops, messages int }{{12, 4000}, {1, 1}, {7, 100}, {40, 100_000}} {
		p := newPlan(c.shops, c.messages)
		counted, orders := make([]int, c.shops), make([]int, p.orders)
		last := time.Duration(0)
		for _, b := range p.bursts {
			for n := b.first; n < b.after; n++ {
				counted[b.shop]++
				orders[n]++
			}
			if b.at < last {
				t.Errorf("%+v: a burst at %v after one at %v", c, b.at, last)
			}
			last = b.at
		}
		if urgent := p.orders - p.urgent; urgent != c.messages/100 {
			t.Errorf("%+v: %d are urgent", c, urgent)
		}
		for n, times := range orders {
			if times != 1 {
				t.Fatalf("%+v: order %d is in %d bursts", c, n, times)
			}
		}
		for i, s := range p.shops {
			if counted[i] != s.orders || s.orders < 1 {
				t.Errorf("%+v: %d orders in bursts of %+v", c, counted[i], s)
			}
		}
		if off := p.orders - c.messages; max(off, -off) > c.messages/10 {
			t.Errorf("%+v: %d orders", c, p.orders)
		}
	}
}
