package lab

import (
	"cmp"
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
func Scenarios() []Scenario {
	leakyBucket40 := func() []Provider { return []Provider{LeakyBucket(40, 2)} }
	minute := func() []Provider { return []Provider{FixedWindow(60, time.Minute)} }
	five := func() []Provider { return []Provider{Concurrency(5)} }
	aSecond := AtMost(20*time.Second, Exponential(time.Second))
	// A backlog of 1,000 and 60 % of the limit of leaky40 for half an hour.
	busy := Mixed(Burst(1000, 10300*time.Millisecond), Poisson(1.2, 0, 30*time.Minute))
	all := []Scenario{
		{
			Name:      "rate-burst",
			About:     "a leaky bucket of 40 that drains by 2 a second; 2,000 messages at once",
			Options:   leaky40,
			Providers: leakyBucket40,
			Arrivals:  Burst(2000, 10300*time.Millisecond),
		},
		{
			Name:      "rate-fixed-window",
			About:     "60 in each minute of the clock; 1,000 messages at once",
			Options:   minute60,
			Providers: minute,
			Arrivals:  Burst(1000, 10300*time.Millisecond),
		},
		{
			Name:      "rate-steady-0.9",
			About:     "60 in each minute of the clock; an even load of 90 % of the options, for an hour",
			Options:   minute60,
			Providers: minute,
			Arrivals:  Steady(0.9*57/60, 0, time.Hour),
		},
		{
			Name:      "rate-poisson-backlog",
			About:     "60 in each minute of the clock; a backlog of 2,000, and a random load of 80 % for 4 hours",
			Options:   minute60,
			Providers: minute,
			Arrivals:  Mixed(Burst(2000, 10300*time.Millisecond), Poisson(0.8*57/60, 0, 4*time.Hour)),
		},
		{
			Name:      "rate-late-hops-60/60s",
			About:     "60 in each minute of the clock; postponed messages are late by up to a minute; 1,000 and a load of 60 %",
			Options:   minute60,
			Providers: minute,
			Arrivals:  Mixed(Burst(1000, 10300*time.Millisecond), Poisson(0.6*57/60, 0, time.Hour)),
			Late:      Uniform(0, time.Minute),
		},
		{
			Name:      "rate-late-hops-100/10s",
			About:     "100 in each 10 seconds of the clock; postponed messages are late by up to 10 s; 2,000 and a load of 60 %",
			Options:   tenSeconds100,
			Providers: func() []Provider { return []Provider{FixedWindow(100, 10*time.Second)} },
			Arrivals:  Mixed(Burst(2000, 10300*time.Millisecond), Poisson(0.6*9.5, 0, 10*time.Minute)),
			Late:      Uniform(0, 10*time.Second),
		},
		{
			Name:      "rate-late-hops-2/1s",
			About:     "a leaky bucket of 40 that drains by 2 a second; postponed messages are late by up to a second; 1,000 and a load of 60 %",
			Options:   leaky40BySecond,
			Providers: leakyBucket40,
			Arrivals:  busy,
			Late:      Uniform(0, time.Second),
		},
		{
			Name:      "sliding-window",
			About:     "100 in any 10 seconds; 2,000 messages at once, and a random load of 60 % for 10 minutes",
			Options:   sliding100,
			Providers: func() []Provider { return []Provider{SlidingWindow(100, 10*time.Second)} },
			Arrivals:  Mixed(Burst(2000, 10300*time.Millisecond), Poisson(0.6*9.7, 0, 10*time.Minute)),
		},
		{
			Name:      "token-bucket",
			About:     "a token bucket of 30 that gains one every 2 seconds; 500 messages at once, and a random load of 60 % for an hour",
			Options:   tokens30,
			Providers: func() []Provider { return []Provider{TokenBucket(30, 0.5)} },
			Arrivals:  Mixed(Burst(500, 10300*time.Millisecond), Poisson(0.3, 0, time.Hour)),
		},
		{
			Name:      "first-call-window",
			About:     "300 in windows of 5 minutes that begin with a call; bursts of 100 every 10 minutes, and a random load of 60 % for an hour",
			Options:   firstCall300,
			Providers: func() []Provider { return []Provider{FirstCallWindow(300, 5*time.Minute)} },
			Arrivals: Mixed(Burst(100, 7*time.Minute), Burst(100, 17*time.Minute), Burst(100, 27*time.Minute),
				Burst(100, 37*time.Minute), Poisson(0.58, 0, time.Hour)),
		},
		{
			Name:      "concurrency-load-0.9",
			About:     "5 calls at a time that take a second on average; a random load of 90 % for 20 minutes",
			Options:   fiveAtOnce,
			Providers: five,
			Arrivals:  Poisson(4.5, 0, 20*time.Minute),
			Operation: aSecond,
		},
		{
			Name:      "concurrency-load-1.5",
			About:     "5 calls at a time that take a second on average; a random load of 150 % for 5 minutes",
			Options:   fiveAtOnce,
			Providers: five,
			Arrivals:  Poisson(7.5, 0, 5*time.Minute),
			Operation: aSecond,
		},
		{
			Name:      "concurrency-burst",
			About:     "5 calls at a time that take a second on average; 1,000 messages at once",
			Options:   fiveAtOnce,
			Providers: five,
			Arrivals:  Burst(1000, 10300*time.Millisecond),
			Operation: aSecond,
		},
		{
			Name:      "long-tail",
			About:     "5 calls at a time: half take less than 0.5 s, one in a hundred 8 s, some up to a minute; 200 messages, and a load of 70 % for 20 minutes",
			Options:   fiveAtOnce,
			Providers: five,
			Arrivals:  Mixed(Burst(200, 10300*time.Millisecond), Poisson(3.3, 0, 20*time.Minute)),
			Operation: AtMost(time.Minute, LogNormal(500*time.Millisecond, 1.2)),
		},
		{
			Name:      "outage-1h",
			About:     "a leaky bucket of 200 that drains by 10 a second; an hour without consumers when 10,000 messages wait, then a load of 50 %",
			Options:   leaky200,
			Providers: func() []Provider { return []Provider{LeakyBucket(200, 10)} },
			Arrivals:  Mixed(Burst(10000, 300*time.Millisecond), Poisson(5, time.Hour, time.Hour+30*time.Minute)),
			Outage:    Outage{5 * time.Second, time.Hour},
		},
		{
			Name:      "crashes-1%",
			About:     "5 calls at a time that take a second on average; 1 % of the holders die; a random load of 60 % for 20 minutes",
			Options:   fiveAtOnce,
			Providers: five,
			Arrivals:  Poisson(3, 0, 20*time.Minute),
			Operation: aSecond,
			Crashes:   0.01,
		},
		{
			Name:       "duplicates-1%",
			About:      "a leaky bucket of 40 that drains by 2 a second; 1 % of the messages are delivered twice; 1,000 and a load of 60 %",
			Options:    leaky40,
			Providers:  leakyBucket40,
			Arrivals:   busy,
			Duplicates: 0.01,
		},
		{
			Name:      "lost-1%",
			About:     "a leaky bucket of 40 that drains by 2 a second; 1 % of the postponed messages never come back; 1,000 and a load of 60 %",
			Options:   leaky40,
			Providers: leakyBucket40,
			Arrivals:  busy,
			Lost:      0.01,
		},
		{
			Name:    "two-windows",
			About:   "a leaky bucket of 40 that drains by 2 a second, 100 in each minute, 5 at a time. 500 messages, and a random load of 60 % for half an hour",
			Options: bucketAndMinute,
			Providers: func() []Provider {
				return []Provider{LeakyBucket(40, 2), FixedWindow(100, time.Minute), Concurrency(5)}
			},
			Arrivals:  Mixed(Burst(500, 10300*time.Millisecond), Poisson(0.95, 0, 30*time.Minute)),
			Operation: Exponential(300 * time.Millisecond),
		},
		{
			Name:    "two-windows-costs",
			About:   "a leaky bucket of 200 points that drains by 20 a second, 1,000 points in each minute, 5 at a time. 1 to 10 points, settled up or down by 3",
			Options: pointsAndMinute,
			Providers: func() []Provider {
				return []Provider{LeakyBucket(200, 20), FixedWindow(1000, time.Minute), Concurrency(5)}
			},
			Arrivals:  Mixed(Burst(1000, 10300*time.Millisecond), Poisson(1.7, 0, 30*time.Minute)),
			Operation: Exponential(300 * time.Millisecond),
			Costs:     UniformCost(1, 10, 3),
		},
		{
			Name:      "day-curve",
			About:     "50 entities with a token bucket of 20 that gains one a minute; a day with most at noon, for one in six more than the limit",
			Options:   orders20,
			Providers: func() []Provider { return []Provider{TokenBucket(20, 1.0/60)} },
			Entities:  50,
			Arrivals: func(r *rand.Rand) []time.Duration {
				return Day(0.006 * math.Exp(r.NormFloat64()))(r)
			},
			Operation: aSecond,
			Processes: 4,
		},
		limitsChanged(),
		{
			Name:      "throttled-while-booked",
			About:     "a leaky bucket of 200 that drains by 10 a second; 2,000 messages, and after 20 s the provider closes for a minute; then a load of 50 %",
			Options:   leaky200,
			Providers: func() []Provider { return []Provider{LeakyBucket(200, 10)} },
			Changes:   []Change{{At: 20 * time.Second, Throttle: time.Minute}},
			Arrivals:  Mixed(Burst(2000, 300*time.Millisecond), Poisson(5, time.Minute, 10*time.Minute)),
		},
		{
			Name:        "lost-tickets-10%",
			About:       "5 calls at a time that take a second on average; 10 % of the postponements lose their ticket; a random load of 90 % for 20 minutes",
			Options:     fiveAtOnce,
			Providers:   five,
			Arrivals:    Poisson(4.5, 0, 20*time.Minute),
			Operation:   aSecond,
			LostTickets: 0.1,
		},
		{
			Name:      "wrong-guess",
			About:     "5 calls at a time that take a second on average, but are thought to take ten; a random load of 90 % for 20 minutes",
			Options:   fiveAtOnceGuessed10,
			Providers: five,
			Arrivals:  Poisson(4.5, 0, 20*time.Minute),
			Operation: aSecond,
		},
		{
			Name:      "both-kinds",
			About:     "a leaky bucket of 40 that drains by 2 a second; one in four callers asks GetDelay and has no ticket; 1,000 and a load of 60 %",
			Options:   leaky40,
			Providers: leakyBucket40,
			Arrivals:  busy,
			Plain:     0.25,
		},
	}
	for i := range all {
		s := &all[i]
		s.Travel, s.Processes = travel, cmp.Or(s.Processes, 2)
		if s.Operation == nil {
			s.Operation = Fixed(200 * time.Millisecond)
		}
	}
	return append(all, Scenario{
		Name:      "estimates-x10",
		About:     "a leaky bucket of 2,000 points that drains by 100 a second. 5,000 messages that are thought to cost 10 points and cost one, and a load of 60 % for 5 minutes",
		Options:   points2000,
		Providers: func() []Provider { return []Provider{LeakyBucket(2000, 100)} },
		Arrivals:  Mixed(Burst(5000, 300*time.Millisecond), Poisson(60, 0, 5*time.Minute)),
		Operation: Fixed(10 * time.Millisecond),
		Costs:     func(*rand.Rand) (int, int) { return 10, 1 },
		Processes: 2,
	})
}

// limitsChanged has a provider whose plan changes, and drip is told. A limit is lowered in drip before the provider does
// it, so that no request under the old one is still on its way, and raised after that. Besides, drip gains by the new
// rate from its last run on: that is not more than the provider has brought, because here messages wait when it is
// raised, so something has run in each interval.
func limitsChanged() Scenario {
	bucket := func(at time.Duration, size, perSecond float64) Change {
		return Change{At: at, Provider: func(p Provider, ms int64) { p.(*tokenBucket).change(ms, size, perSecond) }}
	}
	limit := func(at time.Duration, size, rate int) Change {
		return Change{At: at, Limit: &drip.Limit{Size: size, RefreshRate: rate}}
	}
	return Scenario{
		Name:      "limits-changed",
		About:     "a token bucket of 40 that gains 2 a second, after 5 minutes 80 and 4 a second, after 10 minutes 20 and 1 a second. 1,000 messages, and 1 a second for 15 minutes",
		Options:   leaky40BySecond,
		Providers: func() []Provider { return []Provider{TokenBucket(40, 2)} },
		// As with leaky40BySecond: Size is 80 - 4 - 0.2 and 20 - 1 - 0.05, rounded down.
		Changes: []Change{
			bucket(5*time.Minute, 80, 4),
			limit(5*time.Minute+time.Second, 75, 4),
			limit(10*time.Minute-time.Second, 18, 1),
			bucket(10*time.Minute, 20, 1),
		},
		Arrivals: Mixed(Burst(1000, 10300*time.Millisecond), Poisson(1, 0, 15*time.Minute)),
	}
}
