package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// Nobody tells drip how long operations take. While the first ones run, the others do not ask again and again.
func TestLongOperations(t *testing.T) {
	for _, tokens := range []int{1, 5, 40} {
		for long, most := range map[time.Duration]float64{30 * time.Second: 22, 2 * time.Minute: 25, 10 * time.Minute: 60} {
			got, _ := beside(t, Scenario{
				Arrivals: Burst(max(20, 5*tokens), 0), Operation: Fixed(long), Options: drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: tokens},
			}, 1)
			asks := got.HeldAsks + got.Redeliveries.Mean
			tell(t, asks > most || got.Done != got.Messages || got.Utilisation < 0.88, "%d of %v at once: %d of %d messages ran, %.2f of the tokens were used, a message asked %.0f times; want at most %.0f",
				tokens, long, got.Done, got.Messages, got.Utilisation, asks, most)
		}
	}
}

// One operation that takes long is no reason to put off all others: the next ones may be short.
func TestOperationsOfAllLengths(t *testing.T) {
	for seed := range uint64(20) {
		s := Scenario{
			Name: "log-normal", Arrivals: Burst(150, 0), Operation: AtMost(100*time.Second, LogNormal(time.Second/2, 2)),
			Options: drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: 1},
		}
		if got := mustRun(t, s, seed, Admit).Results[0]; got.Done != got.Messages || got.Utilisation < 0.8 {
			t.Errorf("seed %d: %d of %d messages ran, the token was in use for %.2f of the time", seed, got.Done, got.Messages, got.Utilisation)
		}
	}
}

// With a WaitForToken that is ten times too long, or much too short, a burst takes about as long as with the right one.
func TestWrongWaitForToken(t *testing.T) {
	for _, tokens := range []int{1, 5, 40} {
		for _, took := range []time.Duration{time.Second, 20 * time.Second} {
			for _, guess := range []time.Duration{took / 100, took / 10, took, took * 10} {
				nearBest(t, Scenario{
					Name: fmt.Sprintf("%d of %v, thought to take %v", tokens, took, guess), Arrivals: Burst(60*tokens, 0), Operation: AtMost(20*took, Exponential(took)),
					Options: drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: tokens, WaitForToken: guess, Lease: time.Hour},
				}, 1.25, 20)
			}
		}
	}
}

// A few messages wait for tokens while long operations hold all of them. They need not ask as often as many tokens come back.
func TestFewWaitForTokens(t *testing.T) {
	for _, tokens := range []int{5, 20, 50} {
		for _, expected := range []time.Duration{4 * time.Second, 20 * time.Second} {
			s := Scenario{
				Options:  drip.Options{Size: plenty, RefreshRate: plenty, Concurrency: tokens, WaitForToken: expected},
				Arrivals: Burst(tokens+max(1, tokens/20), begun), Operation: Fixed(20 * time.Second), Hold: -1,
			}
			got := mustRun(t, s, 1, Admit)
			tell(t, got.Results[0].Redeliveries.Max > 70 || got.Results[0].Makespan > got.Results[1].Makespan*107/100,
				"%d tokens, expected %v: %+v; %v, at best %v", tokens, expected, got.Results[0].Redeliveries, got.Results[0].Makespan, got.Results[1].Makespan)
		}
	}
}

// Until the first operation has ended nobody knows how long they take. The more messages wait for each token, the less often each asks.
func TestBurstOfUnknownOperations(t *testing.T) {
	for _, c := range []struct {
		tokens, messages int
		postponements    float64
	}{{1, 20, 10.5}, {5, 20, 7.5}, {5, 100, 7.5}, {20, 100, 5.5}, {100, 600, 5.5}} {
		report := mustRun(t, Scenario{
			Options:  drip.Options{Size: plenty, RefreshRate: plenty, Concurrency: c.tokens},
			Arrivals: Burst(c.messages, begun), Operation: Fixed(time.Second), Late: Uniform(0, 20*time.Millisecond), Hold: -1,
		}, 1, Admit)
		got, best := report.Results[0], report.Results[1]
		tell(t, got.Redeliveries.Mean > c.postponements || got.Makespan > best.Makespan*12/10, "%d messages, %d at a time: %.2f postponements, %v, at best %v",
			c.messages, c.tokens, got.Redeliveries.Mean, got.Makespan, best.Makespan)
	}
}

