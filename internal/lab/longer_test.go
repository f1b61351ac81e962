package lab

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// A shared limit of a second may have longer windows. While one of them is used up, no message has a slot. So messages
// come back about as often as without it, and the limit is used as early as it can be.
func TestSharedLongerWindow(t *testing.T) {
	minute, hour := drip.Window{Size: 150, RefreshInterval: time.Minute}, drip.Window{Size: 600, RefreshInterval: time.Hour}
	for name, c := range map[string]struct {
		second         int
		windows        []drip.Window
		mean, inBlocks float64 // the most postponements of a message: of all shops at once, and shop after shop
	}{
		"a minute":                  {5, []drip.Window{minute}, 1.4, 2.1},
		"most of ten seconds":       {10, []drip.Window{{Size: 60, RefreshInterval: 10 * time.Second}}, 1.5, 1.9},
		"a few in ten seconds":      {10, []drip.Window{{Size: 20, RefreshInterval: 10 * time.Second}}, 1.5, 1.9},
		"less than a second brings": {10, []drip.Window{{Size: 7, RefreshInterval: 10 * time.Second}}, 1.5, 1.9},
		"an hour":                   {10, []drip.Window{{Size: 100, RefreshInterval: time.Hour}}, 1.4, 2},
		"a window that gathers":     {5, []drip.Window{{Size: 200, RefreshRate: 50, RefreshInterval: time.Minute}}, 1.4, 2.1},
		"a minute and an hour":      {5, []drip.Window{minute, hour}, 1.5, 2.4},
	} {
		for _, shops := range []int{1, 5, 30} {
			for how, most := range map[order]float64{shuffled: c.mean, byEntity: c.inBlocks} {
				each := c.windows[len(c.windows)-1].Size * 33 / 10 / shops
				got := nearFluid(t, SharedScenario{
					Name: fmt.Sprintf("%s, %d shops, order %d", name, shops, how), Options: within(1000, 1000, drip.Limit{Size: c.second, Windows: c.windows}), Entities: entities(shops),
					Operation: Fixed(50 * time.Millisecond), Unmeasured: true, Messages: sent(how, times(shops, each)...),
				}, anyNumber, most)
				if best := earliest(shops*each, c.second, c.windows); got.Makespan > best+4*time.Second {
					t.Errorf("%s: %v, want at most 4 s more than %v", got.Scenario.Name, got.Makespan, best)
				}
			}
		}
	}
}

// An endpoint's longer window is used up only by the calls that the app's limit lets through. And messages that wait for the
// beginning of the endpoint's minute do not all come back at that time, if the app's limit is too low for it.
func TestSharedEndpointWithLongerWindow(t *testing.T) {
	for name, c := range map[string]struct {
		app, endpoint drip.Limit
		shops, each   int
		mean          float64 // the most postponements of a message
		makespan      float64 // and the most time, relative to the fluid optimum, for which a minute brings evenly
	}{
		"a day that is long enough": {
			drip.Limit{Size: 12, RefreshRate: 1},
			drip.Limit{Size: 17, RefreshInterval: 10 * time.Second, Windows: []drip.Window{{Size: 281, RefreshRate: 28, RefreshInterval: 24 * time.Hour}}},
			17, 26, 1.5, 1.02,
		},
		"a minute":              {drip.Limit{Size: 10}, drip.Limit{Size: 120, RefreshInterval: time.Minute}, 40, 20, 1.55, 1.32},
		"a minute and a second": {drip.Limit{Size: 10}, drip.Limit{Size: 10, Windows: []drip.Window{{Size: 120, RefreshInterval: time.Minute}}}, 40, 20, 1.95, 1.42},
	} {
		o := app(1000, 1000, 1)
		o.Shared = map[string]drip.Limit{"app": c.app, "endpoint": c.endpoint}
		nearFluid(t, SharedScenario{
			Name: name, Options: o, Entities: entities(c.shops), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
			Messages: changed(sent(shuffled, times(c.shops, c.each)...), func(_ *rand.Rand, i int, m *SharedMessage) {
				m.Within = []string{"app", "endpoint"}[:1+i%2]
			}),
		}, c.makespan, c.mean)
	}
}

