// Package telemetry measures a bucket and its storage through OpenTelemetry's API. It brings no SDK: the metrics go to
// the MeterProvider that your program has.
//
//	bucket, err := telemetry.New(drip.Options{Size: 20, RefreshRate: 10, Storage: s}, provider)
//
// is drip.New, and also measures:
//
//	drip.decisions         answers of GetDelay and Admit: drip.outcome is run, postponed, late (it cannot run before its
//	                       Deadline) or failed. For an operation that Admit postpones, drip.bound is the cause: closed
//	                       (Throttled or Pause), tokens, booked, window 1, window 2, …, and drip.limit is the name of
//	                       the shared limit that it belongs to, absent for the entity's own limit; drip.trial is true
//	                       for the answers of limits on trial, see drip.Limit.Shadow
//	drip.delay             the delay of a postponed operation, in seconds
//	drip.throttled         how often the provider has refused an operation: calls of Throttled
//	drip.leases            leases that are out: taken by this Bucket, not given back and not over
//	drip.leases.expired    leases that were over before they were given back: an operation took longer than its lease,
//	                       or was never settled
//	drip.storage.duration  the time of a call of the storage, in seconds, except of List: drip.operation is get_delay,
//	                       admit, settle, …, read (for Inspect and limiters), get or set (for limiters,
//	                       drip.Options.History, and a storage with only Get and Set); error.type is conflict (for a
//	                       Set that lost its race and is repeated), canceled, timeout or _OTHER
//
// No metric has the entity as an attribute, so there are as many series for a million entities as for one. Package
// consumer measures messages.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage/memory"
)

const scope = "github.com/drip-go/drip/telemetry"

// Attributes.
const (
	keyOutcome   = attribute.Key("drip.outcome")
	keyBound     = attribute.Key("drip.bound")
	keyLimit     = attribute.Key("drip.limit")
	keyTrial     = attribute.Key("drip.trial")
	keyOperation = attribute.Key("drip.operation")
	keyErrorType = attribute.Key("error.type")
)

// Bucket is a drip.Bucket with metrics. Make one with New; it is safe for concurrent use.
type Bucket struct {
	*drip.Bucket

	attributes []attribute.KeyValue
	decisions  metric.Int64Counter
	delay      metric.Float64Histogram
	throttled  metric.Int64Counter
	leases     leases
	trial      bool // some limits are on trial

	// The labels of the metrics, made once.
	run, late, failed, put, every labels
	bound                         map[string][]labels // of postponed operations, by the shared limit and the Bound
}

// labels are attributes in the form that instruments take without an allocation.
type labels struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func labelled(common []attribute.KeyValue, more ...attribute.KeyValue) labels {
	o := metric.WithAttributeSet(attribute.NewSet(slices.Concat(common, more)...))
	return labels{[]metric.AddOption{o}, []metric.RecordOption{o}}
}

// New returns a drip.New(o) with metrics of its decisions, leases and storage. All metrics have the attributes, which
// may tell one bucket of a process from another. New returns the errors of drip.New and of the provider.
func New(o drip.Options, p metric.MeterProvider, attributes ...attribute.KeyValue) (*Bucket, error) {
	if o.Storage == nil {
		o.Storage = memory.New()
	}
	var err error
	if o.Storage, err = Storage(o.Storage, p, attributes...); err != nil {
		return nil, err
	}
	b := &Bucket{attributes: slices.Clone(attributes)}
	if b.Bucket, err = drip.New(o); err != nil {
		return nil, err
	}
	if err := b.instruments(p.Meter(scope)); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	b.trial = o.Shadow
	for _, l := range o.Shared {
		b.trial = b.trial || l.Shadow
	}
	b.begin(&o)
	return b, nil
}

func (b *Bucket) instruments(m metric.Meter) error {
	var errs [5]error
	b.decisions, errs[0] = m.Int64Counter("drip.decisions", metric.WithUnit("{decision}"),
		metric.WithDescription("Answers of the limiter, by outcome and by the cause of a postponement."))
	b.delay, errs[1] = m.Float64Histogram("drip.delay", metric.WithUnit("s"),
		metric.WithDescription("By how long operations were postponed."),
		metric.WithExplicitBucketBoundaries(.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600, 86400))
	b.throttled, errs[2] = m.Int64Counter("drip.throttled", metric.WithUnit("{refusal}"),
		metric.WithDescription("Operations that the provider has refused because of its limit."))
	every := metric.WithAttributeSet(attribute.NewSet(slices.Clone(b.attributes)...))
	_, errs[3] = m.Int64ObservableUpDownCounter("drip.leases", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that are out."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			out, _ := b.leases.count()
			o.Observe(out, every)
			return nil
		}))
	_, errs[4] = m.Int64ObservableCounter("drip.leases.expired", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases that were over before they were given back."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			_, expired := b.leases.count()
			o.Observe(expired, every)
			return nil
		}))
	return errors.Join(errs[:]...)
}

// begin makes the attributes, and begins the counters with 0, because the first event of a counter that begins with it
// stays unseen.
func (b *Bucket) begin(o *drip.Options) {
	ctx := context.Background()
	b.every = labelled(b.attributes)
	b.run = labelled(b.attributes, keyOutcome.String("run"))
	b.put = labelled(b.attributes, keyOutcome.String("postponed"))
	b.late = labelled(b.attributes, keyOutcome.String("late"))
	b.failed = labelled(b.attributes, keyOutcome.String("failed"))
	b.bound = map[string][]labels{}
	b.beginLimit(ctx, "", 1+len(o.Windows))
	for name, l := range o.Shared {
		if !l.Shadow {
			b.beginLimit(ctx, name, 1+len(l.Windows))
		}
	}
	b.decisions.Add(ctx, 0, b.run.add...)
	b.decisions.Add(ctx, 0, b.late.add...)
	b.decisions.Add(ctx, 0, b.failed.add...)
	b.throttled.Add(ctx, 0, b.every.add...)
}