// A burst waits for many tokens, after a pause in which only the longest operations ended. Their slots are as far apart as tokens come
// back, and few messages ask in vain.
func TestManyTokens(t *testing.T) {
	const mean = 3 * time.Second
	for _, tokens := range []int{100, 400} {
		for name, operation := range map[string]Distribution{
			"fixed": Fixed(mean), "uniform": Uniform(mean/3, 5*mean/3), "exponential": AtMost(20*mean, Exponential(mean)), "log-normal": AtMost(10*mean, LogNormal(6*mean/10, 1)),
		} {
			got, best := beside(t, Scenario{
				Options:   drip.Options{Size: plenty, RefreshRate: plenty, Concurrency: tokens},
				Arrivals:  Mixed(Steady(float64(tokens)*0.4/mean.Seconds(), 0, 55*time.Second), Burst(24*tokens, time.Minute)),
				Operation: operation, Late: Uniform(0, 20*time.Millisecond), Hold: -1,
			}, 1)
			took, asks := ratio(got.Makespan-time.Minute, best.Makespan-time.Minute), got.Redeliveries.Mean*float64(got.Messages)/float64(24*tokens)
			tell(t, took > 1.06 || asks > 2.4, "%d tokens, %s: %.2f times the best, %.2f postponements", tokens, name, took, asks)
		}
	}
}

// Callers of GetDelay wait for tokens beside tickets. They have no place in the line, and leave no tokens idle.
func TestGetDelayBesideTickets(t *testing.T) {
	for _, c := range []struct {
		tokens      int
		took, guess time.Duration
		plain       float64 // the part of the callers
		most        float64 // times the best
	}{
		{1, time.Second, 10 * time.Millisecond, 0.5, 1.2},
		{1, 5 * time.Second, 10 * time.Millisecond, 0.5, 1.2},
		{1, 20 * time.Second, 500 * time.Millisecond, 0.5, 1.2},
		{1, 20 * time.Second, 10 * time.Millisecond, 0.5, 1.2},
		{5, 20 * time.Second, 50 * time.Millisecond, 0.5, 1.2},
		{5, 20 * time.Second, 500 * time.Millisecond, 0.95, 1.85},
		{5, 20 * time.Second, 10 * time.Millisecond, 0.95, 1.85},
	} {
		nearBest(t, Scenario{
			Name: fmt.Sprintf("%+v", c), Arrivals: Burst(100*c.tokens, 0), Operation: Fixed(c.took), Plain: c.plain,
			Options: drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: c.tokens, WaitForToken: c.guess, Lease: time.Hour},
		}, c.most, anyNumber)
	}
}

// A caller of GetDelay that lacks only a token books no capacity each time it asks.
func TestGetDelayBooksNoTokens(t *testing.T) {
	nearBest(t, Scenario{
		Name: "asks", Arrivals: Burst(60, 0), Operation: Fixed(2 * time.Second), Plain: 0.3,
		Options: drip.Options{Size: 100, RefreshRate: 100, Concurrency: 5, Windows: []drip.Window{{Size: 150, RefreshInterval: time.Hour}}},
	}, 1.25, anyNumber)
}

// After an outage, messages are too late for their slots, and a window of a second denies most of them. They use what is left of the
// day: others have the slots of tomorrow.
func TestTooLateInALongWindow(t *testing.T) {
	for _, c := range []struct{ second, day, messages, from, to int }{{10, 1000, 1500, 20, 80}, {1, 50, 75, 1, 61}, {50, 1000, 1400, 5, 15}} {
		from, to := time.Duration(c.from)*time.Second, time.Duration(c.to)*time.Second
		got, best := nearBest(t, Scenario{
			Name: fmt.Sprintf("%+v", c), Arrivals: Burst(c.messages, 0), Operation: Fixed(50 * time.Millisecond), Outage: Outage{From: from, To: to},
			Options: drip.Options{
				Size: c.second, RefreshRate: c.second, Concurrency: plenty, Windows: []drip.Window{{Size: c.day, RefreshInterval: 24 * time.Hour}},
			},
		}, anyNumber, 2)
		if got.Makespan > best.Makespan+to {
			t.Errorf("%+v: %v, at best %v", c, got.Makespan, best.Makespan)
		}
	}
}

