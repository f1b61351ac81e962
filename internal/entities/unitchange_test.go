package entities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

// A change by hand of an entity whose only window counts a unit lets the storage forget nothing that has run.
func TestChangeOfAUnitAlone(t *testing.T) {
	for doing, change := range byHand {
		t.Run(doing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New()
				b := buckettest.New(t, drip.Options{Size: 80, RefreshInterval: 24 * time.Hour, RefreshRate: 80, Unit: "tokens", Storage: s})
				time.Sleep(time.Minute)
				a := buckettest.Runs(t, b, "shop", drip.Request{Costs: drip.Costs{"tokens": 80}})
				ok(t, b.Settle(t.Context(), "shop", a.Lease, 1))
				change(t, s, "shop")
				letForget(t, s)
				if a := buckettest.Admit(t, b, "shop", drip.Request{Costs: drip.Costs{"tokens": 80}}); a.Delay == 0 {
					t.Error("80 more tokens are used within the day, although 80 are all")
				}
			})
		})
	}
}
