package drip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// load is the messages of a fleet of workers: when each message arrives, and how long it takes.
type load struct {
	options Options
	factor  float64 // of the rate
	took    time.Duration
	cost    int
	own     bool // the entities' own limit is on trial, and the shared ones hold
}

type seen struct {
	postponed map[Bound]int
	delays    time.Duration
}

// runs plays a load in virtual time. shadow tells whether it is let pass.
func (l load) runs(t *testing.T, shadow bool) (s seen) {
	synctest.Test(t, func(t *testing.T) {
		o, rate := l.options, 2*l.options.RefreshRate // of two entities
		o.Shadow = shadow && l.own
		for name, limit := range l.options.Shared {
			if l.own {
				break
			}
			limit.Shadow, rate = shadow, limit.RefreshRate
			o.Shared = map[string]Limit{name: limit}
		}
		b := newBucket(t, o)
		var mu sync.Mutex
		s.postponed = map[Bound]int{}
		note := func(_ string, a Admission) {
			mu.Lock()
			defer mu.Unlock()
			s.postponed[a.Bound]++
			s.delays += a.Delay
		}
		sh := &Shadow{Bucket: b, OnPostponed: note}
		defer sh.Close()
		var wg sync.WaitGroup
		r := rand.New(rand.NewPCG(1, 2))
		gap := float64(time.Second) / (float64(rate) * l.factor)
		for n := range 600 {
			took := time.Duration(float64(l.took) * (0.5 + r.Float64()))
			wg.Go(func() {
				entity := fmt.Sprint("shop-", n%2)
				if shadow {
					a, err := sh.Admit(t.Context(), entity, Request{Cost: l.cost})
					if err != nil || a.Delay != 0 {
						t.Error(a, err)
						return
					}
					if err := sh.Settle(t.Context(), entity, hold(t, sh, entity, a.Lease, took), max(1, l.cost)); err != nil {
						t.Error(err)
					}
					return
				}
				var ticket Ticket
				for {
					a, err := b.Admit(t.Context(), entity, Request{Cost: l.cost, Ticket: ticket})
					if err != nil {
						t.Error(err)
						return
					}
					if a.Delay == 0 {
						if err := b.Settle(t.Context(), entity, hold(t, b, entity, a.Lease, took), max(1, l.cost)); err != nil {
							t.Error(err)
						}
						return
					}
					note(entity, a)
					ticket = a.Ticket
					time.Sleep(a.Delay)
				}
			})
			time.Sleep(time.Duration(gap*(0.1+1.8*r.Float64())) + 1)
		}
		wg.Wait()
		for shadow {
			sh.mu.Lock()
			left := len(sh.ghosts)
			sh.mu.Unlock()
			if left == 0 {
				break
			}
			time.Sleep(time.Second)
		}
	})
	return s
}

