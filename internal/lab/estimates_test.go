package lab

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A backlog of messages whose estimates are too high takes about the time of their real costs, within the limit of an entity or
// of three. Messages wait for the capacity that operations in flight give back. An operation that outlasts the interval gives
// nothing back, so its estimate counts.
func TestEstimates(t *testing.T) {
	fixed := func(estimate, real int) func(*rand.Rand) (e, r drip.Costs) {
		return func(*rand.Rand) (e, r drip.Costs) { return drip.Costs{"tokens": estimate}, drip.Costs{"tokens": real} }
	}
	few := func(free, cost int) func(*rand.Rand) (e, r drip.Costs) { // so many of a hundred operations cost nothing in the end
		return func(rnd *rand.Rand) (e, r drip.Costs) {
			if rnd.IntN(100) < free {
				return drip.Costs{"tokens": cost}, drip.Costs{"tokens": 0}
			}
			return drip.Costs{"tokens": cost}, drip.Costs{"tokens": cost}
		}
	}
	around := func(estimate, mean drip.Costs) func(*rand.Rand) (e, r drip.Costs) {
		return func(rnd *rand.Rand) (e, r drip.Costs) {
			r = drip.Costs{}
			for unit, n := range mean {
				r[unit] = 1 + rnd.IntN(2*n)
			}
			return estimate, r
		}
	}
	gathering := drip.Limit{Size: 600, RefreshRate: 1, RefreshInterval: 100 * time.Millisecond, Concurrency: plenty, Windows: []drip.Window{
		{Size: 60_000, RefreshRate: 1, RefreshInterval: time.Millisecond, Unit: "input"},
		{Size: 1500, RefreshRate: 1, RefreshInterval: 40 * time.Millisecond, Unit: "output"},
	}}
	second := drip.Limit{Size: 1000, RefreshInterval: time.Second, Unit: "tokens", Concurrency: plenty}
	for name, c := range map[string]struct {
		limit         drip.Limit
		backlog       int
		operation     time.Duration // the mean
		costs         func(*rand.Rand) (estimate, real drip.Costs)
		time          float64 // of the least that the windows take for the real costs, at most
		postponements float64 // the mean, at most
	}{
		"exact":             {second, 4000, 200 * time.Millisecond, fixed(10, 10), 1, 1},
		"double":            {second, 4000, 200 * time.Millisecond, fixed(20, 10), 1.1, 2.1},
		"fivefold":          {second, 4000, 50 * time.Millisecond, fixed(50, 10), 1.25, 2.8},
		"slow":              {second, 4000, 5 * time.Second, fixed(50, 10), 5, 2.3},
		"within minute":     {drip.Limit{Size: 60_000, RefreshInterval: time.Minute, Unit: "tokens", Concurrency: plenty}, 4000, 2 * time.Second, fixed(200, 60), 1.15, 2},
		"some cost nothing": {drip.Limit{Size: 60, RefreshInterval: time.Minute, Unit: "tokens", Concurrency: plenty}, 2000, 200 * time.Millisecond, few(70, 1), 1.3, 2},
		"of three":          {drip.Limit{Size: 180, RefreshInterval: time.Minute, Unit: "tokens", Concurrency: plenty}, 2000, 200 * time.Millisecond, few(70, 3), 1.3, 2},
		"model": {
			drip.Limit{Size: 500, RefreshInterval: time.Minute, Concurrency: plenty, Windows: []drip.Window{
				{Size: 150_000, RefreshInterval: time.Minute, Unit: "input"}, {Size: 40_000, RefreshInterval: time.Minute, Unit: "output"},
			}}, 2000, 3 * time.Second,
			func(r *rand.Rand) (estimate, real drip.Costs) {
				return drip.Costs{"input": 300, "output": 1000}, drip.Costs{"input": 300, "output": 20 + r.IntN(201)}
			}, 1.45, 2.3,
		},
		"longer than seconds": { // an operation takes what the windows bring in seconds
			gathering, 366, 2 * time.Second, around(drip.Costs{"input": 2000, "output": 250}, drip.Costs{"input": 2000, "output": 50}), 1.2, 2,
		},
		"longer than half a minute": {
			gathering, 366, 500 * time.Millisecond, around(drip.Costs{"input": 2000, "output": 1000}, drip.Costs{"input": 2000, "output": 50}), 1.2, 2,
		},
		"some of many tokens": {
			drip.Limit{Size: 100, RefreshInterval: time.Second, Concurrency: plenty, Windows: []drip.Window{{Size: 10_000, RefreshInterval: time.Second, Unit: "tokens"}}},
			6000, 200 * time.Millisecond,
			func(r *rand.Rand) (estimate, real drip.Costs) {
				n := 10
				if r.IntN(10) == 0 {
					n = 900
				}
				return drip.Costs{"tokens": n}, drip.Costs{"tokens": n}
			}, 1.15, 1.1,
		},
	} {
		for _, shared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/shared %v", name, shared), func(t *testing.T) {
				for seed := range uint64(3) {
					r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), operation: Exponential(c.operation), costs: c.costs}
					r.play(c.limit, shared, 1000, c.backlog)
					least := time.Duration(0)
					for _, w := range append([]drip.Window{{
						Size: c.limit.Size, RefreshRate: c.limit.RefreshRate, RefreshInterval: c.limit.RefreshInterval, Unit: c.limit.Unit,
					}}, c.limit.Windows...) {
						least = max(least, w.RefreshInterval*time.Duration(r.used[w.Unit])/time.Duration(cmp.Or(w.RefreshRate, w.Size)))
					}
					took := float64(r.last-backlogAt) / float64(least.Milliseconds())
					tell(t, took > c.time || r.asked > c.postponements,
						"seed %d: %.2f of the least time, %.2f postponements; want at most %.2f and %.2f", seed, took, r.asked, c.time, c.postponements)
				}
			})
		}
	}
}

