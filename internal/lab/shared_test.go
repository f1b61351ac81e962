package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A limit that has gathered enough for all messages delays none, although it brings less than their own limits together.
func TestSharedGathered(t *testing.T) {
	nearFluid(t, SharedScenario{
		Name: "800 within 1,000 that have gathered", Options: within(2, 2, drip.Limit{Size: 1000, RefreshRate: 5}), Entities: entities(100),
		Operation: Fixed(50 * time.Millisecond), Messages: sent(shuffled, times(100, 8)...),
	}, 1.05, 0.8)
}

// mustRunShared plays a scenario. Its consumers hold no messages: they would hide some of the postponements.
func mustRunShared(t *testing.T, s SharedScenario, seed uint64) SharedResult {
	t.Helper()
	s.Hold = cmp.Or(s.Hold, -1)
	result, err := RunShared(s, seed)
	ok(t, err)
	return result
}

// nearFluid plays a shared scenario. No call is over a limit, and all messages run: within so many times the optimum's time, with so
// many postponements on average.
func nearFluid(t *testing.T, s SharedScenario, times, postponements float64) SharedResult {
	t.Helper()
	got := mustRunShared(t, s, 1)
	took := ratio(got.Makespan, got.Fluid)
	tell(t, got.OverLimit > 0 || got.Done < got.Messages || took > times || got.Redeliveries.Mean > postponements,
		"%s: %d over the limit, %d messages left, %v, %.3f times the optimum; %.2f postponements, at most %d; want at most %.2f times and %.2f",
		s.Name, got.OverLimit, got.Messages-got.Done, got.Makespan, took, got.Redeliveries.Mean, got.Redeliveries.Max, times, postponements)
	return got
}

// goals are the values that a scenario has to reach. A zero field has the value for all scenarios.
type goals struct {
	mean     float64 // postponements a message
	p99      int
	use      float64
	makespan float64 // of the optimum's
	watched  float64 // the p99 of the waits, of the optimum's
	wait     time.Duration
	urgent   time.Duration
	jain     float64
	weights  float64
}

func (g goals) orOf(all goals) goals {
	return goals{
		cmp.Or(g.mean, all.mean), cmp.Or(g.p99, all.p99), cmp.Or(g.use, all.use), cmp.Or(g.makespan, all.makespan), cmp.Or(g.watched, all.watched),
		cmp.Or(g.wait, all.wait), cmp.Or(g.urgent, all.urgent), cmp.Or(g.jain, all.jain), cmp.Or(g.weights, all.weights),
	}
}

// Each scenario reaches its goals with each seed, and no provider refuses a call. So it does if all messages come back exactly
// when they are due, those with the earliest slots first.
func TestSharedScenarios(t *testing.T) {
	all := goals{mean: 1.6, p99: 5, use: 0.98, makespan: 1.08, urgent: 1500 * time.Millisecond, jain: 0.95, weights: 0.1}
	own := map[string]goals{
		"shops-by-shop": {mean: 1.7, makespan: 1.11}, // the last shop has a few messages left, and its own 2/s
		"shops-100ms":   {makespan: 1.1},
		"doubled-100ms": {use: 0.97},
		"big":           {wait: 2 * time.Second},
		"two-big":       {wait: 2 * time.Second, jain: 0.92},
		"zipf":          {watched: 1.6, jain: 0.7}, // the largest keep tickets from the time before the others came
		"zipf-by-shop":  {mean: 2.2, watched: 1.6, jain: 0.7},
		"endpoints":     {use: 0.96, watched: 1.1},
		"endpoints-own": {use: 0.91, makespan: 1.1, watched: 1.12},
		"outage":        {mean: 2.5, use: 0.97},
		"five-at-once":  {mean: 2.2, p99: 4, use: 0.86, makespan: 1.1, jain: 0.85},
		"doubling":      {mean: 1.75, watched: 1.13},
	}
	for _, s := range SharedScenarios() {
		onTime := s
		onTime.Late = Fixed(0)
		for name, s := range map[string]SharedScenario{s.Name: s, s.Name + " on time": onTime} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s.Hold = 5 * time.Second
				for seed := range uint64(3) {
					got := mustRunShared(t, s, seed)
					own[s.Name].orOf(all).check(t, seed, &got)
					if got.Messages > 20_000 {
						break
					}
				}
			})
		}
	}
}

// In a shared limit messages that take calls alone pass a backlog that waits for tokens: their wait depends on the calls that are left, not
// on the backlog.
func TestSharedBacklogOfAUnit(t *testing.T) {
	for _, c := range []struct {
		interval        time.Duration
		calls, tokens   int // of the limit
		backlog, others int // messages; one of the backlog takes a call and a token
		same            bool
	}{
		{time.Second, 10, 1, 2000, 300, true}, {time.Second, 10, 1, 2000, 300, false}, {time.Second, 10, 1, 300, 300, false},
		{time.Second, 4, 2, 500, 200, true}, {time.Second, 50, 2, 3000, 2000, false}, {3 * time.Second, 10, 1, 2000, 1000, false},
		{time.Minute, 10, 1, 300, 1000, true}, {time.Minute, 10, 1, 700, 1000, true}, {time.Minute, 10, 1, 2000, 3000, true},
	} {
		begin, rnd := int64(1_800_000_000_000), rand.New(rand.NewPCG(1, 1))
		app := drip.Limit{Size: c.calls, RefreshInterval: c.interval, Windows: []drip.Window{{Size: c.tokens, RefreshInterval: c.interval, Unit: "tokens"}}}
		load := buckettest.Load{
			Options: within(plenty, plenty, app),
			Runs:    func(_ *buckettest.Call, now int64) int64 { return now + 50 }, Late: func() int64 { return rnd.Int64N(20) },
		}
		for n := range c.backlog {
			load.Calls = append(load.Calls, &buckettest.Call{At: begin, Entity: fmt.Sprint("a", n%5), Request: drip.Request{Costs: drip.Costs{"tokens": 1}}})
		}
		for n := range c.others {
			shop := fmt.Sprint("b", n%5)
			if c.same {
				shop = fmt.Sprint("a", n%5)
			}
			load.Calls = append(load.Calls, &buckettest.Call{At: begin + 10*c.interval.Milliseconds(), Entity: shop})
		}
		load.Play(t)
		backlog, others := buckettest.OutcomeOf(load.Calls[:c.backlog]), buckettest.OutcomeOf(load.Calls[c.backlog:])
		best, takes := time.Duration(c.others)*c.interval/time.Duration(c.calls-c.tokens)/2, time.Duration(c.backlog/c.tokens-1)*c.interval
		tell(t, others.Ran != c.others || others.Wait > best*5/4 || backlog.Longest > takes*6/5, "%+v: %d others wait %v on average, at best %v; the backlog takes %v, at best %v",
			c, others.Ran, others.Wait, best, backlog.Longest, takes)
	}
}

