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

// EntityFunc tells whose limit a message falls under: the shop, the tenant. It must not return an empty entity.
type EntityFunc func(d *amqp.Delivery) (string, error)

// Handler does the work of a message. Nil means done. Whether to acknowledge is not its business.
type Handler interface {
	// Handle does the work of d. It is called from many goroutines at once.
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
// postponed message never reaches the handler. Call it with a context that does not end with the loop, such as
// context.WithoutCancel makes: a postponement that is cut off may be published all the same, and its message comes twice.
//
// While the limiter gives no answer, the message waits for one until ctx ends, and after five minutes it is put off. When
// [IsPermanent] tells that an error will not go away, reject the message without requeueing it. After any other error let
// the broker deliver it again, with some pause.
//
// The token is returned on every path, also when the handler panics, and a slot that was booked for a message that p did
// not take is given to others.
//
// A message that comes back is known by its headers and by having come through the default exchange. So whoever may publish
// through that can publish what looks like one: with another exchange, routing key and user ID than its own, or with a ticket
// that was not its own, which gets it no more than a place in front.
func Limit(l Limiter, entity EntityFunc, p Postponer) Middleware {
	return LimitRequests(l, entity, nil, p)
}

// LimitRequests is Limit with a function that tells what else the limiter is to know of a message, as Options.Request
// does.
func LimitRequests(l Limiter, entity EntityFunc, request func(*amqp.Delivery) drip.Request, p Postponer) Middleware {
	w, err := worker.New(worker.Options[*amqp.Delivery]{Limiter: l, Entity: entity, Request: request})
	if err != nil {
		panic(err) // without a limiter or an entity function nothing could ever be handled
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
				// With an error that is not permanent the delivery comes again, and the ticket that it came with.
				w.Abandon(ctx, limited, err != nil && !IsPermanent(err))
			}
			return err
		})
	}
}

// limit is what Limit does with a message.
func limit(ctx context.Context, w *limited, l *worker.Message, m *message, run func(context.Context) error, postpone func(time.Duration) error) error {
	now := time.Now().UnixMilli()
	if now > m.expires() {
		return fmt.Errorf("consumer: %w", ErrExpired)
	}
	if rest := m.due() - now; rest > 0 {
		return postpone(time.Duration(rest) * time.Millisecond)
	}
	a, err := ask(ctx, ctx, w, l, nil)
	switch {
	case errors.Is(err, errCrowded):
		return postpone(jitter(crowdedDelay))
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

// ticketKey is the key under which the context of Postpone has the ticket of the message.
type ticketKey struct{}
