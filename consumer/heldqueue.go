package consumer

import (
	"context"
	"slices"
	"sync"
	"time"
)

// patience is how long a message that has come back may wait in hand for its turn, instead of in a delay queue. Only this
// process knows the slots that the message books meanwhile, and they are lost with it.
const patience = 5 * time.Second

// heldQueue holds messages that have come back, until a token or a slot is free. An operation that ends wakes the first
// message that waits for a token of the same entity.
type heldQueue struct {
	mu    sync.Mutex
	slots map[string][]*heldSlot // by entity; high priorities first, then in the order they were taken
	taken int
	most  int
}

// heldSlot is the place of one message, which it keeps while it asks again and again.
type heldSlot struct {
	turn     chan struct{}
	priority uint8 // the message's
	waiting  bool  // for a token; guarded by the queue's mu
}

// enter takes a slot, or returns nil when there is none.
func (q *heldQueue) enter(entity string, priority uint8) *heldSlot {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken >= q.most {
		return nil
	}
	q.taken++
	s := &heldSlot{turn: make(chan struct{}, 1), priority: priority}
	slots := q.slots[entity]
	i := len(slots)
	for i > 0 && slots[i-1].priority < priority {
		i--
	}
	q.slots[entity] = slices.Insert(slots, i, s)
	return s
}

// wait waits until d is over or ctx ends. With token it also ends when wake wakes s.
func (q *heldQueue) wait(ctx context.Context, s *heldSlot, d time.Duration, token bool) {
	q.mu.Lock()
	s.waiting = token
	q.mu.Unlock()
	select {
	case <-s.turn:
		return
	case <-time.After(d):
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if token && !s.waiting {
		<-s.turn // it was woken at the same time
	}
	s.waiting = false
}

// wake lets the first message that waits for a token of the entity ask again.
func (q *heldQueue) wake(entity string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.slots[entity] {
		if s.waiting {
			s.waiting = false
			s.turn <- struct{}{}
			return
		}
	}
}

// leave gives a slot up. nil is none.
func (q *heldQueue) leave(entity string, s *heldSlot) {
	if s == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken--
	left := slices.DeleteFunc(q.slots[entity], func(o *heldSlot) bool { return o == s })
	if len(left) == 0 {
		delete(q.slots, entity)
		return
	}
	q.slots[entity] = left
}
