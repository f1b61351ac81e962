package drip_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/attacks"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// getSet hides all of a storage but Get and Set.
type getSet struct{ storage.Storage }

// keepIn is a storage that keeps the last state that is set.
func keepIn(last *storage.State) storage.Storage {
	return hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error {
		if c.Method == "Set" {
			*last = c.State
		}
		return nil
	}}
}

// storages are the two paths of a decision: beside the data, and through Get and Set.
var storages = map[string]func(*testing.T) storage.Storage{
	"atomic":  func(*testing.T) storage.Storage { return memory.New() },
	"get/set": func(*testing.T) storage.Storage { return getSet{memory.New()} },
}

func TestTraces(t *testing.T) {
	for name, open := range storages {
		t.Run(name, func(t *testing.T) {
			ok(t, traces.Replay(t.Context(), open(t), traces.Runs))
		})
	}
}

// TestExactUnderContention counts what 64 goroutines are granted that ask as fast as they can. No entity is idle long
// enough to fill its bucket, so the granted and the remaining capacity must add up to the gain of the intervals,
// exactly.
func TestExactUnderContention(t *testing.T) {
	for name, open := range storages {
		for _, entities := range []int{1, 10_000} {
			t.Run(fmt.Sprintf("%s/%d entities", name, entities), func(t *testing.T) {
				const interval, rate, size = 20, 3, 100_000
				s, began := open(t), time.Now()
				b := buckettest.New(t, drip.Options{
					Size: size, RefreshRate: rate, RefreshInterval: interval * time.Millisecond, Start: began, Storage: s,
				})
				granted := make([]atomic.Int64, entities)
				var some atomic.Bool
				var wg sync.WaitGroup
				for range 64 {
					wg.Go(func() {
						for time.Since(began) < 500*time.Millisecond || !some.Load() && time.Since(began) < time.Minute {
							e := rand.IntN(entities)
							delay, err := b.GetDelay(context.Background(), fmt.Sprint(e))
							if err != nil {
								t.Error(err)
								return
							}
							if delay == 0 {
								granted[e].Add(1)
								some.Store(true)
								if err := b.ReturnToken(context.Background(), fmt.Sprint(e)); err != nil {
									t.Error(err)
								}
							}
						}
					})
				}
				wg.Wait()
				if !some.Load() {
					t.Error("nothing was granted")
				}
				for e := range granted {
					n := granted[e].Load()
					st, rev, err := s.Get(t.Context(), fmt.Sprint(e))
					ok(t, err)
					if rev == storage.NoRevision {
						if n != 0 {
							t.Fatalf("entity %d was granted %d and is not known", e, n)
						}
						continue
					}
					var left decision.State
					if _, err := storage.Decode(st.Data, &left); err != nil {
						t.Fatal(err)
					}
					if last, elapsed := left.Now-began.UnixMilli(), time.Since(began).Milliseconds()+1; last > elapsed {
						t.Fatalf("entity %d: its last decision is %d ms after the start, only %d have passed", e, last, elapsed)
					}
					brought := rate * (left.Now/interval - began.UnixMilli()/interval)
					if n+left.Lines[0].Left != brought {
						t.Fatalf("entity %d: granted %d, left %d; the intervals brought %d", e, n, left.Lines[0].Left, brought)
					}
					if left.Plain != 0 {
						t.Fatalf("entity %d: %d tokens are out after all were returned", e, left.Plain)
					}
				}
			})
		}
	}
}

