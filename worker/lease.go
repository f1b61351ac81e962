package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/sleep"
)

// ErrLeaseLost is the cause of an operation's context whose lease could not be renewed. The operation has taken longer
// than the bucket's MaxLease, or the limiter was unreachable for too long and Options.FailOpen is not set. Other
// operations may take its token now.
var ErrLeaseLost = errors.New("the lease of the operation was lost")

// Run runs the operation of a message that Admit has admitted. It renews the lease meanwhile and gives it back on every
// path. The Outcome says how to settle the delivery.
func (w *Worker[M]) Run(ctx context.Context, m *Message, run func(context.Context) error) Outcome {
	var refused []*ThrottledError
	delay, told := time.Duration(0), false
	interrupted, err := w.leased(ctx, m, func(running context.Context) error {
		err := caught(func() error { return run(running) })
		refused = refusals(err)
		closes := map[string]time.Duration{}
		for _, r := range refused {
			after := r.RetryAfter
			if !r.MessageOnly {
				id := m.Entity
				if r.Shared != "" {
					id = drip.SharedID(r.Shared)
				}
				after = max(after, w.o.RetryDelay)
				closes[id] = max(closes[id], after)
			}
			delay = max(delay, after)
		}
		// Close the limits while the operation still has its token, so that no other operation begins in between.
		for id, after := range closes {
			told = w.throttle(ctx, id, after) || told
		}
		return err
	})
	switch {
	case err == nil:
		return Outcome{Kind: Done, Note: m.Note}
	case len(refused) > 0 && !IsPermanent(err): // else the operation gives its message up; the limiter knows of the refusal
		if told && w.books {
			var late bool
			if delay, late = w.rebook(ctx, m, delay); late {
				return w.GiveUp(m, because(drip.ErrDeadline, err))
			}
		}
		return w.postpone(m, Refused, delay, err)
	case interrupted && ctx.Err() == nil && !IsPermanent(err):
		out := w.wait(m, w.o.RetryDelay, err)
		if out.Kind == Waiting { // else its deadline is over
			w.o.Logger.Warn("an operation has lost its lease and will be tried again, which is no attempt", "entity", m.Entity, "message_id", m.ID, "delay", out.Delay.String(), "error", err)
		}
		return out
	case ctx.Err() != nil && w.o.Attempts > 0 && !IsPermanent(err): // the end of ctx explains the failure
		return w.wait(m, w.o.RetryDelay, err)
	}
	return w.Fail(ctx, m, err)
}

