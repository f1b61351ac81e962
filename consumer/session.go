package consumer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// session is one connection that consumes: the work queue on one channel, the due queue on another, so that held
// messages take nothing of the work queue's prefetch. An acknowledgement goes to the channel its delivery came
// from, never to that of a later session.
type session struct {
	*Consumer
	conn     *amqp.Connection
	channels []*amqp.Channel
	closed   []<-chan *amqp.Error // tells of the connection and of each channel
	work     <-chan amqp.Delivery
	due      <-chan amqp.Delivery
	inHand   sync.WaitGroup

	// waiting ends when messages in hand should be given back instead of waiting any longer: Run is over, or the
	// session is. broken ends when the session can't acknowledge any more, or when handlers have to stop: it is
	// their context, for the message of a lost session is delivered again whatever they do. From then on nothing
	// is published either: it would be a copy of a message that is back in its queue.
	waiting, broken     context.Context
	stopWaiting, ruined context.CancelFunc
}

// begin connects, declares and consumes. handlers is the context of the handlers.
func (c *Consumer) begin(ctx, handlers context.Context) (*session, error) {
	conn, err := dial(ctx, c.o.URL, amqp.Config{TLSClientConfig: c.o.TLS}, "consuming "+c.o.Queue)
	if err != nil {
		return nil, err
	}
	s := &session{Consumer: c, conn: conn}
	if err = s.open(ctx); err == nil {
		err = c.delays.begin(ctx)
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

// watch ends the session when the broker closes its connection or one of its channels. It lives as long as the
// connection.
func (s *session) watch() {
	var err *amqp.Error
	select {
	case err = <-s.closed[0]:
	case err = <-s.closed[1]:
	case err = <-s.closed[2]:
	}
	if err != nil { // else we have closed it
		s.o.Logger.Warn("the connection or a channel was lost", "error", err)
	}
	s.ruined()
	s.stopWaiting()
	closeConnection(s.conn)
}

// open opens the channels, looks for the work queue and declares what is not for delays.
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
	if err := checkQueue(s.channels[0], s.o.Queue); err != nil {
		return err
	}
	return s.declareOwn(s.channels[0])
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
			return fmt.Errorf("consume %q: %w", from.queue, err)
		}
	}
	return nil
}

// declareOwn declares the queue of due messages and that of dead letters.
func (c *Consumer) declareOwn(ch *amqp.Channel) error {
	if err := declareQueue(ch, c.deadQueue(), c.delays.queueType, ""); err != nil {
		return err
	}
	// A broker that limits redeliveries would drop what was held too often; it goes to the dead letters then.
	return declareQueue(ch, c.dueQueue(), c.delays.queueType, c.deadQueue())
}

const consumerTag = "drip" // tags are a channel's own

// run takes deliveries until ctx ends or the session does. Messages may still be in hand when it returns.
func (s *session) run(ctx context.Context) {
	defer s.stopWaiting()
	// One loop's end is the session's. A cancelled consumer hands out what it has buffered and ends.
	stop := context.AfterFunc(s.waiting, func() {
		impatient := time.AfterFunc(closeTimeout, func() { s.conn.CloseDeadline(time.Now()) })
		defer impatient.Stop()
		for _, ch := range s.channels {
			if err := ch.Cancel(consumerTag, false); err != nil && !errors.Is(err, amqp.ErrClosed) {
				s.o.Logger.Debug("cancel the consumer", "error", err)
			}
		}
	})
	defer stop()
	var loops sync.WaitGroup
	loops.Go(func() { s.take(newSettling(s.channels[0], s.o.Prefetch/8), s.work, false) })
	// Of many that are due at once none is acknowledged before all have begun: the broker would take the time to do it.
	loops.Go(func() { s.take(newSettling(s.channels[1], s.o.Hold/2), s.due, true) })
	loops.Wait()
	if ctx.Err() == nil && s.broken.Err() == nil && !s.conn.IsClosed() {
		s.o.Logger.Warn("the broker has ended the consumer", "hint", "was a queue deleted?")
	}
}

// delivery is a message in hand.
type delivery struct {
	message
	from *settling
	tag  *list.Element
	back bool // from the due queue
	far  bool // not due for so long that it goes to a delay queue again
}

// take has each delivery processed, as it comes or when it is due, until there are no more.
func (s *session) take(from *settling, deliveries <-chan amqp.Delivery, back bool) {
	w := workers{process: s.process, running: &s.inHand}
	defer w.close()
	var soon held
	timer := time.NewTimer(0)
	defer timer.Stop()
	for set := int64(0); ; {
		select {
		case d, ok := <-deliveries:
			if !ok {
				s.stopWaiting()
				soon.release(math.MaxInt64, w.do)
				return
			}
			now := time.Now()
			m := &delivery{message: open(d, now, back), from: from, tag: from.received(d.DeliveryTag), back: back}
			m.Acknowledger = acknowledged{}
			m.visit = s.telemetry.receive(&m.message, back)
			_, m.far = placeFor(now.UnixMilli(), m.due, true)
			if m.far || m.due <= now.UnixMilli() {
				w.do(m)
				continue
			}
			soon.add(m)
		case <-timer.C:
			soon.release(time.Now().UnixMilli(), w.do)
			set = 0
		}
		if next := soon.next(); next != set && next != 0 {
			timer.Reset(time.Until(time.UnixMilli(next)))
			set = next
		}
	}
}

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
	// The last acknowledgements may be on their way inside the broker, which drops those that it has not passed on to
	// a quorum queue when their channel closes: what was handled would be delivered again.
	if s.broken.Err() == nil {
		within(settleTime, over)
	}
	s.ruined()
	closeConnection(s.conn)
}

