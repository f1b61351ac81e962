// Package storagetest checks that a backend keeps the rules of package storage. Call Run from a test of yours:
//
//	func TestStorage(t *testing.T) {
//		storagetest.Run(t, func(t *testing.T) storage.Storage { return mystorage.New(…) })
//	}
package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip/storage"
)

// Run runs every rule as a subtest, each on a storage of its own that open returns empty. open may clean up with
// t.Cleanup, and may skip. The rules for atomic decisions are run when the storage is a storage.Atomic, the rule
// for closing when it has Close() error.
func Run(t *testing.T, open func(*testing.T) storage.Storage) {
	s := open(t)
	_, isAtomic := s.(storage.Atomic)
	_, closes := s.(io.Closer)
	for _, rule := range []struct {
		name    string
		applies bool
		check   func(*testing.T, storage.Storage)
	}{
		{"Missing", true, testMissing},
		{"RoundTrip", true, testRoundTrip},
		{"StaleSetChangesNothing", true, testStale},
		{"OneFirstSetWins", true, testFirstSet},
		{"NoLostUpdate", true, testNoLostUpdate},
		{"KeysAreIndependent", true, testKeys},
		{"SimulatedTimeIsNotIdleTime", true, testSimulatedTime},
		{"CancelledContext", true, testCancelled},
		{"Closed", closes, testClosed},
		{"AtomicDoesAsApply", isAtomic, testAtomicApplies},
		{"AtomicUnknown", isAtomic, testAtomicUnknown},
		{"AtomicOnStateThatWasSet", isAtomic, testAtomicOnSetState},
		{"AtomicConcurrent", isAtomic, testAtomicConcurrent},
		{"AtomicOwnClock", isAtomic, testAtomicOwnClock},
		{"AtomicCancelledContext", isAtomic, testAtomicCancelled},
	} {
		if rule.applies {
			t.Run(rule.name, func(t *testing.T) { rule.check(t, open(t)) })
		}
	}
}

// state returns a state that is not the zero one and differs with n. It may not be forgotten.
func state(n int64) storage.State {
	return storage.State{
		Ops:   storage.Ledger{Last: 1_700_000_000_000 + n, Capacity: 7 + n},
		Wait:  storage.Ledger{Last: 1_700_000_001_000 + n, Capacity: 3 + n},
		InUse: 1 + n,
		Until: math.MaxInt64,
	}
}

func get(t *testing.T, s storage.Storage, key string) (storage.State, storage.Revision) {
	t.Helper()
	st, rev, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%q): %v", short(key), err)
	}
	return st, rev
}

func set(t *testing.T, s storage.Storage, key string, st storage.State, rev storage.Revision) {
	t.Helper()
	if err := s.Set(t.Context(), key, st, rev); err != nil {
		t.Fatalf("Set(%q): %v", short(key), err)
	}
}

func short(key string) string {
	if len(key) > 40 {
		return key[:40] + "…"
	}
	return key
}

func testMissing(t *testing.T, s storage.Storage) {
	st, rev, err := s.Get(t.Context(), "nobody")
	if !st.Equal(storage.State{}) || rev != storage.NoRevision || err != nil {
		t.Errorf("Get of a key never set = %+v, %d, %v; want the zero State, NoRevision and no error", st, rev, err)
	}
}

