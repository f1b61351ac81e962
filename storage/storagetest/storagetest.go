// Package storagetest checks that a backend keeps the rules of package storage. Call Run from a test:
//
//	func TestStorage(t *testing.T) {
//		storagetest.Run(t, func(t *testing.T) storage.Storage { return mystorage.New(…) })
//	}
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Run runs every rule as a subtest, each on a storage of its own that open returns empty. open may clean up with
// t.Cleanup, and may skip. Run checks the rules of [storage.Atomic], [storage.Reader], [storage.Lister] and Close()
// error if the storage has their methods.
func Run(t *testing.T, open func(*testing.T) storage.Storage) {
	s := open(t)
	_, isAtomic := s.(storage.Atomic)
	_, isReader := s.(storage.Reader)
	_, isLister := s.(storage.Lister)
	_, closes := s.(io.Closer)
	testForgetting(t, open, closes)
	for _, rule := range []struct {
		name    string
		applies bool
		check   func(*testing.T, storage.Storage)
	}{
		{"Missing", true, testMissing},
		{"RoundTrip", true, testRoundTrip},
		{"DataIsTheCallers", true, testAliasing},
		{"EverySetHasItsRevision", true, testRevisions},
		{"StaleSetChangesNothing", true, testStale},
		{"NoLostUpdate", true, testNoLostUpdate},
		{"KeysAreIndependent", true, testKeys},
		{"ManyKeysAreKept", !closes, testManyKeys},
		{"SimulatedTimeIsNotIdleTime", true, testSimulatedTime},
		{"CancelledContext", true, testCancelled},
		{"Closed", closes, testClosed},
		{"AtomicDoesAsApply", isAtomic, testAtomicApplies},
		{"AtomicUnknown", isAtomic, testAtomicUnknown},
		{"AtomicOnStateThatWasSet", isAtomic, testAtomicOnSetState},
		{"AtomicConcurrent", isAtomic, testAtomicConcurrent},
		{"AtomicAndSet", isAtomic, testAtomicAndSet},
		{"AtomicManyLeases", isAtomic, testAtomicManyLeases},
		{"AtomicOwnClock", isAtomic, testAtomicOwnClock},
		{"AtomicWithin", isAtomic, testAtomicWithin},
		{"AtomicCancelledContext", isAtomic, testAtomicCancelled},
		{"Read", isReader, testRead},
		{"List", isLister, testList},
		{"OneFirstSetWins", true, testFirstSet},
		{"OneSetOfARevisionWins", true, testRace},
	} {
		if rule.applies {
			t.Run(rule.name, func(t *testing.T) { rule.check(t, open(t)) })
		}
	}
}

// state is a State of the real clock with n bytes that may not be forgotten. The same n is the same state.
func state(n int) storage.State {
	data := make([]byte, n)
	rnd := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = rnd.Read(data)
	return storage.State{Data: data, Now: time.Now().UnixMilli(), Until: decision.Never}
}

func get(t testing.TB, s storage.Storage, key string) (storage.State, storage.Revision) {
	t.Helper()
	st, rev, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatalf("Get(%s): %v", short(key), err)
	}
	return st, rev
}

func set(t testing.TB, s storage.Storage, key string, st storage.State, rev storage.Revision) {
	t.Helper()
	if err := s.Set(t.Context(), key, st, rev); err != nil {
		t.Fatalf("Set(%s) of %d bytes at revision %d: %v", short(key), len(st.Data), rev, err)
	}
}

// holds fails t unless s has want under key. It returns the revision.
func holds(t testing.TB, s storage.Storage, key string, want storage.State, rule string) storage.Revision {
	t.Helper()
	got, rev := get(t, s, key)
	if rev == storage.NoRevision {
		t.Fatalf("%s: Get(%s) returns NoRevision, as if nothing was stored; want %s", rule, short(key), short(string(want.Data)))
	}
	if !bytes.Equal(got.Data, want.Data) {
		t.Fatalf("%s: Get(%s) = %s at revision %d, want %s", rule, short(key), short(string(got.Data)), rev, short(string(want.Data)))
	}
	return rev
}

// short is a string for people to read.
func short(s string) string {
	if len(s) > 40 {
		return fmt.Sprintf("%+q… (%d bytes)", s[:40], len(s))
	}
	return fmt.Sprintf("%+q", s)
}