// The calendar of a shared limit books as much as operations cost, if that is more than their estimates.
func TestLowEstimates(t *testing.T) {
	limit := drip.Limit{Size: 1000, RefreshInterval: time.Second, Unit: "tokens", Concurrency: plenty}
	for _, most := range []int{3, 10, 20} { // instead of one
		r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(1, 0)), operation: Exponential(200 * time.Millisecond)}
		r.costs = func(r *rand.Rand) (estimate, real drip.Costs) {
			return drip.Costs{"tokens": 1}, drip.Costs{"tokens": 1 + r.IntN(most)}
		}
		r.play(limit, true, 1000, 4000)
		took := float64(r.last-backlogAt) / float64(r.used["tokens"])
		tell(t, took > 1.1 || r.asked > 1.2, "up to %d: %.2f of the least time, %.2f postponements", most, took, r.asked)
	}
}

// Operations cost half or a fifth of their estimates, as calls of a language model do. Those that find no room ask again one after the other,
// although the larger ones are further apart. While many of them wait, newcomers come after them.
func TestEstimatesInAnOverload(t *testing.T) {
	for _, c := range []struct {
		estimate, part int // on average; its part that is used, in percent
		arrivals       Arrivals
		waits          float64 // p99, times the best
		postponements  float64
	}{
		{1024, 50, Poisson(0.3, 0, 2*time.Hour), 2.8, 1.8}, {100, 50, Poisson(3.1, 0, 20*time.Minute), 2.4, 1.8},
		{1024, 50, Burst(1000, 0), 1.08, 2.9}, {1024, 20, Burst(1000, 0), 1.08, 2.9},
	} {
		s := Scenario{
			Arrivals: c.arrivals, Operation: Uniform(2*time.Second, 10*time.Second), Late: Uniform(0, 20*time.Millisecond),
			Options: drip.Options{Size: 8000, RefreshRate: 133, RefreshInterval: time.Second, Concurrency: plenty},
			Costs: func(r *rand.Rand) (int, int) {
				estimate := c.estimate/2 + r.IntN(c.estimate)
				return estimate, estimate * c.part / 100 * (50 + r.IntN(100)) / 100
			},
		}
		for seed := range uint64(3) {
			got, best := beside(t, s, seed)
			waits := got.Wait.P99.Seconds() / best.Wait.P99.Seconds()
			tell(t, waits > c.waits || got.Redeliveries.Mean > c.postponements || got.Redeliveries.Max > 15,
				"%d %% of %d: 99 %% wait at most %.2f times as long as at best, with %.2f postponements, at most %d; want %.2f, %.2f and 15",
				c.part, c.estimate, waits, got.Redeliveries.Mean, got.Redeliveries.Max, c.waits, c.postponements)
		}
	}
}

