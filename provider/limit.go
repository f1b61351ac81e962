package provider

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
)

// Rule is one limit, as its provider states it. Make one with LeakyBucket, TokenBucket, FixedWindow, Calendar,
// SlidingWindow or Concurrency.
type Rule struct {
	kind      kind
	n         int            // the bucket's size, calls in a window, calls at a time
	perSecond float64        // of a bucket
	per       time.Duration  // of a window
	burst     int            // of a sliding window; 0 is a tenth of n
	unit      string         // what it counts; calls if it is empty
	align     drip.Alignment // of a calendar
}

type kind uint8

const (
	leakyBucket kind = iota + 1
	tokenBucket
	fixedWindow
	calendar
	slidingWindow
	concurrency
)

// LeakyBucket is a bucket that each call fills by one and that drains by perSecond, evenly. Its capacity must be at
// least 2. For one call after the other use Concurrency.
func LeakyBucket(capacity int, perSecond float64) Rule {
	return Rule{kind: leakyBucket, n: capacity, perSecond: perSecond}
}

// TokenBucket is a bucket from which each call takes one and that refills by perSecond, evenly. It is the same limit as
// LeakyBucket, counted the other way round.
func TokenBucket(capacity int, perSecond float64) Rule {
	return Rule{kind: tokenBucket, n: capacity, perSecond: perSecond}
}

// FixedWindow allows n calls in each window of the clock: each minute of Unix time, each day of UTC. Use it only if the
// provider's windows begin then, by a clock that agrees with the bucket's clock. Otherwise use SlidingWindow.
//
// n is at least 2. The Size is n less the calls that may be in flight. Without a rule Concurrency as many may be in
// flight as keep up the rate if a call takes 200 ms, and at least a twentieth of n. That is 9 of 50 a second, and 3 of
// 60 a minute. Of several such windows the least number counts. If calls take longer, name a higher Concurrency.
func FixedWindow(n int, per time.Duration) Rule {
	return Rule{kind: fixedWindow, n: n, per: per}
}

// Calendar allows n calls in each interval of a calendar, such as drip.Daily of the provider's time zone. Use it only
// if the provider documents that its day, week or month begins then. n is at least 2. The Size is n less the calls that
// may be in flight: those of a rule Concurrency, else a twentieth of n and at least one.
func Calendar(n int, align drip.Alignment) Rule { return Rule{kind: calendar, n: n, align: align} }

// SlidingWindow allows n calls in any span of time that long. A window whose beginning is not known is such a span, so
// this rule keeps it, too: one that begins with a call or at somebody's midnight. n must be at least 2.
//
// A tenth of n may run at once, at least one. In the long run about the rest of n runs in each window: nine of 10, but
// four of 5, and one of 2. Burst changes both.
func SlidingWindow(n int, per time.Duration) Rule {
	return Rule{kind: slidingWindow, n: n, per: per}
}

// Concurrency allows n calls at a time.
func Concurrency(n int) Rule { return Rule{kind: concurrency, n: n} }

// Burst returns the rule with another burst: how much of a SlidingWindow may run at once, from one call to half of its
// calls. A larger burst lets less run in the long run: the calls of the window less the burst, in each window.
func (r Rule) Burst(n int) Rule {
	r.burst = n
	if n < 1 {
		r.burst = -1 // not the default
	}
	return r
}

// Of returns the rule with a unit to count instead of calls, such as tokens of a language model. The unit becomes the
// unit of the Window. A FixedWindow, a Calendar and Concurrency have no unit, because nobody knows how much of it is in
// flight.
func (r Rule) Of(unit string) Rule {
	r.unit = unit
	return r
}

// String returns the rule in words: "60 in any 1m0s".
func (r Rule) String() string {
	n, rounded := fmt.Sprint(r.n), math.Round(r.perSecond*1e4)/1e4
	if r.unit != "" {
		n += " " + r.unit
	}
	switch r.kind {
	case leakyBucket:
		return fmt.Sprintf("a bucket of %s that drains by %g a second", n, rounded)
	case tokenBucket:
		return fmt.Sprintf("a bucket of %s that refills by %g a second", n, rounded)
	case fixedWindow:
		return fmt.Sprintf("%s in each %v of the clock", n, r.per)
	case calendar:
		return n + " " + cmp.Or(r.align.String(), "of a calendar")
	case slidingWindow:
		return fmt.Sprintf("%s in any %v", n, r.per)
	case concurrency:
		return fmt.Sprintf("%s at a time", n)
	}
	return "no limit"
}

const (
	unlimited   = decision.MostUnits   // of Size and Concurrency, where a provider has no limit
	mostUnits   = math.MaxInt32        // of a limit
	longest     = 366 * 24 * time.Hour // of a window
	longestTrip = time.Hour
)

