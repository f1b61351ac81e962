package lab_test

import (
	"fmt"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/lab"
)

// A shop whose provider has a leaky bucket of 40 that drains by 2 a second, and 200 messages at once.
func ExampleRun() {
	report, err := lab.Run(lab.Scenario{
		Name:      "sale",
		Options:   drip.Options{Size: 38, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond},
		Providers: func() []lab.Provider { return []lab.Provider{lab.LeakyBucket(40, 2)} },
		Arrivals:  lab.Burst(200, time.Minute),
		Operation: lab.Fixed(200 * time.Millisecond),
	}, 1, lab.Admit)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range report.Results {
		fmt.Printf("%s: %d messages in %v, at most %d postponements each, %d calls over the limit\n",
			r.Policy, r.Done, r.Makespan, r.Redeliveries.Max, r.OverLimit)
	}
	// Output:
	// admit: 200 messages in 1m21.2s, at most 1 postponements each, 0 calls over the limit
	// optimum: 200 messages in 1m21.2s, at most 0 postponements each, 0 calls over the limit
}
