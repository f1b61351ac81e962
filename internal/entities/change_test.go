package entities

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// byHand are changes of an entity in a storage.
var byHand = map[string]func(*testing.T, storage.Storage, string){
	"pause": changes(func(ctx context.Context, e *Subject) (bool, error) { return e.Pause(ctx, time.Second) }),
	"reset": changes(func(ctx context.Context, e *Subject) (bool, error) { return e.Reset(ctx) }),
	"pin": changes(func(ctx context.Context, e *Subject) (bool, error) {
		return e.Pin(ctx, drip.Pin{Concurrency: 50, For: time.Second})
	}),
}

// changes returns a function that changes an entity.
func changes(change func(context.Context, *Subject) (bool, error)) func(*testing.T, storage.Storage, string) {
	return func(t *testing.T, s storage.Storage, entity string) {
		t.Helper()
		e, err := Open(t.Context(), s, entity)
		ok(t, err)
		if done, err := change(t.Context(), e); !done || err != nil {
			t.Fatal(done, err)
		}
	}
}

// letForget passes the time in which a storage in memory looks for entities that it may forget.
func letForget(t *testing.T, s storage.Storage) {
	t.Helper()
	other := buckettest.New(t, drip.Options{Storage: s})
	for range 60 { // the storage looks for entities that it may forget
		time.Sleep(15 * time.Second)
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			buckettest.Admit(t, other, "other", drip.Request{})
		}
	}
}

// A failure does not keep other entities from being changed, unless nearly everything fails.
func TestChangeAll(t *testing.T) {
	s := memory.New()
	b := buckettest.New(t, drip.Options{Storage: s})
	const many = 1000
	for i := range many {
		buckettest.Admit(t, b, fmt.Sprintf("shop-%04d", i), drip.Request{})
	}
	names, err := Names(t.Context(), s, "shop-00")
	if err != nil || len(names) != 100 {
		t.Fatal(len(names), err)
	}
	failure := errors.New("no")
	changed, failed, err := ChangeAll(t.Context(), s, names, time.Minute, func(ctx context.Context, e *Subject) (bool, error) {
		if e.Entity == "shop-0007" {
			return false, failure
		}
		return e.Pause(ctx, time.Hour)
	})
	if changed != 99 || failed != 1 || !errors.Is(err, failure) {
		t.Errorf("%d changed, %d failed, %v", changed, failed, err)
	}
	names, err = Names(t.Context(), s, "")
	if err != nil || len(names) != many {
		t.Fatal(len(names), err)
	}
	var asked atomic.Int64
	changed, failed, err = ChangeAll(t.Context(), s, names, time.Minute, func(context.Context, *Subject) (bool, error) {
		asked.Add(1)
		return false, failure
	})
	if changed != 0 || failed != many || err == nil || asked.Load() > 2*mostFailures {
		t.Errorf("%d changed, %d failed, %v, after %d were tried", changed, failed, err, asked.Load())
	}
}

var ok = oktest.OK // ends the test if there is an error

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
