package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip"
)

// Limiter is what this package needs of a limiter. GetDelay returns 0 and takes a token, or how long to postpone;
// ReturnToken gives the token back. A Limiter that is an Admitter as well, as *drip.Bucket is, is used as such.
type Limiter interface {
	GetDelay(ctx context.Context, entityID string) (time.Duration, error)
	ReturnToken(ctx context.Context, entityID string) error
}

// Admitter books the slots of what it postpones: the ticket travels with the message, in a header, and lets it run
// before newcomers when it is back. Tokens are leases, which are renewed while the handler runs.
type Admitter interface {
	Admit(ctx context.Context, entityID string, r drip.Request) (drip.Admission, error)
	Settle(ctx context.Context, entityID string, l drip.Lease, cost int) error
	Cancel(ctx context.Context, entityID string, a drip.Admission) error
	Renew(ctx context.Context, entityID string, l drip.Lease) (drip.Lease, error)
	Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error
}

// plain is a Limiter without tickets as an Admitter.
type plain struct{ Limiter }

func (p plain) Admit(ctx context.Context, entity string, _ drip.Request) (drip.Admission, error) {
	delay, err := p.GetDelay(ctx, entity)
	return drip.Admission{Delay: delay}, err
}

func (p plain) Settle(ctx context.Context, entity string, _ drip.Lease, _ int) error {
	return p.ReturnToken(ctx, entity)
}

func (p plain) Cancel(ctx context.Context, entity string, a drip.Admission) error {
	if a.Delay > 0 {
		return nil
	}
	return p.ReturnToken(ctx, entity)
}

func (plain) Renew(_ context.Context, _ string, l drip.Lease) (drip.Lease, error) { return l, nil }
func (plain) Throttled(context.Context, string, time.Duration) error              { return nil }

// gate asks the limiter about messages, and lets those run that may.
type gate struct {
	Admitter
	log      *slog.Logger
	failOpen bool

	outage    outage
	unlimited atomic.Int64 // what has run without a limit in this outage
}

func newGate(l Limiter, log *slog.Logger, failOpen bool) *gate {
	a, ok := l.(Admitter)
	if !ok {
		a = plain{l}
	}
	return &gate{Admitter: a, log: log, failOpen: failOpen}
}

// admission is what the limiter has said about a message.
type admission struct {
	drip.Admission
	unlimited bool // it gave no answer, and the message runs all the same: there is nothing to give back
}

// admit asks the limiter, and again while it fails, until waiting ends: without an answer nothing may run, unless the
// user wants it to. Messages that wait for one are counted in their rooms; the error is errCrowded when they are too many
// there, or have waited too long. An outage is logged once, not for every message that waits; also one of some entities
// alone.
func (g *gate) admit(ctx, waiting context.Context, in rooms, entity string, r drip.Request) (admission, error) {
	began := time.Now()
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		a, err := g.Admit(ctx, entity, r)
		if err == nil {
			if g.outage.works() {
				g.log.Info("the limiter answers again", "unlimited", g.unlimited.Swap(0))
			}
			return admission{Admission: a}, nil
		}
		if errors.Is(err, drip.ErrCost) {
			return admission{}, err // it will never do
		}
		if waiting.Err() == nil {
			g.fails(entity, err)
			if g.failOpen {
				g.unlimited.Add(1)
				return admission{unlimited: true}, nil
			}
		}
		if backoff == firstBackoff {
			in.limited(1)
			defer in.limited(-1)
		}
		if backoff > time.Second && in.crowded() || time.Since(began) > inHand {
			return admission{}, fmt.Errorf("%w: %w", errCrowded, err)
		}
		if !sleep(waiting, jitter(backoff)) {
			return admission{}, err
		}
	}
}

// ask is admit for a message, which then has the ticket that goes with the answer.
func (g *gate) ask(ctx, waiting context.Context, in rooms, m *message, cost int) (admission, error) {
	a, err := g.admit(ctx, waiting, in, m.entity, drip.Request{Cost: cost, Ticket: m.ticket})
	switch {
	case err != nil:
	case a.unlimited:
		m.booked = false // by nobody who answers
	case a.Delay > 0:
		m.ticket, m.booked = a.Ticket, !a.Ticket.IsZero()
	default:
		m.ticket, m.booked = a.Lease.Ticket(), false // its own is used; should it run again it keeps its place
	}
	return a, err
}

func (g *gate) fails(entity string, err error) {
	if !g.outage.fails() {
		return
	}
	does := "messages wait"
	if g.failOpen {
		does = "messages run without a limit"
	}
	g.log.Error("no answer from the limiter, "+does, "entity", entity, "error", err)
}

// ErrLeaseLost is the cause of a handler's context that was cancelled because its lease could not be renewed: the
// operation has taken longer than the bucket's MaxLease, or the limiter could not be reached for too long. Its token
// belongs to others now.
var ErrLeaseLost = errors.New("consumer: the lease of the operation was lost")

