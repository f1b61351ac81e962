package storage

import (
	"encoding/binary"
	"errors"
	"slices"
)

// State is all that is known of one entity. Times are milliseconds since 1970.
//
// Store it with MarshalBinary, so that fields a later version adds survive in your backend. A copy shares what
// Booking points to: use Clone for one of your own.
type State struct {
	Ops   Ledger // what has run: the time of the last run, the capacity it left
	Wait  Ledger // what was postponed: the slot given last, the capacity left in it
	InUse int64  // plain tokens taken and not yet given back

	// Until is the time from which forgetting the entity changes no answer: its bucket is full, nobody holds a token
	// and no slot was promised. While a plain token is out it is the largest int64.
	Until int64

	// Booking is nil for an entity with a single window that nobody was admitted to.
	Booking *Booking
}

// Ledger is a capacity and the time for which it was counted.
type Ledger struct {
	Last     int64
	Capacity int64
}

// Booking is what Admit knows of an entity besides.
type Booking struct {
	Late     Ledger // what was promised again
	Closed   int64  // nothing runs before
	Held     int64  // times, in ms, between Admit and Settle: the sum of Samples of them
	Samples  int64
	LastID   int64     // of a lease
	Next     int64     // how many tickets were issued
	Claim    int64     // until then the tokens that come free are for those who were denied one
	Old, New Tickets   // not yet back
	Window   Window    // the first one, when Ops was counted last
	Further  []Further // for each of Limits.Windows; the times are those of Ops, Wait and Late
	Leases   []Held    // by their ends
}

// Tickets is a book of some.
type Tickets struct {
	Epoch   int64 // when the book was begun; it is in its tickets
	Tickets int64 // how many
	Units   int64 // what they cost
	Last    int64 // when the last of them is due
}

// Further is the capacity of a further window: of what has run, of what was promised, of what was promised again. And
// it is that window, when Ops was counted last.
type Further struct {
	Ops, Wait, Late int64
	Window          Window
}

// Held is a lease that was not given back yet.
type Held struct{ ID, End int64 }

// Begin is when the lease was taken: its number was made from it.
func (h Held) Begin() int64 { return h.ID / 1024 }

// Clone returns a copy that shares nothing with s.
func (s State) Clone() State {
	if s.Booking != nil {
		b := *s.Booking
		b.Further, b.Leases = slices.Clone(b.Further), slices.Clone(b.Leases)
		s.Booking = &b
	}
	return s
}

// Equal reports whether s and o say the same.
func (s State) Equal(o State) bool {
	return s == o || s.Booking != nil && o.Booking != nil && slices.Equal(s.Numbers(), o.Numbers())
}

// stateVersion is the first byte of an encoded State. A new field is appended and read when it is there; the
// number changes only when an old reader could no longer make sense of the rest.
const stateVersion = 1

var errState = errors.New("storage: not an encoded State of a known version")

// AppendBinary appends the encoded state to b: a version, then its Numbers as variable-length integers. It
// returns no error.
func (s State) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, stateVersion)
	for _, n := range s.Numbers() {
		b = binary.AppendVarint(b, n)
	}
	return b, nil
}

// MarshalBinary returns the encoded state. It returns no error.
func (s State) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary reads what MarshalBinary wrote. After an error s is unchanged.
func (s *State) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] != stateVersion {
		return errState
	}
	var numbers []int64
	for b = b[1:]; len(b) > 0; {
		v, n := binary.Varint(b)
		if n <= 0 {
			return errState
		}
		numbers, b = append(numbers, v), b[n:]
	}
	read, err := StateOf(numbers)
	if err == nil {
		*s = read
	}
	return err
}

// Numbers lists what s says, in the order of the declarations above: the six numbers before Booking, and if there is
// one sixteen of it, how many Further there are and their three each, how many Leases and their two each.
func (s State) Numbers() []int64 {
	n := []int64{s.Ops.Last, s.Ops.Capacity, s.Wait.Last, s.Wait.Capacity, s.InUse, s.Until}
	b := s.Booking
	if b == nil {
		return n
	}
	n = append(n, b.Late.Last, b.Late.Capacity, b.Closed, b.Held, b.Samples, b.LastID, b.Next, b.Claim,
		b.Old.Epoch, b.Old.Tickets, b.Old.Units, b.Old.Last, b.New.Epoch, b.New.Tickets, b.New.Units, b.New.Last)
	w := b.Window
	n = append(n, w.Size, w.RefreshRate, w.RefreshInterval, int64(len(b.Further)))
	for _, f := range b.Further {
		w := f.Window
		n = append(n, f.Ops, f.Wait, f.Late, w.Size, w.RefreshRate, w.RefreshInterval)
	}
	n = append(n, int64(len(b.Leases)))
	for _, h := range b.Leases {
		n = append(n, h.ID, h.End)
	}
	return n
}

// StateOf is the state whose Numbers these are. Numbers behind them, of a later version, are ignored.
func StateOf(n []int64) (State, error) {
	if len(n) < 6 {
		return State{}, errState
	}
	s := State{Ops: Ledger{n[0], n[1]}, Wait: Ledger{n[2], n[3]}, InUse: n[4], Until: n[5]}
	if n = n[6:]; len(n) == 0 {
		return s, nil
	}
	if len(n) < 20 {
		return State{}, errState
	}
	b := &Booking{
		Late: Ledger{n[0], n[1]}, Closed: n[2], Held: n[3], Samples: n[4], LastID: n[5], Next: n[6], Claim: n[7],
		Old: Tickets{n[8], n[9], n[10], n[11]}, New: Tickets{n[12], n[13], n[14], n[15]},
		Window: Window{n[16], n[17], n[18]},
	}
	further := n[19]
	n = n[20:]
	if further < 0 || further > int64(len(n))/6 {
		return State{}, errState
	}
	for ; further > 0; further-- {
		b.Further = append(b.Further, Further{n[0], n[1], n[2], Window{n[3], n[4], n[5]}})
		n = n[6:]
	}
	if len(n) == 0 || n[0] < 0 || n[0] > int64(len(n)-1)/2 {
		return State{}, errState
	}
	leases := n[0]
	for n = n[1:]; leases > 0; leases-- {
		b.Leases = append(b.Leases, Held{n[0], n[1]})
		n = n[2:]
	}
	s.Booking = b
	return s, nil
}
