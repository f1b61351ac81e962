package consumer

import "container/heap"

// dueHeap holds the messages that came back a moment before they are due. The loop that takes deliveries owns it, with one
// timer for all: thousands of sleeping goroutines would wake up one by one, and grow their stacks again.
type dueHeap []*delivery

func (h *dueHeap) add(d *delivery) { heap.Push(h, d) }

// next returns until when the next message is held, in ms since 1970, 0 if there is none.
func (h dueHeap) next() int64 {
	if len(h) == 0 {
		return 0
	}
	return h[0].at
}

// release passes the messages that are held until by or earlier to to. Within one millisecond high priorities go first.
func (h *dueHeap) release(by int64, to func(*delivery)) {
	for len(*h) > 0 && (*h)[0].at <= by {
		to(heap.Pop(h).(*delivery))
	}
}

// Len, Less, Swap, Push and Pop are for package heap.

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].Priority > h[j].Priority
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(d any)   { *h = append(*h, d.(*delivery)) }

func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return d
}
