package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// Read and List tell the time with all its digits, and a decision is made at that time, cut to milliseconds.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(700 * time.Microsecond)
		s := memory.New()
		time.Sleep(400 * time.Microsecond)
		l := decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 1000}}, Tokens: 1, Guess: 1, Lease: 1, MaxLease: 1}
		if field, _ := l.Ready(); field != "" {
			t.Fatalf("Ready() = %q, want none", field)
		}
		if _, err := s.Do(t.Context(), "shop", &l, nil, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}); err != nil {
			t.Fatal(err)
		}
		check := func(e storage.Entry) error {
			if want := time.Now(); !e.Time.Equal(want) || e.State.Now != want.UnixMilli() {
				t.Errorf("the time is %v and that of the decision %d, want %v and %d", e.Time, e.State.Now, want, want.UnixMilli())
			}
			return nil
		}
		e, err := s.Read(t.Context(), "shop")
		if err != nil {
			t.Fatal(err)
		}
		check(e)
		if err := s.List(t.Context(), check); err != nil {
			t.Fatal(err)
		}
	})
}
