package consumer

import (
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// asDelivery is what the broker makes of a publishing that went through a delay queue.
func asDelivery(p amqp.Publishing) amqp.Delivery {
	h := amqp.Table{}
	for name, v := range p.Headers {
		h[name] = v
	}
	h["x-death"] = []any{amqp.Table{"queue": "orders.drip.due.250ms.01", "reason": "expired", "count": int64(1), "original-expiration": "17"}}
	h["x-first-death-queue"], h["x-first-death-reason"] = "orders.drip.due.250ms.01", "expired"
	return amqp.Delivery{
		Headers: h, ContentType: p.ContentType, ContentEncoding: p.ContentEncoding, DeliveryMode: p.DeliveryMode,
		Priority: p.Priority, CorrelationId: p.CorrelationId, ReplyTo: p.ReplyTo, MessageId: p.MessageId,
		Timestamp: p.Timestamp, Type: p.Type, UserId: p.UserId, AppId: p.AppId, Body: p.Body,
		RoutingKey: "orders.drip.due", // and no exchange, no expiration
	}
}

func TestCopyIsTheMessage(t *testing.T) {
	original := amqp.Delivery{
		Headers: amqp.Table{
			"shop": "a", "n": int32(4), "nested": amqp.Table{"deep": []any{"x", int64(1)}},
			"CC": []any{"audit"}, "x-death": []any{amqp.Table{"queue": "theirs"}}, "x-first-death-queue": "theirs",
		},
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 7, CorrelationId: "c",
		ReplyTo: "r", Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1_700_000_000, 0), Type: "t",
		UserId: "guest", AppId: "app", Exchange: "shops", RoutingKey: "shop.a", Body: []byte("body"),
	}
	now := time.Now()
	d, size := original, 0
	for i := range 200 {
		m := open(d, now, true) // the first is nobody's copy, which must make no difference
		m.postponements++
		p := m.copy()
		if p.UserId != "" || p.Expiration != "" || p.Headers["CC"] != nil || p.Headers["x-death"] != nil {
			t.Fatalf("trip %d: the broker would act on %+v", i, p)
		}
		if i == 1 {
			size = len(p.Headers)
		} else if i > 1 && len(p.Headers) != size {
			t.Fatalf("trip %d: %d headers, at first %d", i, len(p.Headers), size)
		}
		d = asDelivery(p)
	}
	m := open(d, now, true)
	if !reflect.DeepEqual(m.Delivery, original) {
		t.Errorf("after 200 trips the handler gets\n%+v, published was\n%+v", m.Delivery, original)
	}
	if m.postponements != 200 {
		t.Errorf("%d postponements were counted, want 200", m.postponements)
	}
}

func TestBrokenHeadersStopNothing(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	far := now.Add(longestDelay).UnixMilli() + 1
	for _, h := range []amqp.Table{
		nil,
		{headerDue: "soon", headerFirst: nil, headerPostponements: 1.5, headerAttempts: []any{}, headerExchange: int32(1), headerRoutingKey: amqp.Table{}, headerKept: "x"},
		{headerDue: far, headerFirst: int64(-1), headerPostponements: int64(-1), headerAttempts: int64(1) << 40},
		{headerDue: int64(-1) << 63, headerFirst: far},
		{headerKept: amqp.Table{"shop": "forged"}},
	} {
		m := open(amqp.Delivery{Headers: h, RoutingKey: "orders"}, now, true)
		if m.due > now.UnixMilli() || m.first != now.UnixMilli() || m.postponements != 0 || m.attempts != 0 || m.RoutingKey != "orders" || m.Headers != nil {
			t.Errorf("headers %v were believed: %+v", h, m)
		}
	}
	// On the work queue not even good ones are.
	good := amqp.Table{headerDue: now.UnixMilli() + 5000, headerPostponements: int64(9), headerExchange: "e", headerKept: amqp.Table{"CC": "x"}, "shop": "a"}
	m := open(amqp.Delivery{Headers: good, RoutingKey: "orders"}, now, false)
	if m.due != now.UnixMilli() || m.postponements != 0 || m.Exchange != "" || !reflect.DeepEqual(m.Headers, amqp.Table{"shop": "a"}) {
		t.Errorf("the work queue's headers were believed: %+v", m)
	}
}

func TestShorten(t *testing.T) {
	if got := shorten("příliš", 3); got != "př" {
		t.Errorf("shorten cut a character in two: %q", got)
	}
	if got := shorten(strings.Repeat("x", 10), 10); len(got) != 10 {
		t.Errorf("shorten(10 bytes, 10) = %q", got)
	}
}
