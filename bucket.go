// Package drip calculates when an operation against a rate-limited service may run.
//
// Most callers use [Bucket.Admit]. It decides for an entity: a shop, a tenant, anything that the service limits. The
// answer is "run now", with a [Lease] to give back with [Bucket.Settle], or "postpone by this long", with a [Ticket].
// With the ticket the message runs before newcomers when it is back:
//
//	a, err := bucket.Admit(ctx, shop, drip.Request{Ticket: ticket})
//	if err != nil {
//		return err
//	}
//	if a.Delay > 0 {
//		return postpone(a.Delay, a.Ticket)
//	}
//	defer bucket.Settle(context.WithoutCancel(ctx), shop, a.Lease, a.Lease.Cost())
//
// [Bucket.GetDelay] and [Bucket.ReturnToken] are for messages that cannot carry a ticket. A Bucket keeps no callback
// and no message: messages wait in your queue. Package consumer does all of this with RabbitMQ, package worker and the
// adapters with other queues.
//
// An entity gains RefreshRate of capacity each RefreshInterval, never more than Size, and each operation that runs
// takes one. In a storage that outlives the process a new entity is full, in memory it begins empty: see Options.Start.
// At most Concurrency operations are in flight at once, or Size if Concurrency is not set. Delays spread the postponed
// operations over the intervals to come.
//
// # Time
//
// A Bucket goes by the clock of its storage, and with a storage that has only Get and Set by the clock of the process.
// Options.Clock replaces it for every call; use it in simulations and tests. [Bucket.GetDelayAt] and Request.Now give
// the time of one call, and Settle, Cancel and Renew follow the Request that took the lease. In all of them the zero
// time means the clock, and an entity's time never runs backwards.
//
// # Cost
//
// A Request has the expected cost of an operation; zero means 1. Settle takes the real cost; zero means nothing.
// Lease.Cost is the expected cost.
package drip

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// ErrNoEntity means that the entity is empty or reserved. It begins with "history:", or it is a SharedID or a ShadowID
// where only an entity can be. Nothing was decided.
var ErrNoEntity = errors.New("no entity")

var (
	errEmpty   = fmt.Errorf("%w: the name is empty", ErrNoEntity)
	errHistory = fmt.Errorf(`%w begins with "history:"`, ErrNoEntity)
	errShared  = fmt.Errorf("%w: it is a shared limit", ErrNoEntity)
	errTrial   = fmt.Errorf("%w: it is an ID of limits on trial", ErrNoEntity)
)

// ErrTime means that the time is before 1970, or more than 278 years after it. Nothing was decided.
var ErrTime = errors.New("the time is out of range")