// A backlog of one endpoint holds up no other operation, whatever the endpoint counts and whatever its name is.
func TestBacklogOfAnEndpoint(t *testing.T) {
	minute := []drip.Window{{Size: 60, RefreshInterval: time.Minute}}
	for name, c := range map[string]struct {
		own, app, endpoint drip.Limit
		each               int // messages of a shop
	}{
		"calls a second": {drip.Limit{Size: 1}, drip.Limit{Size: 20, RefreshRate: 5}, drip.Limit{Size: 1}, 100},
		"within the app's day": {
			drip.Limit{Size: 2}, drip.Limit{Size: 5, Windows: []drip.Window{{Size: 40_000, RefreshInterval: 24 * time.Hour}}}, drip.Limit{Size: 1}, 50,
		},
		"calls a minute":              {drip.Limit{Size: 40, RefreshRate: 2}, drip.Limit{Size: 5}, drip.Limit{Size: 60, RefreshInterval: time.Minute}, 50},
		"calls a second and a minute": {drip.Limit{Size: 40, RefreshRate: 2}, drip.Limit{Size: 5}, drip.Limit{Size: 5, Windows: minute}, 50},
		"another unit":                {drip.Limit{Size: 40, RefreshRate: 2}, drip.Limit{Size: 5}, drip.Limit{Size: 60, RefreshInterval: time.Minute, Unit: "points"}, 50},
		"operations at once":          {drip.Limit{Size: 3}, drip.Limit{Size: 40}, drip.Limit{Concurrency: 5}, 50},
	} {
		for _, endpoint := range []string{"a", "z"} {
			t.Run(name+" "+endpoint, func(t *testing.T) {
				s := SharedScenario{
					Options: within(c.own.Size, c.own.RefreshRate, c.app), Entities: entities(30), Operation: Fixed(200 * time.Millisecond),
					Late: Uniform(0, 20*time.Millisecond), Hold: 5 * time.Second, Unmeasured: true,
					Messages: changed(sent(shuffled, times(30, c.each)...), func(r *rand.Rand, i int, m *SharedMessage) {
						m.Within = []string{"app", endpoint}
						if i%10 == 0 {
							m.Within, m.Watched, m.At = []string{"app"}, true, m.At+time.Duration(r.IntN(30_000))*time.Millisecond
						}
					}),
				}
				s.Options.WaitForToken = 200 * time.Millisecond
				s.Options.Shared[endpoint] = c.endpoint
				if c.endpoint.Unit != "" {
					s.Units = map[string]Costs{c.endpoint.Unit: FixedCost(1)}
				}
				got := mustRunShared(t, s, 1)
				t.Logf("waits %v, at best %v; %.2f postponements", got.Watched, got.FluidWatched, got.Redeliveries.Mean)
				goals{mean: 1.5, makespan: 1.08, wait: got.FluidWatched.P99 + 4*time.Second}.check(t, 1, &got)
			})
		}
	}
}

func (g goals) check(t *testing.T, seed uint64, got *SharedResult) {
	for _, c := range []struct {
		what        string
		value, most float64
	}{
		{"calls over the limit", float64(got.OverLimit), 0.5},
		{"messages left", float64(got.Messages - got.Done), 0.5},
		{"postponements", got.Redeliveries.Mean, g.mean},
		{"p99 of postponements", float64(got.Redeliveries.P99), float64(g.p99)},
		{"unused", 1 - got.Use, 1 - g.use},
		{"makespan", got.Makespan.Seconds() / got.Fluid.Seconds(), g.makespan},
		{"p99 of waits", got.Watched.P99.Seconds() / got.FluidWatched.P99.Seconds(), g.watched},
		{"p99 of waits in s", got.Watched.P99.Seconds(), g.wait.Seconds()},
		{"p99 of urgent waits in s", got.Urgent.P99.Seconds(), g.urgent.Seconds()},
		{"unfairness", 1 - got.Jain, 1 - g.jain},
		{"error of weights", got.Weights, g.weights},
	} {
		if c.most != 0 && c.value > c.most {
			t.Errorf("seed %d: %s %.3f, want at most %.3f", seed, c.what, c.value, c.most)
		}
	}
}

// A consumer holds messages that come back too early for a shared token. So they are postponed once, and asked about in hand. An
// outage gives them back to the broker.
func TestSharedHold(t *testing.T) {
	s := SharedScenario{
		Options: drip.Options{Shared: map[string]drip.Limit{"one": {Concurrency: 1}}}, Entities: entities(1), Operation: Fixed(300 * time.Millisecond),
		Messages: sent(inTurn, 30),
	}
	without := mustRunShared(t, s, 1)
	s.Hold = 5 * time.Second
	with := mustRunShared(t, s, 1)
	s.Outage = Outage{From: 4 * time.Second, To: 10 * time.Second}
	out := mustRunShared(t, s, 1)
	if without.Redeliveries.Max < 3 || without.HeldAsks > 0 {
		t.Errorf("without: %+v postponements, asked in hand %.2f", without.Redeliveries, without.HeldAsks)
	}
	if with.Redeliveries.Max > 2 || with.HeldAsks == 0 || with.Makespan > without.Makespan {
		t.Errorf("with: %+v postponements, asked in hand %.2f, in %v; %v without", with.Redeliveries, with.HeldAsks, with.Makespan, without.Makespan)
	}
	if out.Done < 30 || out.OverLimit > 0 || out.Makespan > with.Makespan+8*time.Second {
		t.Errorf("with an outage: %d done, %d over the limit, in %v", out.Done, out.OverLimit, out.Makespan)
	}
}

// TestShortIntervals has shops arrive one after the other. A shared limit that drips several times a second divides its
// capacity as fairly as one that brings it at the beginning of the second: no shop has half of its messages left at the end.
func TestShortIntervals(t *testing.T) {
	for _, interval := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond} {
		for _, size := range []int{2, 10, 40} {
			o := app(size, 2, 0)
			rate := int(100 * interval / time.Second)
			o.Shared = map[string]drip.Limit{"app": {Size: rate, RefreshRate: rate, RefreshInterval: interval}}
			nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("each %v, shops (%d, 2/s)", interval, size), Options: o, Entities: entities(60), Operation: Fixed(50 * time.Millisecond),
				Messages: sent(byEntity, times(60, 67)...),
			}, 1.15, 2.35)
		}
	}
}

