package drip_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// shops is a bucket of shops within an app's limit and an endpoint's, by a clock of its own. They begin full.
func shops(t *testing.T, s storage.Storage, o drip.Options) (*drip.Bucket, *time.Time) {
	t.Helper()
	now := time.Unix(1_700_000_000, 0)
	o.Storage, o.Start = s, time.Unix(0, 0)
	o.Clock = func() time.Time { return now }
	return buckettest.New(t, o), &now
}

// A message that comes back before its slot keeps the slot, also behind a backlog.
func TestSharedKeepsTheSlotOfAnEarlyMessage(t *testing.T) {
	eachPath(t, drip.Options{Size: 5, RefreshRate: 5, Shared: map[string]drip.Limit{"app": {Size: 8}}}, func(t *testing.T, b *clocked) {
		var first drip.Admission
		for i := range 30 {
			a := buckettest.Admit(t, b, fmt.Sprint("shop-", i%3), drip.Request{})
			if a.Delay > 0 && first.Delay == 0 && i%3 == 0 {
				first = a
			}
		}
		b.pass(first.Delay - time.Millisecond)
		a, err := b.Admit(t.Context(), "shop-0", drip.Request{Ticket: first.Ticket})
		if err != nil || a.Delay != time.Millisecond || a.Ticket.Slot() != first.Ticket.Slot() || a.Limit != "app" {
			t.Errorf("1ms early it gets %+v, %v, want its slot %v", a, err, first.Ticket.Slot())
		}
		b.pass(time.Millisecond)
		if a, err = b.Admit(t.Context(), "shop-0", drip.Request{Ticket: a.Ticket}); err != nil || a.Delay != 0 {
			t.Errorf("in its slot it gets %+v, %v", a, err)
		}
	})
}

// beaten is a Get/Set storage in which another process wins some races about a key.
type beaten struct {
	storage.Storage
	key   string
	races int
	other func() // what the other process does to win, if anything
	err   error  // of the Set; nil means a lost race
}

func (s *beaten) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if key == s.key && s.races > 0 {
		s.races--
		if s.other != nil {
			s.other()
		}
		return cmp.Or(s.err, storage.ErrConflict)
	}
	return s.Storage.Set(ctx, key, state, rev)
}

// A call that loses races leaves the same states as one that loses none, whichever key the races are about.
func TestSharedAfterLostRaces(t *testing.T) {
	type before struct { // of "a": four operations run, one by GetDelay, and four messages wait in the next second
		b           *drip.Bucket
		waits, runs drip.Admission
	}
	for _, c := range []struct {
		name, entity string
		after        time.Duration
		call         func(before) (drip.Admission, error)
		runs         bool
	}{
		{"GetDelay runs", "b", 0, func(s before) (a drip.Admission, err error) { a.Delay, err = s.b.GetDelay(t.Context(), "b"); return }, true},
		{"GetDelay waits", "a", 0, func(s before) (a drip.Admission, err error) { a.Delay, err = s.b.GetDelay(t.Context(), "a"); return }, false},
		{"Admit runs", "b", 0, func(s before) (drip.Admission, error) { return s.b.Admit(t.Context(), "b", drip.Request{}) }, true},
		{"Admit waits", "a", 0, func(s before) (drip.Admission, error) { return s.b.Admit(t.Context(), "a", drip.Request{}) }, false},
		{"Admit of a due ticket", "a", time.Second, func(s before) (drip.Admission, error) {
			return s.b.Admit(t.Context(), "a", drip.Request{Ticket: s.waits.Ticket})
		}, true},
		{"ReturnToken", "a", 0, func(s before) (drip.Admission, error) { return drip.Admission{}, s.b.ReturnToken(t.Context(), "a") }, true},
		{"Cancel of a ticket", "a", 0, func(s before) (drip.Admission, error) {
			return drip.Admission{}, s.b.Cancel(t.Context(), "a", s.waits)
		}, true},
		{"Cancel of a lease", "a", 0, func(s before) (drip.Admission, error) {
			return drip.Admission{}, s.b.Cancel(t.Context(), "a", s.runs)
		}, true},
		{"Settle", "a", 0, func(s before) (drip.Admission, error) {
			return drip.Admission{}, s.b.Settle(t.Context(), "a", s.runs.Lease, 2)
		}, true},
		{"Renew", "a", time.Second, func(s before) (a drip.Admission, err error) {
			a.Lease, err = s.b.Renew(t.Context(), "a", s.runs.Lease)
			return
		}, true},
	} {
		for _, key := range []string{c.entity, drip.SharedID("app"), drip.SharedID("endpoint")} {
			t.Run(c.name+", races about "+key, func(t *testing.T) {
				after := func(races int) (states [4]decision.State) {
					s := &beaten{Storage: getSet{memory.New()}, key: key}
					b, now := shops(t, s, drip.Options{Size: 4, Concurrency: 9, Shared: map[string]drip.Limit{"app": {Size: 20, RefreshRate: 5}, "endpoint": {Size: 20, RefreshRate: 5}}})
					is := before{b: b}
					_, err := b.GetDelay(t.Context(), "a")
					ok(t, err)
					for range 3 {
						is.runs = buckettest.Admit(t, b, "a", drip.Request{})
					}
					for range 4 {
						is.waits = buckettest.Admit(t, b, "a", drip.Request{})
					}
					*now, s.races = now.Add(c.after), races
					if a, err := c.call(is); err != nil || a.Delay == 0 != c.runs || s.races > 0 {
						t.Fatalf("%+v, %v, %d races left", a, err, s.races)
					}
					for i, id := range []string{"a", "b", drip.SharedID("app"), drip.SharedID("endpoint")} {
						stored, _, err := s.Get(t.Context(), id)
						if err == nil {
							_, err = storage.Decode(stored.Data, &states[i])
						}
						ok(t, err)
					}
					return states
				}
				want, got := after(0), after(3)
				for i := range want {
					if w, g := fmt.Sprintf("%+v", want[i]), fmt.Sprintf("%+v", got[i]); w != g {
						t.Errorf("state %d after three lost races:\n%s\nwant\n%s", i, g, w)
					}
				}
			})
		}
	}
}

