package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A message whose own expiration ends before it may run goes to the dead letters, and its slot to others. One that may run
// before is handled.
func TestExpiration(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Hour})
	var h ledger
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Entity: oneShop, Handler: &h})
	b.publish(queue, amqp.Publishing{MessageId: "runs", Expiration: "60000"})
	eventually(t, "the first runs", func() bool { return h.count() == 1 })
	b.publish(queue, amqp.Publishing{MessageId: "expires", Expiration: "1000", Headers: amqp.Table{"shop": "a"}})
	d := b.letter(queue)
	if d.MessageId != "expires" || d.Headers[headerReason] != reasonExpired || d.Headers[headerExpiration] != "1000" || d.Headers["shop"] != "a" {
		t.Errorf("the dead letter is %s: %v", d.MessageId, d.Headers)
	}
	stop()
	unused(t, bucket)
	if b.ready(queue) != 0 || h.count() != 1 {
		t.Errorf("%d messages are left, %d were handled", b.ready(queue), h.count())
	}
}

// closesLater closes the entity "late" for a moment before its first message asks, and for longer when that message has a slot.
type closesLater struct {
	*drip.Bucket
	asked atomic.Bool
}

func (l *closesLater) Admit(ctx context.Context, entity string, r drip.Request) (a drip.Admission, err error) {
	if entity != "late" || l.asked.Swap(true) {
		return l.Bucket.Admit(ctx, entity, r)
	}
	if err = l.Throttled(ctx, entity, 500*time.Millisecond); err == nil {
		a, err = l.Bucket.Admit(ctx, entity, r)
	}
	return a, errors.Join(err, l.Throttled(ctx, entity, patience-time.Second))
}

// A message that is back and would have to wait past its own expiration does not wait in hand either.
func TestExpirationInHand(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10})
	var h ledger
	running(t, Options{URL: b.url, Queue: queue, Limiter: &closesLater{Bucket: bucket}, Handler: &h})
	b.publish(queue, amqp.Publishing{MessageId: "first"})
	eventually(t, "it consumes", func() bool { return h.count() == 1 }) // else the message might expire in the work queue
	b.publish(queue, amqp.Publishing{MessageId: "late", Expiration: "2000"})
	b.expires(queue, &h)
}

// expires waits until a message is a dead letter because it has expired. Only one other has been handled.
func (b *broker) expires(queue string, h *ledger) {
	b.t.Helper()
	eventually(b.t, "it is handled, or a dead letter", func() bool { return h.count() > 1 || b.count(queue+".drip.dead") > 0 })
	if h.count() > 1 {
		b.t.Fatal("it was handled after its expiration")
	}
	if d := b.letter(queue); d.Headers[headerReason] != reasonExpired {
		b.t.Errorf("the reason is %v", d.Headers[headerReason])
	}
}

// Nor does it run if its own expiration ends while it waits for a place.
func TestExpirationWithoutAPlace(t *testing.T) {
	b, queue := beside(t)
	var h ledger
	begun, end := make(chan bool), make(chan bool)
	c := made(t, Options{URL: b.url, Queue: queue, Handlers: 1, Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
		if d.MessageId == "other" {
			begun <- true
			<-end
		}
		return h.Handle(ctx, d)
	})})
	consuming(t, c)
	b.publish(queue, amqp.Publishing{MessageId: "other"})
	<-begun
	const expiration = time.Second
	b.publish(queue+".drip.due", amqp.Publishing{MessageId: "late", Headers: amqp.Table{headerNote: fmt.Sprintf(" key=%s expiration=%d", queue, expiration.Milliseconds())}})
	eventually(t, "it waits for the place", func() bool {
		c.handlers.mu.Lock()
		waiting := len(c.handlers.line)
		c.handlers.mu.Unlock()
		return waiting == 1 || b.count(queue+".drip.dead") > 0 // on a slow machine it expires before
	})
	time.Sleep(expiration + 2*time.Millisecond)
	close(end)
	b.expires(queue, &h)
}

