package lab

import (
	"fmt"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

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