func testMissing(t *testing.T, s storage.Storage) {
	st, rev, err := s.Get(t.Context(), "nobody")
	if st.Data != nil || st.Now != 0 || st.Until != 0 || rev != storage.NoRevision || err != nil {
		t.Errorf("Get of a key never set = %+v, %d, %v; want the zero State, NoRevision and no error", st, rev, err)
	}
}

func testRoundTrip(t *testing.T, s storage.Storage) {
	last := storage.NoRevision
	for _, n := range []int{1, 0, 7, 8, 9, 15, 16, 128, 255, 256, 257, 1000, 4096, 64 << 10, 1 << 10, 0, 3} {
		set(t, s, "k", state(n), last)
		last = holds(t, s, "k", state(n), "Get returns the bytes that Set stored")
	}
	if err := s.Set(t.Context(), "large", state(1<<20), storage.NoRevision); err == nil {
		holds(t, s, "large", state(1<<20), "Set stores all bytes or returns an error")
	} else {
		t.Logf("states are not of any size: Set of 1 MiB: %v", err)
	}
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for i, data := range []string{string(all), "\xff\xfe", "\x00", "\xed\xa0\x80 \xc3(", "{\"a\": 1}", " \r\n", "'; --", "NULL", "\ufeffa", "\ufffd"} {
		key, want := fmt.Sprint("first", i), storage.State{Data: []byte(data), Now: 1, Until: decision.Never}
		set(t, s, key, want, storage.NoRevision)
		holds(t, s, key, want, "Get returns the bytes that Set stored")
	}
	for i, ago := range []int64{0, 1, 100_000} { // as of a limiter that gets unused units back
		key, past := fmt.Sprint("past", i), state(1)
		set(t, s, key, past, storage.NoRevision)
		_, rev := get(t, s, key)
		past.Until = past.Now - ago
		set(t, s, key, past, rev)
		set(t, s, key+" at first", past, storage.NoRevision)
	}
}

func testAliasing(t *testing.T, s storage.Storage) {
	spoil := func(b []byte) {
		for i := range b {
			b[i] ^= 0xff
		}
	}
	var rev storage.Revision
	for range 3 {
		given := state(100)
		set(t, s, "k", given, rev)
		spoil(given.Data)
		rev = holds(t, s, "k", state(100), "Set does not keep the Data that it is given")
		for range 3 {
			got, _ := get(t, s, "k")
			spoil(got.Data)
			_ = append(got.Data, "more"...)
			holds(t, s, "k", state(100), "the State that Get returns is the caller's, who may change it")
		}
		held, _ := get(t, s, "k")
		set(t, s, "k", state(99), rev)
		if !bytes.Equal(held.Data, state(100).Data) {
			t.Fatal("the State that Get returns is the caller's: a later Set changed it")
		}
		rev = holds(t, s, "k", state(99), "Get returns the bytes that Set stored")
	}
}

// testRevisions makes so many revisions that one of eight bits repeats, and within this process one of sixteen.
func testRevisions(t *testing.T, s storage.Storage) {
	n := 300
	if _, closes := s.(io.Closer); !closes {
		n = 70_000
	}
	states := [2]storage.State{state(1), state(2)}
	seen := map[storage.Revision]int{storage.NoRevision: -1}
	rev := storage.NoRevision
	for i := range n {
		set(t, s, "k", states[i%2], rev)
		rev = holds(t, s, "k", states[i%2], "Get returns the bytes that Set stored")
		if before, repeated := seen[rev]; repeated {
			t.Fatalf("no revision of a key comes twice: Set %d gave %d, as Set %d did (-1: NoRevision)", i, rev, before)
		}
		seen[rev] = i
	}
}

