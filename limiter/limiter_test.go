package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/limiter"
	"github.com/drip-go/drip/storage/memory"
)

// A charge is what an operation cost, and when it ran.
type charge struct {
	at    time.Duration
	units float64
}

// record is the view of a service.
type record struct {
	start time.Time
	mu    sync.Mutex
	all   []charge
}

func (r *record) add(units float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, charge{time.Since(r.start), units})
}

// most returns the most units in any window of that length, and the total.
func (r *record) most(window time.Duration) (most, total float64) {
	first, in := 0, 0.0
	for _, c := range r.all {
		in += c.units
		total += c.units
		for r.all[first].at <= c.at-window {
			in -= r.all[first].units
			first++
		}
		most = max(most, in)
	}
	return most, total
}

// both runs f in a bubble for a limiter in memory and for one in a storage.
func both(t *testing.T, o limiter.Options, f func(t *testing.T, l *limiter.Limiter)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newLimiter(t, o)) })
	})
	t.Run("storage", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			o := o
			o.Storage, o.Key = memory.New(), "table"
			f(t, newLimiter(t, o))
		})
	})
}

// TestDo has many workers whose operations take 75 ms and tell their units when they are over. In no second are there
// more than the limit and one burst. With the way of the SDKs, a wait for zero units before each operation and a charge
// after it, there are 255 with 50 workers.
func TestDo(t *testing.T) {
	const limit = 50.0
	for name, c := range map[string]struct {
		cost  func() float64
		slack float64
	}{
		"5 units":      {func() float64 { return 5 }, 0},
		"0 to 9 units": {func() float64 { return float64(rand.IntN(10)) }, 25}, // no average predicts the next cost
	} {
		for _, workers := range []int{8, 50} {
			for _, idle := range []time.Duration{0, 10 * time.Second} {
				t.Run(fmt.Sprint(name, ", workers ", workers, ", idle ", idle), func(t *testing.T) {
					both(t, limiter.Options{Limit: limit}, func(t *testing.T, l *limiter.Limiter) {
						time.Sleep(idle)
						r := record{start: time.Now()}
						const lasts = 30 * time.Second
						var wg sync.WaitGroup
						for range workers {
							wg.Go(func() {
								for {
									err := l.Do(t.Context(), func(context.Context) (float64, error) {
										units := c.cost()
										r.add(units)
										time.Sleep(75 * time.Millisecond)
										return units, nil
									})
									if err != nil {
										t.Error(err)
									}
									if err != nil || time.Since(r.start) > lasts {
										return
									}
								}
							})
						}
						wg.Wait()
						r.all = slices.DeleteFunc(r.all, func(c charge) bool { return c.at >= lasts })
						second, total := r.most(time.Second)
						burst := limit * l.Duration().Seconds()
						t.Logf("at most %.0f units in a second, %.1f on average", second, total/lasts.Seconds())
						if second > limit+burst+c.slack {
							t.Errorf("%v units in a second", second)
						}
						if total < 0.95*limit*lasts.Seconds() || total > limit*lasts.Seconds()+burst+10+c.slack {
							t.Errorf("%v units in %v", total, lasts)
						}
					})
				})
			}
		}
	}
}

// TestShare has callers with all sorts of timeouts, each of which asks again at once or soon: all get the same, even callers that
// never have the time to wait for a turn of their own.
func TestShare(t *testing.T) {
	for _, timeouts := range [][]int{
		{50, 5000, 5000}, {110, 90}, {150, 90}, {300, 160, 90}, {150, 150, 90, 90}, {90, 90, 90, 150}, {20_000, 10}, {20_000, 20_000, 10, 10, 10},
		{1000, 600, 300, 150, 90, 50, 10}, {1000, 600, 300, 150, 90, 50, 10, 1000, 600, 300, 150, 90, 50, 10},
	} {
		for _, by := range []string{"timeout", "context"} {
			for _, pause := range []time.Duration{0, 7 * time.Millisecond} {
				t.Run(fmt.Sprint(timeouts, " by ", by, ", pause ", pause), func(t *testing.T) {
					both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
						ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
						defer cancel()
						granted := make([]int, len(timeouts))
						var wg sync.WaitGroup
						for i, ms := range timeouts {
							timeout := time.Duration(ms) * time.Millisecond
							wg.Go(func() {
								for ctx.Err() == nil {
									var err error
									if by == "timeout" {
										_, err = l.ConsumeTimeout(ctx, 1, timeout, false)
									} else {
										short, cancel := context.WithTimeout(ctx, timeout)
										_, err = l.Consume(short, 1)
										cancel()
									}
									if err == nil {
										granted[i]++
									} else {
										time.Sleep(pause)
									}
								}
							})
						}
						wg.Wait()
						t.Log(granted)
						share, total := 400/float64(len(timeouts)), 0
						for _, n := range granted {
							total += n
							if n := float64(n); n < 0.55*share || n > 2*share {
								t.Errorf("granted %v; an equal share is %.0f", granted, share)
							}
						}
						if total < 392 || total > 401 {
							t.Errorf("granted %d", total)
						}
					})
				})
			}
		}
	}
}

