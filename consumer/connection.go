package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/dial"
	"github.com/drip-go/drip/internal/sleep"
)

// closeTimeout bounds the closing handshake of a connection, which a dead or blocked broker does not answer.
const closeTimeout = 5 * time.Second

func closeConnection(conn *amqp.Connection) { conn.CloseDeadline(time.Now().Add(closeTimeout)) }

// guard closes the connection when ctx ends, or when the broker has not answered for dial.Timeout, until the caller calls
// release. The client's own calls wait for an answer without a bound.
func guard(ctx context.Context, conn *amqp.Connection) (release func()) {
	ctx, cancel := context.WithTimeout(ctx, dial.Timeout)
	stop := context.AfterFunc(ctx, func() { conn.CloseDeadline(time.Now()) })
	return func() {
		stop()
		cancel()
	}
}

// session is one connection that consumes: the work queue on one channel, the due queue on another, so that held
// messages take nothing of the work queue's prefetch. An acknowledgement goes to the channel its delivery came
// from, never to the channel of a later session.
type session struct {
	*Consumer
	conn     *amqp.Connection
	channels []*amqp.Channel
	closed   []<-chan *amqp.Error // one for the connection and one for each channel
	work     <-chan amqp.Delivery
	due      <-chan amqp.Delivery
	inHand   sync.WaitGroup

	known    bool                    // whether the work queue is a stream
	hopeless context.CancelCauseFunc // ends Run with an error

	// waiting ends when messages in hand should go back to the broker instead of waiting any longer: Run is over, or the
	// session is. broken ends when the session can't acknowledge any more, or when handlers have to stop. It is the
	// context of the handlers, because the broker delivers the message of a lost session again whatever they do. From
	// then on the session publishes nothing either: it would be a copy of a message that is back in its queue.
	waiting, broken     context.Context
	stopWaiting, ruined context.CancelFunc
}

// begin connects, declares and consumes. handlers is the context of the handlers. hopeless ends Run with an error. With start
// each problem is an error that says how to fix it. Later a Consumer works around problems.
func (c *Consumer) begin(ctx, handlers context.Context, hopeless context.CancelCauseFunc, start bool) (*session, error) {
	conn, err := dial.RabbitMQ(ctx, c.o.URL, amqp.Config{TLSClientConfig: c.o.TLS}, "consuming "+c.o.Queue)
	if err != nil {
		return nil, err
	}
	s := &session{Consumer: c, conn: conn, hopeless: hopeless}
	err = s.open(ctx)
	if err == nil {
		s.known, err = c.delays.examine(ctx, c.o.Queue, start)
	}
	if err == nil {
		err = c.delays.publisher.declare(ctx, c.declareOwn)
	}
	if err == nil {
		err = c.delays.begin(ctx, start)
	}
	if err == nil {
		err = s.consume(ctx)
	}
	if err != nil {
		closeConnection(conn)
		return nil, err
	}
	s.waiting, s.stopWaiting = context.WithCancel(ctx)
	s.broken, s.ruined = context.WithCancel(handlers)
	go s.watch()
	return s, nil
}

// watch ends the session when the broker closes its connection or one of its channels. It runs as long as the connection.
func (s *session) watch() {
	var err *amqp.Error
	select {
	case err = <-s.closed[0]:
	case err = <-s.closed[1]:
	case err = <-s.closed[2]:
	}
	if err != nil { // else this process has closed it
		s.o.Logger.Warn("the connection or a channel was lost", "error", err)
	}
	s.ruined()
	s.stopWaiting()
	closeConnection(s.conn)
}

func (s *session) open(ctx context.Context) error {
	defer guard(ctx, s.conn)()
	s.closed = append(s.closed, s.conn.NotifyClose(make(chan *amqp.Error, 1)))
	for range 2 {
		ch, err := s.conn.Channel()
		if err != nil {
			return fmt.Errorf("open a channel: %w", err)
		}
		s.channels = append(s.channels, ch)
		s.closed = append(s.closed, ch.NotifyClose(make(chan *amqp.Error, 1)))
	}
	return nil
}

func (s *session) consume(ctx context.Context) error {
	defer guard(ctx, s.conn)()
	for i, from := range []struct {
		queue      string
		prefetch   int
		deliveries *<-chan amqp.Delivery
	}{{s.o.Queue, s.o.Prefetch, &s.work}, {s.dueQueue(), s.o.Hold, &s.due}} {
		err := s.channels[i].Qos(from.prefetch, 0, false)
		if err == nil {
			*from.deliveries, err = s.channels[i].Consume(from.queue, consumerTag, false, false, false, false, nil)
		}
		if err != nil {
			return fmt.Errorf("consume %q: %w", from.queue, permissions(err))
		}
	}
	return nil
}

