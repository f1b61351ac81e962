package consumer

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/worker"
)

// EntityFunc returns the entity whose limit a message falls under: the shop, the tenant. It must not return an empty
// entity. A Consumer retries the message after an error, as after an error of the handler, unless the error is
// Permanent.
type EntityFunc func(d *amqp.Delivery) (string, error)

// Handler does the work of a message. Nil means done. A Handler must not acknowledge.
type Handler interface {
	// Handle does the work of d. A Consumer calls it from many goroutines at once.
	Handle(ctx context.Context, d *amqp.Delivery) error
}

// HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, d *amqp.Delivery) error

// Handle calls f.
func (f HandlerFunc) Handle(ctx context.Context, d *amqp.Delivery) error { return f(ctx, d) }

// Middleware wraps a Handler in another.
type Middleware func(Handler) Handler

// Operation tells a handler about the operation it runs, besides the message, and takes its real cost.
type Operation = worker.Operation

// OperationOf returns the operation of a handler's context, nil for any other.
func OperationOf(ctx context.Context) *Operation { return worker.OperationOf(ctx) }

// ErrLeaseLost is the cause of a handler's context whose lease could not be renewed. The operation has taken longer
// than the bucket's MaxLease, or the limiter was unreachable for too long and Options.FailOpen is not set. Other
// operations may take its token now.
var ErrLeaseLost = worker.ErrLeaseLost

// Handlers and messages have the errors of package worker, and ErrExpired.
var (
	// ErrEntity is the error of a message whose entity function failed, panicked or returned an empty entity.
	ErrEntity = worker.ErrEntity

	// ErrExpired is the error of a message behind Limit whose own expiration ends before it may run. Reject it without
	// requeueing, as the broker does with such a message. A Consumer sends it to the dead letters.
	ErrExpired = errors.New("the message has expired")
)

// PanicError is the error of a handler that panicked.
type PanicError = worker.PanicError

// Permanent returns the error of a handler, or of an entity function, that would fail again. A Consumer does not retry
// the message and sends it to the dead letters. Behind Limit see IsPermanent.
func Permanent(cause error) error { return worker.Permanent(cause) }

// IsPermanent reports whether an error of Limit's handler says that the message would fail at each further delivery.
// Then the error is ErrUnpostponable, ErrExpired or one of [worker.IsPermanent], or comes from [Permanent]. So it is
// for an empty entity, but not for another error of the entity function. Reject such a message without requeueing it.
func IsPermanent(err error) bool {
	return errors.Is(err, ErrUnpostponable) || errors.Is(err, ErrExpired) || worker.IsPermanent(err)
}

// Throttled returns the error of a handler whose call the provider refused because of its limit. No message of the
// entity runs for retryAfter, in any process. Then this message runs, before newcomers. It spends no retry. Some
// providers send retryAfter 0: the wait is at least Options.RetryDelay, and behind Limit a second. With a Limiter that
// is no Admitter only the message waits. cause may be nil.
func Throttled(retryAfter time.Duration, cause error) error {
	return worker.Throttled(retryAfter, cause)
}

// ThrottledShared is Throttled for a limit of drip.Options.Shared, such as the app's limit. No message within it runs
// for retryAfter, of any entity. The entity keeps the tokens of its own limit. If no shared limit has that name, the
// Consumer logs an error and only the message waits.
func ThrottledShared(limit string, retryAfter time.Duration, cause error) error {
	return worker.ThrottledShared(limit, retryAfter, cause)
}

// Later returns the error of a handler whose message is to be handled again after d, while other messages of the entity
// run. The message keeps its place before newcomers and spends no retry. cause may be nil.
func Later(d time.Duration, cause error) error { return worker.Later(d, cause) }
