package lab

import "container/heap"

// events are the planned events: a heap by time. Events of the same millisecond happen in the order in which they were
// planned. But operations end first, so that a token that comes back can be taken at once.
type events struct {
	heap    eventHeap
	planned uint64

	renewals int // of leases, so far
}

type event struct {
	at    int64 // ms since 1970
	order uint64
	do    func()
}

const afterEnds = 1 << 63 // in the order of all but ends

func (e *events) add(at int64, do func())    { e.push(at, afterEnds, do) }
func (e *events) addEnd(at int64, do func()) { e.push(at, 0, do) }

func (e *events) push(at int64, rank uint64, do func()) {
	e.planned++
	heap.Push(&e.heap, &event{at, rank | e.planned, do})
}

func (e *events) next() (*event, bool) {
	if len(e.heap) == 0 {
		return nil, false
	}
	return heap.Pop(&e.heap).(*event), true
}

type eventHeap []*event

func (h eventHeap) Len() int      { return len(h) }
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(e any)   { *h = append(*h, e.(*event)) }

func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}

func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
