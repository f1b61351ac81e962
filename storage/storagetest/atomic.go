package storagetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

func do(t testing.TB, s storage.Storage, key string, l *decision.Limits, op decision.Op) decision.Answer {
	t.Helper()
	a, err := s.(storage.Atomic).Do(t.Context(), key, l, nil, op)
	if err != nil {
		t.Fatalf("Do(%s) of %+v: %v", short(key), op, err)
	}
	return a
}

// decode returns the stored state of key, as the plain path reads it.
func decode(t testing.TB, s storage.Storage, key string) (state decision.State, leases []storage.Held) {
	t.Helper()
	stored, rev := get(t, s, key)
	leases, err := storage.Decode(stored.Data, &state)
	if err != nil {
		t.Fatalf("Get(%s) after Do returns what storage.Encode writes, at revision %d: %v", short(key), rev, err)
	}
	return state, leases
}

// testAtomicApplies runs random operations against the backend and against Apply, answer by answer.
func testAtomicApplies(t *testing.T, s storage.Storage) {
	began := time.Now()
	for seed := range uint64(40) {
		if seed >= 5 && time.Since(began) > 30*time.Second {
			t.Logf("%d of 40 loads compared: the backend is slow", seed)
			break
		}
		Compare(t, s.(storage.Atomic), seed, 150)
	}
}

func testAtomicUnknown(t *testing.T, s storage.Storage) {
	for _, kind := range []decision.Kind{decision.ReturnToken, decision.Settle, decision.Cancel, decision.Renew, decision.Resume, decision.Reset} {
		for _, now := range []int64{decision.OwnClock, 1_700_000_000_000} {
			op := decision.Op{Kind: kind, Now: now, Lease: decision.Lease{ID: 1, End: 1_800_000_000_000}, Ticket: decision.Ticket{Slot: 1_700_000_000_000, Number: 1}}
			if a := do(t, s, "nobody", limits(1, 1), op); a != (decision.Answer{}) {
				t.Errorf("an operation of kind %d on an unknown key = %+v, want the zero Answer", kind, a)
			}
			if st, rev := get(t, s, "nobody"); rev != storage.NoRevision {
				t.Errorf("an operation of kind %d on an unknown key stored %+v, want nothing", kind, st)
			}
		}
	}
}

// testAtomicOnSetState mixes the two paths: Do decides on what Set stored, and Get returns all that Do stored.
func testAtomicOnSetState(t *testing.T, s storage.Storage) {
	l := limits(6, 2)
	op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: l.Start + 10_000}
	var want decision.State
	leases := &storage.Leases{}
	for range 3 {
		l.Apply(&want, leases, &op, op.Now, new(decision.Answer))
	}
	until := max(l.Until(&want), leases.Last())
	set(t, s, "k", storage.State{Data: storage.Encode(&want, leases.All()), Now: op.Now, Until: until}, storage.NoRevision)
	_, before := get(t, s, "k")
	for i := range 8 {
		var a decision.Answer
		l.Apply(&want, leases, &op, op.Now, &a)
		if got := do(t, s, "k", l, op); got != a {
			t.Fatalf("Do decides on what Set stored, leases included: Do %d after Set = %+v, want %+v", i, got, a)
		}
		got, held := decode(t, s, "k")
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(held, leases.All()) {
			t.Fatalf("Get returns all that Do stored: after Do %d it is %+v with leases %v, want %+v with %v", i, got, held, want, leases.All())
		}
		_, rev := get(t, s, "k")
		if rev == before || rev == storage.NoRevision {
			t.Fatalf("every Do that changes a key gives it a new revision: after Do %d it is %d, before it was %d", i, rev, before)
		}
		err := s.Set(t.Context(), "k", storage.State{Data: storage.Encode(&want, nil), Now: op.Now, Until: decision.Never}, before)
		if !errors.Is(err, storage.ErrConflict) {
			t.Fatalf("a Set at the revision of before a Do = %v, want ErrConflict", err)
		}
		before = rev
	}
	// Set keeps bytes that are no state, and Do must not lose them.
	_, rev := get(t, s, "k")
	set(t, s, "k", state(13), rev)
	if a, err := s.(storage.Atomic).Do(t.Context(), "k", l, nil, op); err == nil {
		t.Errorf("Do on bytes that are no encoded state = %+v, want an error", a)
	}
	holds(t, s, "k", state(13), "Do on bytes that are no encoded state changes nothing")
	// If a shared limit has such bytes, Do does not change the entity.
	do(t, s, "entity", l, op)
	_, rev = get(t, s, "entity")
	within := []storage.Within{{Key: "k", Limits: l, ID: 1, Weight: 1}}
	if a, err := s.(storage.Atomic).Do(t.Context(), "entity", l, within, op); err == nil {
		t.Errorf("Do within a shared limit whose bytes are no encoded state = %+v, want an error", a)
	}
	if _, after := get(t, s, "entity"); after != rev {
		t.Errorf("Do changes all keys together or none: within a shared limit whose bytes are no encoded state the revision of the entity was %d and is %d", rev, after)
	}
	holds(t, s, "k", state(13), "Do on bytes that are no encoded state changes nothing")
}

