package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

const lostLine = "the connection or a channel was lost"

// looping runs a loop around Limit until stop. It fails the test if the loop ends before: its connection was closed.
func looping(b *broker, queue string, l Limiter, h Handler) (stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- looped{&conforming{b.url, queue}}.loop(ctx, l, oneShop, h) }()
	stop = sync.OnceFunc(func() {
		select {
		case err := <-ended:
			b.t.Errorf("the loop has ended: %v", err)
		default:
			cancel()
			<-ended
		}
	})
	b.t.Cleanup(stop)
	eventually(b.t, "the loop consumes", func() bool { return b.consumers(queue) == 1 })
	return stop
}

// nested is a header with tables that deep.
func nested(depth int) amqp.Table {
	t := amqp.Table{}
	for range depth {
		t = amqp.Table{"": t}
	}
	return t
}

// large returns messages whose headers leave more or less of a frame to the headers that the broker and drip add. For a frame
// that is too long the broker would close the connection, and fail everything else that is on its way.
func large() (messages []amqp.Publishing) {
	for n := 126_000; n <= 130_900; n += 350 {
		messages = append(messages, amqp.Publishing{MessageId: fmt.Sprint("large", n), Headers: amqp.Table{"large": strings.Repeat("x", n)}, Body: []byte("body")})
	}
	return messages
}