// A call that loses a race to an operation of its entity takes from a shared limit once, and gives back once.
func TestSharedAfterARealRace(t *testing.T) {
	type before struct { // of "a": four messages wait in the next second
		b     *drip.Bucket
		now   *time.Time
		waits drip.Admission
	}
	getDelay := func(s before) error { _, err := s.b.GetDelay(t.Context(), "b"); return err }
	admit := func(entity string, r drip.Request) func(s before) error {
		return func(s before) error { _, err := s.b.Admit(t.Context(), entity, r); return err }
	}
	none := []string{}
	for _, c := range []struct {
		name          string
		key           string
		others        int      // the operations of the other process
		within        []string // its shared limits
		call          func(s before) error
		left, booked  int64 // of the shared limit
		plain, leases int64
	}{
		{"GetDelay", "b", 1, none, getDelay, 15, 4, 1, 4},
		{"GetDelay that waits in the end", "b", 4, none, getDelay, 16, 5, 0, 4}, // its slot stays booked
		{"Admit", "b", 1, none, admit("b", drip.Request{}), 15, 4, 0, 5},
		{"Admit, and its shared limit changes", "b", 1, nil, admit("b", drip.Request{}), 14, 4, 0, 6},
		{"Admit that waits", "a", 1, none, admit("a", drip.Request{}), 16, 5, 0, 4},
		{"Admit that waits in the end", "b", 4, none, admit("b", drip.Request{}), 16, 5, 0, 4},
		{"Admit of a due ticket", "a", 1, none, func(s before) error {
			*s.now = s.now.Add(s.waits.Delay)
			return admit("a", drip.Request{Ticket: s.waits.Ticket})(s)
		}, 19, 3, 0, 5},
		{"Cancel of a ticket", "a", 1, none, func(s before) error { return s.b.Cancel(t.Context(), "a", s.waits) }, 16, 3, 0, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &beaten{Storage: getSet{memory.New()}}
			o := drip.Options{Size: 4, Concurrency: 9, Shared: map[string]drip.Limit{"app": {Size: 20, RefreshRate: 5}}}
			b, now := shops(t, s, o)
			other, its := shops(t, s.Storage, o)
			is := before{b: b, now: now}
			for range 8 {
				is.waits = buckettest.Admit(t, b, "a", drip.Request{})
			}
			s.key, s.races = c.key, 1
			s.other = func() {
				*its = *now
				for range c.others { // urgent: they run although messages wait, and change the next lease
					buckettest.Admit(t, other, s.key, drip.Request{Within: c.within, Urgent: true})
				}
			}
			if err := c.call(is); err != nil || s.races > 0 {
				t.Fatalf("%v, %d races left", err, s.races)
			}
			stored, _, err := s.Get(t.Context(), drip.SharedID("app"))
			ok(t, err)
			var app decision.State
			held, err := storage.Decode(stored.Data, &app)
			if left, booked := app.Lines[0].Left, app.Calendars[0].Booked; err != nil || left != c.left || booked != c.booked || app.Plain != c.plain || int64(len(held)) != c.leases {
				t.Errorf("left %d, booked %d, %d tokens and %d leases out, %v; want %d, %d, %d and %d", left, booked, app.Plain, len(held), err, c.left, c.booked, c.plain, c.leases)
			}
		})
	}
}

// Processes that race about entities and shared limits use all of a limit, and no more.
func TestSharedByRacingProcesses(t *testing.T) {
	for name, share := range map[string]int{"GetDelay": 0, "GetDelay, and Admit that is cancelled": 2} { // every second one
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const capacity = 90
				s := hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error { // at some distance
					if c.Method == "Get" {
						time.Sleep(rand.N(time.Millisecond))
					}
					return nil
				}}
				var ran atomic.Int64
				var wg sync.WaitGroup
				for process := range 4 {
					b, _ := shops(t, s, drip.Options{Size: 1000, Shared: map[string]drip.Limit{"app": {Size: 100}, "endpoint": {Size: capacity}}})
					for caller := range 3 {
						wg.Go(func() {
							for i := range 12 {
								entity := fmt.Sprint("shop-", (process+caller+i)%2)
								if share > 0 && i%share == 0 {
									a := buckettest.Admit(t, b, entity, drip.Request{})
									if err := b.Cancel(t.Context(), entity, a); err != nil {
										t.Error(err)
									}
								} else if delay, err := b.GetDelay(t.Context(), entity); err != nil {
									t.Error(err)
								} else if delay == 0 {
									ran.Add(1)
								}
							}
						})
					}
				}
				wg.Wait()
				want := int64(capacity)
				if share > 0 {
					want = 4 * 3 * 12 / 2 // all of them: fewer than the capacity
				}
				stored, _, err := s.Get(t.Context(), drip.SharedID("endpoint"))
				ok(t, err)
				var endpoint decision.State
				if _, err := storage.Decode(stored.Data, &endpoint); err != nil {
					t.Fatal(err)
				}
				if left := endpoint.Lines[0].Left; ran.Load() != want || left != capacity-want {
					t.Errorf("%d ran and %d are left, want %d and %d", ran.Load(), left, want, capacity-want)
				}
			})
		})
	}
}

