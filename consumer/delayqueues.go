package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/dial"
	"github.com/drip-go/drip/internal/wheel"
)

// Postponer postpones messages. *DelayQueues is one.
type Postponer interface {
	// Postpone keeps d for at least delay. Acknowledge the delivery after nil and not after an error.
	Postpone(ctx context.Context, d *amqp.Delivery, delay time.Duration) error
}

// QueueType is the broker's type of a queue.
type QueueType string

const (
	// Quorum queues dead-letter at least once, from RabbitMQ 3.10: a message that the broker has confirmed is not lost
	// when the broker crashes.
	Quorum QueueType = "quorum"

	// Classic queues are faster. When the broker stops, crash or not, it may lose messages that it is just dead-lettering.
	Classic QueueType = "classic"
)

// DelayQueuesOptions configure DelayQueues: the broker, the work queue, and the type of the queues.
type DelayQueuesOptions struct {
	// URL of the broker, amqp:// or amqps://. Required.
	URL string

	// TLS configures amqps, which the URL must then have. Defaults to the parameters of the URL and the system's
	// certificates.
	TLS *tls.Config

	// Queue is your work queue, to which a message comes back when it is due. It must exist. The delay queues have its
	// name as a prefix: "orders.drip.v1.250ms.07". Required.
	Queue string

	// QueueType is the type of the delay queues. Defaults to Quorum. A delay queue that exists with another type is an
	// error.
	QueueType QueueType

	// FewQueues uses 18 delay queues instead of 64, and 16 more for delays above two minutes. A message is then up to four
	// seconds late instead of a quarter of a second. Processes may differ. Defaults to false.
	FewQueues bool

	// FailFast makes OpenDelayQueues return an error when it cannot reach the broker. Defaults to false: it waits for the
	// broker.
	FailFast bool
}

// DelayQueues postpone messages: they publish a copy to a delay queue, from which the broker sends it back to the
// work queue. Limit gets it when it is due, never early, and at most a quarter of a second late when the work queue is
// empty. Make them with OpenDelayQueues and end them with Close. They are safe for concurrent use. The broker removes a
// delay queue that nobody has used for 30 days.
//
// Use them in a consume loop of your own, with Limit. A Consumer has delay queues of its own, and is more exact.
type DelayQueues struct {
	prefix    string // of the delay queues' names
	target    string // the queue to which they send due messages
	layout    *wheel.Layout
	queueType QueueType
	held      bool          // whether the target's consumer holds a message until it is due
	idle      time.Duration // after which the broker removes an unused queue
	publisher *publisher

	alive context.Context // until Close
	die   context.CancelFunc
	using sync.WaitGroup // for use

	mu       sync.Mutex
	declared map[place]time.Time // when, by ring and queue
	shunned  map[place]*shunning // likewise
	used     chan struct{}       // closed when the queues that were declared last are used; nil if there are none
}

// The broker removes a queue from which nobody has consumed or got for idleTime, whether it has messages or not. Publishing
// to it, or declaring a quorum queue again, does not count as use. So a process that publishes to a queue gets from it
// before, and again a day later. The waiting messages are lost if the broker is down for all of idleTime.
const (
	idleTime = 30 * 24 * time.Hour
	uses     = 30 // of a queue in that time
)

// shunning is the state of a delay queue that has not taken a message: it has no leader, a policy limits its length, or it
// cannot be declared.
type shunning struct {
	until time.Time     // when one message tries it again
	tried bool          // that message is being published
	last  time.Duration // how long it was shunned
}

const (
	firstShunning   = 10 * time.Second
	longestShunning = 5 * time.Minute
)

