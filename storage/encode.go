package storage

import (
	"encoding/binary"
	"errors"

	"github.com/drip-go/drip/decision"
)

// ErrFormat is returned for bytes that are no encoded state.
var ErrFormat = errors.New("the stored bytes are not the state of an entity")

// format is the first number of an encoded state. It changes with the meaning of the others.
const format = 2

// An encoded state is numbers of eight bytes, the highest first, so that Lua can read them: the format, the scalars of
// State, the number of lines, the numbers of each line, and the ID and the End of each lease.

// scalars are the numbers of a State, in the order of their declaration.
func scalars(s *decision.State) [12]*int64 {
	return [...]*int64{
		&s.Print, &s.Now, &s.Slot, &s.Plain, &s.LastID, &s.Closed, &s.Next, &s.Head, &s.AgainUS, &s.Held, &s.Ended,
		&s.Saved,
	}
}

// ofLine are the numbers of a Line, in the order of their declaration.
func ofLine(l *decision.Line) [8]*int64 {
	return [...]*int64{&l.Left, &l.Promised, &l.Spare, &l.Taken, &l.Fresh, &l.FreshFrom, &l.Stale, &l.StaleFrom}
}

const (
	numScalars = len([12]*int64{})
	numOfLine  = len([8]*int64{})
)

// Encode returns the state of an entity and its leases as bytes. The zero State without leases is no bytes at all.
func Encode(s *decision.State, leases []Held) []byte {
	if s.Print == 0 && len(leases) == 0 {
		return nil
	}
	b := make([]byte, 0, 8*(2+numScalars+numOfLine*len(s.Lines)+2*len(leases)))
	put := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	put(format)
	for _, n := range scalars(s) {
		put(*n)
	}
	put(int64(len(s.Lines)))
	for i := range s.Lines {
		for _, n := range ofLine(&s.Lines[i]) {
			put(*n)
		}
	}
	for _, h := range leases {
		put(h.ID)
		put(h.End)
	}
	return b
}

// Decode reads what Encode wrote, and nothing else: Encode of what it reads is b again. Its error is ErrFormat; s is
// unchanged then.
func Decode(b []byte, s *decision.State) ([]Held, error) {
	if len(b) == 0 {
		*s = decision.State{}
		return nil, nil
	}
	numbers := int64(len(b) / 8)
	next := func() (n int64) {
		n, b = int64(binary.BigEndian.Uint64(b)), b[8:]
		return n
	}
	if len(b)%8 != 0 || numbers < int64(2+numScalars) || next() != format {
		return nil, ErrFormat
	}
	var read decision.State
	for _, n := range scalars(&read) {
		*n = next()
	}
	lines := next()
	rest := numbers - int64(2+numScalars) - lines*int64(numOfLine)
	if lines < 0 || lines > numbers || rest < 0 || rest%2 != 0 {
		return nil, ErrFormat
	}
	if read.Print == 0 && rest == 0 { // Encode writes no bytes for it
		return nil, ErrFormat
	}
	read.Lines = make([]decision.Line, lines)
	for i := range read.Lines {
		for _, n := range ofLine(&read.Lines[i]) {
			*n = next()
		}
	}
	leases := make([]Held, rest/2)
	for i := range leases {
		leases[i] = Held{ID: next(), End: next()}
	}
	*s = read
	return leases, nil
}
