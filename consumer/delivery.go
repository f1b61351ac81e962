package consumer

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/worker"
)

// delivery is a message in hand.
type delivery struct {
	message
	limited *worker.Message // the message for the limiter, once its entity is known
	from    *settling
	tag     *list.Element
	back    bool  // from the due queue
	far     bool  // due so late that it goes to a delay queue again
	at      int64 // until when it is held, us since 1970
}

// longestHeld is how long a message without a delay queue is held. If there is still no delay queue then, it goes to the end
// of the due queue.
const longestHeld = time.Minute

// take gives each delivery to the workers, as it comes or when it is due, until there are no more.
func (s *session) take(from *settling, deliveries <-chan amqp.Delivery, back bool) {
	w := workers{process: s.process, running: &s.inHand}
	var soon dueList
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				s.stopWaiting()
				soon.release(math.MaxInt64, w.do)
				return
			}
			if _, ok := d.Headers["x-stream-offset"]; ok && !back && s.suspect() {
				return
			}
			now := time.Now()
			m := &delivery{message: open(d, now, back), from: from, tag: from.received(d.DeliveryTag), back: back}
			m.Acknowledger = acknowledged{}
			m.record = s.telemetry.receive(&m.message, back)
			if back && m.Due.After(now) {
				s.delays.dropped(d.Headers)
			}
			_, m.far, _ = s.delays.place(now.UnixMilli(), m.due())
			held := longestHeld
			if m.far && back && s.delays.early(d.Headers, now.UnixMilli()) {
				m.far, held = false, patience // else it would go round and round
			}
			if m.far || !m.Due.After(now) {
				w.do(m)
				continue
			}
			m.at = min(m.Due.UnixMicro(), now.Add(held).UnixMicro())
			soon.add(m)
		case <-timer.C:
			now := time.Now()
			soon.release(now.UnixMicro(), func(d *delivery) {
				d.far = d.Due.After(now)
				w.do(d)
			})
		}
		if next := soon.next(); next != 0 {
			timer.Reset(time.Until(time.UnixMicro(next)))
		}
	}
}

// process processes one delivery and settles it: it acknowledges the delivery when the message is done or safe elsewhere,
// and else gives it back to the broker.
func (s *session) process(d *delivery) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			panic(v) // not from the user's code, whose panics are caught
		}
		s.end(d, s.failed(d, errGoexit))
	}()
	err := s.advance(d)
	returned = true
	s.end(d, err)
}

var errGoexit = errors.New("runtime.Goexit was called, as testing's FailNow does")

// end settles a delivery. With a nil err it acknowledges the delivery, else it gives it back. A message that fits nowhere first stays
// in hand for a while, because the broker would deliver it again at once.
func (s *session) end(d *delivery, err error) {
	givenBack := err != nil
	if errors.Is(err, errTooLarge) || errors.Is(err, ErrUnpostponable) {
		s.o.Logger.Warn(tooLargeLine, "message_id", d.MessageId, "error", err)
		sleep.For(s.waiting, sleep.Jitter(inHand))
	}
	if err == nil {
		err = d.from.ack(d.tag)
	} else if s.broken.Err() == nil {
		err = errors.Join(err, d.from.giveBack(d.tag))
	}
	d.record.end(err)
	if d.limited != nil && !d.stored {
		s.worker.Abandon(s.broken, d.limited, givenBack)
	}
	switch {
	case err == nil, s.waiting.Err() != nil:
	case s.broken.Err() != nil || errors.Is(err, amqp.ErrClosed):
		s.o.Logger.Debug("a message in hand when the connection was lost will be delivered again")
	default:
		s.o.Logger.Warn("a message was given back to the broker", "error", err)
	}
}

const tooLargeLine = "a message can neither wait nor be a dead letter, and stays in its queue"

// advance handles, postpones or buries a message. Nil means that the delivery may be acknowledged. A message that has come
// back may stay in hand for a while instead of being postponed again.
func (s *session) advance(d *delivery) error {
	m := &d.message
	if d.far {
		m.record.became(wasForwarded, "")
		return s.put(m, nil)
	}
	if s.waiting.Err() != nil {
		return s.waiting.Err()
	}
	m.record.due(m)
	user := m.delivery()
	var err error
	d.limited, err = s.worker.Open(user, m.Note)
	m.entity = d.limited.Entity
	m.record.of(m.entity)
	switch {
	case m.given != "":
		return s.bury(m, m.given, nil)
	case err != nil:
		return s.failed(d, err)
	case d.back && time.Now().UnixMilli() > m.expires():
		return s.bury(m, reasonExpired, nil)
	}
	in := rooms{s.fresh, s.handlers}
	if d.back {
		in = rooms{s.handlers}
	}
	a, err := s.admit(d, in)
	switch {
	case errors.Is(err, worker.ErrTooOld) || errors.Is(err, drip.ErrDeadline):
		return s.follow(m, s.worker.GiveUp(d.limited, err))
	case errors.Is(err, ErrExpired):
		return s.bury(m, reasonExpired, err)
	case worker.IsPermanent(err):
		return s.failed(d, err)
	case errors.Is(err, errCrowded):
		m.postponeBy(crowdedFor(m, d.limited.Request.Deadline))
		m.record.became(wasForwarded, "")
		return s.put(m, nil)
	case err != nil:
		return err
	case a.Delay > 0:
		return s.follow(m, s.worker.Postpone(d.limited, a.Delay))
	}
	return s.operate(d, user, in)
}

