package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var quiet = slog.New(slog.DiscardHandler)

// free lets everything run.
type free struct{ out atomic.Int64 }

func (l *free) GetDelay(context.Context, string) (time.Duration, error) { l.out.Add(1); return 0, nil }
func (l *free) ReturnToken(context.Context, string) error               { l.out.Add(-1); return nil }

// letter waits for the next dead letter of a queue.
func (b *broker) letter(queue string) amqp.Delivery {
	b.t.Helper()
	dead := queue + ".drip.dead"
	eventually(b.t, "a message in "+dead, func() bool { return b.count(dead) > 0 })
	d, ok, err := b.ch.Get(dead, true)
	b.must(err)
	if !ok {
		b.t.Fatal("the dead letter is gone")
	}
	return d
}

func TestOutcomes(t *testing.T) {
	b := connect(t, useBroker(t))
	for name, c := range map[string]struct {
		handle   func(attempt int) error
		entity   EntityFunc
		attempts int // of the handler
		reason   string
		text     string
		final    bool // after the first attempt
	}{
		"succeeds":          {handle: func(int) error { return nil }, attempts: 1},
		"fails once":        {handle: func(n int) error { return errorIf(n == 1) }, attempts: 2},
		"throttled is free": {handle: func(n int) error { return throttledIf(n <= 6) }, attempts: 7},
		"always fails":      {handle: func(int) error { return errorIf(true) }, attempts: 3, reason: "failed", text: "no such luck"},
		"panics":            {handle: func(int) error { panic("boom") }, attempts: 3, reason: "failed", text: "panic: boom"},
		"fails with a nil in an error": {
			handle: func(int) error { return (*typedError)(nil) }, attempts: 3, reason: "failed",
			text: "panic: runtime error: invalid memory address or nil pointer dereference",
		},
		"entity fails": {
			entity: func(*amqp.Delivery) (string, error) { return "", errors.New("no shop in it") },
			reason: "failed", text: "entity of the message: no shop in it",
		},
		"entity panics": {
			entity: func(*amqp.Delivery) (string, error) { panic("poison") },
			reason: "failed", text: "entity of the message: panic: poison",
		},
		"entity is empty": {
			entity: func(*amqp.Delivery) (string, error) { return "", nil },
			reason: "failed", text: "entity of the message: it is empty", final: true,
		},
		"fails for good": {
			handle: func(int) error { return fmt.Errorf("of 3: %w", Permanent(errors.New("no such invoice"))) }, attempts: 1,
			reason: "failed", text: "of 3: no such invoice", final: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := connect(t, b.url)
			queue := b.queue()
			if c.entity == nil {
				c.entity = byID
			}
			l := &free{}
			var handled atomic.Int64
			stop := running(t, Options{
				URL: b.url, Queue: queue, Limiter: l, Entity: c.entity, Attempts: 3, RetryDelay: time.Millisecond, Logger: quiet,
				Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error { return c.handle(int(handled.Add(1))) }),
			})
			b.publish(queue, amqp.Publishing{MessageId: "m", Body: []byte("body"), Headers: amqp.Table{"shop": "a"}})
			if c.reason != "" {
				d := b.letter(queue)
				h, attempts := d.Headers, int64(3)
				if c.final {
					attempts = 1
				}
				if h[headerReason] != c.reason || h[headerError] != c.text || h[headerAttempts] != attempts {
					t.Errorf("the dead letter says %v", h)
				}
				if h["shop"] != "a" || string(d.Body) != "body" || h[headerRoutingKey] != queue {
					t.Errorf("the dead letter is not the message: %v %q", h, d.Body)
				}
				if _, ok := h[headerAge].(int64); !ok {
					t.Errorf("the dead letter has no age: %v", h)
				}
			} else {
				eventually(t, "all attempts", func() bool { return int(handled.Load()) == c.attempts })
			}
			stop()
			if int(handled.Load()) != c.attempts {
				t.Errorf("the handler ran %d times, want %d", handled.Load(), c.attempts)
			}
			if l.out.Load() != 0 {
				t.Errorf("%d tokens were not returned", l.out.Load())
			}
			for _, q := range []string{queue, queue + ".drip.due", queue + ".drip.dead"} {
				if n := b.count(q); n != 0 {
					t.Errorf("%d messages are left in %s", n, q)
				}
			}
		})
	}
}

type typedError struct{ text string }

func (e *typedError) Error() string { return e.text }

func errorIf(fail bool) error {
	if fail {
		return errors.New("no such luck")
	}
	return nil
}

func throttledIf(fail bool) error {
	if fail {
		return fmt.Errorf("call: %w", Throttled(time.Millisecond, errors.New("429")))
	}
	return nil
}

