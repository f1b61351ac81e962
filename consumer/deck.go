package consumer

import (
	"context"
	"slices"
	"sync"
	"time"
)

// patience is how long a message that was back may wait in hand for its turn, instead of on another trip. The slots that
// it books meanwhile are known to this process alone, and are lost with it.
const patience = 5 * time.Second

// deck is where messages wait in hand that were back in time, but not to run. Who settles an operation wakes the first
// that waits for a token of the same entity, so none stands idle while somebody is at hand.
type deck struct {
	mu    sync.Mutex
	seats map[string][]*seat // by the entity, of high priority first, then in the order they were taken
	taken int
	most  int
}

// seat is the place of one message, which it keeps while it asks again and again.
type seat struct {
	turn     chan struct{}
	priority uint8 // the message's
	waiting  bool  // for a token; guarded by the deck's mu
}

// sit takes a seat, or returns nil when there is none.
func (k *deck) sit(entity string, priority uint8) *seat {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.taken >= k.most {
		return nil
	}
	k.taken++
	s := &seat{turn: make(chan struct{}, 1), priority: priority}
	seats := k.seats[entity]
	i := len(seats)
	for i > 0 && seats[i-1].priority < priority {
		i--
	}
	k.seats[entity] = slices.Insert(seats, i, s)
	return s
}

// wait waits until d is over or ctx ends, and if it is for a token until somebody wakes s.
func (k *deck) wait(ctx context.Context, s *seat, d time.Duration, token bool) {
	k.mu.Lock()
	s.waiting = token
	k.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.turn:
		return
	case <-t.C:
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if token && !s.waiting {
		<-s.turn // it was woken at the same time
	}
	s.waiting = false
}

// wake lets the first who waits for a token of the entity ask again.
func (k *deck) wake(entity string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.seats[entity] {
		if s.waiting {
			s.waiting = false
			s.turn <- struct{}{}
			return
		}
	}
}

// leave gives a seat up. nil is none.
func (k *deck) leave(entity string, s *seat) {
	if s == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken--
	left := slices.DeleteFunc(k.seats[entity], func(o *seat) bool { return o == s })
	if len(left) == 0 {
		delete(k.seats, entity)
		return
	}
	k.seats[entity] = left
}