func TestNewNamesTheWrongField(t *testing.T) {
	for _, c := range []struct {
		o    drip.Options
		want string
	}{
		{drip.Options{Size: -1}, "drip: Options.Size is -1; it must be at least 1, or 0 for the default"},
		{drip.Options{Storage: (*memory.Storage)(nil)}, "drip: Options.Storage is a nil *memory.Storage"},
		{drip.Options{Storage: (*getSet)(nil)}, "drip: Options.Storage is a nil *drip_test.getSet"},
		{drip.Options{RefreshRate: -5}, "drip: Options.RefreshRate is -5; it must be at least 1, or 0 for the default"},
		{drip.Options{RefreshInterval: -time.Second}, "drip: Options.RefreshInterval is -1s; it must be whole milliseconds, at least 1ms, or 0 for the default"},
		{drip.Options{RefreshInterval: time.Microsecond}, "drip: Options.RefreshInterval is 1µs; it must be whole milliseconds, at least 1ms, or 0 for the default"},
		{drip.Options{Unit: "calls"}, `drip: Options.Unit is "calls"; leave it empty to count calls`},
		{drip.Options{Shared: map[string]drip.Limit{"app": {Size: 1, Unit: "calls"}}}, `drip: Options.Shared["app"].Unit is "calls"; leave it empty to count calls`},
		{drip.Options{Windows: []drip.Window{{Size: 1, RefreshInterval: time.Second, Unit: "\xff"}}}, `drip: Options.Windows[0].Unit is "\xff"; it must be valid UTF-8`},
		{drip.Options{Windows: []drip.Window{{Size: 1, RefreshInterval: time.Second, Unit: "calls"}}}, `drip: Options.Windows[0].Unit is "calls"; leave it empty to count calls`},
		{drip.Options{Shared: map[string]drip.Limit{"app": {Windows: []drip.Window{{}, {Unit: "\xff"}}}}}, `drip: Options.Shared["app"].Windows[1].Unit is "\xff"; it must be valid UTF-8`},
		{drip.Options{Lease: time.Minute, MaxLease: time.Second}, "drip: Options.MaxLease is 1s; it must be at least Lease, which is 1m0s"},
		{drip.Options{Start: time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC)}, "drip: Options.Start is 1600-01-01 00:00:00 +0000 UTC; it must be within 278 years of 1970"},
		{drip.Options{WaitForToken: 1500 * time.Microsecond}, "drip: Options.WaitForToken is 1.5ms; it must be whole milliseconds, at least 1ms, or 0 for the default"},
	} {
		if _, err := drip.New(c.o); err == nil || err.Error() != c.want {
			t.Errorf("New(%+v) = %v, want %s", c.o, err, c.want)
		}
	}
}

// A Lease above an hour needs no MaxLease.
func TestLongLease(t *testing.T) {
	begin := time.UnixMilli(1_700_000_000_000)
	b := buckettest.New(t, drip.Options{Lease: 2 * time.Hour, Start: begin.Add(-time.Hour)})
	a := buckettest.Admit(t, b, "shop", drip.Request{Now: begin})
	if got := a.Lease.End().Sub(begin); got != 2*time.Hour {
		t.Errorf("the lease is of %v", got)
	}
}

func TestDefaults(t *testing.T) {
	start := time.UnixMilli(1_700_000_000_000)
	b := buckettest.New(t, drip.Options{Start: start})
	count := func(now time.Time) (n int) {
		for {
			delay, err := b.GetDelayAt(t.Context(), "shop", now)
			ok(t, err)
			if delay > 0 {
				return n
			}
			n++
		}
	}
	if got := count(start.Add(time.Second)); got != 50 {
		t.Errorf("%d runs in the first interval, want 50", got)
	}
	if got := count(start.Add(time.Minute)); got != 50 {
		t.Errorf("%d more runs, want 50: then all 100 tokens are out", got)
	}
	if got, err := b.GetDelayAt(t.Context(), "shop", start.Add(2*time.Minute)); err != nil || got != 50*time.Millisecond {
		t.Errorf("the delay when only a token is short is %v, %v; want 50ms", got, err)
	}
}