func hold(t *testing.T, b interface {
	Renew(context.Context, string, Lease) (Lease, error)
}, entity string, l Lease, took time.Duration) Lease {
	const every = 500 * time.Millisecond
	for ; took > every; took -= every {
		time.Sleep(every)
		var err error
		if l, err = b.Renew(t.Context(), entity, l); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(took)
	return l
}

// A Shadow reports the delays that the same load would really have had.
func TestShadowSeesWhatWouldBe(t *testing.T) {
	start := time.Unix(0, 0)
	app := map[string]Limit{"app": {Size: 10_000}} // which is never short
	byShop := func(_ context.Context, shop string) (Limit, error) {
		if shop == "shop-1" {
			return Limit{Size: 20, RefreshRate: 4, Concurrency: 2}, nil
		}
		return Limit{}, nil
	}
	for name, l := range map[string]load{
		"below the rate":      {Options{Size: 10, RefreshRate: 5, Start: start}, 0.8, 50 * time.Millisecond, 0, false},
		"above the rate":      {Options{Size: 10, RefreshRate: 5, Start: start}, 1.5, 50 * time.Millisecond, 0, false},
		"few tokens":          {Options{Size: 50, RefreshRate: 50, Concurrency: 3, Start: start}, 1.2, 100 * time.Millisecond, 0, false},
		"two windows":         {Options{Size: 10, RefreshRate: 5, Windows: []Window{{Size: 60, RefreshInterval: time.Minute}}, Start: start}, 1.2, 20 * time.Millisecond, 0, false},
		"cost":                {Options{Size: 30, RefreshRate: 15, Start: start}, 0.5, 20 * time.Millisecond, 3, false},
		"a shared limit":      {Options{Size: 1000, Shared: map[string]Limit{"app": {Size: 10, RefreshRate: 5}}, Start: start}, 1.5, 50 * time.Millisecond, 0, false},
		"shared tokens":       {Options{Size: 1000, Shared: map[string]Limit{"app": {Size: 50, RefreshRate: 50, Concurrency: 3}}, Start: start}, 1.2, 100 * time.Millisecond, 0, false},
		"shared cost":         {Options{Size: 1000, Shared: map[string]Limit{"app": {Size: 30, RefreshRate: 15}}, Weight: weigh, Start: start}, 0.5, 20 * time.Millisecond, 3, false},
		"longer than a lease": {Options{Size: 10, RefreshRate: 5, Concurrency: 4, Lease: time.Second, Start: start}, 1.1, 800 * time.Millisecond, 0, false},
		"its own limit":       {Options{Size: 10, RefreshRate: 5, Start: start}, 1.5, 50 * time.Millisecond, 0, true},
		"its own tokens":      {Options{Size: 50, RefreshRate: 50, Concurrency: 3, Start: start}, 1.2, 100 * time.Millisecond, 0, true},
		"its own cost":        {Options{Size: 30, RefreshRate: 15, Shared: app, Start: start}, 0.5, 20 * time.Millisecond, 3, true},
		"its own of Limits":   {Options{Size: 10, RefreshRate: 5, Limits: byShop, Shared: app, Start: start}, 1.2, 50 * time.Millisecond, 0, true},
		"its own of a calendar": {
			Options{
				Size: 10, RefreshRate: 5, Align: ByEntity(), Windows: []Window{{Size: 60, Align: Daily(nil)}}, Start: start,
			}, 1.2, 20 * time.Millisecond, 0, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			real, shadow := l.runs(t, false), l.runs(t, true)
			if !maps.Equal(real.postponed, shadow.postponed) || real.delays != shadow.delays {
				t.Errorf("shadow: %v by %v; really: %v by %v", shadow.postponed, shadow.delays, real.postponed, real.delays)
			}
			t.Logf("%v by %v", shadow.postponed, shadow.delays)
		})
	}
}

// weigh gives a shop twice the part of the other one.
func weigh(entity string) int {
	return map[string]int{"shop-0": 1, "shop-1": 2}[entity]
}

// A Shadow without a Bucket is an error of each Admit.
func TestShadowOfNothing(t *testing.T) {
	if _, err := new(Shadow).Admit(t.Context(), "a", Request{}); err == nil {
		t.Error("Admit lets run without a Bucket")
	}
}