func testAtomicConcurrent(t *testing.T, s storage.Storage) {
	onLongKeys(t, s, concurrent)
	for i := range 20 {
		concurrent(t, s, fmt.Sprint("k", i), 16, 20)
	}
}

// onLongKeys runs a test of an entity with four callers on five long keys, if the storage takes such keys.
func onLongKeys(t *testing.T, s storage.Storage, test func(t *testing.T, s storage.Storage, key string, callers, each int)) {
	t.Helper()
	if _, closes := s.(io.Closer); closes || !takesLongKeys(t, s) {
		return
	}
	for i := range 5 {
		test(t, s, longKey(i), 4, 4)
	}
}

// concurrent lets callers take tokens at the same time, and return them.
func concurrent(t *testing.T, s storage.Storage, key string, callers, each int) {
	t.Helper()
	size := int64(callers * each / 8)
	l := limits(size, 1)
	now := l.Start + 1_000_000
	call := func(op decision.Op) decision.Answer {
		a, err := s.(storage.Atomic).Do(t.Context(), key, l, nil, op)
		if err != nil {
			t.Errorf("Do of %+v: %v", op, err)
		}
		return a
	}
	var ran, found atomic.Int64
	together(callers, func(int) {
		for range each {
			switch a := call(decision.Op{Kind: decision.GetDelay, Now: now}); {
			case a.Delay < 0:
				t.Errorf("GetDelay = %v, want no less than 0", a.Delay)
			case a.Delay == 0:
				ran.Add(1)
			}
		}
	})
	if ran.Load() != size {
		t.Fatalf("of %d concurrent GetDelay at one time %d ran, want Size, %d", callers*each, ran.Load(), size)
	}
	together(callers, func(int) {
		for range each / 4 {
			if call(decision.Op{Kind: decision.ReturnToken, Now: now}).Found {
				found.Add(1)
			}
		}
	})
	if st, _ := decode(t, s, key); st.Plain != 0 || found.Load() != size {
		t.Fatalf("%d concurrent returns of %d tokens found %d and left %d, want %d and 0", callers*(each/4), size, found.Load(), st.Plain, size)
	}
}

// testAtomicAndSet lets callers of Do and callers of Get and Set take tokens of one entity at the same time.
func testAtomicAndSet(t *testing.T, s storage.Storage) {
	onLongKeys(t, s, doAndSet)
	for i := range 5 {
		doAndSet(t, s, fmt.Sprint("k", i), 8, 16)
	}
}

func doAndSet(t *testing.T, s storage.Storage, key string, callers, each int) {
	t.Helper()
	size := int64(callers * each * 3 / 4)
	l := limits(size, 1)
	op := decision.Op{Kind: decision.GetDelay, Now: l.Start + 1_000_000}
	var ran atomic.Int64
	together(callers, func(i int) {
		sets, do := i%2 == 0, s.(storage.Atomic).Do
		if sets {
			do = plain{s}.Do
		}
		for done, tries := 0, 0; done < each; tries++ {
			if stuck(t, done, tries, callers*each) {
				return
			}
			a, err := do(t.Context(), key, l, nil, op)
			if sets && errors.Is(err, storage.ErrConflict) {
				continue
			} else if err != nil {
				t.Errorf("%+v: %v", op, err)
			} else if a.Delay == 0 {
				ran.Add(1)
			}
			done++
		}
	})
	if st, _ := decode(t, s, key); ran.Load() != size || st.Plain != size {
		t.Fatalf("neither Do nor Set loses a change of the other: of %d GetDelay at one time, half of them by Get and Set, %d ran and left %d tokens out, want Size, %d",
			callers*each, ran.Load(), st.Plain, size)
	}
}

