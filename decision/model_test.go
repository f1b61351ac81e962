package decision_test

import (
	"cmp"
	"fmt"

	"github.com/drip-go/drip/decision"
)

// ledger counts what an entity let run, by itself: it keeps the list of runs and shares no arithmetic with package
// decision. Each of its methods takes note of one event and returns an error if a rule is broken.
type ledger struct {
	now    int64 // the time of the entity
	eras   []era // of limits; the last one holds
	runs   []run
	closed []span // when nothing may run, in order
	empty  []drop
	holds  map[int64]hold // by the ID of the lease
	tokens int64          // the most that may be out
	plain  int64          // tokens of GetDelay that are out
}

// era is a time in which the limits stayed the same.
type era struct {
	from   int64
	run    int // the first run in it
	limits decision.Limits
}

// run is an operation that began.
type run struct {
	at   int64
	cost decision.Cost
}

// span is a time from its first millisecond to the one before its last.
type span struct{ from, to int64 }

// drop is a time at which a window had nothing left: what ran since then, it has gained since then.
type drop struct {
	at     int64
	run    int // the first run since
	window int
}

// hold is a lease that is out.
type hold struct {
	lease decision.Lease
	run   int
}

// newLedger begins at the time Start of the limits, with empty windows.
func newLedger(l decision.Limits) *ledger {
	b := &ledger{now: -1 << 62, tokens: l.Tokens, holds: map[int64]hold{}}
	b.change(l, l.Start)
	for w := range l.Windows {
		b.empty = append(b.empty, drop{at: l.Start, window: w})
	}
	return b
}

// change takes note of limits that hold from a time on.
func (b *ledger) change(l decision.Limits, at int64) {
	b.eras = append(b.eras, era{at, len(b.runs), l})
}

// limits are the limits by which windows are counted.
func (b *ledger) limits() *decision.Limits { return &b.eras[len(b.eras)-1].limits }

// tick takes note of the time of an operation. The time of an entity does not run backwards.
func (b *ledger) tick(now int64) {
	if len(b.runs) == 0 { // an entity may be asked before it began, and gains from then on
		for i := range b.empty {
			b.empty[i].at = min(b.empty[i].at, now)
		}
		b.eras[0].from = min(b.eras[0].from, now)
	}
	b.now = max(b.now, now)
}

// ran takes note of an operation that began.
func (b *ledger) ran(cost decision.Cost) error {
	if n := len(b.closed); n > 0 && b.now < b.closed[n-1].to {
		return fmt.Errorf("at %d an operation ran, closed until %d", b.now, b.closed[n-1].to)
	}
	b.runs = append(b.runs, run{b.now, cost})
	if out := b.inFlight(); out > b.tokens {
		return fmt.Errorf("%d operations in flight, want at most %d", out, b.tokens)
	}
	for w, window := range b.limits().Windows {
		if cost[window.Unit] == 0 { // another unit may be owed
			continue
		}
		if err := cmp.Or(b.check(w), b.counted(w)); err != nil {
			return err
		}
	}
	return nil
}

// admitted takes note of a lease.
func (b *ledger) admitted(l decision.Lease) error {
	if b.alive(l.ID, b.now) {
		return fmt.Errorf("a second lease has the ID %d", l.ID)
	}
	b.holds[l.ID] = hold{l, len(b.runs)}
	return b.ran(l.Cost)
}

// alive reports whether the lease of an ID is out.
func (b *ledger) alive(id, now int64) bool {
	h, ok := b.holds[id]
	return ok && h.lease.End > max(now, b.now)
}

// ended takes note of a lease that came back with the real cost. An operation that cost more than its estimate is
// counted by the estimate: the operations that run afterwards check its debt.
func (b *ledger) ended(id int64, cost decision.Cost) {
	r := &b.runs[b.holds[id].run]
	for unit := range cost {
		r.cost[unit] = min(r.cost[unit], cost[unit])
	}
	delete(b.holds, id)
}

