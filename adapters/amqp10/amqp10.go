// Package dripamqp10 takes messages of a RabbitMQ queue through a rate limit of drip, over AMQP 1.0. It needs RabbitMQ 4.3 or
// later and a quorum queue, without any argument or policy of its own.
//
// A message that may not run yet goes back to its queue with the time at which the broker is to deliver it again, and its
// ticket in an annotation: there is no copy and no delay queue. For older brokers use package consumer.
package dripamqp10

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/drip-go/drip/internal/address"
	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/worker"
)

// Options configure a Limit. Limiter and Entity are required. Attempts defaults to 5.
type Options = worker.Options[*amqp.Message]

// Queue configures the queue that Consume consumes.
type Queue struct {
	// URL is the URL of the broker, amqp:// or amqps://, without a path. Required.
	URL string

	// Conn has further options of the connection: TLS, which takes an amqps URL, and a virtual host as HostName "vhost:name". With
	// both of them TLSConfig needs the ServerName. Defaults to nil.
	Conn *amqp.ConnOptions

	// Name is the name of the queue, a quorum queue that exists. Required.
	Name string

	// InHand is the most messages in hand at once, each in a goroutine of its own. A postponed message comes up to a fifth of
	// a second early and is held until it is due. So InHand should be above the number of messages that are due in that time.
	// Defaults to 1024.
	InHand int
}

// Limit takes messages through a limit. Make one with New; it is safe for concurrent use.
//
// A message whose handler returns an error runs again, Options.Attempts times in all. worker.Throttled and worker.Later
// postpone the message. A Limit rejects a message that is given up, as by worker.Permanent, which sends it to the queue's
// dead-letter exchange.
type Limit struct {
	w   *worker.Worker[*amqp.Message]
	log *slog.Logger
}

// New checks the options and makes a Limit. Its error names the field that is wrong.
func New(o Options) (*Limit, error) {
	o.Attempts = cmp.Or(o.Attempts, 5)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.ID == nil {
		o.ID = messageID
	}
	w, err := worker.New(o)
	if err != nil {
		return nil, err
	}
	return &Limit{w, o.Logger}, nil
}

func messageID(m *amqp.Message) string {
	if m.Properties == nil || m.Properties.MessageID == nil {
		return ""
	}
	return fmt.Sprint(m.Properties.MessageID)
}

// The annotations of a postponed message. RabbitMQ acts on the second.
const (
	noteAnnotation = "x-opt-drip"
	dueAnnotation  = "x-opt-delivery-time" // ms since 1970
)

// early is how long before its time the broker is to deliver a message at least; twice early is the most. The message is then
// held. That gives the broker time to deliver many messages that are due at once. It delivers the messages of one tenth of a
// second together.
const early = 100 * time.Millisecond

// leaves returns when the broker is to deliver a message that is due at due.
func leaves(due time.Time) time.Time { return due.Add(-early).Truncate(early) }

const (
	// The pauses between tries to connect. The longest is short, because a consumer without a connection leaves the limit unused.
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 2 * time.Second

	// openTimeout bounds each try. Without it the client waits for ever for a server that accepts a connection and says nothing.
	openTimeout  = 15 * time.Second
	closeTimeout = 5 * time.Second

	// wayTooEarly is more than two clocks differ.
	wayTooEarly = time.Second
)

// ErrBroker is the error of Consume when the broker does not delay messages: it is no RabbitMQ 4.3 or later.
var ErrBroker = errors.New("it takes RabbitMQ 4.3 or later")

