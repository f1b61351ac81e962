package drip

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// flushed is the longest time until all counts are stored.
const flushed = 2 * time.Minute

var ok = oktest.OK // ends the test if there is an error

func newBucket(t testing.TB, o Options) *Bucket {
	t.Helper()
	b, err := New(o)
	ok(t, err)
	return b
}

// total is the calls in the last hour.
func total(t *testing.T, b *Bucket, entity string) (n int) {
	t.Helper()
	u, err := b.Used(t.Context(), entity)
	ok(t, err)
	for _, in := range u.Units[""] {
		n += in
	}
	return n
}

// run admits an operation, and ends the test if it may not run.
func run(t *testing.T, b interface {
	Admit(context.Context, string, Request) (Admission, error)
}, entity string, r Request) Admission {
	t.Helper()
	a, err := b.Admit(t.Context(), entity, r)
	if err != nil || a.Delay > 0 {
		t.Fatal(a, err)
	}
	return a
}

// Each minute has what began in it, for the entity and its shared limits, in each unit. An hour later nothing is left.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		b := newBucket(t, Options{
			Size: 1000, RefreshRate: 1000, Windows: []Window{{Size: 100_000, RefreshInterval: time.Minute, Unit: "tokens"}}, Start: time.Unix(0, 0), Lease: time.Hour, Storage: s, History: true,
			Shared: map[string]Limit{"app": {Size: 1000}, "stock": {Size: 1000}, "trial": {Size: 1, Shadow: true}},
		})
		time.Sleep(20 * time.Second) // of the minute 0
		for range 3 {                // classic
			if d, err := b.GetDelay(t.Context(), "shop"); d != 0 || err != nil {
				t.Fatal(d, err)
			}
			ok(t, b.ReturnToken(t.Context(), "shop"))
		}
		five := run(t, b, "shop", Request{Cost: 5, Costs: Costs{"tokens": 900}, Within: []string{"app"}}).Lease
		cancelled := run(t, b, "shop", Request{Cost: 7})
		run(t, b, ShadowID("shop"), Request{})
		if a, err := b.Admit(t.Context(), ShadowID("shop"), Request{}); err != nil || a.Delay == 0 {
			t.Fatal(a, err)
		}
		time.Sleep(time.Minute) // the costs are known in the minute 1, and count in the minute 0
		ok(t, b.Settle(t.Context(), "shop", five, 2, Costs{"tokens": 1200}))
		ok(t, b.Cancel(t.Context(), "shop", cancelled))
		if err := b.Settle(t.Context(), "shop", five, 9); !errors.Is(err, ErrNoLease) {
			t.Fatal(err)
		}
		run(t, b, "shop", Request{Within: []string{}})
		time.Sleep(flushed) // to the minute 3
		for _, c := range []struct {
			entity, unit string
			minutes      [2]int
		}{
			{"shop", "", [2]int{3 + 2, 1}}, {"shop", "tokens", [2]int{1200, 0}}, {"other", "", [2]int{}}, {ShadowID("shop"), "", [2]int{1, 0}},
			{SharedID("app"), "", [2]int{3 + 2, 0}}, {SharedID("app"), "tokens", [2]int{1200, 0}}, {SharedID("stock"), "", [2]int{3, 0}}, {SharedID("trial"), "", [2]int{1, 0}},
		} {
			u, err := b.Used(t.Context(), c.entity)
			want := [60]int{56: c.minutes[0], 57: c.minutes[1]}
			if err != nil || u.Units[c.unit] != want || !u.From.Equal(time.Now().Truncate(time.Minute).Add(-59*time.Minute)) || u.Entity != c.entity {
				t.Errorf("%s used %+v, %v; want %v of %q", c.entity, u, err, want, c.unit)
			}
			if _, any := u.Units[c.unit]; any != (want != [60]int{}) {
				t.Errorf("%s used %v; units that were not used are missing", c.entity, u.Units)
			}
		}
		time.Sleep(57*time.Minute - time.Second) // less than an hour after the minute 1 began
		if n := total(t, b, "shop"); n != 1 {
			t.Errorf("%d used in the last hour, want 1", n)
		}
		time.Sleep(time.Minute)
		if u, err := b.Used(t.Context(), "shop"); err != nil || len(u.Units) != 0 {
			t.Errorf("%v are used an hour later, %v", u.Units, err)
		}
		for range 600 { // the storage forgets it as well
			time.Sleep(100 * time.Millisecond)
			run(t, b, "busy", Request{Within: []string{}})
		}
		if _, rev, err := s.Get(t.Context(), historyMark+"shop"); rev != storage.NoRevision || err != nil {
			t.Error("the record is stored still", err)
		}
	})
}

