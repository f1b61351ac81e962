package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/limiter"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// store is a storage of one key that can be made to do its worst. It never forgets unless a test sets that.
type store struct {
	mu       sync.Mutex
	state    storage.State
	revision storage.Revision
	forgets  bool
	fail     error
	trips    time.Duration // how long a call takes
	hangs    bool          // until the context ends
	between  func()        // called before each Set
	sets     int
}

func (s *store) call(ctx context.Context) error {
	s.mu.Lock()
	trips, hangs, fail := s.trips, s.hangs, s.fail
	s.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	time.Sleep(trips)
	return fail
}

func (s *store) Get(ctx context.Context, _ string) (storage.State, storage.Revision, error) {
	if err := s.call(ctx); err != nil {
		return storage.State{}, storage.NoRevision, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revision == 0 || s.forgets && s.state.Until <= time.Now().UnixMilli() {
		return storage.State{}, storage.NoRevision, nil
	}
	return s.state, s.revision, nil
}

func (s *store) Set(ctx context.Context, _ string, state storage.State, rev storage.Revision) error {
	if s.between != nil {
		s.between()
	}
	if err := s.call(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if rev != s.revision && (rev != 0 || !s.forgets) {
		return storage.ErrConflict
	}
	s.state, s.revision = state, s.revision+1
	s.sets++
	return nil
}

func (s *store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// clocked is a storage with a clock of its own.
type clocked struct {
	*store
	ahead *time.Duration
}

func (s clocked) Read(ctx context.Context, key string) (storage.Entry, error) {
	if err := s.call(ctx); err != nil {
		return storage.Entry{}, err
	}
	return storage.Entry{Key: key, Time: time.Now().Add(*s.ahead)}, nil
}

// TestClock has the storage's clock decide, whatever the process's says.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ahead := time.Hour
		s := clocked{&store{}, &ahead}
		l := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		must(t, l.ConsumeNow(t.Context(), 10)) // nothing is saved, although the clocks differ
		waits(t, l, 1, time.Second)
		if last := s.state.Now - time.Now().UnixMilli(); last != time.Hour.Milliseconds() {
			t.Errorf("the last change was in %d ms", last)
		}
		time.Sleep(time.Minute)
		other := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		must(t, other.ConsumeNow(t.Context(), 20))
		waits(t, l, 1, time.Second)

		ahead = 0 // it is set back
		waits(t, l, 0, time.Hour+100*time.Millisecond)
		ahead = -time.Hour
		must(t, l.Reset(t.Context()))
		must(t, l.ConsumeNow(t.Context(), 1))
		waits(t, l, 0, 100*time.Millisecond)
	})
}

// TestNoEntity lets tools that act on all entities of a storage act on a limiter: they leave it as it is.
func TestNoEntity(t *testing.T) {
	s := memory.New()
	l := newLimiter(t, limiter.Options{Limit: 1, Storage: s, Key: "table"})
	must(t, l.ConsumeNow(t.Context(), 1000))
	must(t, s.List(t.Context(), func(e storage.Entry) error { return fmt.Errorf("the limiter %q is listed as an entity", e.Key) }))
	limits := &decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 1000}}, Tokens: 1}
	limits.Ready()
	for _, kind := range []decision.Kind{decision.GetDelay, decision.Pause, decision.Reset} {
		if _, err := s.Do(t.Context(), "table", limits, nil, decision.Op{Kind: kind, Now: decision.OwnClock, For: 1000}); err == nil {
			t.Errorf("an operation of kind %d on a limiter is done", kind)
		}
	}
	if rate, err := l.CurrentRate(t.Context()); rate < 90_000 || err != nil {
		t.Errorf("the limiter owes %v percent, %v; want a thousand units", rate, err)
	}
	entity := storage.State{Data: storage.Encode(&decision.State{Tokens: 1}, nil), Until: decision.Never}
	must(t, s.Set(t.Context(), "shop", entity, storage.NoRevision))
	l = newLimiter(t, limiter.Options{Limit: 1, Storage: s, Key: "shop"})
	if err := l.ConsumeNow(t.Context(), 1); !errors.Is(err, limiter.ErrStorage) {
		t.Errorf("a limiter of the name of an entity: %v", err)
	}
}