// A message with headers as large or as deep as they can be is postponed and handled or goes to the dead letters. It affects
// no other message and no connection.
func TestHeadersCostTheirMessage(t *testing.T) {
	poisons := append(large(),
		amqp.Publishing{MessageId: "deep", Headers: amqp.Table{"deep": nested(5_000), "shop": "a"}},
		amqp.Publishing{MessageId: "deep enough", Headers: amqp.Table{"deep": nested(deepest - 2)}})
	t.Run("Consumer", func(t *testing.T) {
		bothTypes(t, func(t *testing.T, b *broker, queues QueueType, queue string) {
			var l ledger
			var log lines
			limiter := each(t, func(int) time.Duration { return 1200 * time.Millisecond })
			limiter.copies = true
			stop := running(t, Options{URL: b.url, Queue: queue, QueueType: queues, Limiter: limiter, Handler: &l, Logger: slog.New(&log)})
			b.publish(queue, numbered(0, 50)...)
			b.publish(queue, poisons...)
			b.publish(queue, numbered(50, 100)...)
			dead := queue + ".drip.dead"
			eventually(t, "each is handled or a dead letter", func() bool { return l.count()+b.count(dead) == 100+len(poisons) })
			stop()
			if l.among(0, 100) != 100 || l.twice() != 0 || log.count(lostLine) != 0 {
				t.Errorf("of 100 others %d were handled, %d of all twice; %d connections were lost", l.among(0, 100), l.twice(), log.count(lostLine))
			}
			buried := 0
			for _, d := range b.takeAll(dead) {
				buried++
				if d.Headers[headerReason] != "too large to postpone" || d.Headers[headerError] == nil || d.MessageId != "deep" && string(d.Body) != "body" {
					t.Errorf("the dead letter of %s says %v", d.MessageId, d.Headers)
				}
				if shop := d.Headers["shop"]; d.MessageId == "deep" && (shop != "a" || d.Headers["deep"] != nil) {
					t.Errorf("the dead letter of %s has the shop %v and what is too deep: %v", d.MessageId, shop, d.Headers["deep"] != nil)
				}
				l.Handle(t.Context(), &d)
			}
			if buried < 2 || l.handled["large126000"] != 1 || l.handled["deep enough"] != 1 || l.handled["deep"] != 1 || l.twice() != 0 {
				t.Errorf("%d are dead letters; handled or buried were %v", buried, l.handled)
			}
		})
	})
	t.Run("Limit", func(t *testing.T) {
		b, queue := beside(t)
		dead := queue + ".rejected"
		b.replace(queue, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
		_, err := b.ch.QueueDeclare(dead, false, true, false, false, nil)
		b.must(err)
		var l ledger
		bucket := buckettest.New(t, drip.Options{Size: 1000, RefreshRate: 1000, RefreshInterval: 3 * time.Second})
		stop := looping(b, queue, bucket, &l)
		b.must(bucket.Throttled(t.Context(), "shop", 5*time.Second))
		b.publish(queue, numbered(0, 50)...)
		b.publish(queue, poisons...)
		b.publish(queue, numbered(50, 100)...)
		eventually(t, "each is handled or rejected", func() bool { return l.count()+b.count(dead) == 100+len(poisons) })
		stop()
		if n := b.count(dead); l.among(0, 100) != 100 || n < 2 {
			t.Errorf("of 100 others %d were handled, %d poisoned ones rejected", l.among(0, 100), n)
		}
	})
}

// A handler may end its goroutine or change its message's headers and body: the message is still settled, with its original ones.
func TestHandlersEnd(t *testing.T) {
	b, queue := beside(t)
	headers := amqp.Table{"shop": "a", "list": []any{"x", amqp.Table{"deep": []byte("y")}}}
	var mu sync.Mutex
	seen := map[string]int{}
	spoil := func(d *amqp.Delivery) {
		mu.Lock()
		defer mu.Unlock()
		seen[d.MessageId]++
		if !reflect.DeepEqual(d.Headers, headers) {
			t.Errorf("%s: the handler sees %v", d.MessageId, d.Headers)
		}
		if string(d.Body) != "body" {
			t.Errorf("%s: the handler sees %q", d.MessageId, d.Body)
		}
		clear(d.Body) // as one that decrypts in place
		d.Headers["list"].([]any)[1].(amqp.Table)["deep"].([]byte)[0] = 0
		d.Headers["unknown"] = struct{}{}
		delete(d.Headers, "shop")
	}
	handler := HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
		spoil(d)
		if d.MessageId == "exits" {
			runtime.Goexit()
		}
		return errors.New("no such luck")
	})
	limiter := &free{}
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: handler,
		Prefetch: 1, Hold: 1, Attempts: 3, RetryDelay: time.Millisecond})
	for _, id := range []string{"exits", "fails"} {
		b.publish(queue, amqp.Publishing{MessageId: id, Headers: headers, Body: []byte("body")})
	}
	for range 2 {
		d := b.letter(queue)
		want := "no such luck"
		if d.MessageId == "exits" {
			want = errGoexit.Error()
		}
		if d.Headers[headerReason] != reasonFailed || d.Headers[headerError] != want || d.Headers["shop"] != "a" || string(d.Body) != "body" {
			t.Errorf("the dead letter of %s says %v, %q", d.MessageId, d.Headers, d.Body)
		}
	}
	stop()
	if want := map[string]int{"exits": 3, "fails": 3}; !reflect.DeepEqual(seen, want) {
		t.Errorf("handled %v times, want %v", seen, want)
	}
	if n := limiter.Out.Load(); n != 0 || b.ready(queue) != 0 {
		t.Errorf("%d tokens were not returned, %d messages are left", n, b.ready(queue))
	}

	d := amqp.Delivery{MessageId: "limit", Headers: owned(headers).(amqp.Table), Body: []byte("body")}
	var put amqp.Delivery
	h := Limit(&free{}, byID, postponer(func(d *amqp.Delivery) error { put = *d; return nil }))(HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
		spoil(d)
		return Throttled(time.Second, nil)
	}))
	if err := h.Handle(t.Context(), &d); err != nil || !reflect.DeepEqual(put.Headers, headers) || string(put.Body) != "body" {
		t.Errorf("Handle = %v, postponed was a message with %v, %q", err, put.Headers, put.Body)
	}
}

type postponer func(*amqp.Delivery) error

func (p postponer) Postpone(_ context.Context, d *amqp.Delivery, _ time.Duration) error { return p(d) }

