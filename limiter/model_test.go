package limiter_test

import (
	"context"
	"errors"
	"math/big"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/limiter"
	"github.com/drip-go/drip/storage/memory"
)

// The test forgives a longer debt: the clock of a test does not go on for ever.
const tooLong = 1000 * time.Hour

// A model is the limiter for a single caller, in rational numbers of seconds and as the package's documentation has it.
type model struct {
	next, now, limit, duration *big.Rat
}

func rat(f float64) *big.Rat { return new(big.Rat).SetFloat64(f) }

func inSeconds(d time.Duration) *big.Rat { return big.NewRat(int64(d), 1e9) }

func latest(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return b
	}
	return a
}

func (m *model) setLimit(limit float64) {
	m.limit = rat(limit)
	m.duration = latest(m.duration, new(big.Rat).Inv(m.limit))
}

func (m *model) setDuration(d time.Duration) {
	m.duration = latest(inSeconds(d), new(big.Rat).Inv(m.limit))
}

func (m *model) charge(units float64) {
	saved := latest(m.next, new(big.Rat).Sub(m.now, m.duration))
	m.next = new(big.Rat).Add(saved, new(big.Rat).Quo(rat(units), m.limit))
}

// over returns how long units are owed yet in whole nanoseconds.
func (m *model) over() time.Duration {
	f, _ := new(big.Rat).Mul(new(big.Rat).Sub(m.next, m.now), big.NewRat(1e9, 1)).Float64()
	switch {
	case f < 0.5:
		return 0
	case f > float64(tooLong):
		return tooLong
	}
	return time.Duration(f + 0.5)
}

func (m *model) rate() float64 {
	saved := new(big.Rat).Sub(m.now, m.next)
	if saved.Cmp(m.duration) > 0 {
		saved = m.duration
	}
	f, _ := saved.Float64()
	return max(0, 100-100*f)
}

// FuzzModel makes random calls, one after the other, and compares their answers with the model. It tolerates two
// nanoseconds, because a duration is whole nanoseconds.
func FuzzModel(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed, 30)
	}
	f.Fuzz(func(t *testing.T, seed uint64, calls int) {
		synctest.Test(t, func(t *testing.T) { checkModel(t, rand.New(rand.NewPCG(seed, 0)), calls%200) })
	})
}

func checkModel(t *testing.T, rnd *rand.Rand, calls int) {
	ctx := t.Context()
	pick := func(from ...float64) float64 { return from[rnd.IntN(len(from))] }
	limit := func() float64 { return pick(0.1, 0.3, 1, 3, 7, 10, 26, 100, 1e3, 15e6, 6e8, 3e9, 1e12) }
	duration := func() time.Duration {
		return seconds(pick(0, 1e-9, 0.001, 0.5, 1, 8.2, 30, 3600))
	}
	o := limiter.Options{Limit: limit(), Duration: duration()}
	if rnd.IntN(2) == 0 {
		o.Storage, o.Key = &store{}, "table"
	}
	l := newLimiter(t, o)
	m := &model{next: new(big.Rat), now: new(big.Rat), duration: inSeconds(max(o.Duration, 0))}
	if o.Duration == 0 {
		m.duration = big.NewRat(1, 1)
	}
	m.setLimit(o.Limit)
	start := time.Now()
	scale := o.Limit // so that waits are of all lengths
	for i := range calls {
		if rnd.IntN(3) == 0 {
			time.Sleep(time.Duration(pick(1, 1e3, 1e6, 1e8, 1e9, 1e10, 1e12) * (1 + rnd.Float64())))
		}
		m.now = inSeconds(time.Since(start))
		units := pick(0, 0.001, 0.1, 0.5, 1, 3, 40) * pick(1, min(scale, 1e9*l.Limit()))
		if rnd.IntN(8) == 0 {
			units = -units
		}
		over := m.over()
		if over == tooLong {
			m.next, over = m.now, 0
			must(t, l.Reset(ctx))
		}
		var waited time.Duration
		var want time.Duration
		var err error
		call := ""
		switch rnd.IntN(12) {
		default:
			call = "consume"
			waited, err = l.Consume(ctx, units)
			if units >= 0 {
				want = over
			}
			m.now = new(big.Rat).Add(m.now, inSeconds(want))
			m.charge(units)
		case 5, 6:
			call = "timeout"
			timeout := time.Duration(pick(1e3, 1e6, 1e9, 1e10) * (1 + rnd.Float64()))
			always := rnd.IntN(2) == 0
			if d := timeout - over; -2 <= d && d <= 2 {
				continue
			}
			waited, err = l.ConsumeTimeout(ctx, units, timeout, always)
			switch {
			case units < 0:
				m.charge(units)
			case over < timeout:
				want = over
				m.now = new(big.Rat).Add(m.now, inSeconds(want))
				m.charge(units)
			default:
				want = timeout
				m.now = new(big.Rat).Add(m.now, inSeconds(want))
				if always {
					m.charge(units)
				}
				if !errors.Is(err, limiter.ErrTimeout) {
					t.Fatalf("call %d: %v", i, err)
				}
				err = nil
			}
		case 7:
			call = "try"
			var ok bool
			ok, err = l.TryConsume(ctx, units)
			if 0 < over && over <= 2 {
				return // forgiven, but what follows differs
			}
			if ok != (over == 0 || units < 0) {
				t.Fatalf("call %d: try %v = %v, and owed are %v", i, units, ok, over)
			}
			if ok {
				m.charge(units)
			}
		case 8:
			call = "now"
			err = l.ConsumeNow(ctx, units)
			m.charge(units)
		case 9:
			call = "set limit"
			limit := limit()
			err = l.SetLimit(limit)
			m.setLimit(limit)
		case 10:
			call = "set duration"
			d := duration()
			err = l.SetDuration(d)
			m.setDuration(d)
		case 11:
			call = "rate"
			var rate float64
			rate, err = l.CurrentRate(ctx)
			if want := m.rate(); rate-want > 1e-6 || want-rate > 1e-6 {
				t.Fatalf("call %d: the rate is %v, want %v", i, rate, want)
			}
			switch rnd.IntN(4) {
			case 0:
				err = errors.Join(err, l.Reset(ctx))
				m.next = m.now
			case 1:
				err = errors.Join(err, l.Throttled(ctx))
				m.next = latest(m.next, m.now)
			case 2:
				percent := pick(-400, 0, 50, 100, 250)
				err = errors.Join(err, l.SetCurrentRate(ctx, percent))
				m.next = new(big.Rat).Add(m.now, rat(percent/100-1))
			}
		}
		if d := waited - want; err != nil || d < -2 || d > 2 {
			t.Fatalf("call %d: %s %v waited %v, want %v: %v", i, call, units, waited, want, err)
		}
	}
}