func testRoundTrip(t *testing.T, s storage.Storage) {
	extreme := storage.State{
		Ops:   storage.Ledger{Last: math.MinInt64, Capacity: math.MaxInt64},
		Wait:  storage.Ledger{Last: math.MaxInt64, Capacity: 0},
		InUse: math.MaxInt64, Until: math.MaxInt64,
	}
	var last storage.Revision
	booked := state(2)
	booked.Booking = &storage.Booking{
		Late: storage.Ledger{Last: 1_700_000_002_000, Capacity: -4}, Closed: 1_700_000_003_000, Held: 8 * 250, Samples: 8, LastID: 1_700_000_000_000 << 10,
		Old:    storage.Tickets{Epoch: 1_700_000_001_000, Tickets: 2, Units: 9, Last: 1_700_000_001_500},
		New:    storage.Tickets{Epoch: 1_700_000_001_400, Tickets: 1, Units: 1, Last: 1_700_000_002_500},
		Window: storage.Window{Size: 40, RefreshRate: 2, RefreshInterval: 1000},
		Further: []storage.Further{
			{Ops: 60, Wait: -3, Late: 0, Window: storage.Window{Size: 60, RefreshRate: 60, RefreshInterval: 60_000}},
			{Ops: 5000, Wait: 4990, Late: 1, Window: storage.Window{Size: 5000, RefreshRate: 5000, RefreshInterval: 86_400_000}},
		},
		Leases: []storage.Held{{ID: 5, End: 1_700_000_060_000}, {ID: 6, End: 1_700_000_060_001}},
	}
	for i, want := range []storage.State{state(0), state(1), extreme, booked, state(0)} {
		set(t, s, "k", want, last)
		if want.Booking != nil { // Set does not keep it
			was := want.Clone()
			want.Booking.Leases[0].ID++
			want = was
		}
		got, rev := get(t, s, "k")
		if !got.Equal(want) {
			t.Errorf("Get after Set %d = %+v, want %+v", i, got, want)
		}
		if rev == storage.NoRevision || rev == last {
			t.Errorf("revision after Set %d is %d, before it was %d; every Set gives a new one", i, rev, last)
		}
		last = rev
	}
}

func testStale(t *testing.T, s storage.Storage) {
	set(t, s, "k", state(0), storage.NoRevision)
	_, old := get(t, s, "k")
	set(t, s, "k", state(1), old)
	_, current := get(t, s, "k")
	for _, rev := range []storage.Revision{old, storage.NoRevision, current + 1} {
		if err := s.Set(t.Context(), "k", state(2), rev); !errors.Is(err, storage.ErrConflict) {
			t.Errorf("Set with revision %d while the current one is %d = %v, want ErrConflict", rev, current, err)
		}
	}
	if err := s.Set(t.Context(), "missing", state(2), current); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("Set of a missing key with a revision = %v, want ErrConflict", err)
	}
	if got, rev := get(t, s, "k"); !got.Equal(state(1)) || rev != current {
		t.Errorf("a refused Set changed the state: %+v at revision %d, want %+v at %d", got, rev, state(1), current)
	}
	if _, rev := get(t, s, "missing"); rev != storage.NoRevision {
		t.Errorf("a refused Set stored a missing key")
	}
}

func testFirstSet(t *testing.T, s storage.Storage) {
	var won atomic.Int64
	together(16, func(i int) {
		switch err := s.Set(t.Context(), "k", state(int64(i)), storage.NoRevision); {
		case err == nil:
			won.Add(1)
		case !errors.Is(err, storage.ErrConflict):
			t.Errorf("Set = %v, want nil or ErrConflict", err)
		}
	})
	if won.Load() != 1 {
		t.Errorf("%d of 16 concurrent first Sets succeeded, want 1", won.Load())
	}
}

func testNoLostUpdate(t *testing.T, s storage.Storage) {
	const workers, each = 8, 25
	together(workers, func(int) {
		for done := 0; done < each; {
			st, rev, err := s.Get(t.Context(), "k")
			if err != nil {
				t.Errorf("Get: %v", err)
				return
			}
			st.InUse++
			st.Until = math.MaxInt64
			switch err := s.Set(t.Context(), "k", st, rev); {
			case err == nil:
				done++
			case !errors.Is(err, storage.ErrConflict):
				t.Errorf("Set: %v", err)
				return
			}
		}
	})
	if st, _ := get(t, s, "k"); st.InUse != workers*each {
		t.Errorf("%d increments through Get and Set left %d", workers*each, st.InUse)
	}
}