// beginLimit is begin for the postponements by a shared limit, or by the entity's own with the name "".
func (b *Bucket) beginLimit(ctx context.Context, name string, windows int) {
	all := []labels{drip.BoundNone: b.put}
	for bound := drip.BoundClosed; int(bound) < int(drip.BoundWindow)+windows; bound++ {
		all = append(all, labelled(b.attributes, postponedBy(name, bound)...))
		b.decisions.Add(ctx, 0, all[bound].add...)
	}
	b.bound[name] = all
}

// boundBy returns the labels of a decision. begin makes those of the options' windows.
func (b *Bucket) boundBy(limit string, bound drip.Bound) labels {
	if all := b.bound[limit]; int(bound) < len(all) {
		return all[bound]
	}
	return labelled(b.attributes, postponedBy(limit, bound)...)
}

func postponedBy(limit string, bound drip.Bound) []attribute.KeyValue {
	by := []attribute.KeyValue{keyOutcome.String("postponed"), keyBound.String(bound.String())}
	if limit != "" {
		by = append(by, keyLimit.String(limit))
	}
	return by
}

func (b *Bucket) decided(ctx context.Context, delay time.Duration, postponed labels, err error) {
	switch {
	case errors.Is(err, drip.ErrDeadline):
		b.decisions.Add(ctx, 1, b.late.add...)
	case err != nil:
		b.decisions.Add(ctx, 1, b.failed.add...)
	case delay > 0:
		b.decisions.Add(ctx, 1, postponed.add...)
		b.delay.Record(ctx, delay.Seconds(), b.every.record...)
	default:
		b.decisions.Add(ctx, 1, b.run.add...)
	}
}

// tried counts an answer of limits on trial.
func (b *Bucket) tried(ctx context.Context, a *drip.Admission, err error) {
	trial := keyTrial.Bool(true)
	switch {
	case err != nil:
		b.decisions.Add(ctx, 1, labelled(b.attributes, trial, keyOutcome.String("failed")).add...)
	case a.Delay > 0:
		b.decisions.Add(ctx, 1, labelled(b.attributes, append(postponedBy(a.Limit, a.Bound), trial)...).add...)
		b.delay.Record(ctx, a.Delay.Seconds(), labelled(b.attributes, trial).record...)
	default:
		b.decisions.Add(ctx, 1, labelled(b.attributes, trial, keyOutcome.String("run")).add...)
	}
}

// GetDelay does as drip.Bucket.GetDelay.
func (b *Bucket) GetDelay(ctx context.Context, entityID string) (time.Duration, error) {
	return b.GetDelayAt(ctx, entityID, time.Time{})
}

// GetDelayAt does as drip.Bucket.GetDelayAt.
func (b *Bucket) GetDelayAt(ctx context.Context, entityID string, now time.Time) (time.Duration, error) {
	delay, err := b.Bucket.GetDelayAt(ctx, entityID, now)
	b.decided(ctx, delay, b.put, err)
	return delay, err
}

// Admit does as drip.Bucket.Admit.
func (b *Bucket) Admit(ctx context.Context, entityID string, r drip.Request) (drip.Admission, error) {
	a, err := b.Bucket.Admit(ctx, entityID, r)
	if b.trial && strings.HasPrefix(entityID, drip.ShadowID("")) {
		b.tried(ctx, &a, err)
		return a, err
	}
	b.decided(ctx, a.Delay, b.boundBy(a.Limit, a.Bound), err)
	if err == nil && a.Delay == 0 {
		b.leases.taken(entityID, a.Lease)
	}
	return a, err
}

// Settle does as drip.Bucket.Settle.
func (b *Bucket) Settle(ctx context.Context, entityID string, l drip.Lease, cost int, costs ...drip.Costs) error {
	err := b.Bucket.Settle(ctx, entityID, l, cost, costs...)
	b.leases.given(entityID, l, err)
	return err
}

// Cancel does as drip.Bucket.Cancel.
func (b *Bucket) Cancel(ctx context.Context, entityID string, a drip.Admission) error {
	err := b.Bucket.Cancel(ctx, entityID, a)
	b.leases.given(entityID, a.Lease, err)
	return err
}

// Renew does as drip.Bucket.Renew.
func (b *Bucket) Renew(ctx context.Context, entityID string, l drip.Lease) (drip.Lease, error) {
	renewed, err := b.Bucket.Renew(ctx, entityID, l)
	if err == nil {
		b.leases.renewed(entityID, l, renewed)
	} else {
		b.leases.given(entityID, l, err)
	}
	return renewed, err
}

// Throttled does as drip.Bucket.Throttled.
func (b *Bucket) Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error {
	b.throttled.Add(ctx, 1, b.every.add...)
	return b.Bucket.Throttled(ctx, entityID, retryAfter)
}

// Reset does as drip.Bucket.Reset.
func (b *Bucket) Reset(ctx context.Context, entityID string) error {
	err := b.Bucket.Reset(ctx, entityID)
	if err == nil {
		b.leases.reset(entityID)
	}
	return err
}