// Headers that AMQP cannot encode, such as an entity function may set, are an error before they are sent.
func TestUnknownTypes(t *testing.T) {
	for name, h := range map[string]amqp.Table{
		"a struct": {"x": struct{}{}}, "in a list": {"x": []any{make(chan int)}}, "in a table": {"x": amqp.Table{"y": []string{}}},
		"a long name": {strings.Repeat("x", 256): 1}, "too deep": nested(deepest + 1),
	} {
		if err := publishable(&amqp.Publishing{Headers: h}, "orders", 0); !errors.Is(err, ErrUnpostponable) || !IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := publishable(&amqp.Publishing{Headers: everyType}, "orders", 131_072); err != nil {
		t.Errorf("every type there is: %v", err)
	}
}

// Delay queues that take no messages are avoided: their messages run when they are due, and nobody waits for them.
func TestDelayQueuesRefuse(t *testing.T) {
	for name, c := range map[string]struct {
		queues QueueType
		n      int
		refuse func(t *testing.T, server *servers.RabbitMQ)
	}{
		"a policy": {Classic, 300, func(t *testing.T, server *servers.RabbitMQ) {
			ctl(t, server, "set_policy", "short", `\.drip\..*s\.\d\d$`, `{"max-length": 1, "overflow": "reject-publish"}`, "--apply-to", "queues")
		}},
		"no leaders": {Quorum, 300, func(t *testing.T, server *servers.RabbitMQ) {
			const suspend = `[sys:suspend(element(1, amqqueue:get_pid(Q))) || Q <- rabbit_amqqueue:list(), binary:match(element(4, amqqueue:get_name(Q)), <<".250ms.">>) =/= nomatch].`
			ctl(t, server, "eval", suspend)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server, b := alone(t)
			var l ledger
			limiter := each(t, func(i int) time.Duration { return time.Duration(i%3) * 2 * time.Second })
			limiter.copies = true
			consumer := made(t, Options{URL: b.url, Queue: "orders", QueueType: c.queues, Limiter: limiter, Handler: &l, Prefetch: 20})
			consumer.delays.publisher.timeout = time.Second
			stop := consuming(t, consumer)
			begun(t, b, "orders")
			c.refuse(t, server)
			b.publish("orders", numbered(0, c.n)...)
			eventually(t, "all are handled", func() bool { return l.count() == c.n })
			stop()
			if dead := b.count("orders.drip.dead"); dead != 0 {
				t.Errorf("%d were given up", dead)
			}
		})
	}
}

// If delay queues take no messages, a loop's messages wait in other, later queues.
func TestDelayQueuesRefuseALoop(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	var l ledger
	bucket := buckettest.New(t, drip.Options{Size: 100, RefreshRate: 100})
	looping(b, queue, bucket, &l)
	b.must(bucket.Throttled(t.Context(), "shop", 5*time.Second))
	ctl(t, server, "set_policy", "short", `\.250ms\.`, `{"max-length": 1, "overflow": "reject-publish"}`, "--apply-to", "queues")
	b.publish(queue, numbered(0, 50)...)
	eventually(t, "all are handled", func() bool { return l.count() == 50 })
}

// Where the virtual host has no more queues, a long delay takes several trips through those there are.
func TestNoMoreQueues(t *testing.T) {
	server, b := alone(t)
	limit := func(queues int) {
		t.Helper()
		ctl(t, server, "set_vhost_limits", "-p", "/", fmt.Sprintf(`{"max-queues": %d}`, queues))
	}
	var l ledger
	o := Options{URL: b.url, Queue: "orders", Handler: &l, Prefetch: 2,
		Limiter: each(t, func(i int) time.Duration { return time.Duration(i%2) * time.Hour })}
	limit(20)
	if err := made(t, o).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "raise the limit of queues") {
		t.Errorf("Run = %v with room for 20 queues", err)
	}
	limit(1 + 2 + 64)
	stop := running(t, o)
	b.publish("orders", numbered(0, 20)...)
	eventually(t, "those without a delay are handled", func() bool { return l.count() == 10 })
	eventually(t, "the others wait", func() bool { return b.waitingIn("orders") == 10 })
	stop()
}

