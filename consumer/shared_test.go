package consumer

import (
	"context"
	"errors"
	"fmt"
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
	var h ledger
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Entity: byType, Handler: &h,
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
	if h.handled["orders"] != 1 {
		t.Errorf("handled was %v", h.handled)
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

// A message that cannot run before its deadline goes to the dead letters at once, whatever limit it waits for.
func TestDeadline(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 2, RefreshRate: 2, RefreshInterval: 1000 * time.Hour, Shared: map[string]drip.Limit{"app": {Size: 100}}})
	var h ledger
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Entity: byType, RetryDelay: time.Hour,
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
	unused(t, bucket)
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