// A limit that gains more than its Size in an interval brings only its Size.
func TestGainAboveSize(t *testing.T) {
	for _, rate := range []int{5, 16, 500} {
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("5, +%d a second", rate), Options: within(10, 2, drip.Limit{Size: 5, RefreshRate: rate}), Entities: entities(20), Operation: Fixed(50 * time.Millisecond),
			Messages: sent(shuffled, times(20, 40)...),
		}, 1.03, 1.3)
	}
}

// A shared limit whose tokens are short is used as well with intervals of a minute as with intervals of a second. A message
// that finds no token comes back when it has its turn, not in the next interval.
func TestSharedTokensLongInterval(t *testing.T) {
	for _, tokens := range []int{3, 70} {
		for _, interval := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
			for _, n := range []int{1, 3, 30} {
				rate := int(1.4 * float64(tokens) * interval.Seconds())
				o := app(1<<30, 1<<30, 0)
				o.WaitForToken = time.Second
				o.Shared = map[string]drip.Limit{"app": {Size: rate, RefreshInterval: interval, Concurrency: tokens}}
				nearFluid(t, SharedScenario{
					Name: fmt.Sprintf("%d at once, each %v, %d entities", tokens, interval, n), Options: o, Entities: entities(n), Operation: Exponential(time.Second),
					Messages: sent(shuffled, times(n, 30*tokens/n)...),
				}, 1.2, 3.5)
			}
		}
	}
}

// The tokens of a shared limit are in use although few operations end in a second, several entities wait for them, or a rate is nearly as
// scarce.
func TestScarceSharedTokens(t *testing.T) {
	for _, c := range []struct {
		tokens, size, entities int
		operation              time.Duration
		most                   float64 // of the optimum's time
	}{
		{8, 0, 1, 5 * time.Second, 1.05}, {5, 0, 1, 1900 * time.Millisecond, 1.05}, {1, 0, 10, time.Second, 1.15},
		{2, 0, 10, time.Second, 1.1}, {5, 0, 20, 200 * time.Millisecond, 1.08},
		{3, 13, 40, 200 * time.Millisecond, 1.12}, {5, 45, 40, 100 * time.Millisecond, 1.12}, {2, 8, 10, 200 * time.Millisecond, 1.08},
	} {
		nearFluid(t, SharedScenario{
			Name:     fmt.Sprintf("%d tokens, %d/s, %d entities, operations of %v", c.tokens, c.size, c.entities, c.operation),
			Options:  within(plenty, plenty, drip.Limit{Size: c.size, Concurrency: c.tokens}),
			Entities: entities(c.entities), Operation: Fixed(c.operation), Unmeasured: true, Hold: 5 * time.Second,
			Messages: anybody(800, c.entities),
		}, c.most, 3)
	}
}

// Shared tokens are divided fairly, whether one operation or hundreds end in a second, and are in use.
func TestSharedTokens(t *testing.T) {
	values := measures(t, func(seed uint64) SharedResult { return mustRunShared(t, sharedTokens(seed), seed) })
	for name, want := range map[string]struct{ mean, most float64 }{"postponements": {3.6, 10}, "makespan": {1.15, 1.45}, "unfairness": {0.1, 0.6}} {
		sum := 0.0
		for _, v := range values[name] {
			sum += v
		}
		mean, most := sum/float64(len(values[name])), slices.Max(values[name])
		tell(t, mean > want.mean || most > want.most, "%s: %.2f in the mean and at most %.2f, want %v and %v", name, mean, most, want.mean, want.most)
	}
}

// measures plays 60 scenarios, which keep the limits and lose nothing, and returns the values of each measure.
func measures(t *testing.T, play func(seed uint64) SharedResult) map[string][]float64 {
	t.Helper()
	values := map[string][]float64{}
	for seed := range uint64(60) {
		got := play(seed)
		tell(t, got.OverLimit > 0 || got.Done < got.Messages, "%s, %s: %d calls over the limit, %d of %d messages ran, %.0f %% used, %.2f postponements",
			got.Scenario.Name, got.Scenario.About, got.OverLimit, got.Done, got.Messages, 100*got.Use, got.Redeliveries.Mean)
		for name, v := range map[string]float64{
			"postponements": got.Redeliveries.Mean, "p99 of postponements": float64(got.Redeliveries.P99), "makespan": ratio(got.Makespan, got.Fluid),
			"unused": 1 - got.Use, "unfairness": 1 - got.Jain,
		} {
			if !math.IsNaN(v) {
				values[name] = append(values[name], v)
			}
		}
	}
	return values
}

// No entity stops when all of its tickets are lost.
func TestSharedTokensWithoutTickets(t *testing.T) {
	for seed := range uint64(40) {
		s := sharedTokens(seed)
		s.LostTickets = 1
		got, err := RunShared(s, seed)
		if err != nil || got.Done < got.Messages || got.OverLimit > 0 || got.Redeliveries.Mean > 30 {
			t.Errorf("%s: %.1f postponements, %d calls over the limit, %v", s.About, got.Redeliveries.Mean, got.OverLimit, err)
		}
	}
}

// Nor does a shared limit whose entities mark all operations as urgent.
func TestUrgentWithoutTickets(t *testing.T) {
	for _, c := range []struct {
		app      drip.Limit
		messages int
	}{
		{drip.Limit{Size: 1, RefreshInterval: 5 * time.Second}, 800},
		{drip.Limit{Size: 2, RefreshInterval: time.Second}, 3000},
		{drip.Limit{Size: 40, RefreshRate: 2}, 500},
	} {
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%d + %d/%v", c.app.Size, c.app.RefreshRate, c.app.RefreshInterval), Options: within(plenty, plenty, c.app),
			Entities: entities(10), Operation: Fixed(50 * time.Millisecond), LostTickets: 1,
			Messages: urgently(sent(shuffled, times(10, c.messages/10)...)),
		}, 1.05, 2.5)
	}
}

// Callers without tickets use shared tokens: at half of their load few wait for long, and none for ever longer.
func TestSharedTokensAtHalfLoad(t *testing.T) {
	for _, tokens := range []int{1, 2} {
		s := SharedScenario{
			Options:  drip.Options{Size: 1e6, RefreshRate: 1e6, Concurrency: plenty, Shared: map[string]drip.Limit{"app": {Concurrency: tokens}}},
			Entities: entities(1), Operation: Fixed(500 * time.Millisecond), LostTickets: 1,
			Messages: trickle(0, 1, float64(tokens), 0, 1000*time.Second, SharedMessage{Watched: true}),
		}
		got := mustRunShared(t, s, 1)
		tell(t, got.Done < got.Messages || got.Watched.P50 > 2*time.Second || got.Watched.P99 > 20*time.Second,
			"%d tokens: %d of %d messages, waits %v, at best %v", tokens, got.Done, got.Messages, got.Watched, got.FluidWatched)
	}
}