// An endpoint's hour is used up. Calls of other endpoints wait for the app's limit alone, whatever the names of the limits.
func TestSharedBesideAnEndpointsHour(t *testing.T) {
	for _, app := range []string{"app", "main"} {
		for _, own := range []int{2, plenty} {
			o := within(own, own, drip.Limit{})
			o.Shared = map[string]drip.Limit{app: {Size: 1}, "export": {Size: 5, Windows: []drip.Window{{Size: 100, RefreshInterval: time.Hour}}}}
			got := mustRunShared(t, SharedScenario{
				Options: o, Entities: entities(3), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
				Messages: changed(sent(shuffled, times(3, 100)...), func(_ *rand.Rand, i int, m *SharedMessage) {
					m.Within, m.Watched = []string{app, "export"}[:1+i%2], i%2 == 0
				}),
			}, 1)
			tell(t, got.OverLimit > 0 || got.Watched.P99 > got.FluidWatched.P99+10*time.Second || got.Redeliveries.Mean > 1.3,
				"%s, own %d/s: the others wait %v, at best %v; %+v", app, own, got.Watched, got.FluidWatched, got.Redeliveries)
		}
	}
}

// A long window of calls that is far from short sends no message to its next interval, however few of the calls an operation takes beside
// its tokens.
func TestSharedTokensInADayOfCalls(t *testing.T) {
	for _, c := range []struct{ size, rate, cost, calls, messages int }{{1000, 1000, 500, 20_000, 3000}, {1000, 1000, 500, 1_000_000, 3000}, {100, 9, 92, 279, 127}} {
		o := within(plenty, plenty, drip.Limit{Size: c.size, RefreshRate: c.rate, Unit: "tokens", Windows: []drip.Window{{Size: c.calls, RefreshInterval: 24 * time.Hour}}})
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%+v", c), Options: o, Entities: entities(1), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
			Units: map[string]Costs{"tokens": FixedCost(c.cost)}, Messages: sent(inTurn, c.messages),
		}, 1.1, 2.2)
	}
}

// A backlog of hours is longer than the calendar. Its messages come back about as seldom as messages of a short one. The shops
// have different numbers of them, some tickets are lost, and messages come up to a second late.
func TestSharedHours(t *testing.T) {
	uneven := make([]int, 30)
	for i := range uneven {
		uneven[i] = 2000 / (i + 1)
	}
	minute, few := []drip.Window{{Size: 60, RefreshInterval: time.Minute}}, []drip.Window{{Size: 12, RefreshInterval: time.Minute}}
	for name, c := range map[string]struct {
		second   int
		windows  []drip.Window
		messages []int // of the shops
		how      order
		mean     float64 // the most postponements of a message
	}{
		"alike":                                 {1, nil, times(17, 600), shuffled, 1.2},
		"alike, shop after shop":                {1, nil, times(17, 600), byEntity, 2.1},
		"alike, three a second":                 {3, nil, times(17, 1800), shuffled, 1.2},
		"uneven":                                {1, nil, uneven, shuffled, 1.9},
		"uneven, shop after shop":               {1, nil, uneven, byEntity, 2.6},
		"alike, within a minute":                {10, minute, times(17, 600), shuffled, 1.2},
		"uneven, within a minute":               {10, minute, uneven, shuffled, 1.9},
		"uneven, shop after shop, in a minute":  {10, minute, uneven, byEntity, 2.6},
		"alike, few in a minute":                {3, few, times(17, 100), shuffled, 1.4},
		"one of each shop after another, a few": {3, few, times(17, 100), inTurn, 1.2},
	} {
		nearFluid(t, SharedScenario{
			Name: name, Options: within(1000, 1000, drip.Limit{Size: c.second, Windows: c.windows}), Entities: entities(len(c.messages)), Operation: Fixed(50 * time.Millisecond), Unmeasured: true,
			LostTickets: 0.01, Late: Uniform(0, time.Second), Messages: sent(c.how, c.messages...),
		}, 1.02, c.mean)
	}
}

// A window that is longer than a grain is used up for most of the time. Then no entity asks, but all still wait: a message that others
// displace goes behind them, not into the next interval with all of its entity.
func TestSharedMostlyUsedUp(t *testing.T) {
	for _, c := range []struct {
		size     int
		interval time.Duration
		longer   drip.Window
		messages []int
	}{
		{3, time.Second, drip.Window{Size: 60, RefreshInterval: 10 * time.Minute}, times(10, 100)},
		{3, time.Second, drip.Window{Size: 60, RefreshInterval: 10 * time.Minute}, times(30, 33)},
		{3, time.Second, drip.Window{Size: 600, RefreshInterval: 10 * time.Minute}, times(10, 300)},
		{3, 10 * time.Second, drip.Window{Size: 180, RefreshInterval: time.Hour}, times(10, 100)},
		{10, time.Second, drip.Window{Size: 1000, RefreshInterval: time.Hour}, times(10, 300)},
		{20, time.Second, drip.Window{Size: 1000, RefreshInterval: 24 * time.Hour}, times(50, 100)},
	} {
		nearFluid(t, SharedScenario{
			Name:     fmt.Sprintf("%d each %v, %d each %v", c.size, c.interval, c.longer.Size, c.longer.RefreshInterval),
			Options:  within(1000, 1000, drip.Limit{Size: c.size, RefreshInterval: c.interval, Windows: []drip.Window{c.longer}}),
			Entities: entities(len(c.messages)), Operation: Fixed(50 * time.Millisecond), Unmeasured: true, Messages: sent(byEntity, c.messages...),
		}, 1.02, 2.1)
	}
}

