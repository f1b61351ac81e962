package consumer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/drip-go/drip/worker"
)

// TraceHeaders make the headers of a message OpenTelemetry's carrier of trace context. To continue a publisher's trace
// in the handler, write it into the message, whose Headers must not be nil:
//
//	propagation.TraceContext{}.Inject(ctx, consumer.TraceHeaders(message.Headers))
type TraceHeaders amqp.Table

// longestTraceHeader is twice the length of a tracestate that the W3C asks to propagate, in bytes.
const longestTraceHeader = 1024

// Get returns a header that is a string or a []byte, the two forms in which clients write text. A header that is far
// too long counts as absent.
func (h TraceHeaders) Get(key string) string {
	var s string
	switch v := h[key].(type) {
	case string:
		s = v
	case []byte:
		s = string(v[:min(len(v), longestTraceHeader+1)])
	}
	if len(s) > longestTraceHeader {
		return ""
	}
	return s
}

// Set sets a header.
func (h TraceHeaders) Set(key, value string) { h[key] = value }

// Keys returns the names of all headers.
func (h TraceHeaders) Keys() []string { return slices.Collect(maps.Keys(h)) }

// outcome is the outcome of a delivery. Each delivery has exactly one.
type outcome string

const (
	wasHandled      outcome = "handled"
	wasPostponed    outcome = "postponed"     // by the limit
	wasThrottled    outcome = "throttled"     // by the provider: its handler returned Throttled or Later
	wasRetried      outcome = "retried"       // its handler failed, and it will be tried again
	wasDeadLettered outcome = "dead_lettered" // for one of the reasons
	wasForwarded    outcome = "forwarded"     // it came before its time, the limiter gave no answer, or it had no place
	wasReturned     outcome = "returned"      // given back to the broker, or lost with the connection: it comes again
)

// Reasons for which messages go to the dead letters.
const (
	reasonFailed   = "failed"
	reasonTooOld   = "too old"
	reasonTooOften = "postponed too often"
	reasonTooLarge = "too large to postpone"
	reasonExpired  = "expired"
)

var reasons = []string{reasonFailed, reasonTooOld, reasonTooOften, reasonTooLarge, reasonExpired}

const scope = "github.com/drip-go/drip/consumer"

// telemetry records the outcomes of messages. A nil one records nothing and costs nothing.
type telemetry struct {
	tracer trace.Tracer // nil for metrics alone
	queue  string

	consumed, settled, sent    metric.Int64Counter
	inHand                     metric.Int64UpDownCounter
	lateness, process, sending metric.Float64Histogram

	// Attributes of the records, made once.
	began       []trace.SpanStartOption
	delivered   map[bool]labels // true: came back from a delay queue
	held        map[bool]labels
	settlements map[settlement]labels
	ran         map[string]labels // by the error's type
	publishing  map[publishing]labels
	work        labels
}

type labels = metric.MeasurementOption

// labelled leaves out attributes without a value.
func labelled(attributes ...attribute.KeyValue) labels {
	attributes = slices.DeleteFunc(attributes, func(a attribute.KeyValue) bool { return a.Value.AsString() == "" })
	return metric.WithAttributeSet(attribute.NewSet(append(attributes, systemRabbitMQ)...))
}

type settlement struct {
	outcome outcome
	reason  string // of dead letters
}

type publishing struct{ queue, errorType string }

func newTelemetry(c *Consumer) (*telemetry, error) {
	meters, tracers := c.o.MeterProvider, c.o.TracerProvider
	if meters == nil && tracers == nil {
		return nil, nil
	}
	if meters == nil {
		meters = metricnoop.NewMeterProvider()
	}
	t := &telemetry{queue: c.o.Queue}
	if tracers != nil {
		t.tracer = tracers.Tracer(scope)
	}
	if err := t.instruments(meters.Meter(scope)); err != nil {
		return nil, err
	}
	t.attributes(c.dueQueue(), c.deadQueue())
	return t, nil
}

func (t *telemetry) instruments(m metric.Meter) error {
	var errs [7]error
	t.consumed, errs[0] = m.Int64Counter("messaging.client.consumed.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Messages delivered, new ones and ones back from a delay queue."))
	t.settled, errs[1] = m.Int64Counter("drip.consumer.settlements", metric.WithUnit("{message}"),
		metric.WithDescription("The outcome of each delivery."))
	t.sent, errs[2] = m.Int64Counter("messaging.client.sent.messages", metric.WithUnit("{message}"),
		metric.WithDescription("Copies published to delay queues and dead letters. Failed ones have an error type."))
	t.inHand, errs[3] = m.Int64UpDownCounter("drip.consumer.in_hand", metric.WithUnit("{message}"),
		metric.WithDescription("Messages in hand: waiting for their time, being handled, being published."))
	t.lateness, errs[4] = m.Float64Histogram("drip.consumer.lateness", metric.WithUnit("s"),
		metric.WithDescription("How long after its time a postponed message asks again whether it may run."),
		metric.WithExplicitBucketBoundaries(.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60))
	t.process, errs[5] = m.Float64Histogram("messaging.process.duration", metric.WithUnit("s"),
		metric.WithDescription("How long handlers take. Failed ones have an error type."),
		metric.WithExplicitBucketBoundaries(operationSeconds...))
	t.sending, errs[6] = m.Float64Histogram("messaging.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("How long the broker takes to confirm a copy."),
		metric.WithExplicitBucketBoundaries(operationSeconds...))
	return errors.Join(errs[:]...)
}

