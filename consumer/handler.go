package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// EntityFunc tells whose limit a message falls under: the shop, the tenant. It must not return an empty entity.
type EntityFunc func(d *amqp.Delivery) (string, error)

// Handler does the work of a message. Nil means done. Whether to acknowledge is not its business.
type Handler interface {
	Handle(ctx context.Context, d *amqp.Delivery) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, d *amqp.Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, d *amqp.Delivery) error { return f(ctx, d) }

// Middleware wraps a Handler in another.
type Middleware func(Handler) Handler

// Limit returns a middleware for a consume loop of your own. A message that may run now goes to the next handler,
// in the form its publisher gave it; one that may not is handed to p, which puts it off, and so is one whose
// handler was Throttled. Either way nil means: acknowledge the delivery. Acknowledge in the loop, therefore: a
// postponed message never reaches the handler.
//
// While the limiter gives no answer, the message waits for one until ctx ends. An error that is ErrEntity will not
// go away: reject that message without requeueing it. After any other error let the broker deliver it again, with
// some pause.
//
// The token is returned on every path, also when the handler panics.
//
// A message that comes back is known by its headers, so whoever may publish to the queue can publish what looks like
// one: with another exchange, routing key and user ID than its own, or with a ticket that was not its own, which gets it
// no more than a place in front.
func Limit(l Limiter, entity EntityFunc, p Postponer) Middleware {
	g := newGate(l, slog.Default(), false)
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			now := time.Now()
			m := open(*d, now, true)
			postpone := func(delay time.Duration, t drip.Ticket) error {
				with := *d
				with.Headers = maps.Clone(d.Headers)
				if with.Headers == nil {
					with.Headers = amqp.Table{}
				}
				with.Headers[headerTicket] = t.String()
				return p.Postpone(ctx, &with, delay)
			}
			if rest := m.due - now.UnixMilli(); rest > 0 {
				return postpone(time.Duration(rest)*time.Millisecond, m.ticket)
			}
			id, err := entityOf(entity, &m.Delivery)
			if err != nil {
				return fmt.Errorf("consumer: %w", err)
			}
			a, err := g.admit(ctx, ctx, nil, id, drip.Request{Ticket: m.ticket})
			if err != nil {
				return err
			}
			if a.Delay > 0 {
				return postpone(a.Delay, a.Ticket)
			}
			var refused refusal
			err = g.run(ctx, id, a, m.operation(id), func(running context.Context) error {
				err := next.Handle(running, &m.Delivery)
				refused = g.refused(ctx, id, err, time.Second)
				return err
			})
			if refused.retryAfter > 0 {
				return postpone(g.rebook(ctx, ctx, id, refused, drip.Request{Ticket: a.Lease.Ticket()}))
			}
			return err
		})
	}
}

// ErrEntity is the error of a message whose entity function failed, panicked or returned an empty entity.
var ErrEntity = errors.New("entity of the message")

// entityOf calls f, whose panic is an error like any other.
func entityOf(f EntityFunc, d *amqp.Delivery) (string, error) {
	id, err := func() (id string, err error) {
		defer recovered(&err)
		return f(d)
	}()
	switch {
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrEntity, err)
	case id == "":
		return "", Permanent(fmt.Errorf("%w: it is empty", ErrEntity))
	}
	return id, nil
}

// costOf calls f, whose panic is an error like any other.
func costOf(f func(*amqp.Delivery) int, d *amqp.Delivery) (cost int, err error) {
	defer recovered(&err)
	return f(d), nil
}

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // where
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// recovered turns a panic into an error. Deferred.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = &PanicError{Value: v, Stack: debug.Stack()}
	}
}

// Permanent is the error of a handler, or of an entity function, that would fail again: a Consumer spends no retry and
// sends the message to the dead letters. Behind Limit it is an error like any other.
func Permanent(cause error) error { return &permanentError{cause} }

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

func permanent(err error) bool {
	e := (*permanentError)(nil)
	return errors.As(err, &e)
}

// Throttled is the error of a handler whose call the provider refused because of its limit: nothing of the entity runs
// for retryAfter, in any process, and then the message does, in front of newcomers; no retry is spent. Providers say 0,
// too: it is at least Options.RetryDelay, and behind Limit a second. With a Limiter that is no Admitter only the message
// waits. cause may be nil.
func Throttled(retryAfter time.Duration, cause error) error {
	return &throttledError{retryAfter, cause}
}

type throttledError struct {
	retryAfter time.Duration
	cause      error
}

func (e *throttledError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("throttled for %v", e.retryAfter)
	}
	return fmt.Sprintf("throttled for %v: %v", e.retryAfter, e.cause)
}

func (e *throttledError) Unwrap() error { return e.cause }