// Without the option nothing is written, and an entity may not have the name of a record.
func TestWithoutHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		b := newBucket(t, Options{Storage: s, Start: time.Unix(0, 0)})
		run(t, b, "shop", Request{})
		time.Sleep(flushed)
		if u, err := b.Used(t.Context(), "shop"); s.Len() != 1 || err != nil || len(u.Units) != 0 {
			t.Errorf("%d keys are stored; %+v, %v", s.Len(), u, err)
		}
		const name = historyMark + "shop"
		_, classic := b.GetDelay(t.Context(), name)
		_, admit := b.Admit(t.Context(), name, Request{})
		_, inspect := b.Inspect(t.Context(), name)
		_, used := b.Used(t.Context(), name)
		for doing, err := range map[string]error{
			"GetDelay": classic, "Admit": admit, "Inspect": inspect, "Used": used, "ReturnToken": b.ReturnToken(t.Context(), name),
			"Pause": b.Pause(t.Context(), name, time.Minute), "Pin": b.Pin(t.Context(), name, Pin{Concurrency: 1}),
		} {
			if !errors.Is(err, errHistory) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s of %s: %v", doing, name, err)
			}
		}
		if _, err := b.Used(t.Context(), ""); !errors.Is(err, ErrNoEntity) {
			t.Error(err)
		}
	})
}

// Buckets over one storage sum up exactly, in each minute, whatever the order in which they store, settle and conflict.
func TestHistoryOfSeveralBuckets(t *testing.T) {
	for name, open := range map[string]func() storage.Storage{
		"atomic":  func() storage.Storage { return memory.New() },
		"get/set": func() storage.Storage { return &racing{Storage: memory.New(), every: 3} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := open()
				o := Options{
					Size: 100_000, RefreshRate: 100_000, Windows: []Window{{Size: 1 << 40, RefreshInterval: time.Hour, Unit: "tokens"}},
					Shared: map[string]Limit{"app": {Size: 100_000}}, Start: time.Unix(0, 0), Lease: time.Hour, Storage: s, History: true,
				}
				var buckets [4]*Bucket
				for i := range buckets {
					buckets[i] = newBucket(t, o)
				}
				want := map[string]map[string]*[60]int{}
				count := func(entity string, minute int64, calls, tokens int) {
					for _, id := range []string{entity, SharedID("app")} {
						if want[id] == nil {
							want[id] = map[string]*[60]int{"": {}, "tokens": {}}
						}
						want[id][""][minute] += calls
						want[id]["tokens"][minute] += tokens
					}
				}
				begin := time.Now()
				minuteNow := func() int64 { return int64(time.Since(begin) / time.Minute) }
				type running struct {
					entity string
					minute int64
					lease  Lease
				}
				var all []running
				r := rand.New(rand.NewPCG(1, 9))
				for time.Since(begin) < 50*time.Minute {
					time.Sleep(time.Duration(r.Int64N(int64(3 * time.Second))))
					b, entity := buckets[r.IntN(len(buckets))], fmt.Sprint("shop-", r.IntN(5))
					if cost := r.IntN(5); cost > 0 && len(all) < 50 {
						l := run(t, b, entity, Request{Cost: cost, Costs: Costs{"tokens": 100}}).Lease
						count(entity, minuteNow(), cost, 100)
						all = append(all, running{entity, minuteNow(), l})
						continue
					}
					for _, of := range all { // another Bucket ends them, if the lease is not over
						b := buckets[r.IntN(len(buckets))]
						cost, tokens := r.IntN(9), r.IntN(300)
						var err error
						if cost == 0 && tokens%2 == 0 {
							tokens, err = 0, b.Cancel(t.Context(), of.entity, Admission{Lease: of.lease})
						} else {
							err = b.Settle(t.Context(), of.entity, of.lease, cost, Costs{"tokens": tokens})
						}
						if err == nil {
							count(of.entity, of.minute, cost-of.lease.Cost(), tokens-100)
						} else if !errors.Is(err, ErrNoLease) {
							t.Fatal(err)
						}
					}
					all = all[:0]
				}
				time.Sleep(flushed)
				for id, units := range want {
					u, err := buckets[0].Used(t.Context(), id)
					ok(t, err)
					shift := int(begin.Sub(u.From) / time.Minute)
					for unit, minutes := range units {
						got := u.Units[unit]
						for i := range minutes {
							if at := i + shift; at >= 0 && at < 60 && got[at] != minutes[i] {
								t.Errorf("%s used %d of %q in the minute %d, want %d", id, got[at], unit, i, minutes[i])
							}
						}
					}
				}
				if r, ok := s.(*racing); ok && r.conflicts < 100 {
					t.Errorf("only %d conflicts", r.conflicts)
				}
			})
		})
	}
}

