package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// Policy decides which messages run, and when the others come back.
type Policy struct {
	// Name is the name of the policy in tables and charts.
	Name string

	// New makes the limiter of one run. Options.Clock tells the run's time, and Options.Limits the changed limits.
	New func(o drip.Options) (Limiter, error)

	// Tickets says that a message that comes back has a slot of its own, so a consumer may hold it. See Scenario.Hold.
	Tickets bool
}

// Limiter decides for one run. It is called by one goroutine.
type Limiter interface {
	// Admit answers as Bucket.Admit does. The ticket of the answer travels with a message that is postponed; the whole
	// answer is given to Settle when an operation is over.
	Admit(entity string, r drip.Request) (drip.Admission, error)

	// Settle ends an operation and charges its real cost, in calls and in other units.
	Settle(entity string, a drip.Admission, cost int, costs drip.Costs) error
}

// renewer is a Limiter whose leases have to be renewed while operations take long.
type renewer interface {
	Renew(entity string, l drip.Lease) (drip.Lease, error)
}

// renew keeps a lease alive from a time on, until the end of its operation. It joins an error to failed: no lease outlives
// Options.MaxLease.
func (e *events) renew(l renewer, entity string, lease *drip.Lease, now, end int64, failed *error) {
	next := now + max(1, (lease.End().UnixMilli()-now)/2)
	if next >= end {
		return
	}
	e.add(next, func() {
		e.renewals++
		renewed, err := l.Renew(entity, *lease)
		if err != nil {
			*failed = errors.Join(*failed, err)
			return
		}
		*lease = renewed
		e.renew(l, entity, lease, next, end, failed)
	})
}

const mostRenewals = 20_000_000

// checkLeases returns an error if an operation outlives its lease, or if all of them take too many renewals.
func checkLeases(o *drip.Options, messages []message) error {
	longest, took := int64(0), 0.0
	for i := range messages {
		held := messages[i].travel + messages[i].operation
		longest, took = max(longest, held), took+float64(held)
	}
	lease := cmp.Or(o.Lease, time.Minute)
	most := cmp.Or(o.MaxLease, max(time.Hour, lease))
	if longest >= max(1, most.Milliseconds()) {
		return fmt.Errorf("Options.MaxLease is %v, and an operation takes %v: %w", most, milliseconds(longest), drip.ErrNoLease)
	}
	if n := took / max(1, float64(lease.Milliseconds()/2)); n > mostRenewals {
		return fmt.Errorf("Options.Lease is %v: the operations renew their leases about %.0f times; it may be at most %d", lease, n, mostRenewals)
	}
	return nil
}

// others is a Limiter that also knows callers without tickets, and closes entities.
type others interface {
	GetDelay(entity string) (time.Duration, error)
	ReturnToken(entity string) error
	throttler
}

// throttler is a Limiter that closes entities.
type throttler interface {
	Throttled(entity string, wait time.Duration) error
}

// Admit is Bucket.Admit and Bucket.Settle. Consumers keep the leases of operations under way alive.
var Admit = Policy{Name: "admit", Tickets: true, New: func(o drip.Options) (Limiter, error) {
	b, err := drip.New(o)
	return admit{b}, err
}}

type admit struct{ b *drip.Bucket }

func (l admit) Admit(entity string, r drip.Request) (drip.Admission, error) {
	return l.b.Admit(context.Background(), entity, r)
}

func (l admit) Settle(entity string, a drip.Admission, cost int, costs drip.Costs) error {
	return l.b.Settle(context.Background(), entity, a.Lease, cost, costs)
}

func (l admit) Renew(entity string, lease drip.Lease) (drip.Lease, error) {
	return l.b.Renew(context.Background(), entity, lease)
}

func (l admit) GetDelay(entity string) (time.Duration, error) {
	return l.b.GetDelay(context.Background(), entity)
}

func (l admit) ReturnToken(entity string) error {
	return l.b.ReturnToken(context.Background(), entity)
}

