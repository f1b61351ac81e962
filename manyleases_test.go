package drip_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A storage keeps leases that have ended until the next decision, however many they are.
func TestInspectAfterManyLeasesEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := buckettest.New(t, drip.Options{Size: 3000, RefreshRate: 1, RefreshInterval: time.Hour, Concurrency: 1600, Lease: time.Second})
		for range 1600 {
			buckettest.Runs(t, b, "shop", drip.Request{})
		}
		time.Sleep(2 * time.Second)
		s, err := b.Inspect(t.Context(), "shop")
		if err != nil || s.InUse != 0 || s.Delay != 0 {
			t.Errorf("after all leases have ended Inspect tells %d in use, a delay of %v for %v, %v; want none", s.InUse, s.Delay, s.Bound, err)
		}
		buckettest.Runs(t, b, "shop", drip.Request{})
	})
}