// operationSeconds are the buckets that the semantic conventions ask for, in seconds.
var operationSeconds = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}

// Attributes, named after the semantic conventions for messaging where those have a name.
const (
	keySystem        = attribute.Key("messaging.system")
	keyDestination   = attribute.Key("messaging.destination.name")
	keyOperation     = attribute.Key("messaging.operation.name")
	keyOperationType = attribute.Key("messaging.operation.type")
	keyMessageID     = attribute.Key("messaging.message.id")
	keyBodySize      = attribute.Key("messaging.message.body.size")
	keyRoutingKey    = attribute.Key("messaging.rabbitmq.destination.routing_key")
	keyDeliveryTag   = attribute.Key("messaging.rabbitmq.message.delivery_tag")
	keyErrorType     = attribute.Key("error.type")
	keyOutcome       = attribute.Key("drip.outcome")
	keyReason        = attribute.Key("drip.reason")
	keyEntity        = attribute.Key("drip.entity")
	keyDelay         = attribute.Key("drip.delay")
	keyPostponements = attribute.Key("drip.postponements")
	keyAttempts      = attribute.Key("drip.attempts")
)

var systemRabbitMQ = keySystem.String("rabbitmq")

// attributes makes every possible set, and begins the counters with 0: nobody sees the first event of a counter that begins
// with that event.
func (t *telemetry) attributes(due, dead string) {
	ctx := context.Background()
	work := keyDestination.String(t.queue)
	t.began = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		systemRabbitMQ, keyOperation.String("process"), keyOperationType.String("process"), work)}
	t.work = labelled(work)
	t.delivered, t.held = map[bool]labels{}, map[bool]labels{}
	for back, queue := range map[bool]string{false: t.queue, true: due} {
		t.delivered[back] = labelled(keyDestination.String(queue), keyOperation.String("deliver"))
		t.held[back] = labelled(keyDestination.String(queue))
		t.consumed.Add(ctx, 0, t.delivered[back])
		t.inHand.Add(ctx, 0, t.held[back])
	}
	t.settlements = map[settlement]labels{}
	settles := func(o outcome, reason string) {
		l := labelled(work, keyOutcome.String(string(o)), keyReason.String(reason))
		t.settlements[settlement{o, reason}] = l
		t.settled.Add(ctx, 0, l)
	}
	for _, o := range []outcome{wasHandled, wasPostponed, wasThrottled, wasRetried, wasForwarded, wasReturned} {
		settles(o, "")
	}
	for _, reason := range reasons {
		settles(wasDeadLettered, reason)
	}
	t.ran = map[string]labels{}
	for _, e := range []string{"", "failed", "panic", "throttled"} {
		t.ran[e] = labelled(work, keyOperation.String("process"), keyErrorType.String(e))
	}
	t.publishing = map[publishing]labels{}
	for _, queue := range []string{due, dead} {
		for _, e := range append([]string{""}, publishErrors...) {
			l := labelled(keyDestination.String(queue), keyOperation.String("publish"), keyOperationType.String("send"), keyErrorType.String(e))
			t.publishing[publishing{queue, e}] = l
			t.sent.Add(ctx, 0, l)
		}
	}
}

// deliveryRecord measures one delivery, from its receipt to its end. A nil one measures nothing.
type deliveryRecord struct {
	*telemetry
	ctx  context.Context // with the span
	span trace.Span
	back bool // from a delay queue
	settlement
}

// receive begins a record. Its span continues the trace of the message's publisher. The spans of all deliveries of a message
// are siblings.
func (t *telemetry) receive(m *message, back bool) *deliveryRecord {
	if t == nil {
		return nil
	}
	v := &deliveryRecord{telemetry: t, ctx: context.Background(), span: noSpan, back: back, settlement: settlement{outcome: wasHandled}}
	if t.tracer != nil {
		publisher := propagation.TraceContext{}.Extract(v.ctx, TraceHeaders(m.Headers))
		v.ctx, v.span = t.tracer.Start(publisher, "process "+t.queue, t.began...)
	}
	if v.span.IsRecording() {
		v.span.SetAttributes(
			keyBodySize.Int(len(m.Body)), keyDeliveryTag.Int64(int64(m.DeliveryTag)),
			keyPostponements.Int(m.Postponements), keyAttempts.Int(m.Attempts))
		v.text(keyMessageID, m.MessageId)
		v.text(keyRoutingKey, m.RoutingKey)
	}
	t.consumed.Add(v.ctx, 1, t.delivered[back])
	t.inHand.Add(v.ctx, 1, t.held[back])
	return v
}

