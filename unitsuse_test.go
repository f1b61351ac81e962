package drip_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// Twenty tenants share the limit of a language model: calls, input and output tokens. Output is estimated too high, by a factor
// of ten at most. A provider that counts for itself refuses nothing, the unit that binds is used, and the tenants, of which one
// has half of the load, get the same at most.
func TestModelShared(t *testing.T) {
	const tenants, minutes, begin = 20, 20, 1_700_000_040_000
	perMinute := map[string]float64{"": 600, "input": 300_000, "output": 60_000}
	evenly := func(n int, each time.Duration, unit string) drip.Window { // n a minute, a tenth at once
		return drip.Window{Size: n / 10, RefreshRate: int(float64(n) * each.Minutes()), RefreshInterval: each, Unit: unit}
	}
	for name, windows := range map[string][]drip.Window{
		"by the second": {evenly(600, time.Second, ""), evenly(300_000, time.Second, "input"), evenly(60_000, time.Second, "output")},
		"by the minute": {
			{Size: 600, RefreshInterval: time.Minute}, {Size: 300_000, RefreshInterval: time.Minute, Unit: "input"},
			{Size: 60_000, RefreshInterval: time.Minute, Unit: "output"},
		},
	} {
		for short, c := range map[string]struct {
			input, output, thought int
			small                  float64 // of the calls of the small tenants, at least; a call waits a grain of the calendar
		}{
			"calls": {200, 20, 60, 0.95}, "input": {2000, 20, 60, 0.95},
			"output": {200, 300, 900, 0.8}, // nearly a grain each
		} {
			t.Run(name+"/"+short, func(t *testing.T) {
				now := int64(begin)
				b := newBucket(t, drip.Options{
					Size: 1 << 20, Start: time.UnixMilli(0), Clock: func() time.Time { return time.UnixMilli(now) },
					Shared: map[string]drip.Limit{"model": {Windows: windows}},
				})
				rnd := rand.New(rand.NewPCG(1, 1))
				type call struct {
					tenant              int
					ticket              drip.Ticket
					lease               drip.Lease
					input, output, hops int
				}
				due := map[int64][]*call{}
				mean := max(1/perMinute[""], float64(c.input)/2/perMinute["input"], float64(c.output)/perMinute["output"]) // of a minute
				n, wanted := 0, 0
				for at := 0.0; at < minutes*60_000; at += rnd.ExpFloat64() * mean * 60_000 / 1.3 {
					tenant := 0
					if rnd.IntN(2) == 0 {
						tenant = rnd.IntN(tenants)
					}
					output := max(1, rnd.IntN(2*c.output))
					if rnd.IntN(10) == 0 {
						output = max(1, c.thought/10)
					}
					due[begin+int64(at)] = append(due[begin+int64(at)], &call{tenant: tenant, input: 1 + rnd.IntN(c.input), output: min(output, c.thought)})
					n++
					if tenant > 0 {
						wanted++
					}
				}
				levels, used, over := map[string]float64{}, map[string]float64{}, 0
				window := int64(begin)
				charge := func(unit string, n, real float64, w drip.Window) {
					levels[unit] += n
					used[unit] += real
					if n > 0 && levels[unit] > float64(w.Size)+1e-6 {
						over++
					}
				}
				postponed, ran, hops := 0, 0, 0
				small := 0 // calls of the others that ran
				for ; now < begin+minutes*60_000; now++ {
					for window+windows[0].RefreshInterval.Milliseconds() <= now { // the cost that ran in an interval, and the capacity left before
						window += windows[0].RefreshInterval.Milliseconds()
						for _, w := range windows {
							rate := w.RefreshRate
							if rate == 0 {
								rate = w.Size
							}
							levels[w.Unit] = max(0, levels[w.Unit]-float64(rate))
						}
					}
					for _, m := range due[now] {
						id := fmt.Sprint("tenant-", m.tenant)
						if m.lease != (drip.Lease{}) {
							if err := b.Settle(t.Context(), id, m.lease, 1, drip.Costs{"output": m.output}); err != nil {
								t.Fatal(err)
							}
							used["output"] += float64(m.output)
							continue
						}
						a, err := b.Admit(t.Context(), id, drip.Request{Ticket: m.ticket, Costs: drip.Costs{"input": m.input, "output": c.thought}})
						if err != nil {
							t.Fatal(err)
						}
						if a.Delay > 0 {
							postponed++
							m.hops++
							m.ticket = a.Ticket
							at := now + a.Delay.Milliseconds() + rnd.Int64N(20)
							due[at] = append(due[at], m)
							continue
						}
						m.lease = a.Lease
						ran++
						hops = max(hops, m.hops)
						if m.tenant > 0 {
							small++
						}
						charge("", 1, 1, windows[0])
						charge("input", float64(m.input), float64(m.input), windows[1])
						charge("output", float64(m.output), 0, windows[2]) // the window counts the real output, at most the estimate
						due[now+200] = append(due[now+200], m)
					}
					delete(due, now)
				}
				share := used[short] / (perMinute[short] * minutes)
				if short == "calls" {
					share = used[""] / (perMinute[""] * minutes)
				}
				t.Logf("%d of %d calls, %.3f of %s used, %.2f postponements each, %d at most, %d over; %d of %d of the small tenants", ran, n, share, short, float64(postponed)/float64(ran), hops, over, small, wanted)
				if over > 0 || share < 0.97 || float64(small) < c.small*float64(wanted) {
					t.Errorf("%d over, %.3f used, %d of %d of the small tenants ran", over, share, small, wanted)
				}
			})
		}
	}
}