// A limit on trial lets pass, while the entity's own limit and the other shared ones hold. Without a Shadow the Bucket
// ignores it.
func TestLimitOnTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, Options{Size: 6, RefreshRate: 6, Start: time.Unix(0, 0), Shared: map[string]Limit{
			"app": {Size: 2, RefreshRate: 2, Shadow: true}, "endpoint": {Size: 4, RefreshRate: 4},
		}})
		c := &counted{Bucket: b}
		var postponed []string
		s := &Shadow{Bucket: c, OnPostponed: func(entity string, a Admission) { postponed = append(postponed, entity+" "+a.Limit) }}
		defer s.Close()
		var all []Admission
		for range 4 {
			a := run(t, s, "shop", Request{Within: []string{"app", "endpoint"}})
			all = append(all, a)
		}
		if all[1].Limit != "" || all[2].Limit != "app" || all[2].Bound != BoundWindow || len(postponed) != 2 || postponed[0] != "shop app" || s.Waiting() != 2 {
			t.Errorf("%+v: postponed %v, %d would wait", all, postponed, s.Waiting())
		}
		if c.admits.Load() != 8 {
			t.Errorf("%d calls for 4 operations that ran", c.admits.Load())
		}
		late, err := s.Admit(t.Context(), "shop", Request{})
		if err != nil || late.Delay == 0 || late.Limit != "endpoint" || c.admits.Load() != 9 {
			t.Errorf("the fifth is %+v, %v after %d calls, want it postponed by the endpoint's limit", late, err, c.admits.Load())
		}
		for want, within := range map[string][]string{"": {"app"}, "endpoint": {"endpoint"}} { // 2 of 6 of its own are left
			if a, err := b.Admit(t.Context(), "shop", Request{Within: within}); err != nil || a.Limit != want {
				t.Errorf("without a Shadow, within %v: %+v, %v", within, a, err)
			}
		}
		if _, err := b.Admit(t.Context(), "shop", Request{Within: []string{"unknown"}}); !errors.Is(err, ErrNoShared) {
			t.Error(err)
		}
		app, err := b.Inspect(t.Context(), SharedID("app"))
		if err != nil || app.Booked != 2 || app.InUse != 2 {
			t.Errorf("the limit on trial is %+v, %v; want 2 tokens and 2 slots", app, err)
		}
		if l, err := s.Renew(t.Context(), "shop", all[3].Lease); err != nil {
			t.Error(err)
		} else if err := s.Settle(t.Context(), "shop", l, 1); err != nil {
			t.Error(err)
		}
		if err := s.Cancel(t.Context(), "shop", all[2]); err != nil || s.Waiting() != 1 {
			t.Errorf("%v: %d would wait", err, s.Waiting())
		}
		for _, a := range all[:2] {
			ok(t, s.Settle(t.Context(), "shop", a.Lease, 1))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, id := range []string{ShadowID("shop"), SharedID("app"), SharedID("endpoint"), "shop"} {
			st, err := b.Inspect(t.Context(), id)
			if err != nil || st.InUse != 0 {
				t.Errorf("%s: %d tokens are out, %v", id, st.InUse, err)
			}
		}
		if len(s.ghosts)+len(s.leases) != 0 {
			t.Errorf("%v, %v are left", s.ghosts, s.leases)
		}
		ok(t, b.Throttled(t.Context(), SharedID("app"), time.Minute))
		if a, err := s.Admit(t.Context(), "shop", Request{}); err != nil || a.Delay != 0 || a.Bound != BoundClosed {
			t.Errorf("with the limit on trial closed: %+v, %v", a, err)
		}
	})
}

// The entities' own limit on trial lets pass, while the shared limit holds. A refusal of the provider closes the trial
// alone, a pause the entity.
func TestOwnLimitOnTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, Options{Size: 2, RefreshRate: 2, Shadow: true, Follow: true, Start: time.Unix(0, 0), Shared: map[string]Limit{"app": {Size: 5}}})
		var postponed []string
		s := &Shadow{Bucket: b, OnPostponed: func(entity string, a Admission) { postponed = append(postponed, entity+" "+a.Limit) }}
		defer s.Close()
		for i := range 5 {
			a, err := s.Admit(t.Context(), "shop", Request{})
			if err != nil || a.Delay != 0 || (a.Bound != BoundNone) != (i >= 2) {
				t.Errorf("operation %d: %+v, %v", i, a, err)
			}
			ok(t, s.Settle(t.Context(), "shop", a.Lease, 1))
		}
		if len(postponed) != 3 || postponed[0] != "shop " || s.Waiting() != 3 {
			t.Errorf("%q postponed, %d would wait; want 3 by their own limit", postponed, s.Waiting())
		}
		if a, err := s.Admit(t.Context(), "shop", Request{}); err != nil || a.Delay == 0 || a.Limit != "app" {
			t.Errorf("the sixth is %+v, %v; want it postponed by the shared limit", a, err)
		}
		if a, err := s.Admit(t.Context(), "other", Request{Cost: 3, Within: []string{}}); err != nil || a.Delay != 0 || a.Bound != BoundNone {
			t.Errorf("a cost above the limit on trial: %+v, %v", a, err)
		}
		ok(t, s.Throttled(t.Context(), "shop", time.Minute))
		ok(t, b.Announced(t.Context(), "shop", 1, time.Hour))
		real, err := b.Inspect(t.Context(), "shop")
		trial, err2 := b.Inspect(t.Context(), ShadowID("shop"))
		if err != nil || err2 != nil || !real.ClosedUntil.IsZero() || real.Level != 1 || trial.ClosedUntil.IsZero() || trial.Level > 0.5 || trial.Windows[0].Size != 1 {
			t.Errorf("after a refusal the entity is %+v, its trial %+v, %v, %v", real, trial, err, err2)
		}
		ok(t, b.Pause(t.Context(), "shop", time.Minute))
		if a, err := s.Admit(t.Context(), "shop", Request{}); err != nil || a.Bound != BoundClosed || a.Delay == 0 {
			t.Errorf("after a pause: %+v, %v", a, err)
		}
	})
}

