package lab

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/drip-go/drip"
)

// RandomLoad returns a scenario that the seed determines: 100 to 1,000 messages, often a backlog among them, for a limit
// of one or two windows, in a third of the cases with few tokens. Its consumers hold no messages.
func RandomLoad(seed uint64) Scenario {
	r := rand.New(rand.NewPCG(seed, 77))
	pick := func(from ...float64) float64 { return from[r.IntN(len(from))] }

	rate := int(pick(1, 2, 5, 10, 50))
	interval := time.Duration(pick(100, 500, 1000, 1000, 1000, 10_000, 60_000)) * time.Millisecond
	o := drip.Options{
		Size: int(math.Ceil(float64(rate) * pick(1, 1, 1.5, 3, 10, 20))), RefreshRate: rate, RefreshInterval: interval,
		Concurrency: 10_000,
	}
	perSecond, operation := float64(rate)/interval.Seconds(), pick(0.05, 0.2, 1, 5)
	if r.IntN(3) == 0 {
		o.Concurrency = max(1, int(perSecond*operation*pick(0.7, 1, 1.5, 3)))
	}
	o.WaitForToken = time.Duration(pick(50, 200, 1000)) * time.Millisecond
	perSecond = min(perSecond, float64(o.Concurrency)/operation)
	if r.IntN(4) == 0 {
		k := pick(5, 10, 30)
		w := drip.Window{Size: max(1, int(float64(rate)*k*pick(0.6, 0.9, 1.5))), RefreshInterval: interval * time.Duration(k)}
		o.Windows = []drip.Window{w}
		perSecond = min(perSecond, float64(w.Size)/w.RefreshInterval.Seconds())
	}

	messages := 100 + r.IntN(900)
	backlog := 0
	if r.IntN(3) > 0 {
		backlog = messages / (1 + r.IntN(3))
	}
	arrivals := []Arrivals{Burst(backlog, 10300*time.Millisecond)}
	if rest := float64(messages - backlog); rest > 0 {
		load := perSecond * pick(0.3, 0.6, 0.8, 0.9, 1.2)
		arrivals = append(arrivals, Poisson(load, 0, time.Duration(rest/load*float64(time.Second))))
	}
	mean := time.Duration(operation * float64(time.Second))
	s := Scenario{
		Name:    fmt.Sprintf("random-%d", seed),
		About:   fmt.Sprintf("about %d messages, %d of them at once", messages, backlog),
		Options: o, Arrivals: Mixed(arrivals...), Travel: travel, Processes: 2, Hold: -1,
		Operation: []Distribution{
			Fixed(mean), AtMost(20*mean, Exponential(mean)), AtMost(20*mean, LogNormal(mean*6/10, 1)),
		}[r.IntN(3)],
	}
	if r.IntN(3) == 0 {
		s.Late = Uniform(0, time.Duration(pick(0.1, 0.5, 1)*float64(interval)))
	}
	return s
}