var noSpan = trace.SpanFromContext(context.Background())

// text sets an attribute whose value comes from outside.
func (v *deliveryRecord) text(key attribute.Key, s string) {
	if s != "" {
		v.span.SetAttributes(key.String(printable(s)))
	}
}

// printable returns a short s in valid UTF-8: exporters refuse any other text, together with all that they send with it.
func printable(s string) string { return strings.ToValidUTF8(shorten(s, 256), "\ufffd") }

func (v *deliveryRecord) context(parent context.Context) context.Context {
	if v == nil || v.tracer == nil {
		return parent
	}
	return trace.ContextWithSpan(parent, v.span)
}

// due records the lateness of a message that came back, when the limiter is asked again. For a message that came early call
// it when the message is due.
func (v *deliveryRecord) due(m *message) {
	if v != nil && v.back {
		v.lateness.Record(v.ctx, max(0, time.Since(m.Due).Seconds()), v.work)
	}
}

func (v *deliveryRecord) of(entity string) {
	if v != nil && v.span.IsRecording() {
		v.text(keyEntity, entity)
	}
}

// became sets the outcome; the last one counts.
func (v *deliveryRecord) became(o outcome, reason string) {
	if v != nil {
		v.settlement = settlement{o, reason}
	}
}

func (v *deliveryRecord) put(off time.Duration, o outcome) {
	v.became(o, "")
	if v != nil && v.span.IsRecording() {
		v.span.SetAttributes(keyDelay.Float64(off.Seconds()))
	}
}

func (v *deliveryRecord) failed(cause error) {
	if v != nil && v.span.IsRecording() {
		v.span.SetStatus(codes.Error, printable(cause.Error()))
	}
}

// end ends the record. err is nil when the delivery was acknowledged.
func (v *deliveryRecord) end(err error) {
	if v == nil {
		return
	}
	if err != nil {
		v.became(wasReturned, "")
	}
	if v.span.IsRecording() {
		v.span.SetAttributes(keyOutcome.String(string(v.outcome)))
		if v.reason != "" {
			v.span.SetAttributes(keyReason.String(v.reason))
		}
	}
	v.settled.Add(v.ctx, 1, v.settlements[v.settlement])
	v.inHand.Add(v.ctx, -1, v.held[v.back])
	v.span.End()
}

// measured is a Middleware. It records how long the handler takes, and how it ends. An event on the span marks where waiting
// ends and the work begins.
func (t *telemetry) measured(next Handler) Handler {
	if t == nil {
		return next
	}
	return HandlerFunc(func(ctx context.Context, d *amqp.Delivery) (err error) {
		if t.tracer != nil { // else the span would be the span of Run's caller
			trace.SpanFromContext(ctx).AddEvent("admitted")
		}
		began, errorType := time.Now(), "panic"
		defer func() { t.process.Record(ctx, time.Since(began).Seconds(), t.ran[errorType]) }()
		err = next.Handle(ctx, d)
		switch refused := (*worker.ThrottledError)(nil); {
		case err == nil:
			errorType = ""
		case errors.As(err, &refused):
			errorType = "throttled"
		default:
			errorType = "failed"
		}
		return err
	})
}

// timed records each try of a publishing to a queue.
func (t *telemetry) timed(v *deliveryRecord, queue string, publish func(patience context.Context) error) func(context.Context) error {
	if t == nil {
		return publish
	}
	return func(patience context.Context) error {
		began := time.Now()
		err := publish(patience)
		l := t.publishing[publishing{queue, publishError(err)}]
		t.sent.Add(v.ctx, 1, l)
		t.sending.Record(v.ctx, time.Since(began).Seconds(), l)
		return err
	}
}

var publishErrors = []string{"unroutable", "refused", "unconfirmed", "too_large", "closed", "_OTHER"}

// publishError returns the type of a publishing's error: one of publishErrors, or "" for nil.
func publishError(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errUnroutable):
		return "unroutable"
	case errors.Is(err, errRefused):
		return "refused"
	case errors.Is(err, errUnconfirmed), errors.Is(err, errSilent):
		return "unconfirmed"
	case errors.Is(err, ErrUnpostponable), errors.Is(err, errTooLarge):
		return "too_large"
	case errors.Is(err, amqp.ErrClosed):
		return "closed"
	}
	return "_OTHER"
}
