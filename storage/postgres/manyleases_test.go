package postgres_test

import (
	"sync"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A storage keeps leases that have ended until the next decision. However many they are, no token is in use then.
func TestManyLeasesEnded(t *testing.T) {
	b := buckettest.New(t, drip.Options{Size: 3000, RefreshRate: 1, RefreshInterval: 24 * time.Hour, Concurrency: 1600, Lease: 3 * time.Second, Storage: newStorage(t)})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				if _, err := b.Admit(t.Context(), "shop", drip.Request{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	time.Sleep(3100 * time.Millisecond)
	if s := buckettest.Inspect(t, b, "shop"); s.InUse != 0 {
		t.Errorf("after all leases have ended %d tokens are in use, want none", s.InUse)
	}
}
