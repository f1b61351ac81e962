package drip_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// After ErrCost the lease is still out, also of limits on trial: the next Settle ends it there, too.
func TestShadowSettlesAfterErrCost(t *testing.T) {
	for name, o := range map[string]drip.Options{
		"some on trial": {Size: 100, Shared: map[string]drip.Limit{"app": {Concurrency: 1, Shadow: true}}},
		"all on trial":  {Size: 100, RefreshRate: 100, Concurrency: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &drip.Shadow{Bucket: buckettest.New(t, o)}
				defer s.Close()
				first := buckettest.Runs(t, s, "shop", drip.Request{})
				second := buckettest.Runs(t, s, "shop", drip.Request{})
				for _, a := range []drip.Admission{first, second} {
					for _, cost := range []int{-1, 1 << 41} {
						if err := s.Settle(t.Context(), "shop", a.Lease, cost); !errors.Is(err, drip.ErrCost) {
							t.Errorf("Settle with a cost of %d = %v, want ErrCost", cost, err)
						}
					}
					ok(t, s.Settle(t.Context(), "shop", a.Lease, 1))
				}
				time.Sleep(2 * time.Second)
				if a := buckettest.Runs(t, s, "shop", drip.Request{}); a.Bound != drip.BoundNone {
					t.Errorf("the next operation is bound by %v, want nothing: all are over", a.Bound)
				}
			})
		})
	}
}