func testStale(t *testing.T, s storage.Storage) {
	const rule = "a Set whose revision is not the current one changes nothing and returns ErrConflict"
	set(t, s, "k", state(1), storage.NoRevision)
	_, old := get(t, s, "k")
	set(t, s, "k", state(2), old)
	_, current := get(t, s, "k")
	// So often that a backend which lets one stale Set in a hundred through does not get by.
	for i := range 2000 {
		for _, rev := range []storage.Revision{old, storage.NoRevision, current + 1} {
			if err := s.Set(t.Context(), "k", state(3), rev); !errors.Is(err, storage.ErrConflict) {
				t.Fatalf("%s: Set %d at %d while the current one is %d = %v", rule, i, rev, current, err)
			}
		}
		if i%100 == 0 || i == 1999 {
			if rev := holds(t, s, "k", state(2), rule); rev != current {
				t.Fatalf("%s: it changed the revision from %d to %d", rule, current, rev)
			}
		}
		if err := s.Set(t.Context(), "missing", state(3), current); !errors.Is(err, storage.ErrConflict) {
			t.Fatalf("%s: Set %d of a key under which nothing is stored, at %d = %v", rule, i, current, err)
		}
	}
	if _, rev := get(t, s, "missing"); rev != storage.NoRevision {
		t.Fatalf("%s: it stored a missing key", rule)
	}
}

// testFirstSet lets callers that start in the same instant set a new key, again and again.
func testFirstSet(t *testing.T, s storage.Storage) {
	race(t, s, func(string) storage.Revision { return storage.NoRevision })
}

// testRace lets callers that start in the same instant set a key of which all have read the same revision.
func testRace(t *testing.T, s storage.Storage) {
	race(t, s, func(key string) storage.Revision {
		set(t, s, key, state(5), storage.NoRevision)
		_, rev := get(t, s, key)
		return rev
	})
}

// seen is what a Get returned: no two states of a race have as many bytes.
type seen struct {
	rev   storage.Revision
	bytes int
}

// race lets a few callers set a key at the same revision in each of many rounds.
func race(t *testing.T, s storage.Storage, revision func(key string) storage.Revision) {
	t.Helper()
	const callers = 4
	// The larger ones widen the gap of a backend that copies between checking and storing.
	states := [callers]storage.State{state(10), state(11), state(32 << 10), state(64 << 10)}
	round := func(key string, readers int) {
		t.Helper()
		rev := revision(key)
		before, _ := get(t, s, key)
		var won, left, reads atomic.Int64
		var mu sync.Mutex
		read := map[seen]bool{}
		left.Store(callers)
		together(callers+readers, func(i int) {
			if i >= callers {
				for left.Load() > 0 {
					st, rev, err := s.Get(t.Context(), key)
					if err != nil {
						t.Errorf("Get: %v", err)
					}
					reads.Add(1)
					mu.Lock()
					read[seen{rev, len(st.Data)}] = true
					mu.Unlock()
				}
				return
			}
			defer left.Add(-1)
			for reads.Load() < int64(2*readers) { // until the readers wait for each other
				runtime.Gosched()
			}
			switch err := s.Set(t.Context(), key, states[i], rev); {
			case err == nil:
				won.Add(1 << (8 * i))
			case !errors.Is(err, storage.ErrConflict):
				t.Errorf("a Set that loses a race returns ErrConflict: it returned %v", err)
			}
		})
		if t.Failed() {
			t.FailNow()
		}
		winner := -1
		for i := range callers {
			if won.Load() == 1<<(8*i) {
				winner = i
			}
		}
		if winner < 0 {
			t.Fatalf("of %d callers that set a key at the same revision, %d, one succeeds: %d did", callers, rev, bits.OnesCount64(uint64(won.Load())))
		}
		after := holds(t, s, key, states[winner], "the only Set that succeeded has stored its bytes")
		for got := range read {
			if got != (seen{rev, len(before.Data)}) && got != (seen{after, len(states[winner].Data)}) {
				t.Fatalf("Get returns a state with its own revision: it returned %d bytes at revision %d, and there were %d at %d, then %d at %d",
					got.bytes, got.rev, len(before.Data), rev, len(states[winner].Data), after)
			}
		}
	}
	if _, closes := s.(io.Closer); !closes && takesLongKeys(t, s) {
		for i := range 20 { // a map of few keys compares without hashing
			set(t, s, fmt.Sprint("other", i), state(1), storage.NoRevision)
		}
		begin := time.Now()
		for i := 0; i < 50 || i < 200 && time.Since(begin) < 20*time.Second; i++ { // a storage may hash its keys
			round(longKey(i), 4)
		}
	}
	begin := time.Now()
	for i := 0; i < 50 || i < 20_000 && time.Since(begin) < time.Second/4; i++ {
		round(fmt.Sprint("k", i), 0)
	}
}