// testAtomicWithin lets operations of several entities run at the same time within two shared limits, of which one is
// short.
func testAtomicWithin(t *testing.T, s storage.Storage) {
	const callers, each, size = 16, 20, 40
	l, app, other := limits(1000, 1), limits(size, 1), limits(1000, 1)
	now := l.Start + 1_000_000
	for round := range 5 {
		within := []storage.Within{
			{Key: fmt.Sprint("app", round), Limits: app, ID: 1, Weight: 1},
			{Key: fmt.Sprint("other", round), Limits: other, ID: 2, Weight: 1},
		}
		var ran, entities atomic.Int64
		together(callers, func(int) {
			key := fmt.Sprint("k", round, "-", entities.Add(1)%5)
			for i := range each {
				op := decision.Op{Kind: decision.Admit, Now: now, Cost: decision.Cost{1}}
				a, err := s.(storage.Atomic).Do(t.Context(), key, l, within[:1+i%2], op)
				if errors.Is(err, storage.ErrApart) {
					return
				} else if err != nil {
					t.Errorf("Do of %+v: %v", op, err)
				} else if a.Delay == 0 {
					ran.Add(1)
				}
			}
		})
		if n := ran.Load(); n != size && n != 0 {
			t.Fatalf("of %d operations at the same time within a limit of %d ran %d", callers*each, size, n)
		} else if n == 0 {
			for _, key := range []string{within[0].Key, within[1].Key, "k0-0", "k0-1", "k0-2", "k0-3", "k0-4"} {
				if st, rev := get(t, s, key); rev != storage.NoRevision {
					t.Fatalf("with ErrApart nothing was decided, but %s has %+v", key, st)
				}
			}
			t.Log("the storage keeps the keys apart")
			return
		}
		if state, leases := decode(t, s, within[0].Key); state.Lines[0].Left != 0 || len(leases) != size {
			t.Fatalf("%d operations left %d units and %d leases, want none and %d", size, state.Lines[0].Left, len(leases), size)
		}
	}
}

// testAtomicManyLeases holds more leases than a backend may keep in one place, and gives them back.
func testAtomicManyLeases(t *testing.T, s storage.Storage) {
	const callers, each, size = 16, 75, 16 * 75
	l := limits(size, 1)
	now := l.Start + 10_000_000
	given := [callers][each]decision.Lease{}
	all := func(f func(*decision.Lease) decision.Op) (found int64) {
		var n atomic.Int64
		together(callers, func(i int) {
			for j := range each {
				lease := &given[i][j]
				a, err := s.(storage.Atomic).Do(t.Context(), "k", l, nil, f(lease))
				if err != nil {
					t.Errorf("Do: %v", err)
				} else if a.Found {
					n.Add(1)
				}
				*lease = a.Lease
			}
		})
		return n.Load()
	}
	all(func(*decision.Lease) decision.Op {
		return decision.Op{Kind: decision.Admit, Now: now, Cost: decision.Cost{1}}
	})
	if _, leases := decode(t, s, "k"); len(leases) != size {
		t.Fatalf("of %d leases at the same time %d are out", size, len(leases))
	}
	if r, ok := s.(storage.Reader); ok {
		if e, err := r.Read(t.Context(), "k"); err != nil || e.Out != size || len(e.Leases) < storage.MostListed {
			t.Errorf("Read of %d leases = %d, %d of them told, %v; want at least MostListed", size, e.Out, len(e.Leases), err)
		}
	}
	if l, ok := s.(storage.Lister); ok {
		if err := l.List(t.Context(), func(e storage.Entry) error {
			if e.Out != size || len(e.Leases) != storage.MostListed {
				t.Errorf("List of %d leases = %d, %d of them told; want %d told", size, e.Out, len(e.Leases), storage.MostListed)
			}
			return nil
		}); err != nil {
			t.Errorf("List: %v", err)
		}
	}
	found := all(func(lease *decision.Lease) decision.Op {
		return decision.Op{Kind: decision.Settle, Now: now, Cost: decision.Cost{1}, Lease: *lease}
	})
	if _, leases := decode(t, s, "k"); found != size || len(leases) != 0 {
		t.Errorf("Settle found %d of %d leases, and %d are left", found, size, len(leases))
	}
}

