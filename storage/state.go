package storage

import (
	"encoding/binary"
	"errors"
)

// State is all that is known of one entity. Times are milliseconds since 1970.
//
// Store it with MarshalBinary, so that fields a later version adds survive in your backend.
type State struct {
	Ops   Ledger // what has run: the time of the last run, the capacity it left
	Wait  Ledger // what was postponed: the slot given last, the capacity left in it
	InUse int64  // tokens taken and not yet given back

	// Until is the time from which forgetting the entity changes no answer: its bucket is full and nobody
	// holds a token. While a token is out it is the largest int64.
	Until int64
}

// Ledger is a capacity and the time for which it was counted.
type Ledger struct {
	Last     int64
	Capacity int64
}

// stateVersion is the first byte of an encoded State. A new field is appended and read when it is there; the
// number changes only when an old reader could no longer make sense of the rest.
const stateVersion = 1

var errState = errors.New("storage: not an encoded State of a known version")

// AppendBinary appends the encoded state to b: a version, then the fields as variable-length integers. It
// returns no error.
func (s State) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, stateVersion)
	for _, p := range s.fields() {
		b = binary.AppendVarint(b, *p)
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
	b = b[1:]
	var read State
	for _, p := range read.fields() {
		v, n := binary.Varint(b)
		if n <= 0 {
			return errState
		}
		*p, b = v, b[n:]
	}
	*s = read
	return nil
}

// fields lists the fields in their encoded order.
func (s *State) fields() [6]*int64 {
	return [...]*int64{&s.Ops.Last, &s.Ops.Capacity, &s.Wait.Last, &s.Wait.Capacity, &s.InUse, &s.Until}
}
