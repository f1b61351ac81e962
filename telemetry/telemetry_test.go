package telemetry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/oteltest"
	"github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

var (
	_ consumer.Limiter   = (*Bucket)(nil)
	_ consumer.Admitter  = (*Bucket)(nil)
	_ consumer.Admitter  = (*drip.Shadow)(nil)
	_ provider.Throttler = (*Bucket)(nil)
)

var noon = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// The metrics count each answer once, under its Bound, and no entity begins a series.
func TestDecisions(t *testing.T) {
	var meters oteltest.Meters
	api := attribute.String("api", "orders")
	now := noon
	b := newBucket(t, drip.Options{
		Size: 5, RefreshRate: 5, Concurrency: 3, Windows: []drip.Window{{Size: 4, RefreshRate: 4, RefreshInterval: time.Minute}},
		Start: time.Unix(0, 0), Clock: func() time.Time { return now },
	}, &meters, api)
	ctx := t.Context()
	admit := func(entity string, cost int) drip.Admission {
		t.Helper()
		return buckettest.Admit(t, b, entity, drip.Request{Cost: cost})
	}
	const entities = 100
	series := len(meters.Sets("drip.decisions"))
	delays := 0.0
	for i := range entities {
		now = noon
		entity := fmt.Sprint("shop-", i)
		a := admit(entity, 1) // runs, and three more
		for range 2 {
			admit(entity, 1)
		}
		delays += admit(entity, 1).Delay.Seconds() // tokens
		ok(t, b.Settle(ctx, entity, a.Lease, 1))
		now = now.Add(time.Second)
		delays += admit(entity, 4).Delay.Seconds() // the second window
		delays += admit(entity, 1).Delay.Seconds() // booked
		ok(t, b.Throttled(ctx, entity, time.Hour))
		delays += admit(entity, 1).Delay.Seconds() // closed
		if _, err := b.Admit(ctx, entity, drip.Request{Cost: 6}); !errors.Is(err, drip.ErrCost) {
			t.Fatal(err)
		}
		if _, err := b.Admit(ctx, entity, drip.Request{Deadline: now.Add(time.Minute)}); !errors.Is(err, drip.ErrDeadline) {
			t.Fatal(err)
		}
	}
	for want, attributes := range map[int][]attribute.KeyValue{
		3 * entities: {keyOutcome.String("run")},
		4 * entities: {keyOutcome.String("postponed")},
		1 * entities: {keyOutcome.String("failed")},
		9 * entities: {},
	} {
		if got := meters.Sum("drip.decisions", append(attributes, api)...); got != float64(want) {
			t.Errorf("%v decisions are %v, want %d", got, attributes, want)
		}
	}
	if got := meters.Sum("drip.decisions", keyOutcome.String("late"), api); got != entities {
		t.Errorf("%v decisions are late, want %d", got, entities)
	}
	for bound, want := range map[string]float64{"closed": entities, "tokens": entities, "booked": entities, "window 1": 0, "window 2": entities} {
		if got := meters.Sum("drip.decisions", keyBound.String(bound)); got != want {
			t.Errorf("%v decisions are bound by %s, want %v", got, bound, want)
		}
	}
	if n, sum := meters.Count("drip.delay", api), meters.Sum("drip.delay"); n != 4*entities || sum != delays {
		t.Errorf("%d delays of %v s in all, want %d of %v s", n, sum, 4*entities, delays)
	}
	if got := meters.Sum("drip.throttled", api); got != entities {
		t.Errorf("throttled %v times, want %d", got, entities)
	}
	if got := len(meters.Sets("drip.decisions")); got != series {
		t.Errorf("%d series of decisions after %d entities, want %d as in the beginning", got, entities, series)
	}
	for metric, most := range map[string]int{"drip.delay": 1, "drip.throttled": 1, "drip.leases": 1, "drip.leases.expired": 1, "drip.storage.duration": 3} {
		if got := len(meters.Sets(metric)); got != most {
			t.Errorf("%d series of %s, want %d", got, metric, most)
		}
	}
}

