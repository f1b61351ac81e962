package drip_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A time or a delay that overflows is neither early nor late.
func TestTimesThatOverflow(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	never := time.Unix(1<<63-62135596801, 0) // the latest that Time.After and Time.Before compare rightly
	b := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 300_000 * time.Hour})
	for range 20 {
		a, err := b.Admit(t.Context(), "shop", drip.Request{Now: now, Deadline: never})
		if a.Delay < 0 || err != nil && !errors.Is(err, drip.ErrDeadline) {
			t.Errorf("Admit = %+v, %v", a, err)
		}
		d, err := b.GetDelayAt(t.Context(), "shop", now)
		if d < 0 || err != nil {
			t.Errorf("GetDelayAt = %v, %v", d, err)
		}
	}
	buckettest.Runs(t, b, "other", drip.Request{Now: now, Deadline: never}) // with a deadline at the end of time
	if _, err := b.Admit(t.Context(), "shop", drip.Request{Now: time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC)}); !errors.Is(err, drip.ErrTime) {
		t.Errorf("Admit before 1970: %v, want ErrTime", err)
	}
	for _, wrong := range []time.Time{never, time.Unix(math.MaxInt64, 0), time.Unix(math.MinInt64, 0), time.Unix(math.MinInt64/1000, 0)} {
		if _, err := b.Admit(t.Context(), "shop", drip.Request{Now: wrong}); !errors.Is(err, drip.ErrTime) {
			t.Errorf("Admit at second %d: %v, want ErrTime", wrong.Unix(), err)
		}
		if _, err := drip.New(drip.Options{Start: wrong}); err == nil || !strings.Contains(err.Error(), "Options.Start") {
			t.Errorf("New with a Start at second %d: %v", wrong.Unix(), err)
		}
	}
}