// Options are the limits of each entity of a Bucket. The zero value is 100 operations at once and 50 more a second.
type Options struct {
	// Size is the most capacity an entity gathers while it is idle, which is its largest burst. 1<<40 is any number: give
	// RefreshRate the same if entities have no limit of their own. Defaults to 100.
	Size int

	// RefreshRate is the capacity an entity gains each RefreshInterval. A rate above Size counts as Size, but ends a debt
	// sooner. Defaults to 50, or Size if that is less or Align is a calendar's.
	RefreshRate int

	// RefreshInterval is the length of an interval, in whole milliseconds. Intervals are aligned: one of a second
	// begins with every second of Unix time. Defaults to one second.
	RefreshInterval time.Duration

	// Align aligns the intervals otherwise. See Window.Align.
	Align Alignment

	// Unit is the unit that Size and RefreshRate count: calls if it is empty, else the unit of that name. See
	// Window.Unit.
	Unit string

	// Windows are further limits of the same entity, all enforced at once: 60 a minute and 5,000 a day.
	Windows []Window

	// Concurrency is the most operations an entity may have in flight at once. Defaults to Size, or to any number if
	// Unit is not calls.
	Concurrency int

	// WaitForToken is the delay of an operation for which capacity is left and only a token is short, in whole
	// milliseconds. Until an operation is measured, Admit takes it, or the time for which all tokens have been in use, as
	// the duration of operations. A long value may leave tokens unused, so Admit takes an eighth of a value above 200 ms,
	// and at least 200 ms. Defaults to 50 ms.
	WaitForToken time.Duration

	// Lease is how long an admitted operation holds its token, unless it renews the lease or gives it back; after that the
	// holder counts as dead. MaxLease is the longest time with all renewals, at least Lease. Both are whole milliseconds.
	// They default to a minute, and to an hour or Lease if that is longer.
	Lease, MaxLease time.Duration

	// Shared are limits that entities have together, by name: one of the app, one of an endpoint. An operation is
	// within all of them, unless Request.Within says otherwise, and no shared limit is ever exceeded. Waiting entities
	// divide scarce capacity by Weight. In a shared Limit, Size and RefreshRate default to each other, RefreshInterval
	// to a second and Concurrency to any number. A Limit that has only Concurrency limits nothing else. At most 64.
	Shared map[string]Limit

	// Weight returns an entity's part of a scarce shared limit, from 1 to a million. Less counts as 1, more as a million.
	// Prefer small weights: if the entities that wait weigh more than a million together, messages are postponed more
	// often. The Bucket calls Weight for each decision, so it should answer from memory. Defaults to nil: all weigh the
	// same.
	Weight func(entityID string) int

	// SharedLimits returns a limit of Shared that changes at run time, by its name. A zero field takes its value from
	// Shared. It works like Limits otherwise. Defaults to nil: Shared holds.
	SharedLimits func(ctx context.Context, name string) (Limit, error)

	// Share is the part of each limit that this deployment may use: with 0.8 it uses 80 of 100. It applies to sizes,
	// rates and Concurrency, rounded down. Defaults to 1, all of it.
	Share float64

	// Limits returns the limit of an entity that has its own, such as a shop on a better plan. A zero field takes its
	// value from these Options. The Bucket calls Limits for each decision, so it should answer from memory; a change holds
	// from the next decision on. Operations that have run stay counted. The Bucket counts the gain since the entity's last
	// decision by the old limit and by the new one, and takes the lower gain. It knows a window by its place in Windows,
	// so keep their order. If Limits fails, the call returns the error and decides nothing. Defaults to nil: all entities
	// have the same limit. Several goroutines may call it, Weight and SharedLimits at once.
	Limits func(ctx context.Context, entityID string) (Limit, error)

	// Shadow sets the entities' own limit on trial: the Bucket ignores it, and a Shadow over the Bucket tries it, while
	// the shared limits hold. Throttled and Announced of an entity are then about its ShadowID. Limit.Shadow does the same
	// for a shared limit. Defaults to false.
	Shadow bool

	// Follow lets an entity, and a shared limit, follow its provider: they use a level, a part of their windows. Use it
	// for a provider whose limit is lower than documented, shared with others, or changing. Throttled lowers the level to
	// a little less than the provider has let pass since the refusal before, or to eight tenths at first. The level then
	// rises. It has doubled after seven minutes and is back at 1 after an hour, so it does not reduce windows longer than
	// an hour. Announced bounds it. It is never below 2 %. The storage keeps it, so it holds in all processes from the
	// next decision on. Admit postpones an operation that costs more than the Size at the level as long as that is so.
	// Defaults to false: Throttled changes no limit.
	Follow bool

	// History keeps in the storage, for an hour, how much each entity and each shared limit used in each minute: see
	// Bucket.Used. Each has a record of its own under the key "history:" and the entity, so no entity begins with that. A
	// process counts in memory. Once a minute it adds its counts to the records, in the background, with two calls of the
	// storage for each record. Decisions neither wait for that nor fail with it. A process that ends loses the counts of
	// its last minute. Up to 100,000 counts, each a minute of an entity, wait in a process; it counts no more than these. If
	// the storage fails, they wait for the next minute. Package telemetry measures these calls as get and set. Defaults to
	// false.
	History bool

	// Start is when an entity that is not in the storage began to gather capacity, empty. With the memory storage it
	// defaults to the time of New, because a restarted process has forgotten the operations before. Then an entity begins
	// with nothing, and gains its first capacity with the next interval. With any other storage it defaults to 1970: an
	// entity that is not stored there has been idle, and is full.
	Start time.Time

	// Storage keeps the state of the entities. Buckets that share a storage share its entities, and should have the
	// same limits. If a process crashes, its tokens of GetDelay stay out in a storage that outlives it, for as long as
	// that backend's documentation says. Defaults to a new memory storage.
	Storage storage.Storage

	// Clock returns the time of every call that gives none, for simulations and tests. Several goroutines may call it at
	// once. Defaults to nil: the storage's own clock.
	Clock func() time.Time
}