func (l admit) Throttled(entity string, wait time.Duration) error {
	return l.b.Throttled(context.Background(), entity, wait)
}

// Classic is Bucket.GetDelay and Bucket.ReturnToken: it knows neither tickets nor costs nor the end of a lease.
var Classic = Policy{Name: "classic", New: func(o drip.Options) (Limiter, error) {
	b, err := drip.New(o)
	return classic{b}, err
}}

type classic struct{ b *drip.Bucket }

func (l classic) Admit(entity string, _ drip.Request) (drip.Admission, error) {
	delay, err := l.b.GetDelay(context.Background(), entity)
	return drip.Admission{Delay: delay}, err
}

func (l classic) Settle(entity string, _ drip.Admission, _ int, _ drip.Costs) error {
	return l.b.ReturnToken(context.Background(), entity)
}

func (l classic) Throttled(entity string, wait time.Duration) error {
	return l.b.Throttled(context.Background(), entity, wait)
}

// RetryAfter is a limiter that keeps no queue: GCRA with the sizes and rates of the Options. It also counts the operations
// in flight, and the calls in each interval of a calendar, which GCRA does not know. It tells all messages refused at
// a time the same time to come back. If too many are in flight, a message comes back after a second. RetryAfter settles
// nothing, and a count that a crash has left high stays high.
var RetryAfter = Policy{Name: "retry-after", New: func(o drip.Options) (Limiter, error) {
	return &retryAfter{options: o, limit: limitOf(&o, &drip.Limit{}), entities: map[string]*gcra{}}, nil
}}

const poll = time.Second

type retryAfter struct {
	options  drip.Options
	own      drip.Limit
	limit    limit // of own: a time zone takes long to load
	entities map[string]*gcra
}

// gcra is an entity: for each window the theoretical arrival time, in ms since 1970.
type gcra struct {
	tat      []float64
	days     []*tank // of the windows that have a calendar
	inFlight int64
}

func (l *retryAfter) Admit(entity string, r drip.Request) (drip.Admission, error) {
	own, err := l.options.Limits(context.Background(), entity)
	if err != nil {
		return drip.Admission{}, err
	}
	if !reflect.DeepEqual(own, l.own) {
		l.own, l.limit = own, limitOf(&l.options, &own)
	}
	limit := &l.limit
	g := l.entities[entity]
	if g == nil {
		g = &gcra{tat: make([]float64, len(limit.windows))}
		for _, w := range limit.windows {
			g.days = append(g.days, tankOf(w, l.options.Clock().UnixMilli()))
		}
		l.entities[entity] = g
	}
	now := float64(l.options.Clock().UnixMilli())
	if g.inFlight >= limit.concurrency {
		return drip.Admission{Delay: poll}, nil
	}
	costIn := func(unit string) int {
		if unit == "" {
			return r.Cost
		}
		return r.Costs[unit]
	}
	next, wait := slices.Clone(g.tat), 0.0
	for i, w := range limit.windows {
		cost := costIn(w.unit)
		if cost == 0 {
			continue
		}
		if w.calendar != nil {
			d := g.days[i]
			d.refresh(int64(now))
			if missing := float64(cost) - d.left; missing > 0 {
				wait = max(wait, float64(w.gains(int64(missing), int64(now)))-now)
			}
			continue
		}
		emission := float64(w.interval) / float64(w.rate)
		next[i] = max(now, g.tat[i]) + float64(cost)*emission
		wait = max(wait, next[i]-emission*float64(w.size)-now)
	}
	if ms := math.Ceil(wait - accuracy); ms > 0 {
		return drip.Admission{Delay: time.Duration(ms) * time.Millisecond}, nil
	}
	for i, w := range limit.windows {
		if w.calendar != nil {
			g.days[i].left -= float64(costIn(w.unit))
		}
	}
	g.tat = next
	g.inFlight++
	return drip.Admission{}, nil
}

func (l *retryAfter) Settle(entity string, _ drip.Admission, _ int, _ drip.Costs) error {
	l.entities[entity].inFlight--
	return nil
}
