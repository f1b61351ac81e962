package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
// While the limiter gives no answer, the message waits for one until ctx ends, and after five minutes it is put off. When
// [IsPermanent] tells that an error will not go away, reject the message without requeueing it. After any other error let
// the broker deliver it again, with some pause.
//
// The token is returned on every path, also when the handler panics, and a slot that was booked for a message that p did
// not take is given to others.
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
			err := g.limited(ctx, &m, entity, next, func(delay time.Duration) error {
				err := p.Postpone(context.WithValue(ctx, ticketKey{}, m.ticket), d, delay)
				m.stored = err == nil
				return err
			})
			// With an error that is not permanent the delivery comes again, and the ticket that it came with.
			g.forsake(ctx, &m, err != nil && !IsPermanent(err))
			return err
		})
	}
}

// limited is what Limit does with a message.
func (g *gate) limited(ctx context.Context, m *message, entity EntityFunc, next Handler, postpone func(time.Duration) error) (err error) {
	user, now := m.delivery(), time.Now().UnixMilli()
	if m.entity, err = entityOf(entity, user); err != nil {
		return fmt.Errorf("consumer: %w", err)
	}
	if now > m.expires() {
		return fmt.Errorf("consumer: %w", ErrExpired)
	}
	if rest := m.due - now; rest > 0 {
		return postpone(time.Duration(rest) * time.Millisecond)
	}
	a, err := g.ask(ctx, ctx, nil, m, 0)
	switch {
	case errors.Is(err, errCrowded):
		return postpone(jitter(crowdedDelay))
	case err != nil:
		return err
	case a.Delay > 0:
		return postpone(a.Delay)
	}
	var refused refusal
	_, err = g.run(ctx, m.entity, a, m.operation(m.entity), func(running context.Context) error {
		err := next.Handle(running, user)
		refused = g.refused(ctx, m.entity, err, time.Second)
		return err
	})
	if refused.retryAfter > 0 {
		return postpone(g.rebook(ctx, ctx, m, refused, 0))
	}
	return err
}

// ticketKey is the key under which the context of Postpone has the ticket of the message.
type ticketKey struct{}

// ErrEntity is the error of a message whose entity function failed, panicked or returned an empty entity.
var ErrEntity = errors.New("entity of the message")

// ErrExpired is the error of a message behind Limit whose own expiration ends before it may run. Reject it without
// requeueing, which is what the broker does with such a message. A Consumer sends it to the dead letters.
var ErrExpired = errors.New("the message has expired")

// IsPermanent reports whether an error of Limit's handler says that the message would fail at each further delivery: it
// is ErrEntity, ErrUnpostponable, ErrExpired, drip.ErrCost, or that of [Permanent]. Reject such a message without
// requeueing it.
func IsPermanent(err error) bool {
	for _, e := range []error{ErrEntity, ErrUnpostponable, ErrExpired, drip.ErrCost} {
		if errors.Is(err, e) {
			return true
		}
	}
	return permanent(err)
}

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
// sends the message to the dead letters. Behind Limit see IsPermanent.
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
