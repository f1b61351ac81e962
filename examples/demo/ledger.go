package main

import (
	"fmt"
	"sync"
	"time"
)

// ledger knows what became of every order. It hears from the publisher, from the provider and, through their
// output, from the consumers; drip is not asked how well it does. It is safe for concurrent use.
type ledger struct {
	mu     sync.Mutex
	orders []order
	shops  []shop
	began  time.Time // the first publishing
}

type order struct {
	shop      int
	published time.Time
	asked     int // decisions of the limiter about it
	calls     int // that the provider accepted
	done      bool
}

type shop struct {
	name      string
	orders    int // as planned
	called    int // orders that have had a call
	calls     int // that the provider accepted
	refused   int // calls
	done      int // orders whose call was answered
	inFlight  int // calls
	postponed int // orders that were put off and have had no call yet
	todo      int // orders that are published and have had no call yet
	began     time.Time
	ended     time.Time
	wait      time.Duration // the longest from publishing an order to its call
	allowance
}

// allowance is what the limit allows a shop, to compare it with what was made of it: drip's arithmetic on the
// calls that the provider saw.
type allowance struct {
	interval int64 // that limit and used are of
	limit    int   // calls that it allows
	used     int   // calls in it

	// Of the time since the shop last began to have something to do.
	since  int64 // the interval it began in
	start  int   // calls that were allowed at once
	wanted int   // orders

	allowed int // calls that were allowed while orders waited for them, in the times before
}

func newLedger(p plan, now time.Time) *ledger {
	l := &ledger{orders: make([]order, p.orders), shops: make([]shop, len(p.shops))}
	for i, s := range p.shops {
		l.shops[i] = shop{name: s.name, orders: s.orders, allowance: allowance{interval: intervalOf(now), limit: size}}
	}
	for _, b := range p.bursts {
		for n := b.first; n < b.after; n++ {
			l.orders[n].shop = b.shop
		}
	}
	return l
}

// intervalOf is the number of the interval t is in. They begin with the seconds of Unix time, as drip's do.
func intervalOf(t time.Time) int64 { return t.UnixMilli() / refreshInterval.Milliseconds() }

// roll goes on to the interval t is in.
func (a *allowance) roll(t time.Time) {
	if n := intervalOf(t) - a.interval; n > 0 {
		a.interval += n
		a.limit = min(size, a.left()+int(min(n, size))*refreshRate)
		a.used = 0
	}
}

// left is what the interval still allows. It may look exceeded: a call can arrive in the interval after the one
// whose capacity it took.
func (a *allowance) left() int { return max(0, a.limit-a.used) }

// begin is when a shop begins to have something to do.
func (a *allowance) begin(t time.Time) {
	a.roll(t)
	a.since, a.start, a.wanted = a.interval, a.left(), 0
}

// end is the last call of what there was to do. What is left of a refresh that was needed was allowed to nobody; a
// refresh after which all could have been done already was wasted.
func (a *allowance) end() {
	needed := (max(0, a.wanted-a.start) + refreshRate - 1) / refreshRate
	wasted := max(0, int(a.interval-a.since)-needed) * refreshRate
	a.allowed += a.wanted + wasted
}

// order returns an order and its shop, to be changed; of a number that was never published it returns ones that are
// nobody's. It requires mu held.
func (l *ledger) order(n int) (*order, *shop) {
	if n < 0 || n >= len(l.orders) {
		return &order{}, &shop{}
	}
	o := &l.orders[n]
	return o, &l.shops[o.shop]
}

// published is told just before an order is published.
func (l *ledger) published(n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.order(n)
	o.published = at
	if l.began.IsZero() {
		l.began = at
	}
	if s.began.IsZero() {
		s.began = at
	}
	if s.todo == 0 {
		s.begin(at)
	}
	s.todo++
	s.wanted++
}

// asked is told of every decision of the limiter about an order.
func (l *ledger) asked(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.order(n)
	o.asked++
	if o.asked == 1 && o.calls == 0 {
		s.postponed++
	}
}

// accepted, refused and answered are told of every call by the provider.

func (l *ledger) accepted(n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.order(n)
	s.roll(at)
	s.used++
	s.calls++
	s.inFlight++
	o.calls++
	if o.calls > 1 {
		return
	}
	s.called++
	s.wait = max(s.wait, at.Sub(o.published))
	if o.asked > 0 {
		s.postponed--
	}
	if s.todo--; s.todo == 0 {
		s.end()
	}
}