// A booking ends with its message. When a consumer stops there are no bookings for messages that waited in hand with a ticket
// of this process, however often it restarts. There are none when all messages are handled.
func TestRestartsLeaveNoBookings(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 1000})
	const n = 20
	var l ledger
	consume := func() (*Consumer, func()) {
		c := made(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Entity: oneShop, Handler: &l})
		return c, consuming(t, c)
	}
	b.publish(queue, numbered(0, n)...)
	for range 4 {
		b.must(bucket.Pause(t.Context(), "shop", 4*time.Second))
		c, stop := consume()
		eventually(t, "all wait in hand", func() bool {
			b.must(bucket.Pause(t.Context(), "shop", 4*time.Second))
			c.held.mu.Lock()
			defer c.held.mu.Unlock()
			return len(c.held.slots) == n
		})
		stop()
		unused(t, bucket)
	}
	b.must(bucket.Resume(t.Context(), "shop"))
	_, stop := consume()
	eventually(t, "all are handled", func() bool { return l.count() == n })
	stop()
	unused(t, bucket)
}

// A message that cannot be put off holds no slot.
func TestLimitCancelsWhatIsNotPostponed(t *testing.T) {
	// Booked counts the capacity of an hour that nobody uses, too. So no slot may be in the hour after the next.
	clock := func() time.Time { return time.Unix(1800, 0) }
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Hour, Clock: clock})
	h := Limit(bucket, oneShop, postponer(func(*amqp.Delivery) error { return errors.New("no broker") }))(HandlerFunc(func(context.Context, *amqp.Delivery) error {
		return Throttled(time.Hour, nil)
	}))
	for range 50 {
		if err := h.Handle(t.Context(), &amqp.Delivery{}); err == nil {
			t.Fatal("a message was postponed")
		}
	}
	unused(t, bucket)
}

// An outage of the storage that outlasts a lease spends no attempt.
func TestOutageSpendsNoAttempt(t *testing.T) {
	b, queue := beside(t)
	var away atomic.Bool
	bucket := buckettest.New(t, drip.Options{Size: 100, Lease: 300 * time.Millisecond})
	var l ledger
	var begun, told atomic.Int64
	stop := running(t, Options{
		URL: b.url, Queue: queue, Limiter: wayward(bucket, &away), Entity: oneShop, Attempts: 1, RetryDelay: 10 * time.Millisecond,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if begun.Add(1) <= 10 {
				<-ctx.Done()
				told.Add(1)
				return ctx.Err()
			}
			return l.Handle(ctx, d)
		}),
	})
	b.publish(queue, numbered(0, 10)...)
	eventually(t, "all have begun", func() bool { return begun.Load() >= 10 })
	away.Store(true)
	eventually(t, "their leases are lost", func() bool { return told.Load() == 10 })
	away.Store(false)
	eventually(t, "all are handled", func() bool { return l.count() == 10 })
	stop()
	if n := b.count(queue + ".drip.dead"); n != 0 {
		t.Errorf("%d were given up", n)
	}
}

// wayward is a bucket that fails while it is away.
func wayward(b *drip.Bucket, away *atomic.Bool) *buckettest.Hooked {
	return &buckettest.Hooked{Bucket: b, Before: func(context.Context, string, int) error {
		if away.Load() {
			return errors.New("the storage is away")
		}
		return nil
	}}
}

// A message that waits in hand for a token does not reach the broker's consumer_timeout, which would close the channel for all.
func TestWaitingInHandIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Size: 1000, Concurrency: 1, WaitForToken: 100 * time.Millisecond, Lease: time.Hour})
		s := taking(t, Options{Limiter: bucket})
		d := &delivery{message: open(numberedDelivery(1), time.Now(), true), back: true}
		buckettest.Runs(t, bucket, d.MessageId, drip.Request{})
		var err error
		d.limited, err = s.worker.Open(d.message.delivery(), d.Note)
		must(t, err)
		began := time.Now()
		a, err := s.admit(d, rooms{s.handlers})
		if in := time.Since(began); err != nil || a.Delay == 0 || in < patience/2 || in > patience {
			t.Errorf("it waits elsewhere, for %v, after %v in hand: %v", a.Delay, in, err)
		}
		if n := len(s.held.slots); n > 0 {
			t.Errorf("%d are held", n)
		}
	})
}