// admit asks whether a message may run. A message that has come back may stay in hand and ask again. With a delay of zero the
// message has places in its rooms.
func (s *session) admit(d *delivery, in rooms) (drip.Admission, error) {
	m := &d.message
	var place *heldSlot
	var sat time.Time
	defer func() { s.held.leave(place) }()
	for {
		a, err := s.ask(d, in)
		if err != nil || a.Delay == 0 {
			return a, err
		}
		if !d.back || a.Ticket.IsZero() || time.Now().Add(a.Delay).UnixMilli() > m.expires() {
			return a, nil // put then buries a message that expires before
		}
		if place == nil {
			if place = s.held.enter(m.entity, m.Priority); place == nil {
				return a, nil
			}
			sat = time.Now()
		}
		if a.Delay > patience-time.Since(sat) { // a sum might overflow
			return a, nil
		}
		s.held.wait(s.waiting, place, a)
		if s.waiting.Err() != nil {
			return a, s.waiting.Err()
		}
	}
}

// ask takes places in the message's rooms and asks the limiter. The message keeps the places if it may run.
func (s *session) ask(d *delivery, in rooms) (drip.Admission, error) {
	if err := in.enter(s.waiting, d.entity); err != nil {
		return drip.Admission{}, err
	}
	runs := false // also after a runtime.Goexit in the limiter
	defer func() {
		if !runs {
			in.leave(d.entity)
		}
	}()
	if d.back && time.Now().UnixMilli() > d.expires() { // while it waited for the places
		return drip.Admission{}, ErrExpired
	}
	a, err := ask(d.record.context(s.broken), s.waiting, s.worker, d.limited, d.expires(), in)
	d.Ticket = d.limited.Note.Ticket
	runs = err == nil && a.Delay == 0
	return a, err
}

// operate runs a message that was admitted, gives its places back and follows the outcome.
func (s *session) operate(d *delivery, user *amqp.Delivery, in rooms) error {
	out := func() worker.Outcome {
		defer s.held.wake(d.entity, d.limited.Request.Within)
		defer in.leave(d.entity)
		return s.worker.Run(d.record.context(s.broken), d.limited, func(running context.Context) error {
			return s.o.Handler.Handle(running, handed(user))
		})
	}()
	if out.Err != nil && s.broken.Err() != nil {
		return s.broken.Err() // the end of the session explains the failure
	}
	return s.follow(&d.message, out)
}

// acknowledged keeps handlers and entity functions from settling a delivery that Run settles: a second acknowledgement
// closes the channel.
type acknowledged struct{}

var errAcknowledged = errors.New("consumer: Run acknowledges the delivery, a handler must not")

func (acknowledged) Ack(uint64, bool) error        { return errAcknowledged }
func (acknowledged) Nack(uint64, bool, bool) error { return errAcknowledged }
func (acknowledged) Reject(uint64, bool) error     { return errAcknowledged }

// failed retries a message whose entity or cost function failed, or gives it up.
func (s *session) failed(d *delivery, cause error) error {
	if s.broken.Err() != nil {
		return s.broken.Err()
	}
	if d.limited == nil {
		d.limited = &worker.Message{Note: d.Note, ID: d.MessageId}
	}
	return s.follow(&d.message, s.worker.Fail(d.record.context(s.broken), d.limited, cause))
}

func (s *session) follow(m *message, out worker.Outcome) error {
	m.Note = out.Note
	switch out.Kind {
	case worker.Done:
		return nil
	case worker.Postponed:
		m.record.put(out.Delay, wasPostponed)
		return s.put(m, nil)
	case worker.Refused:
		m.record.put(out.Delay, wasThrottled)
		return s.put(m, nil)
	case worker.Waiting:
		m.record.became(wasForwarded, "")
		return s.put(m, out.Err)
	case worker.Retried:
		m.record.failed(out.Err)
		m.record.put(out.Delay, wasRetried)
		return s.put(m, out.Err)
	}
	switch {
	case errors.Is(out.Err, worker.ErrTooOld):
		return s.bury(m, reasonTooOld, nil)
	case errors.Is(out.Err, worker.ErrTooOften):
		return s.bury(m, reasonTooOften, nil)
	case errors.Is(out.Err, drip.ErrDeadline):
		return s.bury(m, reasonExpired, out.Err)
	}
	m.record.failed(out.Err)
	return s.bury(m, reasonFailed, out.Err)
}