// longKey returns keys that take a millisecond to hash or to compare. In a backend within this process they widen each
// gap in which it does that. They also hold its locks for so long that a sync.Mutex serves its waiters in turn. So
// other callers overtake a caller that unlocks between checking and storing, whatever the scheduler does. All keys
// share their memory.
func longKey(i int) string {
	return manyBytes()[i:]
}

var manyBytes = sync.OnceValue(func() string { return strings.Repeat("long key ", 1<<20) })

// takesLongKeys returns false if the backend refuses them, as it may.
func takesLongKeys(t *testing.T, s storage.Storage) bool {
	key, call := longKey(1000), "Get"
	_, rev, err := s.Get(t.Context(), key)
	if err == nil {
		call, err = "Set", s.Set(t.Context(), key, state(1), rev)
	}
	if err != nil {
		t.Logf("races are tried with short keys only: %s of a key of 9 MB: %v", call, err)
	}
	return err == nil
}

// testNoLostUpdate lets workers count in one key, and each in a key of its own, among others.
func testNoLostUpdate(t *testing.T, s storage.Storage) {
	const workers, each = 8, 25
	for i := range 1000 { // a backend that copies all of them takes long
		set(t, s, fmt.Sprint("other ", i), state(1), storage.NoRevision)
	}
	count(t, s, workers, each, func(int) string { return "k" })
	count(t, s, workers, 4*each, func(i int) string { return fmt.Sprint("k", i) })
}

// stuck reports an error if a worker has tried a Set so often that each change of the others can have made one fail.
func stuck(t *testing.T, done, tries, most int) bool {
	if tries == most {
		t.Errorf("a Set fails only if another change came between it and its Get: of %d tries %d succeeded", tries, done)
	}
	return tries == most
}