// Entities whose handlers hang leave places to others, with default options.
func TestHangingEntitiesLeavePlaces(t *testing.T) {
	bothTypes(t, func(t *testing.T, b *broker, queues QueueType, queue string) {
		bucket := buckettest.New(t, drip.Options{Size: 100, RefreshRate: 100})
		release, letGo := context.WithCancel(t.Context())
		var l ledger
		var hanging atomic.Int64
		running(t, Options{
			URL: b.url, Queue: queue, QueueType: queues, Limiter: bucket,
			Entity: byType,
			Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
				if d.Type != "fine" {
					hanging.Add(1)
					<-release.Done()
				}
				return l.Handle(ctx, d)
			}),
		})
		b.publish(queue, append(ofShops(2, 0, 500), ofType("fine", 500, 600)...)...)
		eventually(t, "the others are handled", func() bool { return l.among(500, 600) == 100 })
		if n := hanging.Load(); n < 50 || l.among(0, 500) > 0 {
			t.Errorf("%d hang, %d of them were handled", n, l.among(0, 500))
		}
		letGo()
		eventually(t, "all are handled", func() bool { return l.count() == 600 })
		if l.twice() > 0 {
			t.Errorf("%d were handled twice", l.twice())
		}
	})
}

// Handlers bounds the handlers, whatever Prefetch and Hold are.
func TestHandlersAtOnce(t *testing.T) {
	b, queue := beside(t)
	var l ledger
	var now, most atomic.Int64
	stop := running(t, Options{
		URL: b.url, Queue: queue, Handlers: 4,
		Limiter: each(t, func(i int) time.Duration { return time.Duration(i%2) * 100 * time.Millisecond }),
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(5 * time.Millisecond)
			return l.Handle(ctx, d)
		}),
	})
	b.publish(queue, numbered(0, 200)...)
	eventually(t, "all are handled", func() bool { return l.count() == 200 })
	stop()
	if most.Load() > 4 || most.Load() < 2 {
		t.Errorf("%d handlers ran at once, want up to 4", most.Load())
	}
}

// However many handlers the options allow, a message finds a place.
func TestManyHandlers(t *testing.T) {
	for _, most := range []int{1, math.MaxInt32, math.MaxInt / 2, math.MaxInt} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if err := newPlaces(most).enter(ctx, "shop"); err != nil {
			t.Errorf("with %d places: %v", most, err)
		}
		cancel()
	}
}

// An entity leaves places to others, also of few. A single place is for anybody.
func TestFewPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for most, want := range map[int]int{1: 1, 2: 1, 3: 2, 4: 3, 5: 3, 8: 6, 128: 96, 1024: 768} {
			p, took := newPlaces(most), 0
			for p.enter(t.Context(), "hangs") == nil {
				took++
			}
			if took != want {
				t.Errorf("an entity that hangs takes %d of %d places, want %d", took, most, want)
			}
			if most > 1 && p.enter(t.Context(), "other") != nil {
				t.Errorf("of %d places none is left to others", most)
			}
		}
	})
}

// A message that waits for the first place of its entity goes elsewhere when another one took that place and hangs.
func TestPlaceThatAnotherTook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(1)
		must(t, p.enter(t.Context(), "other"))
		var waiting sync.WaitGroup
		waiting.Go(func() {
			if err := p.enter(t.Context(), "hangs"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		waiting.Go(func() {
			began := time.Now()
			if err := p.enter(t.Context(), "hangs"); !errors.Is(err, errCrowded) || time.Since(began) > 5*time.Second {
				t.Errorf("enter = %v after %v", err, time.Since(began))
			}
		})
		time.Sleep(2 * time.Second)
		p.leave("other")
		waiting.Wait()
	})
}