// Real costs above the estimates deny a few tickets, while each interval before the refresh of a longer window is booked. Such a ticket
// does not ask in each of these intervals.
func TestDeniedBeforeARefresh(t *testing.T) {
	for _, c := range []struct {
		size, long int
		interval   time.Duration
		longer     time.Duration
		perSecond  float64
		costs      Costs
	}{
		{10, 1000, 10 * time.Second, time.Hour, 0.2, UniformCost(1, 5, 1)},
		{10, 5000, 10 * time.Second, 24 * time.Hour, 0.15, UniformCost(1, 5, 1)},
		{8, 125, 6667 * time.Millisecond, 20 * time.Minute, 0.17, UniformCost(1, 5, 1)},
		{60, 3000, time.Minute, 24 * time.Hour, 0.1, UniformCost(1, 10, 3)},
	} {
		longer := drip.Window{Size: c.long, RefreshInterval: c.longer}
		got, _ := nearBest(t, Scenario{
			Name: fmt.Sprintf("%d/%v, %d/%v", c.size, c.interval, c.long, c.longer), Arrivals: Poisson(c.perSecond, 0, 2*c.longer),
			Costs: c.costs, Operation: Fixed(2 * time.Second),
			Options: drip.Options{Size: c.size, RefreshRate: c.size, RefreshInterval: c.interval, Windows: []drip.Window{longer}},
		}, 1.04, 1.5)
		tell(t, got.Redeliveries.P99 > 6 || got.Redeliveries.Max > 15, "%s: 99 %% ask at most %d times again, all %d; want 6 and 15", c.longer, got.Redeliveries.P99, got.Redeliveries.Max)
	}
}

// Callers of GetDelay have no tickets. A burst of as many as a day allows runs on that day all the same: each of them runs when it is back,
// and no other one waits for its slot.
func TestGetDelayInADay(t *testing.T) {
	for _, messages := range []int{300, 1000, 1500, 3500} {
		got, best := nearBest(t, Scenario{
			Name: "GetDelay", Arrivals: Burst(messages, 0), Operation: Fixed(50 * time.Millisecond), Late: Uniform(0, 20*time.Millisecond), Plain: 1,
			Options: drip.Options{Size: 2, RefreshRate: 2, Concurrency: plenty, Windows: []drip.Window{{Size: 1000, RefreshInterval: 24 * time.Hour}}},
		}, anyNumber, 1)
		if got.Makespan > best.Makespan+time.Second {
			t.Errorf("%d messages: %v, at best %v", messages, got.Makespan, best.Makespan)
		}
	}
}

// So it is within a shared limit. Its slots are in grains of a second, so short bursts take longer.
func TestWrongSharedWaitForToken(t *testing.T) {
	for _, tokens := range []int{1, 5, 20} {
		for _, guess := range []time.Duration{50 * time.Millisecond, 5 * time.Second, 50 * time.Second} {
			got := nearFluid(t, SharedScenario{
				Name: fmt.Sprintf("%d at once, thought to take %v", tokens, guess), Entities: entities(10), Operation: Uniform(2*time.Second, 8*time.Second), Unmeasured: true,
				Options:  drip.Options{Size: 1000, RefreshRate: 1000, Shared: map[string]drip.Limit{"app": {Size: 1000, Concurrency: tokens, WaitForToken: guess}}},
				Messages: sent(shuffled, times(10, 5*tokens)...),
			}, anyNumber, 10)
			if best := got.Report.Results[1]; got.Makespan > best.Makespan*3/2 {
				t.Errorf("%s: %v, at best %v", got.Scenario.Name, got.Makespan, best.Makespan)
			}
		}
	}
}

// The same holds within a shared limit, whose leases are renewed as well.
func TestLongSharedOperations(t *testing.T) {
	for _, long := range []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute} {
		got := nearFluid(t, SharedScenario{
			Name: long.String(), Entities: entities(10), Operation: Fixed(long), Hold: 5 * time.Second,
			Options:  drip.Options{Size: 1000, RefreshRate: 1000, Shared: map[string]drip.Limit{"app": {Size: 1000, RefreshRate: 1000, Concurrency: 5}}},
			Messages: sent(inTurn, times(10, 10)...),
		}, anyNumber, 120)
		if got.Use < 0.85 {
			t.Errorf("%v: %.2f of the tokens were used", long, got.Use)
		}
	}
}

// An operation that takes longer than any lease is an error, and not two million renewals.
func TestOperationOutlivesItsLease(t *testing.T) {
	for _, err := range errorsOf(drip.Options{Size: 1, Lease: time.Minute, MaxLease: time.Hour}, 1, 2*time.Hour) {
		if !errors.Is(err, drip.ErrNoLease) || !strings.Contains(err.Error(), "MaxLease is 1h0m0s, and an operation takes 2h0m0s") {
			t.Errorf("error %v, want ErrNoLease", err)
		}
	}
}

// errorsOf are the errors of messages of one entity, all at once, and of the same within a shared limit.
func errorsOf(o drip.Options, messages int, operation time.Duration) []error {
	_, own := Run(Scenario{Arrivals: Burst(messages, 0), Operation: Fixed(operation), Options: o}, 1, Admit)
	o.Shared = map[string]drip.Limit{"app": {Size: 5}}
	_, within := RunShared(SharedScenario{
		Entities: make([]SharedEntity, 1), Operation: Fixed(operation), Options: o, Messages: sentAt(0, inTurn, 0, messages),
	}, 1)
	return []error{own, within}
}