// TestForgotten has a storage that forgets the limiter as soon as it may.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{forgets: true}
		o := limiter.Options{Limit: 10, Duration: 2 * time.Second, Storage: s, Key: "table"}
		shared, alone := newLimiter(t, o), newLimiter(t, limiter.Options{Limit: 10, Duration: 2 * time.Second})
		for i, units := range []float64{-30, 5, 30, 0, 12, 0, 35, 1, 300, 1, 1} {
			a, err := shared.Consume(t.Context(), units)
			must(t, err)
			time.Sleep(-a)
			must(t, alone.ConsumeNow(t.Context(), units))
			x, err := shared.CurrentRate(t.Context())
			must(t, err)
			y, err := alone.CurrentRate(t.Context())
			must(t, err)
			if x != y {
				t.Fatalf("step %d: the rates are %v and %v", i, x, y)
			}
			time.Sleep(time.Duration(i) * 300 * time.Millisecond)
		}
	})
}

// TestConflict has others change the limiter in every round.
func TestConflict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		l := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		other := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		conflicts, own := 3, true
		s.between = func() {
			if own && conflicts > 0 {
				conflicts--
				own = false
				must(t, other.ConsumeNow(t.Context(), 1))
				own = true
			}
		}
		must(t, l.ConsumeNow(t.Context(), 1))
		if rate, err := l.CurrentRate(t.Context()); rate < 130 || rate > 140 || err != nil {
			t.Errorf("the rate is %v, %v", rate, err)
		}
	})
}

// TestRoundTrips has many callers share the round trips of one limiter: they see them once, not one after the other. No
// caller waits for the storage longer than its context lasts, and the limiter gives back the units of a caller that has
// gone.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := clocked{&store{trips: 10 * time.Millisecond}, new(time.Duration)}
		l := newLimiter(t, limiter.Options{Limit: 1000, Duration: time.Minute, Storage: s, Key: "table"})
		time.Sleep(time.Minute)
		start := time.Now()
		var wg sync.WaitGroup
		for range 1000 {
			wg.Go(func() {
				if ok, err := l.TryConsume(t.Context(), 1); !ok || err != nil {
					t.Error(ok, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > 40*time.Millisecond || s.sets > 2 {
			t.Errorf("1000 calls took %v and %d Sets", took, s.sets)
		}

		must(t, l.SetCurrentRate(t.Context(), 100))
		for _, after := range []time.Duration{5 * time.Millisecond, 15 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			start := time.Now()
			if _, err := l.Consume(ctx, 5000); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != after {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			time.Sleep(time.Second)
			if rate, err := l.CurrentRate(t.Context()); rate != 0 || err != nil {
				t.Errorf("the rate is %v, %v", rate, err)
			}
		}
		// A timeout is for the limiter's wait.
		if waited, err := l.ConsumeTimeout(t.Context(), 1, time.Millisecond, false); waited != 0 || err != nil {
			t.Errorf("waited %v, %v", waited, err)
		}
		must(t, l.ConsumeNow(t.Context(), 100_000))
		if _, err := l.ConsumeTimeout(t.Context(), 1, time.Millisecond, false); !errors.Is(err, limiter.ErrTimeout) {
			t.Error(err)
		}
	})
}

// TestLeavingDuringARound has callers leave while they are charged.
func TestLeavingDuringARound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{trips: 10 * time.Millisecond}
		l := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		for _, always := range []bool{true, false} {
			must(t, l.SetCurrentRate(t.Context(), 200))
			time.Sleep(time.Second - 110*time.Millisecond)
			timeout := 100 * time.Millisecond
			if !always {
				timeout = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), 115*time.Millisecond)
			defer cancel()
			if _, err := l.ConsumeTimeout(ctx, 100, timeout, always); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			before, after := 0, 0
			s.set(func() { before = s.sets })
			time.Sleep(time.Second)
			s.set(func() { after = s.sets })
			if after != before+2 { // it was charged and given back
				t.Errorf("%d Sets after it had left", after-before)
			}
			if rate, err := l.CurrentRate(t.Context()); rate > 100 || err != nil {
				t.Errorf("always %v: the rate is %v, %v", always, rate, err)
			}
		}
	})
}