// An entity takes three times as many places as it leaves free. Messages of an entity whose operations do not end wait
// elsewhere. Places that are given back go to the waiting entities in turn.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlaces(16)
		took := func(entity string) (n int) {
			for {
				began := time.Now()
				err := p.enter(t.Context(), entity)
				if err == nil {
					n++
					continue
				}
				if waited := time.Since(began); !errors.Is(err, errCrowded) || waited > stallAfter {
					t.Errorf("%s: %v after %v", entity, err, waited)
				}
				return n
			}
		}
		if a, b, c := took("a"), took("b"), took("c"); a != 12 || b != 3 || c != 1 {
			t.Errorf("three that hang took %d, %d and %d of 16", a, b, c)
		}
		var turns []string
		var waiting sync.WaitGroup
		for i := range 3 {
			for _, entity := range []string{"d", "e"} {
				waiting.Go(func() {
					if err := p.enter(t.Context(), entity); err == nil {
						turns = append(turns, entity)
						p.leave(entity)
					} else {
						t.Error(i, err)
					}
				})
				synctest.Wait()
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		waiting.Go(func() {
			if err := p.enter(ctx, "f"); err != context.Canceled {
				t.Errorf("enter = %v with a context that ends", err)
			}
		})
		synctest.Wait()
		cancel()
		time.Sleep(time.Minute) // none of them has a place, so they wait
		p.leave("a")
		waiting.Wait()
		if want := []string{"d", "e", "d", "e", "d", "e"}; !slices.Equal(turns, want) {
			t.Errorf("the turns were %v", turns)
		}
		for range 11 {
			p.leave("a")
		}
		for range 3 {
			p.leave("b")
		}
		p.leave("c")
		if p.taken != 0 || len(p.parties) != 0 || len(p.line) != 0 {
			t.Errorf("%d places, %d entities, %d in line are left", p.taken, len(p.parties), len(p.line))
		}
		for range 16 {
			must(t, p.enter(t.Context(), fmt.Sprint(p.taken)))
		}
		began := time.Now()
		if err := p.enter(t.Context(), "late"); !errors.Is(err, errCrowded) || time.Since(began) != inHand {
			t.Errorf("enter = %v after %v when all places are taken", err, time.Since(began))
		}
	})
}

// RabbitMQ closes the channel of a publisher whose message is larger than its max_message_size, which somebody has lowered, or
// RabbitMQ 4.0 has, since the message came. The publisher asks no more for such messages, so that others keep their channel.
// The message stays in its queue until the broker takes it.
func TestMessageThatTheBrokerNoLongerTakes(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	largest := func(n int) {
		ctl(t, server, "eval", fmt.Sprintf("application:set_env(rabbit, max_message_size, %d), persistent_term:put(max_message_size, %d).", n, n))
	}
	large := amqp.Publishing{MessageId: "large", Body: make([]byte, 5000)}
	b.publish(queue, large)
	b.publish(queue, numbered(0, 20)...)
	largest(1000)

	dead := queue + ".drip.dead"
	p, publish := publisherAt(t, b.url, time.Minute)
	if err := publish(dead, large); !errors.Is(err, errTooLarge) || !strings.Contains(err.Error(), "5000 bytes") {
		t.Errorf("the first error is %v", err)
	}
	l, err := p.acquire(t.Context(), t.Context())
	b.must(err)
	p.release()
	if err := publish(dead, large); !errors.Is(err, errTooLarge) {
		t.Errorf("the second error is %v", err)
	}
	if err := publish(dead, amqp.Publishing{}); !errors.Is(err, errUnroutable) || p.up() != l {
		t.Errorf("another message costs %v, and the channel is another one: %v", err, p.up() != l)
	}

	var done ledger
	var log lines
	run := func() (stop func()) {
		limiter := each(t, func(int) time.Duration { return 1200 * time.Millisecond })
		return running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: &done, Logger: slog.New(&log)})
	}
	stop := run()
	eventually(t, "the others are handled, and the log tells of the large one", func() bool { return done.count() == 20 && log.count(tooLargeLine) == 1 })
	stop()
	if n := b.ready(queue); n != 1 || done.among(0, 20) != 20 || log.count(tooLargeLine) != 1 {
		t.Errorf("%d are left, %d others were handled, and the log has %d lines", n, done.among(0, 20), log.count(tooLargeLine))
	}
	largest(10_000)
	stop = run()
	eventually(t, "the large one is handled, too", func() bool { return done.count() == 21 })
	stop()
}

