package storage

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Limits is what the calculator allows an entity, in the numbers the algorithm works with: all times are whole
// milliseconds. Validate tells what is wrong with them.
type Limits struct {
	Window                // the first one
	Windows      []Window // further ones, enforced at the same time
	Concurrency  int64    // the most tokens out at once; 0 means Size
	WaitForToken int64    // how long to postpone when only a token is short
	Start        int64    // when an entity nobody has seen yet began to gather capacity, since 1970
	Lease        int64    // how long a lease lasts unless it is renewed
	MaxLease     int64    // and in all
}

// Window brings capacity at the beginning of each interval of Unix time.
type Window struct {
	Size            int64 // the most capacity an entity gathers
	RefreshRate     int64 // capacity gained each interval
	RefreshInterval int64 // length of an interval
}

// Validate returns an error that names the first field that is not possible.
func (l *Limits) Validate() error {
	for i := range l.windows() {
		name := "Limits."
		if i > 0 {
			name = fmt.Sprintf("Limits.Windows[%d].", i-1)
		}
		switch w := l.window(i); {
		case w.Size < 1:
			return errors.New("storage: " + name + "Size is below 1")
		case w.RefreshRate < 1:
			return errors.New("storage: " + name + "RefreshRate is below 1")
		case w.RefreshInterval < 1:
			return errors.New("storage: " + name + "RefreshInterval is below 1 ms")
		}
	}
	switch {
	case l.WaitForToken < 1:
		return errors.New("storage: Limits.WaitForToken is below 1 ms")
	case l.Concurrency < 0:
		return errors.New("storage: Limits.Concurrency is below 0")
	case l.Lease < 0 || l.MaxLease < 0:
		return errors.New("storage: Limits.Lease or MaxLease is below 0")
	}
	return nil
}

// New is the state of an entity under which nothing is stored.
func (l *Limits) New() State {
	return State{
		Ops:  Ledger{Last: l.Start},
		Wait: Ledger{Last: sub(l.Start, l.RefreshInterval)},
	}
}

// classic answers one GetDelay of an entity with a single window and without any ticket outstanding: zero means
// run, and the capacity is taken; anything else is above zero and means postpone.
//
// These are the delays of npm dripping-bucket 1.2.0, but for time that runs backwards: the caller sees to it that now
// is never before the last run, so no capacity is gained twice.
func (l *Limits) classic(s *State, now int64) (delay int64, bound Bound) {
	if s.inUse() < l.concurrency() {
		if capacity := l.gain(s.Ops, now); capacity > 0 {
			s.Ops = Ledger{Last: now, Capacity: capacity - 1}
			return 0, BoundNone
		}
		// No capacity is left in this interval: the wait ledger must be in a later one.
		switch n, last := l.interval(now), l.interval(s.Wait.Last); {
		case last < n:
			s.Wait = l.following(now)
		case last == n:
			s.Wait.Last = l.following(now).Last
		}
		bound = BoundWindow
	} else {
		bound = BoundTokens
		if now >= s.Wait.Last {
			// No token is left, and no later slot was given yet: one may be free after WaitForToken.
			next, from := add(now, l.WaitForToken), s.Wait
			if s.Wait.Last < s.Ops.Last {
				from = s.Ops
			}
			if capacity := l.gain(from, next); capacity > 0 {
				s.Wait = Ledger{Last: next, Capacity: capacity}
			} else {
				s.Wait = l.following(next)
			}
		}
	}
	if s.Wait.Capacity == 0 {
		s.Wait = l.following(s.Wait.Last)
	}
	s.Wait.Capacity--
	return max(1, sub(s.Wait.Last, now)), bound
}

// gain is the capacity of from after the refreshes up to t.
func (w *Window) gain(from Ledger, t int64) int64 {
	return min(w.Size, add(from.Capacity, mul(w.refreshes(from.Last, t), w.RefreshRate)))
}

// refreshes is how many there are from a time to another.
func (w *Window) refreshes(from, t int64) int64 {
	return max(0, sub(w.interval(t), w.interval(from)))
}

// following is the interval after the one t is in, with all its capacity.
func (w *Window) following(t int64) Ledger {
	into := t % w.RefreshInterval
	if into < 0 {
		into += w.RefreshInterval
	}
	return Ledger{Last: add(t, w.RefreshInterval-into), Capacity: w.RefreshRate}
}

// interval is the number of the interval t is in: floor(t / RefreshInterval).
func (w *Window) interval(t int64) int64 {
	n := t / w.RefreshInterval
	if t%w.RefreshInterval < 0 {
		n--
	}
	return n
}

// Milliseconds is a delay of Apply as a Duration. Delays past the 292 years a Duration holds become the longest.
func Milliseconds(ms int64) time.Duration {
	if ms > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(ms) * time.Millisecond
}

// add, sub and mul stay at the end of the int64 range instead of wrapping, so that no time and no limit, however
// absurd, turns into capacity. mul is for a >= 0 and b >= 0.

func add(a, b int64) int64 {
	c := a + b
	switch {
	case b > 0 && c < a:
		return math.MaxInt64
	case b < 0 && c > a:
		return math.MinInt64
	}
	return c
}

func sub(a, b int64) int64 {
	c := a - b
	switch {
	case b < 0 && c < a:
		return math.MaxInt64
	case b > 0 && c > a:
		return math.MinInt64
	}
	return c
}

func mul(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}
