package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/worker"
)

// Limiter is what this package needs of a limiter. A Limiter that is an Admitter as well, as *drip.Bucket is, is used as
// such.
type Limiter = worker.Limiter

// Admitter books the slots of what it postpones: the ticket travels with the message, in a header, and lets it run
// before newcomers when it is back. Tokens are leases, which are renewed while the handler runs.
type Admitter = worker.Admitter

// Operation is what a handler can know and say about the operation it runs, besides the message.
type Operation = worker.Operation

// OperationOf returns the operation of a handler's context, nil for any other.
func OperationOf(ctx context.Context) *Operation { return worker.OperationOf(ctx) }

// ErrLeaseLost is the cause of a handler's context that was cancelled because its lease could not be renewed: the
// operation has taken longer than the bucket's MaxLease, or the limiter could not be reached for too long. Its token
// belongs to others now.
var ErrLeaseLost = worker.ErrLeaseLost

// limited takes deliveries through the limit.
type limited = worker.Worker[*amqp.Delivery]

// ask asks the limiter about a message, and again while it gives no answer, until waiting ends. Messages that wait for one
// are counted in their rooms; the error is errCrowded when they are too many there, or have waited too long.
func ask(ctx, waiting context.Context, w *limited, m *worker.Message, in rooms) (drip.Admission, error) {
	began, waits, crowded := time.Now(), false, false
	a, err := w.Admit(ctx, m, func(pause time.Duration) bool {
		if !waits {
			waits = true
			in.limited(1)
		}
		crowded = pause > time.Second && in.crowded() || time.Since(began) > inHand
		return !crowded && sleep(waiting, pause)
	})
	if waits {
		in.limited(-1)
	}
	if crowded && err != nil {
		err = fmt.Errorf("%w: %w", errCrowded, err)
	}
	return a, err
}

// The errors of handlers, and of messages, are those of every queue.
var (
	// ErrEntity is the error of a message whose entity function failed, panicked or returned an empty entity.
	ErrEntity = worker.ErrEntity

	// ErrExpired is the error of a message behind Limit whose own expiration ends before it may run. Reject it without
	// requeueing, which is what the broker does with such a message. A Consumer sends it to the dead letters.
	ErrExpired = errors.New("the message has expired")
)

// PanicError is the error of a handler that panicked.
type PanicError = worker.PanicError

// Permanent is the error of a handler, or of an entity function, that would fail again: a Consumer spends no retry and
// sends the message to the dead letters. Behind Limit see IsPermanent.
func Permanent(cause error) error { return worker.Permanent(cause) }

// IsPermanent reports whether an error of Limit's handler says that the message would fail at each further delivery: it
// is ErrEntity, ErrUnpostponable, ErrExpired, drip.ErrCost, drip.ErrDeadline, or that of [Permanent]. Reject such a message without
// requeueing it.
func IsPermanent(err error) bool {
	for _, e := range []error{ErrEntity, ErrUnpostponable, ErrExpired} {
		if errors.Is(err, e) {
			return true
		}
	}
	return worker.IsPermanent(err)
}

// Throttled is the error of a handler whose call the provider refused because of its limit: nothing of the entity runs
// for retryAfter, in any process, and then the message does, in front of newcomers; no retry is spent. Providers say 0,
// too: it is at least Options.RetryDelay, and behind Limit a second. With a Limiter that is no Admitter only the message
// waits. cause may be nil.
func Throttled(retryAfter time.Duration, cause error) error {
	return worker.Throttled(retryAfter, cause)
}

// ThrottledShared is Throttled by a limit of drip.Options.Shared, such as that of the app: nothing within it runs for
// retryAfter, of any entity, and what the entity had gathered for itself stays. A name that is no shared limit's is logged,
// and the message waits alone.
func ThrottledShared(limit string, retryAfter time.Duration, cause error) error {
	return worker.ThrottledShared(limit, retryAfter, cause)
}

// Later is the error of a handler whose message is to be handled again after d, while others of the entity go on. It keeps
// its place in front of newcomers, and no retry is spent. cause may be nil.
func Later(d time.Duration, cause error) error { return worker.Later(d, cause) }