// Behind Limit such a message is an error that is permanent, whether that shows when it is put off or when it is back.
func TestLimitExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, err := newDelayQueues(DelayQueuesOptions{URL: "amqp://localhost/", Queue: "orders"}, quiet)
		must(t, err)
		bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Hour})
		var h ledger
		limit := Limit(bucket, oneShop, q)(&h)
		must(t, limit.Handle(t.Context(), &amqp.Delivery{Expiration: "1000"}))
		err = limit.Handle(t.Context(), &amqp.Delivery{Expiration: "1000"})
		if !errors.Is(err, ErrExpired) || !IsPermanent(err) {
			t.Errorf("Handle = %v of one that is to wait for an hour", err)
		}
		m := open(amqp.Delivery{Expiration: "1000"}, time.Now(), true)
		time.Sleep(2 * time.Second)
		d := asDelivery(m.copy())
		if err := limit.Handle(t.Context(), &d); !errors.Is(err, ErrExpired) {
			t.Errorf("Handle = %v of one that is back too late", err)
		}
		unused(t, bucket)
		if h.handled[""] != 1 {
			t.Errorf("%d were handled", h.handled[""])
		}
	})
}

// Headers that a publisher has named like ours are the message's: in the handler, after a postponement, in the dead letter.
// Without the note also one that a dead letter has makes no dead letter.
func TestHeadersNamedLikeOurs(t *testing.T) {
	kept := amqp.Table{
		headerReason: "refund", headerAttempts: int64(99), headerExpiration: "1000", "x-drip-ticket": "theirs", "x-drip-reasons": "many",
	}
	theirs := amqp.Table{"X-Drip": "theirs"}
	maps.Copy(theirs, kept)
	d := amqp.Delivery{Headers: owned(theirs).(amqp.Table), RoutingKey: "orders"}
	now := time.Now()
	for _, trusted := range []bool{false, true} {
		m := open(d, now, trusted)
		if !reflect.DeepEqual(m.Headers, theirs) || m.Expiration != "" || m.Attempts != 0 || !m.Ticket.IsZero() {
			t.Errorf("the message is %+v", m)
		}
	}
	m := open(d, now, false)
	for range 3 {
		m = open(asDelivery(m.copy()), now, true)
	}
	if !reflect.DeepEqual(m.Headers, theirs) {
		t.Errorf("back from a delay queue it has %v", m.Headers)
	}
	m.giveUp(reasonFailed, errors.New("no such luck"))
	p := m.deadLetter()
	if p.Headers[headerAttempts] != int64(0) || !reflect.DeepEqual(p.Headers[headerKept], kept) {
		t.Errorf("the dead letter has %v", p.Headers)
	}
	if m := open(amqp.Delivery{Headers: p.Headers}, now, false); !reflect.DeepEqual(m.Headers, theirs) {
		t.Errorf("tried again it has %v", m.Headers)
	}
}

// A dead letter that is moved to the work queue, or to the due queue, is tried again exactly as it was published. A user who
// may only publish through a named exchange cannot forge such a message.
func TestDeadLetterIsTriedAgain(t *testing.T) {
	b, queue := beside(t)
	exchange := queue + ".exchange"
	b.must(b.ch.ExchangeDeclare(exchange, "direct", false, true, false, false, nil))
	b.must(b.ch.QueueBind(queue, "shop.a", exchange, false, nil))
	var mu sync.Mutex
	var got []amqp.Delivery
	stop := running(t, Options{URL: b.url, Queue: queue, RetryDelay: time.Millisecond, Attempts: 2,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if OperationOf(ctx).Attempts == 0 {
				got = append(got, *d)
			}
			return errors.New("no such luck")
		})})
	want := amqp.Publishing{
		Headers:   amqp.Table{"shop": "a", "CC": []any{"nowhere"}, "x-death": []any{amqp.Table{"queue": "theirs", "count": int64(2)}}, "x-drip-own": "theirs"},
		MessageId: "m", Expiration: "3600000", UserId: "guest", Priority: 3, Body: []byte("body"),
	}
	b.must(b.ch.Publish(exchange, "shop.a", true, false, want))
	letter := func() amqp.Publishing {
		d := b.letter(queue)
		if d.Headers[headerAttempts] != int64(2) || d.Headers[headerReason] != reasonFailed {
			t.Errorf("the dead letter says %v", d.Headers)
		}
		return amqp.Publishing{Headers: d.Headers, MessageId: d.MessageId, Priority: d.Priority, Body: d.Body}
	}
	b.publish(queue+".drip.due", letter())
	b.publish(queue, letter())
	forged := letter()
	b.must(b.ch.Publish(exchange, "shop.a", true, false, amqp.Publishing{Headers: forged.Headers, MessageId: "forged"}))
	b.letter(queue)
	stop()
	for i, d := range got {
		d.Acknowledger, d.ConsumerTag, d.DeliveryTag, d.Redelivered = nil, "", 0, false
		if d.MessageId == "forged" {
			if d.UserId != "" || d.Exchange != exchange {
				t.Errorf("a message passes for a dead letter of %q", d.UserId)
			}
			continue
		}
		if w := (amqp.Delivery{Headers: want.Headers, MessageId: "m", Expiration: "3600000", UserId: "guest", Priority: 3, Body: []byte("body"), Exchange: exchange, RoutingKey: "shop.a"}); !reflect.DeepEqual(d, w) {
			t.Errorf("delivery %d is\n%+v, published was\n%+v", i, d, w)
		}
	}
	if len(got) != 4 {
		t.Errorf("they were tried %d times, want 4", len(got))
	}
}