// TestLeavingBeforeACharge has a caller leave while the storage is read for it and for others.
func TestLeavingBeforeACharge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{trips: 10 * time.Millisecond}
		l := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		for name, consume := range map[string]func(ctx context.Context, units float64) error{
			"Consume":    func(ctx context.Context, units float64) error { _, err := l.Consume(ctx, units); return err },
			"ConsumeNow": l.ConsumeNow,
		} {
			var wg sync.WaitGroup
			must(t, l.Reset(t.Context()))
			before := s.sets
			leaves, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
			defer cancel()
			wg.Go(func() { _ = consume(leaves, 10) })
			synctest.Wait()
			for range 2 {
				wg.Go(func() { must(t, consume(t.Context(), 0)) })
			}
			wg.Wait()
			time.Sleep(time.Second)
			if s.sets != before {
				t.Errorf("%s: the call that has left was charged", name)
			}
		}
	})
}

// TestBroken has a storage that fails, and one that hangs.
func TestBroken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		l := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
		must(t, l.ConsumeNow(t.Context(), 10))
		broken := errors.New("broken")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if _, err := l.Consume(t.Context(), 1); !errors.Is(err, limiter.ErrStorage) || !errors.Is(err, broken) || !strings.Contains(err.Error(), `"table"`) {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		s.set(func() { s.fail = broken })
		wg.Wait()
		if ok, err := l.TryConsume(t.Context(), 1); ok || !errors.Is(err, broken) {
			t.Error(ok, err)
		}

		s.set(func() { s.fail, s.hangs = nil, true })
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Reset(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		_, err := l.Consume(t.Context(), 1)
		if !errors.Is(err, limiter.ErrStorage) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "10s") {
			t.Error(err)
		}

		s.set(func() { s.hangs, s.trips, s.fail = false, 11*time.Second, errors.New("no route to host") })
		if _, err := l.Consume(t.Context(), 1); !errors.Is(err, limiter.ErrStorage) || !strings.Contains(err.Error(), "10s") || !strings.Contains(err.Error(), "no route") {
			t.Error(err)
		}

		s.set(func() { s.trips, s.fail = 0, nil })
		must(t, l.Reset(t.Context()))
		waits(t, l, 1, 0)
	})
}

// TestOthers checks that a waiting limiter notices units that others give back.
func TestOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := limiter.Options{Limit: 10, Storage: memory.New(), Key: "table"}
		l, other := newLimiter(t, o), newLimiter(t, o)
		must(t, other.ConsumeNow(t.Context(), 100))
		var wg sync.WaitGroup
		wg.Go(func() {
			if waited, err := l.Consume(t.Context(), 1); waited < 2*time.Second || waited > 2800*time.Millisecond || err != nil {
				t.Error(waited, err)
			}
		})
		time.Sleep(2 * time.Second)
		must(t, other.ConsumeNow(t.Context(), -100))
		wg.Wait()
	})
}

