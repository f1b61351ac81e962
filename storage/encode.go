package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/drip-go/drip/decision"
)

// ErrFormat means that the bytes are no encoded state.
var ErrFormat = errors.New("the stored bytes are not the state of an entity")

// ErrLater means that a later version of drip has encoded the state. It is an ErrFormat, too: errors.Is reports both.
var ErrLater = fmt.Errorf("a later version of drip wrote the state: use that version, or another prefix or schema%.0w", ErrFormat)

// format is the first number of an encoded state. It grows with each change in the meaning of the others.
const format = 19

// mostFormat is above the formats of later versions for long. A number above is of something else.
const mostFormat = 1000

// An encoded state is numbers of eight bytes, the highest byte first, so that Lua can read them. First come the format,
// the scalars of State, and the counts of Lines, Pins, Flows, Calendars, and bytes of the Calendar's Units and Classes.
// Then come the numbers of each Line, Pin, Flow and Calendar, and the ID and the End of each lease. The bytes of Units and
// Classes follow.

// scalars are the numbers of a State, in the order of their declaration.
func scalars(s *decision.State) [14]*int64 {
	return [...]*int64{
		&s.Tokens, &s.Guess, &s.Now, &s.Slot, &s.Plain, &s.LastID, &s.Closed, &s.Moved, &s.Next, &s.Head, &s.AgainUS, &s.Held, &s.Last, &s.Ended,
	}
}

// ofLine are the numbers of a Line, in the order of their declaration.
func ofLine(l *decision.Line) [19]*int64 {
	w := &l.Window
	return [...]*int64{
		&w.Size, &w.Rate, &w.Interval, &w.Offset, &w.Series, &w.Unit, &l.Left, &l.Over, &l.Promised, &l.Spare, &l.Taken, &l.Largest, &l.LargestAt, &l.Fresh, &l.FreshFrom, &l.Stale, &l.StaleFrom,
		&l.Saved, &l.Estimated,
	}
}

// ofPin are the numbers of a Pinned, in the order of their declaration.
func ofPin(p *decision.Pinned) [25]*int64 {
	l, w, v := &p.Limit, &p.Window, &p.Level
	return [...]*int64{
		&l.Window.Size, &l.Window.Rate, &l.Window.Interval, &l.Window.Offset, &l.Window.Series, &l.Window.Unit, &l.Tokens, &l.Raise, &p.End, &p.Line,
		&w.Size, &w.Rate, &w.Interval, &w.Offset, &w.Series, &w.Unit, &p.Tokens,
		&v.Part, &v.Changed, &v.Lowered, &v.Refused, &v.Ran, &v.Announced, &v.Until, &v.Ramp,
	}
}

// ofFlow are the numbers of a Flow, in the order of their declaration.
func ofFlow(f *decision.Flow) [14]*int64 {
	return [...]*int64{
		&f.Key, &f.Units, &f.Later, &f.Before, &f.Until, &f.End, &f.Left, &f.Urgent, &f.Fair, &f.FairUrgent, &f.Last, &f.Minute,
		&f.Weight, &f.Backlog,
	}
}

// ofCalendar are the numbers of a Calendar, in the order of their declaration.
func ofCalendar(c *decision.Calendar) [13]*int64 {
	return [...]*int64{
		&c.Grain, &c.Head, &c.Front, &c.Last, &c.Booked, &c.Minute, &c.Weight, &c.Before,
		&c.Largest, &c.Asked[0], &c.Asked[1], &c.Asked[2], &c.Asked[3],
	}
}

const (
	numScalars    = len([14]*int64{})
	numOfLine     = len([19]*int64{})
	numOfPin      = len([25]*int64{})
	numOfFlow     = len([14]*int64{})
	numOfCalendar = len([13]*int64{})
	numCounts     = 6
)

// isWindow reports whether a window is one that Limits may have, or none.
func isWindow(w *decision.Window) bool {
	return w.Unit >= 0 && w.Unit < decision.Units &&
		(w.Size == 0 || min(w.Size, w.Rate, w.Interval) > 0 && max(w.Size, w.Rate, w.Interval) <= decision.MostUnits)
}

// Encode returns the state of an entity and its leases as bytes. The zero State without leases is no bytes at all.
func Encode(s *decision.State, leases []Held) []byte { return AppendEncode(nil, s, leases) }