// OpenDelayQueues connects to the broker, checks the queue and declares the delay queues. It waits until ctx ends for a
// broker that is down, unless FailFast is set.
func OpenDelayQueues(ctx context.Context, o DelayQueuesOptions) (*DelayQueues, error) {
	q, err := newDelayQueues(o, slog.Default().With("queue", o.Queue))
	if err == nil {
		err = start(ctx, o.FailFast, q.publisher.log, func() error {
			_, err := q.examine(ctx, o.Queue, true)
			if err == nil {
				err = q.begin(ctx, true)
			}
			return err
		})
	}
	if err != nil {
		if q != nil {
			q.Close()
		}
		return nil, fmt.Errorf("consumer: open delay queues: %w", err)
	}
	return q, nil
}

func newDelayQueues(o DelayQueuesOptions, log *slog.Logger) (*DelayQueues, error) {
	switch {
	case o.Queue == "":
		return nil, errors.New("Options.Queue is empty")
	case len(o.Queue) > maxQueueName:
		return nil, fmt.Errorf("Options.Queue has %d bytes; it may have %d, to which drip appends", len(o.Queue), maxQueueName)
	case strings.ContainsAny(o.Queue, "\r\n"): // it would declare other queues than it uses
		return nil, fmt.Errorf("Options.Queue is %q; the broker removes line breaks from the names of queues", o.Queue)
	case o.URL == "":
		return nil, errors.New("Options.URL is missing")
	}
	uri, err := dial.Parse(o.URL)
	if err != nil {
		return nil, fmt.Errorf("Options.URL is %w", err)
	}
	if o.TLS != nil && uri.Scheme != "amqps" { // the client would send the password as plain text
		return nil, errors.New("Options.TLS is set, and Options.URL is one without TLS; it must begin with amqps://")
	}
	switch o.QueueType {
	case "":
		o.QueueType = Quorum
	case Quorum, Classic:
	default:
		return nil, fmt.Errorf("Options.QueueType is %q; it must be %q or %q", o.QueueType, Quorum, Classic)
	}
	connect := func(ctx context.Context) (*amqp.Connection, error) {
		return dial.RabbitMQ(ctx, o.URL, amqp.Config{TLSClientConfig: o.TLS}, "publishing for "+o.Queue)
	}
	alive, die := context.WithCancel(context.Background())
	layout := &wheel.Standard
	if o.FewQueues {
		layout = &wheel.Few
	}
	return &DelayQueues{
		prefix:    o.Queue + ".drip.",
		target:    o.Queue,
		layout:    layout,
		queueType: o.QueueType,
		idle:      idleTime,
		publisher: newPublisher(connect, confirmTimeout, log),
		alive:     alive,
		die:       die,
		declared:  map[place]time.Time{},
		shunned:   map[place]*shunning{},
	}, nil
}

// confirmTimeout is how long the broker may take to confirm a message. After that another delay queue replaces the silent one.
const confirmTimeout = 10 * time.Second

// maxQueueName leaves room for ".drip.due.v1few.864s.07" in AMQP's 255 bytes.
const maxQueueName = 255 - 25

// Close ends the connection. Messages in the delay queues stay there and come back when they are due.
func (q *DelayQueues) Close() error {
	q.mu.Lock()
	q.die()
	q.mu.Unlock()
	q.publisher.close()
	q.using.Wait()
	return nil
}

// Postpone implements [Postponer]. It returns nil when the broker has confirmed the copy in a delay queue. A delay
// above five seconds, or half a minute with FewQueues, takes several trips. At the end of each trip Limit sees that the
// delay is not over and sends the message on. The error is ErrExpired for a message that expires before, and
// ErrUnpostponable for one that can never be postponed. After any other error the broker may have the copy all the
// same, so the message can come twice. It is never lost, as long as you do not acknowledge the delivery after an error.
func (q *DelayQueues) Postpone(ctx context.Context, d *amqp.Delivery, delay time.Duration) error {
	now := time.Now()
	m := open(*d, now, true)
	if m.due() <= now.UnixMilli() { // else it continues a delay that is longer than the queues' delays
		m.Postponements++
	}
	m.Ticket, _ = ctx.Value(ticketKey{}).(drip.Ticket) // without one it is a newcomer
	m.postponeBy(delay)
	if m.due() > m.expires() {
		return fmt.Errorf("consumer: postpone a message of %q by %v: %w", q.target, delay, ErrExpired)
	}
	if err := q.put(ctx, ctx, &m); err != nil {
		return fmt.Errorf("consumer: postpone a message of %q by %v: %w", q.target, delay, err)
	}
	return nil
}