// Bucket decides for any number of entities. Make one with New; it is safe for concurrent use.
type Bucket struct {
	limits  decision.Limits
	units   units
	moves   bool // the windows depend on the entity or the time
	options Options
	storage storage.Storage
	memory  *memory.Storage // the storage if it is one: called as it is, an operation stays on the stack
	atomic  storage.Atomic  // nil when the storage has only Get and Set
	shared  []sharedLimit
	all     uint64           // all of shared, a bit for each
	alike   []storage.Within // all of shared, if they are the same for each call; else nil
	queues  queues           // of callers in this process, for a storage that has only Get and Set
	history *history         // counts what runs; nil without Options.History
	tried   *Bucket          // decides by the limits whose Shadow is set; nil if there are none
	trial   bool             // it is such a Bucket: entities have their own limit only if Options.Shadow is set
}

// New returns a Bucket with these options. Its error names the wrong field and the values that it may have.
func New(o Options) (*Bucket, error) {
	if o.Storage == nil {
		o.Storage = memory.New()
	}
	if absent.Is(o.Storage) {
		return nil, fmt.Errorf("drip: Options.Storage is a nil %T", o.Storage)
	}
	o.own()
	local, _ := o.Storage.(*memory.Storage)
	switch {
	case !o.Start.IsZero():
	case !inMemory(o.Storage): // it outlives this process
		o.Start = time.UnixMilli(0)
	case o.Clock != nil:
		o.Start = o.Clock()
	default:
		o.Start = time.Now()
	}
	o.setDefaults()
	units, err := unitsOf(&o)
	if err != nil {
		return nil, fmt.Errorf("drip: Options.%w", err)
	}
	limits, err := o.limits(units, askedAt("", decision.OwnClock))
	if err != nil {
		return nil, fmt.Errorf("drip: Options.%w", err)
	}
	b := &Bucket{limits: limits, units: units, moves: o.moves(), options: o, storage: o.Storage, memory: local}
	b.atomic, _ = b.storage.(storage.Atomic)
	b.history = newHistory(b)
	err = b.share(&o)
	if err == nil {
		err = b.try(&o)
	}
	if err != nil {
		return nil, fmt.Errorf("drip: Options.%w", err)
	}
	return b, nil
}

// inMemory reports whether a storage ends with this process, also if it is one that package telemetry times.
func inMemory(s storage.Storage) bool {
	for {
		if _, ok := s.(*memory.Storage); ok {
			return true
		}
		timed, ok := s.(interface{ Unwrap() storage.Storage })
		if !ok {
			return false
		}
		s = timed.Unwrap()
	}
}

// GetDelay decides when an operation for the entity may run. Zero means now: GetDelay has taken a token, so run the
// operation and give the token back with ReturnToken, even if the operation failed. Otherwise postpone the operation by
// the delay, then ask again. The delay is a good guess, not a promise: others may ask in between.
//
// The operation costs one call, and is within all shared limits.
//
// After an error do not run the operation. ErrNoEntity and ErrNoShared mean a wrong name: a repeated call returns them
// again. If the storage failed half way, a token may be out that nobody returns.
func (b *Bucket) GetDelay(ctx context.Context, entityID string) (time.Duration, error) {
	return b.GetDelayAt(ctx, entityID, time.Time{})
}

