package consumer

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// asDelivery is what the broker makes of a publishing that went through a delay queue.
func asDelivery(p amqp.Publishing) amqp.Delivery {
	h := amqp.Table{}
	maps.Copy(h, p.Headers)
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
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Transient, Priority: 7, CorrelationId: "c",
		ReplyTo: "r", Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1_700_000_000, 0), Type: "t",
		UserId: "guest", AppId: "app", Exchange: "shops", RoutingKey: "shop.a", Body: []byte("body"),
	}
	now := time.Now()
	d, size := original, 0
	for i := range 200 {
		m := open(d, now, true) // the first is nobody's copy, which must make no difference
		m.Postponements++
		p := m.copy()
		if p.UserId != "" || p.Expiration != "" || p.DeliveryMode != amqp.Persistent || p.Headers["CC"] != nil || p.Headers["x-death"] != nil {
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
	if m.Postponements != 200 {
		t.Errorf("%d postponements were counted, want 200", m.Postponements)
	}
}

// RabbitMQ closes the channel of a publisher that names the queue of direct replies, which a message may do that was published
// over another protocol. The message keeps that name, and so does its dead letter.
func TestDirectReply(t *testing.T) {
	now := time.Now()
	original := amqp.Delivery{ReplyTo: "amq.rabbitmq.reply-to", RoutingKey: "orders", Body: []byte("body")}
	m := open(original, now, false)
	for name, p := range map[string]amqp.Publishing{"copy": m.copy(), "dead letter": m.deadLetter()} {
		if p.ReplyTo != "" {
			t.Errorf("the %s names %q", name, p.ReplyTo)
		}
		if back := open(asDelivery(p), now, true); !reflect.DeepEqual(back.Delivery, original) {
			t.Errorf("the %s comes back as %+v", name, back.Delivery)
		}
	}
}

func TestBrokenHeadersStopNothing(t *testing.T) {
	now := time.UnixMilli(time.Now().UnixMilli())
	far := now.Add(longestDelay + time.Hour).UnixMicro()
	for _, h := range []amqp.Table{
		nil,
		{headerNote: int64(7), headerKept: "x"},
		{headerNote: "", headerKept: int32(1)},
		{headerNote: "due=soon first= postponements=1.5 attempts=x exchange=%zz key=% expiration=%f user=%0 tag= = =7 due due=="},
		{headerNote: "postponements=7 attempts=x exchange=%zz key=% expiration=%f user=%0"},
		{headerNote: fmt.Sprintf("due=%d first=-1 postponements=-1 attempts=%d ticket=%s", far, int64(1)<<40, strings.Repeat("1.", 1000))},
		{headerNote: fmt.Sprintf("due=%d first=%d", int64(-1)<<63, far)},
		{headerNote: "\xff\x00 " + strings.Repeat(" first=99999999999999999999", 1000)},
		{headerKept: amqp.Table{"shop": "forged"}},
		{headerNote: "", headerKept: amqp.Table{"shop": "forged"}},
	} {
		m := open(amqp.Delivery{Headers: h, RoutingKey: "orders"}, now, true)
		if m.Due.After(now) || !m.First.Equal(now) || m.Postponements != 0 || m.Attempts != 0 || m.RoutingKey != "orders" || m.Headers != nil {
			t.Errorf("headers %v were believed: %+v", h, m)
		}
	}
	// On the work queue not even good ones are.
	good := amqp.Table{
		headerNote: fmt.Sprintf("due=%d postponements=9 exchange=e key=k", now.UnixMicro()+5_000_000),
		headerKept: amqp.Table{"CC": "x"}, "shop": "a",
	}
	m := open(amqp.Delivery{Headers: good, RoutingKey: "orders"}, now, false)
	if !m.Due.Equal(now) || m.Postponements != 0 || m.Exchange != "" || m.RoutingKey != "orders" || !reflect.DeepEqual(m.Headers, amqp.Table{"shop": "a"}) {
		t.Errorf("the work queue's headers were believed: %+v", m)
	}
}

// A property that is longer than AMQP allows, of a forged dead letter, is not believed. Its dead letter would hold it twice and
// fit in no frame: then the message could never end.
func TestLongPropertiesAreNotBelieved(t *testing.T) {
	original := amqp.Delivery{RoutingKey: "orders", Body: []byte("body")}
	for _, long := range []string{strings.Repeat("x", 100_000), strings.Repeat("%01", 40_000), strings.Repeat("x", 256)} {
		for _, h := range []amqp.Table{
			{headerNote: "key=" + long}, {headerNote: " key=" + long}, {headerNote: " key=orders exchange=" + long}, {headerNote: " key=orders expiration=" + long},
			{headerNote: " key=orders user=" + long}, {headerNote: " key=orders reply=" + long}, {headerNote: " key=orders", headerExpiration: long},
		} {
			h[headerReason] = "failed"
			d := original
			d.Headers = h
			m := open(d, time.Now(), false)
			if !reflect.DeepEqual(m.Delivery, original) {
				t.Errorf("%.40v… were believed: %.300v…", h, m.Delivery)
			}
			m.giveUp(reasonFailed, errors.New(long))
			letter := m.deadLetter()
			if err := publishable(&letter, "orders.drip.dead", 131_072); err != nil {
				t.Errorf("%.40v…: %v", h, err)
			}
		}
	}
}

// Only a copy from the due queue tells that its message was given up. It tells one of the reasons, and no more of the error than a
// dead letter does. A dead letter that is tried again does not tell it.
func TestGivenUpIsNotBelieved(t *testing.T) {
	note := " key=orders given=postponed+too+often cause=" + strings.Repeat("%41", 2000)
	for name, c := range map[string]struct {
		d     amqp.Delivery
		back  bool
		given string
		cause int
	}{
		"from the due queue":       {amqp.Delivery{Headers: amqp.Table{headerNote: note}}, true, reasonTooOften, longestError},
		"through an exchange":      {amqp.Delivery{Headers: amqp.Table{headerNote: note}, Exchange: "shops"}, true, "", 0},
		"from the work queue":      {amqp.Delivery{Headers: amqp.Table{headerNote: note}}, false, "", 0},
		"passes for a dead letter": {amqp.Delivery{Headers: amqp.Table{headerNote: note, headerReason: reasonFailed}}, false, "", 0},
		"no reason":                {amqp.Delivery{Headers: amqp.Table{headerNote: " key=orders given=tired"}}, true, "", 0},
	} {
		if m := open(c.d, time.Now(), c.back); m.given != c.given || len(m.cause) != c.cause {
			t.Errorf("%s: it was given up because it is %q, with an error of %d bytes; want %q, %d", name, m.given, len(m.cause), c.given, c.cause)
		}
	}
	m := open(amqp.Delivery{Headers: amqp.Table{headerNote: note}}, time.Now(), true)
	m.giveUp(reasonExpired, errors.New("another one"))
	letter := m.deadLetter()
	if letter.Headers[headerReason] != reasonTooOften || letter.Headers[headerError] != strings.Repeat("A", longestError) {
		t.Errorf("the dead letter says %v", letter.Headers)
	}
	if again := open(asDelivery(letter), time.Now(), true); again.given != "" || again.cause != "" {
		t.Errorf("a dead letter that is tried again was given up because it is %q", again.given)
	}
}

// Every exchange name, routing key and user name that a publisher may use comes back unchanged.
func FuzzNote(f *testing.F) {
	f.Add("shops", "shop.a b=c%20+ü\xff\x00 tag=7 due=1", "60000", "guest", "no invoice 7 given=x tag=9\xff", int64(3), int64(2), uint64(9))
	f.Add("", "", "", "", "", int64(0), int64(0), uint64(0))
	f.Fuzz(func(t *testing.T, exchange, key, expiration, user, cause string, postponements, attempts int64, number uint64) {
		if max(len(exchange), len(key), len(expiration), len(user)) > longestText {
			return // AMQP has no such message
		}
		now := time.Now()
		m := open(amqp.Delivery{Exchange: exchange, RoutingKey: key, Expiration: expiration, UserId: user}, now, true)
		m.Postponements, m.Attempts = int(postponements&math.MaxInt32), int(attempts&math.MaxInt32)
		m.Due, m.First = m.Due.Add(time.Second), m.First.Add(-time.Second)
		if cause != "" {
			m.giveUp(reasons[number%uint64(len(reasons))], errors.New(cause))
		}
		p := m.copy()
		for _, n := range []uint64{number + 1, number} { // it was tried before
			mark(p.Headers, n)
			if got, ok := marked(p.Headers); got != n || !ok {
				t.Fatalf("marked = %d, %v, want %d: %q", got, ok, n, p.Headers)
			}
		}
		if back := open(asDelivery(p), now, true); !reflect.DeepEqual(back, m) {
			t.Errorf("back is %+v, it was %+v, with %q", back, m, p.Headers)
		}
	})
}

func TestShorten(t *testing.T) {
	if got := shorten("příliš", 3); got != "př" {
		t.Errorf("shorten cut a character in two: %q", got)
	}
	if got := shorten(strings.Repeat("x", 10), 10); len(got) != 10 {
		t.Errorf("shorten(10 bytes, 10) = %q", got)
	}
}
