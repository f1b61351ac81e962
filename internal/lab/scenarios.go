package lab

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/drip-go/drip"
)

const travel = 50 * time.Millisecond

// Named returns the scenario of that name.
func Named(name string) (s Scenario, ok bool) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, true
		}
	}
	return Scenario{}, false
}

// Scenarios returns the scenarios of the package. Each has a provider and Options that never exceed it. Operations take
// 200 ms unless the scenario says otherwise.
func Scenarios() (all []Scenario) {
	add := func(name, about string, o drip.Options, providers func() []Provider, arrivals ...Arrivals) *Scenario {
		all = append(all, Scenario{
			Name: name, About: about, Options: o, Providers: providers, Arrivals: Mixed(arrivals...),
			Operation: Fixed(200 * time.Millisecond), Travel: travel, Processes: 2,
		})
		return &all[len(all)-1]
	}
	leaky := func(size, perSecond float64) func() []Provider {
		return func() []Provider { return []Provider{LeakyBucket(size, perSecond)} }
	}
	tokens := func(size, perSecond float64) func() []Provider {
		return func() []Provider { return []Provider{TokenBucket(size, perSecond)} }
	}
	minute := func() []Provider { return []Provider{FixedWindow(60, time.Minute)} }
	five := func() []Provider { return []Provider{Concurrency(5)} }
	atOnce := func(n int) Arrivals { return Burst(n, 10300*time.Millisecond) }
	steady := Poisson(1.2, 0, 30*time.Minute) // 60 % of the limit of leaky40
	aSecond := AtMost(20*time.Second, Exponential(time.Second))

	add("rate-burst", "a leaky bucket of 40 that drains by 2 a second; 2,000 messages at once", leaky40, leaky(40, 2), atOnce(2000))
	add("rate-fixed-window", "60 in each minute of the clock; 1,000 messages at once", minute60, minute, atOnce(1000))
	add("rate-steady-0.9", "60 in each minute of the clock; an even load of 90 % of the options, for an hour", minute60, minute, Steady(0.9*57/60, 0, time.Hour))
	add("rate-poisson-backlog", "60 in each minute of the clock; a backlog of 2,000, and a random load of 80 % for 4 hours",
		minute60, minute, atOnce(2000), Poisson(0.8*57/60, 0, 4*time.Hour))
	add("rate-late-hops-60/60s", "60 in each minute of the clock; postponed messages are late by up to a minute; 1,000 and a load of 60 %",
		minute60, minute, atOnce(1000), Poisson(0.6*57/60, 0, time.Hour)).Late = Uniform(0, time.Minute)
	add("rate-late-hops-100/10s", "100 in each 10 seconds of the clock; postponed messages are late by up to 10 s; 2,000 and a load of 60 %",
		tenSeconds100, func() []Provider { return []Provider{FixedWindow(100, 10*time.Second)} },
		atOnce(2000), Poisson(0.6*9.5, 0, 10*time.Minute)).Late = Uniform(0, 10*time.Second)
	add("rate-late-hops-2/1s", "a leaky bucket of 40 that drains by 2 a second; postponed messages are late by up to a second; 1,000 and a load of 60 %",
		leaky40BySecond, leaky(40, 2), atOnce(1000), steady).Late = Uniform(0, time.Second)
	add("sliding-window", "100 in any 10 seconds; 2,000 messages at once, and a random load of 60 % for 10 minutes",
		sliding100, func() []Provider { return []Provider{SlidingWindow(100, 10*time.Second)} },
		atOnce(2000), Poisson(0.6*9.7, 0, 10*time.Minute))
	add("token-bucket", "a token bucket of 30 that gains one every 2 seconds; 500 messages at once, and a random load of 60 % for an hour",
		tokens30, tokens(30, 0.5), atOnce(500), Poisson(0.3, 0, time.Hour))
	add("first-call-window", "300 in windows of 5 minutes that begin with a call; bursts of 100 every 10 minutes, and a random load of 60 % for an hour",
		firstCall300, func() []Provider { return []Provider{FirstCallWindow(300, 5*time.Minute)} },
		Burst(100, 7*time.Minute), Burst(100, 17*time.Minute), Burst(100, 27*time.Minute), Burst(100, 37*time.Minute), Poisson(0.58, 0, time.Hour))
	add("concurrency-load-0.9", "5 calls at a time that take a second on average; a random load of 90 % for 20 minutes",
		fiveAtOnce, five, Poisson(4.5, 0, 20*time.Minute)).Operation = aSecond
	add("concurrency-load-1.5", "5 calls at a time that take a second on average; a random load of 150 % for 5 minutes",
		fiveAtOnce, five, Poisson(7.5, 0, 5*time.Minute)).Operation = aSecond
	add("concurrency-burst", "5 calls at a time that take a second on average; 1,000 messages at once", fiveAtOnce, five, atOnce(1000)).Operation = aSecond
	add("long-tail", "5 calls at a time: half take less than 0.5 s, one in a hundred 8 s, some up to a minute; 200 messages, and a load of 70 % for 20 minutes",
		fiveAtOnce, five, atOnce(200), Poisson(3.3, 0, 20*time.Minute)).Operation = AtMost(time.Minute, LogNormal(500*time.Millisecond, 1.2))
	add("outage-1h", "a leaky bucket of 200 that drains by 10 a second; an hour without consumers when 10,000 messages wait, then a load of 50 %",
		leaky200, leaky(200, 10), Burst(10000, 300*time.Millisecond), Poisson(5, time.Hour, time.Hour+30*time.Minute)).Outage = Outage{5 * time.Second, time.Hour}
	crashes := add("crashes-1%", "5 calls at a time that take a second on average; 1 % of the holders die; a random load of 60 % for 20 minutes",
		fiveAtOnce, five, Poisson(3, 0, 20*time.Minute))
	crashes.Operation, crashes.Crashes = aSecond, 0.01
	add("duplicates-1%", "a leaky bucket of 40 that drains by 2 a second; 1 % of the messages are delivered twice; 1,000 and a load of 60 %",
		leaky40, leaky(40, 2), atOnce(1000), steady).Duplicates = 0.01
	add("lost-1%", "a leaky bucket of 40 that drains by 2 a second; 1 % of the postponed messages never come back; 1,000 and a load of 60 %",
		leaky40, leaky(40, 2), atOnce(1000), steady).Lost = 0.01
	add("two-windows", "a leaky bucket of 40 that drains by 2 a second, 100 in each minute, 5 at a time. 500 messages, and a random load of 60 % for half an hour",
		bucketAndMinute, func() []Provider {
			return []Provider{LeakyBucket(40, 2), FixedWindow(100, time.Minute), Concurrency(5)}
		},
		atOnce(500), Poisson(0.95, 0, 30*time.Minute)).Operation = Exponential(300 * time.Millisecond)
	points := add("two-windows-costs", "a leaky bucket of 200 points that drains by 20 a second, 1,000 points in each minute, 5 at a time. 1 to 10 points, settled up or down by 3",
		pointsAndMinute, func() []Provider {
			return []Provider{LeakyBucket(200, 20), FixedWindow(1000, time.Minute), Concurrency(5)}
		},
		atOnce(1000), Poisson(1.7, 0, 30*time.Minute))
	points.Operation, points.Costs = Exponential(300*time.Millisecond), UniformCost(1, 10, 3)
	day := add("day-curve", "50 entities with a token bucket of 20 that gains one a minute; a day with most at noon, for one in six more than the limit",
		orders20, tokens(20, 1.0/60), func(r *rand.Rand) []time.Duration { return Day(0.006 * math.Exp(r.NormFloat64()))(r) })
	day.Operation, day.Entities, day.Processes = aSecond, 50, 4

	// A provider whose plan changes, and drip is told. A limit is lowered in drip before the provider does it, so that no
	// request under the old one is still on its way, and raised after that. Besides, drip gains by the new rate from its last
	// run on: that is not more than the provider has brought, because here messages wait when it is raised, so something has
	// run in each interval. As with leaky40BySecond, Size is 80 - 4 - 0.2 and 20 - 1 - 0.05, rounded down.
	bucket := func(at time.Duration, size, perSecond float64) Change {
		return Change{At: at, Provider: func(p Provider, ms int64) { p.(*tokenBucket).change(ms, size, perSecond) }}
	}
	limit := func(at time.Duration, size, rate int) Change {
		return Change{At: at, Limit: &drip.Limit{Size: size, RefreshRate: rate}}
	}
	add("limits-changed", "a token bucket of 40 that gains 2 a second, after 5 minutes 80 and 4 a second, after 10 minutes 20 and 1 a second. 1,000 messages, and 1 a second for 15 minutes",
		leaky40BySecond, tokens(40, 2), atOnce(1000), Poisson(1, 0, 15*time.Minute)).Changes = []Change{
		bucket(5*time.Minute, 80, 4), limit(5*time.Minute+time.Second, 75, 4), limit(10*time.Minute-time.Second, 18, 1), bucket(10*time.Minute, 20, 1),
	}

	add("throttled-while-booked", "a leaky bucket of 200 that drains by 10 a second; 2,000 messages, and after 20 s the provider closes for a minute; then a load of 50 %",
		leaky200, leaky(200, 10), Burst(2000, 300*time.Millisecond), Poisson(5, time.Minute, 10*time.Minute)).Changes = []Change{{At: 20 * time.Second, Throttle: time.Minute}}
	lost := add("lost-tickets-10%", "5 calls at a time that take a second on average; 10 % of the postponements lose their ticket; a random load of 90 % for 20 minutes",
		fiveAtOnce, five, Poisson(4.5, 0, 20*time.Minute))
	lost.Operation, lost.LostTickets = aSecond, 0.1
	add("wrong-guess", "5 calls at a time that take a second on average, but are thought to take ten; a random load of 90 % for 20 minutes",
		fiveAtOnceGuessed10, five, Poisson(4.5, 0, 20*time.Minute)).Operation = aSecond
	add("both-kinds", "a leaky bucket of 40 that drains by 2 a second; one in four callers asks GetDelay and has no ticket; 1,000 and a load of 60 %",
		leaky40, leaky(40, 2), atOnce(1000), steady).Plain = 0.25
	estimates := add("estimates-x10", "a leaky bucket of 2,000 points that drains by 100 a second. 5,000 messages that are thought to cost 10 points and cost one, and a load of 60 % for 5 minutes",
		points2000, leaky(2000, 100), Burst(5000, 300*time.Millisecond), Poisson(60, 0, 5*time.Minute))
	estimates.Operation, estimates.Travel = Fixed(10*time.Millisecond), 0
	estimates.Costs = func(*rand.Rand) (int, int) { return 10, 1 }
	return all
}