// So is a dead letter that the broker has made, because the due queue had delivered it too often.
func TestDeadLetterOfTheBrokerIsTriedAgain(t *testing.T) {
	server, b := alone(t)
	const queue, due = "orders", "orders.drip.due"
	ctl(t, server, "set_policy", "--apply-to", "queues", "limit", `\.drip\.due$`, `{"delivery-limit":1}`)
	stop := running(t, Options{URL: b.url, Queue: queue})
	begun(t, b, queue)
	stop()
	want := amqp.Delivery{
		Headers:   amqp.Table{"shop": "a", "x-death": []any{amqp.Table{"queue": "theirs"}}},
		MessageId: "m", Expiration: "3600000", Exchange: "shops", RoutingKey: "shop.a", Body: []byte("body"),
	}
	m := open(want, time.Now(), false)
	m.Postponements = 1
	b.publish(due, m.copy())
	eventually(t, "it is a dead letter", func() bool { // of processes that it kills
		d, ok, err := b.ch.Get(due, false)
		b.must(err)
		if ok {
			b.must(d.Nack(false, true))
		}
		return b.count(queue+".drip.dead") == 1
	})
	letter := b.letter(queue)
	for _, to := range []string{due, queue} {
		got := make(chan amqp.Delivery, 1)
		stop := running(t, Options{URL: b.url, Queue: queue, Limiter: postponing(1, time.Millisecond), MaxPostponements: 1,
			Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error { got <- *d; return nil })})
		b.publish(to, amqp.Publishing{Headers: letter.Headers, MessageId: letter.MessageId, Body: letter.Body})
		eventually(t, "it ends", func() bool { return len(got) == 1 || b.count(queue+".drip.dead") == 1 })
		stop()
		if len(got) == 0 {
			t.Fatalf("back in %s it is a dead letter again: %v", to, b.letter(queue).Headers[headerReason])
		}
		d := <-got
		if d.Exchange != want.Exchange || d.RoutingKey != want.RoutingKey || d.Expiration != want.Expiration || !reflect.DeepEqual(d.Headers, want.Headers) {
			t.Errorf("from %s comes %+v, published was %+v", to, d, want)
		}
	}
}

// Of the messages that wait in hand high priorities go first.
func TestPriorityInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &heldQueue{most: 10}
		order := make(chan uint8, 10)
		for _, priority := range []uint8{0, 9, 5, 9, 0} {
			s := k.enter("shop", priority)
			go func() { k.wait(t.Context(), s, forToken); order <- priority; k.leave(s) }()
			synctest.Wait()
		}
		for _, want := range []uint8{9, 9, 5, 0, 0} {
			k.wake("shop", nil)
			if got := <-order; got != want {
				t.Errorf("priority %d is woken, want %d", got, want)
			}
			synctest.Wait()
		}
	})
}

// A message whose own expiration ends while the limiter gives no answer does not run when it answers again.
func TestExpirationInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, err := newDelayQueues(DelayQueuesOptions{URL: "amqp://localhost/", Queue: "orders"}, quiet)
		must(t, err)
		began := time.Now()
		var away atomic.Bool
		away.Store(true)
		time.AfterFunc(time.Minute, func() { away.Store(false) })
		limiter := wayward(buckettest.New(t, drip.Options{Size: 10}), &away)
		var h ledger
		err = Limit(limiter, oneShop, q)(&h).Handle(t.Context(), &amqp.Delivery{Expiration: "5000"})
		if !errors.Is(err, ErrExpired) || !IsPermanent(err) || h.count() != 0 {
			t.Errorf("after %v Handle = %v, and %d were handled; want %v", time.Since(began), err, h.count(), ErrExpired)
		}
	})
}
