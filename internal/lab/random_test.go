package lab_test

import (
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/lab"
)

// A lost ticket costs its own message a slot, not the entity.
func TestRandomLoadsWithLostTickets(t *testing.T) {
	for _, c := range []struct{ lost, p95 float64 }{{0, 1.12}, {0.01, 1.12}, {0.1, 1.2}, {0.5, 1.3}, {1, 1.3}} {
		var makespans []float64
		for seed := range uint64(100) {
			s := lab.RandomLoad(seed)
			s.LostTickets = c.lost
			report, err := lab.Run(s, seed, lab.Admit)
			if err != nil {
				t.Fatal(err)
			}
			admit, optimum := report.Results[0], report.Results[1]
			if admit.Done < admit.Messages {
				t.Errorf("seed %d, %v of the tickets lost: %d of %d messages ran", seed, c.lost, admit.Done, admit.Messages)
			}
			makespans = append(makespans, float64(admit.Makespan)/float64(optimum.Makespan))
		}
		slices.Sort(makespans)
		n := len(makespans)
		t.Logf("%v lost: makespan %.2f/%.2f/%.2f of the optimum (median, p95, most)", c.lost, makespans[n/2], makespans[n*95/100], makespans[n-1])
		if p95 := makespans[n*95/100]; p95 > c.p95 {
			t.Errorf("%v of the tickets lost: the p95 of the makespans is %.2f of the optimum, want at most %.2f", c.lost, p95, c.p95)
		}
	}
}

// Which tickets are lost is chance. Where an interval brings few operations, one without a lost ticket says nothing about the next.
func TestLostTicketsOfFew(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		for _, lost := range []float64{0.3, 0.5, 0.7} {
			s := lab.Scenario{
				Name: "few", Options: drip.Options{Size: size, RefreshRate: size, RefreshInterval: time.Second, Concurrency: 1000},
				Arrivals: lab.Burst(300*size, 300*time.Millisecond), Operation: lab.Fixed(50 * time.Millisecond), Travel: 20 * time.Millisecond,
				Processes: 2, Hold: -1, LostTickets: lost,
			}
			report, err := lab.Run(s, 1, lab.Admit)
			if err != nil {
				t.Fatal(err)
			}
			admit, optimum := report.Results[0], report.Results[1]
			t.Logf("%d a second, %v lost: %v, at best %v, %.2f postponements", size, lost, admit.Makespan, optimum.Makespan, admit.Redeliveries.Mean)
			if times := float64(admit.Makespan) / float64(optimum.Makespan); times > 1.1 {
				t.Errorf("%d a second, %v of the tickets lost: the makespan is %.2f of the optimum, want at most 1.1", size, lost, times)
			}
		}
	}
}