// The bound on the events of a run follows from the messages: each of them needs at least three.
func TestManyMessages(t *testing.T) {
	free := Policy{Name: "free", New: func(drip.Options) (Limiter, error) { return nothing{}, nil }}
	fewEvents(t)
	s := Scenario{Arrivals: Steady(7, 0, 100*time.Second), Entities: 10, Operation: Fixed(0)}
	for _, got := range mustRun(t, s, 1, free).Results {
		if got.Done != 7000 || got.GaveUp != 0 {
			t.Errorf("%s: %d of %d messages ran", got.Policy, got.Done, got.Messages)
		}
	}
}

// A run whose messages ask again and again is given up.
func TestGivesUp(t *testing.T) {
	fewEvents(t)
	s := Scenario{Arrivals: Burst(3000, 0), Operation: Fixed(0), Options: drip.Options{Size: 38, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond}}
	report := mustRun(t, s, 1, Admit, RetryAfter)
	if got := report.Results[0]; got.Done != 3000 || got.GaveUp != 0 {
		t.Errorf("admit: %d messages ran; it was given up after %d events", got.Done, got.GaveUp)
	}
	if got := report.Results[1]; got.Done >= 3000 || got.GaveUp != 32*3000 {
		t.Errorf("retry-after: %d messages ran; it was given up after %d events", got.Done, got.GaveUp)
	}
}

// fewEvents lets runs be given up soon.
func fewEvents(t *testing.T) {
	before := leastEvents
	leastEvents = 20_000
	t.Cleanup(func() { leastEvents = before })
}

// The renewals of leases are no reason to give a run up. Too many are refused.
func TestManyRenewals(t *testing.T) {
	o := drip.Options{Size: 1000, RefreshRate: 1000, Concurrency: 1000, Lease: 2 * time.Second, MaxLease: 24 * time.Hour}
	s := Scenario{Arrivals: Steady(1, 0, 1000*time.Second), Operation: Fixed(2 * time.Minute), Options: o}
	fewEvents(t)
	if got := mustRun(t, s, 1, Admit).Results[0]; got.Done != 1000 || got.GaveUp != 0 {
		t.Errorf("%d of %d messages ran", got.Done, got.Messages)
	}
	for _, err := range errorsOf(o, 1000, 24*time.Hour) {
		if err == nil || !strings.Contains(err.Error(), "Lease") {
			t.Errorf("86,400,000 renewals: %v", err)
		}
	}
}

// Years in which nothing arrives are no events, and no steps of the optimum.
func TestSharedYears(t *testing.T) {
	const years = 10 * 365 * 24 * time.Hour
	got, err := RunShared(SharedScenario{
		Entities: make([]SharedEntity, 2), Operation: Fixed(0), Options: app(10, 10, 1), Unmeasured: true,
		Messages: func(*rand.Rand) []SharedMessage { return []SharedMessage{{}, {}, {Entity: 1, At: years}} },
	}, 1)
	if err != nil || got.Done != 3 || got.Fluid < years || got.Report.Results[1].Wait.Max > 2*time.Second {
		t.Errorf("%d messages ran, in %v at best, %v; %+v", got.Done, got.Fluid, err, got.Report.Results)
	}
}

// Messages that take decades are refused, before a time overflows.
func TestDecades(t *testing.T) {
	o := drip.Options{Size: 1 << 40, RefreshRate: 1, RefreshInterval: 290_000 * time.Hour}
	_, costly := Run(Scenario{Arrivals: Burst(2, 0), Operation: Fixed(0), Costs: FixedCost(o.Size), Options: o}, 1)
	o.Size = 1
	for _, err := range append(errorsOf(o, 100, 0), costly) {
		if !errors.Is(err, errLong) {
			t.Errorf("error %v, want %v", err, errLong)
		}
	}
}

// Capacity that would have gathered for years is no more than the size.
func TestYearsOfCapacity(t *testing.T) {
	s := Scenario{
		Arrivals: Mixed(Burst(3, 0), Burst(3, 10*365*24*time.Hour)), Operation: Fixed(0), Costs: FixedCost(1 << 40),
		Options: drip.Options{Size: 1 << 40, RefreshRate: 1 << 40, RefreshInterval: time.Millisecond},
	}
	for _, got := range mustRun(t, s, 1).Results {
		if got.Done != 6 || got.Wait.Max > time.Second || got.Utilisation < 0 {
			t.Errorf("%+v", got)
		}
	}
}

