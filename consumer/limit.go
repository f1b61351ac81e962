package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/worker"
)

// Limiter decides when a message may run. This package uses a Limiter that is an Admitter as well, as *drip.Bucket is,
// as an Admitter.
type Limiter = worker.Limiter

// Admitter books a slot for each message that it postpones. The ticket travels with the message, in a header, and lets
// it run before newcomers when it is back. Tokens are leases, which a Consumer renews while the handler runs.
type Admitter = worker.Admitter

// Limit returns a middleware for a consume loop of your own. A message that may run now goes to the next handler, in
// the form its publisher gave it. Limit hands any other message to p, which postpones it, and also a message whose
// handler returns Throttled, ThrottledShared or Later. Either way nil means: acknowledge the delivery. Acknowledge in
// the loop, therefore: a postponed message never reaches the handler. Call the handler with a context that does not end
// with the loop, such as context.WithoutCancel makes. Otherwise p may publish a copy although its context has ended,
// and the message comes twice.
//
// While the limiter gives no answer, the message waits for one until ctx ends. After five minutes Limit postpones it.
// When [IsPermanent] reports true for an error, reject the message without requeueing it. After any other error let the
// broker deliver it again, with some pause.
//
// Limit returns the token on every path, also when the handler panics. The panic then goes on to your loop. Limit frees
// a slot that was booked for a message that p did not take. It panics if one of its arguments is nil.
//
// Limit recognizes a returning message by its headers and by the default exchange. So a publisher who may use the
// default exchange can forge such a message. It may have a false exchange, routing key and user ID. With the ticket of
// another message it gains a place in front, and no more.
func Limit(l Limiter, entity EntityFunc, p Postponer) Middleware {
	return LimitRequests(l, entity, nil, p)
}

// LimitRequests is Limit with a function that returns the limiter's Request for a message, as Options.Request does. A
// nil function means the zero Request. Any other function needs a Limiter that is an Admitter, else LimitRequests
// panics.
func LimitRequests(l Limiter, entity EntityFunc, request func(*amqp.Delivery) drip.Request, p Postponer) Middleware {
	if absent.Is(p) { // no message that has to wait could ever be handled
		panic("consumer: the Postponer is missing")
	}
	w, err := worker.New(worker.Options[*amqp.Delivery]{
		Limiter: l, Entity: entity, Request: request, ID: func(d *amqp.Delivery) string { return d.MessageId },
	})
	if err != nil {
		panic(strings.Replace(err.Error(), "worker: Options.", "consumer: the ", 1))
	}
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			m := open(*d, time.Now(), true)
			user := m.delivery()
			l, err := w.Open(user, m.Note)
			var delay time.Duration
			if err != nil {
				err = fmt.Errorf("consumer: %w", err)
			} else {
				delay, err = limit(ctx, w, l, &m, func(running context.Context) error { return next.Handle(running, handed(user)) })
			}
			if delay > 0 {
				if err = p.Postpone(context.WithValue(ctx, ticketKey{}, l.Note.Ticket), d, delay); err == nil {
					return nil
				}
			}
			// With an error that is not permanent the delivery comes again, with its ticket.
			w.Abandon(ctx, l, err != nil && !IsPermanent(err))
			return err
		})
	}
}

// ticketKey is the context key of the message's ticket, for Postpone.
type ticketKey struct{}

// limit takes a message through the limit, for Limit. With a delay above zero the message is to be postponed.
func limit(ctx context.Context, w *limited, l *worker.Message, m *message, run func(context.Context) error) (delay time.Duration, err error) {
	now := time.Now().UnixMilli()
	if now > m.expires() {
		return 0, fmt.Errorf("consumer: %w", ErrExpired)
	}
	if rest := m.due() - now; rest > 0 {
		return time.Duration(rest) * time.Millisecond, nil
	}
	a, err := ask(ctx, ctx, w, l, m.expires(), nil)
	switch {
	case errors.Is(err, errCrowded):
		return crowdedFor(m, l.Request.Deadline), nil
	case err != nil || a.Delay > 0:
		return a.Delay, err
	}
	returned := false
	out := w.Run(ctx, l, func(running context.Context) error {
		err := run(running)
		returned = true
		return err
	})
	if out.Kind == worker.Refused {
		return out.Delay, nil
	}
	if panicked := (*PanicError)(nil); !returned && errors.As(out.Err, &panicked) {
		panic(panicked.Value) // the loop's business
	}
	return 0, out.Err
}

// limited takes deliveries through the limit.
type limited = worker.Worker[*amqp.Delivery]

// ask asks the limiter about a message, and again while it gives no answer, until waiting ends. It counts a message that
// waits for an answer in its rooms. The error is errCrowded when too many messages wait there, or when the message has waited
// too long. It is ErrExpired when the message would wait until after expires, in ms since 1970.
func ask(ctx, waiting context.Context, w *limited, m *worker.Message, expires int64, in rooms) (drip.Admission, error) {
	began, waits, crowded, expired := time.Now(), false, false, false
	defer func() {
		if waits {
			in.limited(-1)
		}
	}()
	a, err := w.Admit(ctx, m, func(pause time.Duration) bool {
		if !waits {
			waits = true
			in.limited(1)
		}
		rest := half(pause, time.UnixMilli(expires))
		expired = time.Now().Add(rest).UnixMilli() > expires
		crowded = pause > time.Second && in.crowded() || time.Since(began) > inHand
		return !expired && !crowded && sleep.For(waiting, rest)
	})
	switch {
	case err == nil:
	case expired:
		err = fmt.Errorf("%w: %w", ErrExpired, err)
	case crowded:
		err = fmt.Errorf("%w: %w", errCrowded, err)
	}
	return a, err
}
