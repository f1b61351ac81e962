package drip

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
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
}

// seen is the outcome of a load.
type seen struct {
	postponed map[Bound]int
	delays    time.Duration
}

// runs plays a load in virtual time. shadow tells whether it is let pass.
func (l load) runs(t *testing.T, shadow bool) (s seen) {
	synctest.Test(t, func(t *testing.T) {
		b, err := New(l.options)
		if err != nil {
			t.Fatal(err)
		}
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
		gap := float64(time.Second) / (float64(l.options.RefreshRate) * l.factor)
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
			time.Sleep(time.Duration(gap/2*(0.1+1.8*r.Float64())) + 1) // two entities
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

// hold keeps a lease for a time.
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
	for name, l := range map[string]load{
		"below the rate":      {Options{Size: 10, RefreshRate: 5, Start: start}, 0.8, 50 * time.Millisecond, 0},
		"above the rate":      {Options{Size: 10, RefreshRate: 5, Start: start}, 1.5, 50 * time.Millisecond, 0},
		"few tokens":          {Options{Size: 50, RefreshRate: 50, Concurrency: 3, Start: start}, 1.2, 100 * time.Millisecond, 0},
		"two windows":         {Options{Size: 10, RefreshRate: 5, Windows: []Window{{Size: 60, RefreshInterval: time.Minute}}, Start: start}, 1.2, 20 * time.Millisecond, 0},
		"cost":                {Options{Size: 30, RefreshRate: 15, Start: start}, 0.5, 20 * time.Millisecond, 3},
		"longer than a lease": {Options{Size: 10, RefreshRate: 5, Concurrency: 4, Lease: time.Second, Start: start}, 1.1, 800 * time.Millisecond, 0},
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

// counted counts the calls of a Bucket.
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
		b, err := New(Options{Size: 2, RefreshRate: 1, Start: time.Unix(0, 0)})
		if err != nil {
			t.Fatal(err)
		}
		c := &counted{Bucket: b}
		s := &Shadow{Bucket: c, Most: 2}
		var all []Admission
		for range 5 {
			a, err := s.Admit(t.Context(), "shop", Request{})
			if err != nil || a.Delay != 0 {
				t.Fatal(a, err)
			}
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
			if err := s.ReturnToken(t.Context(), "shop"); err != nil {
				t.Error(err)
			}
		}
		s.Close()
		st, err := b.Inspect(t.Context(), "shop")
		if err != nil || st.InUse != 0 {
			t.Errorf("%d tokens are out, %v", st.InUse, err)
		}
	})
}
