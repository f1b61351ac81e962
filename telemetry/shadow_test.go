package telemetry

import (
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oteltest"
)

// An entity whose name begins like a ShadowID is any entity while nothing is on trial.
func TestNameLikeAShadowID(t *testing.T) {
	for name, o := range map[string]drip.Options{
		"nothing": {}, "a limit": {Shared: map[string]drip.Limit{"app": {Size: 9, Shadow: true}}}, "the own": {Shadow: true},
	} {
		var meters oteltest.Meters
		o.Start = time.Unix(0, 0)
		bucket := newBucket(t, o, &meters)
		buckettest.Runs(t, bucket, "shadow:shop", drip.Request{})
		trials := meters.Sum("drip.decisions", attribute.Bool("drip.trial", true))
		if leases := meters.Sum("drip.leases"); (trials == 0) != (name == "nothing") || leases != 1-trials {
			t.Errorf("%s is on trial: %v trials and %v leases", name, trials, leases)
		}
	}
}

// The metrics show what would have been postponed, and tell the answers of limits on trial from the others.
func TestShadowIsMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		options drip.Options
		ran     float64 // in all decisions
		trial   []attribute.KeyValue
	}{
		"all": {drip.Options{Size: 2, RefreshRate: 1}, 10, nil},
		"a limit on trial": {
			drip.Options{Size: 20, Shared: map[string]drip.Limit{"app": {Size: 2, RefreshRate: 1, Shadow: true}}}, 20,
			[]attribute.KeyValue{attribute.Bool("drip.trial", true)},
		},
		"the own limit on trial": {drip.Options{Size: 2, RefreshRate: 1, Shadow: true}, 20, []attribute.KeyValue{attribute.Bool("drip.trial", true)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var meters oteltest.Meters
				c.options.Start = time.Unix(0, 0)
				shadow := &drip.Shadow{Bucket: newBucket(t, c.options, &meters)}
				defer shadow.Close()
				for range 10 {
					a := buckettest.Runs(t, shadow, "shop", drip.Request{})
					ok(t, shadow.Settle(t.Context(), "shop", a.Lease, 1))
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				decisions := func(outcome string, more ...attribute.KeyValue) float64 {
					return meters.Sum("drip.decisions", append(more, attribute.String("drip.outcome", outcome))...)
				}
				if postponed, ran := decisions("postponed", c.trial...), decisions("run", c.trial...); postponed != 8 || ran != 10 {
					t.Errorf("%v would have run, after %v postponements; want 10 and 8", ran, postponed)
				}
				if ran, out := decisions("run"), meters.Sum("drip.leases"); ran != c.ran || out != 0 {
					t.Errorf("%v ran in all, want %v; %v leases are out", ran, c.ran, out)
				}
			})
		})
	}
}
