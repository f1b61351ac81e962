package buckettest

import (
	"context"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
)

// Do does an operation by the storage's clock. An error ends the test.
func Do(t oktest.TB, s storage.Atomic, key string, l *decision.Limits, op decision.Op) decision.Answer {
	t.Helper()
	op.Now = decision.OwnClock
	a, err := s.Do(t.Context(), key, l, nil, op)
	if err != nil {
		t.Fatalf("operation %d of %q: %v", op.Kind, key, err)
	}
	return a
}

// Ask is a GetDelay by the storage's clock.
func Ask(ctx context.Context, s storage.Atomic, key string, l *decision.Limits) (time.Duration, error) {
	a, err := s.Do(ctx, key, l, nil, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
	return time.Duration(a.Delay) * time.Millisecond, err
}

// GetDelay is Ask. An error ends the test.
func GetDelay(t oktest.TB, s storage.Atomic, key string, l *decision.Limits) time.Duration {
	t.Helper()
	return time.Duration(Do(t, s, key, l, decision.Op{Kind: decision.GetDelay}).Delay) * time.Millisecond
}

// Read returns what a storage tells of an entity. An error ends the test.
func Read(t oktest.TB, s storage.Reader, key string) storage.Entry {
	t.Helper()
	e, err := s.Read(t.Context(), key)
	if err != nil {
		t.Fatalf("Read(%q): %v", key, err)
	}
	return e
}
