package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// byType is the entity function of tests with several shops, whose messages have them as their type.
func byType(d *amqp.Delivery) (string, error) { return d.Type, nil }

// Messages say which shared limits they are within: one that is closed holds up nothing else.
func TestWithin(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Shared: map[string]drip.Limit{"app": {Size: 100}, "search": {Size: 5}}})
	b.must(bucket.Pause(t.Context(), drip.SharedID("search"), time.Hour))
	var h handled
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Logger: quiet, Entity: byType, Handler: &h,
		Request: func(d *amqp.Delivery) drip.Request {
			return drip.Request{Within: strings.Fields(d.AppId)}
		},
	})
	b.publish(queue,
		amqp.Publishing{MessageId: "searches", Type: "shop", AppId: "app search"},
		amqp.Publishing{MessageId: "nowhere", Type: "shop", AppId: "app elsewhere"},
		amqp.Publishing{MessageId: "orders", Type: "shop", AppId: "app"},
	)
	if d := b.letter(queue); d.MessageId != "nowhere" || !strings.Contains(fmt.Sprint(d.Headers[headerError]), drip.ErrNoShared.Error()) {
		t.Errorf("the dead letter is %s: %v", d.MessageId, d.Headers)
	}
	eventually(t, "the order is handled", func() bool { return h.count() == 1 })
	if h.ids[0] != "orders" {
		t.Errorf("%s was handled", h.ids[0])
	}
	// A message that waits for the endpoint has its ticket with it, and runs when the endpoint is open.
	b.must(bucket.Resume(t.Context(), drip.SharedID("search")))
	if n := buckettest.Inspect(t, bucket, drip.SharedID("app")).InUse; n != 0 {
		t.Errorf("of the app's limit %d tokens are out", n)
	}
	stop()
	if n := b.waitingIn(queue); n != 1 {
		t.Errorf("%d messages wait, want the one that is within the closed limit", n)
	}
}

// Urgent messages pass thousands of their shop that wait.
func TestUrgent(t *testing.T) {
	b, queue := beside(t)
	const urgent, backlog = 5, 3000
	bucket := buckettest.New(t, drip.Options{Size: 20, RefreshRate: 10, Concurrency: 100, Shared: map[string]drip.Limit{"app": {Size: 20, RefreshRate: 10}}})
	var h handled
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Logger: quiet, Entity: oneShop, Handler: &h,
		Request: func(d *amqp.Delivery) drip.Request { return drip.Request{Urgent: d.Type == "urgent"} },
	})
	began := time.Now()
	b.publish(queue, numbered(0, backlog)...)
	eventually(t, "the backlog waits", func() bool { return b.count(queue) == 0 && h.count() >= 20 })
	t.Logf("%d messages were published and postponed in %v", backlog, time.Since(began))
	var before [urgent]int // how many had run
	for i := range before {
		before[i] = h.count()
		b.publish(queue, amqp.Publishing{MessageId: fmt.Sprint("urgent ", i), Type: "urgent"})
	}
	eventually(t, "the urgent ones are handled", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i := range before {
			if h.ops[fmt.Sprint("urgent ", i)] == nil {
				return false
			}
		}
		return true
	})
	stop()
	for i := range before {
		id := fmt.Sprint("urgent ", i)
		first := slices.Index(h.ids, id) - before[i]
		t.Logf("%d ran before %s, which was postponed %d times", first, id, h.ops[id].Postponements)
		if first > backlog/2 {
			t.Errorf("%d of the %d that waited ran before %s", first, backlog, id)
		}
	}
}

// A message that cannot run before its deadline goes to the dead letters at once, whatever limit it waits for.
func TestDeadline(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 2, RefreshRate: 2, RefreshInterval: 1000 * time.Hour, Shared: map[string]drip.Limit{"app": {Size: 100}}})
	var h handled
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Logger: quiet, Entity: byType, RetryDelay: time.Hour,
		Request: func(d *amqp.Delivery) drip.Request { return drip.Request{Deadline: d.Timestamp} },
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			h.Handle(ctx, d)
			switch d.MessageId {
			case "fails":
				return errors.New("no such luck")
			case "busy":
				return Later(time.Hour, nil)
			}
			return nil
		}),
	})
	soon := time.Now().Add(10 * time.Minute) // a busy machine takes its time to begin
	for _, c := range []struct {
		id       string
		attempts int64
		text     string
	}{
		{"fails", 1, "no such luck"}, // its second attempt would come too late
		{"busy", 0, "postponed by 1h0m0s"},
		{"over", 0, ""},
	} {
		deadline := soon
		if c.id == "over" {
			deadline = time.Now().Add(-time.Minute)
		}
		b.publish(queue, amqp.Publishing{MessageId: c.id, Type: "shop of " + c.id, Timestamp: deadline})
		d := b.letter(queue)
		text := fmt.Sprint(d.Headers[headerError])
		if d.MessageId != c.id || d.Headers[headerReason] != reasonExpired || d.Headers[headerAttempts] != c.attempts ||
			!strings.Contains(text, drip.ErrDeadline.Error()) || !strings.Contains(text, c.text) {
			t.Errorf("%s: the dead letter is %s: %v", c.id, d.MessageId, d.Headers)
		}
	}
	// One of a shop that has weeks to wait.
	b.publish(queue, ofType("shop", 0, 2)...)
	eventually(t, "the first two are handled", func() bool { return h.count() == 4 })
	b.publish(queue, amqp.Publishing{MessageId: "late", Type: "shop", Timestamp: soon})
	if d := b.letter(queue); d.MessageId != "late" || d.Headers[headerReason] != reasonExpired {
		t.Errorf("the dead letter is %s: %v", d.MessageId, d.Headers)
	}
	stop()
	inUse(t, bucket, 0)
}

