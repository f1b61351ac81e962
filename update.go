package drip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Wait between two tries of an update that lost its race: at random up to a bound that doubles.
const (
	firstBackoff   = time.Millisecond
	longestBackoff = 100 * time.Millisecond
)

// update does op in a storage that has only Get and Set: read, decide, write if nobody wrote in between, else again
// until ctx ends.
//
// The callers of one entity queue up in this process first. Only processes race then, not goroutines: on a hot
// entity racing goroutines would spend most of their tries on conflicts with each other.
func (b *Bucket) update(ctx context.Context, entityID string, l *decision.Limits, op decision.Op) (a decision.Answer, err error) {
	if err := b.queues.enter(ctx, entityID); err != nil {
		return decision.Answer{}, err
	}
	defer b.queues.leave(entityID)
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		stored, rev, err := b.storage.Get(ctx, entityID)
		if err != nil {
			return decision.Answer{}, err
		}
		var s decision.State
		held, err := storage.Decode(stored.Data, &s)
		if err != nil {
			return decision.Answer{}, err
		}
		now := op.Now
		if now == decision.OwnClock {
			now = time.Now().UnixMilli()
		}
		leases := storage.NewLeases(held)
		a = decision.Answer{}
		l.Apply(&s, leases, &op, now, &a)
		data := storage.Encode(&s, leases.All())
		if bytes.Equal(data, stored.Data) {
			return a, nil
		}
		err = b.storage.Set(ctx, entityID, storage.State{Data: data, Now: s.Now, Until: max(l.Until(&s), leases.Last())}, rev)
		if !errors.Is(err, storage.ErrConflict) {
			return a, err
		}
		select {
		case <-ctx.Done():
			return decision.Answer{}, fmt.Errorf("%w, while others kept changing the state", ctx.Err())
		case <-time.After(rand.N(backoff)):
		}
	}
}

// queues lets the callers of one entity through one at a time. The zero value is ready.
type queues struct {
	mu sync.Mutex
	m  map[string]*queue
}

type queue struct {
	turn    chan struct{} // holds a value while it is somebody's turn
	callers int           // in the queue or at their turn: the last one removes it
}

// enter waits for the caller's turn. After an error there is nothing to leave.
func (q *queues) enter(ctx context.Context, key string) error {
	q.mu.Lock()
	e := q.m[key]
	if e == nil {
		if q.m == nil {
			q.m = map[string]*queue{}
		}
		e = &queue{turn: make(chan struct{}, 1)}
		q.m[key] = e
	}
	e.callers++
	q.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		q.drop(key, e)
		return ctx.Err()
	}
}

// leave ends the caller's turn.
func (q *queues) leave(key string) {
	q.mu.Lock()
	e := q.m[key]
	q.mu.Unlock()
	<-e.turn
	q.drop(key, e)
}

func (q *queues) drop(key string, e *queue) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if e.callers--; e.callers == 0 {
		delete(q.m, key)
	}
}