// A call that fails about one shared limit, or whose context ends, keeps no token of the others.
func TestSharedTokensComeBackAfterAFailure(t *testing.T) {
	app, endpoint := drip.SharedID("app"), drip.SharedID("endpoint")
	failed := errors.New("failed")
	for _, c := range []struct {
		name, key string
		then      string // the key of the next race
		err       error
		returns   bool
		inUse     map[string]int
	}{
		{"GetDelay, and a limit that takes nothing back", "a", app, failed, false, map[string]int{app: 1, endpoint: 0}},
		{"ReturnToken, and a limit that fails", app, "", failed, true, map[string]int{app: 1, endpoint: 0}},
		{"ReturnToken, and the context ends", app, "", nil, true, map[string]int{app: 0, endpoint: 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &beaten{Storage: getSet{memory.New()}, err: c.err}
			b := buckettest.New(t, drip.Options{Storage: s, Shared: map[string]drip.Limit{"app": {Concurrency: 3}, "endpoint": {Concurrency: 3}}})
			call := func(ctx context.Context) error { _, err := b.GetDelay(ctx, "a"); return err }
			if c.returns {
				ok(t, call(t.Context()))
				call = func(ctx context.Context) error { return b.ReturnToken(ctx, "a") }
			}
			ctx, cancel := context.WithCancel(t.Context())
			s.key, s.races = c.key, 1
			s.other = func() {
				cancel()
				s.key, s.races, s.other = c.then, 1, nil
			}
			if err := call(ctx); !errors.Is(err, c.err) {
				t.Errorf("the error is %v, want %v", err, c.err)
			}
			c.inUse["a"] = 0
			for id, want := range c.inUse {
				if n := buckettest.Inspect(t, b, id).InUse; n != want {
					t.Errorf("%s has %d tokens in use, want %d", id, n, want)
				}
			}
		})
	}
}

func TestSharedLimit(t *testing.T) {
	eachPath(t, drip.Options{
		Size: 4, RefreshRate: 2,
		Shared: map[string]drip.Limit{"app": {RefreshRate: 5}, "orders": {Size: 3, Concurrency: 2}},
	}, func(t *testing.T, b *clocked) {
		ctx := t.Context()
		admit := func(shop string, within ...string) drip.Admission {
			t.Helper()
			return buckettest.Admit(t, b, shop, drip.Request{Within: within})
		}
		var ran []drip.Admission
		for i := range 4 { // the shop's own limit
			a := admit("shop-1", "app")
			if a.Delay != 0 {
				t.Fatalf("call %d waits %v because of %v of %q", i, a.Delay, a.Bound, a.Limit)
			}
			ran = append(ran, a)
		}
		if a := admit("shop-1", "app"); a.Delay == 0 || a.Limit != "" || a.Bound != drip.BoundWindow {
			t.Errorf("the fifth call of a shop that has 4: %+v, want it to wait for its own window", a)
		} else if err := b.Cancel(ctx, "shop-1", a); err != nil {
			t.Error(err)
		}
		if a := admit("shop-2", "app"); a.Delay != 0 {
			t.Fatalf("the app's fifth call waits %v", a.Delay)
		}
		a := admit("shop-3", "app")
		if a.Delay != time.Second || a.Limit != "app" || a.Bound != drip.BoundWindow {
			t.Errorf("the app's sixth call: %+v, want it to wait a second for the window of the app", a)
		}
		if b := admit("shop-3", []string{}...); b.Delay != 0 && b.Limit != "app" {
			t.Errorf("within all: %+v", b)
		}
		if status, err := b.Inspect(ctx, drip.SharedID("app")); err != nil || status.Windows[0].Capacity != 0 || status.InUse != 5 {
			t.Errorf("the app: %+v, %v; want no capacity and 5 in use", status, err)
		}
		if status, err := b.Inspect(ctx, "shop-9"); err != nil || status.Limit != "app" || status.Delay == 0 {
			t.Errorf("a newcomer: %+v, %v; want it to wait for the app", status, err)
		}
		for i, a := range ran {
			if err := b.Settle(ctx, "shop-1", a.Lease, i%2); err != nil { // two of them cost nothing
				t.Error(err)
			}
			if err := b.Settle(ctx, "shop-1", a.Lease, 1); !errors.Is(err, drip.ErrNoLease) {
				t.Errorf("settled twice: %v", err)
			}
		}
		if status, err := b.Inspect(ctx, drip.SharedID("app")); err != nil || status.Windows[0].Capacity != 2 || status.InUse != 1 {
			t.Errorf("the app: %+v, %v; want a capacity of 2 and 1 in use", status, err)
		}

		b.pass(time.Second)
		if back, err := b.Admit(ctx, "shop-3", drip.Request{Ticket: a.Ticket, Within: []string{"app"}}); err != nil || back.Delay != 0 {
			t.Errorf("back with its ticket: %+v, %v; want it to run", back, err)
		}
		// Tokens: two at once at the endpoint.
		one := admit("shop-4", "orders")
		admit("shop-5", "orders")
		if a := admit("shop-6", "orders"); a.Delay == 0 || a.Limit != "orders" || a.Bound != drip.BoundTokens {
			t.Errorf("the third at once: %+v, want it to wait for a token of orders", a)
		}
		renewed, err := b.Renew(ctx, "shop-4", one.Lease)
		ok(t, err)
		ok(t, b.Settle(ctx, "shop-4", renewed, 1))

		// A closing of the app holds all entities within it, and no others.
		ok(t, b.Throttled(ctx, drip.SharedID("app"), 10*time.Second))
		if a := admit("shop-7", "app"); a.Delay < 10*time.Second || a.Limit != "app" || a.Bound != drip.BoundClosed {
			t.Errorf("the app is closed: %+v", a)
		}
		if a := admit("shop-7", "orders"); a.Limit == "app" {
			t.Errorf("not within the app: %+v", a)
		}
		ok(t, b.Resume(ctx, drip.SharedID("app")))
		b.pass(2 * time.Second)
		if a := admit("shop-8", "app"); a.Delay != 0 {
			t.Errorf("the app is open: %+v", a)
		}
		b.pass(2 * time.Minute) // those with tickets and leases are lost
		if d, err := b.GetDelay(ctx, "shop-8"); err != nil || d != 0 {
			t.Errorf("GetDelay = %v, %v", d, err)
		}
		ok(t, b.ReturnToken(ctx, "shop-8"))
	})
}