// Slots follow the average cost also where it is a few units, and estimates are a little higher.
func TestEstimatesOfFewUnits(t *testing.T) {
	for _, c := range []struct {
		estimate, least, others int // one in so many operations costs the estimate, the others the least
		size                    int
		interval                time.Duration
	}{{2, 1, 20, 10, time.Second}, {3, 2, 10, 10, time.Second}, {5, 2, 30, 10, time.Second}} {
		nearBest(t, Scenario{
			Name: fmt.Sprintf("%+v", c), Arrivals: Burst(300, 0), Operation: Fixed(50 * time.Millisecond), Late: Uniform(0, 20*time.Millisecond),
			Options: drip.Options{Size: c.size, RefreshRate: 1, RefreshInterval: c.interval, Concurrency: plenty},
			Costs: func(r *rand.Rand) (int, int) {
				if r.IntN(c.others) == 0 {
					return c.estimate, c.estimate
				}
				return c.estimate, c.least
			},
		}, 1.2, anyNumber)
	}
}

// An operation needs its whole estimate when it is due, also if it gives back most of it at once. So no more slots lie in an interval
// than operations that the limit lets run there.
func TestEstimatesSettledAtOnce(t *testing.T) {
	for _, o := range []drip.Options{
		{Size: 10, RefreshRate: 10},
		{Size: 100, RefreshRate: 100, RefreshInterval: 10 * time.Second},
		{Size: 60, RefreshRate: 60, RefreshInterval: time.Minute},
	} {
		o.Concurrency = plenty
		got := mustRun(t, Scenario{
			Name: "at once", Options: o, Arrivals: Burst(5*o.Size, 300*time.Millisecond), Operation: Fixed(50 * time.Millisecond), Late: Uniform(0, 20*time.Millisecond), Hold: -1,
			Costs: func(*rand.Rand) (int, int) { return o.Size / 2, 1 },
		}, 1, around(func(l admit) Limiter { return settled{l} })).Results[0]
		most := 11 * cmp.Or(o.RefreshInterval, time.Second)
		tell(t, got.Redeliveries.Mean > 1.05 || got.Redeliveries.Max > 3 || got.Makespan > most,
			"%d: %v, %.2f postponements, at most %d; want %v, 1.05 and 3", o.Size, got.Makespan, got.Redeliveries.Mean, got.Redeliveries.Max, most)
	}
}

// settled settles operations when they begin.
type settled struct{ admit }

func (l settled) Admit(entity string, r drip.Request) (drip.Admission, error) {
	a, err := l.admit.Admit(entity, r)
	if err == nil && a.Delay == 0 {
		err = l.admit.Settle(entity, a, 1, nil)
	}
	return a, err
}

func (settled) Settle(string, drip.Admission, int, drip.Costs) error { return nil }

// A large operation has the capacity that gathers for it. Small newcomers wait in the line behind it.
func TestLargeBehindSmall(t *testing.T) {
	for load, most := range map[float64]time.Duration{0.9: time.Minute, 1.1: 7 * time.Minute} {
		perSecond := load / (9.0/20 + 1)
		got, _ := beside(t, Scenario{
			Name: "large", Arrivals: Poisson(perSecond, 0, time.Duration(2000/perSecond*float64(time.Second))), Operation: Fixed(50 * time.Millisecond),
			Late: Uniform(0, 20*time.Millisecond), Options: drip.Options{Size: 10, RefreshRate: 1, Concurrency: plenty},
			Costs: func(r *rand.Rand) (int, int) {
				if r.IntN(20) == 0 {
					return 10, 10
				}
				return 1, 1
			},
		}, 1)
		tell(t, got.Wait.Max > most || got.Redeliveries.Max > 3,
			"a load of %.1f: the longest wait is %v, with at most %d postponements; want %v and 3", load, got.Wait.Max, got.Redeliveries.Max, most)
	}
}