// sharedTokens returns a load on 1 to 100 tokens that 2 to 50 entities share, in a third of the cases with a rate.
func sharedTokens(seed uint64) SharedScenario {
	r := rand.New(rand.NewPCG(seed, 5))
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	tokens, n, mean := pick(1, 2, 5, 20, 100), pick(2, 5, 20, 50), time.Duration(pick(50, 200, 1000, 5000))*time.Millisecond
	own, perSecond := pick(3, 20, 1000), float64(tokens)/mean.Seconds()
	o := app(own, own, 0)
	limit := drip.Limit{Concurrency: tokens}
	if r.IntN(3) == 0 {
		limit.Size = max(1, int(perSecond*[]float64{.7, 1, 2}[r.IntN(3)]))
	}
	o.Shared = map[string]drip.Limit{"app": limit}
	o.WaitForToken = []time.Duration{50 * time.Millisecond, mean}[r.IntN(2)]
	operation := []Distribution{Fixed(mean), AtMost(20*mean, Exponential(mean)), AtMost(20*mean, LogNormal(mean*6/10, 1))}[r.IntN(3)]
	total, how, equal := int(min(6000, max(300, perSecond*float64(pick(30, 100, 200))))), order(r.IntN(3)), r.IntN(3) == 0
	return SharedScenario{
		Name:    fmt.Sprintf("tokens-%d", seed),
		About:   fmt.Sprintf("%d at once of %v, %d entities, %d messages, seed %d", tokens, mean, n, total, seed),
		Options: o, Entities: entities(n), Operation: operation,
		Messages: func(r *rand.Rand) []SharedMessage {
			counts := times(n, total/n+1)
			for i := range counts {
				if !equal {
					counts[i] = total/(i+2)/3 + 1
				}
			}
			return backlog(r, how, begun, 0, counts...)
		},
	}
}

// Random loads keep the limits, lose nothing, and most of them reach the goals.
func TestRandomShared(t *testing.T) {
	values := measures(t, func(seed uint64) SharedResult {
		got, err := RunShared(RandomShared(seed), seed)
		ok(t, err)
		return got
	})
	for name, c := range map[string]struct{ median, p90, most float64 }{
		"postponements": {1.4, 1.9, 2.5}, "p99 of postponements": {4, 5, 8}, "unused": {0.02, 0.15, 0.27}, "makespan": {1.03, 1.15, 1.4}, "unfairness": {0.02, 0.3, 0.65},
	} {
		median, p90, most := quantile(values[name], 0.5), quantile(values[name], 0.9), quantile(values[name], 1)
		tell(t, !(median <= c.median && p90 <= c.p90 && most <= c.most),
			"%s: median %.2f, p90 %.2f, most %.2f; want at most %v, %v, %v", name, median, p90, most, c.median, c.p90, c.most)
	}
}

// The providers find a call over a window, and one too many under way.
func TestScopeCounts(t *testing.T) {
	s := newScope(limit{windows: []window{{size: 3, rate: 2, interval: 1000}}, concurrency: 4}, 50, 1, Begin.UnixMilli())
	one := bill{{"", 1, 1}}
	for _, call := range []struct {
		at     time.Duration
		within bool
	}{{0, true}, {0, true}, {999 * time.Millisecond, true}, {time.Second, true}, {5 * time.Second, false}, {6 * time.Second, false}} {
		if got := s.begin(since(call.at), one); got != call.within {
			t.Errorf("a call at %v is within: %v, want %v", call.at, got, call.within)
		}
	}
	s.underWay = 0
	for n, within := range []bool{true, true, true, false} {
		if got := s.begin(since(time.Minute), one); got != within {
			t.Errorf("call %d after a minute is within: %v, want %v", n, got, within)
		}
	}
}

// A cost above its estimate counts when the call ends, against what the window has then. A call that costs nothing is within a window
// that owes.
func TestScopeCountsCostsAboveEstimates(t *testing.T) {
	for _, c := range []struct {
		cost  int           // of a first call, whose estimate is 1
		ends  time.Duration // its end
		calls []int         // then; the last one is over the limit
	}{{10, 5500 * time.Millisecond, []int{1, 1}}, {100, 50 * time.Millisecond, []int{0, 1}}} {
		s, low := newScope(limit{windows: []window{{size: 10, rate: 10, interval: 1000}}}, 50, 1, Begin.UnixMilli()), bill{{"", 1, c.cost}}
		s.begin(since(0), low)
		s.end(since(c.ends), low)
		for n, cost := range c.calls {
			if got := s.begin(since(c.ends+10*time.Millisecond), bill{{"", cost, cost}}); got != (n == 0) {
				t.Errorf("after a cost of %d, call %d of %d is within: %v", c.cost, n, cost, got)
			}
		}
	}
}

// The optimum divides 4 a second by the weights 1 and 3. When the second is through, the first has all of it.
func TestFluid(t *testing.T) {
	r, err := newSharedRun(&SharedScenario{
		Options:  app(100, 100, 4),
		Entities: []SharedEntity{{}, {Weight: 3}},
		Messages: sentAt(0, inTurn, 0, 60, 60), Operation: Fixed(0),
	}, 1)
	ok(t, err)
	f := newFluid(r) // the second: 3 at once, and 57 at 3 a second; all: 4 at once, and 116 at 4 a second
	if got, want := []float64{f.done[1], f.done[0], f.makespan}, []float64{19.1, 29.1, 29.1}; math.Abs(got[0]-want[0]) > 0.2 || math.Abs(got[1]-want[1]) > 0.2 || got[2] != got[1] {
		t.Errorf("they are through at %v s, want %v", got, want)
	}
}

// As many operations as there are tokens begin at once at best, and each further one when a token comes back.
func TestFluidTokens(t *testing.T) {
	r, err := newSharedRun(&SharedScenario{
		Options:   drip.Options{Shared: map[string]drip.Limit{"two": {Concurrency: 2}}},
		Entities:  []SharedEntity{{}},
		Messages:  joined(sentAt(0, inTurn, 0, 6), sentAt(time.Minute, inTurn, 0, 1)),
		Operation: Fixed(10 * time.Second),
	}, 1)
	ok(t, err)
	newFluid(r)
	for i, most := range []int64{0, 0, 10_000, 10_000, 20_000, 20_000, 60_000} {
		at := r.messages[i].started - r.begin
		if at > most || at < most-5_000 {
			t.Errorf("message %d starts after %d ms, want at most %d and about that", i, at, most)
		}
	}
}