// leased runs an operation under its lease. With interrupted the operation did not cause the error: its lease was lost before
// it was as old as a lease may be.
func (w *Worker[M]) leased(ctx context.Context, m *Message, run func(context.Context) error) (interrupted bool, err error) {
	op := &Operation{Entity: m.Entity, Attempts: m.Note.Attempts, Postponements: m.Note.Postponements, Age: m.Note.Age()}
	op.cost.Store(-1)
	ctx = context.WithValue(ctx, operationKey{}, op)
	if m.unlimited {
		return false, run(ctx)
	}
	defer func() {
		cost, costs := m.lease.Cost(), []drip.Costs(nil)
		if real := op.cost.Load(); real >= 0 {
			cost = int(real)
		}
		if real := op.costs.Load(); real != nil {
			costs = []drip.Costs{*real}
		}
		w.settle(ctx, m.Entity, m.lease, cost, costs)
	}()
	if m.lease == (drip.Lease{}) {
		return false, run(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	renewing, end := context.WithCancel(context.WithoutCancel(ctx)) // an operation may go on after the end of its context
	defer end()
	k := &renewer{
		limiter: w.limiter, log: w.o.Logger, ctx: renewing, entity: m.Entity, lease: m.lease, failOpen: w.o.FailOpen, lost: func() { cancel(ErrLeaseLost) },
	}
	k.begin(m.lease.End().Sub(m.lease.Begin()))
	defer k.stop()
	err = run(ctx)
	if err == nil || context.Cause(ctx) != ErrLeaseLost {
		return false, err
	}
	if !errors.Is(err, ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", ErrLeaseLost, err) // else it would say only that a context was cancelled
	}
	return !k.isOld(), err
}

// settle gives a token back and tries again for a while: with a plain limiter a token that is not returned is lost. It only
// logs the last failure: the operation must not run again because of it.
func (w *Worker[M]) settle(ctx context.Context, entity string, l drip.Lease, cost int, costs []drip.Costs) {
	timeout := returnTimeout
	if w.books { // else an attempt costs less than the token
		timeout = inTime(ctx, returnTimeout)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	for backoff := firstBackoff; ; backoff = min(2*backoff, time.Second) {
		err := w.limiter.Settle(ctx, entity, l, cost, costs...)
		if err == nil {
			return
		}
		if errors.Is(err, drip.ErrNoLease) {
			if backoff == firstBackoff { // else the try before has done it
				w.o.Logger.Warn("an operation has outlived its lease", "entity", entity)
			}
			return
		}
		if (costs != nil || cost != l.Cost()) && (errors.Is(err, drip.ErrUnit) || errors.Is(err, drip.ErrCost)) {
			w.o.Logger.Error("an operation has costs that the limiter does not take", "entity", entity, "error", err)
			if costs == nil {
				cost = l.Cost()
			}
			costs = nil
			continue
		}
		if !sleep.For(ctx, sleep.Jitter(backoff)) {
			w.o.Logger.Error("a token was not returned", "entity", entity, "error", err)
			return
		}
	}
}

// throttle closes an entity or a shared limit for retryAfter, and reports whether the limiter was told. It does not trust an
// operation that was stopped.
func (w *Worker[M]) throttle(ctx context.Context, entity string, retryAfter time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, inTime(ctx, returnTimeout))
	defer cancel()
	if err := w.limiter.Throttled(ctx, entity, retryAfter); err != nil {
		w.o.Logger.Error("the limiter was not told that the provider refuses calls", "entity", entity, "error", err)
		return false
	}
	return true
}

// rebook books a slot after retryAfter for a message whose operation was refused. It returns how long to postpone the
// message, or that it is late: it cannot run before its deadline.
func (w *Worker[M]) rebook(ctx context.Context, m *Message, retryAfter time.Duration) (delay time.Duration, late bool) {
	ctx, cancel := context.WithTimeout(ctx, inTime(ctx, returnTimeout))
	defer cancel()
	r := m.Request
	r.Ticket = m.Note.Ticket
	a, err := w.limiter.Admit(ctx, m.Entity, r)
	switch {
	case err != nil:
		return retryAfter, errors.Is(err, drip.ErrDeadline)
	case a.Delay == 0: // the limiter does not support throttling
		w.cancel(ctx, m.Entity, a)
		return retryAfter, false
	}
	m.answered(a)
	return max(a.Delay, retryAfter), false
}

// returnTimeout bounds the calls of the limiter after an operation. Those that give something back go on after its context
// has ended.
const returnTimeout = 10 * time.Second

type renewer struct {
	limiter  Admitter
	log      *slog.Logger
	ctx      context.Context
	entity   string
	failOpen bool // an outage does not end the operation
	lost     func()

	mu      sync.Mutex
	lease   drip.Lease
	end     time.Time // of the lease, by this process's clock; the lease has the limiter's
	old     bool      // the limiter no longer extends it
	away    bool      // the last try got no answer
	timer   *time.Timer
	stopped bool
}

func (k *renewer) begin(length time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end = time.Now().Add(length)
	d := length / 3
	k.timer = time.AfterFunc(d, func() { k.renew(d) })
}

// renew renews the lease; the timer calls it. When the limiter does not answer in a third of the lease's time, the last third is
// left for a second try. It does not wait for an answer after the lease's end, unless that would let the operation go on.
func (k *renewer) renew(d time.Duration) {
	asked, most := time.Now(), d
	k.mu.Lock()
	held := k.lease
	if !k.failOpen || k.old {
		most = min(d, time.Until(k.end))
	}
	k.mu.Unlock()
	ctx, cancel := context.WithTimeout(k.ctx, most)
	defer cancel()
	lease, err := k.limiter.Renew(ctx, k.entity, held)
	k.mu.Lock()
	defer k.mu.Unlock()
	none, over := errors.Is(err, drip.ErrNoLease), !time.Now().Before(k.end)
	switch {
	case k.stopped:
		return
	case err == nil:
		longer := lease.End().Sub(k.lease.End())
		k.old, k.away = longer < d/2, false
		k.lease, k.end = lease, k.end.Add(longer)
	case k.failOpen && (none || over) && !k.old && (k.away || !none):
		k.log.Warn("a lease has ended in an outage, its operation goes on without a limit", "entity", k.entity, "error", err)
		return
	case none || over:
		k.log.Warn("a lease was lost while its operation runs", "entity", k.entity, "error", err)
		k.lost()
		return
	default:
		k.away = true
		d -= time.Since(asked)
	}
	k.timer.Reset(min(d, time.Until(k.end)))
}

// stop ends the renewals. It does not wait for a renewal under way: renewing a settled lease changes nothing.
func (k *renewer) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	k.timer.Stop()
}

func (k *renewer) isOld() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.old
}

// Operation tells a message's operation about itself, and takes its real cost.
type Operation struct {
	Entity        string        // the entity whose limit it runs under
	Attempts      int           // how often it has failed before
	Postponements int           // how often it was postponed
	Age           time.Duration // since the message was first delivered

	cost  atomic.Int64               // its real cost; below zero: the cost of the Request
	costs atomic.Pointer[drip.Costs] // its real costs in other units; nil: the costs of the Request
}

type operationKey struct{}

// OperationOf returns the operation of a context that Run made, nil for any other.
func OperationOf(ctx context.Context) *Operation {
	op, _ := ctx.Value(operationKey{}).(*Operation)
	return op
}

// SetCost sets the real cost of the operation, in calls. If it is above the Request's cost, the entity's next
// operations owe the difference; if it is below, the difference comes back. Without SetCost the operation has the cost
// of the Request. It is safe for concurrent use; the last call counts. A cost of 0 or less means that the operation
// took nothing. A cost so large that the limiter does not take it counts as no call of SetCost.
func (o *Operation) SetCost(cost int) { o.cost.Store(int64(max(0, cost))) }

// SetCosts is SetCost for the units that costs name. The Operation keeps the map. A unit that costs does not name keeps
// the cost of the Request. If the limiter does not know one of the names, all units keep the cost of the Request.
func (o *Operation) SetCosts(costs drip.Costs) { o.costs.Store(&costs) }
