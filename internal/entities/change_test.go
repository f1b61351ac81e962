package entities

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
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

// ok ends the test if there is an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
