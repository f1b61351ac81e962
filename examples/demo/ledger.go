package main

import (
	"fmt"
	"math"
	"sync"
	"time"
)

// ledger records the history of every order. The publisher, the provider and, through their output, the consumers report to
// it. It does not rely on drip's own numbers. It is safe for concurrent use.
type ledger struct {
	mu     sync.Mutex
	orders []order
	shops  []shop
	began  time.Time // the first publishing
	urgent int       // the number of the first urgent order
	rule   rule      // the app's
	app    appUse
	stock  stockUse
}

type order struct {
	shop      int
	published time.Time
	asked     int // decisions of the limiter about it
	calls     int // that the provider accepted
	done      bool
	wait      time.Duration // from its publishing to its call
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
	allowance
}

// allowance counts the calls that a shop's limit allows in this second, and the calls made: drip's arithmetic on the calls
// that the provider saw.
type allowance struct {
	interval int64 // that limit and used are of
	limit    int   // calls that it allows
	used     int   // calls in it
}

// appUse is the use of the app's limit, while the shops with orders to do might have used more than all of it.
type appUse struct {
	account         // as the provider counts it
	busy    int     // shops with something to do
	short   bool    // the limit is
	calls   int     // while it was
	allowed float64 // by it, then
	since   time.Time

	interval int64 // that used is of
	used     int   // calls in it
	refused  int   // calls, by this limit
}

// change counts shops that begin or end having something to do.
func (a *appUse) change(by int, t time.Time) {
	a.busy += by
	short := a.busy*refreshRate > a.PerSecond
	switch {
	case short && !a.short:
		a.allowed += a.room(t)
		a.since = t
	case !short && a.short:
		a.allowed += t.Sub(a.since).Seconds() * float64(a.PerSecond)
	}
	a.short = short
}

func (a *appUse) call(t time.Time) {
	a.enter(t)
	a.leave()
	if a.short {
		a.calls++
	}
	if n := intervalOf(t); n != a.interval {
		a.interval, a.used = n, 0
	}
	a.used++
}

// stockUse counts the calls of the endpoint.
type stockUse struct{ calls, refused int }

func newLedger(p plan, app rule, now time.Time) *ledger {
	l := &ledger{orders: make([]order, p.orders), shops: make([]shop, len(p.shops)), urgent: p.urgent, rule: app}
	l.app.rule = app
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

// intervalOf returns the number of the interval of t. Intervals begin with the seconds of Unix time, as drip's do.
func intervalOf(t time.Time) int64 { return t.UnixMilli() / refreshInterval.Milliseconds() }

// roll advances to the interval of t.
func (a *allowance) roll(t time.Time) {
	if n := intervalOf(t) - a.interval; n > 0 {
		a.interval += n
		a.limit = min(size, a.left()+int(min(n, size))*refreshRate)
		a.used = 0
	}
}

// left returns how many calls the interval still allows. It may look exceeded: a call can arrive in the interval after the
// one whose capacity it took.
func (a *allowance) left() int { return max(0, a.limit-a.used) }

// order returns an order and its shop, which the caller may change. For a number that was never published it returns an
// order and a shop that no result counts. It requires mu held.
func (l *ledger) order(n int) (*order, *shop) {
	if n < 0 || n >= len(l.orders) {
		return &order{}, &shop{}
	}
	o := &l.orders[n]
	return o, &l.shops[o.shop]
}

// published notes an order. Call it just before publishing the order.
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
	if s.todo++; s.todo == 1 {
		l.app.change(1, at)
	}
}

// asked notes a decision of the limiter about an order.
func (l *ledger) asked(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.order(n)
	o.asked++
	if o.asked == 1 && o.calls == 0 {
		s.postponed++
	}
}

// The provider reports every call to accepted, refused and answered.

func (l *ledger) accepted(n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, s := l.order(n)
	s.roll(at)
	s.used++
	l.app.call(at)
	if aboutStock(n) {
		l.stock.calls++
	}
	s.calls++
	s.inFlight++
	o.calls++
	if o.calls > 1 {
		return
	}
	s.called++
	o.wait = at.Sub(o.published)
	if o.asked > 0 {
		s.postponed--
	}
	if s.todo--; s.todo == 0 {
		l.app.change(-1, at)
	}
}