// A message that is given up while the dead letters take no messages waits for them. No handler gets it again, not even the handler
// of a Consumer with more attempts. The dead letter tells what has happened. The log says once that the dead letters take no messages.
func TestGivenUpWhenTheDeadLettersRefuse(t *testing.T) {
	server, _ := alone(t)
	for reason, c := range map[string]struct {
		err      error
		handled  int64
		attempts int64
		text     any
	}{
		reasonFailed:   {Permanent(errors.New("no such invoice")), 1, 1, "no such invoice"},
		reasonTooOften: {Later(time.Millisecond, errors.New("busy")), 2, 0, nil},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			b := connect(t, server.URL())
			queue := b.queue()
			dead := queue + ".drip.dead"
			ctl(t, server, "set_policy", queue, "^"+dead+"$", `{"max-length": 0, "overflow": "reject-publish"}`, "--apply-to", "queues")
			handled := &failing{err: c.err}
			var log lines
			o := Options{URL: b.url, Queue: queue, QueueType: Classic, Handler: handled, Logger: slog.New(&log), MaxPostponements: 1, Attempts: 2}
			stop := running(t, o)
			begun(t, b, queue)
			b.publish(queue, amqp.Publishing{MessageId: "m", Body: []byte("body")})
			back := func() { // now instead of in a minute
				t.Helper()
				oktest.Eventually(t, 30*time.Second, "the message waits for the dead letters", func() bool {
					return handled.Load() >= c.handled && b.waitingIn(queue) == 1
				})
				for _, delays := range b.delayQueues(queue) {
					if b.count(delays) == 0 {
						continue
					}
					d, ok, err := b.ch.Get(delays, true)
					b.must(err)
					if !ok {
						continue // it has gone on to the next queue
					}
					note, _ := d.Headers[headerNote].(string)
					d.Headers[headerNote] = regexp.MustCompile(`due=\d+`).ReplaceAllString(note, "due=1")
					b.publish(queue+".drip.due", amqp.Publishing{MessageId: d.MessageId, Headers: d.Headers, Body: d.Body})
				}
			}
			back()
			oktest.Eventually(t, 30*time.Second, "it waits again", func() bool { return b.waitingIn(queue) == 1 })
			stop()
			if n := log.count("the dead letters take no messages"); n != 1 {
				t.Errorf("the log has %d lines of it", n)
			}
			o.Attempts, o.MaxPostponements = 5, 5
			running(t, o)
			ctl(t, server, "clear_policy", queue)
			back()
			letter := b.letter(queue)
			if n, h := handled.Load(), letter.Headers; n != c.handled || h[headerReason] != reason || h[headerAttempts] != c.attempts || h[headerError] != c.text {
				t.Errorf("it was handled %d times, want %d, and its dead letter says %v", n, c.handled, h)
			}
		})
	}
}

// So it waits when the queue of the dead letters is gone, and the broker does not let the Consumer declare it again.
func TestGivenUpWithoutDeadLetters(t *testing.T) {
	server, b := alone(t)
	const queue = "orders"
	handled := &failing{err: Permanent(errors.New("no such invoice"))}
	running(t, Options{URL: b.url, Queue: queue, Handler: handled})
	begun(t, b, queue)
	b.deleteAll(queue + ".drip.dead")
	ctl(t, server, "set_vhost_limits", "-p", "/", `{"max-queues": 1}`)
	b.publish(queue, amqp.Publishing{MessageId: "m"})
	oktest.Eventually(t, time.Minute, "the message waits for the dead letters", func() bool { return b.waitingIn(queue) == 1 })
	if handled.Load() != 1 || b.count(queue) != 0 {
		t.Errorf("it was handled %d times, and %d copies are left", handled.Load(), b.count(queue))
	}
}