// Another limit denies tickets that have slots before the refresh of a longer window. They get other slots before it, because nobody else
// uses what they leave.
func TestSharedDeniedBeforeARefresh(t *testing.T) {
	for _, minute := range []int{7, 10, 20} {
		for _, n := range []int{1, 3, 10} {
			o := within(1000, 1000, drip.Limit{Size: 3, RefreshInterval: 6667 * time.Millisecond, Windows: []drip.Window{{Size: 60, RefreshInterval: 10 * time.Minute}}})
			o.Shared["two"] = drip.Limit{Size: minute, RefreshInterval: time.Minute}
			nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("%d a minute, %d entities", minute, n), Options: o, Entities: entities(n), Operation: Fixed(200 * time.Millisecond),
				Unmeasured: true, Messages: sent(byEntity, times(n, 300/n)...),
			}, 1.14, 2.4)
		}
	}
}

// An app counts by the minute, and shops by the second. The first shops book the app's minute up to its end. The others have their share
// of it nevertheless: alone they would take as long for their messages in the next minute, and the app would not be used up in any.
func TestSharedMinuteOfSeconds(t *testing.T) {
	second := func(size, rate int) drip.Limit { return drip.Limit{Size: size, RefreshRate: rate} }
	minute := func(n int) drip.Limit { return drip.Limit{Size: n, RefreshInterval: time.Minute} }
	for _, c := range []struct {
		own         drip.Limit
		shared      map[string]drip.Limit
		shops, each int
		times, mean float64 // of the optimum, and the most postponements of a message
	}{
		{second(40, 2), map[string]drip.Limit{"app": minute(600)}, 6, 170, 1.05, 1.5},
		{second(2, 2), map[string]drip.Limit{"app": minute(600)}, 6, 170, 1.05, 1.5},
		{drip.Limit{Size: 1, RefreshInterval: 500 * time.Millisecond}, map[string]drip.Limit{"app": minute(300)}, 5, 120, 1.05, 1.5},
		{minute(100), map[string]drip.Limit{"app": minute(600), "endpoint": second(20, 20)}, 6, 170, 1.05, 2.1},
		{minute(100), map[string]drip.Limit{"app": minute(600), "endpoint": second(20, 20)}, 6, 500, 1.05, 2.4},
	} {
		nearFluid(t, SharedScenario{
			Name:     fmt.Sprintf("own %v, %v, %d shops with %d messages", c.own, c.shared, c.shops, c.each),
			Options:  drip.Options{Size: c.own.Size, RefreshRate: c.own.RefreshRate, RefreshInterval: c.own.RefreshInterval, Concurrency: plenty, Shared: c.shared},
			Entities: entities(c.shops), Operation: Fixed(50 * time.Millisecond), Unmeasured: true, Messages: sent(byEntity, times(c.shops, c.each)...),
		}, c.times, c.mean)
	}
}

// earliest is the second in which the last of n messages runs if each runs as early as the windows let it.
func earliest(n, second int, windows []drip.Window) time.Duration {
	left := make([]int, len(windows))
	for t := time.Duration(0); ; t += time.Second {
		free := second
		for i, w := range windows {
			if t == 0 {
				left[i] = w.Size
			} else if t%w.RefreshInterval == 0 {
				left[i] = min(w.Size, left[i]+cmp.Or(w.RefreshRate, w.Size))
			}
			free = min(free, left[i])
		}
		for i := range left {
			left[i] -= free
		}
		if n -= free; n <= 0 {
			return t
		}
	}
}

