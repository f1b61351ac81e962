package consumer

import (
	"context"
	"errors"
	"maps"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// process brings one delivery to its end: acknowledged when the message is done or safe elsewhere, else given
// back to the broker.
func (s *session) process(d *delivery) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			panic(v) // it is not the user's: those are caught
		}
		s.end(d, s.failed(&d.message, errGoexit))
	}()
	err := s.advance(d)
	returned = true
	s.end(d, err)
}

var errGoexit = errors.New("runtime.Goexit was called, as testing's FailNow does")

// end settles a delivery. Nil means that it may be acknowledged.
func (s *session) end(d *delivery, err error) {
	givenBack := err != nil
	if err == nil {
		err = d.from.ack(d.tag)
	} else if s.broken.Err() == nil {
		err = errors.Join(err, d.from.giveBack(d.tag))
	}
	d.visit.end(err)
	s.gate.forsake(s.broken, &d.message, givenBack)
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
		return s.put(m, nil)
	}
	if s.waiting.Err() != nil {
		return s.waiting.Err()
	}
	m.visit.due(m)
	user := m.delivery()
	var err error
	if m.entity, err = entityOf(s.o.Entity, user); err != nil {
		return s.failed(m, err)
	}
	m.visit.of(m.entity)
	switch {
	case d.back && time.Now().UnixMilli() > m.expires():
		return s.bury(m, reasonExpired, nil)
	case d.back && m.attempts >= int64(s.o.Attempts):
		return s.bury(m, reasonFailed, errBuriedLate)
	}
	cost := 0
	if s.o.Cost != nil {
		if cost, err = costOf(s.o.Cost, user); err != nil {
			return s.failed(m, err)
		}
	}
	in := rooms{s.fresh, s.handlers}
	if d.back {
		in = rooms{s.handlers}
	}
	a, err := s.admit(m, cost, d.back, in)
	switch {
	case errors.Is(err, errTooOld):
		return s.bury(m, reasonTooOld, nil)
	case errors.Is(err, drip.ErrCost):
		return s.failed(m, Permanent(err))
	case errors.Is(err, errCrowded):
		m.postponeBy(jitter(crowdedDelay))
		m.visit.became(wasForwarded, "")
		return s.put(m, nil)
	case err != nil:
		return err
	case a.Delay > 0:
		return s.postpone(m, a.Delay, wasPostponed)
	}
	return s.operate(m, user, a, cost, in)
}

var (
	errTooOld     = errors.New("the message is too old")
	errBuriedLate = errors.New("its last attempt has failed, and the dead letters took no messages then")
)

// admit asks whether a message may run. One that was back may stay in hand and ask again. With a delay of zero the message
// has places in its rooms.
func (s *session) admit(m *message, cost int, back bool, in rooms) (admission, error) {
	var place *seat
	var sat time.Time
	defer func() { s.deck.leave(m.entity, place) }()
	for {
		if s.o.MaxAge > 0 && m.age() > s.o.MaxAge {
			return admission{}, errTooOld
		}
		a, err := s.ask(m, cost, in)
		if err != nil || a.Delay == 0 {
			return a, err
		}
		if !back || a.Ticket.IsZero() {
			return a, nil
		}
		if place == nil {
			if place = s.deck.sit(m.entity, m.Priority); place == nil {
				return a, nil
			}
			sat = time.Now()
		}
		if time.Since(sat)+a.Delay > patience {
			return a, nil
		}
		s.deck.wait(s.waiting, place, a.Delay, a.Bound == drip.BoundTokens)
		if s.waiting.Err() != nil {
			return a, s.waiting.Err()
		}
	}
}

// ask asks the limiter about a message that has places in its rooms, and keeps them if it may run.
func (s *session) ask(m *message, cost int, in rooms) (a admission, err error) {
	if err := in.enter(s.waiting, m.entity); err != nil {
		return admission{}, err
	}
	defer func() {
		if err != nil || a.Delay > 0 {
			in.leave(m.entity)
		}
	}()
	return s.gate.ask(m.visit.context(s.broken), s.waiting, in, m, cost)
}

// operate runs a message that was admitted, and takes the step that follows from it.
func (s *session) operate(m *message, user *amqp.Delivery, a admission, cost int, in rooms) error {
	refused, interrupted, err := s.handle(m, user, a, in)
	switch {
	case err != nil && interrupted && s.broken.Err() == nil:
		delay := jitter(s.o.RetryDelay)
		s.o.Logger.Warn("an operation has lost its lease and will be tried again, which is no attempt", "entity", m.entity, "message_id", m.MessageId, "not_before", delay, "error", err)
		m.postponeBy(delay)
		m.visit.became(wasForwarded, "")
		return s.put(m, err)
	case err != nil:
		return s.failed(m, err)
	case refused.retryAfter > 0:
		delay := s.gate.rebook(m.visit.context(s.broken), s.waiting, m, refused, cost)
		return s.postpone(m, delay, wasThrottled)
	}
	return nil
}