// AppendEncode appends the result of Encode to b.
func AppendEncode(b []byte, s *decision.State, leases []Held) []byte {
	if s.Tokens == 0 && len(leases) == 0 {
		return b
	}
	var units, classes []byte
	for i := range s.Calendars {
		c := &s.Calendars[i]
		units, classes = c.Units.Bytes(), c.Classes.Bytes()
	}
	numbers := 1 + numScalars + numCounts + numOfLine*len(s.Lines) + numOfPin*len(s.Pins) + numOfFlow*len(s.Flows) + numOfCalendar*len(s.Calendars) + 2*len(leases)
	b = slices.Grow(b, 8*numbers+len(units)+len(classes))
	put := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	putAll := func(of []*int64) {
		for _, n := range of {
			put(*n)
		}
	}
	put(format)
	scalars := scalars(s)
	putAll(scalars[:])
	for _, n := range [numCounts]int{len(s.Lines), len(s.Pins), len(s.Flows), len(s.Calendars), len(units), len(classes)} {
		put(int64(n))
	}
	for i := range s.Lines {
		of := ofLine(&s.Lines[i])
		putAll(of[:])
	}
	for i := range s.Pins {
		of := ofPin(&s.Pins[i])
		putAll(of[:])
	}
	for i := range s.Flows {
		of := ofFlow(&s.Flows[i])
		putAll(of[:])
	}
	for i := range s.Calendars {
		of := ofCalendar(&s.Calendars[i])
		putAll(of[:])
	}
	for _, h := range leases {
		put(h.ID)
		put(h.End)
	}
	return append(append(b, units...), classes...)
}

// mostEnded is far above every State.Ended, and its product with any Tokens fits an int64.
const mostEnded = 1 << 20

// Decode reads a result of Encode, and nothing else: Encode of s and the leases is b again. Its error is ErrFormat, or
// ErrLater; s is unchanged then. It refuses numbers that would make a decision divide by zero, or look at a place that
// is not there.
//
// The state of an earlier version of drip becomes the state of an unknown entity. Its windows are empty at its first
// decision, because earlier operations may have used them. Then Encode of s is no bytes: do not store s while its
// Tokens are 0.
func Decode(b []byte, s *decision.State) ([]Held, error) {
	if len(b) == 0 {
		*s = decision.State{}
		return nil, nil
	}
	next := func() (n int64) {
		n, b = int64(binary.BigEndian.Uint64(b)), b[8:]
		return n
	}
	nextAll := func(of []*int64) {
		for _, n := range of {
			*n = next()
		}
	}
	if len(b) < 8 {
		return nil, ErrFormat
	}
	most := int64(len(b))
	switch first := next(); {
	case first > format && first <= mostFormat:
		return nil, ErrLater
	case first > 0 && first < format:
		*s = decision.State{Guess: 1}
		return nil, nil
	case first != format || most < 8*(1+int64(numScalars+numCounts)):
		return nil, ErrFormat
	}
	var read decision.State
	scalars := scalars(&read)
	nextAll(scalars[:])
	lines, pins, flows, calendars, units, classes := next(), next(), next(), next(), next(), next()
	for _, n := range [numCounts]int64{lines, pins, flows, calendars, units, classes} {
		if n < 0 || n > most {
			return nil, ErrFormat
		}
	}
	rest := int64(len(b)) - 8*(lines*int64(numOfLine)+pins*int64(numOfPin)+flows*int64(numOfFlow)+calendars*int64(numOfCalendar)) - units - classes
	if rest < 0 || rest%16 != 0 {
		return nil, ErrFormat
	}
	if read.Tokens == 0 && rest == 0 || read.Ended < 0 || read.Ended > mostEnded { // Encode writes no bytes for nobody
		return nil, ErrFormat
	}
	read.Lines = make([]decision.Line, lines)
	for i := range read.Lines {
		of := ofLine(&read.Lines[i])
		nextAll(of[:])
		if !isWindow(&read.Lines[i].Window) || min(read.Lines[i].Over, read.Lines[i].Estimated) < 0 {
			return nil, ErrFormat
		}
	}
	if pins > 0 {
		read.Pins = make([]decision.Pinned, pins)
	}
	for i := range read.Pins {
		of := ofPin(&read.Pins[i])
		nextAll(of[:])
		p := &read.Pins[i]
		if !isWindow(&p.Limit.Window) || !isWindow(&p.Window) || p.Line < 0 || p.Line > lines || p.Level.Part < 0 || p.Level.Part > decision.Whole {
			return nil, ErrFormat
		}
	}
	if flows > 0 {
		read.Flows = make([]decision.Flow, flows)
	}
	for i := range read.Flows {
		of := ofFlow(&read.Flows[i])
		nextAll(of[:])
		if read.Flows[i].Key <= -decision.Units {
			return nil, ErrFormat
		}
	}
	if calendars > 1 || pins > 1 || calendars == 0 && units+classes > 0 {
		return nil, ErrFormat
	} else if calendars > 0 {
		read.Calendars = make([]decision.Calendar, calendars)
	}
	for i := range read.Calendars {
		c := &read.Calendars[i]
		of := ofCalendar(c)
		nextAll(of[:])
		bytes := b[len(b)-int(units+classes):]
		if c.Largest < 0 || c.Head < -decision.Never || c.Head > decision.Never || !c.Units.SetBytes(bytes[:units]) || !c.Classes.SetBytes(bytes[units:]) {
			return nil, ErrFormat
		}
	}
	leases := make([]Held, rest/16)
	for i := range leases {
		leases[i] = Held{ID: next(), End: next()}
	}
	*s = read
	return leases, nil
}