// A delay of GetDelay has no bound, and the metrics count a window that only one entity has all the same.
func TestDecisionsWithoutSeriesOfTheirOwn(t *testing.T) {
	var meters oteltest.Meters
	window := drip.Window{Size: 9, RefreshRate: 9, RefreshInterval: time.Second}
	b := newBucket(t, drip.Options{
		Size: 9, RefreshRate: 9, Start: time.Unix(0, 0), Clock: func() time.Time { return noon },
		Limits: func(_ context.Context, entity string) (drip.Limit, error) {
			if entity != "special" {
				return drip.Limit{}, nil
			}
			return drip.Limit{Windows: []drip.Window{window, {Size: 1, RefreshRate: 1, RefreshInterval: time.Hour}}}, nil
		},
	}, &meters)
	for range 2 {
		buckettest.Admit(t, b, "special", drip.Request{})
	}
	for range 10 {
		_, err := b.GetDelay(t.Context(), "shop")
		ok(t, err)
	}
	for want, attributes := range map[float64][]attribute.KeyValue{
		1: {keyBound.String("window 3")}, 2: {keyOutcome.String("postponed")}, 10: {keyOutcome.String("run")},
	} {
		if got := meters.Sum("drip.decisions", attributes...); got != want {
			t.Errorf("%v decisions are %v, want %v", got, attributes, want)
		}
	}
}

// A postponement by a shared limit has its name, one by the entity's own limit has none.
func TestDecisionsOfSharedLimits(t *testing.T) {
	var meters oteltest.Meters
	now := noon
	b := newBucket(t, drip.Options{
		Size: 2, RefreshRate: 2, Start: time.Unix(0, 0), Clock: func() time.Time { return now },
		Shared: map[string]drip.Limit{"app": {Size: 3, Windows: []drip.Window{{Size: 4, RefreshInterval: time.Hour}}}},
	}, &meters)
	series := len(meters.Sets("drip.decisions"))
	for _, shop := range []string{"a", "a", "a", "b", "b"} { // the third by its own limit, the fifth by the app's
		buckettest.Admit(t, b, shop, drip.Request{})
	}
	now = now.Add(time.Minute)
	buckettest.Admit(t, b, "c", drip.Request{})
	buckettest.Admit(t, b, "d", drip.Request{}) // by the app's hour
	app := attribute.Key("drip.limit").String("app")
	for _, c := range []struct {
		want       float64
		attributes []attribute.KeyValue
	}{
		{2, []attribute.KeyValue{keyBound.String("window 1")}}, {1, []attribute.KeyValue{keyBound.String("window 1"), app}},
		{1, []attribute.KeyValue{keyBound.String("window 2"), app}}, {2, []attribute.KeyValue{app}},
	} {
		if got := meters.Sum("drip.decisions", c.attributes...); got != c.want {
			t.Errorf("%v decisions are %v, want %v", got, c.attributes, c.want)
		}
	}
	if got := len(meters.Sets("drip.decisions")); got != series {
		t.Errorf("%d series of decisions, want %d as in the beginning", got, series)
	}
}

// The storage and the metric always agree on how many leases are out. Each lease that was taken is out, was given back
// or has expired.
func TestLeases(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { leasesAtRandom(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func leasesAtRandom(t *testing.T, random *rand.Rand) {
	var meters oteltest.Meters
	b := newBucket(t, drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: 8, Lease: 100 * time.Millisecond, MaxLease: 300 * time.Millisecond, Start: time.Unix(0, 0)}, &meters)
	type holder struct {
		entity        string
		first, latest drip.Lease
	}
	var holders []holder // those of leases that are over among them
	taken, given, tookBack := 0, 0, 0
	inUse := func(entity string) int {
		return buckettest.Inspect(t, b, entity).InUse
	}
	allowed := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, drip.ErrNoLease) {
			t.Fatal(err)
		}
	}
	entities := []string{"a", "b", "c"}
	for step := range 500 {
		entity := entities[random.IntN(len(entities))]
		var h *holder
		if len(holders) > 0 {
			h = &holders[random.IntN(len(holders))]
		}
		switch dice := random.IntN(100); {
		case dice < 40:
			a := buckettest.Admit(t, b, entity, drip.Request{})
			if a.Delay == 0 {
				taken++
				holders = append(holders, holder{entity, a.Lease, a.Lease})
			} else {
				allowed(b.Cancel(t.Context(), entity, a))
			}
		case dice < 60 && h != nil:
			which := h.first
			if random.IntN(2) == 0 {
				which = h.latest
			}
			before := inUse(h.entity)
			if random.IntN(2) == 0 {
				allowed(b.Settle(t.Context(), h.entity, which, 1))
			} else {
				allowed(b.Cancel(t.Context(), h.entity, drip.Admission{Lease: which}))
			}
			given += before - inUse(h.entity)
		case dice < 75 && h != nil:
			l, err := b.Renew(t.Context(), h.entity, h.latest)
			allowed(err)
			if err == nil {
				h.latest = l
			}
		case dice < 76:
			tookBack += inUse(entity)
			ok(t, b.Reset(t.Context(), entity))
		default:
			time.Sleep(time.Duration(random.IntN(50)) * time.Millisecond)
		}
		if random.IntN(2) == 0 {
			continue // nobody looks every time
		}
		out := 0
		for _, entity := range entities {
			out += inUse(entity)
		}
		if got := meters.Sum("drip.leases"); got != float64(out) {
			t.Fatalf("after step %d the metric says that %v leases are out, the storage %d", step, got, out)
		}
		if got, want := meters.Sum("drip.leases.expired"), taken-given-tookBack-out; got != float64(want) {
			t.Fatalf("after step %d %v leases have expired, want %d", step, got, want)
		}
	}
	if meters.Sum("drip.leases.expired") == 0 || given == 0 {
		t.Error("nothing has expired, or nothing was given back")
	}
	time.Sleep(time.Second)
	if meters.Sum("drip.leases") != 0 || len(b.leases.out)+len(b.leases.first)+len(b.leases.before) != 0 {
		t.Errorf("of leases that are over %d, %d and %d are kept", len(b.leases.out), len(b.leases.first), len(b.leases.before))
	}
}