func TestSharedErrors(t *testing.T) {
	for text, o := range map[string]drip.Options{
		`Shared["app"].Size is 0`:                             {Shared: map[string]drip.Limit{"app": {}}},
		`Size is 0; RefreshInterval, Align and Unit need one`: {Shared: map[string]drip.Limit{"app": {RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 9, RefreshInterval: time.Hour}}}}},
		`Shared["app"].RefreshInterval is 1ns`:                {Shared: map[string]drip.Limit{"app": {Size: 1, RefreshInterval: 1}}},
		`Shared has a limit without a name`:                   {Shared: map[string]drip.Limit{"": {Size: 1}}},
		`Shared["app"].Size is -1`:                            {Shared: map[string]drip.Limit{"app": {Size: -1}}},
	} {
		if _, err := drip.New(o); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("New = %v, want %q", err, text)
		}
	}
	many := map[string]drip.Limit{}
	for i := range 65 {
		many[fmt.Sprint(i)] = drip.Limit{Size: 1}
	}
	if _, err := drip.New(drip.Options{Shared: many}); err == nil {
		t.Error("New takes 65 shared limits")
	}
	b, _ := shops(t, nil, drip.Options{Size: 9, Shared: map[string]drip.Limit{"app": {Size: 5}}})
	ctx := t.Context()
	if _, err := b.Admit(ctx, "shop", drip.Request{Within: []string{"other"}}); !errors.Is(err, drip.ErrNoShared) {
		t.Errorf("within a limit that is not there: %v", err)
	}
	if _, err := b.Admit(ctx, "shop", drip.Request{Cost: 6}); !errors.Is(err, drip.ErrCost) || !strings.Contains(err.Error(), `"app"`) {
		t.Errorf("a cost that the app never has: %v", err)
	}
	if _, err := b.Admit(ctx, "shop", drip.Request{Cost: 6, Within: []string{}}); err != nil {
		t.Errorf("the same, not within it: %v", err)
	}
	if _, err := b.Admit(ctx, drip.SharedID("app"), drip.Request{}); err == nil {
		t.Error("a shared limit is admitted")
	}
	if _, err := b.Admit(ctx, drip.SharedID("app"), drip.Request{Within: []string{}}); err == nil {
		t.Error("a shared limit is admitted, within none")
	}
	if _, err := b.GetDelay(ctx, drip.SharedID("app")); err == nil {
		t.Error("GetDelay takes a shared limit")
	}
	if err := b.Throttled(ctx, drip.SharedID("other"), time.Second); !errors.Is(err, drip.ErrNoShared) {
		t.Errorf("a limit that is not there is closed: %v", err)
	}
}

