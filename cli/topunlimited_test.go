package cli

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/provider"
)

// top tells the capacity of a window that limits, also behind one that limits nothing.
func TestTopBehindNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, url := newMemory(t)
		limit, err := provider.Limit(0, provider.Concurrency(5))
		ok(t, err)
		o := provider.Options(limit)
		o.Storage = s
		b := buckettest.New(t, o)
		ok(t, b.Pin(t.Context(), "shop", drip.Pin{Window: drip.Window{Size: 3, RefreshInterval: time.Hour}}))
		for range 2 {
			buckettest.Runs(t, b, "shop", drip.Request{})
		}
		prints(t, "2: 1/3", "top", url)
	})
}
