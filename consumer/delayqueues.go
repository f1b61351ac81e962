package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// Postponer puts a message off. *DelayQueues is one.
type Postponer interface {
	// Postpone takes charge of d for at least delay. After nil the delivery may be acknowledged; after an error
	// it must not be.
	Postpone(ctx context.Context, d *amqp.Delivery, delay time.Duration) error
}

// QueueType is how the broker keeps the messages of a queue.
type QueueType string

const (
	// Quorum queues with at-least-once dead-lettering, from RabbitMQ 3.10: what the broker has confirmed is not
	// lost when it crashes.
	Quorum QueueType = "quorum"

	// Classic queues are faster. When the broker stops, crash or not, messages it is just dead-lettering may be lost.
	Classic QueueType = "classic"
)

// DelayQueuesOptions says where DelayQueues keep their messages.
type DelayQueuesOptions struct {
	// URL of the broker, amqp:// or amqps://. Required.
	URL string

	// TLS configures amqps. Defaults to what the URL says and the system's certificates.
	TLS *tls.Config

	// Queue is where a message comes back when it is due: your work queue. It must exist. The delay queues are
	// named after it: "orders.drip.250ms.07". Required.
	Queue string

	// QueueType of the delay queues. Defaults to Quorum. Queues that exist with another type are an error.
	QueueType QueueType

	// ConfirmTimeout is how long the broker may take to confirm a message. Defaults to 30 seconds.
	ConfirmTimeout time.Duration
}

// DelayQueues postpone messages: they publish a copy to a delay queue, from which the broker sends it back to the
// work queue. Limit gets it when it is due, never early, and a quarter of a second late at most when the work queue
// is empty. Make them with OpenDelayQueues,
// end them with Close; they are safe for concurrent use.
//
// They are for a consume loop of your own, with Limit. A Consumer has delay queues of its own, and is more exact.
type DelayQueues struct {
	prefix    string // of the delay queues' names
	target    string // where they send what is due
	queueType QueueType
	held      bool // whether the target's consumer holds a message until it is due
	publisher *publisher

	mu       sync.Mutex
	declared map[place]bool // by ring and queue
}

// OpenDelayQueues connects to the broker, checks the queue and declares the delay queues.
func OpenDelayQueues(ctx context.Context, o DelayQueuesOptions) (*DelayQueues, error) {
	q, err := newDelayQueues(o)
	if err == nil {
		err = q.publisher.declare(ctx, func(ch *amqp.Channel) error { return checkQueue(ch, o.Queue) })
	}
	if err == nil {
		err = patiently(ctx, func() error { return q.begin(ctx) })
	}
	if err != nil {
		if q != nil {
			q.Close()
		}
		return nil, fmt.Errorf("consumer: open delay queues: %w", err)
	}
	return q, nil
}

func newDelayQueues(o DelayQueuesOptions) (*DelayQueues, error) {
	switch {
	case o.Queue == "":
		return nil, errors.New("Options.Queue is empty")
	case len(o.Queue) > maxQueueName:
		return nil, fmt.Errorf("Options.Queue has %d bytes; it may have %d, to which drip appends", len(o.Queue), maxQueueName)
	}
	u, err := url.Parse(o.URL)
	if err == nil {
		_, err = amqp.ParseURI(o.URL)
	}
	// With a password that is not escaped a part of it would pass for the host, and be in the error of connecting.
	if err != nil || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return nil, errors.New("Options.URL is not one of AMQP; it looks like amqp://user:password@host:5672/vhost, with the password escaped") // the cause may repeat it
	}
	switch o.QueueType {
	case "":
		o.QueueType = Quorum
	case Quorum, Classic:
	default:
		return nil, fmt.Errorf("Options.QueueType is %q; it must be %q or %q", o.QueueType, Quorum, Classic)
	}
	if o.ConfirmTimeout < 0 {
		return nil, fmt.Errorf("Options.ConfirmTimeout is %v; it must be above 0, or 0 for the default", o.ConfirmTimeout)
	}
	if o.ConfirmTimeout == 0 {
		o.ConfirmTimeout = 30 * time.Second
	}
	connect := func(ctx context.Context) (*amqp.Connection, error) {
		return dial(ctx, o.URL, amqp.Config{TLSClientConfig: o.TLS}, "publishing for "+o.Queue)
	}
	return &DelayQueues{
		prefix:    o.Queue + ".drip.",
		target:    o.Queue,
		queueType: o.QueueType,
		publisher: newPublisher(connect, o.ConfirmTimeout),
		declared:  map[place]bool{},
	}, nil
}

// maxQueueName leaves room for ".drip.due.1024s.15" in AMQP's 255 bytes.
const maxQueueName = 255 - 20

// Close ends the connection. Messages in the delay queues stay there and come back.
func (q *DelayQueues) Close() error {
	q.publisher.close()
	return nil
}