// handle runs the handler and gives the places back. An operation that the provider has refused is no error. The methods of
// the handler's error are called here, where a panic of theirs is caught, and nowhere else.
func (s *session) handle(m *message, user *amqp.Delivery, a admission, in rooms) (refused refusal, interrupted bool, err error) {
	defer s.deck.wake(m.entity)
	defer in.leave(m.entity)
	defer recovered(&err)
	ctx := m.visit.context(s.broken)
	interrupted, err = s.gate.run(ctx, m.entity, a, m.operation(m.entity), func(running context.Context) error {
		err := s.o.Handler.Handle(running, user)
		refused = s.gate.refused(ctx, m.entity, err, s.o.RetryDelay)
		return err
	})
	if refused.retryAfter > 0 {
		return refused, false, nil
	}
	switch {
	case err == nil:
	case permanent(err):
		err = Permanent(errors.New(err.Error()))
	default:
		err = errors.New(err.Error())
	}
	return refusal{}, interrupted, err
}

// acknowledged keeps handlers and entity functions from settling what Run settles: a second acknowledgement closes
// the channel.
type acknowledged struct{}

var errAcknowledged = errors.New("consumer: Run acknowledges the delivery, a handler must not")

func (acknowledged) Ack(uint64, bool) error        { return errAcknowledged }
func (acknowledged) Nack(uint64, bool, bool) error { return errAcknowledged }
func (acknowledged) Reject(uint64, bool) error     { return errAcknowledged }

// postpone puts off a message that the limit does not let run, or the provider.
func (s *session) postpone(m *message, delay time.Duration, o outcome) error {
	if s.o.MaxPostponements > 0 && m.postponements >= int64(s.o.MaxPostponements) {
		return s.bury(m, reasonTooOften, nil)
	}
	m.postponements++
	m.postponeBy(delay)
	m.visit.put(delay, o)
	return s.put(m, nil)
}

// failed retries a message whose handler or entity function failed, or gives it up.
func (s *session) failed(m *message, cause error) error {
	if s.broken.Err() != nil {
		return s.broken.Err() // and no wonder that it failed
	}
	m.attempts++
	m.visit.failed(cause)
	log := s.o.Logger.With("entity", m.entity, "attempt", m.attempts, "message_id", m.MessageId, "error", cause)
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
	return s.put(m, cause)
}

// put sends the message to wait, unless it has expired when that is over. Cause is why it is tried again, if it has failed.
func (s *session) put(m *message, cause error) error {
	if m.due > m.expires() {
		return s.bury(m, reasonExpired, cause)
	}
	err := s.store(m)
	if errors.Is(err, ErrUnpostponable) {
		return s.bury(m, reasonTooLarge, err)
	}
	return err
}

func (s *session) store(m *message) error {
	err := s.insist(s.telemetry.timed(m.visit, s.dueQueue(), func() error { return s.delays.put(s.broken, s.waiting, m) }))
	m.stored = err == nil
	return err
}

// bury sends the message to the dead letters. When they take none, it waits and is buried later.
func (s *session) bury(m *message, reason string, cause error) error {
	msg := m.deadLetter(reason, cause)
	publish := s.telemetry.timed(m.visit, s.deadQueue(), func() error {
		return s.delays.publisher.publish(s.broken, s.waiting, func() (string, amqp.Publishing, bool) { return s.deadQueue(), msg, true })
	})
	m.visit.became(wasDeadLettered, reason)
	err := s.insist(publish)
	for _, most := range []int{1024, 0} {
		if !errors.Is(err, ErrUnpostponable) {
			break
		}
		// With large headers goes what nobody could have postponed. The body stays.
		maps.DeleteFunc(msg.Headers, func(name string, v any) bool {
			n, err := fieldSize(v, 0)
			return err != nil || n > most && (name == headerKept || !ours(name))
		})
		err = s.insist(publish)
	}
	switch {
	case errors.Is(err, errRefused) || errors.Is(err, errSilent):
		s.o.Logger.Warn("the dead letters take no messages", "reason", reason, "message_id", m.MessageId, "error", err)
		m.postponeBy(jitter(buriedLate))
		m.visit.became(wasForwarded, "")
		return s.store(m)
	case err == nil && reason != reasonFailed: // of which failed tells
		s.o.Logger.WarnContext(m.visit.context(s.broken), "a message went to the dead letters", "reason", reason, "message_id", m.MessageId, "postponements", m.postponements, "age", m.age())
	}
	return err
}

// buriedLate is when a message is buried that the dead letters did not take.
const buriedLate = time.Minute

// insist repeats a publishing until it succeeds, or will not; a queue of ours that was deleted is declared again. It gives
// up when the session is broken, for the message will be delivered again, and when it fails after nothing more is to wait
// or has been in hand for long: then the message is given back.
func (s *session) insist(publish func() error) error {
	began := time.Now()
	refusals := 0
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
		if err == nil || errors.Is(err, ErrUnpostponable) {
			if s.publishing.works() {
				s.o.Logger.Info("messages are published again")
			}
			return err
		}
		if s.broken.Err() == nil && s.publishing.fails() {
			s.o.Logger.Warn("cannot publish, will try again", "error", err)
		}
		if errors.Is(err, errRefused) || errors.Is(err, errSilent) {
			if refusals++; refusals == mostRefusals {
				return err
			}
		}
		if time.Since(began) > inHand || !sleep(s.waiting, jitter(backoff)) {
			return err
		}
	}
}

// mostRefusals is how often a queue may refuse a message before it is brought elsewhere.
const mostRefusals = 3
