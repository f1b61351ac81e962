// Package buckettest makes the buckets of tests.
package buckettest

import (
	"time"

	"github.com/drip-go/drip"
)

// TB is the part of testing.TB that is needed here, so that importing this package links no package testing.
type TB interface {
	Helper()
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