// put publishes the message to the queue where it waits until it is due. That queue depends on the time of publishing, so
// put chooses it at the last moment. A delay queue that does not take the message is shunned for a while, for all messages,
// and put uses another one. For patience see publish.
func (q *DelayQueues) put(ctx, patience context.Context, m *message) error {
	for redeclared, refused := false, 0; ; {
		p, wait, err := q.place(time.Now().UnixMilli(), m.due())
		if err == nil && wait {
			if err = q.prepare(ctx, patience, p); refusesDeclaration(err) {
				q.shun(p, err)
				continue
			}
		}
		if err != nil {
			return err
		}
		queue := q.target
		err = q.publisher.publish(ctx, patience, func() (string, amqp.Publishing, bool) {
			now := time.Now().UnixMilli()
			msg := m.copy()
			if p, wait, err = q.place(now, m.due()); wait {
				queue = q.name(p)
				msg.Expiration = fmt.Sprint(p.leave - now)
			}
			if err != nil || wait && !q.isDeclared(p) {
				return "", msg, false
			}
			q.tries(p, wait)
			return queue, msg, true
		})
		switch {
		case err == nil:
			q.takes(p, wait)
			return nil
		case errors.Is(err, errOutdated):
			continue
		case !wait:
		case errors.Is(err, errUnroutable) && !redeclared:
			q.publisher.log.Warn("a delay queue was deleted; messages that waited in it are lost", "delay_queue", queue)
			q.forget(p)
			redeclared = true
			continue
		case errors.Is(err, errRefused), errors.Is(err, errSilent), errors.Is(err, errUnroutable):
			q.shun(p, err)
			if refused++; refused < mostRefusals {
				continue
			}
		}
		return fmt.Errorf("publish to %q: %w", queue, err)
	}
}

// name returns the name of a place's queue.
func (q *DelayQueues) name(p place) string { return q.prefix + q.layout.Queue(p.ring, p.queue) }

// errDropped is the error of a delay queue that drops messages.
var errDropped = errors.New("a policy bounds its length, and it throws messages out")

// errNoPlace is the error of a message when no delay queue takes it now.
var errNoPlace = errors.New("no delay queue takes messages")

