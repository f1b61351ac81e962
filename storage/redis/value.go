package redis

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// layout is the first number of a value that decide.lua can read. It grows with each change in the others. Of values of earlier
// versions only the revision and the Until are read: these stay where they are.
const layout = 18

// mostLayout is above the layouts of later versions for long. A number above is of something else.
const mostLayout = 1000

// rawLayout is the layout of a value with a state that decide.lua cannot read.
const rawLayout = 3

// headers is the count of numbers in front of a state: see decide.lua.tmpl.
const headers = 8

// bare is the result of storage.Encode for a state without lines, pins, flows and calendars.
var bare = storage.Encode(&decision.State{Tokens: 1}, nil)

// format is the beginning of a result of storage.Encode, in front of the numbers of a state. A value does not have it.
var format = bare[:8]

// scalars is the count of numbers in front of the lines of a state: the scalars of State, and the counts of lines, pins,
// flows, calendars, and bytes of the calendar's Units and Classes.
var scalars = len(bare)/8 - 1

// earlier is what storage.Decode takes for a state of an earlier version.
var earlier = binary.BigEndian.AppendUint64(nil, 1)

// stored is the value of a key.
type stored struct {
	storage.State
	revision storage.Revision
	apart    bool // the leases are in the set
}

// number returns the i-th number of a value.
func number(b []byte, i int) int64 {
	return int64(math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:])))
}

func unpack(value []byte) (s stored, err error) {
	if len(value) < 8*headers {
		return s, ErrNotState
	}
	s.revision = storage.Revision(binary.LittleEndian.Uint64(value[8:]))
	kind := math.Float64frombits(binary.LittleEndian.Uint64(value))
	if kind != math.Trunc(kind) || kind < 1 || kind > mostLayout { // or no number
		return s, ErrNotState
	} else if kind > layout {
		return s, errLater
	}
	s.Now, s.Until = number(value, 2), number(value, 3)
	if kind < layout && kind != rawLayout {
		s.Data = slices.Clone(earlier)
		return s, nil
	}
	s.apart = number(value, 5) == 1
	rest := value[8*headers:]
	switch {
	case kind == rawLayout:
		s.Data = rest
	case len(rest) > 0:
		if len(rest) < 8*scalars {
			return s, ErrNotState
		}
		numbers := len(rest) - int(number(rest, scalars-2)+number(rest, scalars-1)) // in bytes; the rest is Units and Classes
		if numbers < 8*scalars || numbers > len(rest) || numbers%8 != 0 {
			return s, ErrNotState
		}
		s.Data = slices.Clone(format)
		for i := range numbers / 8 {
			s.Data = binary.BigEndian.AppendUint64(s.Data, uint64(number(rest, i)))
		}
		s.Data = append(s.Data, rest[numbers:]...)
	}
	return s, nil
}

// pack makes a value. head is the part in front of the revision.
func pack(s *storage.State) (head, behind []byte) {
	var state decision.State
	held, err := storage.Decode(s.Data, &state)
	if err == nil && bytes.HasPrefix(s.Data, format) {
		first, last := ends(held)
		behind, ok := appendEncoded(appendNumbers(nil, s.Now, s.Until, s.Now, 0, first, last), s.Data)
		if ok {
			return appendNumbers(nil, layout), behind
		}
	}
	kind := int64(layout)
	if len(s.Data) > 0 {
		kind = rawLayout
	}
	return appendNumbers(nil, kind), append(appendNumbers(nil, s.Now, s.Until, s.Now, 0, 0, 0), s.Data...)
}

// near is how far a time may be from the server's clock to be by that clock, in milliseconds.
const near = 60_000

// timeToLive returns a time to live in milliseconds that Redis takes.
func timeToLive(keep int64) int64 {
	const longest = 1 << 43 // 278 years: more is too much for programs that count it in nanoseconds
	return min(max(keep, 1), longest)
}

// ends returns the earliest and the latest end of leases; 0 if there are none.
func ends(held []storage.Held) (first, last int64) {
	for i, h := range held {
		last = max(last, h.End)
		if i == 0 || h.End < first {
			first = h.End
		}
	}
	return first, last
}