// A scenario that cannot be played is refused, and says why.
func TestSharedErrors(t *testing.T) {
	good := SharedScenarios()[0]
	for want, spoil := range map[string]func(s *SharedScenario){
		"required":  func(s *SharedScenario) { s.Entities = nil },
		"Size":      func(s *SharedScenario) { s.Options.Size = -1 },
		"entity 30": func(s *SharedScenario) { s.Entities = s.Entities[:30]; s.Messages = only(SharedMessage{Entity: 30}) },
		"of \"tokens\"": func(s *SharedScenario) {
			s.Options.Shared = map[string]drip.Limit{"app": {Size: 1, Unit: "tokens"}}
		},
		"no costs of \"points\"": func(s *SharedScenario) {
			s.Entities = slices.Clone(s.Entities)
			s.Entities[2].Limit.Windows = []drip.Window{{Size: 9, RefreshInterval: time.Minute, Unit: "points"}}
		},
		"no such shared": func(s *SharedScenario) { s.Messages = only(SharedMessage{Within: []string{"none"}}) },
		"out of range":   func(s *SharedScenario) { s.Messages = only(SharedMessage{Cost: 41}) },
	} {
		s := good
		spoil(&s)
		if _, err := RunShared(s, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want %q in it", err, want)
		}
	}
}

func only(m SharedMessage) func(*rand.Rand) []SharedMessage {
	return func(*rand.Rand) []SharedMessage { return []SharedMessage{m} }
}

// Capacity gathers for an operation with a cost above an interval's gain: the others do not take it.
func TestLargeSharedCosts(t *testing.T) {
	for _, c := range []struct {
		size, rate, cost, large, small int
		every                          time.Duration // between two small ones
		mean, makespan                 float64
	}{
		{40, 2, 35, 10, 600, 0, 5, 1.1},
		{40, 2, 35, 10, 600, time.Second, 6, 1.1},
		{40, 2, 10, 40, 600, 0, 3.8, 1.1},
		{1000, 50, 900, 20, 10_000, 0, 4.3, 1.1},
		{2000, 10, 2000, 5, 5000, 0, 6, 1.15},
	} {
		for name, entity := range map[string]func(i int, large bool) int{
			"an entity of their own": func(i int, large bool) int {
				if large {
					return 0
				}
				return 1 + i%9
			},
			"one entity":   func(int, bool) int { return 0 },
			"all entities": func(i int, _ bool) int { return i % 10 },
		} {
			s := SharedScenario{
				Name: name, Entities: make([]SharedEntity, 10), Operation: Fixed(200 * time.Millisecond),
				Options: drip.Options{Size: 100_000, RefreshRate: 100_000, Shared: map[string]drip.Limit{"app": {Size: c.size, RefreshRate: c.rate}}},
				Messages: func(*rand.Rand) (all []SharedMessage) {
					for i := range c.small {
						all = append(all, SharedMessage{Entity: entity(i, false), At: time.Duration(i) * c.every})
					}
					for i := range c.large {
						all = append(all, SharedMessage{Entity: entity(i, true), At: 10 * time.Millisecond, Cost: c.cost, Watched: true})
					}
					return all
				},
			}
			r := playShared(t, s)
			asks, last := 0, int64(0)
			for i := range r.messages {
				if m := &r.messages[i]; m.Watched {
					asks += 1 + m.trips + m.heldAsks
				}
				last = max(last, r.messages[i].started)
			}
			best := max(float64(c.large*c.cost+c.small-c.size)/float64(c.rate), (time.Duration(c.small) * c.every).Seconds())
			mean, makespan := float64(asks)/float64(c.large), float64(last-since(0))/1000/best
			tell(t, r.overLimit > 0 || mean > c.mean || makespan > c.makespan, "%d of %d beside %d of 1 each %v, of %s: %d over, %.1f asks, makespan %.2f; want at most %.1f and %.2f",
				c.large, c.cost, c.small, c.every, name, r.overLimit, mean, makespan, c.mean, c.makespan)
		}
	}
}

// Below the limit large messages seldom wait long for the capacity that gathers, or let small ones wait.
func TestLargeSharedCostsBelowTheLimit(t *testing.T) {
	const loads = 40
	var waits time.Duration
	for seed := range uint64(loads) {
		r := rand.New(rand.NewPCG(seed, 13))
		rate := 3 + r.IntN(40)
		large, n, part, load := rate*(2+r.IntN(7)), 1+r.IntN(10), r.Float64(), 0.5+0.3*r.Float64()
		average := part*float64(large) + 1 - part
		got := mustRunShared(t, SharedScenario{
			Options:  drip.Options{Size: 1e6, RefreshRate: 1e6, Concurrency: plenty, Shared: map[string]drip.Limit{"app": {Size: 12 * rate, RefreshRate: rate}}},
			Entities: entities(n), Operation: Fixed(100 * time.Millisecond),
			Messages: changed(trickle(0, n, load*float64(rate)/average/float64(n), 0, 200*time.Second, SharedMessage{}), func(r *rand.Rand, _ int, m *SharedMessage) {
				if r.Float64() < part {
					m.Cost = large
				}
			}),
		}, seed)
		waits += got.Wait.P99
	}
	tell(t, waits/loads > 8500*time.Millisecond, "99 %% wait at most %v on average", waits/loads)
}

// Urgent messages pass large ones, which run nevertheless: a large one does not leave more than the window has beside it.
func TestUrgentBesideLarge(t *testing.T) {
	for _, cost := range []int{6, 8, 10} {
		s := SharedScenario{
			Entities: entities(2), Operation: Fixed(50 * time.Millisecond), Late: Fixed(0), Hold: -1,
			Options: drip.Options{Size: 1000, RefreshRate: 1000, Shared: map[string]drip.Limit{"app": {Size: 10}}},
			Messages: func(*rand.Rand) (all []SharedMessage) {
				for range 20 {
					all = append(all, SharedMessage{Cost: cost, Watched: true})
				}
				for i := range 600 {
					all = append(all, SharedMessage{Entity: 1, At: time.Duration(i) * 200 * time.Millisecond, Urgent: true})
				}
				return all
			},
		}
		got := mustRunShared(t, s, 1)
		tell(t, got.Watched.P99 > 50*time.Second || got.Urgent.P99 > 5500*time.Millisecond,
			"a cost of %d: the large ones wait up to %v, the urgent ones %v; want at most 50 s and 5.5 s", cost, got.Watched.P99, got.Urgent.P99)
	}
}