// settleTime is for what is on its way inside the broker, from the client or to it.
const settleTime = 250 * time.Millisecond

// process brings one delivery to its end: acknowledged when the message is done or safe elsewhere, else given
// back to the broker.
func (s *session) process(d *delivery) {
	err := s.advance(d)
	if err == nil {
		err = d.from.ack(d.tag)
	} else if s.broken.Err() == nil {
		err = errors.Join(err, d.from.giveBack(d.tag))
	}
	d.visit.end(err)
	switch {
	case err == nil, s.waiting.Err() != nil:
	case s.broken.Err() != nil || errors.Is(err, amqp.ErrClosed):
		s.o.Logger.Debug("a message in hand when the connection was lost will be delivered again")
	default:
		s.o.Logger.Warn("a message was given back to the broker", "error", err)
	}
}

// advance takes a message the next step of its way. Nil means that the delivery may be acknowledged. A message that
// was back may stay in hand for a while instead of being postponed again.
func (s *session) advance(d *delivery) error {
	m := &d.message
	if d.far {
		m.visit.became(wasForwarded, "")
		return s.put(m)
	}
	if s.waiting.Err() != nil {
		return s.waiting.Err()
	}
	m.visit.due(m)
	entity, err := entityOf(s.o.Entity, &m.Delivery)
	if err != nil {
		return s.failed(m, entity, err)
	}
	m.visit.of(entity)
	cost := 0
	if s.o.Cost != nil {
		if cost, err = costOf(s.o.Cost, &m.Delivery); err != nil {
			return s.failed(m, entity, err)
		}
	}
	a, err := s.admit(m, entity, cost, d.back)
	switch {
	case errors.Is(err, errTooOld):
		s.gate.cancel(s.broken, entity, drip.Admission{Delay: 1, Ticket: m.ticket})
		return s.bury(m, reasonTooOld, nil)
	case errors.Is(err, drip.ErrCost):
		return s.failed(m, entity, err)
	case errors.Is(err, errCrowded):
		m.postponeBy(jitter(crowdedDelay))
		m.visit.became(wasForwarded, "")
		return s.put(m)
	case err != nil:
		return err
	case a.Delay > 0:
		return s.postpone(m, entity, a.Delay, wasPostponed)
	}
	return s.operate(m, entity, a, cost)
}

var errTooOld = errors.New("the message is too old")

// admit asks whether a message may run. One that was back may stay in hand and ask again.
func (s *session) admit(m *message, entity string, cost int, back bool) (admission, error) {
	waiters := s.fresh
	if back {
		waiters = s.returned
	}
	var place *seat
	defer func() { s.deck.leave(entity, place) }()
	for {
		if s.o.MaxAge > 0 && m.age() > s.o.MaxAge {
			return admission{}, errTooOld
		}
		a, err := s.gate.admit(m.visit.context(s.broken), s.waiting, waiters, entity, drip.Request{Cost: cost, Ticket: m.ticket})
		if err != nil || a.Delay == 0 {
			return a, err
		}
		m.ticket = a.Ticket
		if !back || a.Delay > patience || a.Ticket.IsZero() {
			return a, nil
		}
		if place == nil {
			if place = s.deck.sit(entity); place == nil {
				return a, nil
			}
		}
		s.deck.wait(s.waiting, place, a.Delay, a.Bound == drip.BoundTokens)
		if s.waiting.Err() != nil {
			return a, s.waiting.Err()
		}
	}
}

// operate runs a message that was admitted, and takes the step that follows from it.
func (s *session) operate(m *message, entity string, a admission, cost int) error {
	m.ticket = a.Lease.Ticket() // its own is used; should it run again it keeps its place
	refused, err := s.handle(m, entity, a)
	s.deck.wake(entity)
	switch {
	case err != nil:
		return s.failed(m, entity, err)
	case refused.retryAfter > 0:
		var delay time.Duration
		delay, m.ticket = s.gate.rebook(m.visit.context(s.broken), s.waiting, entity, refused, drip.Request{Cost: cost, Ticket: m.ticket})
		return s.postpone(m, entity, delay, wasThrottled)
	}
	return nil
}