// Two processes that add the same to the same record both count, whichever wins, and also if one of them gets no answer.
func TestHistoryOfEqualBuckets(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New()
			var buckets [2]*Bucket
			for i := range buckets {
				buckets[i] = newBucket(t, Options{Size: 1000, Start: time.Unix(0, 0), Storage: s, History: true})
			}
			var once sync.Once
			buckets[0].history.storage = hooked.Storage{Storage: s, First: func(_ context.Context, c hooked.Call) (err error) {
				if c.Method == "Get" {
					return nil
				}
				once.Do(func() { // the other one stores between its Get and its Set
					if err := buckets[1].history.write("shop", map[entityMinute]*decision.Cost{{"shop", minuteOf(time.Now().UnixMilli())}: {1}}); err != nil {
						t.Error(err)
					}
					if lost {
						err = errors.New("no answer")
					}
				})
				return err
			}}
			run(t, buckets[0], "shop", Request{})
			time.Sleep(2 * flushed)
			if n := total(t, buckets[1], "shop"); n != 2 {
				t.Errorf("lost %v: %d used, want 2", lost, n)
			}
		})
	}
}

// racing has Get and Set alone. Each so many Sets of a history lose their race against another process, and the Sets
// after them their answers.
type racing struct {
	storage.Storage
	every           int
	mu              sync.Mutex
	sets, conflicts int
}

func (r *racing) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if strings.HasPrefix(key, historyMark) {
		r.mu.Lock()
		r.sets++
		lose, lost := r.sets%r.every == 0, r.sets%r.every == 1
		if lose {
			r.conflicts++
		}
		r.mu.Unlock()
		if lose {
			return storage.ErrConflict
		}
		if lost {
			return errors.Join(errors.New("no answer"), r.Storage.Set(ctx, key, s, rev))
		}
	}
	return r.Storage.Set(ctx, key, s, rev)
}

// A storage that fails for a while loses no decision and no count. A count that it can't take for an hour is forgotten.
func TestHistoryOfAStorageThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &failing{Storage: memory.New()}
		b := newBucket(t, Options{Size: 1000, RefreshRate: 1000, Start: time.Unix(0, 0), Storage: s, History: true})
		s.fail(true)
		const shops = 40
		for range 20 {
			for i := range shops {
				run(t, b, fmt.Sprint("shop-", i), Request{})
			}
			time.Sleep(time.Minute)
		}
		synctest.Wait()
		if calls := s.fail(false); calls < 19 || calls > 20*(mostFailures+flushTogether) {
			t.Errorf("%d calls of a storage that fails for 20 minutes", calls)
		}
		time.Sleep(flushed)
		for i := range shops {
			if n := total(t, b, fmt.Sprint("shop-", i)); n != 20 {
				t.Errorf("shop-%d used %d, want 20", i, n)
			}
		}
		s.fail(true)
		run(t, b, "late", Request{})
		time.Sleep(63 * time.Minute)
		if b.history.armed.Load() || b.history.any() {
			t.Error("the counts of more than an hour ago wait still")
		}
		s.fail(false)
		time.Sleep(flushed)
		if n := total(t, b, "late"); n != 0 {
			t.Errorf("%d used in the last hour, want 0", n)
		}
	})
}