// A shared limit whose only window is long is used to the full as well: operations that their own limit delays for a moment,
// or whose message is so late that its entity was forgotten, keep their place in this interval.
func TestSharedLongInterval(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		pick := func(of ...int) int { return of[rnd.IntN(len(of))] }
		interval := time.Duration(pick(10, 60, 360, 1440)) * time.Minute
		size, shops := pick(20, 60, 200, 600), pick(1, 3, 10, 40)
		count := size*pick(1, 2, 3, 4) - pick(0, 1, size/2)
		o := app(0, 0, 0)
		o.Size = pick(50, 10, max(1, size/3))
		o.RefreshRate = pick(o.Size, max(1, o.Size/5))
		o.Concurrency = pick(0, plenty)
		o.Shared["app"] = drip.Limit{Size: size, RefreshRate: size, RefreshInterval: interval}
		at := time.Duration(rnd.Int64N(int64(interval / 2)))
		late := time.Duration(pick(20, 20, 1000, 60_000)) * time.Millisecond
		s := SharedScenario{
			Options: o, Entities: entities(shops), Operation: Fixed(time.Duration(pick(100, 2000, 30_000)) * time.Millisecond),
			Late: Uniform(0, late), Unmeasured: true,
			Messages: func(r *rand.Rand) []SharedMessage {
				var counts []int
				for i := range shops {
					counts = append(counts, (count+i)/shops)
				}
				return backlog(r, order(pick(int(shuffled), int(byEntity), int(inTurn))), at, 0, counts...)
			},
		}
		report := mustRunShared(t, s, seed).Report
		got, best := report.Results[0], report.Results[1]
		if got.OverLimit > 0 || got.Done < got.Messages || got.Makespan > best.Makespan+interval/2+2*late {
			t.Errorf("seed %d: %d messages of %d shops, %d each %v, own %d and %d/s, late %v: %d left, %v, at best %v; %.2f postponements",
				seed, count, shops, size, interval, o.Size, o.RefreshRate, late, got.Messages-got.Done, got.Makespan, best.Makespan, got.Redeliveries.Mean)
		}
	}
}

// atOnce is a random scenario whose messages all come at one time.
type atOnce struct {
	SharedScenario
	at     time.Duration
	counts []int         // of the entities' messages
	least  time.Duration // what a time counts more, so that short ones weigh less
}

// playBacklogs plays random scenarios. No call is over a limit, and no message is left. In each scenario the mean postponements are at
// most as many as given. The mean of all makespans, from the arrival on, is at most so many times the optimum's.
func playBacklogs(t *testing.T, loads, salt uint64, postponements, times float64, draw func(rnd *rand.Rand, pick func(...int) int) atOnce) {
	t.Helper()
	sum := 0.0
	for seed := range loads {
		rnd := rand.New(rand.NewPCG(seed, salt))
		pick := func(of ...int) int { return of[rnd.IntN(len(of))] }
		s := draw(rnd, pick)
		s.Unmeasured = true
		s.Messages = func(r *rand.Rand) []SharedMessage {
			return backlog(r, order(pick(int(shuffled), int(byEntity), int(inTurn))), s.at, 0, s.counts...)
		}
		report := mustRunShared(t, s.SharedScenario, seed).Report
		got, best := report.Results[0], report.Results[1]
		if got.OverLimit > 0 || got.Done < got.Messages || got.Redeliveries.Mean > postponements {
			t.Errorf("seed %d: %v messages, own %d each %v and %v, of all %+v: %d over, %d left, %.2f postponements", seed, s.counts,
				s.Options.RefreshRate, s.Options.RefreshInterval, s.Options.Windows, s.Options.Shared["app"],
				got.OverLimit, got.Messages-got.Done, got.Redeliveries.Mean)
		}
		sum += (got.Makespan + s.least).Seconds() / (best.Makespan + s.least).Seconds()
	}
	mean := sum / float64(loads)
	tell(t, mean > times, "on average the loads take %.3f times as long as at best, want at most %.2f", mean, times)
}

