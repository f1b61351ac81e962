package drip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/storage"
)

// The wait between two tries of an update that lost its race is random, up to a bound that doubles.
const (
	firstBackoff   = time.Millisecond
	longestBackoff = 100 * time.Millisecond
)

// update does op in a storage that has only Get and Set. It reads, decides, and writes if the key has not changed
// since; otherwise it tries again until ctx ends.
//
// The callers of one key queue up in this process first. Only processes race then, not goroutines: on a hot
// entity racing goroutines would spend most of their tries on conflicts with each other.
//
// update writes shared limits before the entity. If a later write loses its race, the next try keeps what is written,
// or update gives that capacity back. So a limit is never exceeded. At worst a part of it is unused for a moment, or, if
// the process dies, as long as a lease.
func (b *Bucket) update(ctx context.Context, entityID string, l *decision.Limits, within []storage.Within, op decision.Op) (a decision.Answer, err error) {
	keys := []key{{id: entityID, limits: l}}
	for i := range within {
		keys = append(keys, key{id: within[i].Key, limits: within[i].Limits})
	}
	queue := slices.Clone(keys[1:])
	slices.SortFunc(queue, func(a, b key) int { return strings.Compare(a.id, b.id) })
	for _, k := range append(keys[:1:1], queue...) { // all in one order, so that no two calls wait for each other
		if err := b.queues.enter(ctx, k.id); err != nil {
			return decision.Answer{}, err
		}
		defer b.queues.leave(k.id)
	}
	if op.Kind == decision.ReturnToken { // done again after a lost race, it would return the tokens of others
		if a, err = keys[0].alone(ctx, b.storage, &op); err == nil && a.Found {
			err = b.giveBack(ctx, keys[1:], &decision.Op{Kind: decision.GetDelay}, &decision.Answer{})
		}
		return a, err
	}
	left := len(keys) // the keys behind it are written, with the answer written
	var written decision.Answer
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		if a, err = b.decide(ctx, keys, left, within, &op); err == nil && left < len(keys) && !stands(keys[left:], &op, &written, &a) {
			if err = b.giveBack(ctx, keys[left:], &op, &written); err != nil {
				return decision.Answer{}, err
			}
			left = len(keys)
			a, err = b.decide(ctx, keys, left, within, &op)
		}
		for err == nil && left > 0 {
			if err = keys[left-1].set(ctx, b.storage); err == nil {
				left--
				written = a
			}
		}
		if err == nil {
			return a, nil
		}
		if errors.Is(err, storage.ErrConflict) {
			if err = pause(ctx, backoff); err == nil {
				continue
			}
		}
		return decision.Answer{}, errors.Join(err, b.giveBack(ctx, keys[left:], &op, &written))
	}
}

// decide does op on the states of the keys. It reads the first keys up to left, and takes the others as they were.
func (b *Bucket) decide(ctx context.Context, keys []key, left int, within []storage.Within, op *decision.Op) (a decision.Answer, err error) {
	shared := make([]decision.Shared, len(within))
	for i := range keys {
		k := &keys[i]
		if i < left {
			err = k.get(ctx, b.storage)
		} else {
			err = k.decode(k.data)
		}
		if err != nil && i > 0 {
			err = fmt.Errorf("%q: %w", k.id, err)
		}
		if err != nil {
			return a, err
		}
		if i > 0 {
			shared[i-1] = within[i-1].In(&k.state, k.leases)
		}
	}
	now := op.Now
	if now == decision.OwnClock {
		now = time.Now().UnixMilli()
	}
	keys[0].limits.ApplyWithin(&keys[0].state, keys[0].leases, shared, op, now, &a)
	return a, nil
}

// stands reports whether keys that were written with an answer need no other write for the answer of the next try.
func stands(keys []key, op *decision.Op, written, a *decision.Answer) bool {
	switch op.Kind {
	case decision.Settle, decision.Cancel: // they give the same back in each try
		return true
	case decision.GetDelay, decision.Admit:
		return written.Delay == 0 == (a.Delay == 0) && written.Ticket == a.Ticket && written.Lease == a.Lease &&
			!slices.ContainsFunc(keys, key.refreshed)
	}
	return false
}