func (l *ledger) refused(n int, limit string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, s := l.order(n)
	s.refused++
	switch limit {
	case appLimit:
		l.app.refused++
	case stockLimit:
		l.stock.refused++
	}
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

// snapshot is the state of the demo at a moment, for the screen.
type snapshot struct {
	elapsed time.Duration // since the first publishing
	shops   []shopNow
	app     int // calls of all in this second
	limit   int // of all in a second
}

type shopNow struct {
	name         string
	orders, done int
	inFlight     int
	postponed    int
	used, limit  int // calls in this interval, made and allowed
	refused      int
	eta          time.Duration // until the last order's call, at the limit
}

func (l *ledger) snapshot(now time.Time) snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := snapshot{limit: l.rule.PerSecond}
	if l.app.interval == intervalOf(now) {
		s.app = l.app.used
	}
	if !l.began.IsZero() {
		s.elapsed = now.Sub(l.began)
	}
	for i := range l.shops {
		h := &l.shops[i]
		h.roll(now)
		rate := min(refreshRate, float64(l.rule.PerSecond)/float64(max(1, l.app.busy)))
		seconds := math.Ceil(float64(max(0, h.orders-h.called-h.left())) / rate)
		s.shops = append(s.shops, shopNow{
			name: h.name, orders: h.orders, done: h.done, inFlight: h.inFlight, postponed: h.postponed,
			used: h.used, limit: h.limit, refused: h.refused, eta: time.Duration(seconds) * time.Second,
		})
	}
	return s
}

// total returns all shops as one. It is done when the last shop is done.
func (s snapshot) total() shopNow {
	t := shopNow{name: "all", used: s.app, limit: s.limit}
	for _, h := range s.shops {
		t.orders += h.orders
		t.done += h.done
		t.inFlight += h.inFlight
		t.postponed += h.postponed
		t.refused += h.refused
		t.eta = max(t.eta, h.eta)
	}
	return t
}

func (s snapshot) finished() bool {
	t := s.total()
	return t.done == t.orders && t.inFlight == 0
}

// result is the result of a shop's orders, or of all orders.
type result struct {
	name          string
	orders        int
	calls         int // accepted by the provider
	refused       int
	undone        int
	twice         int // orders with more than one call
	postponements int // of all orders together
	most          int // postponements of one order
	wait, took    time.Duration
}

// sharedResult is the use of the limits that the shops share.
type sharedResult struct {
	calls      map[string]int // accepted by the provider, by the limit
	refused    map[string]int
	used       float64 // the part of the app's limit, while the shops could have used more; 0 if they never could, or still can
	urgent     int     // orders
	urgentMost time.Duration
	urgentMean time.Duration
	othersMean time.Duration // which the others waited
}

// shared returns the use of the shared limits. Call it at the end of the demo.
func (l *ledger) shared() sharedResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := sharedResult{
		calls:   map[string]int{stockLimit: l.stock.calls},
		refused: map[string]int{appLimit: l.app.refused, stockLimit: l.stock.refused},
		urgent:  len(l.orders) - l.urgent,
	}
	for i := range l.shops {
		r.calls[appLimit] += l.shops[i].calls
	}
	if l.app.allowed >= 1 && !l.app.short { // else the demo has failed, and nobody counted what is allowed since
		r.used = float64(l.app.calls) / l.app.allowed
	}
	var urgent, others time.Duration
	for n := range l.orders {
		wait := l.orders[n].wait
		if n >= l.urgent {
			urgent += wait
			r.urgentMost = max(r.urgentMost, wait)
		} else {
			others += wait
		}
	}
	// Of those without a call nothing is counted: the verdict tells of them.
	r.urgentMean, r.othersMean = urgent/time.Duration(max(1, r.urgent)), others/time.Duration(max(1, l.urgent))
	return r
}

// results returns the result of each shop's orders, and last the result of all orders.
func (l *ledger) results() []result {
	l.mu.Lock()
	defer l.mu.Unlock()
	rs := make([]result, len(l.shops)+1)
	for i := range l.shops {
		s := &l.shops[i]
		rs[i] = result{
			name: s.name, orders: s.orders, calls: s.calls, refused: s.refused, undone: s.orders - s.done,
			took: max(0, s.ended.Sub(s.began)),
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
		r.wait = max(r.wait, o.wait)
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
