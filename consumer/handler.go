package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
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
// one: with another exchange, routing key and user ID than its own.
func Limit(l Limiter, entity EntityFunc, p Postponer) Middleware {
	limiter := &asker{limiter: l, log: slog.Default()}
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
			delay, err := limiter.getDelay(ctx, ctx, id)
			if err != nil {
				return err
			}
			if delay > 0 {
				return p.Postpone(ctx, d, delay)
			}
			err = run(ctx, l, id, next, &m.Delivery, slog.Default())
			if throttled := (*throttledError)(nil); errors.As(err, &throttled) {
				return p.Postpone(ctx, d, max(throttled.retryAfter, time.Second))
			}
			return err
		})
	}
}

// asker asks a limiter, and again while it fails: without an answer nothing may run. An outage is logged once, not
// for every message that waits.
type asker struct {
	limiter Limiter
	log     *slog.Logger
	outage  atomic.Bool
}

// getDelay stops asking when waiting ends.
func (a *asker) getDelay(ctx, waiting context.Context, entity string) (time.Duration, error) {
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		delay, err := a.limiter.GetDelay(ctx, entity)
		if err == nil {
			if a.outage.Load() && a.outage.CompareAndSwap(true, false) {
				a.log.Info("the limiter answers again")
			}
			return delay, nil
		}
		if waiting.Err() == nil && a.outage.CompareAndSwap(false, true) {
			a.log.Error("no answer from the limiter, messages wait", "entity", entity, "error", err)
		}
		if !sleep(waiting, jitter(backoff)) {
			return 0, err
		}
	}
}

// run runs the handler and returns the token, trying again for a while: a token returned twice heals when the
// entity is idle, one that is not returned may never. When it fails for good that is only logged: what the handler
// has done must not be done again because of it.
func run(ctx context.Context, l Limiter, entity string, h Handler, d *amqp.Delivery, log *slog.Logger) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), returnTimeout)
		defer cancel()
		for backoff := firstBackoff; ; backoff *= 2 {
			err := l.ReturnToken(ctx, entity)
			if err == nil {
				return
			}
			if !sleep(ctx, jitter(backoff)) {
				log.Error("a token was not returned", "entity", entity, "error", err)
				return
			}
		}
	}()
	return h.Handle(ctx, d)
}

// returnTimeout bounds returning a token, which goes on after the handler's context has ended.
const returnTimeout = 10 * time.Second

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
		return "", fmt.Errorf("%w: it is empty", ErrEntity)
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
// postponed by retryAfter, and no retry is spent. Providers say 0, too: a message is postponed at least by
// Options.RetryDelay, and behind Limit by a second. cause may be nil.
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
