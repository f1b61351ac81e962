// Package rabbitmq looks at the queues of package consumer, and puts dead letters back. It has the queues.Broker of the
// command drip and of package page.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/address"
	"github.com/drip-go/drip/queues"
)

// ErrURL is the error of New for a URL that is not an AMQP URL.
var ErrURL = errors.New("not one of AMQP; it looks like amqp://user:password@host:5672/vhost, with the password escaped")

// ErrNoQueue is the error for a work queue that does not exist.
var ErrNoQueue = errors.New("there is no such queue")

// Broker is a RabbitMQ with work queues. Make one with New, end it with Close. It is safe for concurrent use.
type Broker struct {
	url, where string
	names      []string

	mu     sync.Mutex
	conn   *amqp.Connection // for looking; nil while there is none
	closed bool
	absent map[string]time.Time // by queue, when it did not exist
}

// New returns a Broker at a URL, amqp:// or amqps://, with these work queues. It does not connect: the first call of a
// method does. ErrURL is its only error.
func New(rawURL string, workQueues ...string) (*Broker, error) {
	_, err := address.Parse(rawURL)
	var uri amqp.URI
	if err == nil {
		uri, err = amqp.ParseURI(rawURL)
	}
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: the URL is %w", ErrURL) // the cause may repeat it
	}
	where := net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port))
	return &Broker{url: rawURL, where: where, names: slices.Clone(workQueues), absent: map[string]time.Time{}}, nil
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

func (b *Broker) failed(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return fmt.Errorf("%s, RabbitMQ at %s: %w", doing, b.where, err)
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

// longestDial is after how long dial gives up, because the broker does not answer.
var longestDial = 10 * time.Second

// dial connects. No error repeats the URL.
func (b *Broker) dial(ctx context.Context) (*amqp.Connection, error) {
	ctx, stop := context.WithTimeout(ctx, longestDial)
	defer stop()
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return nil, amqp.ErrClosed
	}
	config := amqp.Config{Properties: amqp.NewConnectionProperties()}
	config.Properties.SetClientConnectionName("drip queues")
	watching := func() bool { return true }
	config.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil { // the handshake knows no context; the client clears the deadline
			watching = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
		}
		return conn, err
	}
	conn, err := amqp.DialConfig(b.url, config)
	if !watching() && err == nil {
		conn.CloseDeadline(time.Now())
		return nil, ctx.Err()
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // the client's error does not wrap it
	}
	return conn, err
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
		return queues.State{}, b.failed(ctx, "connect", err)
	}
	var s queues.State
	done := make(chan error, 1)
	looking, stop := context.WithTimeout(context.WithoutCancel(ctx), longestLook)
	go func() { // others use the connection: a caller who goes away must not break it
		defer stop()
		defer guard(looking, conn)()
		var err error
		s, err = b.look(conn, queue)
		done <- err
	}()
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return queues.State{}, b.failed(ctx, fmt.Sprintf("look at %q", queue), err)
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
		delays := d.all()
		names := make([]string, len(delays))
		for i, q := range delays {
			names[i] = q.name
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
			if s.Waiting += q.Messages; q.Messages > 0 {
				s.Delays = append(s.Delays, queues.Delay{Name: q.Name, Messages: q.Messages, Expires: delays[i].expires(now)})
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
					b.setAbsent(names[i])
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
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.absent[name]
	return ok && time.Since(at) < time.Minute
}

func (b *Broker) setAbsent(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.absent[name] = time.Now()
}

func (b *Broker) forgetAbsent(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, name := range names {
		delete(b.absent, name)
	}
}