// An entity that sends four fifths of its share gets nearly all of it, beside one that sends nearly its share and one with a backlog, although
// operations of all three are due in the same short intervals.
func TestSharedBelowItsShare(t *testing.T) {
	for _, c := range []struct {
		rate     int
		interval time.Duration
		weights  [3]int
		times    float64 // the median wait and five turns, of the best one and five turns; the mean of three seeds
	}{
		{1, 500 * time.Millisecond, [3]int{1, 1, 1}, 1.9},
		{1, 500 * time.Millisecond, [3]int{1, 2, 4}, 1.9},
		{1, 200 * time.Millisecond, [3]int{1, 1, 1}, 2.9},
		{1, 200 * time.Millisecond, [3]int{1, 4, 1}, 2.1},
		{2, 100 * time.Millisecond, [3]int{1, 1, 1}, 3.1},
		{2, 100 * time.Millisecond, [3]int{1, 4, 1}, 2.8},
	} {
		limit := float64(c.rate) / c.interval.Seconds()
		sum := float64(c.weights[0] + c.weights[1] + c.weights[2])
		s := SharedScenario{
			Options:   within(plenty, plenty, drip.Limit{Size: c.rate, RefreshInterval: c.interval}),
			Operation: Fixed(50 * time.Millisecond), Unmeasured: true, Hold: -1,
			Messages: func(r *rand.Rand) (all []SharedMessage) {
				for e, part := range []float64{0.8, 0.9, 3} {
					rate := part * limit * float64(c.weights[e]) / sum
					for at := r.ExpFloat64() / rate; at < 2000/limit; at += r.ExpFloat64() / rate {
						all = append(all, SharedMessage{At: time.Duration(at * float64(time.Second)), Entity: e, Watched: e == 0})
					}
				}
				return all
			},
		}
		for _, w := range c.weights {
			s.Entities = append(s.Entities, SharedEntity{Weight: w})
		}
		turns := time.Duration(5 * sum / float64(c.weights[0]) / limit * float64(time.Second))
		times, mean := 0.0, 0.0
		for seed := range uint64(3) {
			got := mustRunShared(t, s, seed)
			times += float64(got.Watched.P50+turns) / float64(got.FluidWatched.P50+turns) / 3
			mean += got.Redeliveries.Mean / 3
		}
		tell(t, times > c.times, "%d each %v, weights %v: the median wait is %.2f times the best one, want at most %.2f; %.2f postponements", c.rate, c.interval, c.weights, times, c.times, mean)
	}
}

// Beside shops with long backlogs, shops that send less than their share wait until a longer window is refreshed, or until
// they have their turn for a token. They wait a little longer, until the others are moved.
func TestSharedNewcomers(t *testing.T) {
	const load = 0.7 // of their share
	ms, s := time.Millisecond, time.Second
	windows := func(size int, interval time.Duration, longer int, each time.Duration) map[string]drip.Limit {
		return map[string]drip.Limit{"app": {Size: size, RefreshInterval: interval, Windows: []drip.Window{{Size: longer, RefreshInterval: each}}}}
	}
	endpoint := func(rate int) map[string]drip.Limit {
		return map[string]drip.Limit{"app": {Size: 100}, "endpoint": {Size: rate, Concurrency: 3}}
	}
	for name, c := range map[string]struct {
		shared      map[string]drip.Limit
		rate        float64 // a second, that the limits let run in the long run
		operation   time.Duration
		bigs, shops int
		urgent      bool
		mean        float64       // the most postponements of a message
		most        time.Duration // the longest of 99 % of the waits
	}{
		"two seconds":                  {windows(20, 100*ms, 120, 2*s), 60, 50 * ms, 2, 16, false, 1.7, 5 * s},
		"two seconds, few calls":       {windows(1, 100*ms, 6, 2*s), 3, 50 * ms, 2, 9, false, 2.1, 12 * s},
		"ten seconds":                  {windows(25, 500*ms, 350, 10*s), 35, 50 * ms, 1, 20, false, 1.7, 7 * s},
		"twenty seconds":               {windows(200, s, 2800, 20*s), 140, 50 * ms, 1, 12, false, 1.4, 11 * s},
		"twenty seconds, urgent calls": {windows(50, s, 700, 20*s), 35, 50 * ms, 1, 13, true, 1.7, 13 * s},
		"a minute":                     {windows(10, s, 300, 60*s), 5, 50 * ms, 3, 10, false, 1.7, 45 * s},
		"a rate and tokens":            {map[string]drip.Limit{"app": {Size: 100, Concurrency: 24}}, 100, 200 * ms, 2, 13, false, 2.5, 14 * s},
		"an endpoint with tokens":      {endpoint(60), 80, 50 * ms, 1, 11, false, 2.4, 14 * s},
		"a slow endpoint with tokens":  {endpoint(30), 60, 50 * ms, 2, 4, false, 1.9, 8 * s},
	} {
		o := app(100_000, 100_000, 1)
		o.Shared = c.shared
		got := nearFluid(t, SharedScenario{
			Name: name, Options: o, Entities: entities(c.bigs + c.shops), Operation: Exponential(c.operation), Unmeasured: true,
			Messages: changed(joined(
				sent(shuffled, times(c.bigs, int(c.rate*250)/c.bigs)...),
				trickle(c.bigs, c.shops, load*c.rate/float64(c.bigs+c.shops), time.Second, 180*time.Second, SharedMessage{Watched: true, Urgent: c.urgent}),
			), func(_ *rand.Rand, i int, m *SharedMessage) {
				if len(c.shared) > 1 && i%2 == 0 {
					m.Within = []string{"app"}
				}
			}),
		}, anyNumber, c.mean)
		tell(t, got.Watched.P99 > c.most, "%s: 99 %% wait at most %v, want %v", name, got.Watched.P99, c.most)
	}
}

// Messages that come back later than an interval leave capacity. The messages that find none later take it.
func TestSharedVeryLate(t *testing.T) {
	for _, c := range []struct {
		rate, entities int
		late           time.Duration
		times          float64 // of the optimum
	}{
		{1, 1, 2 * time.Second, 1.24}, {2, 1, 2 * time.Second, 1.16}, {5, 1, 2 * time.Second, 1.08}, {20, 1, 2 * time.Second, 1.04}, {20, 1, 4 * time.Second, 1.05},
		{2, 10, 2 * time.Second, 1.23}, {20, 10, 2 * time.Second, 1.08},
	} {
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%+v", c), Options: app(plenty, plenty, c.rate), Entities: entities(c.entities), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
			Late: Uniform(0, c.late), Hold: 5 * time.Second, Messages: sent(shuffled, times(c.entities, 1000*c.rate/c.entities)...),
		}, c.times, 1.6)
	}
}