// A refusal by the app's limit closes that for every shop, and leaves the shop its burst.
func TestThrottledByASharedLimit(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 40, RefreshRate: 1, RefreshInterval: time.Minute, Shared: map[string]drip.Limit{"app": {Size: 100}, "search": {Size: 100}}})
	var h handled
	refused := make(chan time.Time, 1)
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Logger: quiet, Entity: byType,
		Request: func(d *amqp.Delivery) drip.Request { return drip.Request{Within: []string{d.AppId}} },
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if d.MessageId == "refused" && OperationOf(ctx).Postponements == 0 {
				refused <- time.Now()
				return ThrottledShared("app", 3*time.Second, nil)
			}
			return h.Handle(ctx, d)
		}),
	})
	b.publish(queue, amqp.Publishing{MessageId: "refused", Type: "shop", AppId: "app"})
	closed := <-refused
	eventually(t, "the bucket knows", func() bool {
		status, err := bucket.Inspect(t.Context(), drip.SharedID("app"))
		return err == nil && !status.ClosedUntil.IsZero()
	})
	b.publish(queue, amqp.Publishing{MessageId: "other", Type: "other shop", AppId: "app"}, amqp.Publishing{MessageId: "search", Type: "shop", AppId: "search"})
	const burst = 30
	for i := range burst {
		b.publish(queue, amqp.Publishing{MessageId: fmt.Sprint(i), Type: "shop", AppId: "app"})
	}
	eventually(t, "all messages are handled", func() bool { return h.count() == burst+3 })
	stop()
	if h.ids[0] != "search" {
		t.Errorf("%s was first, want the one that is not within the app's limit", h.ids[0])
	}
	last := time.Duration(0)
	for id, at := range h.at {
		waited := at.Sub(closed)
		last = max(last, waited)
		if id != "search" && waited < 3*time.Second {
			t.Errorf("%s ran %v after the refusal", id, waited)
		}
	}
	if last > 30*time.Second { // the shop has 40 at once, and then one a minute
		t.Errorf("the last one ran %v after the refusal: the shop has lost its burst", last)
	}
	if h.ops["refused"].Attempts != 0 {
		t.Error("a refused call has spent a retry")
	}
}

// A loop of one's own tells of a message what Options.Request does.
func TestLimitRequests(t *testing.T) {
	bucket := buckettest.New(t, drip.Options{Shared: map[string]drip.Limit{"app": {Size: 1, RefreshInterval: time.Hour}}})
	var p postponed
	ran := 0
	h := LimitRequests(bucket, oneShop, func(d *amqp.Delivery) drip.Request {
		return drip.Request{Within: strings.Fields(d.AppId), Deadline: d.Timestamp}
	}, &p)(HandlerFunc(func(context.Context, *amqp.Delivery) error { ran++; return nil }))
	for _, c := range []struct {
		d    amqp.Delivery
		ran  int
		put  int
		fail error
	}{
		{amqp.Delivery{AppId: "app"}, 1, 0, nil},
		{amqp.Delivery{AppId: "app"}, 1, 1, nil},
		{amqp.Delivery{AppId: ""}, 2, 1, nil},
		{amqp.Delivery{AppId: "app", Timestamp: time.Now().Add(time.Second)}, 2, 1, drip.ErrDeadline},
		{amqp.Delivery{AppId: "none"}, 2, 1, drip.ErrNoShared},
	} {
		err := h.Handle(t.Context(), &c.d)
		if ran != c.ran || len(p) != c.put || !errors.Is(err, c.fail) || err != nil && !IsPermanent(err) {
			t.Errorf("%+v: ran %d, postponed %d, %v", c.d, ran, len(p), err)
		}
	}
}