// A cancelled ticket gives its slot back in the limits on trial, also if the Bucket has no other shared limit.
func TestCancelOnTrial(t *testing.T) {
	b := newBucket(t, Options{Shared: map[string]Limit{"app": {Size: 1, Shadow: true}}, Start: time.Unix(0, 0), Clock: func() time.Time { return time.Unix(1, 0) }})
	var last Admission
	for range 2 {
		var err error
		if last, err = b.Admit(t.Context(), ShadowID("shop"), Request{}); err != nil {
			t.Fatal(err)
		}
	}
	ok(t, b.Cancel(t.Context(), ShadowID("shop"), last))
	if app, err := b.Inspect(t.Context(), SharedID("app")); err != nil || last.Delay == 0 || app.Booked != 0 {
		t.Errorf("%d booked after the slot of %+v was cancelled, %v; want 0", app.Booked, last, err)
	}
}

type counted struct {
	*Bucket
	admits, settles, cancels atomic.Int64
}

func (c *counted) Admit(ctx context.Context, entity string, r Request) (Admission, error) {
	c.admits.Add(1)
	return c.Bucket.Admit(ctx, entity, r)
}

func (c *counted) Settle(ctx context.Context, entity string, l Lease, cost int, costs ...Costs) error {
	c.settles.Add(1)
	return c.Bucket.Settle(ctx, entity, l, cost, costs...)
}

func (c *counted) Cancel(ctx context.Context, entity string, a Admission) error {
	c.cancels.Add(1)
	return c.Bucket.Cancel(ctx, entity, a)
}

func TestShadow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, Options{Size: 2, RefreshRate: 1, Start: time.Unix(0, 0)})
		c := &counted{Bucket: b}
		s := &Shadow{Bucket: c, Most: 2}
		var all []Admission
		for range 5 {
			a := run(t, s, "shop", Request{})
			all = append(all, a)
		}
		if c.admits.Load() != 5 || s.Waiting() != 2 || all[1].Bound != BoundNone || all[2].Bound == BoundNone {
			t.Errorf("%d calls for 5 operations, %d would wait, bound by %v and %v", c.admits.Load(), s.Waiting(), all[1].Bound, all[2].Bound)
		}
		if l, err := s.Renew(t.Context(), "shop", all[2].Lease); err != nil || !l.End().After(time.Now()) {
			t.Error(l, err)
		}
		if err := s.Cancel(t.Context(), "shop", all[3]); err != nil || s.Waiting() != 1 || c.cancels.Load() != 1 {
			t.Errorf("%v: %d would wait, %d were cancelled", err, s.Waiting(), c.cancels.Load())
		}
		for i, a := range all {
			err := s.Settle(t.Context(), "shop", a.Lease, 1)
			if err != nil {
				t.Errorf("settle %d: %v", i, err)
			}
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if s.Waiting() != 0 || len(s.ghosts)+len(s.leases) != 0 || c.settles.Load() != 3 {
			t.Errorf("%d wait, %d settled, %v %v", s.Waiting(), c.settles.Load(), s.ghosts, s.leases)
		}
		for range 4 {
			if d, err := s.GetDelay(t.Context(), "shop"); d != 0 || err != nil {
				t.Error(d, err)
			}
		}
		for range 5 {
			ok(t, s.ReturnToken(t.Context(), "shop"))
		}
		s.Close()
		st, err := b.Inspect(t.Context(), "shop")
		if err != nil || st.InUse != 0 {
			t.Errorf("%d tokens are out, %v", st.InUse, err)
		}
	})
}

