package memory_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestStorage(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storage.Storage { return memory.New() })
}

func TestOpen(t *testing.T) {
	s, err := storage.Open(t.Context(), "memory:")
	if _, ok := s.(*memory.Storage); !ok || err != nil {
		t.Errorf(`Open("memory:") = %T, %v`, s, err)
	}
}

var perSecond = storage.Limits{Size: 10, RefreshRate: 5, RefreshInterval: 1000, WaitForToken: 50}

// decide makes the calls of n entities at a time, each of which runs and returns its token.
func decide(t *testing.T, s *memory.Storage, prefix string, n int, now time.Time) {
	t.Helper()
	for i := range n {
		key := fmt.Sprint(prefix, i)
		if delay, err := s.GetDelay(context.Background(), key, &perSecond, now); delay != 0 || err != nil {
			t.Fatalf("GetDelay(%s) = %v, %v; want 0", key, delay, err)
		}
		if err := s.ReturnToken(context.Background(), key, &perSecond); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdleEntitiesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		decide(t, s, "idle", 10_000, time.Time{})
		if s.Len() != 10_000 {
			t.Fatalf("%d entities after 10,000 calls", s.Len())
		}
		_, err := s.GetDelay(t.Context(), "holder", &perSecond, time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		for range 600 { // more than two rounds of all shards
			time.Sleep(300 * time.Millisecond)
			decide(t, s, "busy", 1, time.Time{})
		}
		if s.Len() != 2 { // the busy one, and the one whose token is out
			t.Errorf("%d entities are left, want 2", s.Len())
		}
	})
}

// Forgetting by one clock must not touch the entities of the other: years of simulated time pass here while an
// entity of the real clock is waiting for its next interval.
func TestTimelinesAreApart(t *testing.T) {
	s := memory.New()
	l := perSecond
	l.RefreshInterval = 24 * 3_600_000
	l.Size = 1
	ctx := t.Context()
	if d, err := s.GetDelay(ctx, "real", &l, time.Time{}); d != 0 || err != nil {
		t.Fatal(d, err)
	}
	if err := s.ReturnToken(ctx, "real", &l); err != nil {
		t.Fatal(err)
	}
	future := time.Now().AddDate(50, 0, 0)
	for i := range 600 {
		decide(t, s, fmt.Sprint("simulated", i), 1, future.Add(time.Duration(i)*time.Second))
	}
	if s.Len() > 300 {
		t.Errorf("%d entities: those of the simulation are not forgotten", s.Len())
	}
	if d, _ := s.GetDelay(ctx, "real", &l, time.Time{}); d == 0 {
		t.Error("the simulation made the storage forget what ran on the real clock")
	}
}

// An entity that was forgotten was full at that time. A clock that then steps back to before it finds no second
// bucket.
func TestForgottenEntityAndClockStepsBack(t *testing.T) {
	s := memory.New()
	start := time.UnixMilli(1_700_000_000_000)
	l := perSecond
	runs := func(now time.Time) (n int64) {
		for range 100 {
			d, err := s.GetDelay(t.Context(), "k", &l, now)
			if err != nil {
				t.Fatal(err)
			}
			if d == 0 {
				n++
				if err := s.ReturnToken(t.Context(), "k", &l); err != nil {
					t.Fatal(err)
				}
			}
		}
		return n
	}
	if got := runs(start); got != l.Size {
		t.Fatalf("%d runs from a full bucket, want %d", got, l.Size)
	}
	for i := 0; s.Len() > 1 || i < 300; i++ {
		decide(t, s, fmt.Sprint("other", i%2), 1, start.Add(time.Hour+time.Duration(i)*time.Second))
		if i > 2000 {
			break
		}
	}
	if _, rev, _ := s.Get(t.Context(), "k"); rev != storage.NoRevision {
		t.Fatal("the idle entity was not forgotten")
	}
	if got := runs(start.Add(time.Second)); got != l.Size {
		t.Errorf("%d runs after the step back, want %d: the bucket that was full when the entity was forgotten", got, l.Size)
	}
	if got := runs(start.Add(2 * time.Second)); got != 0 {
		t.Errorf("%d more runs a second later, before the time the entity was forgotten; want 0", got)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	s := memory.New()
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := s.GetDelay(ctx, "k", &perSecond, time.Time{}); err != nil {
			t.Error(err)
		}
		if err := s.ReturnToken(ctx, "k", &perSecond); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a decision, want 0", n)
	}
}