// A window that gathers capacity, and another one that bounds its use: 1,000 calls with 5 more a second, at most 20 a second. Messages
// use what has gathered as early as the other window allows, in any order of arrival. If the other window is longer than a grain, they
// come back about as often as without it.
func TestSharedGatheredBesideAnother(t *testing.T) {
	type window = drip.Window
	for _, c := range []struct {
		first, second        window
		messages, shops      int
		times, postponements float64
	}{
		{window{Size: 100, RefreshRate: 5, RefreshInterval: 10 * time.Second}, window{Size: 10, RefreshInterval: 10 * time.Second}, 300, 20, 1.01, 1.6},
		{window{Size: 100, RefreshRate: 5, RefreshInterval: 10 * time.Second}, window{Size: 10, RefreshInterval: 10 * time.Second}, 300, 1, 1.01, 1},
		{window{Size: 100, RefreshRate: 2, RefreshInterval: time.Second}, window{Size: 5, RefreshInterval: time.Second}, 300, 20, 1.01, 1.6},
		{window{Size: 1000, RefreshRate: 5, RefreshInterval: time.Second}, window{Size: 20, RefreshInterval: time.Second}, 1000, 20, 1.01, 1.6},
		{window{Size: 1000, RefreshRate: 5, RefreshInterval: time.Second}, window{Size: 20, RefreshInterval: time.Second}, 3000, 20, 1.01, 1.6},
		{window{Size: 1000, RefreshRate: 5, RefreshInterval: time.Second}, window{Size: 2, RefreshInterval: 100 * time.Millisecond}, 3000, 20, 1.01, 1.6},
		{window{Size: 1000, RefreshRate: 5, RefreshInterval: time.Second}, window{Size: 10, RefreshInterval: 2 * time.Second}, 3000, 20, 1.05, 2.4},
		{window{Size: 500, RefreshRate: 5, RefreshInterval: time.Second}, window{Size: 6, RefreshInterval: 2 * time.Second}, 500, 1, 1.05, 2.4},
		{window{Size: 2000, RefreshRate: 20, RefreshInterval: time.Minute}, window{Size: 120, RefreshInterval: 10 * time.Minute}, 3000, 20, 1.05, 2.4},
	} {
		for _, how := range []order{shuffled, byEntity, inTurn} {
			nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("%d + %d/%v, %d/%v, %d messages of %d shops, order %d", c.first.Size, c.first.RefreshRate, c.first.RefreshInterval,
					c.second.Size, c.second.RefreshInterval, c.messages, c.shops, how),
				Options: within(plenty, plenty, drip.Limit{
					Size: c.first.Size, RefreshRate: c.first.RefreshRate, RefreshInterval: c.first.RefreshInterval, Windows: []window{c.second},
				}),
				Entities: entities(c.shops), Operation: Fixed(50 * time.Millisecond), Messages: sent(how, times(c.shops, c.messages/c.shops)...),
			}, c.times, c.postponements)
		}
	}
}

// Two limits that are short for about as long, of which one has gathered capacity: messages use that as early as the other limit
// allows.
func TestSharedGatheredBesideAnotherLimit(t *testing.T) {
	for _, c := range []struct{ shops, own int }{{1, plenty}, {10, plenty}, {10, 2}, {10, 1}} {
		o := within(c.own, c.own, drip.Limit{Size: 4})
		o.Shared["endpoint"] = drip.Limit{Size: 200, RefreshRate: 20, RefreshInterval: 10 * time.Second}
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%d shops, %d a second", c.shops, c.own), Options: o, Entities: entities(c.shops), Operation: Fixed(50 * time.Millisecond),
			Messages: changed(sent(shuffled, times(c.shops, 800/c.shops)...), func(r *rand.Rand, _ int, m *SharedMessage) {
				m.Within = []string{"app", "endpoint"}[:1+min(1, r.IntN(4))]
			}),
		}, 1.06, 1.3)
	}
}

// A window that gathers capacity, beside a longer one in the same shared limit: while the longer one is used up, the other one
// gathers, and messages use that as early as at best.
func TestSharedGathersBesideALongerWindow(t *testing.T) {
	playBacklogs(t, 600, 1, 5, 1.04, func(rnd *rand.Rand, pick func(...int) int) atOnce {
		interval, k := time.Duration(pick(20, 60, 600, 3600))*time.Second, pick(3, 6, 24)
		rate, shops := pick(1, 5, 20), pick(1, 3, 10)
		size := max(1, rate*k*pick(3, 6, 9, 20)/10)
		first := drip.Window{Size: rate * pick(2, 10, 30), RefreshRate: rate, RefreshInterval: interval}
		second := drip.Window{Size: size, RefreshRate: size, RefreshInterval: interval * time.Duration(k)}
		longest := second.RefreshInterval
		if rnd.IntN(2) == 0 {
			first, second = second, first
		}
		o := app(0, 0, 0)
		o.Size, o.RefreshRate, o.Concurrency = plenty, plenty, plenty
		o.Shared["app"] = drip.Limit{
			Size: first.Size, RefreshRate: first.RefreshRate, RefreshInterval: first.RefreshInterval, Windows: []drip.Window{second},
		}
		var counts []int
		for range shops {
			counts = append(counts, 1+min(size*pick(1, 2, 3, 6), 1500)/shops)
		}
		at := time.Duration(rnd.Int64N(int64(longest)))
		return atOnce{SharedScenario{Options: o, Entities: entities(shops), Operation: Fixed(50 * time.Millisecond)}, at, counts, interval}
	})
}

