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

var perSecond = storage.Limits{Window: storage.Window{Size: 10, RefreshRate: 5, RefreshInterval: 1000}, WaitForToken: 50}

func getDelay(ctx context.Context, s *memory.Storage, key string, l *storage.Limits, now time.Time) (time.Duration, error) {
	op := storage.Op{Kind: storage.GetDelay, Now: storage.OwnClock}
	if !now.IsZero() {
		op.Now = now.UnixMilli()
	}
	a, err := s.Do(ctx, key, l, op)
	return storage.Milliseconds(a.Delay), err
}

func giveBack(ctx context.Context, s *memory.Storage, key string, l *storage.Limits) error {
	_, err := s.Do(ctx, key, l, storage.Op{Kind: storage.ReturnToken, Now: storage.OwnClock})
	return err
}

// decide makes the calls of n entities at a time, each of which runs and returns its token.
func decide(t *testing.T, s *memory.Storage, prefix string, n int, now time.Time) {
	t.Helper()
	for i := range n {
		key := fmt.Sprint(prefix, i)
		if delay, err := getDelay(context.Background(), s, key, &perSecond, now); delay != 0 || err != nil {
			t.Fatalf("GetDelay(%s) = %v, %v; want 0", key, delay, err)
		}
		if err := giveBack(context.Background(), s, key, &perSecond); err != nil {
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
		_, err := getDelay(t.Context(), s, "holder", &perSecond, time.Time{})
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
	if d, err := getDelay(ctx, s, "real", &l, time.Time{}); d != 0 || err != nil {
		t.Fatal(d, err)
	}
	if err := giveBack(ctx, s, "real", &l); err != nil {
		t.Fatal(err)
	}
	future := time.Now().AddDate(50, 0, 0)
	for i := range 600 {
		decide(t, s, fmt.Sprint("simulated", i), 1, future.Add(time.Duration(i)*time.Second))
	}
	if s.Len() > 300 {
		t.Errorf("%d entities: those of the simulation are not forgotten", s.Len())
	}
	if d, _ := getDelay(ctx, s, "real", &l, time.Time{}); d == 0 {
		t.Error("the simulation made the storage forget what ran on the real clock")
	}
}

// Entities that others' forgetting makes room for are decided by their own times alone: one simulation after another
// gets the same answers, and a time far ahead does not end the forgetting.
func TestSimulationsAreApart(t *testing.T) {
	ctx := t.Context()
	begin := time.UnixMilli(1_700_000_000_000)
	for range 20 { // the shards are seeded at random
		s := memory.New()
		decide(t, s, "far", 1, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC))
		for i := range 2000 {
			decide(t, s, fmt.Sprint("first", i), 1, begin.Add(time.Hour+time.Duration(i)*time.Second))
		}
		if s.Len() > 600 {
			t.Fatalf("%d entities are held: forgetting has ended", s.Len())
		}
		want := perSecond.New()
		for i := range 50 {
			now := begin.Add(time.Duration(i) * 100 * time.Millisecond)
			var a storage.Answer
			perSecond.Apply(&want, &storage.Op{Kind: storage.GetDelay}, now.UnixMilli(), &a)
			delay := a.Delay
			if got, err := getDelay(ctx, s, "second", &perSecond, now); err != nil || got != storage.Milliseconds(delay) {
				t.Fatalf("call %d of the second simulation = %v, %v; want %v", i, got, err, storage.Milliseconds(delay))
			}
		}
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	s := memory.New()
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := getDelay(ctx, s, "k", &perSecond, time.Time{}); err != nil {
			t.Error(err)
		}
		if err := giveBack(ctx, s, "k", &perSecond); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a decision, want 0", n)
	}
}
