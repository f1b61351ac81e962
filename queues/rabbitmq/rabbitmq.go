// Package rabbitmq looks at the queues of package consumer, and puts dead letters back. It has the queues.Broker of the
// command drip and of package page.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/dial"
	"github.com/drip-go/drip/queues"
)

// ErrURL is the error of New for a URL that is not an AMQP URL.
var ErrURL error = dial.ErrURL

// ErrNoQueue is the error for a work queue that does not exist.
var ErrNoQueue = errors.New("there is no such queue")

// Broker is a RabbitMQ with work queues. Make one with New, end it with Close. It is safe for concurrent use.
type Broker struct {
	url    string
	names  []string
	absent sync.Map // by queue, the time.Time when it did not exist

	mu     sync.Mutex
	conn   *amqp.Connection // for looking; nil while there is none
	closed bool
}

// New returns a Broker at a URL, amqp:// or amqps://, with these work queues. It does not connect: the first call of a
// method does. ErrURL is its only error.
func New(rawURL string, workQueues ...string) (*Broker, error) {
	if _, err := dial.Parse(rawURL); err != nil {
		return nil, fmt.Errorf("rabbitmq: the URL is %w", err)
	}
	return &Broker{url: rawURL, names: slices.Clone(workQueues)}, nil
}

// Close ends the connection. Later calls fail.
func (b *Broker) Close() error {
	b.mu.Lock()
	conn := b.conn
	b.conn, b.closed = nil, true
	b.mu.Unlock()
	if conn != nil {
		conn.CloseDeadline(time.Now().Add(time.Second))
	}
	return nil
}

// Queues implements [queues.Broker].
func (b *Broker) Queues() []string { return slices.Clone(b.names) }

func failed(ctx context.Context, doing, queue string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%s %q: %w", doing, queue, err)
}

// connection returns the connection for looking. It makes a new one when the old one has failed.
func (b *Broker) connection(ctx context.Context) (*amqp.Connection, error) {
	b.mu.Lock()
	conn := b.conn
	b.mu.Unlock()
	if conn != nil && !conn.IsClosed() {
		return conn, nil
	}
	conn, err := b.dial(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.conn != nil && !b.conn.IsClosed() { // somebody else was faster
		go conn.CloseDeadline(time.Now().Add(time.Second))
		if b.closed {
			return nil, amqp.ErrClosed
		}
		return b.conn, nil
	}
	b.conn = conn
	return conn, nil
}

func (b *Broker) dial(ctx context.Context) (*amqp.Connection, error) {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return nil, amqp.ErrClosed
	}
	return dial.RabbitMQ(ctx, b.url, amqp.Config{}, "queues")
}

// guard breaks the connection when ctx ends, until the caller calls release: the client's own calls wait without a bound.
func guard(ctx context.Context, conn *amqp.Connection) (release func() bool) {
	return context.AfterFunc(ctx, func() { conn.CloseDeadline(time.Now()) })
}

// Look implements [queues.Broker]. Each name that does not exist is a line in the broker's log. So Look asks for all
// delay queues of a layout only if one of the queues exists that a consumer declares at the start. It does not ask for
// a missing queue again for a minute.
func (b *Broker) Look(ctx context.Context, queue string) (queues.State, error) {
	conn, err := b.connection(ctx)
	if err != nil {
		return queues.State{}, err
	}
	var s queues.State
	done := make(chan error, 1)
	looking, stop := context.WithTimeout(context.WithoutCancel(ctx), longestLook)
	go func() { // others use the connection: a caller who goes away must not break it
		defer stop()
		defer guard(looking, conn)()
		var err error
		if s, err = b.look(conn, queue); err != nil && looking.Err() != nil {
			err = looking.Err() // else it would say only that the connection is not open
		}
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return queues.State{}, failed(ctx, "look at", queue, err)
	}
	return s, nil
}

// longestLook is after how long a Look breaks the connection, because the broker does not answer.
const longestLook = 10 * time.Second

func (b *Broker) look(conn *amqp.Connection, queue string) (queues.State, error) {
	work, err := b.lookAt(conn, []string{queue, dueQueue(queue), deadQueue(queue)})
	if err != nil {
		return queues.State{}, err
	}
	if work[0] == nil {
		return queues.State{}, ErrNoQueue
	}
	now := time.Now()
	s := queues.State{Time: now, Queue: *work[0], Due: work[1], Dead: work[2]}
	for _, d := range delayQueuesOf(queue) {
		some, err := b.lookAt(conn, d.firsts())
		if err != nil {
			return queues.State{}, err
		}
		if !slices.ContainsFunc(some, func(q *queues.Queue) bool { return q != nil }) {
			continue
		}
		delays := d.all(now)
		names := make([]string, len(delays))
		for i, q := range delays {
			names[i] = q.Name
		}
		found, err := b.lookAt(conn, names)
		if err != nil {
			return queues.State{}, err
		}
		for i, q := range found {
			if q == nil {
				continue
			}
			s.Existing++
			if delays[i].Messages = q.Messages; q.Messages > 0 {
				s.Waiting += q.Messages
				s.Delays = append(s.Delays, delays[i])
			}
		}
	}
	slices.SortStableFunc(s.Delays, func(a, b queues.Delay) int { return a.Expires.Compare(b.Expires) })
	return s, nil
}

func dueQueue(queue string) string  { return queue + ".drip.due" }
func deadQueue(queue string) string { return queue + ".drip.dead" }

// channels is how many channels ask at the same time: each answer that a queue does not exist closes its channel.
const channels = 8

// lookAt returns the queues of these names, nil for a queue that does not exist.
func (b *Broker) lookAt(conn *amqp.Connection, names []string) ([]*queues.Queue, error) {
	found := make([]*queues.Queue, len(names))
	errs := make([]error, channels)
	var wg sync.WaitGroup
	for c := range channels {
		wg.Go(func() {
			var ch *amqp.Channel
			defer func() {
				if ch != nil {
					ch.Close()
				}
			}()
			for i := c; i < len(names); i += channels {
				if b.isAbsent(names[i]) {
					continue
				}
				if ch == nil {
					if ch, errs[c] = conn.Channel(); errs[c] != nil {
						return
					}
				}
				q, err := ch.QueueDeclarePassive(names[i], true, false, false, false, nil)
				var refused *amqp.Error
				switch {
				case err == nil:
					found[i] = &queues.Queue{Name: q.Name, Messages: q.Messages, Consumers: q.Consumers}
				case errors.As(err, &refused) && refused.Code == amqp.NotFound:
					ch = nil
					b.absent.Store(names[i], time.Now())
				default:
					errs[c] = fmt.Errorf("look at queue %q: %w", names[i], err)
					return
				}
			}
		})
	}
	wg.Wait()
	return found, errors.Join(errs...)
}

func (b *Broker) isAbsent(name string) bool {
	at, ok := b.absent.Load(name)
	return ok && time.Since(at.(time.Time)) < time.Minute
}
