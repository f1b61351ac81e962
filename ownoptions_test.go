package drip_test

import (
	"context"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A Bucket keeps its Options: its caller may change its own map and slices afterwards, for the next Bucket.
func TestOptionsAreTheBuckets(t *testing.T) {
	asOptions := func(context.Context, string) (drip.Limit, error) { return drip.Limit{}, nil }
	o := drip.Options{
		Size: 10, Windows: []drip.Window{{Size: 20, RefreshInterval: time.Hour}}, Limits: asOptions, SharedLimits: asOptions,
		Shared: map[string]drip.Limit{
			"app":   {Size: 5, Windows: []drip.Window{{Size: 50, RefreshInterval: time.Hour}}},
			"trial": {Size: 1, Shadow: true},
		},
	}
	b := buckettest.New(t, o)
	o.Windows[0].Size = 1
	o.Shared["app"].Windows[0].Size = 2
	delete(o.Shared, "trial")
	if s := buckettest.Inspect(t, b, "shop"); s.Windows[1].Size != 20 {
		t.Errorf("a window has the size %d, want 20", s.Windows[1].Size)
	}
	if s := buckettest.Inspect(t, b, drip.SharedID("app")); s.Windows[1].Size != 50 {
		t.Errorf("a window of the shared limit has the size %d, want 50", s.Windows[1].Size)
	}
	if _, err := b.Inspect(t.Context(), drip.SharedID("trial")); err != nil {
		t.Errorf("the limit on trial: %v", err)
	}
}