// handle runs the handler. An operation that the provider has refused is no error. The methods of the handler's error are
// called here, where a panic of theirs is caught, and nowhere else.
func (s *session) handle(m *message, entity string, a admission) (refused refusal, err error) {
	defer recovered(&err)
	d, ctx := m.Delivery, m.visit.context(s.broken)
	err = s.gate.run(ctx, entity, a, m.operation(entity), func(running context.Context) error {
		err := s.o.Handler.Handle(running, &d)
		refused = s.gate.refused(ctx, entity, err, s.o.RetryDelay)
		return err
	})
	if refused.retryAfter > 0 {
		return refused, nil
	}
	switch {
	case err == nil:
	case permanent(err):
		err = Permanent(errors.New(err.Error()))
	default:
		err = errors.New(err.Error())
	}
	return refusal{}, err
}

// acknowledged keeps handlers and entity functions from settling what Run settles: a second acknowledgement closes
// the channel.
type acknowledged struct{}

var errAcknowledged = errors.New("consumer: Run acknowledges the delivery, a handler must not")

func (acknowledged) Ack(uint64, bool) error        { return errAcknowledged }
func (acknowledged) Nack(uint64, bool, bool) error { return errAcknowledged }
func (acknowledged) Reject(uint64, bool) error     { return errAcknowledged }

// postpone puts off a message that the limit does not let run, or the provider.
func (s *session) postpone(m *message, entity string, delay time.Duration, o outcome) error {
	if s.o.MaxPostponements > 0 && m.postponements >= int64(s.o.MaxPostponements) {
		s.gate.cancel(s.broken, entity, drip.Admission{Delay: delay, Ticket: m.ticket})
		return s.bury(m, reasonTooOften, nil)
	}
	m.postponements++
	m.postponeBy(delay)
	m.visit.put(delay, o)
	return s.put(m)
}

// failed retries a message whose handler or entity function failed, or gives it up.
func (s *session) failed(m *message, entity string, cause error) error {
	if s.broken.Err() != nil {
		return s.broken.Err() // and no wonder that it failed
	}
	m.attempts++
	m.visit.failed(cause)
	log := s.o.Logger.With("entity", entity, "attempt", m.attempts, "message_id", m.MessageId, "error", cause)
	if panicked := (*PanicError)(nil); errors.As(cause, &panicked) {
		log = log.With("stack", string(panicked.Stack))
	}
	if m.attempts >= int64(s.o.Attempts) || permanent(cause) {
		log.ErrorContext(m.visit.context(s.broken), "a message failed for the last time")
		return s.bury(m, reasonFailed, cause)
	}
	delay := retryDelay(s.o.RetryDelay, m.attempts)
	log.WarnContext(m.visit.context(s.broken), "a message failed and will be tried again", "not_before", delay)
	delay = jitter(delay)
	m.postponeBy(delay)
	m.visit.put(delay, wasRetried)
	return s.put(m)
}

// put sends the message to wait.
func (s *session) put(m *message) error {
	err := s.insist(s.telemetry.timed(m.visit, s.dueQueue(), func() error { return s.delays.put(s.broken, s.waiting, m) }))
	if errors.Is(err, errTooLarge) {
		return s.bury(m, reasonTooLarge, err)
	}
	return err
}

// bury sends the message to the dead letters.
func (s *session) bury(m *message, reason string, cause error) error {
	msg := m.deadLetter(reason, cause)
	publish := s.telemetry.timed(m.visit, s.deadQueue(), func() error {
		return s.delays.publisher.publish(s.broken, s.waiting, func() (string, amqp.Publishing, bool) { return s.deadQueue(), msg, true })
	})
	m.visit.became(wasDeadLettered, reason)
	err := s.insist(publish)
	if errors.Is(err, errTooLarge) {
		// With the headers goes what nobody could have postponed. The body stays.
		maps.DeleteFunc(msg.Headers, func(name string, _ any) bool { return !ours(name) || name == headerKept })
		err = s.insist(publish)
	}
	if err == nil && reason != reasonFailed { // of which failed tells
		s.o.Logger.WarnContext(m.visit.context(s.broken), "a message went to the dead letters", "reason", reason, "message_id", m.MessageId, "postponements", m.postponements, "age", m.age())
	}
	return err
}

// insist repeats a publishing until it succeeds; a queue of ours that was deleted is declared again. It gives up
// when the session is broken, for the message will be delivered again, and when it fails after nothing more is to
// wait: then the message is given back.
func (s *session) insist(publish func() error) error {
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		if s.broken.Err() != nil {
			return s.broken.Err()
		}
		err := publish()
		if errors.Is(err, errUnroutable) {
			if err = s.delays.publisher.declare(s.broken, s.declareOwn); err == nil {
				err = publish()
			}
		}
		if err == nil || errors.Is(err, errTooLarge) {
			if s.publishing.works() {
				s.o.Logger.Info("messages are published again")
			}
			return err
		}
		if s.broken.Err() == nil && s.publishing.fails() {
			s.o.Logger.Warn("cannot publish, will try again", "error", err)
		}
		if !sleep(s.waiting, jitter(backoff)) {
			return err
		}
	}
}