// run runs the handler of a message that was admitted, renews its lease meanwhile and settles it on every path. With
// interrupted the error is not the operation's: its lease was lost before it was as old as a lease may be.
func (g *gate) run(ctx context.Context, entity string, a admission, op *Operation, handle func(context.Context) error) (interrupted bool, err error) {
	ctx = context.WithValue(ctx, operationKey{}, op)
	if a.unlimited {
		return false, handle(ctx)
	}
	cost := a.Lease.Cost()
	defer func() {
		if real := op.cost.Load(); real >= 0 {
			cost = int(real)
		}
		g.settle(ctx, entity, a.Lease, cost)
	}()
	if a.Lease == (drip.Lease{}) {
		return false, handle(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k := &keeper{gate: g, ctx: ctx, entity: entity, lease: a.Lease, lost: func() { cancel(ErrLeaseLost) }}
	k.begin(a.Lease.End().Sub(a.Lease.Begin()) / 3)
	defer k.stop()
	err = handle(ctx)
	if err == nil || context.Cause(ctx) != ErrLeaseLost {
		return false, err
	}
	if !errors.Is(err, ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err) // or it would say no more than that a context was cancelled
	}
	return !k.isOld(), err
}

// settle gives a token back, trying again for a while: with a plain limiter one that is not returned is lost. When it
// fails for good that is only logged: what the handler has done must not be done again because of it.
func (g *gate) settle(ctx context.Context, entity string, l drip.Lease, cost int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
	defer cancel()
	for backoff := firstBackoff; ; backoff *= 2 {
		err := g.Settle(ctx, entity, l, cost)
		if err == nil {
			return
		}
		if errors.Is(err, drip.ErrNoLease) {
			if backoff == firstBackoff { // else the try before has done it
				g.log.Warn("an operation has outlived its lease", "entity", entity)
			}
			return
		}
		if !sleep(ctx, jitter(backoff)) {
			g.log.Error("a token was not returned", "entity", entity, "error", err)
			return
		}
	}
}

// cancel gives up an admission that is not used. When that fails it ends by itself.
func (g *gate) cancel(ctx context.Context, entity string, a drip.Admission) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
	defer cancel()
	if err := g.Cancel(ctx, entity, a); err != nil && !errors.Is(err, drip.ErrNoLease) {
		g.log.Debug("an unused admission was not cancelled", "entity", entity, "error", err)
	}
}

// forsake gives up the slot that a message has booked, unless a copy carries it on, or a delivery that is given back.
func (g *gate) forsake(ctx context.Context, m *message, returned bool) {
	if !m.booked || m.stored || returned && m.ticket == m.carried {
		return
	}
	m.booked = false
	g.cancel(ctx, m.entity, drip.Admission{Delay: 1, Ticket: m.ticket})
}

// refusal is what a handler's error says of the provider.
type refusal struct {
	retryAfter time.Duration // 0: the provider has not refused the operation
	told       bool          // the limiter knows of it
}

// refused closes the entity if err says that the provider has refused its operation, which still has its token then: none
// begins in between. The provider wants least to pass at the least.
func (g *gate) refused(ctx context.Context, entity string, err error, least time.Duration) (r refusal) {
	throttled := (*throttledError)(nil)
	if !errors.As(err, &throttled) {
		return refusal{}
	}
	r.retryAfter = max(throttled.retryAfter, least)
	if err := g.Throttled(ctx, entity, r.retryAfter); err != nil {
		g.log.Error("the limiter was not told that the provider refuses calls", "entity", entity, "error", err)
		return r
	}
	r.told = true
	return r
}

// rebook books the slot of a message whose operation was refused, which keeps its place, when that is over. It returns how
// long the message is to be postponed.
func (g *gate) rebook(ctx, waiting context.Context, m *message, refused refusal, cost int) time.Duration {
	if !refused.told {
		return refused.retryAfter
	}
	a, err := g.ask(ctx, waiting, nil, m, cost)
	switch {
	case err != nil || a.unlimited:
		return refused.retryAfter
	case a.Delay == 0: // it does not know of throttling
		g.cancel(ctx, m.entity, a.Admission)
		return refused.retryAfter
	}
	return max(a.Delay, refused.retryAfter)
}

// returnTimeout bounds giving a token back, which goes on after the handler's context has ended.
const returnTimeout = 10 * time.Second

// keeper renews a lease until it is stopped.
type keeper struct {
	*gate
	ctx    context.Context
	entity string
	lost   func()

	mu      sync.Mutex
	lease   drip.Lease
	old     bool // the limiter makes it no longer
	timer   *time.Timer
	stopped bool
}

func (k *keeper) begin(d time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(d, func() { k.renew(d) })
}

// renew is called by the timer. A third of the lease's time is left for a second try when the limiter does not answer.
func (k *keeper) renew(d time.Duration) {
	lease, err := k.Renew(k.ctx, k.entity, k.lease)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.stopped:
		return
	case err == nil:
		k.old = lease.End().Sub(k.lease.End()) < d/2
		k.lease = lease
	case errors.Is(err, drip.ErrNoLease) || time.Now().After(k.lease.End()):
		k.log.Warn("a lease was lost while its operation runs", "entity", k.entity, "error", err)
		k.lost()
		return
	}
	k.timer.Reset(d)
}

// stop ends the renewals. One that is under way is not waited for: it renews what is settled, which changes nothing.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}

func (k *keeper) isOld() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.old
}

// Operation is what a handler can know and say about the operation it runs, besides the message.
type Operation struct {
	Entity        string        // whose limit it runs under
	Attempts      int           // how often it has failed before
	Postponements int           // how often the limit has postponed it
	Age           time.Duration // since it was first postponed

	cost atomic.Int64 // what it has really cost; below zero: what was asked for
}

type operationKey struct{}

// OperationOf returns the operation of a handler's context, nil for any other.
func OperationOf(ctx context.Context) *Operation {
	op, _ := ctx.Value(operationKey{}).(*Operation)
	return op
}

// SetCost says what the operation has really cost, in units: more than was asked for is owed by the entity's next
// operations, less comes back. Without it the operation has cost what Options.Cost says. It is safe for concurrent use;
// the last one counts, a cost below zero counts as 0.
func (o *Operation) SetCost(cost int) { o.cost.Store(int64(max(0, cost))) }
