package memory_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
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
	for _, wrong := range []string{"memory://x", "memory:x", "memory:?schema=x"} {
		if _, err := storage.Open(t.Context(), wrong); err == nil {
			t.Errorf("Open(%q) returns no error", wrong)
		}
	}
}

func perSecond() *decision.Limits {
	return buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: 10, Rate: 5, Interval: 1000}}, Tokens: 10, Guess: 50, Lease: 60_000, MaxLease: 60_000,
	})
}

func do(t testing.TB, s *memory.Storage, key string, l *decision.Limits, op decision.Op) decision.Answer {
	t.Helper()
	a, err := s.Do(context.Background(), key, l, nil, op)
	if err != nil {
		t.Fatalf("Do(%s) of %+v: %v", key, op, err)
	}
	return a
}

// decide makes the calls of n entities at a time, each of which runs and returns its token.
func decide(t testing.TB, s *memory.Storage, prefix string, n int, now int64) {
	t.Helper()
	for i := range n {
		key := fmt.Sprint(prefix, i)
		if a := do(t, s, key, perSecond(), decision.Op{Kind: decision.GetDelay, Now: now}); a.Delay != 0 {
			t.Fatalf("GetDelay(%s) = %+v, want no delay", key, a)
		}
		do(t, s, key, perSecond(), decision.Op{Kind: decision.ReturnToken, Now: now})
	}
}

func TestIdleEntitiesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		decide(t, s, "idle", 10_000, decision.OwnClock)
		if s.Len() != 10_000 {
			t.Fatalf("%d entities after 10,000 calls, want 10,000", s.Len())
		}
		do(t, s, "holder", perSecond(), decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
		for range 600 { // more than two rounds of all shards
			time.Sleep(300 * time.Millisecond)
			decide(t, s, "busy", 1, decision.OwnClock)
		}
		if s.Len() != 2 { // the busy one, and the one whose token is out
			t.Errorf("%d entities are left, want 2", s.Len())
		}
	})
}

// An entity whose lease has ended is forgotten after it, not before.
func TestLeaseKeepsItsEntity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		do(t, s, "k", perSecond(), decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: decision.OwnClock})
		pass := func(d time.Duration) {
			for range 300 {
				time.Sleep(d / 300)
				do(t, s, "nobody", perSecond(), decision.Op{Kind: decision.ReturnToken, Now: decision.OwnClock})
			}
		}
		pass(59 * time.Second)
		if s.Len() != 1 {
			t.Errorf("%d entities are held before the lease ends, want 1", s.Len())
		}
		pass(59 * time.Second)
		if s.Len() != 0 {
			t.Errorf("%d entities are held after the lease has ended, want 0", s.Len())
		}
	})
}

// The time of one caller makes no other entity look idle: a clock that is ahead must not give everybody a full bucket.
func TestClockThatIsAhead(t *testing.T) {
	daily := buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 24 * 3_600_000}}, Tokens: 1, Guess: 50, Lease: 1, MaxLease: 1,
	})
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		now := time.Now().UnixMilli()
		do(t, s, "own", daily, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
		do(t, s, "own", daily, decision.Op{Kind: decision.ReturnToken, Now: decision.OwnClock})
		do(t, s, "caller's", daily, decision.Op{Kind: decision.GetDelay, Now: now})
		do(t, s, "caller's", daily, decision.Op{Kind: decision.ReturnToken, Now: now})
		for i := range 600 {
			decide(t, s, fmt.Sprint("ahead", i), 1, now+50*365*24*3_600_000+int64(i)*1000)
			time.Sleep(100 * time.Millisecond)
		}
		if a := do(t, s, "own", daily, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}); a.Delay == 0 {
			t.Error("calls 50 years ahead made the storage forget what ran by its own clock")
		}
		if a := do(t, s, "caller's", daily, decision.Op{Kind: decision.GetDelay, Now: now}); a.Delay == 0 {
			t.Error("calls 50 years ahead made the storage forget what ran by a caller's clock")
		}
		if s.Len() != 602 {
			t.Errorf("%d entities are held, want 602: those of another time are kept for a day", s.Len())
		}
		for range 600 {
			time.Sleep(15 * time.Minute)
			decide(t, s, "busy", 1, decision.OwnClock)
		}
		if s.Len() != 1 {
			t.Errorf("%d entities are held six days later, want the busy one", s.Len())
		}
	})
}