// place is placeFor among the queues that take messages. If none does, a message that will be held goes to its holder at
// once.
func (q *DelayQueues) place(now, due int64) (p place, wait bool, err error) {
	p, wait = placeFor(q.layout, now, due, q.held)
	if !wait {
		return p, false, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isOpen(p) {
		return p, true, nil
	}
	for _, p := range p.others(q.layout, now, q.held) {
		if q.isOpen(p) {
			return p, true, nil
		}
	}
	if q.held {
		return p, false, nil
	}
	return p, false, errNoPlace
}

// isOpen reports whether a message may be published to a queue. It requires mu held.
func (q *DelayQueues) isOpen(p place) bool {
	s := q.shunned[p.asQueue()]
	return s == nil || !time.Now().Before(s.until)
}

// tries notes that a message is published to a queue. One message alone tries a queue that was shunned for long enough.
func (q *DelayQueues) tries(p place, wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.shunned[p.asQueue()]; wait && s != nil {
		s.until, s.tried = time.Now().Add(q.publisher.timeout), true
	}
}

// shun stops using a delay queue for a while. If the queue is silent, shun stops using its whole ring: finding out for each
// queue would take the time of a confirmation. If the queue could not be declared, shun also stops using the ring's undeclared
// queues: the broker may allow no more queues.
func (q *DelayQueues) shun(p place, cause error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.shunOne(p, cause)
	silent, undeclared := errors.Is(cause, errSilent), refusesDeclaration(cause)
	for i := range q.layout.Rings[p.ring].Slots {
		o := place{ring: p.ring, queue: i}
		if q.shunned[o] == nil && (silent || undeclared && q.declared[o].IsZero()) {
			s := *q.shunned[p.asQueue()]
			q.shunned[o] = &s
		}
	}
}

// shunOne requires mu held.
func (q *DelayQueues) shunOne(p place, cause error) {
	s := q.shunned[p.asQueue()]
	if s == nil {
		s = &shunning{}
		q.shunned[p.asQueue()] = s
		q.publisher.log.Warn("a delay queue takes no messages, others are used", "delay_queue", q.name(p), "error", cause)
	}
	if !s.tried && time.Now().Before(s.until) {
		return // many messages have found out at once
	}
	s.tried = false
	s.last = min(max(2*s.last, firstShunning), longestShunning)
	s.until = time.Now().Add(s.last)
}

// dropped shuns the delay queue from which a policy has dropped a message that is back before its time. The policy would drop
// it again.
func (q *DelayQueues) dropped(h amqp.Table) {
	if reason, _ := h["x-first-death-reason"].(string); reason != "maxlen" {
		return
	}
	if p, ok := q.left(h); ok {
		q.shun(p, errDropped)
	}
}

// early reports whether a message that is back has left its delay queue before its slot: a policy has let it expire, and would
// do so again. A message whose slot has passed long ago may count as early, too.
func (q *DelayQueues) early(h amqp.Table, now int64) bool {
	p, ok := q.left(h)
	if !ok {
		return false
	}
	r := q.layout.Rings[p.ring]
	ahead := (p.queue + r.Slots - (now+lead)/r.Width%r.Slots) % r.Slots
	return 0 < ahead && ahead < r.Slots-1 // the slot before is late
}

// left returns the delay queue that a message has left. ok is false if it has left none of this layout.
func (q *DelayQueues) left(h amqp.Table) (p place, ok bool) {
	from, _ := h["x-first-death-queue"].(string)
	for ring, r := range q.layout.Rings {
		for i := range r.Slots {
			if p = (place{ring: ring, queue: i}); q.name(p) == from {
				return p, true
			}
		}
	}
	return p, false
}

// takes notes that a delay queue has taken a message.
func (q *DelayQueues) takes(p place, wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.shunned[p.asQueue()]; wait && s != nil && s.tried {
		delete(q.shunned, p.asQueue())
		q.publisher.log.Info("a delay queue takes messages again", "delay_queue", q.name(p))
	}
}

// refusesDeclaration reports whether an error of declaring a queue is the broker's answer and not the connection's error.
func refusesDeclaration(err error) bool {
	switch code(err) {
	case amqp.AccessRefused, amqp.NotFound, amqp.ResourceLocked, amqp.PreconditionFailed, amqp.InternalError, amqp.NotImplemented, amqp.NotAllowed:
		return true
	}
	return false
}

// begin declares the queues of everyday use, so that a problem shows before a message needs one. It declares them again,
// because they may be gone since. With start it returns a queue's error. Later it shuns the queue.
func (q *DelayQueues) begin(ctx context.Context, start bool) error {
	q.mu.Lock()
	clear(q.declared)
	q.mu.Unlock()
	var declared []place
	for ring, r := range q.layout.Rings[:q.layout.Everyday] {
		for i := range r.Slots {
			p := place{ring: ring, queue: i}
			one, err := q.declare(ctx, p)
			switch {
			case err == nil:
				declared = append(declared, one...)
			case start || !refusesDeclaration(err):
				return err
			default:
				q.shun(p, err)
			}
		}
	}
	q.use(declared)
	return nil
}

// prepare declares a queue and uses it. For patience see publish.
func (q *DelayQueues) prepare(ctx, patience context.Context, p place) error {
	ctx, end := both(ctx, patience)
	defer end()
	declared, err := q.declare(ctx, p)
	q.use(declared)
	return err
}

// declare declares a queue, unless it is declared, and returns it then. The caller must use it.
func (q *DelayQueues) declare(ctx context.Context, p place) (declared []place, err error) {
	if q.isDeclared(p) {
		return nil, nil
	}
	err = q.publisher.declare(ctx, func(ch *amqp.Channel) error {
		if q.isDeclared(p) { // another message was faster
			return nil
		}
		err := declareQueue(ch, q.name(p), q.queueType, q.target, q.idle)
		if err == nil {
			declared = []place{p}
		}
		return err
	})
	return declared, err
}

// isDeclared reports whether a queue was declared, and so recently that it need not be used again.
func (q *DelayQueues) isDeclared(p place) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, ok := q.declared[p.asQueue()]
	return ok && time.Since(at) < q.idle/uses
}