// declareOwn declares the due queue and the dead-letter queue.
func (c *Consumer) declareOwn(ch *amqp.Channel) error {
	if err := declareQueue(ch, c.deadQueue(), c.delays.queueType, "", 0); err != nil {
		return err
	}
	// A broker that limits redeliveries would drop a message that was held too often. Here it goes to the dead letters.
	return declareQueue(ch, c.dueQueue(), c.delays.queueType, c.deadQueue(), 0)
}

const consumerTag = "drip" // a tag is unique within its channel

// run takes deliveries until ctx ends or the session does. Messages may still be in hand when it returns.
func (s *session) run(ctx context.Context) {
	defer s.stopWaiting()
	// When one loop ends the session ends. A cancelled consumer hands out its buffered deliveries and ends.
	stop := context.AfterFunc(s.waiting, func() {
		impatient := time.AfterFunc(closeTimeout, func() { s.conn.CloseDeadline(time.Now()) })
		defer impatient.Stop()
		// At once: a queue that is slow to answer must not keep the other one delivering what would only be given back.
		var cancels sync.WaitGroup
		for _, ch := range s.channels {
			cancels.Go(func() {
				if err := ch.Cancel(consumerTag, false); err != nil && !errors.Is(err, amqp.ErrClosed) {
					s.o.Logger.Debug("cancel the consumer", "error", err)
				}
			})
		}
		cancels.Wait()
	})
	defer stop()
	work := newSettling(s.channels[0], s.o.Prefetch/8)
	// Of many messages that are due at once none is acknowledged before all have begun: the broker would take time for it.
	due := newSettling(s.channels[1], s.o.Hold/2)
	var loops sync.WaitGroup
	loops.Go(func() { s.take(work, s.work, false) })
	loops.Go(func() { s.take(due, s.due, true) })
	for _, q := range []struct {
		name string
		from *settling
		most int
	}{{s.o.Queue, work, s.o.Prefetch}, {s.dueQueue(), due, s.o.Hold}} {
		loops.Go(func() {
			watchStalls(s.waiting, q.from, q.most, s.o.Logger.With("from", q.name), s.handlers.count)
		})
	}
	loops.Wait()
	if ctx.Err() == nil && s.broken.Err() == nil && !s.conn.IsClosed() {
		s.o.Logger.Warn("the broker has ended the consumer", "hint", "was a queue deleted?")
	}
}

// suspect ends Run if the work queue is a stream, after a delivery with a header that a stream or a publisher adds. basic.get does not
// work on streams. suspect asks once a session, and only without the permission to configure the queue: asking costs a message of the
// queue a delivery.
func (s *session) suspect() (isStream bool) {
	if s.known {
		return false
	}
	s.known = true
	defer guard(context.WithoutCancel(s.waiting), s.conn)()
	ch, err := s.conn.Channel()
	if err == nil {
		defer ch.Close() // gives the message back
		_, _, err = ch.Get(s.o.Queue, false)
	}
	if code(err) != amqp.NotImplemented {
		return false
	}
	s.hopeless(stream(s.o.Queue))
	s.stopWaiting()
	return true
}

// watchStalls logs when as many messages are in hand as may be and none of them has ended for stalledAfter, and again when
// messages go on. It ends with ctx. count returns how many messages are in their handlers, and how many wait for the limiter.
func watchStalls(ctx context.Context, from *settling, most int, log *slog.Logger, count func() (handlers, limiting int)) {
	var last, since uint64
	stalled := false
	for sleep.For(ctx, stalledAfter/3) {
		inHand, ended := from.counts()
		switch {
		case inHand < most || ended != last:
			if last, since = ended, 0; stalled {
				stalled = false
				log.Info("messages go on")
			}
		case !stalled:
			if since++; since < 3 {
				continue
			}
			stalled = true
			handlers, limiting := count()
			log.Warn("no message has ended for a while, and as many are in hand as may be", "in_hand", inHand, "handlers", handlers, "wait_for_limiter", limiting, "after", stalledAfter.String())
		}
	}
}

const stalledAfter = 30 * time.Second

// finish closes the connection when nothing is in hand any more, or when Run is over.
func (s *session) finish(over <-chan struct{}) {
	empty := make(chan struct{})
	go func() {
		s.inHand.Wait()
		close(empty)
	}()
	select {
	case <-empty:
	case <-over:
	}
	// The last acknowledgements may be on their way inside the broker. When their channel closes the broker drops the
	// acknowledgements that have not reached a quorum queue, and would deliver the handled messages again. So also after the drain
	// time, when handlers have returned in their grace.
	if !s.conn.IsClosed() {
		within(settleTime, over)
	}
	s.ruined()
	closeConnection(s.conn)
}

// settleTime is time for frames on their way inside the broker, from the client or to it.
const settleTime = 250 * time.Millisecond