// Large shops that came one after the other have booked the same time several times over. The messages of a shop below its share do not
// wait for a time that is booked less.
func TestSharedNewcomersBesideManyBookings(t *testing.T) {
	for _, c := range []struct{ bigs, shops int }{{20, 20}, {40, 20}, {40, 10}} {
		got := mustRunShared(t, SharedScenario{
			Options: app(plenty, plenty, 50), Entities: entities(c.bigs + c.shops), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
			Messages: joined(
				sent(byEntity, times(c.bigs, 25_000/c.bigs)...),
				trickle(c.bigs, c.shops, 0.7*50/float64(c.bigs+c.shops), 5*time.Second, 2*time.Minute, SharedMessage{Watched: true}),
			),
		}, 1)
		tell(t, got.OverLimit > 0 || got.Watched.P99 > got.FluidWatched.P99+2*time.Second,
			"%d large shops and %d others: they wait %v, at best %v", c.bigs, c.shops, got.Watched, got.FluidWatched)
	}
}

// Entities with backlogs get capacity by weight, also if there are few or their weights are no multiples of each other. A
// longer window that is used up for half of the time changes nothing. The first interval is first come, first served.
func TestSharedWeights(t *testing.T) {
	for _, weights := range [][]int{{1, 2, 4}, {2, 3}, {3, 5, 7, 11}, {1, 10}, {99, 100, 101}, {4, 5, 6, 7, 8, 9}} {
		for _, limit := range []drip.Limit{{Size: 20}, {Size: 100, RefreshInterval: 5 * time.Second}, {Size: 20, Windows: []drip.Window{{Size: 100, RefreshInterval: 10 * time.Second}}},
			{Size: 60, RefreshRate: 20, Windows: []drip.Window{{Size: 140, RefreshInterval: 20 * time.Second}}}} {
			e := entities(len(weights))
			for i, w := range weights {
				e[i].Weight = w
			}
			got := nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("%v within %v", weights, limit), Options: within(100_000, 100_000, limit), Entities: e, Operation: Fixed(50 * time.Millisecond),
				Messages: sent(shuffled, times(len(weights), 6000/len(weights))...),
			}, anyNumber, anyNumber)
			tell(t, got.Weights > 0.14, "shares are off by %.1f %%, want at most 14 %%", 100*got.Weights)
		}
	}
}

// Entities whose own limits or endpoints are slower than their share leave the rest of it to the others, by weight. The slow ones
// (watched) keep what these let through.
func TestSharedWeightsBesideSlowEntities(t *testing.T) {
	for _, c := range []struct {
		all              int // a second
		slow, own, weigh int // slow entities, their own limit a second, and their weight
		endpoint         int // a second, for the slow ones; 0 if there is none
		others           []int
		how              order
	}{
		{30, 1, 1, 50, 0, []int{4, 1}, shuffled},
		{50, 10, 2, 8, 0, []int{4, 4, 4, 4, 4, 1, 1, 1, 1, 1}, shuffled},
		{30, 1, 1, 50, 0, []int{4, 1}, inTurn},
		{50, 10, plenty, 8, 5, []int{4, 4, 4, 4, 4, 1, 1, 1, 1, 1}, shuffled},
		{50, 10, plenty, 8, 5, []int{4, 4, 4, 4, 4, 1, 1, 1, 1, 1}, inTurn},
	} {
		e := slices.Repeat([]SharedEntity{{Weight: c.weigh, Limit: drip.Limit{Size: c.own, RefreshRate: c.own}}}, c.slow)
		o, counts := app(plenty, plenty, c.all), times(c.slow, 200*c.own)
		if c.endpoint > 0 {
			o.Shared["endpoint"] = drip.Limit{Size: c.endpoint}
			counts = times(c.slow, 200*c.endpoint/c.slow)
		}
		for _, w := range c.others {
			e = append(e, SharedEntity{Weight: w})
			counts = append(counts, 200*c.all/len(c.others))
		}
		got := mustRunShared(t, SharedScenario{
			Options: o, Entities: e, Operation: Fixed(50 * time.Millisecond),
			Messages: changed(sent(c.how, counts...), func(_ *rand.Rand, _ int, m *SharedMessage) {
				if m.Watched = m.Entity < c.slow; !m.Watched || c.endpoint == 0 {
					m.Within = []string{"app"}
				}
			}),
		}, 1)
		tell(t, got.OverLimit > 0 || !(got.Jain > 0.98) || got.Watched.P99 > got.FluidWatched.P99+3*time.Second, "%+v: fairness %.3f, want at least 0.98; the slow ones wait %v, at best %v; %.2f postponements",
			c, got.Jain, got.Watched, got.FluidWatched, got.Redeliveries.Mean)
	}
}

// Beside a large shop, small shops of little weight do not wait as if the heavier small ones waited as long as they do.
func TestSmallSharedWeights(t *testing.T) {
	for _, c := range []struct {
		all, large, small int // a second, the messages of the large shop, and the number of small ones
		how               order
	}{{10, 2000, 100, inTurn}, {10, 2000, 100, shuffled}, {50, 5000, 300, shuffled}} {
		e := []SharedEntity{{Weight: 25}}
		for i := range c.small {
			e = append(e, SharedEntity{Weight: 1 + i*31%50})
		}
		got := mustRunShared(t, SharedScenario{
			Options: app(plenty, plenty, c.all), Entities: e, Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
			Messages: watched(sent(c.how, append([]int{c.large}, times(c.small, 3)...)...), ofOthers),
		}, 1)
		tell(t, got.OverLimit > 0 || ratio(got.Watched.P99, got.FluidWatched.P99) > 3, "%+v: they wait %v, at best %v; %.2f postponements",
			c, got.Watched, got.FluidWatched, got.Redeliveries.Mean)
	}
}

// A longer window may end in the middle of a second of short intervals. The messages of that second then come while it lasts.
func TestSharedWeightsInPartOfSecond(t *testing.T) {
	o := within(100_000, 100_000, drip.Limit{Size: 10, RefreshInterval: 500 * time.Millisecond, Windows: []drip.Window{{Size: 15, RefreshInterval: time.Second}}})
	e := entities(15)
	for i := range e {
		e[i].Weight = []int{1, 2, 8}[i%3]
	}
	got := nearFluid(t, SharedScenario{
		Options: o, Entities: e, Operation: Fixed(50 * time.Millisecond), Messages: sent(inTurn, times(15, 120)...),
	}, 1.01, anyNumber)
	tell(t, got.Weights > 0.25, "shares are off by %.0f %%, want at most 25 %%", 100*got.Weights)
}