// New has the defaults of drip.New, and also its default of Start, which depends on the storage.
func TestNewHasTheDefaultsOfDrip(t *testing.T) {
	clock := func() time.Time { return time.UnixMilli(5000) }
	for name, options := range map[string]func() drip.Options{
		"no storage": func() drip.Options { return drip.Options{} },
		"in memory":  func() drip.Options { return drip.Options{Storage: memory.New()} },
		"another":    func() drip.Options { return drip.Options{Storage: struct{ storage.Storage }{memory.New()}} },
		"a clock":    func() drip.Options { return drip.Options{Clock: clock} },
		"a start":    func() drip.Options { return drip.Options{Start: time.Unix(1, 0), Clock: clock} },
	} {
		synctest.Test(t, func(t *testing.T) {
			o := options()
			measured := newBucket(t, o, &oteltest.Meters{})
			plain, err := drip.New(o)
			ok(t, err)
			got := buckettest.Inspect(t, measured, "shop")
			want, err := plain.Inspect(t.Context(), "shop")
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, want %+v, %v", name, got, want, err)
			}
		})
	}
}

// A holder settles with the lease that it has, while a renewal of it is under way: it is given back, and never expires.
func TestSettleDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var meters oteltest.Meters
		b := newBucket(t, drip.Options{Size: 5, RefreshRate: 5, Start: time.Unix(0, 0)}, &meters)
		l := buckettest.Runs(t, b, "shop", drip.Request{}).Lease
		renew := func() drip.Lease {
			t.Helper()
			time.Sleep(20 * time.Second)
			renewed, err := b.Renew(t.Context(), "shop", l)
			ok(t, err)
			return renewed
		}
		for range 3 {
			l = renew()
		}
		renew()
		renew() // as after an answer that was lost
		ok(t, b.Settle(t.Context(), "shop", l, 1))
		if out := meters.Sum("drip.leases"); out != 0 {
			t.Errorf("%v leases are out, want none", out)
		}
		time.Sleep(time.Hour)
		if expired := meters.Sum("drip.leases.expired"); expired != 0 {
			t.Errorf("%v leases have expired, want none", expired)
		}
		if len(b.leases.out)+len(b.leases.first)+len(b.leases.before) != 0 {
			t.Errorf("%d, %d and %d are kept", len(b.leases.out), len(b.leases.first), len(b.leases.before))
		}
	})
}

// The bucket forgets unsettled leases even when no reader collects the metric.
func TestLeasesThatNobodyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, drip.Options{Size: 1000, RefreshRate: 1000, Lease: time.Second}, metricnoop.NewMeterProvider())
		for range 10_000 {
			time.Sleep(100 * time.Millisecond)
			buckettest.Admit(t, b, "shop", drip.Request{})
		}
		if n := len(b.leases.out); n > 100 {
			t.Errorf("%d leases are remembered, of which 10 are out", n)
		}
	})
}