// Consume handles messages of the queue until ctx ends, and returns when the messages in hand have ended. The handlers'
// context ends worker.DrainTime after ctx. Consume returns an error when it can't begin, else nil. Once it has begun it
// reconnects after any failure. The broker then delivers the messages in hand again, and the context of their handlers ends.
func (l *Limit) Consume(ctx context.Context, q Queue, handle func(context.Context, *amqp.Message) error) error {
	switch {
	case q.URL == "" || q.Name == "":
		return errors.New("dripamqp10: Queue.URL or Queue.Name is missing")
	case !usable(q.URL):
		return errors.New("dripamqp10: Queue.URL is not an AMQP URL such as amqp://user:password@host:5672, with the password escaped")
	case virtualHost(q.URL) != "":
		return fmt.Errorf("dripamqp10: Queue.URL has a virtual host, which the client ignores; instead set Queue.Conn.HostName = %q", "vhost:"+virtualHost(q.URL))
	case q.Conn != nil && q.Conn.TLSConfig != nil && strings.HasPrefix(strings.ToLower(q.URL), "amqp:"):
		return errors.New("dripamqp10: Queue.Conn has a TLSConfig, and Queue.URL is one without TLS; it must begin with amqps://")
	case q.InHand < 0 || q.InHand > math.MaxInt32:
		return fmt.Errorf("dripamqp10: Queue.InHand is %d; it must be above 0 and at most %d, or 0 for the default", q.InHand, math.MaxInt32)
	case handle == nil:
		return errors.New("dripamqp10: handle is nil") // else each message would fail, and be given up
	}
	q.InHand = cmp.Or(q.InHand, 1024)
	handling, end := worker.Drain(ctx)
	defer end()
	var running sync.WaitGroup
	defer running.Wait()
	begun := false
	var lost outage.Outage
	credit := q.InHand
	for backoff := time.Duration(0); ; {
		began := time.Now()
		s, err := open(ctx, q, credit)
		if err == nil {
			begun = true
			s.lost = &lost
			err = l.consume(ctx, handling, s, &running, handle)
			credit = s.following(time.Since(began))
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !begun:
			return fmt.Errorf("dripamqp10: consume %q: %w", q.Name, err)
		}
		if lost.Fails(err) {
			l.log.Warn("the connection was lost, will connect again", "queue", q.Name, "error", err)
		}
		backoff = pause(backoff, time.Since(began))
		sleep.For(ctx, backoff)
	}
}

// pause returns the next pause, after a connection that lasted so long. A broker may end each connection at once: then the pauses grow,
// too.
func pause(before, lasted time.Duration) time.Duration {
	if lasted > longestBackoff {
		return firstBackoff
	}
	return min(max(2*before, firstBackoff), longestBackoff)
}

// usable reports whether a URL can be dialled. The client's error would repeat a malformed URL, with its password.
func usable(rawURL string) bool {
	u, err := address.Parse(rawURL)
	return err == nil && slices.Contains([]string{"amqp", "amqps", "amqp+ssl"}, u.Scheme)
}

// virtualHost returns the virtual host that a path names in a URL of AMQP 0-9-1, "" if there is none.
func virtualHost(rawURL string) string {
	u, err := address.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

// session is a connection that consumes.
type session struct {
	conn     *amqp.Conn
	receiver *amqp.Receiver
	lost     *outage.Outage

	inHand int64
	credit atomic.Int64 // at the start, plus one for each settled message
	owed   atomic.Int64 // messages that the broker may send, but does not yet know
}

func open(ctx context.Context, q Queue, credit int) (s *session, err error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	s = &session{inHand: int64(q.InHand)}
	s.credit.Store(int64(credit))
	if s.conn, err = amqp.Dial(ctx, q.URL, q.Conn); err != nil {
		if strings.Contains(err.Error(), "protocol version 0.9.1") { // RabbitMQ 3 without its plugin
			err = fmt.Errorf("%w: %w", ErrBroker, err)
		}
		return s, err
	}
	var channel *amqp.Session
	if version, _ := s.conn.Properties()["version"].(string); !delays(version) {
		err = fmt.Errorf("%w: RabbitMQ %q does not delay messages", ErrBroker, version)
	} else {
		channel, err = s.conn.NewSession(ctx, nil)
	}
	if err == nil {
		// The client can't take back credit that it manages itself.
		s.receiver, err = channel.NewReceiver(ctx, "/queues/"+url.PathEscape(q.Name), &amqp.ReceiverOptions{Credit: -1})
	}
	if err == nil {
		err = s.receiver.IssueCredit(uint32(credit)) // the broker sends at most so many messages
	}
	if err != nil {
		s.conn.Close()
	}
	return s, err
}

// following returns the credit with which the session after this one begins. A message that RabbitMQ cannot convert ends each
// session that it is sent in, and the queue counts a delivery of all messages that were in hand. After some it drops them. So a
// session that ended at once, or before it had its whole credit, is followed by one that has one message in hand.
func (s *session) following(lasted time.Duration) int {
	if lasted > longestBackoff && s.credit.Load() >= s.inHand {
		return int(s.inHand)
	}
	return 1
}

// moment is how long the broker may wait for few places. A flow of their own for each would slow it down.
const moment = 50 * time.Millisecond

// next lets the broker send a message in place of a settled one, and one more while it may not send as many as InHand.
func (s *session) next(ctx context.Context) {
	n := int64(1)
	if s.credit.Add(1) <= s.inHand {
		n = 2
	}
	switch owed := s.owed.Add(n); {
	case owed >= s.inHand/8:
		s.replace(ctx)
	case owed == n: // the first
		time.AfterFunc(moment, func() { s.replace(ctx) })
	}
}

func (s *session) replace(ctx context.Context) {
	if ctx.Err() != nil {
		return // stop has taken the credit back
	}
	if n := s.owed.Swap(0); n > 0 {
		_ = s.receiver.IssueCredit(uint32(n)) // which fails when the session ends
	}
}

// stop makes the broker send no more messages, and gives back the messages that have no handler. Otherwise these would wait
// for the last handlers.
func (s *session) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := s.receiver.DrainCredit(ctx, nil)
	for m := s.receiver.Prefetched(); m != nil && err == nil; m = s.receiver.Prefetched() {
		err = s.receiver.ReleaseMessage(ctx, m)
	}
	return err
}

