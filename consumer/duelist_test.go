package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/wheel"
)

// Of the messages that are due at once, high priorities come first. Equal priorities come in the order in which they were due.
func TestHeldPriority(t *testing.T) {
	var h dueList
	for i, priority := range []uint8{0, 9, 0, 5, 9} {
		d := &delivery{at: int64(i)}
		d.Priority = priority
		h.add(d)
	}
	var got []int64
	h.release(3, func(d *delivery) { got = append(got, d.at) })
	if want := []int64{1, 3, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("released are %v, want %v", got, want)
	}
}

// offline is a Consumer without a broker.
func offline(t testing.TB, o Options) *Consumer {
	t.Helper()
	o.URL, o.Queue = "amqp://localhost", "orders"
	return made(t, o)
}

// taking is a session without a broker.
func taking(t *testing.T, o Options) *session {
	t.Helper()
	c := offline(t, o)
	c.delays.publisher.connect = func(context.Context) (*amqp.Connection, error) { return nil, errors.New("no broker") }
	s := &session{Consumer: c}
	s.waiting, s.stopWaiting = context.WithCancel(t.Context())
	s.broken, s.ruined = context.WithCancel(t.Context())
	t.Cleanup(s.ruined)
	t.Cleanup(s.stopWaiting)
	return s
}

// takes lets a session take these deliveries, and more from the channel. end ends it when all are settled.
func (s *session) takes(from acknowledger, enough int, back bool, all ...amqp.Delivery) (more chan<- amqp.Delivery, end func()) {
	deliveries := make(chan amqp.Delivery, len(all)+1)
	for _, d := range all {
		deliveries <- d
	}
	ended := make(chan struct{})
	go func() { defer close(ended); s.take(newSettling(from, enough), deliveries, back) }()
	return deliveries, func() {
		s.stopWaiting()
		close(deliveries)
		<-ended
		s.inHand.Wait()
	}
}

// A message that is back early is asked about when it is due, to the microsecond. When nothing more is to wait it is given
// back at once.
func TestTakeHolds(t *testing.T) {
	for _, few := range []bool{false, true} {
		t.Run(fmt.Sprint("few queues ", few), func(t *testing.T) { takeHolds(t, few) })
	}
}

func takeHolds(t *testing.T, few bool) {
	synctest.Test(t, func(t *testing.T) {
		const n = 500
		var mu sync.Mutex
		asked, due := map[string]time.Time{}, map[string]time.Time{}
		s := taking(t, Options{FewQueues: few, Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			asked[d.MessageId] = time.Now()
			return nil
		})})
		b := newStrict(t, 0)
		deliveries := make(chan amqp.Delivery, n+1)
		send := func(tag uint64, delay time.Duration) {
			m := message{Delivery: numberedDelivery(tag)}
			m.postponeBy(delay)
			m.First = time.Now()
			due[m.MessageId] = m.Due
			m.Headers = amqp.Table{headerNote: m.note()}
			b.outstanding[tag], b.wanted[tag] = true, tag <= n
			deliveries <- m.Delivery
		}
		ended := make(chan struct{})
		go func() { defer close(ended); s.take(newSettling(b, 1), deliveries, true) }()
		rnd := rand.New(rand.NewPCG(3, 4))
		longest := time.Duration(s.delays.layout.Rings[0].Width+early) * time.Millisecond
		for tag := range uint64(n) {
			delay := time.Duration(rnd.Int64N(int64(longest)))
			for now := time.Now().UnixMilli(); ; delay /= 2 {
				if _, wait := placeFor(s.delays.layout, now, now+delay.Milliseconds()+2, true); !wait {
					break // no delay queue would have it still
				}
			}
			send(tag+1, delay)
			time.Sleep(time.Duration(rnd.Int64N(int64(3 * time.Millisecond))))
			synctest.Wait()
		}
		time.Sleep(longest)
		synctest.Wait()
		for id, at := range due {
			if asked[id] != at {
				t.Errorf("message %s is due at %v and was asked about at %v", id, at, asked[id])
			}
		}
		if len(b.outstanding) > 0 {
			t.Errorf("%d are not settled", len(b.outstanding))
		}
		send(n+1, early*time.Millisecond)
		synctest.Wait()
		close(deliveries)
		<-ended
		s.inHand.Wait()
		if len(asked) != n || len(b.outstanding) > 0 {
			t.Errorf("%d were asked about, %d are outstanding; want that the last was given back", len(asked), len(b.outstanding))
		}
	})
}

// A message that came too early to be held never runs early, even if the delay queues can no longer serve it by the time a
// worker processes it.
func TestFarNeverRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := taking(t, Options{Limiter: delayed(func() time.Duration { t.Error("was asked about"); return 0 })})
		b := newStrict(t, 1)
		from := newSettling(b, 1)
		d := &delivery{message: message{Delivery: numberedDelivery(1)}, from: from, tag: from.received(1), back: true, far: true}
		d.postponeBy(100 * time.Millisecond)
		if _, wait := placeFor(&wheel.Standard, time.Now().UnixMilli(), d.due(), true); wait {
			t.Fatal("the delay queues serve it")
		}
		go s.process(d)
		time.Sleep(time.Minute)
		s.stopWaiting()
		synctest.Wait()
		if len(b.outstanding) > 0 {
			t.Error("it was not given back")
		}
	})
}

// A policy may expire the messages of a delay queue before their slot. Such a message is held for a while before it waits again,
// because the queue would expire it at once. A message that comes back for its next trip in time waits again at once.
func TestExpiredByAPolicy(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := taking(t, Options{})
			var puts atomic.Int64
			s.delays.publisher.connect = func(context.Context) (*amqp.Connection, error) {
				puts.Add(1)
				return nil, errors.New("no broker")
			}
			d := numberedDelivery(1)
			m := message{Delivery: d}
			m.postponeBy(time.Hour)
			p, _ := placeFor(s.delays.layout, time.Now().UnixMilli(), m.due(), true)
			if !early {
				p.queue = time.Now().UnixMilli() / s.delays.layout.Rings[p.ring].Width % s.delays.layout.Rings[p.ring].Slots
			}
			d.Headers = amqp.Table{headerNote: m.note(), "x-first-death-queue": s.delays.name(p), "x-first-death-reason": "expired"}
			_, end := s.takes(newStrict(t, 1), 1, true, d)
			synctest.Wait()
			if began := puts.Load() > 0; began == early {
				t.Errorf("back early: %v, put to wait at once: %v", early, began)
			}
			time.Sleep(patience)
			synctest.Wait()
			if puts.Load() == 0 {
				t.Error("it does not wait again")
			}
			end()
		})
	}
}

func numberedDelivery(tag uint64) amqp.Delivery {
	return amqp.Delivery{DeliveryTag: tag, MessageId: numbered(int(tag), int(tag)+1)[0].MessageId}
}

func numberedDeliveries(n int) (all []amqp.Delivery) {
	for i := range n {
		all = append(all, numberedDelivery(uint64(i+1)))
	}
	return all
}