// Entities with a large burst, within a shared limit that is short until they share it. Those that arrived first wait for the others,
// and then have what their own windows have gathered since.
func TestSharedBursts(t *testing.T) {
	playBacklogs(t, 200, 6, 3, 1.03, func(rnd *rand.Rand, pick func(...int) int) atOnce {
		o := app(pick(2, 10, 20, 40, 100), pick(1, 2, 5), pick(5, 10, 20, 50))
		o.RefreshInterval = time.Duration(pick(200, 500, 1000, 2000)) * time.Millisecond
		n, each := pick(2, 3, 5, 10, 20), pick(20, 60, 100, 200)
		return atOnce{SharedScenario{Options: o, Entities: entities(n), Operation: Fixed(8 * time.Millisecond)}, begun, times(n, each), time.Second}
	})
}

// An entity whose own window is short, with operations within different shared limits that are far from short. The messages come
// back about as often as without these limits.
func TestSharedLimitsFarFromShort(t *testing.T) {
	sum := 0.0
	const loads = 100
	for seed := range uint64(loads) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		pick := func(of ...int) int { return of[rnd.IntN(len(of))] }
		o := drip.Options{Size: pick(1, 5, 10, 20), RefreshRate: pick(1, 2, 5), Concurrency: plenty, Shared: map[string]drip.Limit{}}
		names := []string{"a", "b", "c"}
		for _, name := range names {
			ms := pick(50, 100, 200, 500, 1000)
			rate := max(1, o.RefreshRate*ms*pick(3, 5, 10)/1000)
			o.Shared[name] = drip.Limit{Size: rate * pick(1, 1, 2, 5), RefreshRate: rate, RefreshInterval: time.Duration(ms) * time.Millisecond}
		}
		messages := pick(300, 600)
		got := mustRunShared(t, SharedScenario{
			Entities: entities(1), Operation: Fixed(20 * time.Millisecond), Options: o, Late: Uniform(0, 20*time.Millisecond), Unmeasured: true,
			Messages: changed(sent(shuffled, messages), func(r *rand.Rand, _ int, m *SharedMessage) {
				m.Within = names[r.IntN(3):][:1]
				if r.IntN(3) == 0 {
					m.Within = names
				}
			}),
		}, seed)
		if got.OverLimit > 0 || got.Done < got.Messages || got.Redeliveries.Mean > 2 || got.Redeliveries.Max > 12 {
			t.Errorf("seed %d: %d over, %d of %d, postponements %+v", seed, got.OverLimit, got.Done, got.Messages, got.Redeliveries)
		}
		sum += got.Redeliveries.Mean
	}
	if mean := sum / loads; mean > 1.05 {
		t.Errorf("%.2f postponements on average, want at most 1.05", mean)
	}
}

// An entity's own long window, within a short shared limit. The shared limit postpones most messages first. When they are back and
// their own window is used up, they have slots in its next intervals, and all of these are used.
func TestSharedBeforeALongOwnWindow(t *testing.T) {
	playBacklogs(t, 200, 2, 5, 1.01, func(rnd *rand.Rand, pick func(...int) int) atOnce {
		second, interval := time.Duration(pick(1, 5, 10))*time.Second, time.Duration(pick(10, 60, 360, 1440))*time.Minute
		size, shops := pick(3, 8, 20, 60), pick(1, 3, 10)
		o := app(pick(1, 2, 5), 0, 0)
		o.RefreshRate, o.RefreshInterval, o.Concurrency = o.Size, time.Duration(pick(1, 1000, 10_000))*time.Millisecond, plenty
		o.Windows = []drip.Window{{Size: size, RefreshInterval: interval}}
		o.Shared["app"] = drip.Limit{Size: pick(2, 5, 20), RefreshInterval: second}
		var counts []int
		for range shops {
			counts = append(counts, 1+min(size*pick(1, 2, 3, 5), 600/shops))
		}
		at := time.Duration(rnd.Int64N(int64(interval)))
		return atOnce{SharedScenario{
			Options: o, Entities: entities(shops), Operation: Fixed(time.Duration(pick(50, 2000)) * time.Millisecond),
			Late: Uniform(0, time.Duration(pick(20, 1000))*time.Millisecond),
		}, at, counts, time.Minute}
	})
}

