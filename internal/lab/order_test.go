package lab

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// Operations of different costs within two windows wait about as long as in order of arrival. No newcomer takes the capacity that
// gathers for a booked operation. A denied one keeps its place while a longer window has room for it.
func TestOrderOfCosts(t *testing.T) {
	var ratios []float64
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		rate, most := []int{1, 2, 5, 20, 50}[r.IntN(5)], []int{1, 4, 10, 20}[r.IntN(4)]
		size := max(most, rate*[]int{1, 2, 5, 10, 40}[r.IntN(5)])
		every := []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}[r.IntN(3)]
		all := max(most, int(float64(rate)*every.Seconds()*(0.5+0.7*r.Float64())))
		concurrency := []int{1, 5, 20}[r.IntN(3)]
		second := float64(all) / every.Seconds() * 2 / float64(most+1) // how many operations the longer window allows
		takes := time.Duration(min(0.7*float64(concurrency)/second, 2)*(0.2+0.8*r.Float64())*1000) * time.Millisecond
		s := Scenario{
			Options: drip.Options{
				Size: size, RefreshRate: rate, RefreshInterval: time.Second, Windows: []drip.Window{{Size: all, RefreshInterval: every}},
				Concurrency: concurrency, WaitForToken: takes + time.Millisecond,
			},
			Arrivals: Mixed(
				Burst(min(2000, int(second*every.Seconds()*(1+4*r.Float64()))), 5*time.Second),
				Poisson(second*(0.3+0.5*r.Float64()), 0, 4*every)),
			Operation: Exponential(takes + time.Millisecond),
			Costs:     UniformCost(1, most, r.IntN(most/2+1)),
		}
		got, best := beside(t, s, seed)
		ratios = append(ratios, (got.Wait.P99+time.Second).Seconds()/(best.Wait.P99+time.Second).Seconds())
	}
	if usual := quantile(ratios, .75); usual > 1.25 {
		t.Errorf("99 %% of the messages wait at most %.2f times as long as at best, in three of four loads; want 1.25", usual)
	}
}

// Newcomers go before booked operations in an interval that has room for both. A newcomer that waits for a token counts once it runs.
func TestOrderBesideBookings(t *testing.T) {
	s := Scenario{
		Options: drip.Options{
			Size: 500, RefreshRate: 50, RefreshInterval: time.Second, Windows: []drip.Window{{Size: 468, RefreshInterval: 10 * time.Second}},
			Concurrency: 5, WaitForToken: 39 * time.Millisecond,
		},
		Arrivals:  Mixed(Burst(475, 5200*time.Millisecond), Poisson(32, 0, 40*time.Second)),
		Operation: Exponential(39 * time.Millisecond),
	}
	for seed := range uint64(5) {
		got, best := beside(t, s, seed)
		if ratio := got.Wait.P99.Seconds() / best.Wait.P99.Seconds(); ratio > 1.4 || got.Redeliveries.Mean > 0.7 {
			t.Errorf("seed %d: 99 %% wait at most %.2f times as long as at best, %.2f postponements; want 1.4 and 0.7", seed, ratio, got.Redeliveries.Mean)
		}
	}
}