// List tells each entity as it is, once.
func TestManyEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		const n = 20_000
		for i := range n {
			for range 1 + i%3 {
				do(t, s, fmt.Sprint(i), perSecond(), decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: decision.OwnClock})
			}
		}
		told := 0
		err := s.List(t.Context(), func(e storage.Entry) error {
			told++
			var i int64
			if _, err := fmt.Sscan(e.Key, &i); err != nil || e.Out != 1+i%3 || e.State.Lines[0].Left != 10-e.Out {
				t.Errorf("List tells %+v, want %d leases and as much less of 10", e, 1+i%3)
			}
			return nil
		})
		if err != nil || told != n {
			t.Errorf("List tells %d entities, %v; want %d", told, err, n)
		}
	})
}

func TestZeroStorage(t *testing.T) {
	var s memory.Storage
	const want = "memory: a Storage is made with New"
	_, _, get := s.Get(t.Context(), "k")
	_, do := s.Do(t.Context(), "k", perSecond(), nil, decision.Op{Now: decision.OwnClock})
	_, read := s.Read(t.Context(), "k")
	for name, err := range map[string]error{
		"Get": get, "Do": do, "Read": read,
		"Set":   s.Set(t.Context(), "k", storage.State{}, storage.NoRevision),
		"Apply": s.Apply(t.Context(), "k", perSecond(), nil, &decision.Op{}, &decision.Answer{}),
		"List":  s.List(t.Context(), func(storage.Entry) error { return nil }),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%s of a zero Storage = %v, want %s", name, err, want)
		}
	}
	if n := s.Len(); n != 0 {
		t.Errorf("Len of a zero Storage = %d, want 0", n)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	s, l, ctx := memory.New(), perSecond(), t.Context()
	l.Windows[0].Size, l.Windows[0].Rate, l.Tokens = 1<<30, 1<<30, 1<<30
	l.Ready()
	if n := testing.AllocsPerRun(1000, func() {
		var a decision.Answer
		op := decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}
		err := s.Apply(ctx, "classic", l, nil, &op, &a)
		op.Kind = decision.ReturnToken
		err = errors.Join(err, s.Apply(ctx, "classic", l, nil, &op, &a))
		op = decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: decision.OwnClock}
		a = decision.Answer{}
		err = errors.Join(err, s.Apply(ctx, "leased", l, nil, &op, &a))
		op = decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: a.Lease, Now: decision.OwnClock}
		if err = errors.Join(err, s.Apply(ctx, "leased", l, nil, &op, &a)); err != nil || !a.Found {
			t.Errorf("%+v, %v", a, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations of four decisions, want 0", n)
	}
}

// Read and List tell the time with all its digits, and a decision is made at that time, cut to milliseconds.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(700 * time.Microsecond)
		s := memory.New()
		time.Sleep(400 * time.Microsecond)
		do(t, s, "shop", perSecond(), decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
		check := func(e storage.Entry) error {
			if want := time.Now(); !e.Time.Equal(want) || e.State.Now != want.UnixMilli() {
				t.Errorf("the time is %v and that of the decision %d, want %v and %d", e.Time, e.State.Now, want, want.UnixMilli())
			}
			return nil
		}
		e, err := s.Read(t.Context(), "shop")
		check(e)
		if err = errors.Join(err, s.List(t.Context(), check)); err != nil {
			t.Fatal(err)
		}
	})
}