// One large operation that has run, or whose ticket is lost, holds up no newcomers afterwards.
func TestOneLargeOperation(t *testing.T) {
	for _, lost := range []float64{0.3, 1} {
		first := true
		got, best := beside(t, Scenario{
			Name: "one large", Arrivals: Mixed(Burst(1400, 0), Poisson(7, 0, 1800*time.Second)), Operation: Fixed(50 * time.Millisecond), Late: Uniform(0, 20*time.Millisecond),
			Options: drip.Options{Size: 1000, RefreshRate: 10, Concurrency: plenty}, LostTickets: lost,
			Costs: func(*rand.Rand) (int, int) {
				if first {
					first = false
					return 900, 900
				}
				return 1, 1
			},
		}, 1)
		tell(t, got.Wait.P99 > best.Wait.P99+20*time.Second || got.Wait.Mean > best.Wait.Mean+2*time.Second, "%.0f %% lost: waits of %v on average and %v, at best %v and %v", 100*lost, got.Wait.Mean, got.Wait.P99, best.Wait.Mean, best.Wait.P99)
	}
}

// No operation of a burst was measured when its messages get their first answers: the window is empty, or the provider refuses the first
// one. They do not book slots by estimates that are eight times too high, but ask again when the first ones have ended.
func TestEstimatesBeforeTheFirstOperation(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, c := range []struct {
			empty  bool
			closed time.Duration
		}{{empty: true}, {closed: 30 * time.Second}, {true, 30 * time.Second}} {
			r := estimatedRun{
				t: t, rnd: rand.New(rand.NewPCG(1, 0)), operation: Uniform(2*time.Second, 8*time.Second), empty: c.empty, closed: c.closed,
				costs: func(*rand.Rand) (estimate, real drip.Costs) {
					return drip.Costs{"tokens": 4000}, drip.Costs{"tokens": 500}
				},
			}
			r.play(drip.Limit{Size: 8000, RefreshRate: 133, RefreshInterval: time.Second, Unit: "tokens", Concurrency: plenty}, shared, 0, 300)
			took := float64(r.last-backlogAt) / float64(300*500*1000/133)
			tell(t, took > 1.9 || r.asked > 7.5, "shared %v, empty %v, closed for %v: %.2f of the least time, %.2f postponements; want at most 1.9 and 7.5",
				shared, c.empty, c.closed, took, r.asked)
		}
	}
}

// Estimates of a first burst are too high, and by them it takes less than a minute. Its later messages ask again when the first operations
// have ended, and so they do with exact estimates.
func TestEstimatesOfAFirstBurst(t *testing.T) {
	for _, c := range []struct {
		limit                 drip.Limit
		estimate, least, most int // a cost is between least and most
		backlog               int
		operation             time.Duration
		empty                 bool
		ends                  time.Duration // at most
		postponements         float64
	}{
		{drip.Limit{Size: 10_000, RefreshInterval: time.Second}, 330, 40, 125, 1000, 170 * time.Millisecond, true, 27 * time.Second, 2},
		{drip.Limit{Size: 4000, RefreshRate: 40, RefreshInterval: 100 * time.Millisecond}, 80, 4, 12, 330, 500 * time.Millisecond, false, 23 * time.Second, 1.7},
		{drip.Limit{Size: 15_000, RefreshInterval: 10 * time.Second}, 500, 60, 190, 200, 1700 * time.Millisecond, false, 33 * time.Second, 2.1},
		// Exact estimates.
		{drip.Limit{Size: 4000, RefreshRate: 40, RefreshInterval: 100 * time.Millisecond}, 80, 80, 80, 330, 500 * time.Millisecond, false, 57 * time.Second, 1.7},
		{drip.Limit{Size: 100, RefreshRate: 9, RefreshInterval: time.Second}, 92, 92, 92, 50, 50 * time.Millisecond, false, 10 * time.Minute, 2.6},
	} {
		for _, shared := range []bool{false, true} {
			r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(1, 0)), operation: Uniform(c.operation/2, c.operation*3/2), empty: c.empty}
			r.costs = func(r *rand.Rand) (estimate, real drip.Costs) {
				return drip.Costs{"tokens": c.estimate}, drip.Costs{"tokens": c.least + r.IntN(c.most-c.least+1)}
			}
			c.limit.Unit, c.limit.Concurrency = "tokens", plenty
			r.play(c.limit, shared, 0, c.backlog)
			took := milliseconds(r.last - backlogAt)
			tell(t, took > c.ends || r.asked > c.postponements, "%d of %d to %d instead of %d, shared %v: %v, %.2f postponements; want at most %v and %.1f",
				c.backlog, c.least, c.most, c.estimate, shared, took, r.asked, c.ends, c.postponements)
		}
	}
}