// TestCancel ends many waits in many ways: their unused units are there for others.
func TestCancel(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		must(t, l.ConsumeNow(t.Context(), 10))
		ctx, cancel := context.WithCancel(t.Context())
		short, cancel2 := context.WithTimeout(ctx, 150*time.Millisecond)
		defer cancel2()
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				waited, err := l.Consume(ctx, 5)
				if !errors.Is(err, context.Canceled) || waited != 200*time.Millisecond {
					t.Errorf("%d: %v, %v", i, waited, err)
				}
			})
			wg.Go(func() {
				waited, err := l.Consume(short, 5)
				if !errors.Is(err, context.DeadlineExceeded) || waited != 150*time.Millisecond {
					t.Errorf("%d: %v, %v", i, waited, err)
				}
			})
			wg.Go(func() {
				waited, err := l.ConsumeTimeout(ctx, 5, 100*time.Millisecond, false)
				if !errors.Is(err, limiter.ErrTimeout) || waited != 100*time.Millisecond {
					t.Errorf("%d: %v, %v", i, waited, err)
				}
			})
			wg.Go(func() {
				err := l.Do(ctx, func(context.Context) (float64, error) {
					t.Error("called")
					return 0, nil
				})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%d: %v", i, err)
				}
			})
		}
		time.Sleep(200 * time.Millisecond)
		cancel()
		wg.Wait()
		if _, err := l.Consume(ctx, 5); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := l.ConsumeNow(ctx, 5); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		waits(t, l, 0, 800*time.Millisecond)
	})
}

// TestNothingIsKept drops limiters with a long debt, after a caller has waited.
func TestNothingIsKept(t *testing.T) {
	var dropped []weak.Pointer[limiter.Limiter]
	for range 1000 {
		l := newLimiter(t, limiter.Options{Limit: 10})
		must(t, l.ConsumeNow(t.Context(), 1e6))
		if _, err := l.ConsumeTimeout(t.Context(), 1, time.Microsecond, false); !errors.Is(err, limiter.ErrTimeout) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		if _, err := l.Consume(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		cancel()
		dropped = append(dropped, weak.Make(l))
	}
	runtime.GC()
	kept := 0
	for _, p := range dropped {
		if p.Value() != nil {
			kept++
		}
	}
	if kept > len(dropped)/2 { // a timer that was stopped may be kept for a while
		t.Errorf("%d of %d limiters are kept", kept, len(dropped))
	}
}

// TestOrder checks that calls wait for earlier charges, in their order, and move up when one leaves.
func TestOrder(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		must(t, l.ConsumeNow(t.Context(), 100))
		var wg sync.WaitGroup
		leaves, cancel := context.WithCancel(t.Context())
		for _, c := range []struct {
			ctx  context.Context
			want time.Duration
		}{
			{t.Context(), 10 * time.Second},
			{leaves, time.Second},
			{t.Context(), 10*time.Second + 100*time.Millisecond},
			{t.Context(), 10*time.Second + 200*time.Millisecond},
		} {
			wg.Go(func() {
				waited, err := l.Consume(c.ctx, 1)
				if waited != c.want || (err != nil) != (c.ctx == leaves) {
					t.Errorf("waited %v, want %v: %v", waited, c.want, err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		cancel()
		wg.Wait()
	})
}

// TestOrderOfTheImpatient has calls that are as patient as each other: they keep their order, although one has given up.
func TestOrderOfTheImpatient(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		must(t, l.ConsumeNow(t.Context(), 8))
		call := func(timeout, want time.Duration) {
			waited, err := l.ConsumeTimeout(t.Context(), 1, timeout, false)
			if waited != want || (err != nil) != (want == timeout) {
				t.Errorf("waited %v of %v, want %v: %v", waited, timeout, want, err)
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() { call(600*time.Millisecond, 600*time.Millisecond) })
		time.Sleep(300 * time.Millisecond)
		wg.Go(func() { call(610*time.Millisecond, 500*time.Millisecond) })
		time.Sleep(310 * time.Millisecond)
		wg.Go(func() { call(600*time.Millisecond, 290*time.Millisecond) })
		wg.Wait()
	})
}

// TestLeavers has calls behind calls that have left: these are in nobody's way.
func TestLeavers(t *testing.T) {
	// call waits in the background, for its patience at most. It is admitted after want.
	call := func(t *testing.T, wg *sync.WaitGroup, l *limiter.Limiter, patience, want time.Duration) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			waited, err := l.Consume(ctx, 1)
			if waited != want || (err != nil) != (want == patience) {
				t.Errorf("waited %v of %v, want %v: %v", waited, patience, want, err)
			}
		})
		synctest.Wait()
	}
	const ms = time.Millisecond
	t.Run("one comes back", func(t *testing.T) {
		both(t, limiter.Options{Limit: 1000}, func(t *testing.T, l *limiter.Limiter) {
			var wg sync.WaitGroup
			must(t, l.ConsumeNow(t.Context(), 105))
			call(t, &wg, l, 100*ms, 100*ms)
			time.Sleep(ms)
			call(t, &wg, l, 106*ms, 106*ms) // then it is its turn, which is held for the call before it
			call(t, &wg, l, time.Hour, 109*ms)
			call(t, &wg, l, time.Hour, 109*ms)
			time.Sleep(107 * ms)
			call(t, &wg, l, 106*ms, 0)
			wg.Wait()
		})
	})
	t.Run("a patient one left", func(t *testing.T) {
		both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
			var wg sync.WaitGroup
			must(t, l.ConsumeNow(t.Context(), 8))
			call(t, &wg, l, 600*ms, 600*ms)
			call(t, &wg, l, 650*ms, 650*ms)
			time.Sleep(300 * ms)
			call(t, &wg, l, 620*ms, 500*ms)
			call(t, &wg, l, 620*ms, 600*ms)
			time.Sleep(360 * ms)
			call(t, &wg, l, 600*ms, 340*ms) // not before those that are as patient
			wg.Wait()
		})
	})
}