// A message that no queue takes waits in hand. Given back it would come again at once, and a quorum queue drops a message that it
// has delivered as often as its limit allows.
func TestMessageThatNoQueueTakes(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	b.replace(queue, amqp.Table{amqp.QueueTypeArg: "quorum", "x-delivery-limit": 0})
	p, url := through(t, b.url, 0)
	refused := p.counts(func(f frame) bool { return f.fromBroker && f.is(basicNack) })
	var l ledger
	limiter := each(t, func(int) time.Duration { return time.Millisecond }) // too short for a delay queue
	running(t, Options{URL: url, Queue: queue, QueueType: Classic, Limiter: limiter, Handler: &l})
	begun(t, b, queue)
	ctl(t, server, "set_policy", queue, "^"+queue+`\.drip\.due$`, `{"max-length": 0, "overflow": "reject-publish"}`, "--apply-to", "queues")
	b.publish(queue, numbered(0, 1)...)
	oktest.Eventually(t, time.Minute, "it is refused more than a few times", func() bool { return refused.Load() > mostRefusals+1 })
	ctl(t, server, "clear_policy", queue)
	oktest.Eventually(t, time.Minute, "it is handled", func() bool { return l.count() == 1 })
}

// A message with headers that leave no room for a postponement cannot wait elsewhere for dead letters that take no messages. It
// waits in hand, and the handler does not get it again.
func TestLargeHeadersWhenTheDeadLettersRefuse(t *testing.T) {
	server, _ := alone(t)
	for reason, err := range map[string]error{reasonFailed: Permanent(errors.New("no such invoice")), reasonTooLarge: errors.New("try again")} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			b := connect(t, server.URL())
			queue := b.queue()
			ctl(t, server, "set_policy", queue, "^"+queue+`\.drip\.dead$`, `{"max-length": 0, "overflow": "reject-publish"}`, "--apply-to", "queues")
			p, url := through(t, b.url, 0)
			refused := p.counts(func(f frame) bool { return f.fromBroker && f.is(basicNack) })
			handled := &failing{err: err}
			running(t, Options{URL: url, Queue: queue, QueueType: Classic, Handler: handled})
			begun(t, b, queue)
			b.publish(queue, amqp.Publishing{MessageId: "m", Headers: amqp.Table{"large": strings.Repeat("x", 130_500)}, Body: []byte("body")})
			oktest.Eventually(t, time.Minute, "it is refused more often than a message that can wait elsewhere", func() bool { return refused.Load() > 2*mostRefusals })
			ctl(t, server, "clear_policy", queue)
			letter := b.letter(queue)
			if n := handled.Load(); n != 1 || letter.Headers[headerReason] != reason || string(letter.Body) != "body" {
				t.Errorf("it was handled %d times, and its dead letter has the reason %v", n, letter.Headers[headerReason])
			}
		})
	}
}

// A message whose dead letter fits in no frame stays in hand for a while. Given back it would come again at once.
func TestMessageThatNoFrameTakes(t *testing.T) {
	b, queue := beside(t)
	handled := &failing{err: Permanent(errors.New(strings.Repeat("e", 2000)))}
	var log lines
	c := made(t, Options{URL: b.url, Queue: queue, Handler: handled, Logger: slog.New(&log)})
	c.delays.publisher.connect = connecting(b.url, amqp.Config{FrameSize: 4096}) // the least that AMQP allows
	stop := consuming(t, c)
	long := strings.Repeat("x", 255)
	exchange := queue + ".exchange"
	b.must(b.ch.ExchangeDeclare(exchange, "fanout", false, true, false, false, nil))
	b.must(b.ch.QueueBind(queue, "", exchange, false, nil))
	b.must(b.ch.Publish(exchange, strings.Repeat("/", 255), true, false, amqp.Publishing{
		MessageId: "m", ContentType: long, ContentEncoding: long, CorrelationId: long, ReplyTo: long, Type: long, AppId: long,
	}))
	eventually(t, "the log tells of it", func() bool { return log.count(tooLargeLine) > 0 })
	time.Sleep(time.Second)
	stop()
	if n, left := handled.Load(), b.ready(queue); n != 1 || left != 1 || log.count(tooLargeLine) != 1 {
		t.Errorf("it was handled %d times, %d are left, and the log has %d lines", n, left, log.count(tooLargeLine))
	}
}