// Postpone implements [Postponer]. It returns nil when the broker has confirmed the copy in a delay queue. A delay
// above five seconds makes several trips: at the end of each Limit sees that it is not over and sends the message
// on. After an error the copy may be there all the same, so the message can come twice; it is never lost, as long as the
// delivery is then not acknowledged.
func (q *DelayQueues) Postpone(ctx context.Context, d *amqp.Delivery, delay time.Duration) error {
	now := time.Now()
	m := open(*d, now, true)
	if m.due <= now.UnixMilli() { // else it goes on with a trip that was longer than the queues are
		m.postponements++
	}
	ticket, _ := d.Headers[headerTicket].(string)
	m.ticket, _ = drip.ParseTicket(ticket) // of the Admit that postponed it just now; without one it is a newcomer
	m.postponeBy(delay)
	if err := q.put(ctx, ctx, &m); err != nil {
		return fmt.Errorf("consumer: postpone a message of %q by %v: %w", q.target, delay, err)
	}
	return nil
}

// put publishes the message to where it waits for its time. Where that is depends on when it is published, so it is
// settled at the last moment. For patience see publish.
func (q *DelayQueues) put(ctx, patience context.Context, m *message) error {
	for redeclared := false; ; {
		p, wait := placeFor(time.Now().UnixMilli(), m.due, q.held)
		if wait {
			if err := q.declare(ctx, p); err != nil {
				return err
			}
		}
		queue := q.target
		err := q.publisher.publish(ctx, patience, func() (string, amqp.Publishing, bool) {
			now := time.Now().UnixMilli()
			msg := m.copy()
			if p, wait = placeFor(now, m.due, q.held); wait {
				queue = q.prefix + p.name()
				msg.Expiration = fmt.Sprint(p.leave - now)
			}
			return queue, msg, !wait || q.isDeclared(p)
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errOutdated):
		case errors.Is(err, errUnroutable) && wait && !redeclared:
			q.forget(p) // somebody has deleted the delay queue
			redeclared = true
		default:
			return fmt.Errorf("publish to %q: %w", queue, err)
		}
	}
}

// begin declares the queues of everyday use, so that what is wrong with them shows before a message needs one.
// Those that were declared before may be gone since.
func (q *DelayQueues) begin(ctx context.Context) error {
	q.mu.Lock()
	clear(q.declared)
	q.mu.Unlock()
	for ring, r := range everyday {
		for i := range r.Slots {
			if err := q.declare(ctx, place{ring: ring, queue: i}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (q *DelayQueues) declare(ctx context.Context, p place) error {
	if q.isDeclared(p) {
		return nil
	}
	name := q.prefix + p.name()
	err := q.publisher.declare(ctx, func(ch *amqp.Channel) error { return declareQueue(ch, name, q.queueType, q.target) })
	if err == nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.declared[p.asQueue()] = true
	}
	return err
}

func (q *DelayQueues) isDeclared(p place) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.declared[p.asQueue()]
}

func (q *DelayQueues) forget(p place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.declared, p.asQueue())
}

// patiently calls begin again when it failed for a reason of the broker's own: of many quorum queues that are declared
// on a busy node one may not elect its leader in time.
func patiently(ctx context.Context, begin func() error) error {
	for tries := 1; ; tries++ {
		err := begin()
		if code(err) != amqp.InternalError || tries == 3 || !sleep(ctx, jitter(firstBackoff)) {
			return err
		}
	}
}

// checkQueue tells whether a queue exists.
func checkQueue(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclarePassive(name, false, false, false, false, nil)
	if code(err) == amqp.NotFound {
		return fmt.Errorf("there is no queue %q; declare it first: %w", name, err)
	}
	if err != nil {
		return fmt.Errorf("look at queue %q: %w", name, err)
	}
	return nil
}

// declareQueue declares a durable queue that sends what expires in it to the queue deadLetters, if that is named.
func declareQueue(ch *amqp.Channel, name string, t QueueType, deadLetters string) error {
	args := amqp.Table{amqp.QueueTypeArg: string(t)}
	if deadLetters != "" {
		args["x-dead-letter-exchange"] = ""
		args["x-dead-letter-routing-key"] = deadLetters
		if t == Quorum {
			// With at-least-once the broker removes a message only when its copy is confirmed; it asks for reject-publish.
			args["x-dead-letter-strategy"] = "at-least-once"
			args["x-overflow"] = "reject-publish"
		}
	}
	_, err := ch.QueueDeclare(name, true, false, false, false, args)
	switch {
	case code(err) == amqp.PreconditionFailed:
		return fmt.Errorf("queue %q exists and is another one than drip needs; delete it when it is empty, or choose its queue type: %w", name, err)
	case err != nil:
		return fmt.Errorf("declare queue %q: %w", name, err)
	}
	return nil
}

// code is the reply code of an error of the broker's.
func code(err error) int {
	if e := (*amqp.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}
