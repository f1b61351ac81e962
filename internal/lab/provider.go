package lab

import (
	"fmt"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// Provider counts the calls of one entity as a rate-limited service does. The providers here share nothing with the
// calculator of drip, not even the arithmetic. A call that was over the limit takes nothing of it.
type Provider interface {
	// Begin counts a call that arrives at a time, in milliseconds since 1970, with an estimated cost. It reports
	// whether the call is within the limit.
	Begin(ms int64, cost int) bool

	// End ends a call that was within the limit. It gets the call's begin and end, its estimated cost and its real
	// cost.
	End(began, ended int64, estimate, actual int)
}

// Of returns the Provider, counting another unit than calls.
func Of(unit string, p Provider) Provider { return ofUnit{p, unit} }

type ofUnit struct {
	Provider
	unit string
}

// beginAll begins the call of a message at all providers, and reports whether it is over a limit of any. The caller must
// call end when the call ends.
func beginAll(providers []Provider, at int64, b bill) (end func(now int64), over bool) {
	var within []Provider
	costOf := func(p Provider) cost {
		c, _ := p.(ofUnit)
		return b.in(c.unit)
	}
	for _, p := range providers {
		if p.Begin(at, costOf(p).estimate) {
			within = append(within, p)
		}
	}
	return func(now int64) {
		for _, p := range within {
			c := costOf(p)
			p.End(at, now, c.estimate, c.actual)
		}
	}, len(within) < len(providers)
}

// accuracy is the most by which sums of floating point numbers may be off.
const accuracy = 1e-6

// LeakyBucket fills with each call and drains evenly. A call is over the limit if it would overflow. The difference of a
// real cost to the estimate is poured in, or taken out, when the call ends. The room that is left in it is a TokenBucket.
func LeakyBucket(size, perSecond float64) Provider { return TokenBucket(size, perSecond) }

// TokenBucket holds tokens that calls take and that come back evenly. It is full at first. The difference of a real cost
// to the estimate is given back, or taken, when the call ends.
func TokenBucket(size, perSecond float64) Provider {
	return &tokenBucket{size: size, perSecond: perSecond, tokens: size}
}

type tokenBucket struct {
	size, perSecond float64
	tokens          float64
	at              int64
}

func (p *tokenBucket) refill(ms int64) {
	p.tokens = min(p.size, p.tokens+float64(ms-p.at)*p.perSecond/1000)
	p.at = ms
}

func (p *tokenBucket) Begin(ms int64, cost int) bool {
	p.refill(ms)
	if p.tokens < float64(cost)-accuracy {
		return false
	}
	p.tokens -= float64(cost)
	return true
}

func (p *tokenBucket) End(_, ended int64, estimate, actual int) {
	p.refill(ended)
	p.tokens = min(p.size, p.tokens+float64(estimate-actual))
}

// change gives the bucket another size and rate, as another plan does. The tokens that have room stay.
func (p *tokenBucket) change(ms int64, size, perSecond float64) {
	p.refill(ms)
	p.size, p.perSecond = size, perSecond
	p.tokens = min(p.tokens, size)
}

// FixedWindow counts the calls in each window of Unix time, such as in each minute of the clock. A call that has cost
// less than its estimate gives the rest back as long as its window lasts. A call that has cost more takes the rest from
// the window in which it ends.
func FixedWindow(n int, window time.Duration) Provider {
	return &fixedWindow{n: n, number: func(ms int64) int64 { return ms / window.Milliseconds() }}
}

// Calendar counts the calls in each day, week or month of the alignment, as FixedWindow does. Its error is an alignment without
// a calendar, or an unknown time zone.
func Calendar(n int, align drip.Alignment) (Provider, error) {
	if !align.Calendar() {
		return nil, fmt.Errorf("its alignment is %q; it must be daily, weekly or monthly", align)
	}
	c, err := calendarOf(align)
	if err != nil {
		return nil, err
	}
	return &fixedWindow{n: n, number: c.number}, nil
}

type fixedWindow struct {
	n      int
	number func(ms int64) int64 // of the window of a time
	window int64                // the one that used is of
	used   int
}

func (p *fixedWindow) turn(ms int64) {
	if w := p.number(ms); w != p.window {
		p.window, p.used = w, 0
	}
}

func (p *fixedWindow) Begin(ms int64, cost int) bool {
	p.turn(ms)
	if p.used+cost > p.n {
		return false
	}
	p.used += cost
	return true
}

func (p *fixedWindow) End(began, ended int64, estimate, actual int) {
	p.turn(ended)
	if actual > estimate || p.number(began) == p.window {
		p.used += actual - estimate
	}
}

// FirstCallWindow counts the calls in windows that begin with a call: the first one at all, and each that comes when
// the last window is over. It settles costs as FixedWindow does.
func FirstCallWindow(n int, window time.Duration) Provider {
	return &firstCallWindow{n: n, length: window.Milliseconds()}
}

type firstCallWindow struct {
	n      int
	length int64
	opened int64 // 0 before the first call
	used   int
}

func (p *firstCallWindow) Begin(ms int64, cost int) bool {
	if p.opened == 0 || ms >= p.opened+p.length {
		p.opened, p.used = ms, 0
	}
	if p.used+cost > p.n {
		return false
	}
	p.used += cost
	return true
}

func (p *firstCallWindow) End(began, ended int64, estimate, actual int) {
	if ended < p.opened+p.length && (actual > estimate || began >= p.opened) {
		p.used += actual - estimate
	}
}

// SlidingWindow keeps a log of its calls. A call is over the limit if it and all calls less than a window ago are more
// than n. A call that has cost less than its estimate counts less from its end on. The excess of a call that has cost
// more counts as a call of its own, at its end.
func SlidingWindow(n int, window time.Duration) Provider {
	return &slidingWindow{n: n, length: window.Milliseconds()}
}

type slidingWindow struct {
	n      int
	length int64
	log    []logged // the oldest first
	used   int      // by all of the log
}

type logged struct {
	at   int64
	cost int
}

func (p *slidingWindow) Begin(ms int64, cost int) bool {
	old := 0
	for ; old < len(p.log) && p.log[old].at+p.length <= ms; old++ {
		p.used -= p.log[old].cost
	}
	p.log = p.log[old:]
	if p.used+cost > p.n {
		return false
	}
	p.enter(ms, cost)
	return true
}

func (p *slidingWindow) End(began, ended int64, estimate, actual int) {
	switch {
	case actual > estimate:
		p.enter(ended, actual-estimate)
	case actual < estimate && (len(p.log) > 0 && p.log[0].at <= began): // else it is forgotten
		p.enter(began, actual-estimate)
	}
}

func (p *slidingWindow) enter(ms int64, cost int) {
	i := len(p.log)
	for i > 0 && p.log[i-1].at > ms {
		i--
	}
	p.log = slices.Insert(p.log, i, logged{ms, cost})
	p.used += cost
}

// Concurrency counts the calls under way. It ignores their costs.
func Concurrency(n int) Provider { return &concurrency{n: n} }

type concurrency struct{ n, underWay int }

func (p *concurrency) Begin(int64, int) bool {
	if p.underWay >= p.n {
		return false
	}
	p.underWay++
	return true
}

func (p *concurrency) End(int64, int64, int, int) { p.underWay-- }
