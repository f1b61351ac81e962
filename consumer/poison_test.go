package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// everyType is a header of each type that AMQP 0-9-1 has with RabbitMQ.
var everyType = amqp.Table{
	"t": true, "b": int8(math.MinInt8), "B": uint8(math.MaxUint8), "s": int16(math.MinInt16), "u": uint16(math.MaxUint16),
	"I": int32(math.MinInt32), "i": uint32(math.MaxUint32), "l": int64(math.MinInt64), "f": float32(1.5), "d": math.MaxFloat64,
	"D": amqp.Decimal{Scale: 2, Value: 12345}, "S": "a text", "x": []byte{0, 255}, "T": time.Unix(1_700_000_000, 0), "V": nil,
	"A": []any{"x", int64(1), []any{true, nil}, amqp.Table{"deep": []byte{}}},
	"F": amqp.Table{"A": []any{}, "F": amqp.Table{"": "no name"}},
}

// poison are messages that a careless reader breaks on.
var poison = map[string]amqp.Publishing{
	"no body":                   {},
	"an empty body":             {Body: []byte{}},
	"a body of a MiB":           {Body: bytes.Repeat([]byte("drip"), 1<<18)},
	"a body that is no text":    {Body: []byte{0xff, 0, 0xfe, 0xc3, 0x28}, ContentType: "text/plain", ContentEncoding: "utf-8"},
	"headers of every type":     {Headers: everyType, Body: []byte("body")},
	"headers that are no text":  {Headers: amqp.Table{"\xff\xfe": "\xc3\x28", "": "", " ": "\x00"}},
	"a header with a long name": {Headers: amqp.Table{strings.Repeat("x", 255): strings.Repeat("y", 10_000)}},
	"properties that are no text": {CorrelationId: "\xff", ReplyTo: "\xff=&% ", Type: "\x00", AppId: "\n",
		ContentType: strings.Repeat("x", 255), Timestamp: time.Unix(1, 0), Priority: 255},
	"headers named like ours":     {Headers: amqp.Table{"x-drip": "due=9999999999999999", "x-drip-attempts": int64(99), "X-Drip": "theirs", "x-dripping": "too"}},
	"headers named like theirs":   {Headers: amqp.Table{"x-death": "none", "x-first-death-queue": int32(1), "x-delivery-count": "many", "CC": []any{}}},
	"the broker's own in a table": {Headers: amqp.Table{"F": amqp.Table{"x-death": []any{amqp.Table{"queue": "q"}}, "CC": []any{"q"}}}},
}

// After a trip through a delay queue a handler gets any message as it would from the work queue. So does a reader of the dead
// letters.
func TestPoison(t *testing.T) {
	bothTypes(t, func(t *testing.T, b *broker, queues QueueType, queue string) {
		publish := func() {
			for id, m := range poison {
				m.MessageId = id
				b.publish(queue, m)
			}
		}
		publish()
		want := map[string]amqp.Delivery{} // as a consumer gets it that knows nothing of us
		for _, d := range b.takeAll(queue) {
			want[d.MessageId] = d
		}
		var mu sync.Mutex
		got := map[string]amqp.Delivery{}
		stop := running(t, Options{
			URL: b.url, Queue: queue, QueueType: queues,
			Limiter: each(t, func(i int) time.Duration { return time.Duration(700*(i%2)+1) * time.Millisecond }), // held in hand, or through a delay queue
			Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
				mu.Lock()
				defer mu.Unlock()
				got[d.MessageId] = *d
				if err := d.Ack(false); !errors.Is(err, errAcknowledged) {
					t.Errorf("a handler that acknowledges gets %v", err)
				}
				return Permanent(errors.New("of no use"))
			}),
		})
		publish()
		dead := queue + ".drip.dead"
		eventually(t, "all are dead letters", func() bool { return b.count(dead) == len(poison) })
		stop()
		if n := b.ready(queue); n != 0 {
			t.Errorf("%d copies are left", n)
		}
		for _, d := range b.takeAll(dead) {
			id := d.MessageId
			if id == "" || d.Headers[headerReason] != reasonFailed {
				t.Errorf("%s: the dead letter says %v", id, d.Headers)
			}
			if a, b := essence(want[id], queue), essence(got[id], queue); a != b {
				t.Errorf("%s: the handler got\n%.1000s\nfrom the work queue comes\n%.1000s", id, b, a)
			}
			for name := range d.Headers { // what kept has
				if brokerActsOn(name) {
					t.Errorf("%s: the dead letter has the header %s", id, name)
				}
			}
			if kept, ok := d.Headers[headerKept].(amqp.Table); ok {
				maps.Copy(d.Headers, kept)
			}
			d.Exchange, d.RoutingKey = "", queue
			persistent := want[id]
			persistent.DeliveryMode = amqp.Persistent
			if a, b := essence(persistent, queue), essence(d, queue); a != b {
				t.Errorf("%s: the dead letter is\n%.1000s\nfrom the work queue comes\n%.1000s", id, b, a)
			}
		}
	})
}

// essence is what a message is, in a text with the types of its headers: its publisher's, without ours and the broker's
// notes about the delivery.
func essence(d amqp.Delivery, queue string) string {
	h := amqp.Table{}
	for name, v := range d.Headers {
		if !ours(name) && name != "x-delivery-count" && name != "x-acquired-count" {
			h[name] = v
		}
	}
	if d.RoutingKey != queue || d.Exchange != "" {
		return fmt.Sprintf("a message to %q %q", d.Exchange, d.RoutingKey)
	}
	v := reflect.ValueOf(d)
	var s strings.Builder
	fmt.Fprintf(&s, "%#v", h)
	for i := range v.NumField() {
		switch f := v.Type().Field(i); f.Name {
		case "Headers", "Acknowledger", "ConsumerTag", "MessageCount", "DeliveryTag", "Redelivered", "Exchange", "RoutingKey":
		default:
			fmt.Fprintf(&s, " %s %#v", f.Name, v.Field(i).Interface())
		}
	}
	return s.String()
}