// Limits that a Shadow tries refuse nothing for good.
func TestShadowRefusesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shadow{Bucket: newBucket(t, Options{Size: 2, RefreshRate: 1, Start: time.Unix(0, 0)})}
		defer s.Close()
		for i, r := range []Request{{}, {}, {Deadline: time.Now().Add(time.Millisecond)}, {Cost: 3}} {
			a, err := s.Admit(t.Context(), "shop", r)
			if err != nil || a.Delay != 0 || a.Lease == (Lease{}) || (a.Bound != BoundNone) != (i == 2) {
				t.Errorf("%+v: %+v, %v", r, a, err)
				continue
			}
			if _, err := s.Renew(t.Context(), "shop", a.Lease); err != nil {
				t.Error(err)
			}
			ok(t, s.Settle(t.Context(), "shop", a.Lease, 1))
		}
		if n := s.Waiting(); n != 1 {
			t.Errorf("%d would wait, want 1", n)
		}
		if _, err := s.Admit(t.Context(), "shop", Request{Cost: -1}); !errors.Is(err, ErrCost) {
			t.Errorf("a cost below zero: %v", err)
		}
	})
}

// GetDelay over a limit on trial obeys the others.
func TestShadowGetDelayObeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shadow{Bucket: newBucket(t, Options{Size: 2, RefreshRate: 1, Start: time.Unix(0, 0), Shared: map[string]Limit{"app": {Size: 1, Shadow: true}}})}
		defer s.Close()
		for i := range 4 {
			d, err := s.GetDelay(t.Context(), "shop")
			if err != nil || (d > 0) != (i >= 2) {
				t.Errorf("operation %d: %v, %v", i, d, err)
			}
		}
		if n := len(s.plain["shop"]); n != 2 {
			t.Errorf("%d tokens are out, want 2", n)
		}
	})
}

// A message that names an entity of the trial does not escape the limits that hold.
func TestShadowReservedEntity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shadow{Bucket: newBucket(t, Options{Size: 9, Start: time.Unix(0, 0), Shadow: true, Shared: map[string]Limit{"app": {Size: 1}}})}
		defer s.Close()
		if a, err := s.Admit(t.Context(), ShadowID("shop"), Request{}); !errors.Is(err, ErrNoEntity) {
			t.Errorf("Admit: %+v, %v", a, err)
		}
		if d, err := s.GetDelay(t.Context(), ShadowID("shop")); !errors.Is(err, ErrNoEntity) {
			t.Errorf("GetDelay: %v, %v", d, err)
		}
	})
}

// Operations that are never settled leave nothing behind.
func TestShadowForgetsTheLost(t *testing.T) {
	for name, o := range map[string]Options{
		"all": {Size: 2, RefreshRate: 1, Start: time.Unix(0, 0)}, "own": {Size: 2, RefreshRate: 1, Start: time.Unix(0, 0), Shadow: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o.Lease, o.MaxLease = time.Second, 2*time.Second
				s := &Shadow{Bucket: newBucket(t, o)}
				defer s.Close()
				for range 10 {
					run(t, s, "shop", Request{})
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if len(s.ghosts)+len(s.leases) != 0 {
					t.Errorf("%d ghosts and %d leases are left", len(s.ghosts), len(s.leases))
				}
			})
		})
	}
}

// A token of GetDelay that nobody returns is back after Options.Lease, and the next ReturnToken returns another one.
func TestShadowForgetsLostTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, Options{Size: 100, Lease: time.Minute, Start: time.Unix(0, 0)})
		s := &Shadow{Bucket: b}
		defer s.Close()
		get := func() {
			if d, err := s.GetDelay(t.Context(), "shop"); err != nil || d != 0 {
				t.Fatalf("GetDelay = %v, %v", d, err)
			}
		}
		for range 10 {
			get()
			time.Sleep(2 * time.Minute)
		}
		get()
		if n := len(s.plain["shop"]); n != 1 {
			t.Errorf("%d tokens are kept, 1 is out", n)
		}
		ok(t, s.ReturnToken(t.Context(), "shop"))
		if st, err := b.Inspect(t.Context(), "shop"); err != nil || st.InUse != 0 {
			t.Errorf("in use after ReturnToken: %d, %v", st.InUse, err)
		}
		if err := s.ReturnToken(t.Context(), "shop"); err != nil || len(s.plain) != 0 {
			t.Errorf("ReturnToken of nothing = %v, %d entities are kept", err, len(s.plain))
		}
	})
}

