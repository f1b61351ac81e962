package storage

import (
	"cmp"
	"slices"

	"github.com/drip-go/drip/decision"
)

// Held is a lease that is out.
type Held struct {
	ID, End int64 // its number, and when it ends, in milliseconds since 1970
}

// before compares two leases: the first to end is first.
func before(a, b Held) int { return cmp.Or(cmp.Compare(a.End, b.End), cmp.Compare(a.ID, b.ID)) }

// Leases are an entity's leases in memory. They implement [decision.Leases]. The cost of a call hardly grows with the
// number of leases, except of All. The zero Leases is empty. It is not safe for concurrent use.
type Leases struct {
	heap []Held        // the first to end is the first
	at   map[int64]int // the index of an ID in heap; nil while so few are out that a search of heap is faster
	last int64
}

var _ decision.Leases = (*Leases)(nil)

// few leases need no map: a search of as many takes less time than the moves in heap take the map.
const few = 128

// NewLeases returns the leases in held, which it keeps.
func NewLeases(held []Held) *Leases {
	l := &Leases{heap: held}
	if !slices.IsSortedFunc(held, before) { // a sorted list is a heap
		slices.SortFunc(held, before)
	}
	if len(held) > 0 {
		l.last = held[len(held)-1].End
	}
	l.index()
	return l
}

// All returns the leases, the first to end first.
func (l *Leases) All() []Held {
	all := slices.Clone(l.heap)
	slices.SortFunc(all, before)
	return all
}

// Last returns the latest end of all leases since the last time that none was out; 0 if none is out.
func (l *Leases) Last() int64 {
	if len(l.heap) == 0 {
		return 0
	}
	return l.last
}

// Out implements [decision.Leases]. It removes the leases that have ended.
func (l *Leases) Out(now int64) int64 {
	for len(l.heap) > 0 && l.heap[0].End <= now {
		l.remove(0)
	}
	return int64(len(l.heap))
}

// Hold implements [decision.Leases].
func (l *Leases) Hold(id, end int64) {
	if len(l.heap) == 0 {
		l.last = end
	}
	l.last = max(l.last, end)
	l.heap = append(l.heap, Held{id, end})
	if l.at == nil {
		l.index()
	}
	l.up(len(l.heap) - 1)
}

// Release implements [decision.Leases].
func (l *Leases) Release(id, _, now int64) bool {
	if l.at != nil {
		i, ok := l.at[id]
		return ok && l.remove(i) > now
	}
	for i := range l.heap {
		if l.heap[i].ID == id {
			return l.remove(i) > now
		}
	}
	return false
}

// Clear implements [decision.Leases].
func (l *Leases) Clear() {
	clear(l.at)
	l.heap = l.heap[:0]
}

// index makes the map when there are more than few leases.
func (l *Leases) index() {
	if len(l.heap) <= few {
		return
	}
	l.at = make(map[int64]int, 2*len(l.heap))
	for i, h := range l.heap {
		l.at[h.ID] = i
	}
}

// remove removes the lease at i. It returns its end.
func (l *Leases) remove(i int) int64 {
	h, last := l.heap[i], len(l.heap)-1
	delete(l.at, h.ID)
	moved := l.heap[last]
	l.heap = l.heap[:last]
	if i < last {
		l.heap[i] = moved
		l.down(i)
		l.up(i)
	}
	return h.End
}

// up puts the lease at i where it belongs, towards the first.
func (l *Leases) up(i int) {
	h := l.heap[i]
	for i > 0 && before(h, l.heap[(i-1)/2]) < 0 {
		l.put(i, l.heap[(i-1)/2])
		i = (i - 1) / 2
	}
	l.put(i, h)
}

// down puts the lease at i where it belongs, away from the first.
func (l *Leases) down(i int) {
	h := l.heap[i]
	for {
		child := 2*i + 1
		if child+1 < len(l.heap) && before(l.heap[child+1], l.heap[child]) < 0 {
			child++
		}
		if child >= len(l.heap) || before(h, l.heap[child]) <= 0 {
			break
		}
		l.put(i, l.heap[child])
		i = child
	}
	l.put(i, h)
}

func (l *Leases) put(i int, h Held) {
	l.heap[i] = h
	if l.at != nil {
		l.at[h.ID] = i
	}
}