// Operations that are under way and estimated too high will give something back to a long window of a shared limit. Until then
// it is used up, and messages do not ask again in the same second.
func TestSharedBeforeARefund(t *testing.T) {
	for _, operation := range []time.Duration{2 * time.Second, 20 * time.Second} {
		for _, shops := range []int{1, 10} {
			o := within(1, 1, drip.Limit{Size: 20, Windows: []drip.Window{{Size: 100, RefreshInterval: time.Hour, Unit: "points"}}})
			nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("%v, %d shops", operation, shops), Options: o, Entities: entities(shops), Operation: Fixed(operation), Unmeasured: true,
				Units: map[string]Costs{"points": func(r *rand.Rand) (int, int) {
					actual := cmp.Or(r.IntN(2)*10, 25)
					return 2 * actual, actual
				}},
				Messages: sent(byEntity, times(shops, 120/shops)...),
			}, anyNumber, 25)
		}
	}
}

// The tokens of a shared limit are short, operations are longer than a second, and the limit has a longer window. It is used up
// by as many operations as it counts, not by as many as would fit into the time that they take.
func TestSharedLongOperationsInALongWindow(t *testing.T) {
	playBacklogs(t, 150, 3, 12, 1.5, func(rnd *rand.Rand, pick func(...int) int) atOnce {
		operation, interval := time.Duration(pick(2, 5, 20))*time.Second, time.Duration(pick(10, 60, 1440))*time.Minute
		size, shops, tokens := pick(20, 60, 200), pick(1, 3, 10), pick(1, 2)
		o := app(0, 0, 0)
		o.Size, o.RefreshRate, o.Concurrency, o.WaitForToken = plenty, plenty, plenty, operation/2
		o.Shared["app"] = drip.Limit{Size: pick(2, 5, 20), Concurrency: tokens, Windows: []drip.Window{{Size: size, RefreshInterval: interval}}}
		var counts []int
		for range shops {
			counts = append(counts, 1+min(size*pick(1, 2, 3, 5), 600)/shops)
		}
		at := time.Duration(rnd.Int64N(int64(interval)))
		return atOnce{SharedScenario{
			Options: o, Entities: entities(shops), Operation: Fixed(operation), Late: Uniform(0, time.Duration(pick(20, 1000))*time.Millisecond),
		}, at, counts, time.Minute}
	})
}

// Each shop's own limit holds its messages until times that are behind the calendar of a shared limit. It is far from short, so
// messages of one shop do not wait for slots of another.
func TestSharedOwnBacklogsOfHours(t *testing.T) {
	for _, second := range []time.Duration{time.Second, time.Minute} {
		o := app(1, 1, 1000)
		o.RefreshInterval = 10 * second
		o.Shared["app"] = drip.Limit{Size: 1000, RefreshInterval: second}
		r := playShared(t, SharedScenario{
			Options: o, Entities: entities(3), Operation: Fixed(50 * time.Millisecond), Unmeasured: true, Messages: sent(byEntity, 300, 200, 150),
		})
		last := make([]int64, 3)
		for i := range r.messages {
			m := &r.messages[i]
			last[m.Entity] = max(last[m.Entity], m.started-r.begin)
		}
		for i, count := range []int64{300, 200, 150} {
			if most := begun.Milliseconds() + (10*count+1)*second.Milliseconds(); last[i] > most {
				t.Errorf("intervals of %v: shop %d is through after %v, want at most %v", second, i, milliseconds(last[i]), milliseconds(most))
			}
		}
	}
}

// Backlogs of hours in the entities' own minutes, within a shared limit of which they can use 5 to 33 %. They leave out no minute of their
// own, and urgent messages have slots in these minutes one after the other.
func TestSharedOwnMinutes(t *testing.T) {
	for _, c := range []struct {
		entities, perSecond int
		urgent              float64
	}{{3, 1, 0}, {3, 2, 0}, {10, 1, 0}, {10, 2, 0}, {1, 1, 0.3}, {3, 1, 0.3}} {
		got := nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%+v", c),
			Options: drip.Options{
				Size: 2, RefreshRate: 2, RefreshInterval: time.Minute, Concurrency: plenty, Shared: map[string]drip.Limit{"app": {Size: c.perSecond}},
			},
			Entities: entities(c.entities), Operation: Fixed(50 * time.Millisecond), Unmeasured: c.urgent == 0,
			Messages: changed(sent(shuffled, times(c.entities, 200)...), func(r *rand.Rand, _ int, m *SharedMessage) {
				if m.Urgent = r.Float64() < c.urgent; m.Urgent {
					m.At += time.Duration(r.Float64() * float64(time.Minute))
				}
			}),
		}, 1.01, 3)
		if got.Redeliveries.Max > 12 {
			t.Errorf("%+v: at most %d postponements", c, got.Redeliveries.Max)
		}
	}
}