// A caller may use its maps and slices again.
func TestShadowKeepsNoMap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shadow{Bucket: newBucket(t, Options{Size: 1, RefreshRate: 1, Start: time.Unix(0, 0), Windows: []Window{{Size: 1000, RefreshInterval: time.Second, Unit: "points"}}, Shared: map[string]Limit{"app": {Size: 9}}})}
		defer s.Close()
		costs, within := Costs{"points": 1}, []string{"app"}
		for range 2 { // the second one waits
			a := run(t, s, "shop", Request{Costs: costs, Within: within})
			ok(t, s.Settle(t.Context(), "shop", a.Lease, 1, costs))
		}
		costs["points"], within[0] = 2, "none"
		if n := s.Waiting(); n != 1 {
			t.Fatalf("%d would wait, want 1", n)
		}
		for g := range s.ghosts {
			if g.request.Costs["points"] != 1 || g.request.Within[0] != "app" || g.costs[0]["points"] != 1 {
				t.Errorf("it keeps the caller's: %+v, %v", g.request, g.costs)
			}
		}
	})
}

// A lease that the Shadow alone knows is checked as one of the Bucket. A refused one stays out.
func TestShadowChecksItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{Size: 1, RefreshRate: 1, Windows: []Window{{Size: 9, RefreshInterval: time.Hour, Unit: "points"}}, Start: time.Unix(0, 0)}
		for i, shared := range []map[string]Limit{nil, nil, {"app": {Size: 100}, "tried": {Concurrency: 1, Shadow: true}}} {
			o.Shadow, o.Shared = i > 0, shared // all on trial, its own limit, and beside it a limit that holds
			s := &Shadow{Bucket: newBucket(t, o)}
			defer s.Close()
			for n := range 3 { // the first one would run, and the last one never
				r := Request{Cost: 1 + n/2}
				a := run(t, s, "shop", r)
				synctest.Wait() // until the one before is over
				ghosts, leases := len(s.ghosts), len(s.leases)
				_, renew := s.Renew(t.Context(), "other", a.Lease)
				for _, c := range []struct{ err, want error }{
					{s.Settle(t.Context(), "shop", a.Lease, 1, Costs{"pages": 1}), ErrUnit},
					{s.Settle(t.Context(), "shop", a.Lease, 1, Costs{"points": -1}), ErrCost},
					{s.Settle(t.Context(), "shop", a.Lease, -1), ErrCost},
					{s.Settle(t.Context(), "shop", a.Lease, 1<<41), ErrCost},
					{s.Settle(t.Context(), "other", a.Lease, 1), ErrNoLease},
					{s.Cancel(t.Context(), "other", Admission{Lease: a.Lease}), ErrNoLease},
					{renew, ErrNoLease},
				} {
					if !errors.Is(c.err, c.want) {
						t.Errorf("operation %d: %v, want %v", n, c.err, c.want)
					}
				}
				if len(s.ghosts) != ghosts || len(s.leases) != leases {
					t.Errorf("operation %d: %d ghosts with %d leases are left of %d with %d", n, len(s.ghosts), len(s.leases), ghosts, leases)
				}
				if err := s.Settle(t.Context(), "shop", a.Lease, 1, Costs{"points": 1}); err != nil {
					t.Errorf("operation %d: %v", n, err)
				}
			}
		}
	})
}

// An entity whose name begins like a ShadowID is any entity while nothing is on trial.
func TestNameLikeAShadowID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		weighed := ""
		b := newBucket(t, Options{
			Size: 1, Start: time.Unix(0, 0), Shared: map[string]Limit{"app": {Size: 9}}, Weight: func(entity string) int { weighed = entity; return 1 },
		})
		postponed := ""
		s := &Shadow{Bucket: b, OnPostponed: func(entity string, _ Admission) { postponed = entity }}
		defer s.Close()
		for range 2 {
			run(t, s, "shadow:shop", Request{})
		}
		if weighed != "shadow:shop" || postponed != "shadow:shop" {
			t.Errorf("weighed %q, postponed %q", weighed, postponed)
		}
	})
}

// together is a Bucket whose trials begin together.
type together struct {
	*Bucket
	all *sync.WaitGroup
}

func (b together) Admit(ctx context.Context, entityID string, r Request) (Admission, error) {
	if strings.HasPrefix(entityID, shadowMark) {
		b.all.Done()
		b.all.Wait()
	}
	return b.Bucket.Admit(ctx, entityID, r)
}