func (q *DelayQueues) forget(p place) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.declared, p.asQueue())
}

// use makes the broker note that queues that were declared are used. A queue without a leader takes long. So use works in the
// background and waits at most a second, also for the queues of other calls: the broker does not remove a queue without a leader either.
func (q *DelayQueues) use(declared []place) {
	q.mu.Lock()
	if len(declared) > 0 && q.alive.Err() == nil {
		for _, p := range declared {
			q.declared[p.asQueue()] = time.Now()
		}
		used := make(chan struct{})
		q.used = used
		q.using.Go(func() {
			defer close(used)
			q.get(declared)
		})
	}
	used := q.used
	q.mu.Unlock()
	if used != nil {
		within(time.Second, used)
	}
}

// get gets from queues, and gives the messages back. It has its own connection, because a queue without a leader closes it. A queue
// that fails is used a day later.
func (q *DelayQueues) get(places []place) {
	var ch *amqp.Channel
	for _, p := range places {
		if ch == nil || ch.IsClosed() {
			conn, err := q.publisher.connect(q.alive)
			if err != nil {
				return
			}
			defer closeConnection(conn)
			defer context.AfterFunc(q.alive, func() { conn.CloseDeadline(time.Now()) })()
			if ch, err = conn.Channel(); err != nil {
				return
			}
		}
		if d, ok, err := ch.Get(q.name(p), false); ok && err == nil {
			d.Nack(false, true) // if that fails the channel is closed, which gives the message back, too
		}
	}
}

// declareQueue declares a durable queue. Unless deadLetters is empty, messages that expire in it go to the queue of that
// name. If idle is above zero, the broker removes the queue when nobody has used it for idle.
func declareQueue(ch *amqp.Channel, name string, t QueueType, deadLetters string, idle time.Duration) error {
	args := amqp.Table{amqp.QueueTypeArg: string(t)}
	if idle > 0 {
		args["x-expires"] = idle.Milliseconds()
	}
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
	if err == nil {
		return nil
	}
	if code(err) == amqp.PreconditionFailed {
		switch text := err.Error(); {
		case strings.Contains(text, "queue limit"):
			return fmt.Errorf("declare queue %q: raise the limit of queues of the virtual host; drip takes 66 for a work queue, and 16 more for delays above 19 minutes, or 20 and 16 with FewQueues: %w", name, err)
		case strings.Contains(text, "inequivalent arg"):
			return fmt.Errorf("queue %q exists and is another one than drip needs; delete it when it is empty, or choose its queue type: %w", name, err)
		}
	}
	return fmt.Errorf("declare queue %q: %w", name, permissions(err))
}

// code returns the reply code of an error from the broker, 0 for any other error.
func code(err error) int {
	if e := (*amqp.Error)(nil); errors.As(err, &e) {
		return e.Code
	}
	return 0
}
