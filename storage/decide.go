package storage

import (
	"errors"
	"math"
	"math/bits"
	"time"
)

// Limits is what the calculator allows an entity, in the numbers the algorithm works with: all times are whole
// milliseconds. Each field but Start is at least 1; Validate tells.
type Limits struct {
	Size            int64 // the most capacity an entity gathers, and the most tokens out at once
	RefreshRate     int64 // capacity gained each interval
	RefreshInterval int64 // length of an interval
	WaitForToken    int64 // how long to postpone when only a token is short
	Start           int64 // when an entity nobody has seen yet began to gather capacity, since 1970
}

// Validate returns an error that names the first field that is not at least 1.
func (l *Limits) Validate() error {
	switch {
	case l.Size < 1:
		return errors.New("storage: Limits.Size is below 1")
	case l.RefreshRate < 1:
		return errors.New("storage: Limits.RefreshRate is below 1")
	case l.RefreshInterval < 1:
		return errors.New("storage: Limits.RefreshInterval is below 1 ms")
	case l.WaitForToken < 1:
		return errors.New("storage: Limits.WaitForToken is below 1 ms")
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

// Decide answers one GetDelay at the time now, in milliseconds since 1970, with a delay in milliseconds, and
// turns s into the next state. Zero means run: the token is taken. Anything else is above zero and means postpone:
// the slot is booked. It looks at nothing but its arguments, and is defined for every int64.
//
// These are the delays of npm dripping-bucket 1.2.0, but for time that runs backwards: the entity's time stands
// still until the clock has caught up with its last run, so no capacity is gained twice.
func (l *Limits) Decide(s *State, now int64) (delay int64) {
	now = max(now, s.Ops.Last)
	if s.InUse < l.Size {
		s.Ops.Capacity = l.gain(s.Ops, now)
		if s.Ops.Capacity > 0 {
			s.Ops = Ledger{Last: now, Capacity: s.Ops.Capacity - 1}
			s.InUse++
			s.Until = l.until(s)
			return 0
		}
		// No capacity is left in this interval: the wait ledger must be in a later one.
		switch n, last := l.interval(now), l.interval(s.Wait.Last); {
		case last < n:
			s.Wait = l.following(now)
		case last == n:
			s.Wait.Last = l.following(now).Last
		}
	} else if now >= s.Wait.Last {
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
	if s.Wait.Capacity == 0 {
		s.Wait = l.following(s.Wait.Last)
	}
	s.Wait.Capacity--
	s.Until = l.until(s)
	return max(1, sub(s.Wait.Last, now))
}

// Return gives one token back in s. Without a token out nothing changes.
func (l *Limits) Return(s *State) {
	if s.InUse > 0 {
		s.InUse--
		s.Until = l.until(s)
	}
}

// gain is the capacity of from after the refreshes up to t.
func (l *Limits) gain(from Ledger, t int64) int64 {
	refreshes := max(0, sub(l.interval(t), l.interval(from.Last)))
	return min(l.Size, add(from.Capacity, mul(refreshes, l.RefreshRate)))
}

// following is the interval after the one t is in, with all its capacity.
func (l *Limits) following(t int64) Ledger {
	into := t % l.RefreshInterval
	if into < 0 {
		into += l.RefreshInterval
	}
	return Ledger{Last: add(t, l.RefreshInterval-into), Capacity: l.RefreshRate}
}

// interval is the number of the interval t is in: floor(t / RefreshInterval).
func (l *Limits) interval(t int64) int64 {
	n := t / l.RefreshInterval
	if t%l.RefreshInterval < 0 {
		n--
	}
	return n
}

// until is State.Until: a time by which s has refilled, a new entity would be just as full, and no slot given
// lies ahead.
func (l *Limits) until(s *State) int64 {
	if s.InUse > 0 {
		return math.MaxInt64
	}
	refill := mul(add((l.Size-1)/l.RefreshRate, 2), l.RefreshInterval)
	return max(add(max(s.Ops.Last, l.Start), refill), add(s.Wait.Last, l.RefreshInterval))
}

// Milliseconds is a delay of Decide as a Duration. Delays past the 292 years a Duration holds become the longest.
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
