package provider

import (
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/lab"
)

// provider is one of package simulate that counts as the rule says.
func (r Rule) provider() lab.Provider {
	switch r.kind {
	case leakyBucket:
		return lab.LeakyBucket(float64(r.n), r.perSecond)
	case tokenBucket:
		return lab.TokenBucket(float64(r.n), r.perSecond)
	case fixedWindow:
		return lab.FixedWindow(r.n, r.per)
	case calendar:
		p, err := lab.Calendar(r.n, r.align)
		if err != nil {
			panic(err)
		}
		return p
	case slidingWindow:
		return lab.SlidingWindow(r.n, r.per)
	}
	return lab.Concurrency(r.n)
}

// TestPresetsInTheSimulator sends each preset twice as much as its first rule takes at once, to providers that count by
// the rules for themselves: no call is over the limit, and all are made. Windows whose beginning is not known begin with a
// call, besides.
func TestPresetsInTheSimulator(t *testing.T) {
	for _, p := range Presets() {
		if slices.ContainsFunc(p.Rules, func(r Rule) bool { return r.unit != "" }) {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			l, err := p.Limit(travel)
			ok(t, err)
			first := p.Rules[0]
			cost := max(1, first.n/500) // of each call, or there would be many
			n := 2 * first.n / cost
			policies := []lab.Policy{lab.Admit}
			if cost == 1 { // it knows no other
				policies = append(policies, lab.Classic)
			}
			report, err := lab.Run(lab.Scenario{
				Name:    p.Name,
				Options: Options(l),
				Providers: func() (all []lab.Provider) {
					for _, r := range p.Rules {
						all = append(all, r.provider())
						if r.kind == slidingWindow {
							all = append(all, lab.FirstCallWindow(r.n, r.per))
						}
					}
					return all
				},
				Arrivals: lab.Mixed(
					lab.Burst(n-n/4, 10300*time.Millisecond),
					lab.Poisson(float64(n/4)/60, 0, time.Minute),
				),
				Costs:     lab.FixedCost(cost),
				Operation: lab.Uniform(20*time.Millisecond, 2*time.Second),
				Travel:    travel,
				Processes: 2,
			}, 1, policies...)
			ok(t, err)
			for _, r := range report.Results {
				if r.OverLimit > 0 || r.Done != r.Messages || r.Messages < n/2 {
					t.Errorf("%s: %d calls over the limit, %d of %d made", r.Policy, r.OverLimit, r.Done, r.Messages)
				}
			}
			admit := report.Results[0]
			t.Logf("%d calls in %v, %.2f postponements each", admit.Done, admit.Makespan, admit.Redeliveries.Mean)
		})
	}
}