// An entity with a flood of urgent messages gets its fair share. The urgent messages of the others, which are below theirs, do not wait
// for the flood.
func TestUrgentFlood(t *testing.T) {
	for _, c := range []struct{ limit, entities, flood int }{{20, 9, 3000}, {20, 20, 2500}, {50, 4, 3500}, {5, 6, 800}} {
		share := float64(c.limit) / float64(c.entities)
		s := SharedScenario{
			Entities: entities(c.entities), Operation: Fixed(200 * time.Millisecond),
			Options: drip.Options{Size: 1000, RefreshRate: 1000, Shared: map[string]drip.Limit{"app": {Size: c.limit}}},
			Messages: joined(
				changed(sent(shuffled, append([]int{c.flood}, times(c.entities-1, 70)...)...), func(_ *rand.Rand, _ int, m *SharedMessage) { m.Urgent = m.Entity == 0 }),
				trickle(1, c.entities-1, share/3, 5*time.Second, time.Minute, SharedMessage{Urgent: true, Watched: true}),
			),
		}
		for seed := range uint64(2) {
			got, err := RunShared(s, seed)
			ok(t, err)
			most := time.Duration(2/share*float64(time.Second)) + 2*time.Second
			tell(t, got.Watched.P99 > most, "%d a second, %d entities, seed %d: the others' urgent messages wait %v, 99 %% at most %v; want %v", c.limit, c.entities, seed,
				got.Watched.P50, got.Watched.P99, most)
		}
	}
}

// Of a message that comes back twice the copy is not counted as another urgent one. Else all of them would ask at the next turn.
func TestUrgentCopies(t *testing.T) {
	for _, copies := range []float64{0.05, 0.2} {
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%.2f copies", copies), Duplicates: copies, Hold: -1,
			Options:  drip.Options{Size: 5, RefreshRate: 5, Concurrency: 5, Shared: map[string]drip.Limit{"app": {Size: plenty}}},
			Entities: entities(1), Operation: Exponential(5 * time.Second), Unmeasured: true,
			Messages: func(r *rand.Rand) (m []SharedMessage) {
				for i := range 300 {
					at := r.Float64() * 150
					if i < 150 {
						at = 0
					}
					m = append(m, SharedMessage{At: time.Duration(at * float64(time.Second)), Urgent: r.IntN(5) < 2})
				}
				return m
			},
		}, 5, 15)
	}
}

// Urgent messages pass a backlog that waits for the entity's tokens. If they alone are more than the tokens can do, they do not starve it.
func TestUrgentForTokens(t *testing.T) {
	for _, c := range []struct {
		tokens    int
		operation time.Duration
		load      float64 // of urgent messages, of what the tokens can do
		p50, p99  float64 // the most, in times in which a token comes back
		bulk      float64 // the least part of the tokens that others get
	}{
		{1, 500 * time.Millisecond, 0.1, 2, 15, 0.7},
		{1, 2 * time.Second, 0.3, 2.5, 30, 0.45},
		{5, time.Second, 0.1, 2.5, 20, 0.7},
		{1, 500 * time.Millisecond, 1.5, math.Inf(1), math.Inf(1), 0.2},
		{5, time.Second, 1.5, math.Inf(1), math.Inf(1), 0.2},
	} {
		for _, hold := range []time.Duration{0, -1} {
			pace := c.operation / time.Duration(c.tokens)
			const messages = 600
			s := SharedScenario{
				Name: fmt.Sprintf("%d tokens, operations of %v, urgent load %v, hold %v", c.tokens, c.operation, c.load, hold), Hold: hold,
				Entities: entities(1), Operation: AtMost(20*c.operation, Exponential(c.operation)), Unmeasured: true,
				Options:  drip.Options{Size: 10_000, RefreshRate: 10_000, Concurrency: c.tokens, WaitForToken: c.operation, Lease: time.Minute},
				Messages: joined(sent(shuffled, messages), trickle(0, 1, c.load/pace.Seconds(), 0, messages*pace/2, SharedMessage{Urgent: true})),
			}
			r := playShared(t, s)
			var waited []float64
			bulk := 0
			for i := range r.messages {
				m := &r.messages[i]
				if m.Urgent {
					waited = append(waited, (float64(m.started-r.begin)/1000-m.At.Seconds())/pace.Seconds())
				} else if m.started < r.begin+(messages*pace/2).Milliseconds() {
					bulk++
				}
			}
			p50, p99, part := quantile(waited, .5), quantile(waited, .99), float64(bulk)/(messages/2)
			tell(t, p50 > c.p50 || p99 > c.p99 || part < c.bulk, "%s: urgent messages wait %.1f, 99 %% at most %.1f; others get %.2f; want at most %v, %v; at least %v",
				s.Name, p50, p99, part, c.p50, c.p99, c.bulk)
		}
	}
}

// Messages of 300 entities arrive for eight minutes a twentieth faster than the limit allows. Fair shares cost postponements: each
// newcomer of an entity below its share displaces a message of another one. If a few entities send most of the messages, these come back
// often. With FirstCome a message comes back once.
func TestSteadyOverload(t *testing.T) {
	for name, c := range map[string]struct {
		firstCome, zipf bool
		mean            float64
		p99             int
		wait            time.Duration // p99
	}{
		"first come":          {true, false, 1, 1, 30 * time.Second},
		"alike":               {false, false, 1.5, 6, time.Minute},
		"1, 1/2, 1/3 as many": {false, true, 2.3, 20, 3 * time.Minute},
	} {
		got := mustRunShared(t, SharedScenario{
			Entities: entities(300), Operation: Fixed(50 * time.Millisecond), Options: within(plenty, plenty, drip.Limit{Size: 50, FirstCome: c.firstCome}), Unmeasured: true,
			Messages: func(r *rand.Rand) (m []SharedMessage) {
				for at := 0.0; at < 480; at += r.ExpFloat64() / (1.05 * 50) {
					entity := r.IntN(300)
					if c.zipf {
						entity = int(math.Pow(301, r.Float64())) - 1
					}
					m = append(m, SharedMessage{At: time.Duration(at * float64(time.Second)), Entity: entity, Watched: true})
				}
				return m
			},
		}, 1)
		tell(t, got.OverLimit > 0 || got.Redeliveries.Mean > c.mean || got.Redeliveries.P99 > c.p99 || got.Watched.P99 > c.wait,
			"%s: %d over, %+v; waits %v, at best %v", name, got.OverLimit, got.Redeliveries, got.Watched, got.FluidWatched)
	}
}