// An error about the stored state of a shared limit names it, besides the entity that asked.
func TestSpoiledSharedLimit(t *testing.T) {
	for name, open := range storages {
		s := open(t)
		b, _ := shops(t, s, drip.Options{Size: 5, Shared: map[string]drip.Limit{"app": {Size: 5, RefreshRate: 5}}})
		id := drip.SharedID("app")
		spoiled := storage.State{Data: []byte("hello"), Until: decision.Never}
		ok(t, s.Set(t.Context(), id, spoiled, storage.NoRevision))
		_, admit := b.Admit(t.Context(), "shop", drip.Request{})
		_, inspect := b.Inspect(t.Context(), "shop")
		for _, err := range []error{admit, inspect} {
			if !errors.Is(err, storage.ErrFormat) || !strings.Contains(err.Error(), `"shop"`) || !strings.Contains(err.Error(), id) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestDeadline(t *testing.T) {
	eachPath(t, drip.Options{Size: 1, RefreshRate: 1, Concurrency: 9, Shared: map[string]drip.Limit{"app": {Size: 50}}}, func(t *testing.T, b *clocked) {
		ctx := t.Context()
		if _, err := b.Admit(ctx, "shop", drip.Request{Deadline: b.now}); err != nil {
			t.Fatalf("it runs at its deadline: %v", err)
		}
		in := func(d time.Duration, ticket drip.Ticket) (drip.Admission, error) {
			return b.Admit(ctx, "shop", drip.Request{Deadline: b.now.Add(d), Ticket: ticket})
		}
		if a, err := in(999*time.Millisecond, drip.Ticket{}); !errors.Is(err, drip.ErrDeadline) || a != (drip.Admission{}) {
			t.Errorf("it would run a millisecond late: %+v, %v", a, err)
		}
		first, err := in(time.Second, drip.Ticket{})
		if err != nil || first.Delay != time.Second {
			t.Fatalf("it runs in time: %+v, %v", first, err)
		}
		b.pass(2 * time.Second)
		if _, err := in(-time.Second, first.Ticket); !errors.Is(err, drip.ErrDeadline) {
			t.Errorf("it comes back late: %v", err)
		}
		buckettest.Runs(t, b, "shop", drip.Request{}) // its slot was given up
	})
}

// A guess alone makes no message late: it asks again until operations are measured, if its deadline leaves time for that.
func TestDeadlineBehindAGuess(t *testing.T) {
	begin := time.UnixMilli(1_700_006_400_000)
	for _, shared := range []bool{false, true} {
		o := drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: 1, WaitForToken: time.Second, Clock: func() time.Time { return begin }}
		if shared {
			o.Concurrency, o.Shared = 1000, map[string]drip.Limit{"app": {Concurrency: 1, WaitForToken: time.Second}}
		}
		b := buckettest.New(t, o)
		for range 700 { // the slots of a minute, by the guess
			buckettest.Admit(t, b, "shop", drip.Request{})
		}
		a, err := b.Admit(t.Context(), "shop", drip.Request{Deadline: begin.Add(40 * time.Second)})
		if err != nil || a.Delay <= 0 || a.Delay > 20*time.Second {
			t.Errorf("shared %v: with a deadline in 40 seconds: %v, %v; want a delay of at most 20 s", shared, a.Delay, err)
		}
		if a, err := b.Admit(t.Context(), "shop", drip.Request{Deadline: begin.Add(2 * time.Second)}); !errors.Is(err, drip.ErrDeadline) {
			t.Errorf("shared %v: with a deadline in two seconds: %v, %v; want ErrDeadline", shared, a.Delay, err)
		}
	}
}

func TestWeight(t *testing.T) {
	b, _ := shops(t, nil, drip.Options{
		Shared: map[string]drip.Limit{"app": {RefreshRate: 10}},
		Weight: func(id string) int { return len(id) },
	})
	slots := map[string]time.Duration{}
	for range 50 {
		for _, id := range []string{"a", "bbbb"} {
			a := buckettest.Admit(t, b, id, drip.Request{})
			slots[id] = max(slots[id], a.Delay)
		}
	}
	if slots["bbbb"] >= slots["a"] {
		t.Errorf("the last of 50 of the weight 4 has a slot in %v, of the weight 1 in %v", slots["bbbb"], slots["a"])
	}
}

// Inspect tells of a shared limit what a newcomer is told that no other limit delays, whatever slots are booked.
func TestNewcomerOfSharedLimit(t *testing.T) {
	eachPath(t, drip.Options{Size: 1000, Shared: map[string]drip.Limit{"app": {Size: 10}}}, func(t *testing.T, b *clocked) {
		ctx := t.Context()
		ok(t, b.Pause(ctx, "shop-closed", 10*time.Minute))
		if a, err := b.Admit(ctx, "shop-closed", drip.Request{}); err != nil || a.Delay < 10*time.Minute {
			t.Fatalf("the closed shop is told %v, %v", a.Delay, err)
		}
		waited := false
		for n := range 60 {
			told := buckettest.Inspect(t, b, drip.SharedID("app"))
			a, err := b.Admit(ctx, fmt.Sprint("shop-", n), drip.Request{})
			if err != nil || a.Delay != told.Delay || a.Bound != told.Bound {
				t.Fatalf("newcomer %d is told %v, %v, %v; Inspect told %v, %v", n, a.Delay, a.Bound, err, told.Delay, told.Bound)
			}
			waited = waited || a.Delay > 0
			b.pass(50 * time.Millisecond)
		}
		if !waited {
			t.Error("no newcomer had to wait")
		}
		ok(t, b.Pause(ctx, drip.SharedID("app"), time.Hour))
		if told, err := b.Inspect(ctx, drip.SharedID("app")); err != nil || told.Bound != drip.BoundClosed || told.Delay < time.Hour {
			t.Errorf("of the closed limit Inspect tells %v, %v, %v", told.Delay, told.Bound, err)
		}
	})
}

// The leases of dead holders hold no token of a shared limit, neither for Admit nor for Inspect.
func TestInspectAfterDeadHolders(t *testing.T) {
	eachPath(t, drip.Options{Size: 10, Lease: time.Second, Shared: map[string]drip.Limit{"app": {Concurrency: 2}}}, func(t *testing.T, b *clocked) {
		for range 2 {
			buckettest.Runs(t, b, "shop-1", drip.Request{})
		}
		if s := buckettest.Inspect(t, b, "shop-2"); s.Delay == 0 || s.Limit != "app" {
			t.Errorf("while both tokens are out, the delay is %v, of %q", s.Delay, s.Limit)
		}
		b.pass(2 * time.Second)
		if s := buckettest.Inspect(t, b, "shop-2"); s.Delay != 0 {
			t.Errorf("after the ends of the leases, the delay is %v, of %q", s.Delay, s.Limit)
		}
		buckettest.Runs(t, b, "shop-2", drip.Request{})
	})
}

// A lease has ended if it has by the time of a shared limit, which another process has with a clock that is ahead.
func TestInspectWithinALaterSharedLimit(t *testing.T) {
	eachPath(t, drip.Options{Concurrency: 1, Lease: time.Second, Shared: map[string]drip.Limit{"app": {Size: 10}}}, func(t *testing.T, b *clocked) {
		buckettest.Runs(t, b, "shop-1", drip.Request{}) // its holder dies
		b.pass(3 * time.Second)
		buckettest.Runs(t, b, "shop-2", drip.Request{})
		b.pass(-2500 * time.Millisecond)
		s := buckettest.Inspect(t, b, "shop-1")
		if a := buckettest.Admit(t, b, "shop-1", drip.Request{}); s.Delay != a.Delay || s.Bound != a.Bound || s.InUse > 0 {
			t.Errorf("Inspect: %v, %v, %d in use; then Admit: %v, %v", s.Delay, s.Bound, s.InUse, a.Delay, a.Bound)
		}
	})
}

// Options.SharedLimits overrides Options.Shared, field by field. Options.Limits knows entities only.
func TestSharedLimitChanges(t *testing.T) {
	minute := []drip.Window{{Size: 3, RefreshInterval: time.Minute}, {Size: 100, RefreshInterval: time.Hour}}
	var now drip.Limit
	b, clock := shops(t, nil, drip.Options{
		Shared: map[string]drip.Limit{"app": {Windows: minute}, "rate": {Size: 50}},
		Limits: func(context.Context, string) (drip.Limit, error) { return drip.Limit{Size: 9999}, nil },
		SharedLimits: func(_ context.Context, name string) (drip.Limit, error) {
			if name == "app" {
				return now, nil
			}
			return drip.Limit{Size: 60}, nil
		},
	})
	windows := func(name string) (all []drip.Window) {
		t.Helper()
		status := buckettest.Inspect(t, b, drip.SharedID(name))
		for _, w := range status.Windows {
			all = append(all, w.Window)
		}
		return all
	}
	before := windows("app")
	now = drip.Limit{Windows: minute}
	if same := windows("app"); len(before) != 2 || !slices.Equal(same, before) {
		t.Errorf("the same windows given again are %v, want %v", same, before)
	}
	now = drip.Limit{Windows: []drip.Window{{Size: 7, RefreshInterval: time.Minute}}}
	if got := windows("app"); len(got) != 1 || got[0].Size != 7 || got[0].RefreshRate != 7 {
		t.Errorf("one other window is %v", got)
	}
	if got := windows("rate"); len(got) != 1 || got[0].Size != 60 || got[0].RefreshRate != 60 {
		t.Errorf("another Size is %v, want the rate to follow it", got)
	}
	*clock = clock.Add(time.Second)
	buckettest.Runs(t, b, "shop", drip.Request{})
}

// With FirstCome a newcomer waits for all that came before, whatever their entities.
func TestFirstCome(t *testing.T) {
	for firstCome, want := range map[bool]time.Duration{true: 3 * time.Second, false: time.Second} {
		b, _ := shops(t, nil, drip.Options{Shared: map[string]drip.Limit{"app": {RefreshRate: 10, FirstCome: firstCome}}})
		for range 30 {
			buckettest.Admit(t, b, "big", drip.Request{})
		}
		if a, err := b.Admit(t.Context(), "small", drip.Request{}); err != nil || a.Delay != want {
			t.Errorf("FirstCome %t: a newcomer waits %v, %v; want %v", firstCome, a.Delay, err, want)
		}
	}
}

// Inspect tells the cause of a delay that is longer than a closing, of the entity or of a shared limit.
func TestInspectThenWithinShared(t *testing.T) {
	o := drip.Options{Size: 2, RefreshRate: 1, Shared: map[string]drip.Limit{"app": {Size: 4, RefreshRate: 1}}}
	const pause = 300 * time.Millisecond // within a second
	app := drip.SharedID("app")
	for name, c := range map[string]struct {
		run    int // of entities that take two
		closed string
		bound  drip.Bound
		limit  string
		then   drip.Bound
	}{
		"the entity, then nothing":        {0, "shop0", drip.BoundClosed, "", drip.BoundNone},
		"the entity, then its window":     {1, "shop0", drip.BoundClosed, "", drip.BoundWindow},
		"the entity, then a shared limit": {2, "shop2", drip.BoundWindow, "app", drip.BoundWindow},
		"a shared limit, then nothing":    {0, app, drip.BoundClosed, "app", drip.BoundNone},
		"a shared limit, then its window": {2, app, drip.BoundClosed, "app", drip.BoundWindow},
		"a shared limit, but the entity":  {1, app, drip.BoundWindow, "", drip.BoundNone},
	} {
		t.Run(name, func(t *testing.T) {
			eachPath(t, o, func(t *testing.T, b *clocked) {
				for i := range 2 * c.run {
					buckettest.Runs(t, b, fmt.Sprint("shop", i/2), drip.Request{})
				}
				ok(t, b.Pause(t.Context(), c.closed, pause))
				shop := "shop0"
				if c.run == 2 {
					shop = "shop2"
				}
				s := buckettest.Inspect(t, b, shop)
				if s.Bound != c.bound || s.Limit != c.limit || s.Then != c.then || (s.Delay > pause) != (c.bound != drip.BoundClosed || c.then != drip.BoundNone) {
					t.Errorf("Inspect: delay %v, bound %v of %q, then %v; want %v of %q, then %v", s.Delay, s.Bound, s.Limit, s.Then, c.bound, c.limit, c.then)
				}
			})
		})
	}
}

// A limit that has only Concurrency has no capacity to gather, so it does not begin empty.
func TestSharedConcurrencyBeginsFull(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_300)
	b, err := drip.New(drip.Options{
		Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond, Clock: func() time.Time { return now },
		Shared: map[string]drip.Limit{"tokens": {Concurrency: 1}},
	})
	ok(t, err)
	now = now.Add(100 * time.Millisecond) // the entity has capacity now
	a, err := b.Admit(t.Context(), "shop", drip.Request{})
	if err != nil || a.Delay != 0 {
		t.Errorf("the first operation waits for %v because of %v of %q, %v", a.Delay, a.Bound, a.Limit, err)
	}
}

// With tokens that bring an operation in ten seconds a booked operation takes ten seconds of a shared limit. It is one all the same.
func TestBookedBehindSlowTokens(t *testing.T) {
	o := drip.Options{WaitForToken: 80 * time.Second, Shared: map[string]drip.Limit{"app": {Size: 20, Concurrency: 1}}}
	b, _ := shops(t, memory.New(), o)
	for range 4 {
		buckettest.Admit(t, b, "shop", drip.Request{})
	}
	if s, err := b.Inspect(t.Context(), drip.SharedID("app")); err != nil || s.InUse != 1 || s.Booked != 3 {
		t.Errorf("%d booked, %d in use, %v; want 3 and 1", s.Booked, s.InUse, err)
	}
}

// A caller that leaves while a storage does not answer waits a second more at most, for what it took of a shared limit.
func TestSharedOnAHangingStorage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool // from the first Set of the entity on
		s := hooked.Storage{Storage: memory.New(), First: func(ctx context.Context, c hooked.Call) error {
			hangs.Store(hangs.Load() || c.Method == "Set" && c.Key == "shop")
			if hangs.Load() {
				<-ctx.Done()
			}
			return ctx.Err()
		}}
		b := buckettest.New(t, drip.Options{Storage: s, Lease: time.Minute, Shared: map[string]drip.Limit{"app": {Size: 10}}})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := b.Admit(ctx, "shop", drip.Request{})
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took > 1100*time.Millisecond {
			t.Errorf("Admit = %v after %v", err, took)
		}
	})
}

