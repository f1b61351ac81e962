package main

import (
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
		l := newLedger(p, start)
		for n := range 35 {
			l.published(n, at(500))
		}
		run(l, 0, 15, 600)
		for n := 15; n < 35; n++ {
			l.asked(n)
		}
		check(l, 900, shopNow{done: 15, postponed: 20, used: 15, limit: 15, eta: 2 * time.Second})
		run(l, 15, 25, 1001)
		check(l, 1100, shopNow{done: 25, postponed: 10, used: 10, limit: 10, eta: time.Second})
		return l
	}

	l := begin()
	run(l, 25, 35, 2005)
	check(l, 2900, shopNow{done: 35, used: 10, limit: 10})
	if !l.snapshot(at(2900)).finished() {
		t.Error("not finished although all is done")
	}
	want := result{name: "a", orders: 35, calls: 35, postponements: 20, most: 1, allowed: 35, wait: 1505 * time.Millisecond, took: 1605 * time.Millisecond}
	if got := l.results(at(9000)); got[0] != want {
		t.Errorf("got %+v, want %+v", got[0], want)
	}

	// An interval that nobody used was allowed all the same. A call that comes twice is not a second order done,
	// nor is one of an order that there is not.
	l = begin()
	for n := 25; n < 35; n++ {
		l.asked(n)
	}
	l.refused(25)
	run(l, 25, 35, 3010)
	run(l, 7, 8, 3020)
	run(l, 4000, 4001, 3020)
	check(l, 3900, shopNow{done: 35, used: 11, limit: 15, refused: 1})
	want = result{name: "all", orders: 35, calls: 36, refused: 1, twice: 1, postponements: 30, most: 2, allowed: 45, wait: 2510 * time.Millisecond, took: 2610 * time.Millisecond}
	if got := l.results(at(9000)); got[1] != want {
		t.Errorf("got %+v, want %+v", got[1], want)
	}

	// What was never done.
	l = begin()
	if l.snapshot(at(4000)).finished() {
		t.Error("finished although orders are not done")
	}
	if got := l.results(at(4500))[1]; got.undone != 10 || got.allowed != 55 {
		t.Errorf("undone %d, allowed %d; want 10 and 55", got.undone, got.allowed)
	}
	missing := l.missing(3)
	if len(missing) != 3 || missing[0] != "message 25 of a: published true, decisions 1, calls accepted 0" {
		t.Errorf("missing: %q", missing)
	}
}

// A shop that runs out of work: what it did not need is not counted, what it made wait is.
func TestAllowance(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	type step struct{ ms, publish, call int }
	for _, c := range []struct {
		name    string
		steps   []step
		allowed int
	}{
		{"less than at once", []step{{100, 7, 7}}, 7},
		{"two bursts with a rest between them", []step{{100, 20, 15}, {1000, 0, 5}, {9000, 20, 15}, {10_000, 0, 5}}, 40},
		{"what the first burst left the second may use", []step{{100, 20, 15}, {1000, 0, 5}, {1500, 5, 5}}, 25},
		{"a refresh late", []step{{100, 20, 15}, {2000, 0, 5}}, 30},
		{"late although all were allowed at once", []step{{100, 12, 10}, {1000, 0, 2}}, 22},
		{"one that waits for ever", []step{{100, 20, 15}}, 105},
	} {
		l := newLedger(plan{shops: []shopPlan{{"a", 100}}, bursts: []burst{{after: 100}}, orders: 100}, start)
		published, called := 0, 0
		for _, s := range c.steps {
			for range s.publish {
				l.published(published, at(s.ms))
				published++
			}
			for range s.call {
				l.accepted(called, at(s.ms))
				called++
			}
		}
		if got := l.results(at(9500))[0].allowed; got != c.allowed {
			t.Errorf("%s: %d allowed, want %d", c.name, got, c.allowed)
		}
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