// appendEncoded appends what a value has for a result of storage.Encode. ok is false if Lua cannot count so far.
func appendEncoded(b, encoded []byte) (all []byte, ok bool) {
	const exact = 1 << 53
	count := func(place int) int { return int(binary.BigEndian.Uint64(encoded[len(format)+8*place:])) }
	numbers := len(encoded) - count(scalars-2) - count(scalars-1) // in bytes
	b = slices.Grow(b, len(encoded))
	for i := len(format); i < numbers; i += 8 {
		n := int64(binary.BigEndian.Uint64(encoded[i:]))
		if n < -exact || n > exact {
			return nil, false
		}
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return append(b, encoded[numbers:]...), true
}

// heldOf reads members of a set of leases and their ends, as a script lists them.
func heldOf(list []any) ([]storage.Held, error) {
	held := make([]storage.Held, len(list)/2)
	for i := range held {
		id, _ := list[2*i].(string)
		end, err := strconv.ParseFloat(fmt.Sprint(list[2*i+1]), 64)
		if len(id) != 8 || err != nil {
			return nil, ErrNotState
		}
		held[i] = storage.Held{ID: number([]byte(id), 0), End: int64(end)}
	}
	return held, nil
}

// byEnd puts leases in the order of storage.Leases.
func byEnd(held []storage.Held) {
	slices.SortFunc(held, func(a, b storage.Held) int { return cmp.Or(cmp.Compare(a.End, b.End), cmp.Compare(a.ID, b.ID)) })
}

// appendNumbers writes numbers as scripts read them.
func appendNumbers(b []byte, numbers ...int64) []byte {
	b = slices.Grow(b, 8*len(numbers))
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return b
}

// packLimits makes the first argument of decide.lua: the numbers of decision.Limits in the order of their declaration,
// with the count of Windows in its place, and the numbers of the Windows.
func packLimits(l *decision.Limits) string {
	b := make([]byte, 0, 8*32)
	b = appendNumbers(b, int64(len(l.Windows)), l.Tokens, l.Guess, l.Lease, l.MaxLease, l.FirstCome, l.Start, l.Fill, l.Shortest, l.Grain, l.PerGrain)
	b = appendNumbers(appendNumbers(b, l.Parts[:]...), l.Scale, l.Zero)
	for i := range l.Windows {
		w := &l.Windows[i]
		b = appendNumbers(b, w.Size, w.Rate, w.Interval, w.Offset, w.Series, w.Unit)
	}
	return string(b)
}

// packOp makes another argument of decide.lua: the numbers of decision.Op in the order of their declaration. For most
// operations it is the Kind alone, or with a lease.
func packOp(o *decision.Op) string {
	t, l := &o.Ticket, &o.Lease
	if o.Now == decision.OwnClock && o.For == 0 && !o.Urgent && o.Deadline == 0 && o.Level == 0 && *t == (decision.Ticket{}) &&
		o.Pin == nil && (o.Cost == decision.Cost{1} || o.Kind == decision.GetDelay || o.Kind == decision.ReturnToken) {
		kind := kinds[o.Kind : o.Kind+1]
		if *l == (decision.Lease{}) {
			return kind
		} else if l.Cost == (decision.Cost{1}) {
			return string(appendNumbers(append(make([]byte, 0, 25), kind...), l.ID, l.Begin, l.End))
		}
	}
	b, urgent := make([]byte, 0, 8*26), int64(0)
	if o.Urgent {
		urgent = 1
	}
	b = appendNumbers(appendNumbers(b, int64(o.Kind), o.Now), o.Cost[:]...)
	b = appendNumbers(appendNumbers(b, o.For, t.Slot, t.Number, t.Again), t.Cost[:]...)
	b = appendNumbers(appendNumbers(b, l.ID, l.Begin, l.End), l.Cost[:]...)
	b = appendNumbers(b, urgent, o.Deadline, o.Level)
	if p := o.Pin; p != nil {
		b = appendNumbers(b, p.Window.Size, p.Window.Rate, p.Window.Interval, p.Window.Offset, p.Window.Series, p.Window.Unit, p.Tokens, p.Raise)
	}
	return string(b)
}

const kinds = "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c"

// take reads the next of the answers of decide.lua, of an operation within so many shared limits, and returns the rest.
func take(answers string, op *decision.Op, within int, a *decision.Answer) (rest string, err error) {
	var missing bool
	next := func() int64 {
		if len(answers) < 8 {
			missing = true
			return 0
		}
		n := number([]byte(answers[:8]), 0)
		answers = answers[8:]
		return n
	}
	sum := next()
	a.Delay, a.Bound = next(), decision.Bound(next())
	if !missing && sum == -1 {
		return answers, ErrNotState
	} else if !missing && sum == -2 {
		return answers, errLater
	}
	a.Found, a.Late, a.Limit = sum&1 != 0, sum&8 != 0, sum>>4
	if sum&2 != 0 {
		a.Ticket = decision.Ticket{Slot: next(), Number: next(), Again: next(), Cost: op.Cost}
	}
	if sum&4 != 0 {
		a.Lease = decision.Lease{ID: next(), Begin: next(), End: next(), Cost: op.Cost}
		if op.Kind == decision.Renew {
			a.Lease.Cost = op.Lease.Cost
		}
	}
	nothing := op.Kind == decision.Admit && !a.Late && a.Delay == 0 && a.Lease.ID == 0
	if missing || sum < 0 || a.Limit > int64(within) || a.Delay < 0 || nothing {
		return "", fmt.Errorf("%w that is a decision", ErrNoAnswer)
	}
	return answers, nil
}
