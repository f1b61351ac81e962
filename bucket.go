// Package drip calculates when an operation against a rate-limited service may run.
//
// For an entity (a shop, a tenant, whatever the service limits) a [Bucket] answers "run now", and takes a
// concurrency token, or "postpone by this long". It keeps no callback and no message: what waits stays in your
// queue. Package consumer does that with RabbitMQ.
//
// An entity gains RefreshRate of capacity each RefreshInterval, never more than Size, and each operation that
// runs takes one. At most Size operations are in flight at once. Delays spread what is postponed over the
// intervals to come.
package drip

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// ErrNoEntity is returned for an empty entity. Nothing was decided.
var ErrNoEntity = errors.New("the entity is empty")

// Options says what a Bucket allows each of its entities. The zero value is 100 operations at once and 50 more a
// second.
type Options struct {
	// Size is the most capacity an entity gathers while it is idle, which is its largest burst, and the most
	// operations it may have in flight at once. Defaults to 100.
	Size int

	// RefreshRate is the capacity an entity gains each RefreshInterval. Defaults to 50.
	RefreshRate int

	// RefreshInterval is the length of an interval, in whole milliseconds. Intervals are aligned: one of a second
	// begins with every second of Unix time. Defaults to one second.
	RefreshInterval time.Duration

	// WaitForToken is how long an operation is postponed when capacity is left and only a token is short, in
	// whole milliseconds. Defaults to 50 ms.
	WaitForToken time.Duration

	// Start is when an entity that is not in the storage began to gather capacity, empty. Defaults to the time of
	// New: a restarted process that has forgotten what ran before begins with nothing, and gains its first
	// capacity with the next interval. With a storage that outlives the process set it to any fixed time in the
	// past, such as time.Unix(0, 0): an entity not stored there has been idle, and is full.
	Start time.Time

	// Storage keeps the state of the entities. Buckets that share a storage share its entities, and should have
	// the same limits. In a storage that outlives the process the tokens of a process that has crashed stay out
	// for as long as that backend's documentation says. Defaults to a new memory storage.
	Storage storage.Storage
}

// Bucket decides for any number of entities by the same limits. Make one with New; it is safe for concurrent use.
type Bucket struct {
	limits  storage.Limits
	storage storage.Storage
	atomic  storage.Atomic // nil when the storage has only Get and Set
	queues  queues         // of callers in this process, for a storage that has only Get and Set
}

// New returns a Bucket with these options. Its error names the field that is wrong and says what is right.
func New(o Options) (*Bucket, error) {
	limits, err := o.limits()
	if err != nil {
		return nil, err
	}
	b := &Bucket{limits: limits, storage: o.Storage}
	if b.storage == nil {
		b.storage = memory.New()
	}
	b.atomic, _ = b.storage.(storage.Atomic)
	return b, nil
}

// GetDelay tells when an operation for the entity may run. Zero means now: a token is taken, so run it and give
// the token back with ReturnToken, whatever became of it. Anything else is how long to postpone it; ask again
// then. The delay is a good guess, not a promise: others may ask in between.
//
// After an error do not run. If the storage failed half way a token may have been taken that nobody returns.
func (b *Bucket) GetDelay(ctx context.Context, entityID string) (time.Duration, error) {
	return b.GetDelayAt(ctx, entityID, time.Time{})
}

// GetDelayAt is GetDelay at a time of the caller's, for simulations and tests; the zero time means now. Times
// are cut to milliseconds. An entity's time never runs backwards: a time before its last run counts as the time
// of that run, for as long as the storage remembers it.
func (b *Bucket) GetDelayAt(ctx context.Context, entityID string, now time.Time) (time.Duration, error) {
	delay, err := b.getDelay(ctx, entityID, now)
	if err != nil {
		return 0, fmt.Errorf("drip: get delay of %q: %w", entityID, err)
	}
	return delay, nil
}

func (b *Bucket) getDelay(ctx context.Context, entityID string, now time.Time) (time.Duration, error) {
	if entityID == "" {
		return 0, ErrNoEntity
	}
	if b.atomic != nil {
		return b.atomic.GetDelay(ctx, entityID, &b.limits, now)
	}
	var delay int64
	err := b.update(ctx, entityID, func(s *storage.State, _ bool) bool {
		t := now
		if t.IsZero() {
			t = time.Now()
		}
		delay = b.limits.Decide(s, t.UnixMilli())
		return true
	})
	return storage.Milliseconds(delay), err
}

// ReturnToken gives back a token that a zero delay took. Once too often does no harm: an entity never has more
// than Size tokens, and one that is not in the storage is left alone.
//
// Call it with a context that is still alive, such as context.WithoutCancel of the handler's, or the token is
// lost. After an error the token may or may not have been returned.
func (b *Bucket) ReturnToken(ctx context.Context, entityID string) error {
	if err := b.returnToken(ctx, entityID); err != nil {
		return fmt.Errorf("drip: return token of %q: %w", entityID, err)
	}
	return nil
}

func (b *Bucket) returnToken(ctx context.Context, entityID string) error {
	if entityID == "" {
		return ErrNoEntity
	}
	if b.atomic != nil {
		return b.atomic.ReturnToken(ctx, entityID, &b.limits)
	}
	return b.update(ctx, entityID, func(s *storage.State, known bool) bool {
		if !known || s.InUse == 0 {
			return false
		}
		b.limits.Return(s)
		return true
	})
}

func (o Options) limits() (storage.Limits, error) {
	if o.Size == 0 {
		o.Size = 100
	}
	if o.RefreshRate == 0 {
		o.RefreshRate = 50
	}
	if o.RefreshInterval == 0 {
		o.RefreshInterval = time.Second
	}
	if o.WaitForToken == 0 {
		o.WaitForToken = 50 * time.Millisecond
	}
	if o.Start.IsZero() {
		o.Start = time.Now()
	}
	if o.Size < 0 {
		return storage.Limits{}, fmt.Errorf("drip: Options.Size is %d; it must be at least 1, or 0 for the default", o.Size)
	}
	if o.RefreshRate < 0 {
		return storage.Limits{}, fmt.Errorf("drip: Options.RefreshRate is %d; it must be at least 1, or 0 for the default", o.RefreshRate)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"RefreshInterval", o.RefreshInterval}, {"WaitForToken", o.WaitForToken}} {
		if f.d < time.Millisecond || f.d%time.Millisecond != 0 {
			return storage.Limits{}, fmt.Errorf("drip: Options.%s is %v; it must be whole milliseconds, at least 1ms, or 0 for the default", f.name, f.d)
		}
	}
	return storage.Limits{
		Size:            int64(o.Size),
		RefreshRate:     int64(o.RefreshRate),
		RefreshInterval: o.RefreshInterval.Milliseconds(),
		WaitForToken:    o.WaitForToken.Milliseconds(),
		Start:           o.Start.UnixMilli(),
	}, nil
}