// TestTie lets the timeout of the first caller pass when its turn comes: the next one has the turn at once.
func TestTie(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		must(t, l.ConsumeNow(t.Context(), 1))
		var wg sync.WaitGroup
		wg.Go(func() {
			waited, err := l.ConsumeTimeout(t.Context(), 1, 100*time.Millisecond, false)
			if waited != 100*time.Millisecond || !errors.Is(err, limiter.ErrTimeout) {
				t.Error(waited, err)
			}
		})
		synctest.Wait()
		if waited, err := l.ConsumeTimeout(t.Context(), 1, 104*time.Millisecond, false); waited != 100*time.Millisecond || err != nil {
			t.Error(waited, err)
		}
		wg.Wait()
	})
}

// TestGiveBack shortens waits that are under way, a charge lengthens them.
func TestGiveBack(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		must(t, l.ConsumeNow(t.Context(), 10))
		var wg sync.WaitGroup
		wg.Go(func() { waits(t, l, 0, 700*time.Millisecond) })
		synctest.Wait()
		must(t, l.ConsumeNow(t.Context(), 2))
		time.Sleep(100 * time.Millisecond)
		if _, err := l.Consume(t.Context(), -5); err != nil {
			t.Error(err)
		}
		wg.Wait()

		must(t, l.ConsumeNow(t.Context(), 10))
		wg.Go(func() { waits(t, l, 1, 0) })
		synctest.Wait()
		must(t, l.Reset(t.Context()))
		synctest.Wait()
		must(t, l.SetLimit(limiter.Unlimited))
		wg.Wait()
	})
}

var must = oktest.OK // ends the test if there is an error

// waits checks how long a call of Consume waits.
func waits(t *testing.T, l *limiter.Limiter, units float64, want time.Duration) {
	t.Helper()
	if waited, err := l.Consume(t.Context(), units); waited != want || err != nil {
		t.Errorf("Consume(%v) = %v, %v; want %v", units, waited, err, want)
	}
}

// TestDoOutcomes ends operations in all ways, and checks their charges.
func TestDoOutcomes(t *testing.T) {
	failure := errors.New("failure")
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		rate := func(want float64) {
			t.Helper()
			if got, err := l.CurrentRate(t.Context()); got < want-0.001 || got > want+0.001 || err != nil {
				t.Errorf("the rate is %v, want %v: %v", got, want, err)
			}
			must(t, l.Reset(t.Context()))
		}
		ctx, cancel := context.WithCancel(t.Context())
		returns := func(units float64, err error) error {
			return l.Do(ctx, func(context.Context) (float64, error) { return units, err })
		}
		if err := returns(0, failure); err != failure {
			t.Error(err)
		}
		rate(100)
		func() {
			defer func() { _ = recover() }()
			_ = l.Do(ctx, func(context.Context) (float64, error) { panic("") })
		}()
		rate(200) // a second's worth, as nothing is known yet
		must(t, returns(5, nil))
		rate(150)
		if err := returns(7, failure); err != failure {
			t.Error(err)
		}
		rate(170)
		for range 100 {
			must(t, returns(5, nil))
			must(t, l.Reset(ctx))
		}
		for _, units := range []float64{math.NaN(), math.Inf(1), -1, 1e20} {
			if err := returns(units, failure); !errors.Is(err, failure) || !errors.Is(err, limiter.ErrInvalid) {
				t.Error(err)
			}
			rate(150)
		}
		err := l.Do(ctx, func(context.Context) (float64, error) {
			cancel()
			return 20, ctx.Err()
		})
		if err != context.Canceled {
			t.Error(err)
		}
		rate(300) // charged, although the context has ended
		if err := returns(1, nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		rate(100)
	})
}

