package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

var quiet = slog.New(slog.DiscardHandler)

type free = buckettest.Plain // lets everything run

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

// failing is a handler that counts its calls, and fails.
type failing struct {
	err error
	atomic.Int64
}

func (f *failing) Handle(context.Context, *amqp.Delivery) error {
	f.Add(1)
	return f.err
}

func TestOutcomes(t *testing.T) {
	b, queue := beside(t)
	rows := map[string]struct {
		handle   func(attempt int) error
		entity   EntityFunc
		cost     func(*amqp.Delivery) int
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
		"gives up by itself": { // with a context of its own: Run does not end
			handle: func(int) error { return fmt.Errorf("call: %w", context.Canceled) }, attempts: 3, reason: "failed",
			text: "call: context canceled",
		},
		"takes too long for itself": {
			handle: func(int) error { return context.DeadlineExceeded }, attempts: 3, reason: "failed", text: "context deadline exceeded",
		},
		"cost panics": {
			cost: func(*amqp.Delivery) int { panic("poison") }, reason: "failed", text: "panic: poison",
		},
		"cost is too high": {
			cost: func(*amqp.Delivery) int { return 1000 }, reason: "failed", final: true,
			text: `drip: admit "cost is too high": the cost is out of range: 1000 of at most 100`,
		},
		"entity fails": {
			entity: func(*amqp.Delivery) (string, error) { return "", errors.New("no shop in it") },
			reason: "failed", text: "cannot determine the entity: no shop in it",
		},
		"entity panics": {
			entity: func(*amqp.Delivery) (string, error) { panic("poison") },
			reason: "failed", text: "cannot determine the entity: panic: poison",
		},
		"entity is empty": {
			entity: func(*amqp.Delivery) (string, error) { return "", nil },
			reason: "failed", text: "cannot determine the entity: it is empty", final: true,
		},
		"fails for good": {
			handle: func(int) error { return fmt.Errorf("of 3: %w", Permanent(errors.New("no such invoice"))) }, attempts: 1,
			reason: "failed", text: "of 3: no such invoice", final: true,
		},
	}
	limiter := buckettest.New(t, drip.Options{Start: time.Unix(0, 0)})
	var mu sync.Mutex
	handled := map[string]int{}
	stop := running(t, Options{
		URL: b.url, Queue: queue, Limiter: limiter, Attempts: 3, RetryDelay: time.Millisecond,
		Entity: func(d *amqp.Delivery) (string, error) {
			if f := rows[d.MessageId].entity; f != nil {
				return f(d)
			}
			return d.MessageId, nil
		},
		Cost: func(d *amqp.Delivery) int {
			if f := rows[d.MessageId].cost; f != nil {
				return f(d)
			}
			return 1
		},
		Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			mu.Lock()
			handled[d.MessageId]++
			attempt := handled[d.MessageId]
			mu.Unlock()
			return rows[d.MessageId].handle(attempt)
		}),
	})
	given := 0
	for name, c := range rows {
		b.publish(queue, amqp.Publishing{MessageId: name, Body: []byte("body"), Headers: amqp.Table{"shop": "a"}})
		if c.reason != "" {
			given++
		}
	}
	dead := queue + ".drip.dead"
	eventually(t, "all attempts", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for name, c := range rows {
			if handled[name] < c.attempts {
				return false
			}
		}
		return b.count(dead) >= given
	})
	stop()
	letters := map[string]amqp.Delivery{}
	for _, d := range b.takeAll(dead) {
		letters[d.MessageId] = d
	}
	for name, c := range rows {
		if handled[name] != c.attempts {
			t.Errorf("%s: the handler ran %d times, want %d", name, handled[name], c.attempts)
		}
		d, ok := letters[name]
		if ok != (c.reason != "") {
			t.Errorf("%s: given up is %v", name, ok)
		}
		if !ok {
			continue
		}
		h, attempts := d.Headers, int64(3)
		if c.final {
			attempts = 1
		}
		if h[headerReason] != c.reason || h[headerError] != c.text || h[headerAttempts] != attempts {
			t.Errorf("%s: the dead letter says %v", name, h)
		}
		if h["shop"] != "a" || string(d.Body) != "body" || h[headerRoutingKey] != queue {
			t.Errorf("%s: the dead letter is not the message: %v %q", name, h, d.Body)
		}
		if _, ok := h[headerAge].(int64); !ok {
			t.Errorf("%s: the dead letter has no age: %v", name, h)
		}
	}
	if len(letters) != given || b.ready(queue) != 0 {
		t.Errorf("%d dead letters, want %d; %d messages are left", len(letters), given, b.ready(queue))
	}
	for name := range rows {
		if s, err := limiter.Inspect(t.Context(), name); err != nil || s.InUse != 0 {
			t.Errorf("%s: %d tokens were not returned (%v)", name, s.InUse, err)
		}
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

// delayed is a limiter with these answers.
func delayed(by func() time.Duration) *free {
	return &free{Delays: func(string) (time.Duration, error) { return by(), nil }}
}

func TestGivesUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set                     func(*Options)
		asked                   int // how often the limiter postpones it, by 30 ms
		handler                 error
		reason                  string
		postponements, attempts int64
	}{
		"postponed too often": {
			set: func(o *Options) { o.MaxPostponements = 3 }, asked: 100, reason: "postponed too often", postponements: 3,
		},
		"throttled too often": {
			set: func(o *Options) { o.MaxPostponements = 3 }, asked: 1, handler: Throttled(30*time.Millisecond, nil),
			reason: "postponed too often", postponements: 3,
		},
		"too old": {set: func(o *Options) { o.MaxAge = 100 * time.Millisecond }, asked: 100, reason: "too old"},
		"postponed, then failed": {
			set: func(o *Options) { o.Attempts = 2; o.MaxPostponements = 2 }, asked: 2, handler: errors.New("no such luck"),
			reason: "failed", postponements: 2, attempts: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, queue := beside(t)
			var asked atomic.Int64
			o := Options{
				URL: b.url, Queue: queue, RetryDelay: time.Millisecond,
				Limiter: delayed(func() time.Duration {
					if int(asked.Add(1)) <= c.asked {
						return 30 * time.Millisecond
					}
					return 0
				}),
				Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error {
					if c.handler == nil {
						t.Error("it ran")
					}
					return c.handler
				}),
			}
			c.set(&o)
			stop := running(t, o)
			b.publish(queue, amqp.Publishing{MessageId: "m", Headers: amqp.Table{"shop": "a"}, Body: []byte("body")})
			d := b.letter(queue)
			h := d.Headers
			if h[headerReason] != c.reason || h[headerAttempts] != c.attempts || c.postponements != 0 && h[headerPostponements] != c.postponements {
				t.Errorf("the dead letter says %v", h)
			}
			if age, _ := h[headerAge].(int64); age < 60 {
				t.Errorf("the dead letter is %v ms old", h[headerAge])
			}
			if d.MessageId != "m" || h["shop"] != "a" || string(d.Body) != "body" {
				t.Errorf("the dead letter is not the message: %v %q", h, d.Body)
			}
			stop()
			if n := b.ready(queue); n != 0 {
				t.Errorf("%d copies are left", n)
			}
		})
	}
}