// Limit returns the drip limit that keeps all of the rules at once. The first rule becomes the first window, and others
// become Windows, so name the shortest first.
//
// travel is the longest time from the admission of a request until the provider counts it. It includes the work of the
// handler before the request, connecting, and the way to the provider. 50 ms is right for a provider near by and a
// connection that is open. Each sliding window becomes longer by travel, and a bucket hardly slower. It is 0 to an
// hour.
//
// The error names a rule that drip cannot keep: one that allows a single call in a window, or one that makes no sense.
func Limit(travel time.Duration, rules ...Rule) (drip.Limit, error) {
	if travel < 0 || travel > longestTrip {
		return drip.Limit{}, fmt.Errorf("provider: travel is %v; it must be 0 to %v", travel, longestTrip)
	}
	if len(rules) == 0 {
		return drip.Limit{}, errors.New("provider: there are no rules")
	}
	l := drip.Limit{Concurrency: unlimited}
	inFlight := unlimited // the default for fixed windows
	for _, r := range rules {
		if err := r.check(); err != nil {
			return drip.Limit{}, fmt.Errorf("provider: %v: %w", r, err)
		}
		switch r.kind {
		case concurrency:
			l.Concurrency = min(l.Concurrency, r.n)
		case fixedWindow, calendar:
			inFlight = min(inFlight, r.inFlight())
		}
	}
	if l.Concurrency == unlimited {
		l.Concurrency = inFlight
	}
	for _, r := range rules {
		var w drip.Window
		switch r.kind {
		case concurrency:
			continue
		case leakyBucket, tokenBucket:
			w = r.bucket(travel)
		case slidingWindow:
			w = r.sliding(travel)
		case fixedWindow, calendar:
			n := r.n - l.Concurrency
			if n < 1 {
				return drip.Limit{}, fmt.Errorf("provider: %v: nothing is left of it with %d calls in flight", r, l.Concurrency)
			}
			w = drip.Window{Size: n, RefreshRate: n, RefreshInterval: r.per, Align: r.align}
		}
		w.Unit = r.unit
		if l.Size == 0 {
			l.Size, l.RefreshRate, l.RefreshInterval, l.Align, l.Unit = w.Size, w.RefreshRate, w.RefreshInterval, w.Align, w.Unit
		} else {
			l.Windows = append(l.Windows, w)
		}
	}
	if l.Size == 0 {
		l.Size, l.RefreshRate, l.RefreshInterval = unlimited, unlimited, time.Second
	}
	return l, nil
}

// Options returns the options of a bucket whose entities all have this limit. With the memory storage set Start, too,
// unless calls of an earlier process may still count. An entity gathers its first capacity with the next interval of
// each window after Start. That is hours when the window is a day, and Start defaults to now. With any other storage an
// entity that is not stored is full.
func Options(l drip.Limit) drip.Options {
	return drip.Options{
		Size: l.Size, RefreshRate: l.RefreshRate, RefreshInterval: l.RefreshInterval, Align: l.Align, Unit: l.Unit,
		Windows: l.Windows, Concurrency: l.Concurrency, WaitForToken: l.WaitForToken,
	}
}

// inFlight returns how many calls of a window of the clock may be in flight by default.
func (r Rule) inFlight() int {
	n := max(1, r.n/20)
	if r.kind == fixedWindow { // n calls, each of this time, keep up the rate of the other r.n-n
		const call = 200 * time.Millisecond
		keepUp := (time.Duration(r.n)*call + r.per + call - 1) / (r.per + call)
		n = max(n, min(int(keepUp), r.n-1))
	}
	return n
}

func (r Rule) check() error {
	least := 2
	switch r.kind {
	case concurrency:
		least = 1
	case leakyBucket, tokenBucket:
		if !(r.perSecond*longest.Seconds() >= 1 && r.perSecond <= mostUnits) {
			return fmt.Errorf("a rate must be above one a year and at most %d a second", mostUnits)
		}
	case calendar:
		if !r.align.Calendar() {
			return fmt.Errorf("its alignment is %q; it must be daily, weekly or monthly", r.align)
		}
	case fixedWindow, slidingWindow:
		if r.per < time.Millisecond || r.per > longest || r.per%time.Millisecond != 0 {
			return fmt.Errorf("a window must be whole milliseconds, from 1ms to %v", longest)
		}
	default:
		return errors.New("make it with LeakyBucket, TokenBucket, FixedWindow, Calendar, SlidingWindow or Concurrency")
	}
	if r.n < least || r.n > mostUnits {
		return fmt.Errorf("the number is %d; it must be from %d to %d", r.n, least, mostUnits)
	}
	if r.unit != "" && (r.kind == fixedWindow || r.kind == calendar || r.kind == concurrency) {
		return errors.New("it counts calls only")
	}
	if r.burst != 0 && r.kind != slidingWindow {
		return errors.New("only a sliding window has a Burst")
	}
	if r.burst < 0 || r.burst > r.n/2 {
		return fmt.Errorf("a Burst is from 1 to %d, half of the window", r.n/2)
	}
	return nil
}

// bucket has all of the rate if Size allows it. A smaller RefreshRate leaves a larger Size. But an interval is whole
// milliseconds, so a slightly larger RefreshRate matches the rate more exactly.
func (r Rule) bucket(travel time.Duration) drip.Window {
	var best drip.Window
	bestShare := 0.0
	for rate := max(1, int(r.perSecond/1000)); bestShare < 0.999; rate++ {
		size := math.Floor(float64(r.n-rate) - r.perSecond*travel.Seconds())
		if size < float64(rate) || best.RefreshRate > 0 && rate > best.RefreshRate+1000 {
			break
		}
		interval := math.Ceil(float64(rate) * 1000 / r.perSecond)
		if share := float64(rate) * 1000 / (interval * r.perSecond); share > bestShare {
			best = drip.Window{Size: int(size), RefreshRate: rate, RefreshInterval: time.Duration(interval) * time.Millisecond}
			bestShare = share
		}
	}
	if best.Size == 0 {
		best.RefreshRate = r.n / 2
		best.Size = r.n - best.RefreshRate
		interval := math.Ceil(float64(best.RefreshRate)*1000/r.perSecond + travel.Seconds()*1000)
		best.RefreshInterval = time.Duration(interval) * time.Millisecond
	}
	return best
}

func (r Rule) sliding(travel time.Duration) drip.Window {
	burst := cmp.Or(r.burst, max(1, r.n/10))
	beginnings := time.Duration(r.n/burst - 1)
	span := (r.per + travel + time.Millisecond - 1) / time.Millisecond
	return drip.Window{Size: burst, RefreshRate: burst, RefreshInterval: (span/beginnings + 1) * time.Millisecond}
}
