package worker

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/sleep"
)

// Limiter decides when a message may run. GetDelay returns 0 and takes a token, or returns how long to postpone the
// message. ReturnToken gives the token back. A Worker uses a Limiter that is an Admitter as well, as *drip.Bucket is,
// as an Admitter.
type Limiter interface {
	// These are the methods of drip.Bucket.
	GetDelay(ctx context.Context, entityID string) (time.Duration, error)
	ReturnToken(ctx context.Context, entityID string) error
}

// Admitter books a slot for each message that it postpones. The ticket travels with the message and lets it run before
// newcomers when it is back. Tokens are leases, which a Worker renews while the operation runs.
type Admitter interface {
	// These are the methods of drip.Bucket.
	Admit(ctx context.Context, entityID string, r drip.Request) (drip.Admission, error)
	Settle(ctx context.Context, entityID string, l drip.Lease, cost int, costs ...drip.Costs) error
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

func (p plain) Settle(ctx context.Context, entity string, _ drip.Lease, _ int, _ ...drip.Costs) error {
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

// careful is an Admitter that returns a panic as an error: each call may call the user's Options.Limits, which may panic. A delay
// below zero, the time until a slot that has just passed, postpones its message by a moment.
type careful struct{ Admitter }

func (c careful) Admit(ctx context.Context, entity string, r drip.Request) (a drip.Admission, err error) {
	err = caught(func() (err error) { a, err = c.Admitter.Admit(ctx, entity, r); return err })
	if a.Delay < 0 {
		a.Delay = time.Millisecond
	}
	return a, err
}

func (c careful) Settle(ctx context.Context, entity string, l drip.Lease, cost int, costs ...drip.Costs) error {
	return caught(func() error { return c.Admitter.Settle(ctx, entity, l, cost, costs...) })
}

func (c careful) Cancel(ctx context.Context, entity string, a drip.Admission) error {
	return caught(func() error { return c.Admitter.Cancel(ctx, entity, a) })
}

func (c careful) Renew(ctx context.Context, entity string, l drip.Lease) (longer drip.Lease, err error) {
	err = caught(func() (err error) { longer, err = c.Admitter.Renew(ctx, entity, l); return err })
	return longer, err
}

func (c careful) Throttled(ctx context.Context, entity string, retryAfter time.Duration) error {
	return caught(func() error { return c.Admitter.Throttled(ctx, entity, retryAfter) })
}

// Admit asks the limiter about a message. With a Delay of zero the message may run: call Run. Otherwise postpone it;
// its Note has the ticket.
//
// When the limiter gives no answer, no message may run, unless Options.FailOpen is set. Admit then calls pause with a
// time that grows: pause waits for that time and reports whether to ask again. If it reports false, Admit returns the
// limiter's error. It logs an outage once for each of its causes, not for every message that waits, and also an outage
// of some entities alone. Admit does not ask again after ErrTooOld or an error for which IsPermanent is true: it
// returns that error at once. It asks no more after the message's Deadline: without an answer it returns
// drip.ErrDeadline then.
func (w *Worker[M]) Admit(ctx context.Context, m *Message, pause func(time.Duration) bool) (drip.Admission, error) {
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		if w.o.MaxAge > 0 && m.Note.Age() > w.o.MaxAge {
			return drip.Admission{}, ErrTooOld
		}
		r := m.Request
		r.Ticket = m.Note.Ticket
		a, err := w.ask(ctx, m.Entity, r)
		switch {
		case err == nil:
			if w.outage.Works() {
				w.o.Logger.Info("the limiter answers again", "unlimited", w.unlimited.Swap(0))
			}
			m.answered(a)
			return a, nil
		case IsPermanent(err):
			if errors.Is(err, drip.ErrDeadline) {
				m.booked = false // Admit has given up the ticket
			}
			return drip.Admission{}, err
		}
		if ctx.Err() == nil {
			does := "messages wait"
			if w.o.FailOpen {
				does = "messages run without a limit"
			}
			if w.outage.Fails(err) {
				w.o.Logger.Error("no answer from the limiter, "+does, "entity", m.Entity, "error", err)
			}
			if end := m.Request.Deadline; !end.IsZero() && time.Now().After(end) {
				return drip.Admission{}, because(drip.ErrDeadline, err)
			}
			if w.o.FailOpen {
				w.unlimited.Add(1)
				m.unlimited, m.booked = true, false // the limiter with the booked slot does not answer
				return drip.Admission{}, nil
			}
		}
		if !pause(sleep.Jitter(backoff)) {
			return drip.Admission{}, err
		}
	}
}

// ask asks the limiter for as long as ctx leaves time for the Outcome.
func (w *Worker[M]) ask(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	if _, ends := ctx.Deadline(); ends {
		asking, cancel := context.WithTimeout(ctx, inTime(ctx, math.MaxInt64))
		defer cancel()
		ctx = asking
	}
	return w.limiter.Admit(ctx, entity, r)
}

// answered notes the ticket of the limiter's answer. A message that may run has used its own ticket and gets the ticket of its
// lease, with which it keeps its place if it runs again.
func (m *Message) answered(a drip.Admission) {
	if a.Delay > 0 {
		m.Note.Ticket, m.booked = a.Ticket, !a.Ticket.IsZero()
		return
	}
	m.lease, m.unlimited = a.Lease, false
	m.Note.Ticket, m.booked = a.Lease.Ticket(), false
}

// Abandon gives up the slot that a message has booked, so that other messages get it. Call it when the Outcome's Note
// is not stored. returned means that the same delivery comes again, with the note that it had.
func (w *Worker[M]) Abandon(ctx context.Context, m *Message, returned bool) {
	if !m.booked || returned && m.Note.Ticket == m.carried {
		return
	}
	m.booked = false
	w.cancel(ctx, m.Entity, drip.Admission{Delay: 1, Ticket: m.Note.Ticket})
}

// cancel gives up an unused admission. If the limiter does not answer, the admission ends by itself.
func (w *Worker[M]) cancel(ctx context.Context, entity string, a drip.Admission) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inTime(ctx, returnTimeout))
	defer cancel()
	if err := w.limiter.Cancel(ctx, entity, a); err != nil && !errors.Is(err, drip.ErrNoLease) {
		w.o.Logger.Debug("an unused admission was not cancelled", "entity", entity, "error", err)
	}
}
