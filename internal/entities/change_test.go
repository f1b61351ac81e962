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
	"github.com/drip-go/drip/storage/memory"
)

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
	changed, failed, err := ChangeAll(t.Context(), s, names, func(ctx context.Context, e *Subject) (bool, error) {
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
	changed, failed, err = ChangeAll(t.Context(), s, names, func(context.Context, *Subject) (bool, error) {
		asked.Add(1)
		return false, failure
	})
	if changed != 0 || failed != many || err == nil || asked.Load() > 2*mostFailures {
		t.Errorf("%d changed, %d failed, %v, after %d were tried", changed, failed, err, asked.Load())
	}
}
