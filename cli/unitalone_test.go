package cli

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// The stored limit of an entity may be one window that counts a unit.
func TestInspectOfAUnitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, url := newMemory(t)
		b := buckettest.New(t, drip.Options{Size: 80, RefreshRate: 80, RefreshInterval: 24 * time.Hour, Unit: "tokens", Storage: s})
		time.Sleep(time.Minute)
		buckettest.Runs(t, b, "shop", drip.Request{Costs: drip.Costs{"tokens": 80}})
		want := buckettest.Inspect(t, b, "shop")
		got := inspected(t, url, "shop")
		if got.Delay != want.Delay.Milliseconds() || got.Bound != want.Bound.String() {
			t.Errorf("inspect tells %v, Bucket.Inspect %v for %v:\n%s", got, want.Delay, want.Bound, must(t, "inspect", url, "shop"))
		}
		prints(t, "0 of 80", "inspect", url, "shop")
		prints(t, "0/80", "top", url)
	})
}
