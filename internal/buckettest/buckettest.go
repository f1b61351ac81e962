// Package buckettest makes and asks the buckets of tests.
package buckettest

import (
	"context"
	"time"

	"github.com/drip-go/drip"
)

// TB is the part of testing.TB that is needed here, so that importing this package links no package testing.
type TB interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

// New makes a bucket, or ends the test. Its entities start full, unless o says otherwise.
func New(t TB, o drip.Options) *drip.Bucket {
	t.Helper()
	if o.Start.IsZero() {
		o.Start = time.Unix(0, 0)
	}
	b, err := drip.New(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return b
}

// Admitter is a bucket, or what measures or shadows one.
type Admitter interface {
	Admit(ctx context.Context, entityID string, r drip.Request) (drip.Admission, error)
}

// Admit returns the answer of a bucket. An error ends the test.
func Admit(t TB, b Admitter, entity string, r drip.Request) drip.Admission {
	t.Helper()
	a, err := b.Admit(t.Context(), entity, r)
	if err != nil {
		t.Fatalf("Admit of %q: %v", entity, err)
	}
	return a
}

// Runs is Admit of an operation that has to run. A delay ends the test.
func Runs(t TB, b Admitter, entity string, r drip.Request) drip.Admission {
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
func Inspect(t TB, b Inspector, entity string) drip.Status {
	t.Helper()
	s, err := b.Inspect(t.Context(), entity)
	if err != nil {
		t.Fatalf("Inspect of %q: %v", entity, err)
	}
	return s
}
