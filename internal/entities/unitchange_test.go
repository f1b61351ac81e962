package entities

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

// A change by hand of an entity whose only window counts a unit lets the storage forget nothing that has run.
func TestChangeOfAUnitAlone(t *testing.T) {
	for doing, change := range map[string]func(context.Context, *Subject) (bool, error){
		"pause": func(ctx context.Context, e *Subject) (bool, error) { return e.Pause(ctx, time.Second) },
		"reset": func(ctx context.Context, e *Subject) (bool, error) { return e.Reset(ctx) },
		"pin": func(ctx context.Context, e *Subject) (bool, error) {
			return e.Pin(ctx, drip.Pin{Concurrency: 50, For: time.Second})
		},
	} {
		t.Run(doing, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New()
				b := buckettest.New(t, drip.Options{Size: 80, RefreshInterval: 24 * time.Hour, RefreshRate: 80, Unit: "tokens", Storage: s})
				time.Sleep(time.Minute)
				a := buckettest.Runs(t, b, "shop", drip.Request{Costs: drip.Costs{"tokens": 80}})
				if err := b.Settle(t.Context(), "shop", a.Lease, 1); err != nil {
					t.Fatal(err)
				}
				e, err := Open(t.Context(), s, "shop")
				if err != nil {
					t.Fatal(err)
				}
				if done, err := change(t.Context(), e); !done || err != nil {
					t.Fatal(done, err)
				}
				other := buckettest.New(t, drip.Options{Storage: s})
				for range 60 { // the storage looks for what it may forget
					time.Sleep(15 * time.Second)
					for range 5 {
						time.Sleep(100 * time.Millisecond)
						buckettest.Admit(t, other, "other", drip.Request{})
					}
				}
				if a := buckettest.Admit(t, b, "shop", drip.Request{Costs: drip.Costs{"tokens": 80}}); a.Delay == 0 {
					t.Error("80 more tokens are used within the day, although 80 are all")
				}
			})
		})
	}
}
