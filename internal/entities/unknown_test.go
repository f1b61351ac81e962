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

// A change by hand of an entity of which nothing is stored gives it no capacity: in a new process it begins empty.
func TestChangeOfAnUnknownEntity(t *testing.T) {
	for doing, change := range map[string]func(context.Context, *Subject) (bool, error){
		"pause": func(ctx context.Context, e *Subject) (bool, error) { return e.Pause(ctx, time.Second) },
		"pin": func(ctx context.Context, e *Subject) (bool, error) {
			return e.Pin(ctx, drip.Pin{Concurrency: 50, For: time.Second})
		},
	} {
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
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
					e, err := Open(t.Context(), s, entity)
					if err != nil {
						t.Fatal(err)
					}
					if done, err := change(t.Context(), e); !done || err != nil {
						t.Fatal(done, err)
					}
					time.Sleep(2 * time.Second)
					if a := buckettest.Admit(t, b, "shop", drip.Request{}); a.Delay == 0 {
						t.Error("it runs, want it to wait for the next interval as it does without the change")
					}
				})
			})
		}
	}
}