// A lease whose storage does not answer is out until it is given back, or over.
func TestLeaseOfAStorageThatFails(t *testing.T) {
	var meters oteltest.Meters
	var fails error
	b := newBucket(t, drip.Options{Storage: failing(func() error { return fails }), Start: time.Unix(0, 0)}, &meters)
	a := buckettest.Runs(t, b, "shop", drip.Request{})
	fails = errors.New("down")
	if b.Settle(t.Context(), "shop", a.Lease, 1) == nil || meters.Sum("drip.leases") != 1 {
		t.Errorf("%v leases are out, want 1", meters.Sum("drip.leases"))
	}
	if _, err := b.Renew(t.Context(), "shop", a.Lease); err == nil || meters.Sum("drip.leases") != 1 {
		t.Errorf("%v leases are out, want 1", meters.Sum("drip.leases"))
	}
	fails = nil
	if err := b.Settle(t.Context(), "shop", a.Lease, 1); err != nil || meters.Sum("drip.leases") != 0 {
		t.Errorf("%v leases are out, want none: %v", meters.Sum("drip.leases"), err)
	}
}

func TestNewNamesWhatIsWrong(t *testing.T) {
	if _, err := New(drip.Options{}, nil); err == nil {
		t.Error("no provider is no error")
	}
	if _, err := New(drip.Options{Size: -1}, &oteltest.Meters{}); err == nil {
		t.Error("a Size below 0 is no error")
	}
	if _, err := New(drip.Options{}, broken{}); !errors.Is(err, errBroken) {
		t.Errorf("the provider's error became %v", err)
	}
	if _, err := Storage(nil, &oteltest.Meters{}); err == nil {
		t.Error("no storage is no error")
	}
	if _, err := Storage((*memory.Storage)(nil), &oteltest.Meters{}); err == nil {
		t.Error("a nil *memory.Storage is no error")
	}
}

var errBroken = errors.New("broken")

type broken struct{ metricnoop.MeterProvider }

func (broken) Meter(string, ...metric.MeterOption) metric.Meter { return brokenMeter{} }

type brokenMeter struct{ metricnoop.Meter }

func (brokenMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return metricnoop.Int64Counter{}, errBroken
}

// Deciding, giving back and reading the metrics at once is for the race detector to look at.
func TestManyAtOnce(t *testing.T) {
	var meters oteltest.Meters
	b := newBucket(t, drip.Options{Size: 1 << 20, RefreshRate: 1 << 20, Start: time.Unix(0, 0)}, &meters)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				a, err := b.Admit(context.Background(), "shop", drip.Request{})
				if err != nil || a.Delay > 0 {
					t.Error(a, err)
					return
				}
				l, err := b.Renew(context.Background(), "shop", a.Lease)
				if err == nil {
					err = b.Settle(context.Background(), "shop", l, 1)
				}
				if err != nil {
					t.Error(err)
				}
				meters.Sum("drip.leases")
			}
		})
	}
	all.Wait()
	if meters.Sum("drip.leases") != 0 || meters.Sum("drip.decisions") != 1600 || meters.Count("drip.storage.duration") != 4800 {
		t.Errorf("%v leases are out after %v decisions and %d calls, want 0, 1600, 4800",
			meters.Sum("drip.leases"), meters.Sum("drip.decisions"), meters.Count("drip.storage.duration"))
	}
}

// Recording itself takes nothing from the heap; what an SDK does is its own affair.
func TestRecordingAllocatesNothing(t *testing.T) {
	plain := buckettest.New(t, drip.Options{Size: 1 << 20, RefreshRate: 1 << 20, Storage: struct {
		storage.Storage
		storage.Atomic
	}{memory.New(), memory.New()}})
	measured := newBucket(t, drip.Options{Size: 1 << 20, RefreshRate: 1 << 20, Start: time.Unix(0, 0)}, metricnoop.NewMeterProvider())
	without := testing.AllocsPerRun(1000, func() { admitAndSettle(t, plain) })
	with := testing.AllocsPerRun(1000, func() { admitAndSettle(t, measured) })
	if with > without {
		t.Errorf("%v allocations, want %v as without", with, without)
	}
}

func newBucket(t testing.TB, o drip.Options, p metric.MeterProvider, attributes ...attribute.KeyValue) *Bucket {
	t.Helper()
	b, err := New(o, p, attributes...)
	ok(t, err)
	return b
}

func admitAndSettle(t testing.TB, b consumer.Admitter) {
	a, err := b.Admit(context.Background(), "shop", drip.Request{})
	if err == nil {
		err = b.Settle(context.Background(), "shop", a.Lease, 1)
	}
	ok(t, err)
}

var ok = oktest.OK // ends the test if there is an error
