package drip_test

import (
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// The calls about a lease follow the time of the Request that took it: a simulation of another year needs no Clock.
func TestLeaseFollowsRequestNow(t *testing.T) {
	ctx := t.Context()
	for name, begin := range map[string]time.Time{
		"past":   time.Date(2001, 1, 1, 12, 0, 0, 0, time.UTC),
		"future": time.Date(2101, 1, 1, 12, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			b := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 1, Concurrency: 1, Lease: time.Minute, Start: begin.Add(-time.Hour)})
			for i := range 30 {
				now := begin.Add(time.Duration(i) * time.Second)
				a, err := b.Admit(ctx, "shop", drip.Request{Now: now, Cost: 2})
				if err != nil || a.Delay > 0 {
					t.Fatalf("Admit %d = %v, %v", i, a.Delay, err)
				}
				lease := a.Lease
				if i%2 == 1 {
					if lease, err = b.Renew(ctx, "shop", lease); err != nil {
						t.Fatalf("Renew %d: %v", i, err)
					}
					if got := lease.End().Sub(now); got != time.Minute {
						t.Errorf("Renew %d: the lease ends in %v", i, got)
					}
				}
				if i%3 == 2 {
					err = b.Cancel(ctx, "shop", drip.Admission{Lease: lease})
				} else {
					err = b.Settle(ctx, "shop", lease, 1)
				}
				if err != nil {
					t.Fatalf("the end of operation %d: %v", i, err)
				}
			}
			// Its end is in the time of the simulation, too.
			a := buckettest.Admit(t, b, "shop", drip.Request{Now: begin.Add(time.Hour)})
			buckettest.Admit(t, b, "shop", drip.Request{Now: begin.Add(2 * time.Hour)})
			if err := b.Settle(ctx, "shop", a.Lease, 1); err == nil {
				t.Error("a lease that is over for an hour was settled")
			}
		})
	}
}