func TestMessageIsUnchangedAfter200Postponements(t *testing.T) {
	b := connect(t, useBroker(t))
	queue := b.queue()
	exchange := queue + ".exchange"
	b.must(b.ch.ExchangeDeclare(exchange, "direct", false, false, false, false, nil))
	b.must(b.ch.QueueBind(queue, "shop.a", exchange, false, nil))
	asked := 0
	l := limiterFunc(func() time.Duration {
		if asked++; asked > 200 {
			return 0
		}
		if asked%40 == 0 {
			return 700 * time.Millisecond // through a delay queue; the others are held in hand
		}
		return time.Duration(1+asked%4) * time.Millisecond
	})
	p, url := through(t, b.url, 0)
	var mu sync.Mutex
	var sizes []int // of the properties and headers that are published
	p.through(func(f frame) bool {
		if !f.fromBroker && f.kind == 2 {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, len(f.payload))
		}
		return true
	})
	got := make(chan amqp.Delivery, 1)
	running(t, Options{
		URL: url, Queue: queue, Limiter: l, Entity: byID,
		Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error { got <- *d; return nil }),
	})
	want := amqp.Publishing{
		Headers: amqp.Table{
			"string": "s", "int": int32(-4), "long": int64(1) << 40, "float": 1.5, "bool": true, "nothing": nil,
			"table": amqp.Table{"list": []any{"x", int32(1)}}, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		},
		ContentType: "application/json", ContentEncoding: "identity", DeliveryMode: amqp.Persistent, Priority: 7,
		CorrelationId: "c", ReplyTo: "r", Expiration: "3600000", MessageId: "m", Timestamp: time.Unix(1_700_000_000, 0),
		Type: "t", UserId: "guest", AppId: "app", Body: []byte{0, 1, 2, 255},
	}
	b.must(b.ch.Publish(exchange, "shop.a", true, false, want))
	d := <-got
	// What a Delivery has besides what was published.
	if d.Exchange != exchange || d.RoutingKey != "shop.a" {
		t.Errorf("the handler sees exchange %q and routing key %q", d.Exchange, d.RoutingKey)
	}
	back := amqp.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration,
		MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, UserId: d.UserId, AppId: d.AppId, Body: d.Body,
	}
	if !reflect.DeepEqual(back, want) {
		t.Errorf("the handler got\n%+v, published was\n%+v", back, want)
	}
	mu.Lock()
	defer mu.Unlock()
	if slices.Min(sizes) < slices.Max(sizes)-4 || len(sizes) != 200 { // the expiration of our own has digits
		t.Errorf("%d copies had headers of %d to %d bytes", len(sizes), slices.Min(sizes), slices.Max(sizes))
	}
	if err := d.Ack(false); !errors.Is(err, errAcknowledged) {
		t.Errorf("a handler that acknowledges gets %v", err)
	}
}

type limiterFunc func() time.Duration

func (f limiterFunc) GetDelay(context.Context, string) (time.Duration, error) { return f(), nil }
func (f limiterFunc) ReturnToken(context.Context, string) error               { return nil }

// Headers that fill a frame leave no room for ours. The broker would close the connection for it, and with it fail
// everything else that is on its way.
func TestHeadersTooLargeToPostpone(t *testing.T) {
	b := connect(t, useBroker(t))
	queue := b.queue()
	var l ledger
	limiter := each(t, func(int) time.Duration { return 10 * time.Millisecond })
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
	b.publish(queue, numbered(0, 100)...)
	b.publish(queue, amqp.Publishing{MessageId: "large", Body: []byte("body"), Headers: amqp.Table{"large": strings.Repeat("x", 130_900)}})
	b.publish(queue, numbered(100, 200)...)
	d := b.letter(queue)
	if d.MessageId != "large" || string(d.Body) != "body" || d.Headers[headerReason] != "too large to postpone" {
		t.Errorf("the dead letter is %q %q, %v", d.MessageId, d.Body, d.Headers)
	}
	eventually(t, "the others are handled", func() bool { return l.count() == 200 })
	stop()
	if l.twice() != 0 {
		t.Errorf("%d messages were handled twice", l.twice())
	}
}

func TestGivesUp(t *testing.T) {
	b := connect(t, useBroker(t))
	for name, c := range map[string]struct {
		set           func(*Options)
		reason        string
		postponements int64
	}{
		"postponed too often": {func(o *Options) { o.MaxPostponements = 3 }, "postponed too often", 3},
		"too old":             {func(o *Options) { o.MaxAge = 100 * time.Millisecond }, "too old", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := &broker{t: t, url: b.url, ch: b.ch}
			o := Options{
				URL: b.url, Queue: b.queue(), Entity: byID, Logger: quiet,
				Limiter: limiterFunc(func() time.Duration { return 30 * time.Millisecond }),
				Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error { t.Error("it ran"); return nil }),
			}
			c.set(&o)
			running(t, o)
			b.publish(o.Queue, amqp.Publishing{MessageId: "m"})
			h := b.letter(o.Queue).Headers
			if h[headerReason] != c.reason || c.postponements != 0 && h[headerPostponements] != c.postponements {
				t.Errorf("the dead letter says %v", h)
			}
			if age, _ := h[headerAge].(int64); age < 60 {
				t.Errorf("the dead letter is %v ms old", h[headerAge])
			}
		})
	}
}