// A shared limit that is far from short changes no answer, whatever limits the entities themselves have. It is so by its
// rate, by the capacity that has gathered, or by its tokens.
func TestFarSharedChangesNothing(t *testing.T) {
	for name, app := range map[string]drip.Limit{
		"rate":     {Size: 100_000},
		"gathered": {Size: 100_000, RefreshRate: 1},
		"tokens":   {Concurrency: 3}, // for each one that an entity may use
		"windows":  {Size: 100_000, RefreshRate: 1, Windows: []drip.Window{{Size: 100_000, RefreshInterval: time.Minute}}},
		"10 s":     {Size: 100_000, RefreshInterval: 10 * time.Second},
		"1 min":    {Size: 100_000, RefreshInterval: time.Minute},
	} {
		for seed := range uint64(60) {
			alone, within := farAnswers(t, seed, nil), farAnswers(t, seed, map[string]drip.Limit{"app": app})
			if !slices.Equal(alone, within) {
				i := 0
				for i < min(len(alone), len(within)) && alone[i] == within[i] {
					i++
				}
				t.Errorf("%s, seed %d: of %d and %d answers the first %d are the same", name, seed, len(alone), len(within), i)
			}
		}
	}
}

// farAnswers returns the answers to 300 operations of one to five entities with random limits. Messages come back up to 20 ms late.
func farAnswers(t *testing.T, seed uint64, shared map[string]drip.Limit) (answers []string) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	o := drip.Options{
		Size: 1 + r.IntN(40), RefreshInterval: time.Duration(100+r.IntN(3000)) * time.Millisecond, Concurrency: 1 + r.IntN(20),
		Shared: shared, Lease: time.Hour,
	}
	o.RefreshRate = 1 + r.IntN(o.Size)
	if r.IntN(2) == 0 {
		o.Windows = []drip.Window{{Size: 60 + r.IntN(300), RefreshInterval: time.Minute}}
	}
	shops := 1 + r.IntN(5)
	for name, limit := range shared {
		limit.Concurrency *= shops * o.Concurrency
		o.Shared = map[string]drip.Limit{name: limit}
	}
	const begin = 1_700_000_000_000
	takes := map[*buckettest.Call]int64{}
	load := buckettest.Load{
		Options: o,
		Late:    func() int64 { return int64(len(answers) % 20) },
		Runs:    func(c *buckettest.Call, now int64) int64 { return now + takes[c] },
		Answer: func(c *buckettest.Call, a drip.Admission, now int64) {
			answers = append(answers, fmt.Sprint(c.Entity, now-begin, a.Delay, a.Bound, a.Limit))
		},
	}
	costs, urgent, at := 1+r.IntN(3), r.IntN(3), int64(begin)
	for range 300 {
		at += r.Int64N(150)
		c := &buckettest.Call{At: at, Request: drip.Request{Cost: 1 + r.IntN(min(costs, o.Size)), Urgent: r.IntN(10) < urgent}}
		takes[c] = 1 + r.Int64N(500)
		if seed%4 == 0 {
			takes[c] *= 10
		}
		c.Entity = fmt.Sprint("shop", r.IntN(shops))
		load.Calls = append(load.Calls, c)
	}
	load.Play(t)
	return answers
}