// delays reports whether this version of RabbitMQ delays messages. An older one would deliver them at once, again and again.
func delays(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n == 2 && (major > 4 || major == 4 && minor >= 3)
}

// consume handles messages until ctx or the connection ends. The handlers' context ends with handling and with the connection.
// With ctx it waits for running, in which it counts the messages in hand. It does not wait after a lost connection: nobody would
// consume meanwhile.
func (l *Limit) consume(ctx, handling context.Context, s *session, running *sync.WaitGroup, handle func(context.Context, *amqp.Message) error) error {
	handling, lost := context.WithCancel(handling)
	defer lost()
	for {
		m, err := s.receiver.Receive(ctx, nil)
		if err == nil {
			if s.lost.Works() {
				l.log.Info("messages from the broker again")
			}
			running.Go(func() {
				defer s.next(ctx) // also after a runtime.Goexit of the handler
				l.step(handling, s.receiver, m, handle)
			})
			continue
		}
		if ctx.Err() != nil {
			if err := s.stop(ctx); err != nil {
				l.log.Warn("messages that are not in hand come back with the end of the connection", "error", err)
			}
			running.Wait()
		}
		lost()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = s.receiver.Close(closing) // settlements are written before
		_ = s.conn.Close()
		return err
	}
}

// step handles a delivery and settles it.
func (l *Limit) step(ctx context.Context, r *amqp.Receiver, m *amqp.Message, handle func(context.Context, *amqp.Message) error) {
	note, _ := m.Annotations[noteAnnotation].(string)
	if rest := time.Until(worker.ParseNote(note).Due); rest > 2*early { // the broker's clock differs, or the broker has not waited
		if rest > wayTooEarly {
			l.log.Warn("a message came early: is its queue a quorum queue?", "early", rest.String())
		}
		time.Sleep(min(rest, wayTooEarly)) // else the message would come again at once, again and again
	}
	out := l.w.Do(ctx, m, note, func(ctx context.Context) error { return handle(ctx, m) })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	var err error
	switch {
	case out.Delay > 0:
		err = r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{Annotations: amqp.Annotations{
			noteAnnotation: out.Note.String(), dueAnnotation: leaves(out.Note.Due).UnixMilli(),
		}})
	case out.Err != nil:
		// This rejects the message, and takes its note off: a dead letter that somebody puts back begins anew.
		err = r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{
			DeliveryFailed: true, UndeliverableHere: true, Annotations: amqp.Annotations{noteAnnotation: ""},
		})
	default:
		err = r.AcceptMessage(ctx, m)
	}
	if err != nil {
		l.log.Warn("a message will be delivered again", "error", err)
	}
}
