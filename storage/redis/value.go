package redis

import (
	"encoding/binary"
	"math"

	"github.com/drip-go/drip/storage"
)

// limit is what every number that a script calculates with stays below, either way: sums of two are then exact in a
// Lua number, which is a double. An Until from there on means never.
const limit = 1 << 52

func outside(n int64) bool { return n <= -limit || n >= limit }

// appendNumbers is pack of common.lua.
func appendNumbers(b []byte, numbers ...int64) []byte {
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// packState makes the value of a state, but for the revision in front. Its clock is a caller's.
func packState(s storage.State) []byte {
	return appendNumbers(appendNumbers(nil, 1), s.Numbers()...)
}

// unpack reads a whole value.
func unpack(value []byte) (storage.State, storage.Revision, error) {
	numbers := make([]int64, len(value)/8)
	for i := range numbers {
		numbers[i] = int64(binary.BigEndian.Uint64(value[8*i:]))
	}
	if len(numbers) < 2 || len(value)%8 != 0 {
		return storage.State{}, storage.NoRevision, ErrNotState
	}
	s, err := storage.StateOf(numbers[2:])
	if err != nil {
		return storage.State{}, storage.NoRevision, ErrNotState
	}
	if s.Until >= limit {
		s.Until = math.MaxInt64
	}
	return s, storage.Revision(numbers[0]), nil
}

// packLimits makes the first argument of op.lua.
func packLimits(l *storage.Limits) (string, error) {
	b, large := make([]byte, 0, 15*8), false
	add := func(numbers ...int64) {
		for _, n := range numbers {
			large = large || outside(n)
			b = binary.BigEndian.AppendUint64(b, uint64(n))
		}
	}
	add(l.Size, l.RefreshRate, l.RefreshInterval, l.WaitForToken, l.Start, l.Concurrency, l.Lease, l.MaxLease)
	for i := range l.Windows {
		w := &l.Windows[i]
		add(w.Size, w.RefreshRate, w.RefreshInterval)
	}
	if large {
		return "", ErrRange
	}
	return string(b), nil
}

// packOp makes another argument of op.lua.
func packOp(op *storage.Op) (string, error) {
	o := storage.Op{Now: op.Now} // and what the kind reads
	switch op.Kind {
	case storage.ReturnToken:
		o.Now = storage.OwnClock
	case storage.Admit:
		o.Cost, o.Ticket = op.Cost, op.Ticket
	case storage.Settle:
		o.Cost, o.Lease = op.Cost, op.Lease
	case storage.Cancel:
		o.Lease, o.Ticket = op.Lease, op.Ticket
	case storage.Renew:
		o.Lease = op.Lease
	case storage.Throttle, storage.Pause:
		o.For = op.For
	}
	t, l := &o.Ticket, &o.Lease
	if outside(o.Now) && o.Now != storage.OwnClock || outside(o.Cost) || outside(o.For) ||
		outside(l.ID/2) || outside(l.Begin) || outside(l.End) || outside(l.Cost) || outside(l.Left) {
		return "", ErrRange
	}
	b := append(make([]byte, 0, 1+13*8), byte(op.Kind))
	switch classic := op.Kind == storage.GetDelay || op.Kind == storage.ReturnToken; {
	case classic && o.Now == storage.OwnClock:
	case classic:
		b = appendNumbers(b, o.Now)
	default:
		b = appendNumbers(b, o.Now, o.Cost, o.For,
			clamp(t.Slot), clamp(t.Epoch), clamp(t.Cost), clamp(t.Number), clamp(t.Again),
			l.ID, l.Begin, l.End, l.Cost, l.Left)
	}
	return string(b), nil
}

// clamp brings a number of a ticket, which may be forged, to where a script can compare it.
func clamp(n int64) int64 { return min(max(n, 1-limit), limit-1) }

// take reads what a script answers to an operation of the kind, and returns what is behind it.
func take(answers string, kind storage.Kind) (a storage.Answer, rest string) {
	next := func() int64 {
		n := binary.BigEndian.Uint64([]byte(answers[:8]))
		answers = answers[8:]
		return int64(n)
	}
	switch kind {
	case storage.GetDelay, storage.Admit:
		a.Delay, a.Bound = next(), storage.Bound(next())
	case storage.ReturnToken, storage.Settle, storage.Cancel, storage.Renew:
		a.Found = next() == 1
	}
	if kind == storage.Admit && a.Delay > 0 {
		a.Ticket = storage.Ticket{Slot: next(), Epoch: next(), Cost: next(), Number: next(), Again: next()}
	} else if kind == storage.Admit || kind == storage.Renew {
		a.Lease = storage.Lease{ID: next(), Begin: next(), End: next(), Cost: next(), Left: next()}
	}
	return a, answers
}