// A panic of the storage, or of the clock, in the background is a failure, too.
func TestHistoryOutlivesPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, broken := &failing{Storage: memory.New(), panic: true}, atomic.Bool{}
		b := newBucket(t, Options{Size: 10, RefreshRate: 10, Start: time.Unix(0, 0), Storage: s, History: true, Clock: func() time.Time {
			if broken.Load() {
				panic("out of order")
			}
			return time.Now()
		}})
		run(t, b, "shop", Request{})
		s.fail(true)
		time.Sleep(flushed)
		if s.fail(false) == 0 {
			t.Error("nothing has failed")
		}
		broken.Store(true)
		time.Sleep(flushed)
		broken.Store(false)
		time.Sleep(flushed)
		if n := total(t, b, "shop"); n != 1 {
			t.Errorf("%d used, want 1", n)
		}
	})
}

// failing refuses histories while it fails.
type failing struct {
	storage.Storage
	mu    sync.Mutex
	fails bool
	panic bool // instead
	calls int
}

// fail sets whether it fails, and returns how often it failed.
func (f *failing) fail(fails bool) (calls int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = fails
	calls, f.calls = f.calls, 0
	return calls
}

func (f *failing) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails && strings.HasPrefix(key, historyMark) {
		f.calls++
		if f.panic {
			panic("out of order")
		}
		return storage.State{}, storage.NoRevision, errors.New("out of order")
	}
	return f.Storage.Get(ctx, key)
}

// Bytes that are no record are replaced, and no decision fails by them.
func TestHistoryReplacesGarbage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state := storage.Encode(&decision.State{Tokens: 1, Guess: 1}, nil)
		for i, garbage := range []string{
			"", "garbage", string(state), `{"v":2,"from":0,"used":{}}`, `{"v":1}`, `{"v":1,"from":"x"}`, `{"v":1,"from":9223372036854775807,"used":{"":[1,2,3]}}`,
			`{"v":1,"from":-9223372036854775808,"used":{"":[1]}}`, `{"v":1,"used":{"":[1e99]}}`, `[]`, `null`, `{"v":1,"from":0,"used":{"":[7]}}`,
		} {
			s := memory.New()
			b := newBucket(t, Options{Storage: s, Start: time.Unix(0, 0), History: true})
			ok(t, s.Set(t.Context(), historyMark+"shop", storage.State{Data: []byte(garbage), Now: time.Now().UnixMilli(), Until: decision.Never}, storage.NoRevision))
			if n := total(t, b, "shop"); n != 0 {
				t.Errorf("garbage %d is %d used", i, n)
			}
			run(t, b, "shop", Request{})
			time.Sleep(flushed)
			if n := total(t, b, "shop"); n != 1 {
				t.Errorf("after garbage %d: %d used, want 1", i, n)
			}
			if err := s.List(t.Context(), func(e storage.Entry) error {
				if e.Key != "shop" {
					t.Errorf("garbage %d: List tells %q", i, e.Key)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
	})
}

// Ten thousand entities are stored a few at a time, and not all at once. While the storage is slow four are.
func TestHistoryOfManyEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sets, now, together int
		inSecond := map[int64]int{}
		s := hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error {
			if c.Method == "Set" && strings.HasPrefix(c.Key, historyMark) {
				mu.Lock()
				takes := 2 * time.Millisecond
				if sets++; sets <= 100 {
					takes = 50 * time.Millisecond
				}
				now++
				together = max(together, now)
				inSecond[time.Now().Unix()]++
				mu.Unlock()
				time.Sleep(takes)
				mu.Lock()
				now--
				mu.Unlock()
			}
			return nil
		}}
		b := newBucket(t, Options{Start: time.Unix(0, 0), Storage: s, History: true})
		const entities = 10_000
		for i := range entities {
			run(t, b, fmt.Sprint("shop-", i), Request{})
		}
		time.Sleep(flushed)
		synctest.Wait()
		most := 0
		for _, n := range inSecond {
			most = max(most, n)
		}
		if sets != entities || most > entities/20 || together != 4 {
			t.Errorf("%d Sets, at most %d in a second and %d at a time, want 4", sets, most, together)
		}
		if b.history.armed.Load() {
			t.Error("a flush is due without counts")
		}
		// Beyond a bound counts are lost, and nothing else.
		for i := range 3 * mostCounted {
			b.history.add(entityMinute{fmt.Sprint(i), 0}, &decision.Cost{1})
		}
		n := 0
		for i := range b.history.shards {
			n += len(b.history.shards[i].counts)
		}
		if n != mostCounted {
			t.Errorf("%d counts wait, want %d", n, mostCounted)
		}
	})
}