func TestRunSaysWhyItCannotBegin(t *testing.T) {
	b := connect(t, useBroker(t))
	queue := b.queue()
	other := b.queue()
	_, err := b.ch.QueueDeclare(other+".drip.due.250ms.00", true, false, false, false, nil) // a classic one, without TTL
	b.must(err)
	for name, c := range map[string]struct {
		url, queue string
		want       []string
	}{
		"no broker":           {"amqp://user:secret@127.0.0.1:1/", queue, []string{"connect to RabbitMQ at 127.0.0.1:1", "connection refused"}},
		"wrong password":      {strings.Replace(b.url, "guest:guest", "guest:secret", 1), queue, []string{"connect to RabbitMQ at 127.0.0.1", "username or password not allowed"}},
		"no queue":            {b.url, "nobody.declared.this", []string{`there is no queue "nobody.declared.this"; declare it first`}},
		"another delay queue": {b.url, other, []string{`queue "` + other + `.drip.due.250ms.00" exists and is another one than drip needs; delete it`}},
	} {
		t.Run(name, func(t *testing.T) {
			consumer, err := New(Options{
				URL: c.url, Queue: c.queue, Limiter: &free{}, Entity: byID, Logger: quiet,
				Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error { return nil }),
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err = consumer.Run(ctx)
			_, errQueues := OpenDelayQueues(ctx, DelayQueuesOptions{URL: c.url, Queue: c.queue})
			if name == "another delay queue" {
				errQueues = err // of a Consumer only
			}
			for _, err := range []error{err, errQueues} {
				for _, want := range c.want {
					if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
						t.Errorf("got %v, want %q and no password in it", err, want)
					}
				}
			}
		})
	}
}

func TestShutdown(t *testing.T) {
	b := connect(t, useBroker(t))
	t.Run("waits for handlers", func(t *testing.T) {
		b := &broker{t: t, url: b.url, ch: b.ch}
		queue, l := b.queue(), &free{}
		started, release := make(chan struct{}, 100), make(chan struct{})
		stop := running(t, Options{
			URL: b.url, Queue: queue, Limiter: l, Entity: byID, Prefetch: 10,
			Handler: HandlerFunc(func(ctx context.Context, _ *amqp.Delivery) error {
				started <- struct{}{}
				<-release
				return ctx.Err()
			}),
		})
		for i := range 30 {
			b.publish(queue, amqp.Publishing{MessageId: fmt.Sprint(i)})
		}
		for range 10 {
			<-started
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }()
		eventually(t, "the consumer is cancelled", func() bool { return b.consumers(queue) == 0 })
		close(release)
		<-stopped
		if l.out.Load() != 0 {
			t.Errorf("%d tokens were not returned", l.out.Load())
		}
		if n := b.count(queue); n != 20 {
			t.Errorf("%d messages are left, want the 20 that were not handled", n)
		}
	})
	t.Run("not for ever", func(t *testing.T) {
		b := &broker{t: t, url: b.url, ch: b.ch}
		queue, started, release := b.queue(), make(chan struct{}), make(chan struct{})
		defer close(release)
		c, err := New(Options{
			URL: b.url, Queue: queue, Limiter: &free{}, Entity: byID, DrainTime: time.Millisecond, Logger: quiet,
			Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error {
				close(started)
				<-release
				return nil
			}),
		})
		b.must(err)
		b.publish(queue, amqp.Publishing{MessageId: "m"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx) }()
		<-started
		cancel()
		if err := <-done; !errors.Is(err, ErrStillRunning) {
			t.Errorf("Run = %v, want ErrStillRunning", err)
		}
		eventually(t, "the message is back", func() bool { return b.count(queue) == 1 })
	})
	t.Run("gives back what is held", func(t *testing.T) {
		b := &broker{t: t, url: b.url, ch: b.ch}
		queue := b.queue()
		var asked sync.Map
		o := Options{
			URL: b.url, Queue: queue, Entity: byID,
			Limiter: limiterFunc(func() time.Duration { asked.Store("m", true); return time.Hour }),
			Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error { return nil }),
		}
		stop := running(t, o)
		for i := range 10 {
			b.publish(queue, amqp.Publishing{MessageId: fmt.Sprint(i)})
		}
		eventually(t, "all are postponed", func() bool { return b.count(queue) == 0 && b.waitingIn(queue) == 10 })
		stop()
		if n := b.waitingIn(queue); n != 10 {
			t.Errorf("%d messages are in the delay queues, want 10", n)
		}
	})
}