// A shared limit is used though its entities have small limits of their own, which are twice as much together.
func TestSharedUseWithSmallOwnLimits(t *testing.T) {
	for _, c := range []struct {
		name     string
		own      drip.Options
		app      drip.Limit
		entities int
		least    float64 // of the limit
	}{
		{"1 each 500ms, app 100 each s", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond}, drip.Limit{Size: 100}, 100, 1},
		{"1 each 500ms, app 10 each 100ms", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond}, 100, 0.98},
		{"2 each s, app 100 each s", drip.Options{Size: 2, RefreshRate: 2}, drip.Limit{Size: 100}, 100, 1},
		{"2 each s, app 10 each 100ms", drip.Options{Size: 2, RefreshRate: 2}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond}, 100, 0.98},
		{"1 each s, app 10 each 100ms", drip.Options{Size: 1, RefreshRate: 1}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond}, 200, 0.98},
		{"1 each 550ms, app 10 each 105ms", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 550 * time.Millisecond}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 105 * time.Millisecond}, 105, 0.98},
		{"1 each 263ms, app 5 each 117ms", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 263 * time.Millisecond}, drip.Limit{Size: 5, RefreshRate: 5, RefreshInterval: 117 * time.Millisecond}, 23, 0.98},
		{"40, 2 each s, app 100 each s", drip.Options{Size: 40, RefreshRate: 2, Concurrency: 40}, drip.Limit{Size: 100}, 100, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			const begin, span = 1_700_000_000_000, 60_000
			o := c.own
			o.Concurrency = 100
			o.Shared = map[string]drip.Limit{"app": c.app}
			interval := cmp.Or(c.app.RefreshInterval, time.Second)
			allowed := float64(c.app.Size) * span / float64(interval.Milliseconds())
			load := buckettest.Load{Options: o, End: begin + span, Runs: func(_ *buckettest.Call, now int64) int64 { return now + 20 }}
			for i := range int(2 * allowed) {
				load.Calls = append(load.Calls, &buckettest.Call{At: begin, Entity: fmt.Sprint("shop ", i%c.entities)})
			}
			load.Play(t)
			if ran := float64(buckettest.OutcomeOf(load.Calls).Ran); ran < c.least*allowed {
				t.Errorf("%.1f%% of the shared limit were used, want %v%%", 100*ran/allowed, 100*c.least)
			}
		})
	}
}

