package drip_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
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
			"output": {200, 300, 900, 0.9}, // nearly a grain each
		} {
			t.Run(name+"/"+short, func(t *testing.T) {
				const end = begin + minutes*60_000
				rnd := rand.New(rand.NewPCG(1, 1))
				levels, used, over := map[string]float64{}, map[string]float64{}, 0
				window := int64(begin)
				charge := func(unit string, n, real float64, w drip.Window) {
					levels[unit] += n
					used[unit] += real
					if n > 0 && levels[unit] > float64(w.Size)+1e-6 {
						over++
					}
				}
				real := map[*buckettest.Call]int{} // output
				ran, small := 0, 0                 // small: calls of the others that ran
				load := buckettest.Load{
					Options: drip.Options{Size: 1 << 20, Shared: map[string]drip.Limit{"model": {Windows: windows}}},
					End:     end,
					Late:    func() int64 { return rnd.Int64N(20) },
					Runs: func(m *buckettest.Call, now int64) int64 {
						for interval := windows[0].RefreshInterval.Milliseconds(); window+interval <= now; window += interval {
							for _, w := range windows { // the cost that ran in an interval, and the capacity left before
								levels[w.Unit] = max(0, levels[w.Unit]-float64(cmp.Or(w.RefreshRate, w.Size)))
							}
						}
						ran++
						if m.Entity != "tenant-0" {
							small++
						}
						input := float64(m.Request.Costs["input"])
						charge("", 1, 1, windows[0])
						charge("input", input, input, windows[1])
						charge("output", float64(real[m]), 0, windows[2]) // the window counts the real output, at most the estimate
						return now + 200
					},
					Settles: func(m *buckettest.Call, _ int64) drip.Costs {
						used["output"] += float64(real[m])
						return drip.Costs{"output": real[m]}
					},
				}
				mean := max(1/perMinute[""], float64(c.input)/2/perMinute["input"], float64(c.output)/perMinute["output"]) // of a minute
				wanted := 0
				for at := 0.0; at < minutes*60_000; at += rnd.ExpFloat64() * mean * 60_000 / 1.3 {
					tenant := 0
					if rnd.IntN(2) == 0 {
						tenant = rnd.IntN(tenants)
					}
					output := max(1, rnd.IntN(2*c.output))
					if rnd.IntN(10) == 0 {
						output = max(1, c.thought/10)
					}
					m := &buckettest.Call{
						At: begin + int64(at), Entity: fmt.Sprint("tenant-", tenant),
						Request: drip.Request{Costs: drip.Costs{"input": 1 + rnd.IntN(c.input), "output": c.thought}},
					}
					load.Calls, real[m] = append(load.Calls, m), min(output, c.thought)
					if tenant > 0 {
						wanted++
					}
				}
				load.Play(t)
				n, postponed, hops := len(load.Calls), 0, 0
				for _, m := range load.Calls {
					postponed, hops = postponed+m.Postponements, max(hops, m.Postponements)
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
