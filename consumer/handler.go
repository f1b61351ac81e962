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
// default exchange can forge such a message: with a false exchange, routing key and user ID, or with the ticket of
// another message, which gains it no more than a place in front.
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
			now := time.Now()
			m := open(*d, now, true)
			user := m.delivery()
			limited, err := w.Open(user, m.Note)
			stored := false
			if err == nil {
				err = limit(ctx, w, limited, &m, func(running context.Context) error { return next.Handle(running, user) }, func(delay time.Duration) error {
					err := p.Postpone(context.WithValue(ctx, ticketKey{}, limited.Note.Ticket), d, delay)
					stored = err == nil
					return err
				})
			} else {
				err = fmt.Errorf("consumer: %w", err)
			}
			if !stored {
				// With an error that is not permanent the delivery comes again, with its ticket.
				w.Abandon(ctx, limited, err != nil && !IsPermanent(err))
			}
			return err
		})
	}
}

// limit takes a message through the limit, for Limit.
func limit(ctx context.Context, w *limited, l *worker.Message, m *message, run func(context.Context) error, postpone func(time.Duration) error) error {
	now := time.Now().UnixMilli()
	if now > m.expires() {
		return fmt.Errorf("consumer: %w", ErrExpired)
	}
	if rest := m.due() - now; rest > 0 {
		return postpone(time.Duration(rest) * time.Millisecond)
	}
	a, err := ask(ctx, ctx, w, l, m.expires(), nil)
	switch {
	case errors.Is(err, errCrowded):
		return postpone(crowdedFor(m, l.Request.Deadline))
	case err != nil:
		return err
	case a.Delay > 0:
		return postpone(a.Delay)
	}
	out := w.Run(ctx, l, run)
	if out.Kind == worker.Refused {
		return postpone(out.Delay)
	}
	if panicked := (*PanicError)(nil); errors.As(out.Err, &panicked) {
		panic(panicked.Value) // the loop's business
	}
	return out.Err
}

// ticketKey is the context key of the message's ticket, for Postpone.
type ticketKey struct{}