// FuzzBound has many concurrent callers, some of which leave early, and counts their granted units: over any time T no
// more than limit·(T+duration) and the last operation, and no less than the limit while they waited.
func FuzzBound(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		synctest.Test(t, func(t *testing.T) { checkBound(t, rand.New(rand.NewPCG(seed, 0))) })
	})
}

func checkBound(t *testing.T, rnd *rand.Rand) {
	limit := []float64{3, 10, 50, 1000}[rnd.IntN(4)]
	o := limiter.Options{Limit: limit, Duration: []time.Duration{0, 1, 100 * time.Millisecond, 5 * time.Second}[rnd.IntN(4)]}
	limiters := []*limiter.Limiter{newLimiter(t, o)}
	if rnd.IntN(2) == 0 {
		o.Storage, o.Key = memory.New(), "table"
		limiters = []*limiter.Limiter{newLimiter(t, o), newLimiter(t, o), newLimiter(t, o)}
	}
	const lasts = 20 * time.Second
	r := record{start: time.Now()}
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 30 {
		l := limiters[i%len(limiters)]
		rnd := rand.New(rand.NewPCG(rnd.Uint64(), 0))
		kind := rnd.IntN(5)
		wg.Go(func() {
			for ctx.Err() == nil {
				units := float64(rnd.IntN(10)) / 2 * max(1, limit/20)
				timeout := time.Duration(1+rnd.IntN(300)) * time.Millisecond
				granted := false
				switch kind {
				case 0:
					_, err := l.Consume(ctx, units)
					granted = err == nil
				case 1:
					_, err := l.ConsumeTimeout(ctx, units, timeout, false)
					granted = err == nil
				case 2:
					short, cancel := context.WithTimeout(ctx, timeout)
					_, err := l.Consume(short, units)
					cancel()
					granted = err == nil
				case 3:
					short, cancel := context.WithCancel(ctx)
					stop := time.AfterFunc(timeout, cancel)
					_, err := l.Consume(short, units)
					stop.Stop()
					cancel()
					granted = err == nil
				case 4:
					granted, _ = l.TryConsume(ctx, units)
				}
				if granted {
					r.add(units)
				}
				if kind == 4 || units == 0 || rnd.IntN(10) == 0 {
					time.Sleep(timeout)
				}
			}
		})
	}
	wg.Wait()
	l := limiters[0]
	in := 0.0
	for i, c := range r.all {
		in += c.units
		if i+1 < len(r.all) && r.all[i+1].at == c.at {
			continue
		}
		last := 0.0 // of those granted at this instant we do not know which was the last
		for j := i; j >= 0 && r.all[j].at == c.at; j-- {
			last = max(last, r.all[j].units)
		}
		sum := in
		for j := range i {
			took := (c.at - r.all[j].at).Seconds()
			if most := limit*(took+l.Duration().Seconds()) + last; sum > most+1e-6 {
				t.Fatalf("%v units in %v s, allowed are %v", sum, took, most)
			}
			sum -= r.all[j].units
		}
	}
	if in < 0.98*limit*lasts.Seconds() {
		t.Errorf("%v units in %v at %v a second", in, lasts, limit)
	}
	if len(limiters) == 1 && testing.Verbose() {
		t.Logf("%v of %v units", in, limit*lasts.Seconds())
	}
}