// Callers of GetDelay have no tickets. Within a shared limit, too, none of them waits for another one's slot, so each runs about as early
// as the limit lets it, and asks about once more.
func TestGetDelayWithinShared(t *testing.T) {
	const begin = 1_800_000_000_000
	own := drip.Options{Size: 1, RefreshRate: 1}
	for _, c := range []struct {
		app      drip.Limit
		calls    int
		last     int64   // when the last one runs at best, in ms
		mean     float64 // the most postponements of a call
		inBlocks float64 // the same, shop after shop
	}{
		{drip.Limit{Size: 10}, 1000, 99_000, 1.01, 1.45},
		{drip.Limit{Size: 10, Windows: []drip.Window{{Size: 1000, RefreshInterval: time.Hour}}}, 1500, 3_650_000, 1.05, 1.45},
		{drip.Limit{Size: 100, RefreshInterval: time.Hour}, 100, 9000, 1, 1},
		{drip.Limit{Size: 100, RefreshInterval: time.Hour}, 300, 2*3_600_000 + 9000, 1.65, 1.65},
	} {
		for _, inBlocks := range []bool{false, true} {
			late, most := rand.New(rand.NewPCG(1, 1)), c.mean
			load := buckettest.Load{Options: own, Late: func() int64 { return late.Int64N(20) }, Runs: func(_ *buckettest.Call, now int64) int64 { return now + 200 }}
			load.Options.Shared = map[string]drip.Limit{"app": c.app}
			if c.app.RefreshInterval == 0 {
				load.Options.Size, load.Options.RefreshRate = 1000, 1000
			}
			for i := range c.calls {
				shop := i % 10
				if inBlocks {
					shop, most = i*10/c.calls, c.inBlocks
				}
				load.Calls = append(load.Calls, &buckettest.Call{At: begin + int64(i/100), Entity: fmt.Sprint("shop", shop), Plain: true})
			}
			load.Play(t)
			if got := buckettest.OutcomeOf(load.Calls); got.Mean > most || got.Last > begin+c.last+1000 {
				t.Errorf("%+v, %d calls, in blocks %v: %.2f postponements, want at most %.2f; the last runs after %d ms, want at most %d",
					c.app, c.calls, inBlocks, got.Mean, most, got.Last-begin, c.last+1000)
			}
		}
	}
}

// Callers of GetDelay that lack only a token of their entity book nothing of a shared limit.
func TestGetDelayBooksNothingShared(t *testing.T) {
	begin := time.Date(2026, 3, 1, 4, 20, 8, 0, time.UTC).UnixMilli()
	r := rand.New(rand.NewPCG(1, 2))
	load := buckettest.Load{
		Options: drip.Options{Size: 36000, RefreshRate: 36000, Concurrency: 3, Shared: map[string]drip.Limit{"a": {Size: 1140, RefreshInterval: time.Minute}}},
		Late:    func() int64 { return r.Int64N(20) },
		Runs:    func(_ *buckettest.Call, now int64) int64 { return now + 1 + r.Int64N(55) },
	}
	for i := range 568 {
		load.Calls = append(load.Calls, &buckettest.Call{At: begin + int64(i)/100, Entity: fmt.Sprint(r.IntN(4)), Plain: r.IntN(10) < 3})
	}
	load.Play(t)
	if got := buckettest.OutcomeOf(load.Calls); got.Last > begin+5000 {
		t.Errorf("%d of %d ran in %d ms; want all in less than 5 s", got.Ran, len(load.Calls), got.Last-begin)
	}
}
