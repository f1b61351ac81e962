package lab

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// A lost ticket costs its own message a slot, not the entity.
func TestRandomLoadsWithLostTickets(t *testing.T) {
	for _, c := range []struct{ lost, p95 float64 }{{0, 1.12}, {0.01, 1.12}, {0.1, 1.2}, {0.5, 1.3}, {1, 1.3}} {
		var makespans []float64
		for seed := range uint64(100) {
			s := RandomLoad(seed)
			s.LostTickets = c.lost
			admit, optimum := beside(t, s, seed)
			if admit.Done < admit.Messages {
				t.Errorf("seed %d, %v of the tickets lost: %d of %d messages ran", seed, c.lost, admit.Done, admit.Messages)
			}
			makespans = append(makespans, float64(admit.Makespan)/float64(optimum.Makespan))
		}
		slices.Sort(makespans)
		n := len(makespans)
		tell(t, makespans[n*95/100] > c.p95, "%v of the tickets lost: makespan %.2f/%.2f/%.2f of the optimum (median, p95, most); want a p95 of %.2f at most",
			c.lost, makespans[n/2], makespans[n*95/100], makespans[n-1], c.p95)
	}
}

// Which tickets are lost is chance. Where an interval brings few operations, one without a lost ticket says nothing about the next.
func TestLostTicketsOfFew(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		for _, lost := range []float64{0.3, 0.5, 0.7} {
			nearBest(t, Scenario{
				Name: fmt.Sprintf("%d a second, %v lost", size, lost), Options: drip.Options{Size: size, RefreshRate: size, RefreshInterval: time.Second, Concurrency: 1000},
				Arrivals: Burst(300*size, 300*time.Millisecond), Operation: Fixed(50 * time.Millisecond), Travel: 20 * time.Millisecond,
				Processes: 2, Hold: -1, LostTickets: lost,
			}, 1.1, anyNumber)
		}
	}
}