// TestStorm has many callers do everything at once, in memory and on a storage that is slow, loses races and fails: all
// of them are answered, or the bubble has a deadlock. Then the limiter is as good as a new one.
func TestStorm(t *testing.T) {
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("memory ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { storm(t, seed, limiter.Options{Limit: 100}, func() {}) })
		})
		t.Run(fmt.Sprint("storage ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, rnd := &store{forgets: true}, rand.New(rand.NewPCG(seed, 0))
				ctx, cancel := context.WithCancel(t.Context())
				var faults sync.WaitGroup
				faults.Go(func() {
					for ctx.Err() == nil {
						time.Sleep(time.Duration(rnd.IntN(50)) * time.Millisecond)
						s.set(func() {
							s.fail, s.trips = nil, time.Duration(rnd.IntN(5))*time.Millisecond
							switch rnd.IntN(10) {
							case 0:
								s.fail = errors.New("broken")
							case 1, 2:
								s.revision++ // somebody has stored the same again
							}
						})
					}
				})
				storm(t, seed, limiter.Options{Limit: 100, Storage: s, Key: "table"}, func() {
					cancel()
					faults.Wait()
					s.set(func() { s.fail, s.trips = nil, 0 })
				})
			})
		})
	}
}

func storm(t *testing.T, seed uint64, o limiter.Options, calm func()) {
	l := newLimiter(t, o)
	var wg sync.WaitGroup
	for i := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, i))
		wg.Go(func() {
			for range 50 {
				ctx, cancel := context.WithCancel(t.Context())
				units, short := float64(rnd.IntN(8)), time.Duration(1+rnd.IntN(200))*time.Millisecond
				if rnd.IntN(2) == 0 {
					ctx, cancel = context.WithTimeout(ctx, short)
				}
				left := time.AfterFunc(time.Duration(1+rnd.IntN(2000))*time.Millisecond, cancel)
				var err error
				switch rnd.IntN(14) {
				default:
					_, err = l.Consume(ctx, units)
				case 3, 4, 5:
					_, err = l.ConsumeTimeout(ctx, units, short, rnd.IntN(2) == 0)
				case 6:
					_, err = l.TryConsume(ctx, units)
				case 7:
					err = l.ConsumeNow(ctx, units-4)
				case 8:
					err = l.Do(ctx, func(context.Context) (float64, error) {
						time.Sleep(short / 10)
						return units, nil
					})
				case 9:
					err = l.SetLimit([]float64{1, 100, 1000, limiter.Unlimited}[rnd.IntN(4)])
				case 10:
					err = l.SetDuration(short)
				case 11:
					err = l.Reset(ctx)
				case 12:
					_, err = l.CurrentRate(ctx)
				case 13:
					err = l.Throttled(ctx)
				}
				if err != nil && ctx.Err() == nil && !errors.Is(err, limiter.ErrTimeout) && (o.Storage == nil || !errors.Is(err, limiter.ErrStorage)) {
					t.Error(err)
				}
				left.Stop()
				cancel()
			}
		})
	}
	wg.Wait()
	calm()
	time.Sleep(time.Minute)
	must(t, l.SetLimit(10))
	must(t, l.Reset(t.Context()))
	must(t, l.ConsumeNow(t.Context(), 10))
	waits(t, l, 1, time.Second)
}

// A panic of the storage is an error of the call, and does not end the process.
func TestStorageThatPanics(t *testing.T) {
	for _, name := range []string{"Get", "Set", "Read"} {
		synctest.Test(t, func(t *testing.T) {
			s := hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error {
				if c.Method == name {
					panic("out of order")
				}
				return nil
			}}
			l := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: "table"})
			if _, err := l.Consume(t.Context(), 1); !errors.Is(err, limiter.ErrStorage) || !strings.Contains(err.Error(), "out of order") {
				t.Errorf("%s panics: Consume = %v, want ErrStorage with the panic", name, err)
			}
		})
	}
}

// The key under which a limiter reads the storage's clock is no name that another limiter has.
func TestKeyBesideTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		for _, key := range []string{"table clock", "table"} {
			if _, err := newLimiter(t, limiter.Options{Limit: 10, Storage: s, Key: key}).Consume(t.Context(), 1); err != nil {
				t.Errorf("Consume of %q = %v", key, err)
			}
		}
	})
}