// pause waits before the next try of an update that lost its race.
func pause(ctx context.Context, backoff time.Duration) error {
	if !sleep.For(ctx, rand.N(backoff)) {
		return fmt.Errorf("%w, while others kept changing the state", ctx.Err())
	}
	return nil
}

// giveBack returns what op has taken of shared limits. A limit that nobody has changed since has its old state again.
// Else a GetDelay loses its unit, and a booked slot stays: it costs only itself. giveBack tries as long as a lease lasts,
// at most giveBackTime after ctx has ended: then the lease ends by itself, and the unit is lost.
func (b *Bucket) giveBack(ctx context.Context, keys []key, op *decision.Op, a *decision.Answer) error {
	if len(keys) == 0 || op.Kind != decision.GetDelay && op.Kind != decision.Admit {
		return nil
	}
	undo, any := op.Undo(a)
	undo.Ticket = decision.Ticket{} // the entity has not booked it
	lease := time.Duration(keys[0].limits.Lease) * time.Millisecond
	giving, cancel := context.WithTimeout(context.WithoutCancel(ctx), lease)
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(giveBackTime, cancel) })()
	errs := make([]error, len(keys))
	for i := range keys {
		k := &keys[i]
		before, wrote := k.data, k.wrote
		errs[i] = k.change(giving, b.storage, func() error {
			if len(before) > 0 && bytes.Equal(k.data, wrote) {
				return k.decode(before)
			} else if any {
				k.limits.Apply(&k.state, k.leases, &undo, k.state.Now, &decision.Answer{})
			}
			return nil
		})
		if errs[i] != nil {
			errs[i] = fmt.Errorf("%q: %w", k.id, errs[i])
		}
	}
	return errors.Join(errs...)
}

// giveBackTime is enough for a storage that answers, and not long for a caller that has left.
const giveBackTime = time.Second

type key struct {
	id     string
	limits *decision.Limits
	data   []byte // as it was read
	rev    storage.Revision
	state  decision.State
	leases *storage.Leases

	wrote   []byte // the state that was written last
	written int64  // its time
}

func (k *key) get(ctx context.Context, s storage.Storage) error {
	stored, rev, err := s.Get(ctx, k.id)
	if err != nil {
		return err
	}
	k.data, k.rev = stored.Data, rev
	return k.decode(k.data)
}

func (k *key) decode(data []byte) error {
	held, err := storage.Decode(data, &k.state)
	k.leases = storage.NewLeases(held)
	return err
}

// refreshed reports whether a window counts in another interval than when the key was written.
func (k key) refreshed() bool {
	return slices.ContainsFunc(k.state.Lines, func(l decision.Line) bool {
		return l.Window.Size > 0 && l.Window.Next(k.written) != l.Window.Next(k.state.Now)
	})
}

// alone does op on the key, without the other keys.
func (k *key) alone(ctx context.Context, s storage.Storage, op *decision.Op) (a decision.Answer, err error) {
	err = k.change(ctx, s, func() error {
		a = decision.Answer{}
		k.limits.Apply(&k.state, k.leases, op, k.state.Now, &a)
		return nil
	})
	return a, err
}

// change reads the key, changes its state and stores it, until it wins the race.
func (k *key) change(ctx context.Context, s storage.Storage, change func() error) error {
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		err := k.get(ctx, s)
		if err == nil {
			err = change()
		}
		if err == nil {
			err = k.set(ctx, s)
		}
		if errors.Is(err, storage.ErrConflict) {
			if err = pause(ctx, backoff); err == nil {
				continue
			}
		}
		return err
	}
}

// set stores the key if it has changed. It leaves an unknown entity as it is.
func (k *key) set(ctx context.Context, s storage.Storage) error {
	k.wrote, k.written = storage.Encode(&k.state, k.leases.All()), k.state.Now
	if len(k.wrote) == 0 || bytes.Equal(k.wrote, k.data) {
		return nil
	}
	return s.Set(ctx, k.id, storage.State{Data: k.wrote, Now: k.state.Now, Until: max(k.limits.Until(&k.state), k.leases.Last())}, k.rev)
}

// queues lets the callers of one entity through one at a time. The zero value is ready.
type queues struct {
	mu sync.Mutex
	m  map[string]*queue
}

type queue struct {
	turn    chan struct{} // holds a value while a caller has its turn
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
