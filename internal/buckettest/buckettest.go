// Package buckettest makes and asks the buckets of tests.
package buckettest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
)

// New makes a bucket, or ends the test. Its entities start full, unless o says otherwise.
func New(t oktest.TB, o drip.Options) *drip.Bucket {
	t.Helper()
	if o.Start.IsZero() {
		o.Start = time.Unix(0, 0)
	}
	b, err := drip.New(o)
	oktest.OK(t, err)
	return b
}

// Ready makes limits ready for decisions.
func Ready(l decision.Limits) *decision.Limits {
	if field, window := l.Ready(); field != "" {
		panic(fmt.Sprintf("limits have a bad %s of window %d: %+v", field, window, l))
	}
	return &l
}

// Admitter is a bucket, or what measures or shadows one.
type Admitter interface {
	Admit(ctx context.Context, entityID string, r drip.Request) (drip.Admission, error)
}

// Admit returns the answer of a bucket. An error ends the test.
func Admit(t oktest.TB, b Admitter, entity string, r drip.Request) drip.Admission {
	t.Helper()
	a, err := b.Admit(t.Context(), entity, r)
	if err != nil {
		t.Fatalf("Admit of %q: %v", entity, err)
	}
	return a
}

// Runs is Admit of an operation that has to run. A delay ends the test.
func Runs(t oktest.TB, b Admitter, entity string, r drip.Request) drip.Admission {
	t.Helper()
	a := Admit(t, b, entity, r)
	if a.Delay > 0 {
		t.Fatalf("Admit of %q = %+v, want it to run", entity, a)
	}
	return a
}

// Inspector is what Inspect asks.
type Inspector interface {
	Inspect(ctx context.Context, entityID string) (drip.Status, error)
}

// Inspect returns the status of an entity. An error ends the test.
func Inspect(t oktest.TB, b Inspector, entity string) drip.Status {
	t.Helper()
	s, err := b.Inspect(t.Context(), entity)
	if err != nil {
		t.Fatalf("Inspect of %q: %v", entity, err)
	}
	return s
}

// EndedLeases checks a storage after more leases have ended than [storage.MostListed]. It keeps them until the next decision,
// but no token is in use.
func EndedLeases(t oktest.TB, s storage.Storage) {
	t.Helper()
	b := New(t, drip.Options{Size: 3000, RefreshRate: 1, RefreshInterval: 24 * time.Hour, Concurrency: 1600, Lease: 3 * time.Second, Storage: s})
	var errs [16]error
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for range 100 {
				_, err := b.Admit(t.Context(), "shop", drip.Request{})
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	oktest.OK(t, errors.Join(errs[:]...))
	time.Sleep(3100 * time.Millisecond)
	if s := Inspect(t, b, "shop"); s.InUse != 0 || s.Delay != 0 {
		t.Fatalf("after all leases have ended Inspect tells %d in use, and a delay of %v for %v; want none", s.InUse, s.Delay, s.Bound)
	}
	Runs(t, b, "shop", drip.Request{})
}
