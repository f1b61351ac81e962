package consumer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/drip-go/drip"
)

// patience is how long a message that has come back may wait in hand for its turn, instead of in a delay queue. Only this
// process knows the slots that the message books meanwhile, and they are lost with it.
const patience = 5 * time.Second

// heldQueue holds messages that have come back, until a token or a slot is free.
type heldQueue struct {
	mu    sync.Mutex
	slots []*heldSlot // high priorities first, then in the order they were taken
	most  int
}

// heldSlot is the place of one message, which it keeps while it asks again and again.
type heldSlot struct {
	entity   string
	priority uint8 // the message's
	turn     chan struct{}
	waiting  bool   // for a token; guarded by the queue's mu, as limit is
	limit    string // the shared limit of that token; the entity's own if it is empty
}

// enter takes a slot, or returns nil when there is none.
func (q *heldQueue) enter(entity string, priority uint8) *heldSlot {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := len(q.slots)
	if i >= q.most {
		return nil
	}
	for i > 0 && q.slots[i-1].priority < priority {
		i--
	}
	s := &heldSlot{entity: entity, priority: priority, turn: make(chan struct{}, 1)}
	q.slots = slices.Insert(q.slots, i, s)
	return s
}

// wait waits until the delay of a is over or ctx ends. If a token is short it also ends when wake wakes s.
func (q *heldQueue) wait(ctx context.Context, s *heldSlot, a drip.Admission) {
	token := a.Bound == drip.BoundTokens
	q.mu.Lock()
	s.waiting, s.limit = token, a.Limit
	q.mu.Unlock()
	select {
	case <-s.turn:
		return
	case <-time.After(a.Delay):
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if token && !s.waiting {
		<-s.turn // it was woken at the same time
	}
	s.waiting = false
}

// wake lets messages ask again when an operation has ended: the first message that waits for a token of its entity, and the first one for
// each shared limit that the operation was within. A nil within is all of them.
func (q *heldQueue) wake(entity string, within []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var woken []string // limits
	for _, s := range q.slots {
		gets := s.entity == entity
		if s.limit != "" {
			gets = within == nil || slices.Contains(within, s.limit)
		}
		if s.waiting && gets && !slices.Contains(woken, s.limit) {
			woken = append(woken, s.limit)
			s.waiting = false
			s.turn <- struct{}{}
		}
	}
}

// leave gives a slot up. nil is none.
func (q *heldQueue) leave(s *heldSlot) {
	if s == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.slots, s)
	q.slots = slices.Delete(q.slots, i, i+1)
}