// inFlight is the number of operations that hold a token.
func (b *ledger) inFlight() int64 {
	out := b.plain
	for _, h := range b.holds {
		if h.lease.End > b.now {
			out++
		}
	}
	return out
}

// close takes note of a closing. It does not end before another one.
func (b *ledger) close(wait int64) {
	to := b.now + wait
	for _, c := range b.closed {
		to = max(to, c.to)
	}
	b.closed = append(b.closed, span{b.now, to})
}

// throttle takes note of a closing that drops the gathered capacity of windows.
func (b *ledger) throttle(wait int64) {
	b.close(wait)
	for i, w := range b.limits().Windows {
		if w.Size > w.Rate {
			b.empty = append(b.empty, drop{b.now, len(b.runs), i})
		}
	}
}

// open takes note of the end of all closings.
func (b *ledger) open() {
	for i := range b.closed {
		b.closed[i].to = min(b.closed[i].to, b.now)
	}
}

// reset takes note of the end of all leases. If the time of the entity was ahead it goes back, and nothing is left then.
func (b *ledger) reset(now int64) {
	clear(b.holds)
	b.plain = 0
	if ahead := b.now > now; ahead {
		b.now, b.runs, b.closed, b.empty = now, nil, nil, nil
		b.eras = []era{{now, 0, *b.limits()}}
		for w := range b.limits().Windows {
			b.empty = append(b.empty, drop{at: now, window: w})
		}
	}
	b.open()
}

// check compares each span that ends with the last run with what the window could give in it.
func (b *ledger) check(w int) error {
	last, sum, unit := len(b.runs)-1, int64(0), b.limits().Windows[w].Unit
	for i := last; i >= 0; i-- {
		sum += b.runs[i].cost[unit]
		if from := b.runs[i].at; b.known(w, i) {
			if gain := b.gain(w, from, b.now) + b.raised(w, from); sum-gain > b.size(w, from) {
				return fmt.Errorf("window %d: from %d to %d ran %d units, want at most %d and a gain of %d",
					w, from, b.now, sum, b.size(w, from), gain)
			}
		}
	}
	for _, d := range b.empty {
		if d.window != w || !b.known(w, d.run) {
			continue
		}
		sum = 0
		for _, r := range b.runs[d.run:] {
			sum += r.cost[unit]
		}
		if gain := b.gain(w, d.at, b.now) + b.raised(w, d.at); sum > gain {
			return fmt.Errorf("window %d: since it was empty at %d ran %d units until %d, want at most %d", w, d.at, sum, b.now, gain)
		}
	}
	return nil
}

// resized reports whether an era began with another size alone of a window that counts the operations of an interval.
func (b *ledger) resized(w, at int) bool {
	before, after := b.eras[at-1].limits.Windows, b.eras[at].limits.Windows
	if w >= len(before) || w >= len(after) {
		return false
	}
	old, now := before[w], after[w]
	return old.Size <= old.Rate && now.Size <= now.Rate && old.Unit == now.Unit &&
		old.Interval == now.Interval && old.Offset == now.Offset && old.Series == now.Series
}

// raised is by how much larger a window that counts has become since a time: as much of the interval is left, although it was
// empty then. In each interval it may be raised again.
func (b *ledger) raised(w int, from int64) (all int64) {
	sum, most, at := int64(0), int64(0), from
	for i := 1; i < len(b.eras); i++ {
		if e := b.eras[i]; e.from >= from && b.resized(w, i) {
			window := e.limits.Windows[w]
			if begins(window, at, e.from) > 0 {
				all, sum, most = all+most, 0, 0
			}
			sum, at = sum+window.Size-b.eras[i-1].limits.Windows[w].Size, e.from
			most = max(most, sum)
		}
	}
	return all + most
}

