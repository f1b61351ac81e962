package entities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

// A change by hand of an entity of which nothing is stored gives it no capacity: in a new process it begins empty.
func TestChangeOfAnUnknownEntity(t *testing.T) {
	for _, doing := range []string{"pause", "pin"} {
		for _, entity := range []string{"shop", drip.SharedID("app")} {
			t.Run(doing+" "+entity, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := memory.New()
					o := drip.Options{Size: 5, RefreshRate: 5, RefreshInterval: 24 * time.Hour, Storage: s}
					if entity != "shop" {
						o.Shared = map[string]drip.Limit{"app": {Size: 5, RefreshInterval: 24 * time.Hour}}
						o.Size, o.RefreshRate, o.RefreshInterval = 1<<30, 1<<30, time.Millisecond
					}
					b, err := drip.New(o)
					ok(t, err)
					time.Sleep(time.Second)
					byHand[doing](t, s, entity)
					time.Sleep(2 * time.Second)
					if a := buckettest.Admit(t, b, "shop", drip.Request{}); a.Delay == 0 {
						t.Error("it runs, want it to wait for the next interval as it does without the change")
					}
				})
			})
		}
	}
}