// A shared limit is nearly as short as the own ones, and estimates are two to ten times too high. Messages that the shared limit holds past
// their turns in an own window take no turns from the others. Lines and shares count what operations cost.
func TestEstimatesInTwoShortLimits(t *testing.T) {
	for _, c := range []struct {
		entities, own, app int // own and app are sizes
		parts              int // of them that an interval brings: 1 is all
		interval           time.Duration
		estimate, part     int // of an estimate, in percent
		operation          time.Duration
		known              int
		postponements      float64
	}{
		{1, 800, 1000, 1, time.Minute, 26, 25, 2 * time.Second, 0, 3.8}, {1, 80_000, 100_000, 1, 10 * time.Second, 2666, 25, 2 * time.Second, 0, 3.8},
		{1, 1200, 1000, 50, 200 * time.Millisecond, 62, 10, 500 * time.Millisecond, 0, 2.9},
		{1, 2000, 1000, 50, 200 * time.Millisecond, 62, 10, 500 * time.Millisecond, 0, 2.9},
		{3, 40_000, 100_000, 1, time.Minute, 1333, 50, 2 * time.Second, 20, 2.3},
	} {
		r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(1, 0)), operation: Uniform(c.operation/2, c.operation*3/2), entities: c.entities}
		r.costs = func(r *rand.Rand) (estimate, real drip.Costs) {
			return drip.Costs{"tokens": c.estimate}, drip.Costs{"tokens": c.estimate * c.part * (50 + r.IntN(100)) / 10_000}
		}
		r.own = []drip.Window{{Size: c.own, RefreshRate: c.own / c.parts, RefreshInterval: c.interval, Unit: "tokens"}}
		r.play(drip.Limit{Size: c.app, RefreshRate: c.app / c.parts, RefreshInterval: c.interval, Unit: "tokens", Concurrency: plenty}, true, c.known, 3000)
		took := float64(r.last-backlogAt) / float64(c.interval.Milliseconds()) * float64(min(c.entities*c.own, c.app)/c.parts) / float64(r.used["tokens"])
		tell(t, took > 1.5 || r.asked > c.postponements, "%d within %d with %d each, %v bring a part of %d: %.2f of the least time, %.2f postponements; want at most 1.5 and %.1f",
			c.estimate, c.entities, c.own, c.interval, c.parts, took, r.asked, c.postponements)
	}
}

// A long window gets back what operations leave. So a backlog for which it has room does not wait for its refresh, although
// estimates would last for hours or days. The operations outlast the interval of a second, which gets little back. In half of the
// runs no cost is known at first.
func TestEstimatesInLongWindows(t *testing.T) {
	for _, long := range []drip.Window{
		{Size: 400_000, RefreshInterval: time.Hour, Unit: "tokens"},
		{Size: 400_000, RefreshInterval: 24 * time.Hour, Unit: "tokens"},
		{Size: 400_000, RefreshRate: 50_000, RefreshInterval: time.Hour, Unit: "tokens"},
	} {
		limit := drip.Limit{Size: 20_000, RefreshInterval: time.Second, Unit: "tokens", Concurrency: plenty, Windows: []drip.Window{long}}
		for _, shared := range []bool{false, true} {
			for _, known := range []int{0, 100} {
				r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(1, 0)), operation: Exponential(3 * time.Second)}
				r.costs = func(r *rand.Rand) (estimate, real drip.Costs) {
					return drip.Costs{"tokens": 800}, drip.Costs{"tokens": 10 + r.IntN(161)}
				}
				r.play(limit, shared, known, 2000)
				// Most of an estimate counts in its second, so that the backlog takes up to 80 s.
				took := milliseconds(r.last - backlogAt)
				tell(t, took > 90*time.Second || r.asked > 2.5, "%d each %v, shared %v, %d known: %v, %.2f postponements", long.Size, long.RefreshInterval, shared, known, took, r.asked)
			}
		}
	}
}