// GetDelayAt is GetDelay at the time now, for simulations and tests; the zero time means the clock. It cuts times to
// milliseconds, and returns ErrTime for a time out of range. An entity's time never runs backwards: at an earlier time
// than before it gains nothing, and the delay is longer by the difference.
func (b *Bucket) GetDelayAt(ctx context.Context, entityID string, now time.Time) (time.Duration, error) {
	op, a := decision.Op{Kind: decision.GetDelay}, decision.Answer{}
	if _, err := b.do(ctx, entityID, allShared, &op, &a, now); err != nil {
		return 0, fmt.Errorf("drip: get delay of %q: %w", entityID, err)
	}
	return milliseconds(a.Delay), nil
}

// ReturnToken gives back a token that a zero delay took. Call it once for each: a second call gives back a token that
// another operation holds. An entity still never has more than its Concurrency of them. Leases do not have that
// weakness: see Admit. ReturnToken ignores an entity that is not in the storage.
//
// Call it with a context that is still alive, such as context.WithoutCancel of the handler's, or the token is lost.
// After an error the token may or may not be back.
func (b *Bucket) ReturnToken(ctx context.Context, entityID string) error {
	op, a := decision.Op{Kind: decision.ReturnToken}, decision.Answer{}
	if _, err := b.do(ctx, entityID, allShared, &op, &a, time.Time{}); err != nil {
		return fmt.Errorf("drip: return token of %q: %w", entityID, err)
	}
	return nil
}

// do calls the storage with an operation, at the time now or, if now is zero, by the clock. It sets a. which has a bit
// for each shared limit that the operation is within, besides bits that mean nothing; do returns these limits.
func (b *Bucket) do(ctx context.Context, entityID string, which uint64, op *decision.Op, a *decision.Answer, now time.Time) ([]storage.Within, error) {
	b = b.of(entityID)
	var err error
	if op.Now, err = b.clock(now); err != nil {
		return nil, err
	}
	limits, err := b.limitsOf(ctx, entityID, op.Now)
	if err != nil {
		return nil, err
	}
	if op.Kind < decision.Throttle && strings.HasPrefix(entityID, sharedMark) {
		return nil, errShared
	}
	within, err := b.within(ctx, entityID, which&b.all, op.Now)
	if err != nil {
		return nil, err
	}
	for i := range within {
		if err := b.units.affordable(op, within[i].Limits); err != nil {
			return nil, fmt.Errorf("limit %q: %w", limitName(within, int64(i)+1), err)
		}
	}
	if err := b.units.affordable(op, limits); err != nil {
		return nil, err
	}
	switch {
	case b.memory != nil:
		err = b.memory.Apply(ctx, entityID, limits, within, op, a)
	case b.atomic != nil:
		*a, err = b.atomic.Do(ctx, entityID, limits, within, *op)
	default:
		*a, err = b.update(ctx, entityID, limits, within, *op)
	}
	if b.history != nil && err == nil {
		b.history.count(entityID, within, op, a)
	}
	return within, err
}

// clock returns now in milliseconds. If now is zero, it returns the time of Options.Clock, or OwnClock for the
// storage's own.
func (b *Bucket) clock(now time.Time) (int64, error) {
	if now.IsZero() {
		if b.options.Clock == nil {
			return decision.OwnClock, nil
		}
		now = b.options.Clock()
	}
	if ms := unixMilli(now); ms >= 0 && ms < decision.LastTime {
		return ms, nil
	}
	return 0, fmt.Errorf("%w: %v", ErrTime, now)
}

// unixMilli is a time in milliseconds since 1970. A time out of range, which may overflow, is just out of range.
func unixMilli(t time.Time) int64 {
	const last = decision.LastTime/1000 + 1
	if s := t.Unix(); s < -last || s > last {
		return max(-last, min(s, last)) * 1000
	}
	return t.UnixMilli()
}

// milliseconds is a number of milliseconds as a Duration, at most the longest one.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