func testAtomicOwnClock(t *testing.T, s storage.Storage) {
	l := limits(3, 3)
	l.Windows[0].Interval, l.Start = 24*3_600_000, 0
	l.Ready()
	ran := 0
	for range 10 {
		a := do(t, s, "k", l, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
		if a.Delay == 0 {
			ran++
		} else if a.Delay > 4*24*3_600_000 {
			t.Errorf("GetDelay by the backend's clock = %v ms, want at most 4 days", a.Delay)
		}
	}
	if ran != 3 && ran != 6 { // twice as many if the day ends meanwhile
		t.Errorf("by the backend's clock %d calls of a limit of 3 a day ran, want 3", ran)
	}
	st, _ := decode(t, s, "k")
	if off := time.Since(time.UnixMilli(st.Now)).Abs(); off > time.Hour {
		t.Errorf("the backend's clock is %v away from this machine's, want at most an hour", off)
	}
}

func testAtomicCancelled(t *testing.T, s storage.Storage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for kind := decision.GetDelay; kind <= decision.Reset; kind++ {
		op := decision.Op{Kind: kind, Now: decision.OwnClock, Cost: decision.Cost{1}}
		if _, err := s.(storage.Atomic).Do(ctx, "k", limits(1, 1), nil, op); !errors.Is(err, context.Canceled) {
			t.Errorf("Do of kind %d with a cancelled context = %v, want context.Canceled", kind, err)
		}
	}
	if st, rev := get(t, s, "k"); rev != storage.NoRevision {
		t.Errorf("Do with a cancelled context stored %+v, want nothing", st)
	}
}

// fill stores n entities by the backend's own clock, or by this machine's if it has none. Each has a few leases.
func fill(t *testing.T, s storage.Storage, n int) (entries map[string]storage.Entry) {
	t.Helper()
	l := limits(10, 10)
	l.Lease = 3_600_000
	entries = map[string]storage.Entry{}
	for i := range n {
		key := fmt.Sprintf("entity \xff %d", i)
		for range 1 + i%3 {
			op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: time.Now().UnixMilli()}
			var err error
			if a, ok := s.(storage.Atomic); ok && i%2 == 0 {
				op.Now = decision.OwnClock
				_, err = a.Do(t.Context(), key, l, nil, op)
			} else {
				_, err = plain{s}.Do(t.Context(), key, l, nil, op)
			}
			if err != nil {
				t.Fatalf("%+v: %v", op, err)
			}
		}
		e := storage.Entry{Key: key}
		e.State, e.Leases = decode(t, s, key)
		e.Out = int64(len(e.Leases))
		if e.Out != int64(1+i%3) {
			t.Fatalf("Get returns all that was stored: %d leases of %s, want %d", e.Out, short(key), 1+i%3)
		}
		entries[key] = e
	}
	return entries
}

// told fails t unless an entry is as it was stored.
func told(t *testing.T, got, want storage.Entry) {
	t.Helper()
	if off := time.Since(got.Time).Abs(); off > time.Hour {
		t.Errorf("Entry.Time of %s is %v away from this machine's clock, want at most an hour", short(got.Key), off)
	}
	got.Time = time.Time{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("an Entry is what is stored:\n  got: %+v\n want: %+v", got, want)
	}
}