func testKeys(t *testing.T, s storage.Storage) {
	keys := []string{
		"a", "A", "a ", " a", "a\n", "a\x00", "\x00", "a:b", "{a}", "{a}b", "a{", "}", "a*", "a/b", "../a", "%61", "'", `"`, `\`,
		"žluťoučký kůň", "\xff\xfe not UTF-8", strings.Repeat("x", 64<<10), strings.Repeat("x", 64<<10-1) + "y",
	}
	for i, key := range keys {
		set(t, s, key, state(int64(i)), storage.NoRevision)
	}
	for i, key := range keys {
		if got, _ := get(t, s, key); !got.Equal(state(int64(i))) {
			t.Errorf("the state of key %q is %+v, want %+v", short(key), got, state(int64(i)))
		}
	}
}

// testSimulatedTime stores states of the year 2017, one after the other a millisecond apart. None has reached its
// Until in that time, long as it is past by the machine's clock.
func testSimulatedTime(t *testing.T, s storage.Storage) {
	simulated := func(i int64) storage.State {
		st := state(i)
		st.Ops.Last, st.InUse, st.Until = 1_500_000_000_000+i, 0, 1_500_000_005_000+i
		return st
	}
	const n = 100
	for i := range int64(n) {
		set(t, s, fmt.Sprint(i), simulated(i), storage.NoRevision)
	}
	for i := range int64(n) {
		if got, _ := get(t, s, fmt.Sprint(i)); !got.Equal(simulated(i)) {
			t.Fatalf("the state of key %d is %+v, want %+v: it was forgotten by another clock than its callers'", i, got, simulated(i))
		}
	}
}

func testCancelled(t *testing.T, s storage.Storage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Get(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get with a cancelled context = %v, want context.Canceled", err)
	}
	if err := s.Set(ctx, "k", state(0), storage.NoRevision); !errors.Is(err, context.Canceled) {
		t.Errorf("Set with a cancelled context = %v, want context.Canceled", err)
	}
	if _, rev := get(t, s, "k"); rev != storage.NoRevision {
		t.Error("Set with a cancelled context stored the state")
	}
}

func testClosed(t *testing.T, s storage.Storage) {
	c := s.(io.Closer)
	set(t, s, "k", state(0), storage.NoRevision)
	if err := c.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if _, _, err := s.Get(t.Context(), "k"); err == nil {
		t.Error("Get after Close succeeded")
	}
	if err := s.Set(t.Context(), "l", state(0), storage.NoRevision); err == nil || errors.Is(err, storage.ErrConflict) {
		t.Errorf("Set after Close = %v, want an error of its own", err)
	}
}

// testAtomicApplies runs random operations against the backend and against Apply, answer by answer.
func testAtomicApplies(t *testing.T, s storage.Storage) {
	for seed := range uint64(40) {
		Compare(t, s.(storage.Atomic), seed, 150)
	}
}

func testAtomicUnknown(t *testing.T, s storage.Storage) {
	for kind := storage.GetDelay; kind <= storage.Reset; kind++ {
		if !kind.OnKnown() {
			continue
		}
		if a, err := do(t, s, "nobody", limits(1, 1), storage.Op{Kind: kind, Lease: storage.Lease{ID: 1}}); err != nil || a != (storage.Answer{}) {
			t.Errorf("an operation of kind %d on an unknown key = %+v, %v; want nothing", kind, a, err)
		}
		if st, rev := get(t, s, "nobody"); rev != storage.NoRevision {
			t.Errorf("an operation of kind %d on an unknown key stored %+v", kind, st)
		}
	}
}

// do does op at its time, or by the backend's clock if that is zero.
func do(t *testing.T, s storage.Storage, key string, l *storage.Limits, op storage.Op) (storage.Answer, error) {
	if op.Now == 0 {
		op.Now = storage.OwnClock
	}
	return s.(storage.Atomic).Do(t.Context(), key, l, op)
}

// testAtomicOnSetState mixes the two paths: what Set stored is what Do decides on.
func testAtomicOnSetState(t *testing.T, s storage.Storage) {
	l := limits(5, 2)
	op := storage.Op{Kind: storage.Admit, Cost: 1, Now: l.Start + 10*l.RefreshInterval}
	st := l.New()
	l.Apply(&st, &op, op.Now, new(storage.Answer))
	set(t, s, "k", st, storage.NoRevision)
	for i := range 8 {
		var want storage.Answer
		l.Apply(&st, &op, op.Now, &want)
		if got, err := do(t, s, "k", l, op); err != nil || got != want {
			t.Fatalf("Do %d after Set = %+v, %v; want %+v", i, got, err, want)
		}
	}
	got, _ := get(t, s, "k")
	if got.Until = st.Until; !got.Equal(st) { // a backend may say when in its own way
		t.Errorf("Get after Do = %+v, want %+v", got, st)
	}
}

func testAtomicConcurrent(t *testing.T, s storage.Storage) {
	l := limits(40, 10)
	now := l.Start + 100*l.RefreshInterval
	var ran atomic.Int64
	together(16, func(int) {
		for range 20 {
			switch a, err := do(t, s, "k", l, storage.Op{Kind: storage.GetDelay, Now: now}); {
			case err != nil:
				t.Errorf("GetDelay: %v", err)
			case a.Delay < 0:
				t.Errorf("GetDelay = %v", a.Delay)
			case a.Delay == 0:
				ran.Add(1)
			}
		}
	})
	if ran.Load() != l.Size {
		t.Errorf("of 320 concurrent calls at one time %d ran, want Size, %d", ran.Load(), l.Size)
	}
	together(16, func(int) {
		for range 5 {
			if _, err := do(t, s, "k", l, storage.Op{Kind: storage.ReturnToken}); err != nil {
				t.Errorf("ReturnToken: %v", err)
			}
		}
	})
	if st, _ := get(t, s, "k"); st.InUse != 0 {
		t.Errorf("after 80 returns of 40 tokens %d are in use, want 0", st.InUse)
	}
}

func testAtomicOwnClock(t *testing.T, s storage.Storage) {
	l := limits(3, 3)
	l.RefreshInterval = 3_600_000
	l.Start = 0
	ran := 0
	for range 10 {
		a, err := do(t, s, "k", l, storage.Op{Kind: storage.GetDelay})
		if err != nil {
			t.Fatalf("GetDelay: %v", err)
		}
		if a.Delay == 0 {
			ran++
		} else if a.Delay > 4*l.RefreshInterval {
			t.Errorf("GetDelay by the backend's clock = %v ms, want at most 4h", a.Delay)
		}
	}
	if ran != 3 {
		t.Errorf("by the backend's clock %d calls ran, want 3", ran)
	}
	st, _ := get(t, s, "k")
	if off := time.Since(time.UnixMilli(st.Ops.Last)).Abs(); off > time.Hour {
		t.Errorf("the backend's clock is %v away from this machine's", off)
	}
	if timed, ok := s.(storage.Timed); ok {
		got, rev, now, err := timed.GetWithTime(t.Context(), "k")
		want, wantRev := get(t, s, "k")
		if err != nil || !got.Equal(want) || rev != wantRev || now.UnixMilli() < st.Ops.Last || time.Since(now).Abs() > time.Hour {
			t.Errorf("GetWithTime = %+v, %d, %v, %v; Get says %+v, %d", got, rev, now, err, want, wantRev)
		}
	}
}

func testAtomicCancelled(t *testing.T, s storage.Storage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for kind := storage.GetDelay; kind <= storage.Reset; kind++ {
		if _, err := s.(storage.Atomic).Do(ctx, "k", limits(1, 1), storage.Op{Kind: kind, Now: storage.OwnClock, Cost: 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("Do with a cancelled context = %v, want context.Canceled", err)
		}
	}
	if st, rev := get(t, s, "k"); rev != storage.NoRevision {
		t.Errorf("Do with a cancelled context stored %+v", st)
	}
}

func limits(size, rate int64) *storage.Limits {
	return &storage.Limits{
		Window:       storage.Window{Size: size, RefreshRate: rate, RefreshInterval: 1000},
		WaitForToken: 50, Start: 1_700_000_000_000, Lease: 60_000, MaxLease: 3_600_000,
	}
}

// together runs f(0) … f(n-1) at the same time and waits for them.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	ready := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-ready
			f(i)
		})
	}
	close(ready)
	wg.Wait()
}