func (l *ledger) refused(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, s := l.order(n)
	s.refused++
}

func (l *ledger) answered(n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.order(n)
	s.inFlight--
	if !o.done {
		o.done = true
		s.done++
		s.ended = at
	}
}

// snapshot is a moment of the demo, to be shown.
type snapshot struct {
	elapsed time.Duration // since the first publishing
	shops   []shopNow
}

type shopNow struct {
	name         string
	orders, done int
	inFlight     int
	postponed    int
	used, limit  int // calls in this interval, and what it allows
	refused      int
	eta          time.Duration // until the last order's call, at the limit
}

func (l *ledger) snapshot(now time.Time) snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	var s snapshot
	if !l.began.IsZero() {
		s.elapsed = now.Sub(l.began)
	}
	for i := range l.shops {
		h := &l.shops[i]
		h.roll(now)
		intervals := (max(0, h.orders-h.called-h.left()) + refreshRate - 1) / refreshRate
		s.shops = append(s.shops, shopNow{
			name: h.name, orders: h.orders, done: h.done, inFlight: h.inFlight, postponed: h.postponed,
			used: h.used, limit: h.limit, refused: h.refused, eta: time.Duration(intervals) * refreshInterval,
		})
	}
	return s
}

// total is all shops as one; it is done when the last one is.
func (s snapshot) total() shopNow {
	t := shopNow{name: "all"}
	for _, h := range s.shops {
		t.orders += h.orders
		t.done += h.done
		t.inFlight += h.inFlight
		t.postponed += h.postponed
		if h.done < h.orders || h.used > 0 { // what nobody wants is not counted
			t.used += h.used
			t.limit += h.limit
		}
		t.refused += h.refused
		t.eta = max(t.eta, h.eta)
	}
	return t
}

func (s snapshot) finished() bool {
	t := s.total()
	return t.done == t.orders && t.inFlight == 0
}

// result is what has become of the orders of a shop, or of all.
type result struct {
	name          string
	orders        int
	calls         int // accepted by the provider
	refused       int
	undone        int
	twice         int // orders with more than one call
	postponements int // of all orders together
	most          int // postponements of one order
	allowed       int // calls that the limit allowed while orders waited for them
	wait, took    time.Duration
}

// results returns what has become of each shop's orders, and last of all.
func (l *ledger) results(now time.Time) []result {
	l.mu.Lock()
	defer l.mu.Unlock()
	rs := make([]result, len(l.shops)+1)
	for i := range l.shops {
		s := &l.shops[i]
		allowed := s.allowed
		if s.todo > 0 {
			s.roll(now)
			allowed += s.start + int(s.interval-s.since)*refreshRate
		}
		rs[i] = result{
			name: s.name, orders: s.orders, calls: s.calls, refused: s.refused, undone: s.orders - s.done,
			allowed: allowed, wait: s.wait, took: max(0, s.ended.Sub(s.began)),
		}
	}
	for i := range l.orders {
		o := &l.orders[i]
		r := &rs[o.shop]
		if o.calls > 1 {
			r.twice++
		}
		// A decision that is followed by no call, or by a refused one, has put the order off.
		postponements := max(0, o.asked-o.calls)
		r.postponements += postponements
		r.most = max(r.most, postponements)
	}
	all := &rs[len(l.shops)]
	all.name = "all"
	for i, r := range rs[:len(l.shops)] {
		all.took = max(all.took, l.shops[i].ended.Sub(l.began))
		all.orders += r.orders
		all.calls += r.calls
		all.refused += r.refused
		all.undone += r.undone
		all.twice += r.twice
		all.postponements += r.postponements
		all.most = max(all.most, r.most)
		all.allowed += r.allowed
		all.wait = max(all.wait, r.wait)
	}
	return rs
}

// missing describes orders that are not done, a few of them.
func (l *ledger) missing(most int) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var texts []string
	for n := range l.orders {
		o := &l.orders[n]
		if o.done || len(texts) == most {
			continue
		}
		texts = append(texts, fmt.Sprintf("message %d of %s: published %t, decisions %d, calls accepted %d",
			n, l.shops[o.shop].name, !o.published.IsZero(), o.asked, o.calls))
	}
	return texts
}
