package consumer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/drip-go/drip/internal/oteltest"
)

// postponing postpones the first n that ask.
func postponing(n int64, delay time.Duration) *free {
	var asked atomic.Int64
	return delayed(func() time.Duration {
		if asked.Add(1) > n {
			return 0
		}
		return delay
	})
}

// From the publisher to the handler it is one trace, however often the message was postponed in between and whatever for.
func TestTraceGoesOnOverPostponements(t *testing.T) {
	b, queue := beside(t)
	var tracers oteltest.Tracers
	publisher, span := tracers.Tracer("").Start(t.Context(), "send")
	message := amqp.Publishing{MessageId: "1", Headers: amqp.Table{"tracestate": "vendor=1"}, Body: []byte("four")}
	propagation.TraceContext{}.Inject(publisher, TraceHeaders(message.Headers))
	sent := fmt.Sprint(message.Headers)
	ends := []error{errors.New("failure"), Throttled(300*time.Millisecond, nil), nil}
	ran := make(chan trace.SpanContext, len(ends))
	stop := running(t, Options{
		URL: b.url, Queue: queue, Limiter: postponing(2, 300*time.Millisecond), Entity: oneShop, TracerProvider: &tracers,
		RetryDelay: 50 * time.Millisecond,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if got := fmt.Sprint(d.Headers); got != sent {
				t.Errorf("the handler finds the headers %s, want %s", got, sent)
			}
			_, work := tracers.Tracer("").Start(ctx, "work")
			work.End()
			ran <- trace.SpanContextFromContext(ctx)
			return ends[len(ran)-1]
		}),
	})
	b.publish(queue, message)
	eventually(t, "the message is handled", func() bool { return len(ran) == len(ends) })
	stop()
	close(ran)

	var works, deliveries []*oteltest.Span
	for i, s := range tracers.Ended() {
		if s.SpanContext().TraceID() != span.SpanContext().TraceID() {
			t.Errorf("span %d is of the trace %v, the publisher's of %v", i, s.SpanContext().TraceID(), span.SpanContext().TraceID())
		}
		if s.Name == "work" {
			works = append(works, s)
		} else {
			deliveries = append(deliveries, s)
		}
	}
	var outcomes []string
	for i, s := range deliveries {
		if s.Name != "process "+queue || s.Kind != trace.SpanKindConsumer || s.Parent.SpanID() != span.SpanContext().SpanID() || !s.Parent.IsRemote() {
			t.Errorf("span %d is %q of kind %v under %v, want one of a consumer under %v", i, s.Name, s.Kind, s.Parent.SpanID(), span.SpanContext().SpanID())
		}
		if s.Attributes[keyMessageID].AsString() != "1" || s.Attributes[keyEntity].AsString() != "shop" || s.Attributes[keyBodySize].AsInt64() != 4 ||
			s.Attributes[keyPostponements].AsInt64() != int64(i)-s.Attributes[keyAttempts].AsInt64() {
			t.Errorf("span %d has the attributes %v", i, s.Attributes)
		}
		outcomes = append(outcomes, s.Attributes[keyOutcome].AsString())
		handled := i >= 2
		if handled != (len(s.Events) == 1) {
			t.Errorf("span %d has the events %v", i, s.Events)
		}
		if handled && (works[i-2].Parent.SpanID() != s.SpanContext().SpanID() || (<-ran).SpanID() != s.SpanContext().SpanID()) {
			t.Errorf("the handler did not run in span %d", i)
		}
	}
	if got := fmt.Sprint(outcomes); got != "[postponed postponed retried throttled handled]" {
		t.Errorf("the deliveries' outcomes are %s", got)
	}
}