// The entity's own limit delays the first operations within a shared one by a second. Messages with far slots wait for them, too.
func TestEstimatesBehindAnOwnLimit(t *testing.T) {
	got := mustRunShared(t, SharedScenario{
		Options: within(2, 2, drip.Limit{
			Size: 50, RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 6000, RefreshInterval: time.Minute, Unit: "output"}},
		}),
		Entities: entities(1), Operation: Exponential(time.Second), Hold: 5 * time.Second, Unmeasured: true,
		Units: map[string]Costs{"output": func(r *rand.Rand) (int, int) { return 500, 1 + r.IntN(200) }},
		Messages: changed(sent(shuffled, 400), func(_ *rand.Rand, i int, m *SharedMessage) {
			if i < 2 { // they use up the shop's first second
				m.Within = []string{}
			}
		}),
	}, 1)
	tell(t, got.Makespan > 10*time.Minute || got.Redeliveries.Mean > 2.5, "%v, %.2f postponements; want 10m and 2.5", got.Makespan, got.Redeliveries.Mean)
}

// Operations whose costs nobody settles leave nothing to wait for: messages with far slots ask a few times, not all the while.
func TestNeverSettled(t *testing.T) {
	limit := drip.Limit{Size: 10, RefreshInterval: time.Second, Unit: "tokens", Concurrency: plenty, Windows: []drip.Window{{Size: 30_000, RefreshInterval: 24 * time.Hour, Unit: "tokens"}}}
	for _, shared := range []bool{false, true} {
		r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(1, 0)), operation: Fixed(0), abandons: true}
		r.costs = func(*rand.Rand) (estimate, real drip.Costs) {
			return drip.Costs{"tokens": 10}, drip.Costs{"tokens": 10}
		}
		r.play(limit, shared, 0, 4000)
		tell(t, r.asked > 5.6, "shared %v: %.2f postponements", shared, r.asked)
	}
}

// A backlog of random costs and estimates within two random windows takes about as long as with exact estimates. If its
// estimates occupy the short window for longer while operations run, it takes that time. If no cost is known at first, it takes
// about a third longer.
func TestRandomEstimates(t *testing.T) {
	const loads = 120
	sum := 0.0
	for seed := range uint64(loads) {
		rnd := rand.New(rand.NewPCG(400+seed, 79))
		pick := func(of ...time.Duration) time.Duration { return of[rnd.IntN(len(of))] }
		n, estimate, least := 300+rnd.IntN(2000), 100*(1+rnd.IntN(10)), 1+rnd.IntN(50)
		most, asEstimated := least+rnd.IntN(50), rnd.IntN(20) // of a hundred operations
		operation := pick(20*time.Millisecond, 200*time.Millisecond, time.Second, 4*time.Second)
		short := drip.Window{RefreshInterval: pick(time.Second, 10*time.Second, time.Minute), Unit: "tokens"}
		long := drip.Window{RefreshInterval: pick(time.Hour, 24*time.Hour), Unit: "tokens"}
		all := n * (estimate*asEstimated + (least+most)/2*(100-asEstimated)) / 100
		short.Size = max(all/(5+rnd.IntN(60)), estimate*(2+rnd.IntN(20)))
		long.Size = all + all/(1+rnd.IntN(3)) + estimate*(100+n/10)
		shared := rnd.IntN(2) == 0
		costs := func(r *rand.Rand) (drip.Costs, drip.Costs) {
			cost := least + r.IntN(most-least+1)
			if r.IntN(100) < asEstimated {
				cost = estimate
			}
			return drip.Costs{"tokens": estimate}, drip.Costs{"tokens": cost}
		}
		exact := func(r *rand.Rand) (drip.Costs, drip.Costs) {
			_, cost := costs(r)
			return cost, cost
		}
		play := func(costs func(*rand.Rand) (drip.Costs, drip.Costs), known int) float64 {
			limit := drip.Limit{Size: short.Size, RefreshInterval: short.RefreshInterval, Unit: short.Unit, Concurrency: plenty, Windows: []drip.Window{long}}
			limit.Windows[0].Size += known * all / n
			r := estimatedRun{t: t, rnd: rand.New(rand.NewPCG(seed, 0)), operation: Exponential(operation), costs: costs}
			r.play(limit, shared, known, n)
			return float64(r.last-backlogAt) / 1000
		}
		occupied := float64(n*estimate)/float64(short.Size)*min(operation, short.RefreshInterval).Seconds() + short.RefreshInterval.Seconds()
		bound := max(5, play(exact, 200), occupied)
		known, unknown := play(costs, 200), play(costs, 0)
		tell(t, known > 2.5*bound || unknown > 6*bound, "%d of %d to %d instead of %d within %d each %v and %d each %v, shared %v: %.2f of the bound, %.2f if no cost was known",
			n, least, most, estimate, short.Size, short.RefreshInterval, long.Size, long.RefreshInterval, shared, known/bound, unknown/bound)
		sum += unknown / bound
	}
	if mean := sum / loads; mean > 1.4 {
		t.Errorf("if no cost was known, the loads take %.2f of the bound on average, want at most 1.4", mean)
	}
}