// TestDoCostsTooMuch has operations expected to cost more than may be owed.
func TestDoCostsTooMuch(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		for _, units := range []float64{1e12, 5, 5} {
			must(t, l.Do(t.Context(), func(context.Context) (float64, error) { return units, nil }))
			must(t, l.Reset(t.Context()))
			must(t, l.SetLimit(0.01))
		}
	})
}

// TestUnlimited checks that waiting callers go as soon as there is no limit.
func TestUnlimited(t *testing.T) {
	both(t, limiter.Options{Limit: 10}, func(t *testing.T, l *limiter.Limiter) {
		must(t, l.ConsumeNow(t.Context(), 100))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if waited, err := l.Consume(t.Context(), 5); waited > time.Second || err != nil {
					t.Error(waited, err)
				}
			})
			wg.Go(func() {
				if err := l.Do(t.Context(), func(context.Context) (float64, error) { return 5, nil }); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(time.Second)
		must(t, l.SetLimit(limiter.Unlimited))
		wg.Wait()
		must(t, l.Do(t.Context(), func(context.Context) (float64, error) { return 5, nil }))
		must(t, l.SetLimit(10))
		waits(t, l, 0, 9*time.Second)
	})
}

// TestPercent has the limiter allow its part of a limit.
func TestPercent(t *testing.T) {
	l := newLimiter(t, limiter.Options{Limit: 50, Percent: 52})
	if got := l.Limit(); got != 26 {
		t.Errorf("the limit is %v", got)
	}
	must(t, l.SetLimit(10))
	if got := l.Limit(); got != 5.2 {
		t.Errorf("the limit is %v", got)
	}
}

// TestInvalid checks that errors name the invalid argument.
func TestInvalid(t *testing.T) {
	for _, c := range []struct {
		o    limiter.Options
		want string
	}{
		{limiter.Options{}, "Options.Limit is 0"},
		{limiter.Options{Limit: math.NaN()}, "the limit is NaN"},
		{limiter.Options{Limit: 1e-10}, "the limit is 1e-10"},
		{limiter.Options{Limit: 1e16}, "or Unlimited"},
		{limiter.Options{Limit: 1e307}, "the limit is 1e+307"},
		{limiter.Options{Limit: 1e-9, Percent: 50}, "of which 50 percent are 5e-10"},
		{limiter.Options{Limit: 1e-200, Percent: 1e-200}, "of which 1e-200 percent are 0"},
		{limiter.Options{Limit: 1, Percent: 100.1}, "Options.Percent is 100.1"},
		{limiter.Options{Limit: 1, Percent: -1}, "Options.Percent is -1"},
		{limiter.Options{Limit: 1, Percent: math.NaN()}, "Options.Percent is NaN"},
		{limiter.Options{Limit: 1, Duration: -1}, "Options.Duration is -1ns"},
		{limiter.Options{Limit: 1, Storage: memory.New()}, "Options.Key is empty"},
		{limiter.Options{Limit: 1, Storage: (*memory.Storage)(nil), Key: "k"}, "Options.Storage is a nil *memory.Storage"},
		{limiter.Options{Limit: 1, Key: "table"}, `Options.Key is "table"`},
	} {
		_, err := limiter.New(c.o)
		if !errors.Is(err, limiter.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; want %q", c.o, err, c.want)
		}
	}
	l := newLimiter(t, limiter.Options{Limit: 10})
	_, err := l.ConsumeTimeout(t.Context(), 5, -5*time.Millisecond, true)
	if want := "limiter: consume 5 units: invalid argument: the timeout is -5ms"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s…", err, want)
	}
	must(t, l.SetCurrentRate(t.Context(), 1e13)) // 3,000 years
	if rate, err := l.CurrentRate(t.Context()); math.Abs(rate-1e13) > 1e3 || err != nil {
		t.Errorf("the rate is %v, %v", rate, err)
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, limiter.Options{Limit: 10})
		must(t, l.ConsumeNow(t.Context(), 1))
		_, err := l.ConsumeTimeout(t.Context(), 5, 500*time.Microsecond, true)
		if want := "limiter: consume 5 units: timed out after 500µs"; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	})
}