// put sends the message to wait, unless it expires before it is due. cause is why it is tried again, if it has failed.
func (s *session) put(m *message, cause error) error {
	if m.due() > m.expires() {
		return s.bury(m, reasonExpired, cause)
	}
	err := s.store(m)
	if errors.Is(err, ErrUnpostponable) {
		return s.bury(m, reasonTooLarge, err)
	}
	return err
}

func (s *session) store(m *message) error {
	err := s.insist(math.MaxInt, s.telemetry.timed(m.record, s.dueQueue(), func(patience context.Context) error {
		return s.delays.put(s.broken, patience, m)
	}))
	m.stored = err == nil
	return err
}

// bury sends the message to the dead letters. When their queue takes no messages, the message waits and is buried later. A message that
// can wait nowhere else waits in hand: given back it would come again at once, and run again.
func (s *session) bury(m *message, reason string, cause error) error {
	m.giveUp(reason, cause)
	msg := m.deadLetter()
	publish := s.telemetry.timed(m.record, s.deadQueue(), func(patience context.Context) error {
		return s.delays.publisher.publish(s.broken, patience, func() (string, amqp.Publishing, bool) { return s.deadQueue(), msg, true })
	})
	m.record.became(wasDeadLettered, m.given)
	err := s.insist(mostRefusals, publish)
	for _, most := range []int{1024, 0} {
		if !errors.Is(err, ErrUnpostponable) {
			break
		}
		// Without its large headers the message can be published. The body stays.
		maps.DeleteFunc(msg.Headers, func(name string, v any) bool {
			n, err := fieldSize(v, 0)
			return err != nil || n > most && (name == headerKept || !ours(name))
		})
		err = s.insist(mostRefusals, publish)
	}
	if errors.Is(err, errRefused) || errors.Is(err, errSilent) {
		if s.burying.Fails(err) {
			s.o.Logger.Warn("the dead letters take no messages", "reason", m.given, "message_id", m.MessageId, "error", err)
		}
		m.postponeBy(sleep.Jitter(buriedLate))
		m.record.became(wasForwarded, "")
		if err = s.store(m); !errors.Is(err, ErrUnpostponable) {
			return err
		}
		m.record.became(wasDeadLettered, m.given)
		err = s.insist(math.MaxInt, publish)
	}
	if err == nil && s.burying.Works() {
		s.o.Logger.Info("the dead letters take messages again")
	}
	if err == nil && m.given != reasonFailed { // failed logs that reason
		s.o.Logger.WarnContext(m.record.context(s.broken), "a message went to the dead letters", "reason", m.given, "message_id", m.MessageId, "postponements", m.Postponements, "age", m.Age().String())
	}
	return err
}

// buriedLate is after how long a message is buried that the dead letters did not take.
const buriedLate = time.Minute

// insist repeats a publishing until it succeeds, cannot, or was refused most times. It declares a deleted due or dead-letter
// queue again. It gives up when the session is broken, because the broker will deliver the message again. It also gives up when
// its patience ends, because waiting does or the message has been in hand for long: then the message is given back. Not
// sooner: the broker would deliver it again at once, and a quorum queue with a delivery limit would soon drop it.
func (s *session) insist(most int, publish func(patience context.Context) error) error {
	patience, end := context.WithTimeout(s.waiting, inHand) // the broker may accept no messages for longer
	defer end()
	declaring, end := both(s.broken, patience)
	defer end()
	refusals := 0
	for backoff := firstBackoff; ; backoff = min(2*backoff, longestBackoff) {
		if s.broken.Err() != nil {
			return s.broken.Err()
		}
		err := publish(patience)
		if errors.Is(err, errUnroutable) {
			if err = s.delays.publisher.declare(declaring, s.declareOwn); err == nil {
				err = publish(patience)
			} else if refusesDeclaration(err) {
				err = fmt.Errorf("%w: %w", errRefused, err)
			}
		}
		if err == nil || errors.Is(err, ErrUnpostponable) || errors.Is(err, errTooLarge) {
			if s.publishing.Works() {
				s.o.Logger.Info("messages are published again")
			}
			return err
		}
		if s.broken.Err() == nil && s.publishing.Fails(err) {
			s.o.Logger.Warn("cannot publish, will try again", "error", err)
		}
		if errors.Is(err, errRefused) || errors.Is(err, errSilent) {
			if refusals++; refusals == most {
				return err
			}
		}
		if !sleep.For(patience, sleep.Jitter(backoff)) {
			return err
		}
	}
}

// mostRefusals is how often a queue may refuse a message before the message goes elsewhere.
const mostRefusals = 3