// Each of several windows that are shorter than a grain spreads the tickets of the grain.
func TestSharedShortWindows(t *testing.T) {
	for _, limit := range []drip.Limit{
		{Size: 15, RefreshInterval: 100 * time.Millisecond, Windows: []drip.Window{{Size: 3, RefreshInterval: time.Millisecond}}},
		{Size: 1500, RefreshInterval: 100 * time.Millisecond, Unit: "tok", Windows: []drip.Window{{Size: 3, RefreshInterval: time.Millisecond}}},
		{Size: 1500, RefreshInterval: 200 * time.Millisecond, Unit: "tok", Windows: []drip.Window{{Size: 10, RefreshInterval: 20 * time.Millisecond}}},
	} {
		s := SharedScenario{
			Name: fmt.Sprintf("%+v", limit), Options: drip.Options{Size: 10000, RefreshRate: 10000, Shared: map[string]drip.Limit{"app": limit}},
			Entities: entities(5), Operation: Uniform(time.Millisecond, 761*time.Millisecond), Hold: 5 * time.Second, Messages: anybody(1500, 5),
		}
		if limit.Unit != "" {
			s.Units = map[string]Costs{"tok": func(r *rand.Rand) (int, int) { n := 40 + r.IntN(60); return n, n }}
		}
		nearFluid(t, s, 1.25, anyNumber)
	}
}

// A ticket that only lacks a token does not wait for the next hour.
func TestSharedHourAndTokens(t *testing.T) {
	for _, c := range []struct {
		before, interval time.Duration
		n, size          int
	}{{947 * time.Millisecond, time.Hour, 227, 3600}, {23 * time.Millisecond, time.Hour, 227, 3600}, {30 * time.Second, time.Minute, 200, 100}} {
		nearFluid(t, SharedScenario{
			Name: fmt.Sprintf("%v", c), Begin: Begin.Add(time.Hour - c.before), Entities: entities(4), Operation: Uniform(time.Millisecond, time.Second), Hold: 5 * time.Second,
			Options:  drip.Options{Size: 42, RefreshRate: 14, Shared: map[string]drip.Limit{"app": {Size: c.size, RefreshInterval: c.interval, Concurrency: 6}}},
			Messages: anybody(c.n, 4),
		}, 1.5, anyNumber)
	}
}

// Small operations do not wait for the next hour behind large ones.
func TestSharedSmallBesideLarge(t *testing.T) {
	for _, large := range []int{100, 1000} {
		for _, span := range []int64{1, 100_000} {
			nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("large %d, span %d", large, span), Begin: Begin.Add(15 * time.Second), Entities: entities(6),
				Operation: Uniform(time.Millisecond, time.Second), Hold: 5 * time.Second,
				Options: drip.Options{
					Size: 10_000_000, RefreshRate: 10_000_000, Shared: map[string]drip.Limit{"app": {Size: 1_000_000, RefreshInterval: time.Hour, Concurrency: 2}},
				},
				Messages: changed(anybody(400, 6), func(r *rand.Rand, _ int, m *SharedMessage) {
					m.At, m.Cost = time.Duration(r.Int64N(span))*time.Millisecond, large
					if r.IntN(3) == 0 {
						m.Cost = 1
					}
				}),
			}, 1.5, anyNumber)
		}
	}
}

// A newcomer takes no capacity of tickets that wait for their turn: at the limit's rate the longest wait is a few times the best one.
func TestNewcomersBehindDenied(t *testing.T) {
	for _, seed := range []uint64{2, 3, 6} {
		for _, hold := range []time.Duration{-1, 0} {
			got, best := beside(t, Scenario{
				Name: "denied", Options: drip.Options{Size: 40, RefreshRate: 2, Concurrency: 2},
				Arrivals:  Poisson([]float64{1.94, 1.98, 2, 2.04}[seed%4], 0, 90*time.Minute),
				Operation: Exponential(800 * time.Millisecond), Late: Uniform(0, 500*time.Millisecond), Hold: hold,
			}, seed)
			tell(t, got.Wait.Max > best.Wait.Max*9/2 || hold == 0 && got.Redeliveries.Max > 10, "hold %v: waits %v, at best %v; %+v", hold, got.Wait.Max, best.Wait.Max, got.Redeliveries)
		}
	}
}

// anybody is messages of random entities, all at once.
func anybody(n, entities int) draw {
	return func(r *rand.Rand) (all []SharedMessage) {
		for range n {
			all = append(all, SharedMessage{Entity: r.IntN(entities)})
		}
		return all
	}
}