// Options.Clock tells the minutes.
func TestHistoryOfAClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		now := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
		b := newBucket(t, Options{History: true, Start: time.Unix(0, 0), Clock: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return now
		}})
		if _, err := b.GetDelay(t.Context(), "shop"); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		now = now.Add(10 * time.Minute)
		mu.Unlock()
		run(t, b, "shop", Request{})
		run(t, b, "shop", Request{Now: now.Add(time.Hour)}) // too far ahead to count
		time.Sleep(flushed)
		u, err := b.Used(t.Context(), "shop")
		if want := [60]int{49: 1, 59: 1}; err != nil || u.Units[""] != want || !u.From.Equal(time.Date(2001, 2, 3, 3, 16, 0, 0, time.UTC)) {
			t.Errorf("%+v, %v; want %v", u, err, want)
		}
	})
}

// Counting allocates nothing while a minute lasts, and neither does a Bucket without a history.
func TestHistoryAllocatesNothing(t *testing.T) {
	for _, on := range []bool{false, true} {
		b := newBucket(t, Options{Size: 1 << 30, RefreshRate: 1 << 30, Start: time.Unix(0, 0), History: on})
		if n := testing.AllocsPerRun(1000, func() {
			_, err := b.GetDelay(t.Context(), "shop")
			err = errors.Join(err, b.ReturnToken(t.Context(), "shop"))
			a, failed := b.Admit(t.Context(), "shop", Request{})
			if err = errors.Join(err, failed, b.Settle(t.Context(), "shop", a.Lease, 2)); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("history %v: %v allocations of four calls", on, n)
		}
	}
}

// A record is small, and so are the counts that wait while a storage fails.
func TestHistoryIsSmall(t *testing.T) {
	r := record{}
	for i := range int64(60) {
		r[used{29_000_000 + i, ""}] = 999 - i
	}
	if data, last := r.encode(29_000_059); len(data) >= 300 || last != 29_000_059 {
		t.Errorf("a record has %d bytes: %s", len(data), data)
	}
	b := newBucket(t, Options{History: true})
	entities := make([]string, mostCounted+mostCounted/10)
	for i := range entities {
		entities[i] = fmt.Sprint("shop-", i)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for _, entity := range entities {
		b.history.add(entityMinute{entity, 0}, &decision.Cost{1})
	}
	if took := int64(heap() - before); took > 12_000_000 {
		t.Errorf("%d counts take %d bytes", mostCounted, took)
	}
	runtime.KeepAlive(b)
	runtime.KeepAlive(entities)
}

// BenchmarkHistory is a classic pair, and an Admit with its Settle, in memory, without a history and with one.
func BenchmarkHistory(b *testing.B) {
	for _, on := range []bool{false, true} {
		for name, pair := range map[string]func(context.Context, *Bucket) error{
			"GetDelay": func(ctx context.Context, bucket *Bucket) error {
				_, err := bucket.GetDelay(ctx, "shop")
				return errors.Join(err, bucket.ReturnToken(ctx, "shop"))
			},
			"Admit": func(ctx context.Context, bucket *Bucket) error {
				a, err := bucket.Admit(ctx, "shop", Request{})
				return errors.Join(err, bucket.Settle(ctx, "shop", a.Lease, a.Lease.Cost()))
			},
		} {
			b.Run(fmt.Sprintf("%s/%v", name, on), func(b *testing.B) {
				bucket := newBucket(b, Options{Size: 1 << 40, RefreshRate: 1 << 40, Concurrency: 1 << 30, Start: time.Unix(0, 0), History: on})
				ctx := context.Background()
				b.ReportAllocs()
				for b.Loop() {
					ok(b, pair(ctx, bucket))
				}
			})
		}
	}
}