// backlogAt is when the backlog comes, in ms since 1970.
var backlogAt = since(time.Hour)

// estimatedRun plays messages whose estimates differ from their costs.
type estimatedRun struct {
	t         *testing.T
	rnd       *rand.Rand
	operation Distribution
	costs     func(*rand.Rand) (estimate, real drip.Costs)
	abandons  bool          // no operation is settled
	empty     bool          // the windows are empty when the backlog arrives
	closed    time.Duration // for which the first operation closes the limit
	own       []drip.Window // of each entity within a shared limit
	entities  int           // within a shared limit; 0: three

	used  map[string]int // by the backlog, in each unit
	asked float64        // postponements of a message of the backlog
	last  int64          // the last start of the backlog
}

// play sends messages one after the other, so that costs are known, and then a backlog at once. They come back up to 20 ms late.
func (r *estimatedRun) play(limit drip.Limit, shared bool, known, backlog int) {
	type cost struct {
		real      drip.Costs
		operation int64
	}
	costs := map[*buckettest.Call]cost{}
	load := buckettest.Load{
		Options: drip.Options{
			Size: limit.Size, RefreshRate: cmp.Or(limit.RefreshRate, limit.Size), RefreshInterval: limit.RefreshInterval, Unit: limit.Unit, Windows: limit.Windows, Concurrency: plenty,
		},
		Late: func() int64 { return r.rnd.Int64N(21) },
		Runs: func(c *buckettest.Call, now int64) int64 {
			if r.abandons {
				return math.MaxInt64
			}
			return now + costs[c].operation
		},
		Settles: func(c *buckettest.Call, _ int64) drip.Costs { return costs[c].real },
		End:     math.MaxInt64,
	}
	names, limited := []string{"one"}, "one"
	if shared {
		load.Options, limited = within(1<<30, 1<<30, limit), drip.SharedID("app")
		load.Options.Windows, names = r.own, []string{"one", "two", "three"}[:cmp.Or(r.entities, 3)]
	}
	if r.empty {
		load.Options.Start = time.UnixMilli(backlogAt)
	}
	send := func(at int64, i int) {
		estimate, real := r.costs(r.rnd)
		c := &buckettest.Call{At: at, Entity: names[i%len(names)], Request: drip.Request{Costs: estimate}}
		load.Calls, costs[c] = append(load.Calls, c), cost{real, r.operation(r.rnd).Milliseconds()}
	}
	for i := range known {
		send(backlogAt-int64(known-i)*3000, i)
	}
	for i := range backlog {
		send(backlogAt+int64(i)/10, i)
	}
	var now int64
	load.Options.Clock = func() time.Time { return time.UnixMilli(now) }
	b := buckettest.New(r.t, load.Options)
	load.Answer = func(_ *buckettest.Call, a drip.Admission, _ int64) {
		if a.Delay == 0 && r.closed > 0 {
			if err := b.Throttled(context.Background(), limited, r.closed); err != nil {
				r.t.Error(err)
			}
			r.closed = 0
		}
	}
	load.PlayOn(r.t, b, func(ms int64) { now = ms })
	r.used = map[string]int{"": backlog}
	for _, c := range load.Calls[known:] {
		for unit, n := range costs[c].real {
			r.used[unit] += n
		}
	}
	got := buckettest.OutcomeOf(load.Calls[known:])
	if r.asked, r.last = got.Mean, got.Last; got.Ran < backlog {
		r.t.Fatalf("%d of %d ran", got.Ran, backlog)
	}
}