func TestErrorsNameOperationAndEntity(t *testing.T) {
	b := buckettest.New(t, drip.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, empty := b.GetDelay(t.Context(), "")
	_, cancelled := b.GetDelay(ctx, "shop 1")
	a := buckettest.Admit(t, b, "shop 1", drip.Request{Now: time.Now().Add(time.Minute)})
	_, foreign := b.Renew(t.Context(), "shop 2", a.Lease)
	ok(t, b.Settle(t.Context(), "shop 1", a.Lease, 1))
	for _, c := range []struct {
		err, is error
		text    string
	}{
		{empty, drip.ErrNoEntity, `drip: get delay of "": no entity: the name is empty`},
		{cancelled, context.Canceled, `drip: get delay of "shop 1": context canceled`},
		{b.ReturnToken(t.Context(), ""), drip.ErrNoEntity, `drip: return token of "": no entity: the name is empty`},
		{foreign, drip.ErrNoLease, `drip: renew the lease of "shop 2": the lease belongs to "shop 1"`},
		{b.Settle(t.Context(), "shop 1", a.Lease, 1), drip.ErrNoLease, `drip: settle "shop 1": the lease is over`},
		{b.Settle(t.Context(), "shop 1", drip.Lease{}, 1), drip.ErrNoLease, `drip: settle "shop 1": there is no lease: the operation was postponed`},
		{b.Cancel(t.Context(), "shop 3", drip.Admission{Ticket: a.Lease.Ticket()}), drip.ErrNoLease, `drip: cancel "shop 3": there is no such ticket`},
		{b.ReturnToken(ctx, "shop 1"), context.Canceled, `drip: return token of "shop 1": context canceled`},
	} {
		if !errors.Is(c.err, c.is) || c.err.Error() != c.text {
			t.Errorf("got %v, want %s", c.err, c.text)
		}
	}
}

func TestConflictsEndWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := buckettest.New(t, drip.Options{Storage: hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error {
			if c.Method == "Set" {
				return storage.ErrConflict // another writer is first
			}
			return nil
		}}})
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		_, err := b.GetDelay(ctx, "shop")
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "others kept changing the state") {
			t.Errorf("GetDelay = %v", err)
		}
		if time.Since(began) != 5*time.Second {
			t.Errorf("it took %v, want the 5s of its context", time.Since(began))
		}
	})
}

func TestWaitingForOnesTurnEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := buckettest.New(t, drip.Options{Storage: hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error {
			if c.Method == "Get" {
				time.Sleep(time.Second)
			}
			return nil
		}}})
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			if _, err := b.GetDelay(t.Context(), "shop"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := b.GetDelay(ctx, "shop"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("GetDelay behind a slow one = %v, want DeadlineExceeded", err)
		}
		if _, err := b.GetDelay(t.Context(), "other"); err != nil {
			t.Errorf("another entity = %v", err)
		}
	})
}

type counting struct {
	*memory.Storage
	plain, atomic int
}

func (c *counting) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	c.plain++
	return c.Storage.Get(ctx, key)
}

func (c *counting) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	c.atomic++
	return c.Storage.Do(ctx, key, l, within, op)
}

func TestAtomicPathIsTaken(t *testing.T) {
	s := &counting{Storage: memory.New()}
	b := buckettest.New(t, drip.Options{Storage: s})
	if _, err := b.GetDelay(t.Context(), "shop"); err != nil {
		t.Fatal(err)
	}
	if s.plain != 0 || s.atomic != 1 {
		t.Errorf("%d Gets and %d atomic decisions, want 0 and 1", s.plain, s.atomic)
	}
}

// ReturnToken has no time of the caller's. The time of a state stays the one it was decided at.
func TestReturnedTokenKeepsTheTime(t *testing.T) {
	var last storage.State
	b := buckettest.New(t, drip.Options{Storage: keepIn(&last)})
	now := time.UnixMilli(1_500_000_000_000)
	if delay, err := b.GetDelayAt(t.Context(), "shop", now); delay != 0 || err != nil {
		t.Fatalf("GetDelayAt = %v, %v, want 0", delay, err)
	}
	ok(t, b.ReturnToken(t.Context(), "shop"))
	if last.Now != now.UnixMilli() {
		t.Errorf("the state is of %d, want %d", last.Now, now.UnixMilli())
	}
}

var ok = oktest.OK // ends the test if there is an error

// The time of an entity does not run backwards, so a lease that has ended by it is not out again when a clock steps back.
func TestInspectAfterAStepBack(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	b := buckettest.New(t, drip.Options{Concurrency: 1, Lease: time.Second, Start: time.UnixMilli(0), Clock: func() time.Time { return now }})
	_, err := b.Admit(t.Context(), "shop", drip.Request{}) // its holder dies
	ok(t, err)
	now = now.Add(3 * time.Second)
	ok(t, b.Pause(t.Context(), "shop", time.Millisecond))
	ok(t, b.Resume(t.Context(), "shop"))
	now = now.Add(-2500 * time.Millisecond)
	got := buckettest.Inspect(t, b, "shop")
	a := buckettest.Admit(t, b, "shop", drip.Request{})
	if a.Delay != got.Delay || a.Bound != got.Bound || got.InUse > 0 || len(got.Leases) > 0 {
		t.Errorf("Inspect: %v, %v, %d in use; then Admit: %v, %v", got.Delay, got.Bound, got.InUse, a.Delay, a.Bound)
	}
}

