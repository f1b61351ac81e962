package consumer

import (
	"cmp"
	"container/heap"
	"slices"
)

// dueHeap holds the messages that came back a moment before they are due. The loop that takes deliveries owns it, with one
// timer for all: thousands of sleeping goroutines would wake up one by one, and grow their stacks again.
type dueHeap []*delivery

func (h *dueHeap) add(d *delivery) { heap.Push(h, d) }

// next returns until when the next message is held, in us since 1970, 0 if there is none.
func (h dueHeap) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].at
}

// release passes the messages that are held until by or earlier to to. High priorities go first.
func (h *dueHeap) release(by int64, to func(*delivery)) {
	var due []*delivery
	for len(*h) > 0 && (*h)[0].at <= by {
		due = append(due, heap.Pop(h).(*delivery))
	}
	slices.SortStableFunc(due, func(a, b *delivery) int { return cmp.Compare(b.Priority, a.Priority) })
	for _, d := range due {
		to(d)
	}
}

// Len, Less, Swap, Push and Pop are for package heap.

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(d any)        { *h = append(*h, d.(*delivery)) }

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return d
}