// Small operations that cost many times their estimate say little about the large ones: what the tickets will take follows
// from the sums.
func TestSharedUnevenEstimates(t *testing.T) {
	for seed := range uint64(5) {
		got := mustRunShared(t, SharedScenario{
			Entities: entities(10), Operation: Exponential(2 * time.Second), Units: map[string]Costs{"tokens": UniformCost(1, 500, 500)}, Unmeasured: true,
			Options: drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: plenty, Shared: map[string]drip.Limit{
				"app": {Windows: []drip.Window{{Size: 100_000, RefreshInterval: time.Minute, Unit: "tokens"}}},
			}},
			Messages: changed(anybody(2000, 10), func(r *rand.Rand, _ int, m *SharedMessage) { m.At = time.Duration(r.Int64N(int64(3 * time.Minute))) }),
		}, seed).Report.Results
		admit, best := got[0], got[1]
		if admit.OverLimit > 0 || admit.Done < admit.Messages || admit.Makespan > best.Makespan+30*time.Second {
			t.Errorf("seed %d: %d over the limit, %d messages left, %v, at best %v", seed, admit.OverLimit, admit.Messages-admit.Done, admit.Makespan, best.Makespan)
		}
	}
}

// While the estimates of operations in flight take up a window, messages ask a few times for what they give back.
func TestEstimatesInFlight(t *testing.T) {
	output := func(size int) drip.Window {
		return drip.Window{Size: size, RefreshRate: 1, RefreshInterval: time.Minute / time.Duration(size), Unit: "output"}
	}
	for _, c := range []struct {
		window        drip.Window
		estimate      int // of ten times the cost
		perSecond     float64
		postponements float64 // the mean, at most
	}{
		{output(20_000), 5000, 0.5, 4},
		{output(60_000), 2500, 20, 3},
		{output(10_000), 2000, 100, 5},
	} {
		got, _ := nearBest(t, Scenario{
			Name: fmt.Sprintf("%d of %d", c.estimate, c.window.Size), Hold: -1, Late: Uniform(0, 20*time.Millisecond),
			Options:  drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: plenty, Windows: []drip.Window{c.window}, Lease: time.Minute},
			Arrivals: Poisson(c.perSecond, 0, time.Duration(800/c.perSecond*float64(time.Second))), Operation: AtMost(40*time.Second, Exponential(10*time.Second)),
			Units: map[string]Costs{"output": func(r *rand.Rand) (int, int) { return c.estimate, 1 + r.IntN(c.estimate/5) }},
		}, anyNumber, c.postponements)
		least := time.Duration(float64(got.Messages*c.estimate) / float64(c.window.Size) * float64(10*time.Second))
		if got.Makespan > least*5/4+time.Minute {
			t.Errorf("%d of %d: %v; %v if all estimates are in use", c.estimate, c.window.Size, got.Makespan, least)
		}
	}
}

// The estimates of one burst are known at the next one, hours later.
func TestEstimatesOfTheBurstBefore(t *testing.T) {
	for _, shared := range []bool{false, true} {
		for _, off := range []int{4, 10} {
			for _, best := range []int{5, 20, 60} { // s
				limit := drip.Limit{Size: 1000, RefreshInterval: time.Second, Concurrency: plenty}
				o := within(plenty, plenty, limit)
				if !shared {
					o = drip.Options{Size: limit.Size, RefreshRate: limit.Size, RefreshInterval: limit.RefreshInterval, Concurrency: plenty}
				}
				got := mustRunShared(t, SharedScenario{
					Options: o, Entities: entities(1), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
					Costs: func(*rand.Rand) (estimate, actual int) { return 20 * off, 20 },
					Messages: func(*rand.Rand) (m []SharedMessage) {
						for _, at := range []time.Duration{0, 8 * time.Hour} {
							m = append(m, slices.Repeat([]SharedMessage{{At: at}}, 50*best)...)
						}
						return m
					},
				}, 1)
				took := got.Makespan - 8*time.Hour
				tell(t, took > time.Duration(best*18/10+1)*time.Second, "shared %v, estimates %d times too high: %v, at best %d s; %.2f postponements", shared, off, took, best, got.Redeliveries.Mean)
			}
		}
	}
}
