package lab_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/lab"
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
		{200 * time.Millisecond, 20 * time.Millisecond, 1, 2.1, 3, 2.5},
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
			report, err := lab.Run(lab.Scenario{
				Name: name, Options: o, Arrivals: lab.Burst(1500, 300*time.Millisecond), Operation: lab.Fixed(c.operation),
				Travel: time.Millisecond, Processes: 2, Hold: 5 * time.Second,
			}, 1, lab.Admit)
			if err != nil {
				t.Fatal(err)
			}
			admit := report.Results[0]
			makespan := float64(admit.Makespan) / float64(1500*c.operation/time.Duration(c.tokens))
			t.Logf("%s: %.2f of the best makespan, %.2f postponements", name, makespan, admit.Redeliveries.Mean)
			if makespan > most || admit.Redeliveries.Mean > c.postponements {
				t.Errorf("%s: want at most %v of the best makespan, and %v postponements", name, most, c.postponements)
			}
		}
	}
}