func TestRunSaysWhyItCannotBegin(t *testing.T) {
	b, queue := beside(t)
	other := b.queue()
	for _, prefix := range []string{".drip.", ".drip.due."} {
		_, err := b.ch.QueueDeclare(other+prefix+"v1.250ms.00", true, false, false, false, nil) // a classic one, without TTL
		b.must(err)
	}
	stream := b.queue() // a stream keeps acknowledged messages and delivers no message again: it is no work queue
	b.replace(stream, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeStream})
	exclusive, err := b.ch.QueueDeclare("", false, false, true, false, nil)
	b.must(err)
	for name, c := range map[string]struct {
		url, queue string
		is         error
		want       []string
	}{
		"no broker":           {"amqp://user:secret@127.0.0.1:1/", queue, nil, []string{"connect to RabbitMQ at 127.0.0.1:1", "connection refused"}},
		"wrong password":      {strings.Replace(b.url, "guest:guest", "guest:secret", 1), queue, nil, []string{"connect to RabbitMQ at 127.0.0.1", "username or password not allowed"}},
		"no virtual host":     {b.url + "nobodys", queue, nil, []string{"no access to this vhost", "its limit of connections is reached"}},
		"no queue":            {b.url, "nobody.declared.this", ErrQueue, []string{`there is no queue "nobody.declared.this"; declare it first`}},
		"another delay queue": {b.url, other, nil, []string{`queue "` + other + `.drip.`, `v1.250ms.00" exists and is another one than drip needs; delete it`}},
		"a stream":            {b.url, stream, ErrQueue, []string{"is a stream"}},
		"an exclusive queue":  {b.url, exclusive.Name, ErrQueue, []string{"is exclusive"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cannot(t, Options{URL: c.url, Queue: c.queue, FailFast: c.is == nil}, c.is, c.want...)
		})
	}
}