func testRead(t *testing.T, s storage.Storage) {
	r := s.(storage.Reader)
	for key, want := range fill(t, s, 6) {
		_, before := get(t, s, key)
		got, err := r.Read(t.Context(), key)
		if err != nil {
			t.Fatalf("Read(%s): %v", short(key), err)
		}
		told(t, got, want)
		got.State.Lines[0].Left, got.Leases[0].ID = -1, -1
		if got, err = r.Read(t.Context(), key); err != nil {
			t.Fatalf("Read(%s): %v", short(key), err)
		}
		told(t, got, want) // for the Entry before was the caller's
		if _, rev := get(t, s, key); rev != before {
			t.Errorf("Read changes nothing: the revision was %d and is %d", before, rev)
		}
	}
	got, err := r.Read(t.Context(), "nobody")
	if err != nil || got.State.Tokens != 0 || got.Out != 0 || len(got.Leases) != 0 {
		t.Errorf("Read of a key never set = %+v, %v; want the zero State, no leases and no error", got, err)
	}
	if _, rev := get(t, s, "nobody"); rev != storage.NoRevision { // a visitor of the limits page may ask for any name
		t.Errorf("Read changes nothing: a key never set has the revision %d", rev)
	}
	if off := time.Since(got.Time).Abs(); off > time.Hour {
		t.Errorf("Entry.Time of a key never set is %v away from this machine's clock, want at most an hour", off)
	}
	if _, ok := s.(storage.Atomic); ok {
		begin := time.Now()
		a := do(t, s, "now", limits(1, 1), decision.Op{Kind: decision.Admit, Now: decision.OwnClock, Cost: decision.Cost{1}})
		got, err := r.Read(t.Context(), "now")
		if off := got.Time.Sub(time.UnixMilli(a.Lease.Begin)); err != nil || off < -time.Second || off > time.Second+time.Since(begin) {
			t.Errorf("Read goes by the clock of Do: its Time is %v after the time of the decision just before (%v)", off, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Read(ctx, "nobody"); !errors.Is(err, context.Canceled) {
		t.Errorf("Read with a cancelled context = %v, want context.Canceled", err)
	}
}

// meanwhile stores what a key has once more while List is under way. It returns an error if List holds that up.
func meanwhile(t *testing.T, s storage.Storage, key string) error {
	done := make(chan error, 1)
	go func() {
		st, rev, err := s.Get(t.Context(), key)
		if err == nil {
			st.Now, st.Until = time.Now().UnixMilli(), decision.Never
			err = s.Set(t.Context(), key, st, rev)
		}
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(10 * time.Second):
		return errors.New("while List calls each, Get and Set of " + short(key) + " do not end; List must delay no decision")
	}
}

func testList(t *testing.T, s storage.Storage) {
	want := fill(t, s, 30)
	cut := storage.Encode(&decision.State{Tokens: 1, Guess: 1}, nil)
	for i, data := range []string{"no state", `{"v":1}`, "\x00", string(cut[:len(cut)-8])} {
		set(t, s, fmt.Sprint("no entity ", i), storage.State{Data: []byte(data), Now: time.Now().UnixMilli(), Until: decision.Never}, storage.NoRevision)
	}
	many := map[string]bool{} // more than a backend may read at once
	some, _ := get(t, s, slices.Sorted(maps.Keys(want))[0])
	for i := range 1100 {
		key := fmt.Sprint("one of many ", i)
		set(t, s, key, storage.State{Data: some.Data, Now: time.Now().UnixMilli(), Until: decision.Never}, storage.NoRevision)
		many[key] = true
	}
	l := s.(storage.Lister)
	got := map[string]storage.Entry{}
	if err := l.List(t.Context(), func(e storage.Entry) error {
		if got[e.Key] = e; len(got) > 1 {
			return nil
		}
		if err := meanwhile(t, s, e.Key); err != nil {
			return err
		}
		return meanwhile(t, s, "no entity 0")
	}); err != nil {
		t.Fatalf("List: %v", err)
	}
	for key, e := range want {
		if _, listed := got[key]; !listed {
			t.Errorf("List tells every entity stored, but not %s", short(key))
			continue
		}
		told(t, got[key], e)
	}
	for key := range many {
		if _, listed := got[key]; !listed {
			t.Fatalf("List tells every entity stored, but not %s: of %d it told %d", short(key), len(want)+len(many), len(got))
		}
	}
	for key := range got {
		if _, stored := want[key]; !stored && !many[key] {
			t.Errorf("List leaves out bytes that are no state, but not the bytes of %s", short(key))
		}
	}
	stop, calls := errors.New("stop"), 0
	if err := l.List(t.Context(), func(storage.Entry) error { calls++; return stop }); !errors.Is(err, stop) || calls != 1 {
		t.Errorf("List = %v after %d calls of each, which returned an error; want that error after 1", err, calls)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.List(ctx, func(storage.Entry) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("List with a cancelled context = %v, want context.Canceled", err)
	}
}