// Every delivery is counted once, under what became of it.
func TestMetricsOfAConsumer(t *testing.T) {
	b, queue := beside(t)
	var meters oteltest.Meters
	var tracers oteltest.Tracers
	var refused atomic.Bool
	var l ledger
	stop := running(t, Options{
		URL: b.url, Queue: queue, Limiter: postponing(2, 200*time.Millisecond), MeterProvider: &meters, TracerProvider: &tracers,
		Attempts: 2, RetryDelay: 50 * time.Millisecond, Entity: func(d *amqp.Delivery) (string, error) {
			if d.Type == "" {
				return "", errors.New("of nobody")
			}
			return d.Type, nil
		},
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			defer l.Handle(ctx, d)
			switch {
			case d.MessageId == "fails":
				return errors.New("failure")
			case d.MessageId == "panics":
				panic("\xff")
			case d.MessageId == "refused" && refused.CompareAndSwap(false, true):
				return Throttled(50*time.Millisecond, nil)
			}
			return nil
		}),
	})
	for _, id := range []string{"fine", "also fine", "fails", "panics", "refused", "of nobody"} {
		m := amqp.Publishing{MessageId: id, Type: "shop"}
		if id == "of nobody" {
			m.Type = ""
		}
		b.publish(queue, m)
	}
	dead := queue + ".drip.dead"
	eventually(t, "all is done", func() bool { return b.count(dead) == 3 && l.count() == 5 })
	eventually(t, "all is counted", func() bool {
		return meters.Sum("drip.consumer.settlements") == 12 && meters.Sum("drip.consumer.in_hand") == 0
	})
	stop()

	count := func(name string, want float64, attributes ...attribute.KeyValue) {
		t.Helper()
		if got := meters.Sum(name, append(attributes, systemRabbitMQ)...); got != want {
			t.Errorf("%s of %v is %v, want %v", name, attributes, got, want)
		}
	}
	became := func(o outcome) attribute.KeyValue { return keyOutcome.String(string(o)) }
	const settlements, consumed, sent = "drip.consumer.settlements", "messaging.client.consumed.messages", "messaging.client.sent.messages"
	count(settlements, 3, became(wasHandled))
	count(settlements, 2, became(wasPostponed))
	count(settlements, 1, became(wasThrottled))
	count(settlements, 3, became(wasRetried))
	count(settlements, 3, became(wasDeadLettered), keyReason.String(reasonFailed))
	count(settlements, 12)
	count(consumed, 6, keyDestination.String(queue))
	count(consumed, 6, keyDestination.String(queue+".drip.due"))
	count(sent, 6, keyDestination.String(queue+".drip.due"))
	count(sent, 3, keyDestination.String(dead))
	if n := meters.Count("messaging.client.operation.duration"); n != 9 {
		t.Errorf("the publishing of %d messages was timed, want 9", n)
	}
	if n, late := meters.Count("drip.consumer.lateness"), meters.Sum("drip.consumer.lateness"); n != 6 || late < 0 || late > 60 {
		t.Errorf("%d messages were late by %v s in all, want 6 and little", n, late)
	}
	for e, want := range map[string]int{"failed": 2, "panic": 2, "throttled": 1} {
		if n := meters.Count("messaging.process.duration", keyErrorType.String(e)); n != want {
			t.Errorf("%d handlers ended with %s, want %d", n, e, want)
		}
	}
	if n := meters.Count("messaging.process.duration"); n != 8 {
		t.Errorf("%d handlers were timed, want 8", n)
	}
	failed := 0
	for _, s := range tracers.Ended() {
		if s.Broken {
			t.Errorf("a span has a text that exporters refuse: %v", s.Attributes)
		}
		if s.Status == codes.Error {
			failed++
		}
	}
	if failed != 6 {
		t.Errorf("%d spans have failed, want 6", failed)
	}
}

// A stranger's headers end no span, no exporter and no process. At worst their message begins a trace of its own.
func TestTraceHeadersOfAStranger(t *testing.T) {
	var tracers oteltest.Tracers
	c := offline(t, Options{TracerProvider: &tracers, MeterProvider: &oteltest.Meters{}})
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, c1 := range map[string]struct {
		traceparent, tracestate any
		goesOn                  bool
	}{
		"good":                {good, "vendor=1", true},
		"good, as bytes":      {[]byte(good), []byte("vendor=1"), true},
		"no tracestate":       {good, nil, true},
		"a broken state":      {good, "\xff,,==\x00", true},
		"a huge state":        {good, strings.Repeat("a=1,", 1<<16), true},
		"a number":            {int64(7), int64(7), false},
		"a table":             {amqp.Table{"traceparent": good}, []any{good}, false},
		"nothing":             {nil, nil, false},
		"empty":               {"", "", false},
		"not hexadecimal":     {strings.Replace(good, "0af", "xyz", 1), nil, false},
		"zeros":               {"00-00000000000000000000000000000000-0000000000000000-00", nil, false},
		"cut":                 {good[:40], nil, false},
		"not text":            {"\xff\xfe\x00", nil, false},
		"huge":                {strings.Repeat(good, 1<<12), nil, false},
		"huge, as bytes":      {[]byte(strings.Repeat(good, 1<<12)), nil, false},
		"a forbidden version": {"ff" + good[2:], nil, false},
	} {
		h := amqp.Table{"traceparent": c1.traceparent, "tracestate": c1.tracestate, "baggage": "\xff"}
		m := open(amqp.Delivery{Headers: h, MessageId: "\xff" + strings.Repeat("€", 1000), RoutingKey: "\xff\x00"}, time.Now(), false)
		v := c.telemetry.receive(&m, false)
		v.of("\xff" + strings.Repeat("x", 1<<16))
		v.failed(errors.New("\xff" + strings.Repeat("x", 1<<16)))
		v.end(nil)
		spans := tracers.Ended()
		s := spans[len(spans)-1]
		if goesOn := s.SpanContext().TraceID().String() == good[3:35]; goesOn != c1.goesOn {
			t.Errorf("%s: the trace goes on: %v, want %v", name, goesOn, c1.goesOn)
		}
		if s.Broken || !s.SpanContext().IsValid() {
			t.Errorf("%s: the span is broken: %v", name, s.Attributes)
		}
	}
	if TraceHeaders(nil).Get("traceparent") != "" || len(TraceHeaders{"a": 1}.Keys()) != 1 {
		t.Error("the carrier is wrong about no headers, or about one")
	}
}