// Operations that come at the same time, more than Most, leave no token of the limits on trial out.
func TestShadowBeyondMostTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		b := together{newBucket(t, Options{Size: 1000, Concurrency: n, Start: time.Unix(0, 0), Shadow: true}), new(sync.WaitGroup)}
		b.all.Add(n)
		s := &Shadow{Bucket: b, Most: 1}
		defer s.Close()
		admitted := make(chan Admission, n)
		for range n {
			go func() {
				a, err := s.Admit(t.Context(), "shop", Request{})
				if err != nil {
					t.Error(err)
				}
				admitted <- a
			}()
		}
		synctest.Wait()
		if st, err := b.Inspect(t.Context(), ShadowID("shop")); err != nil || st.InUse != 1 {
			t.Errorf("%d tokens of the trial are out (%v), want 1", st.InUse, err)
		}
		for range n {
			ok(t, s.Settle(t.Context(), "shop", (<-admitted).Lease, 1))
		}
		synctest.Wait()
		if st, err := b.Inspect(t.Context(), ShadowID("shop")); err != nil || st.InUse != 0 {
			t.Errorf("%d tokens of the trial are out (%v)", st.InUse, err)
		}
	})
}

// A panic of the user's functions, on a timer of the Shadow, loses that operation for the Shadow. It does not end the process.
func TestShadowOutlivesPanics(t *testing.T) {
	for _, name := range []string{"Limits", "OnPostponed"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := map[string]*atomic.Int64{"Limits": {}, "OnPostponed": {}}
				called := func(what string) {
					if n := calls[what].Add(1); what == name && n == map[string]int64{"Limits": 4, "OnPostponed": 2}[what] {
						panic("of " + what)
					}
				}
				b := newBucket(t, Options{Size: 1, RefreshRate: 1, Start: time.Unix(0, 0), Limits: func(context.Context, string) (Limit, error) {
					called("Limits")
					return Limit{}, nil
				}})
				s := &Shadow{Bucket: b, OnPostponed: func(string, Admission) { called("OnPostponed") }}
				defer s.Close()
				for range 2 {
					run(t, s, "shop", Request{})
				}
				if err := b.Pause(t.Context(), "shop", 10*time.Second); err != nil { // the second is postponed again
					t.Fatal(err)
				}
				time.Sleep(5 * time.Second)
				if n, asked := s.Waiting(), calls["Limits"].Load(); asked != 4 || n != 0 {
					t.Errorf("after %d calls %d operations wait, want none", asked, n)
				}
			})
		})
	}
}

// An operation that is never settled keeps its token on trial for as long as a lease lasts, and no longer than its caller renews it.
func TestShadowOfLostOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(t, Options{Size: 10, RefreshRate: 10, Concurrency: 1, Lease: 4 * time.Second, MaxLease: 10 * time.Minute, Start: time.Unix(0, 0)})
		s := &Shadow{Bucket: b}
		defer s.Close()
		use := func() int {
			st, err := b.Inspect(t.Context(), "shop")
			ok(t, err)
			return st.InUse
		}
		for range 2 { // the second is postponed, and has the token after the first
			if _, err := s.GetDelay(t.Context(), "shop"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * time.Second)
		if n := use(); n != 0 {
			t.Errorf("%d tokens of GetDelay are in use after five leases", n)
		}
		var leases []Lease
		for range 2 {
			a := run(t, s, "shop", Request{})
			leases = append(leases, a.Lease)
		}
		for range 150 {
			time.Sleep(time.Second)
			var err error
			if leases[1], err = s.Renew(t.Context(), "shop", leases[1]); err != nil {
				t.Fatal(err)
			}
		}
		if n := use(); n != 1 {
			t.Errorf("%d tokens are in use, want the one of the caller that renews", n)
		}
		time.Sleep(2 * time.Minute)
		if n := use(); n != 0 {
			t.Errorf("%d tokens are in use after the caller was gone", n)
		}
	})
}

// Entities whose tokens of GetDelay are never returned do not stay in memory.
func TestShadowForgetsEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Shadow{Bucket: newBucket(t, Options{Size: 5, RefreshRate: 5, Lease: time.Second, Start: time.Unix(0, 0)})}
		defer s.Close()
		for n := range 10_000 {
			if _, err := s.GetDelay(t.Context(), fmt.Sprint("shop-", n)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(s.plain); n > 2000 {
			t.Errorf("%d entities are kept, want those of the last second and some more", n)
		}
	})
}