// A limit of tokens alone has no window that counts calls, so an announced rate bounds nothing.
func TestAnnouncedRateOfTokensAlone(t *testing.T) {
	b := buckettest.New(t, drip.Options{Follow: true, Shared: map[string]drip.Limit{"app": {Concurrency: 2}}})
	ok(t, b.Announced(t.Context(), drip.SharedID("app"), 5, time.Hour))
	buckettest.Admit(t, b, "shop", drip.Request{})
	if got, err := b.Inspect(t.Context(), drip.SharedID("app")); err != nil || got.Level != 1 {
		t.Errorf("the level is %v, %v", got.Level, err)
	}
}

func TestInspectAfterManyLeasesEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { buckettest.EndedLeases(t, memory.New()) })
}

// The calls about a lease follow the time of the Request that took it: a simulation of another year needs no Clock.
func TestLeaseFollowsRequestNow(t *testing.T) {
	ctx := t.Context()
	for name, begin := range map[string]time.Time{
		"past":   time.Date(2001, 1, 1, 12, 0, 0, 0, time.UTC),
		"future": time.Date(2101, 1, 1, 12, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			b := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 1, Concurrency: 1, Lease: time.Minute, Start: begin.Add(-time.Hour)})
			for i := range 30 {
				now := begin.Add(time.Duration(i) * time.Second)
				a, err := b.Admit(ctx, "shop", drip.Request{Now: now, Cost: 2})
				if err != nil || a.Delay > 0 {
					t.Fatalf("Admit %d = %v, %v", i, a.Delay, err)
				}
				lease := a.Lease
				if i%2 == 1 {
					if lease, err = b.Renew(ctx, "shop", lease); err != nil {
						t.Fatalf("Renew %d: %v", i, err)
					}
					if got := lease.End().Sub(now); got != time.Minute {
						t.Errorf("Renew %d: the lease ends in %v", i, got)
					}
				}
				if i%3 == 2 {
					err = b.Cancel(ctx, "shop", drip.Admission{Lease: lease})
				} else {
					err = b.Settle(ctx, "shop", lease, 1)
				}
				if err != nil {
					t.Fatalf("the end of operation %d: %v", i, err)
				}
			}
			// Its end is in the time of the simulation, too.
			a := buckettest.Admit(t, b, "shop", drip.Request{Now: begin.Add(time.Hour)})
			buckettest.Admit(t, b, "shop", drip.Request{Now: begin.Add(2 * time.Hour)})
			if err := b.Settle(ctx, "shop", a.Lease, 1); err == nil {
				t.Error("a lease that is over for an hour was settled")
			}
		})
	}
}

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

// A Bucket keeps its Options: its caller may change its own map and slices afterwards, for the next Bucket.
func TestOptionsAreTheBuckets(t *testing.T) {
	asOptions := func(context.Context, string) (drip.Limit, error) { return drip.Limit{}, nil }
	o := drip.Options{
		Size: 10, Windows: []drip.Window{{Size: 20, RefreshInterval: time.Hour}}, Limits: asOptions, SharedLimits: asOptions,
		Shared: map[string]drip.Limit{
			"app":   {Size: 5, Windows: []drip.Window{{Size: 50, RefreshInterval: time.Hour}}},
			"trial": {Size: 1, Shadow: true},
		},
	}
	b := buckettest.New(t, o)
	o.Windows[0].Size = 1
	o.Shared["app"].Windows[0].Size = 2
	delete(o.Shared, "trial")
	if s := buckettest.Inspect(t, b, "shop"); s.Windows[1].Size != 20 {
		t.Errorf("a window has the size %d, want 20", s.Windows[1].Size)
	}
	if s := buckettest.Inspect(t, b, drip.SharedID("app")); s.Windows[1].Size != 50 {
		t.Errorf("a window of the shared limit has the size %d, want 50", s.Windows[1].Size)
	}
	if _, err := b.Inspect(t.Context(), drip.SharedID("trial")); err != nil {
		t.Errorf("the limit on trial: %v", err)
	}
}

func TestAttacks(t *testing.T) {
	for name, open := range storages {
		n := 100_000
		if name == "get/set" {
			n = 5_000 // each decision copies the leases that are out
		}
		t.Run(name, func(t *testing.T) { attacks.Run(t, n, open) })
	}
}