// Where tokens are short, slots that are far ahead follow the measured durations, not a WaitForToken that is several times too
// long or too short.
func TestBurstWithAWrongGuess(t *testing.T) {
	for _, c := range []struct {
		guess, operation time.Duration
		tokens           int
		makespan, within float64 // the most for the entity's own tokens, and for tokens of a shared limit
		postponements    float64
	}{
		{200 * time.Millisecond, 20 * time.Millisecond, 1, 2.1, 3, 2.6},
		{time.Second, 50 * time.Millisecond, 1, 1.4, 1.8, 2.7},
		{time.Second, 200 * time.Millisecond, 5, 1.1, 1.1, 1.2},
		{50 * time.Millisecond, 50 * time.Millisecond, 1, 1.1, 1.1, 1.5},
		{200 * time.Millisecond, time.Second, 1, 1.1, 1.25, 7},
	} {
		for _, shared := range []bool{false, true} {
			name := fmt.Sprintf("%v instead of %v, %d tokens, shared %v", c.guess, c.operation, c.tokens, shared)
			most, o := c.makespan, drip.Options{Size: 1_000_000, RefreshRate: 1_000_000, Concurrency: c.tokens, WaitForToken: c.guess}
			if shared {
				most, o = c.within, drip.Options{Size: 1_000_000, Shared: map[string]drip.Limit{"app": {Concurrency: c.tokens, WaitForToken: c.guess}}}
			}
			got, _ := beside(t, Scenario{
				Name: name, Options: o, Arrivals: Burst(1500, 300*time.Millisecond), Operation: Fixed(c.operation),
				Travel: time.Millisecond, Processes: 2, Hold: 5 * time.Second,
			}, 1)
			makespan := float64(got.Makespan) / float64(1500*c.operation/time.Duration(c.tokens))
			tell(t, makespan > most || got.Redeliveries.Mean > c.postponements,
				"%s: %.2f of the best makespan, %.2f postponements; want at most %v and %v", name, makespan, got.Redeliveries.Mean, most, c.postponements)
		}
	}
}

// Consumers that hold no messages ask a few times for each, also if operations are slow and of random lengths, and leave few
// tokens idle. They cannot know when a token comes back.
func TestSlowOperations(t *testing.T) {
	for _, c := range []struct {
		tokens        int
		operation     time.Duration // the mean
		used, within  float64       // the least part of the time of the entity's own tokens, and of the tokens of a shared limit
		postponements float64       // the most
		p99           int
	}{
		{1, 2 * time.Second, 0.85, 0.7, 9, 36},
		{1, 10 * time.Second, 0.85, 0.7, 9.5, 38},
		{5, 2 * time.Second, 0.92, 0.8, 7, 26},
		{5, 10 * time.Second, 0.92, 0.88, 8, 32},
		{25, 2 * time.Second, 0.94, 0.9, 5, 16},
		{25, 10 * time.Second, 0.94, 0.88, 5, 16},
	} {
		for _, load := range []float64{1.2, 100} { // of what the tokens can do
			var best time.Duration // the makespan with the entity's own tokens
			for _, shared := range []bool{false, true} {
				const messages = 1000
				least := c.used
				if shared {
					least = c.within
				}
				name := fmt.Sprintf("%d tokens, operations of %v, load %v, shared %v", c.tokens, c.operation, load, shared)
				o := drip.Options{Size: 1_000_000, RefreshRate: 1_000_000, Concurrency: c.tokens, WaitForToken: c.operation, Lease: time.Minute}
				if shared {
					o = drip.Options{Size: 1_000_000, Lease: time.Minute, Shared: map[string]drip.Limit{"app": {Concurrency: c.tokens, WaitForToken: c.operation}}}
				}
				rate := load * float64(c.tokens) / c.operation.Seconds()
				admit, optimum := beside(t, Scenario{
					Name: name, Options: o, Arrivals: Poisson(rate, 0, time.Duration(messages/rate*float64(time.Second))),
					Operation: AtMost(40*time.Second, Exponential(c.operation)), Late: Uniform(0, 20*time.Millisecond), Hold: -1,
				}, 1)
				if !shared {
					best = optimum.Makespan
				}
				used := float64(best) / float64(admit.Makespan)
				tell(t, used < least || admit.Redeliveries.Mean > c.postponements || admit.Redeliveries.P99 > c.p99,
					"%s: %.2f used, %.2f postponements, 99 %% at most %d; want at least %v, at most %v, %d",
					name, used, admit.Redeliveries.Mean, admit.Redeliveries.P99, least, c.postponements, c.p99)
			}
		}
	}
}
