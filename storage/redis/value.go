package redis

import (
	"encoding/binary"
	"math"

	"github.com/drip-go/drip/storage"
)

// limit is what every number that a script calculates with stays below, either way: sums of two are then exact in a
// Lua number, which is a double. An Until from there on means never.
const limit = 1 << 52

// pack is pack of common.lua.
func pack(numbers ...int64) []byte {
	b := make([]byte, 0, 8*len(numbers))
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return b
}

// packState makes the value of a state, but for the revision in front. Its clock is a caller's.
func packState(s storage.State) []byte {
	return pack(1, s.Ops.Last, s.Ops.Capacity, s.Wait.Last, s.Wait.Capacity, s.InUse, s.Until)
}

// unpack reads a whole value. It panics if its length is not that of a value.
func unpack(value []byte) (storage.State, storage.Revision) {
	n := func(i int) int64 { return int64(binary.BigEndian.Uint64(value[8*i:])) }
	s := storage.State{
		Ops:   storage.Ledger{Last: n(2), Capacity: n(3)},
		Wait:  storage.Ledger{Last: n(4), Capacity: n(5)},
		InUse: n(6),
		Until: n(7),
	}
	if s.Until >= limit {
		s.Until = math.MaxInt64
	}
	return s, storage.Revision(n(0))
}
