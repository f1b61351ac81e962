package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Limiter is what this package needs of a bucket: *drip.Bucket is one. GetDelay returns 0 and takes a token, or
// how long to postpone; ReturnToken gives the token back.
type Limiter interface {
	GetDelay(ctx context.Context, entityID string) (time.Duration, error)
	ReturnToken(ctx context.Context, entityID string) error
}

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
// in the form its publisher gave it; one that may not is handed to p, which puts it off. Either way nil means:
// acknowledge the delivery. Any error means: don't, let the broker deliver it again.
//
// The token is returned on every path, also when the handler panics. Wrap what must run for every delivery, such
// as a log, around Limit; what must run for every execution goes inside.
func Limit(l Limiter, entity EntityFunc, p Postponer) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			now := time.Now()
			m := open(*d, now, true)
			if rest := m.due - now.UnixMilli(); rest > 0 {
				return p.Postpone(ctx, d, time.Duration(rest)*time.Millisecond)
			}
			id, err := entityOf(entity, &m.Delivery)
			if err != nil {
				return fmt.Errorf("consumer: %w", err)
			}
			delay, err := l.GetDelay(ctx, id)
			if err != nil {
				return err
			}
			if delay > 0 {
				return p.Postpone(ctx, d, delay)
			}
			defer func() {
				if lost := returnToken(ctx, l, id); lost != nil {
					// Not the caller's error: what the handler has done must not be done again because of it.
					slog.ErrorContext(ctx, "a token was not returned", "entity", id, "error", lost)
				}
			}()
			return next.Handle(ctx, &m.Delivery)
		})
	}
}

// returnTimeout bounds returning a token, which goes on after the handler's context has ended.
const returnTimeout = 10 * time.Second

func returnToken(ctx context.Context, l Limiter, entity string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
	defer cancel()
	return l.ReturnToken(ctx, entity)
}

// entityOf calls f, whose panic is an error like any other.
func entityOf(f EntityFunc, d *amqp.Delivery) (id string, err error) {
	defer recovered(&err)
	id, err = f(d)
	switch {
	case err != nil:
		return "", fmt.Errorf("entity of the message: %w", err)
	case id == "":
		return "", errors.New("entity of the message: it is empty")
	}
	return id, nil
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

// Throttled is the error of a handler whose call the provider refused because of its limit: the message is
// postponed by retryAfter, and no retry is spent. cause may be nil.
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