// Publishing errors have few types, and each type has a counter from the beginning.
func TestMetricsOfPublishing(t *testing.T) {
	var meters oteltest.Meters
	c := offline(t, Options{MeterProvider: &meters})
	before := len(meters.Sets("messaging.client.sent.messages"))
	m := open(amqp.Delivery{}, time.Now(), false)
	v := c.telemetry.receive(&m, false)
	for want, failure := range map[string]error{
		"unroutable":  fmt.Errorf("%w: no route", errUnroutable),
		"refused":     errRefused,
		"unconfirmed": fmt.Errorf("%w: %w", errUnconfirmed, amqp.ErrClosed),
		"too_large":   ErrUnpostponable,
		"closed":      amqp.ErrClosed,
		"_OTHER":      errors.New("anything"),
	} {
		if err := c.telemetry.timed(v, c.dueQueue(), func(context.Context) error { return failure })(t.Context()); err != failure {
			t.Errorf("the error became %v", err)
		}
		if n := meters.Sum("messaging.client.sent.messages", keyErrorType.String(want)); n != 1 {
			t.Errorf("%v: counted %v times as %s", failure, n, want)
		}
	}
	if after := len(meters.Sets("messaging.client.sent.messages")); after != before {
		t.Errorf("there were %d series and are %d", before, after)
	}
}

// With metrics alone the handler's context is Run's context, and the consumer leaves a span in it alone.
func TestMetricsLeaveSpansOfOthersAlone(t *testing.T) {
	var tracers oteltest.Tracers
	c := offline(t, Options{MeterProvider: &oteltest.Meters{}})
	ctx, span := tracers.Tracer("").Start(t.Context(), "main")
	m := open(amqp.Delivery{}, time.Now(), false)
	v := c.telemetry.receive(&m, false)
	if v.context(ctx) != ctx {
		t.Error("the context is another one")
	}
	must(t, c.o.Handler.Handle(ctx, &m.Delivery))
	v.failed(errors.New("failure"))
	v.end(nil)
	span.End()
	if s := tracers.Ended()[0]; len(s.Events)+len(s.Attributes)+int(s.Status) != 0 {
		t.Errorf("the span was given %v, %v and the status %v", s.Events, s.Attributes, s.Status)
	}
}

// Without providers telemetry allocates nothing.
func TestNoTelemetryAllocatesNothing(t *testing.T) {
	c := offline(t, Options{})
	if c.telemetry != nil {
		t.Error("there is telemetry without a provider")
	}
	m := open(amqp.Delivery{}, time.Now(), false)
	if n := testing.AllocsPerRun(100, func() { aVisit(c, &m, nothing) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func nothing(context.Context) error { return nil }

// aVisit records one delivery, and does nothing else.
func aVisit(c *Consumer, m *message, publish func(context.Context) error) {
	m.record = c.telemetry.receive(m, true)
	m.record.due(m)
	m.record.of("shop")
	m.record.context(context.Background())
	m.record.put(time.Second, wasPostponed)
	c.telemetry.timed(m.record, c.delays.target, publish)(context.Background())
	m.record.end(nil)
}