// counted compares what ran in this interval with the size of a window that counts it. An operation that ran when the size was
// larger counts, too.
func (b *ledger) counted(w int) error {
	window, sum := b.limits().Windows[w], int64(0)
	if window.Size > window.Rate {
		return nil
	}
	for i := len(b.eras) - 1; i > 0 && begins(window, b.eras[i].from, b.now) == 0; i-- {
		if !b.resized(w, i) {
			return nil
		}
	}
	for i := len(b.runs) - 1; i >= 0 && begins(window, b.runs[i].at, b.now) == 0; i-- {
		sum += b.runs[i].cost[window.Unit]
	}
	if sum > window.Size {
		return fmt.Errorf("window %d: %d units ran in its interval, want at most %d", w, sum, window.Size)
	}
	return nil
}

// known reports whether a window was among the limits at a run or in the days before. It does not count earlier
// operations.
func (b *ledger) known(w, run int) bool {
	by := b.now
	if run < len(b.runs) {
		by = b.runs[run].at
	}
	for i, e := range b.eras {
		ended := i < len(b.eras)-1 && b.eras[i+1].from < by-30*86_400_000
		if e.run <= run && !ended && w < len(e.limits.Windows) {
			return true
		}
	}
	return false
}

// size is the largest size that a window had since a time.
func (b *ledger) size(w int, from int64) (size int64) {
	for i, e := range b.eras {
		if w < len(e.limits.Windows) && (i == len(b.eras)-1 || b.eras[i+1].from >= from) {
			size = max(size, e.limits.Windows[w].Size)
		}
	}
	return size
}

// gain is the most that a window brought from a time to another: its Rate at each beginning of an interval. One that
// gathers capacity brings nothing while the entity is closed. While it is left out nobody knows of a closing, and it may
// bring by the limits before or after, whichever is more.
func (b *ledger) gain(w int, from, to int64) (gain int64) {
	for i, e := range b.eras {
		begin, end := max(from, e.from), to
		if i == 0 {
			begin = from
		}
		if i < len(b.eras)-1 {
			end = min(end, b.eras[i+1].from)
		}
		if begin > end {
			continue
		}
		most := int64(0)
		for _, window := range b.windows(w, i) {
			if w < len(e.limits.Windows) {
				most = max(most, b.gainOf(window, begin, end))
			} else {
				most = max(most, times(begins(window, begin, end), window.Rate))
			}
		}
		gain = min(gain+most, 1<<61)
	}
	return gain
}

// windows are the limits that a window may be counted by in an era: its own, or if it is left out the ones of the eras
// around.
func (b *ledger) windows(w, at int) (all []decision.Window) {
	if len(b.eras[at].limits.Windows) > w {
		return b.eras[at].limits.Windows[w : w+1]
	}
	for _, e := range b.eras {
		if len(e.limits.Windows) > w {
			all = append(all, e.limits.Windows[w])
		}
	}
	return all
}

func (b *ledger) gainOf(w decision.Window, from, to int64) int64 {
	if w.Size <= w.Rate {
		return times(begins(w, from, to), w.Rate)
	}
	n := int64(0)
	for _, c := range b.closed {
		if c.from >= to {
			break
		}
		if c.from > from {
			n += begins(w, from, c.from)
		}
		if c.to > from { // an interval that begins as it opens brings
			from = c.to - 1
		}
	}
	return times(n+begins(w, from, to), w.Rate)
}

// begins is the number of intervals that begin after from and not after to.
func begins(w decision.Window, from, to int64) (n int64) {
	if from >= to {
		return 0
	}
	from, to = from-w.Offset, to-w.Offset
	interval := w.Interval
	first := from - (from%interval+interval)%interval + interval
	if first > to {
		return 0
	}
	return (to-first)/interval + 1
}

// times multiplies without an overflow.
func times(a, b int64) int64 {
	if a > 0 && b > 1<<61/a {
		return 1 << 61
	}
	return a * b
}
