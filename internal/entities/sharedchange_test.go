package entities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

// A change of a shared limit by hand keeps the stored limits, and the time for which the storage keeps them. Else the storage
// forgets the operations that have run, and more run than the limit.
func TestChangeOfASharedLimit(t *testing.T) {
	app := drip.SharedID("app")
	for name, limit := range map[string]drip.Limit{
		"a day":   {Size: 8, RefreshInterval: 24 * time.Hour},
		"gathers": {Size: 8, RefreshRate: 1, RefreshInterval: time.Hour, Concurrency: 20},
		"units":   {Size: 8, RefreshInterval: 24 * time.Hour, Windows: []drip.Window{{Size: 80, RefreshInterval: 24 * time.Hour, Unit: "tokens"}}},
	} {
		for doing, change := range byHand {
			t.Run(name+" "+doing, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := memory.New()
					b := buckettest.New(t, drip.Options{Storage: s, Shared: map[string]drip.Limit{"app": limit}})
					time.Sleep(time.Minute)
					for range 8 {
						a := buckettest.Runs(t, b, "shop", drip.Request{})
						ok(t, b.Settle(t.Context(), "shop", a.Lease, 1))
					}
					before := buckettest.Inspect(t, b, app)
					change(t, s, app)
					e, err := Open(t.Context(), s, app)
					ok(t, err)
					if got := e.Windows[0].Size; len(e.Windows) != len(before.Windows) || got != 8 {
						t.Errorf("the stored limits are %v, want those of the owner: %v", e.Windows, before.Windows)
					}
					letForget(t, s)
					if a := buckettest.Admit(t, b, "shop", drip.Request{}); a.Delay == 0 {
						t.Error("another one runs, although the limit is used up")
					}
				})
			})
		}
	}
}
