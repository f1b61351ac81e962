// Package oteltest records calls of OpenTelemetry's API. It stands in for the SDK in tests, so that users of drip do
// not need the SDK.
package oteltest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Meters is a metric.MeterProvider.
type Meters struct {
	metricnoop.MeterProvider

	mu        sync.Mutex
	series    []*series
	callbacks map[string][]metric.Int64Callback
}

type series struct {
	name       string
	attributes attribute.Set
	sum        float64
	count      int
}

// Sum is the sum of all that was added to, or recorded with, a metric with these attributes.
func (m *Meters) Sum(name string, attributes ...attribute.KeyValue) (sum float64) {
	m.each(name, attributes, func(s *series) { sum += s.sum })
	return sum
}

// Count is the number of values that were added to, or recorded with, a metric with these attributes.
func (m *Meters) Count(name string, attributes ...attribute.KeyValue) (n int) {
	m.each(name, attributes, func(s *series) { n += s.count })
	return n
}

// Sets are the attributes of all series of a metric.
func (m *Meters) Sets(name string) (sets []attribute.Set) {
	m.each(name, nil, func(s *series) { sets = append(sets, s.attributes) })
	return sets
}

func (m *Meters) each(name string, attributes []attribute.KeyValue, f func(*series)) {
	o := observer{}
	m.mu.Lock()
	callbacks := m.callbacks[name]
	m.mu.Unlock()
	for _, callback := range callbacks {
		callback(context.Background(), &o)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range append(o.series, m.series...) {
		has := func(a attribute.KeyValue) bool { v, ok := s.attributes.Value(a.Key); return ok && v == a.Value }
		if (s.name == name || s.name == "") && !slices.ContainsFunc(attributes, func(a attribute.KeyValue) bool { return !has(a) }) {
			f(s)
		}
	}
}

func (m *Meters) add(name string, attributes attribute.Set, v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.series, func(s *series) bool { return s.name == name && s.attributes.Equals(&attributes) })
	if i < 0 {
		i = len(m.series)
		m.series = append(m.series, &series{name: name, attributes: attributes})
	}
	m.series[i].sum += v
	m.series[i].count++
}

// Meter implements metric.MeterProvider.
func (m *Meters) Meter(string, ...metric.MeterOption) metric.Meter { return meter{of: m} }

type meter struct {
	metricnoop.Meter
	of *Meters
}

func (m meter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return counter{name: name, of: m.of}, nil
}

func (m meter) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return upDown{name: name, of: m.of}, nil
}

func (m meter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return histogram{name: name, of: m.of}, nil
}

func (m meter) Int64ObservableCounter(name string, o ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	m.of.observe(name, metric.NewInt64ObservableCounterConfig(o...).Callbacks())
	return metricnoop.Int64ObservableCounter{}, nil
}

func (m meter) Int64ObservableUpDownCounter(name string, o ...metric.Int64ObservableUpDownCounterOption) (metric.Int64ObservableUpDownCounter, error) {
	m.of.observe(name, metric.NewInt64ObservableUpDownCounterConfig(o...).Callbacks())
	return metricnoop.Int64ObservableUpDownCounter{}, nil
}

func (m *Meters) observe(name string, callbacks []metric.Int64Callback) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.callbacks == nil {
		m.callbacks = map[string][]metric.Int64Callback{}
	}
	m.callbacks[name] = append(m.callbacks[name], callbacks...)
}

type counter struct {
	metricnoop.Int64Counter
	name string
	of   *Meters
}

func (c counter) Add(_ context.Context, n int64, o ...metric.AddOption) {
	c.of.add(c.name, metric.NewAddConfig(o).Attributes(), float64(n))
}

type upDown struct {
	metricnoop.Int64UpDownCounter
	name string
	of   *Meters
}

func (c upDown) Add(_ context.Context, n int64, o ...metric.AddOption) {
	c.of.add(c.name, metric.NewAddConfig(o).Attributes(), float64(n))
}

type histogram struct {
	metricnoop.Float64Histogram
	name string
	of   *Meters
}

func (h histogram) Record(_ context.Context, v float64, o ...metric.RecordOption) {
	h.of.add(h.name, metric.NewRecordConfig(o).Attributes(), v)
}

type observer struct {
	metricnoop.Int64Observer
	series []*series
}

func (o *observer) Observe(n int64, options ...metric.ObserveOption) {
	o.series = append(o.series, &series{attributes: metric.NewObserveConfig(options).Attributes(), sum: float64(n), count: 1})
}

// Tracers is a trace.TracerProvider.
type Tracers struct {
	tracenoop.TracerProvider

	mu    sync.Mutex
	spans []*Span // in the order in which they began
}

// Span is the record of a span.
type Span struct {
	tracenoop.Span
	of      *Tracers
	context trace.SpanContext
	ended   bool

	Name       string
	Kind       trace.SpanKind
	Parent     trace.SpanContext
	Attributes map[attribute.Key]attribute.Value
	Events     []string
	Status     codes.Code
	Broken     bool // an attribute or the status is not UTF-8, or is huge
}

// Ended returns the spans that have ended, in the order in which they began.
func (t *Tracers) Ended() []*Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(t.spans), func(s *Span) bool { return !s.ended })
}

// Tracer implements trace.TracerProvider.
func (t *Tracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{of: t} }

type tracer struct {
	tracenoop.Tracer
	of *Tracers
}

func (t tracer) Start(ctx context.Context, name string, o ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(o...)
	s := &Span{of: t.of, Name: name, Kind: config.SpanKind(), Parent: trace.SpanContextFromContext(ctx), Attributes: map[attribute.Key]attribute.Value{}}
	id := trace.SpanContextConfig{TraceID: s.Parent.TraceID(), TraceFlags: trace.FlagsSampled, TraceState: s.Parent.TraceState()}
	for i := range id.SpanID {
		id.SpanID[i] = byte(1 + rand.N(255))
	}
	if !s.Parent.IsValid() {
		for i := range id.TraceID {
			id.TraceID[i] = byte(1 + rand.N(255))
		}
	}
	s.context = trace.NewSpanContext(id)
	s.SetAttributes(config.Attributes()...)
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.of.spans = append(t.of.spans, s)
	return trace.ContextWithSpan(ctx, s), s
}

// SpanContext implements trace.Span, as the methods below do.
func (s *Span) SpanContext() trace.SpanContext { return s.context }

// IsRecording is always true.
func (s *Span) IsRecording() bool { return true }

// SetAttributes keeps the last of each key.
func (s *Span) SetAttributes(attributes ...attribute.KeyValue) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for _, a := range attributes {
		s.Attributes[a.Key] = a.Value
		s.check(a.Value.String())
	}
}

// AddEvent keeps the name.
func (s *Span) AddEvent(name string, _ ...trace.EventOption) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.Events = append(s.Events, name)
}

// SetStatus keeps the code.
func (s *Span) SetStatus(code codes.Code, description string) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.Status = code
	s.check(description)
}

func (s *Span) check(text string) { s.Broken = s.Broken || !utf8.ValidString(text) || len(text) > 1000 }

// End puts the span where Ended finds it.
func (s *Span) End(...trace.SpanEndOption) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.ended = true
}