// count lets workers increment the numbers in their keys through Get and Set.
func count(t *testing.T, s storage.Storage, workers, each int, key func(worker int) string) {
	want := map[string]int{}
	for i := range workers {
		if want[key(i)] += each; want[key(i)] == each {
			set(t, s, key(i), storage.State{Data: []byte{0, 0}, Now: time.Now().UnixMilli(), Until: decision.Never}, storage.NoRevision)
		}
	}
	together(workers, func(i int) {
		for done, tries := 0, 0; done < each; tries++ {
			if stuck(t, done, tries, workers*each) {
				return
			}
			st, rev, err := s.Get(t.Context(), key(i))
			if err != nil {
				t.Errorf("Get: %v", err)
				return
			}
			if st.Data[0]++; st.Data[0] == 0 {
				st.Data[1]++
			}
			st.Now, st.Until = time.Now().UnixMilli(), decision.Never
			switch err := s.Set(t.Context(), key(i), st, rev); {
			case err == nil:
				done++
			case !errors.Is(err, storage.ErrConflict):
				t.Errorf("a Set that loses a race returns ErrConflict: it returned %v", err)
				return
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	for key, want := range want {
		st, _ := get(t, s, key)
		if n := int(st.Data[0]) + int(st.Data[1])<<8; n != want {
			t.Errorf("no update is lost: %d increments of %q through Get and Set left %d", want, key, n)
		}
	}
}

func testKeys(t *testing.T, s storage.Storage) {
	keys := []string{
		"a", "A", "a ", " a", "a\n", "a\x00", "\x00", "\x00\x00", "a:b", "{a}", "{a}b", "a{", "}", "a*", "a?", "[a]", "a%", "a_", "a/b", "../a", "./a",
		"ab", "a b", "a_b", "a-b", "a.b", `a\b`, "a%2Fb", "a%20b", "a}", "a%7D", "a+b", "a\r\n", "a\r", "shared:a", "history:a", "shadow:a",
		"%61", "'", `"`, `\`, `\x61`, "1", "01", "1.0", "+1", "k", "\u212a", "ss", "ß", "\u1e9e", "i", "İ", "ı", "é", "e\u0301", "žluťoučký kůň",
		"\xff", "\xfe", "\xff\xfe not UTF-8", "\ufffd", "\ufffd\ufffd", "\xed\xa0\x80", "\xed\xa0\x81", "\xf4\x90\x80\x80", "\xc0\x80",
		"\ufeffa", "a\u200b",
		"plumless", "buckeroo", "liquid", "costarring", "Aa", "BB", // their CRC-32, FNV-1a and Java's hash are equal
	}
	for _, n := range []int{8, 16, 31, 32, 63, 64, 100, 127, 128, 255, 256, 511, 512, 1000, 1023, 1024, 2048, 4096, 32 << 10, 64 << 10} {
		keys = append(keys, strings.Repeat("x", n), strings.Repeat("x", n)+"y", strings.Repeat("x", n)+"z")
	}
	for i, key := range keys {
		if err := s.Set(t.Context(), key, state(i), storage.NoRevision); err != nil {
			t.Fatalf("a key is any bytes, and two keys that differ in any byte have two states: the first Set(%s): %v", short(key), err)
		}
	}
	for i, key := range keys {
		holds(t, s, key, state(i), "two keys that differ in any byte have two states")
	}
}

// testManyKeys is for backends within this process, such as a cache that keeps so many keys.
func testManyKeys(t *testing.T, s storage.Storage) {
	const n = 10_000
	for i := range n {
		set(t, s, fmt.Sprint(i), state(1), storage.NoRevision)
	}
	for i := range n {
		holds(t, s, fmt.Sprint(i), state(1), "a key is kept until its Until, also among many others")
	}
}

// testSimulatedTime stores states of the year 2017, one after the other a millisecond apart. None has reached its Until
// in that time, though it is long past by the machine's clock.
func testSimulatedTime(t *testing.T, s storage.Storage) {
	for i := range 100 {
		st := state(i)
		st.Now = 1_500_000_000_000 + int64(i)
		st.Until = st.Now + 5000
		set(t, s, fmt.Sprint(i), st, storage.NoRevision)
	}
	for i := range 100 {
		holds(t, s, fmt.Sprint(i), state(i), "a state is not forgotten by another clock than its Now")
	}
}

func testCancelled(t *testing.T, s storage.Storage) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Get(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Get with a cancelled context = %v, want context.Canceled", err)
	}
	if err := s.Set(ctx, "k", state(1), storage.NoRevision); !errors.Is(err, context.Canceled) {
		t.Errorf("Set with a cancelled context = %v, want context.Canceled", err)
	}
	if _, rev := get(t, s, "k"); rev != storage.NoRevision {
		t.Error("Set with a cancelled context stored the state")
	}
}

func testClosed(t *testing.T, s storage.Storage) {
	c := s.(io.Closer)
	set(t, s, "k", state(1), storage.NoRevision)
	if err := c.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	if _, _, err := s.Get(t.Context(), "k"); err == nil {
		t.Error("Get after Close succeeded")
	}
	if err := s.Set(t.Context(), "l", state(1), storage.NoRevision); err == nil || errors.Is(err, storage.ErrConflict) {
		t.Errorf("Set after Close = %v, want an error of its own", err)
	}
	if a, ok := s.(storage.Atomic); ok {
		if _, err := a.Do(t.Context(), "k", limits(1, 1), nil, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}); err == nil {
			t.Error("Do after Close succeeded")
		}
	}
	if r, ok := s.(storage.Reader); ok {
		if _, err := r.Read(t.Context(), "k"); err == nil {
			t.Error("Read after Close succeeded")
		}
	}
	if l, ok := s.(storage.Lister); ok {
		if err := l.List(t.Context(), func(storage.Entry) error { return nil }); err == nil {
			t.Error("List after Close succeeded")
		}
	}
}

func limits(size, rate int64) *decision.Limits {
	l := &decision.Limits{
		Windows: []decision.Window{{Size: size, Rate: rate, Interval: 1000}}, Tokens: size,
		Guess: 50, Start: 1_700_000_000_000, Lease: 60_000, MaxLease: 3_600_000,
	}
	l.Ready()
	return l
}

// together runs f(0) … f(n-1) at the same time, as far as there are processors, and waits for them.
func together(n int, f func(i int)) {
	var wg sync.WaitGroup
	var ready atomic.Int64
	for i := range n {
		wg.Go(func() {
			ready.Add(1)
			for ready.Load() < int64(n) {
				runtime.Gosched()
			}
			f(i)
		})
	}
	wg.Wait()
}