// A consumer that has a queue for itself lacks no permission.
func TestQueueIsConsumedExclusively(t *testing.T) {
	b, queue := beside(t)
	_, err := b.ch.Consume(queue, "", false, true, false, false, nil)
	b.must(err)
	err = made(t, Options{URL: b.url, Queue: queue}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "an exclusive consumer has it") || strings.Contains(err.Error(), "permissions") {
		t.Errorf("Run = %v", err)
	}
}

func TestShutdown(t *testing.T) {
	t.Parallel()
	t.Run("waits for handlers", func(t *testing.T) {
		b, queue := beside(t)
		l := &free{}
		started, release := make(chan struct{}, 100), make(chan struct{})
		stop := running(t, Options{
			URL: b.url, Queue: queue, Limiter: l, Prefetch: 10,
			Handler: HandlerFunc(func(ctx context.Context, _ *amqp.Delivery) error {
				started <- struct{}{}
				<-release
				return ctx.Err()
			}),
		})
		b.publish(queue, numbered(0, 30)...)
		for range 10 {
			<-started
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); stop() }()
		eventually(t, "the consumer is cancelled", func() bool { return b.consumers(queue) == 0 })
		close(release)
		<-stopped
		if l.Out.Load() != 0 {
			t.Errorf("%d tokens were not returned", l.Out.Load())
		}
		if n := b.count(queue); n != 20 {
			t.Errorf("%d messages are left, want the 20 that were not handled", n)
		}
	})
	t.Run("not for ever", func(t *testing.T) {
		b, queue := beside(t)
		started, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		ctx, cancel := context.WithCancel(t.Context())
		done := begin(ctx, made(t, Options{
			URL: b.url, Queue: queue, DrainTime: time.Millisecond,
			Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error {
				close(started)
				<-release
				return nil
			}),
		}))
		b.publish(queue, amqp.Publishing{MessageId: "m"})
		<-started
		cancel()
		if err := <-done; !errors.Is(err, ErrStillRunning) {
			t.Errorf("Run = %v, want ErrStillRunning", err)
		}
		eventually(t, "the message is back", func() bool { return b.count(queue) == 1 })
	})
	// A handler that is told to end says so in one way or another; nothing of that counts.
	t.Run("takes back from handlers", func(t *testing.T) {
		b, queue := beside(t)
		says := map[string]func(ctx context.Context) error{
			"its context's error": func(ctx context.Context) error { return ctx.Err() },
			"that it is no use":   func(ctx context.Context) error { return Permanent(ctx.Err()) },
			"that it was refused": func(ctx context.Context) error { return Throttled(time.Hour, ctx.Err()) },
			"nothing, it panics":  func(ctx context.Context) error { panic(ctx.Err()) },
		}
		started := make(chan struct{})
		bucket := buckettest.New(t, drip.Options{Size: 10})
		ctx, stop := context.WithCancel(t.Context())
		ended := begin(ctx, made(t, Options{
			URL: b.url, Queue: queue, Limiter: bucket, DrainTime: time.Millisecond, Attempts: 1,
			Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
				started <- struct{}{}
				<-ctx.Done()
				return says[d.MessageId](ctx)
			}),
		}))
		for id := range says {
			b.publish(queue, amqp.Publishing{MessageId: id, Headers: amqp.Table{"shop": "a"}})
			<-started
		}
		stop()
		if err := <-ended; err != nil && !errors.Is(err, ErrStillRunning) { // of a busy machine
			t.Error(err)
		}
		eventually(t, "the messages are back", func() bool { return b.count(queue) == len(says) })
		for range says {
			d, _, err := b.ch.Get(queue, true)
			if err != nil || !d.Redelivered || !reflect.DeepEqual(d.Headers, amqp.Table{"shop": "a"}) {
				t.Errorf("%s: what is back has the headers %v, redelivered: %v (%v)", d.MessageId, d.Headers, d.Redelivered, err)
			}
			status, err := bucket.Inspect(t.Context(), d.MessageId)
			if err != nil || status.InUse != 0 || status.Booked != 0 || !status.ClosedUntil.IsZero() {
				t.Errorf("%s: of the entity is left %+v (%v)", d.MessageId, status, err)
			}
		}
		if n := b.ready(queue) + b.count(queue+".drip.dead"); n != 0 {
			t.Errorf("%d copies are left", n)
		}
	})
}
