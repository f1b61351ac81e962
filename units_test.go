package drip_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// ofModel are the limits of a language model: 10 calls, 1,000 input and 100 output tokens a minute.
func ofModel() drip.Options {
	return drip.Options{
		Size: 10, RefreshRate: 10, RefreshInterval: time.Minute, Start: time.UnixMilli(0),
		Clock: func() time.Time { return time.UnixMilli(1_700_000_000_000) },
		Windows: []drip.Window{
			{Size: 1000, RefreshInterval: time.Minute, Unit: "input"},
			{Size: 100, RefreshInterval: time.Minute, Unit: "output"},
		},
	}
}

func TestUnits(t *testing.T) {
	for name, open := range storages {
		t.Run(name, func(t *testing.T) {
			o := ofModel()
			o.Storage, o.Clock = open(t), func() time.Time { return time.UnixMilli(1_790_000_000_000) } // no minute ends
			o.Shared = map[string]drip.Limit{"app": {Size: 5000, Unit: "input", RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 50, RefreshInterval: time.Minute}}}}
			b := buckettest.New(t, o)
			left := func(id string, want ...int) {
				t.Helper()
				status := buckettest.Inspect(t, b, id)
				for i, w := range status.Windows {
					if w.Capacity != want[i] {
						t.Errorf("%s has %d %s left, want %d", id, w.Capacity, w.Unit, want[i])
					}
				}
			}
			a := buckettest.Runs(t, b, "acme", drip.Request{Costs: drip.Costs{"input": 600, "output": 50}})
			left("acme", 9, 400, 50)
			left(drip.SharedID("app"), 4400, 49)
			waits, err := b.Admit(t.Context(), "acme", drip.Request{Costs: drip.Costs{"input": 500, "output": 50}})
			if err != nil || waits.Delay <= 0 || waits.Bound != drip.BoundWindow+1 {
				t.Fatal(waits, err)
			}
			text := waits.Ticket.String()
			if parsed, err := drip.ParseTicket(text); err != nil || parsed != waits.Ticket {
				t.Errorf("%q is read as %v: %v", text, parsed, err)
			}
			ok(t, b.Settle(t.Context(), "acme", a.Lease, a.Lease.Cost(), drip.Costs{"input": 200}))
			left("acme", 9, 800, 50)
			left(drip.SharedID("app"), 4800, 49)
			if delay, err := b.GetDelay(t.Context(), "acme"); err != nil || delay != 0 {
				t.Error(delay, err)
			}
			left("acme", 8, 800, 50)
		})
	}
}

func TestUnitErrors(t *testing.T) {
	o := ofModel()
	b := buckettest.New(t, o)
	for want, r := range map[string]drip.Request{
		`no window counts this unit: "tokens"`: {Costs: drip.Costs{"tokens": 1}},
		"it has no name":                       {Costs: drip.Costs{"": 1}},
		"1001 input of at most 1000":           {Costs: drip.Costs{"input": 1001}},
		": -1 output":                          {Costs: drip.Costs{"output": -1}},
		"11 of at most 10":                     {Cost: 11},
	} {
		if _, err := b.Admit(t.Context(), "acme", r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one with %q", err, want)
		}
	}
	a := buckettest.Admit(t, b, "acme", drip.Request{})
	if err := b.Settle(t.Context(), "acme", a.Lease, 1, drip.Costs{"tokens": 1}); !errors.Is(err, drip.ErrUnit) {
		t.Error(err)
	}
	if err := b.Settle(t.Context(), "acme", a.Lease, 1, drip.Costs{"input": -1}); !errors.Is(err, drip.ErrCost) {
		t.Error(err)
	}
	ok(t, b.Settle(t.Context(), "acme", a.Lease, 1))
	o.Shared = map[string]drip.Limit{"app": {Size: 1, Unit: "points"}, "all": {Size: 1, Windows: []drip.Window{{Size: 1, RefreshInterval: time.Second, Unit: "a fourth"}}}}
	if _, err := drip.New(o); err == nil || !strings.Contains(err.Error(), "name 4 units") {
		t.Errorf("four units: %v", err)
	}
	o = ofModel()
	o.Limits = func(context.Context, string) (drip.Limit, error) { return drip.Limit{Unit: "points"}, nil }
	if _, err := buckettest.New(t, o).Admit(t.Context(), "acme", drip.Request{}); err == nil || !strings.Contains(err.Error(), `Unit is "points"`) {
		t.Errorf("a unit that only a limit of an entity names: %v", err)
	}
}

// A pin of a unit without a size pins nothing that was meant.
func TestPinWithoutSize(t *testing.T) {
	b := buckettest.New(t, drip.Options{Windows: []drip.Window{{Size: 9, RefreshInterval: time.Second, Unit: "points"}}})
	for _, w := range []drip.Window{{RefreshInterval: time.Second}, {Unit: "points"}, {Unit: "none"}, {Align: drip.ByEntity()}} {
		if err := b.Pin(t.Context(), "shop", drip.Pin{Window: w, Concurrency: 1}); err == nil || !strings.Contains(err.Error(), "Pin.Size is 0") {
			t.Errorf("a pin of %+v: %v", w, err)
		}
	}
}

// provider counts calls and tokens in windows that are full at first and at each refresh.
type provider struct {
	windows []drip.Window
	left    []int
	at      int64 // ms since the beginning
}

// takes takes the cost of a call at a time, and reports whether all windows had it.
func (p *provider) takes(tokens int, at int64) bool {
	if p.left == nil {
		p.left, p.at = make([]int, len(p.windows)), -1
	}
	ok := true
	for i, w := range p.windows {
		if each := w.RefreshInterval.Milliseconds(); p.at < 0 || at/each > p.at/each {
			p.left[i] = w.Size
		}
		ok = ok && p.left[i] >= cost(w, tokens)
	}
	p.at = at
	for i, w := range p.windows {
		if ok {
			p.left[i] -= cost(w, tokens)
		}
	}
	return ok
}

func cost(w drip.Window, tokens int) int {
	if w.Unit == "" {
		return 1
	}
	return tokens
}

// The windows of a shared limit may count calls and tokens, and each unit may have longer windows, or only longer ones. A
// window bounds the slots by as much as operations take of its own unit. So a backlog is done about as early as if its
// messages ran in their order, each as soon as the provider lets it.
func TestUnitsLongerWindows(t *testing.T) {
	const begin = 1_700_006_400_000 / 86_400_000 * 86_400_000
	calls := func(n int, each time.Duration) drip.Window { return drip.Window{Size: n, RefreshInterval: each} }
	tokens := func(n int, each time.Duration) drip.Window {
		return drip.Window{Size: n, RefreshInterval: each, Unit: "tokens"}
	}
	const second, minute, day = time.Second, time.Minute, 24 * time.Hour
	for _, c := range []struct {
		windows       []drip.Window
		least, most   int // tokens of a message
		messages      int
		mean, inBlock float64 // the most postponements of a message: of all tenants at once, and tenant after tenant
	}{
		{[]drip.Window{calls(10, second), tokens(1000, second), calls(1000, day)}, 500, 500, 900, 1.1, 2},
		{[]drip.Window{calls(10, second), tokens(1000, second), calls(300, minute)}, 500, 500, 900, 1.15, 2},
		{[]drip.Window{calls(60, minute), tokens(6000, minute), calls(1000, day)}, 10, 600, 900, 1.4, 2},
		{[]drip.Window{calls(10, second), tokens(10_000, minute)}, 500, 500, 300, 1.1, 2.3},
		{[]drip.Window{calls(10, second), tokens(10_000, minute)}, 10, 10, 3000, 1.1, 2},
		{[]drip.Window{calls(10, second), tokens(10_000, minute)}, 1, 200, 1000, 1.2, 2.6},
		{[]drip.Window{tokens(100_000, day), calls(5, second)}, 1, 1000, 600, 1.4, 2.4},
		{[]drip.Window{tokens(1000, second), calls(300, minute)}, 10, 300, 1200, 1.45, 2.2},
	} {
		for _, tenants := range []int{1, 10} {
			for _, inBlock := range []bool{false, true} {
				rnd := rand.New(rand.NewPCG(1, 1))
				counts, best := provider{windows: c.windows}, provider{windows: c.windows}
				over, earliest := 0, int64(0)
				load := buckettest.Load{
					Options: drip.Options{Size: 1 << 20, Shared: map[string]drip.Limit{"model": {Windows: c.windows}}},
					End:     begin + 10*86_400_000,
					Late:    func() int64 { return rnd.Int64N(20) },
					Runs: func(m *buckettest.Call, now int64) int64 {
						if !counts.takes(m.Request.Costs["tokens"], now-begin) {
							over++
						}
						return now + 200
					},
				}
				for range 4 { // from then on the costs are known
					load.Calls = append(load.Calls, &buckettest.Call{
						At: begin - 60_000, Entity: "tenant 0", Request: drip.Request{Costs: drip.Costs{"tokens": c.least}},
					})
				}
				for i := range c.messages {
					tenant := i % tenants
					if inBlock {
						tenant = i * tenants / c.messages
					}
					n := c.least + rnd.IntN(c.most-c.least+1)
					for !best.takes(n, earliest) {
						earliest += 1000
					}
					load.Calls = append(load.Calls, &buckettest.Call{
						At: begin, Entity: fmt.Sprint("tenant ", tenant), Request: drip.Request{Costs: drip.Costs{"tokens": n}},
					})
				}
				load.Play(t)
				got, most := buckettest.OutcomeOf(load.Calls[4:]), c.mean
				if inBlock && tenants > 1 {
					most = c.inBlock
				}
				name := fmt.Sprintf("%v, %d to %d tokens, %d tenants, in blocks %v", c.windows, c.least, c.most, tenants, inBlock)
				t.Logf("%s: %.2f postponements; %d ms, at best %d", name, got.Mean, got.Last-begin, earliest)
				if over > 0 || got.Ran < c.messages || got.Mean > most || got.Last > begin+earliest+65_000 {
					t.Errorf("%s: %d over the limit, %d did not run, want at most %.1f postponements and 65 s more than at best", name, over, c.messages-got.Ran, most)
				}
			}
		}
	}
}

// Inspect tells the booked amount of the first window's unit, which a longer window alone may count.
func TestInspectBookedUnits(t *testing.T) {
	now := time.UnixMilli(1_700_006_450_000) // ten seconds before the next minute: in its beginning some slots are so far that they are not booked
	b := buckettest.New(t, drip.Options{Clock: func() time.Time { return now }, Shared: map[string]drip.Limit{"model": {
		Size: 1000, RefreshInterval: time.Minute, Unit: "tokens", Windows: []drip.Window{{Size: 5, RefreshInterval: time.Second}},
	}}})
	waiting := 0
	for range 20 {
		a := buckettest.Admit(t, b, "tenant", drip.Request{Costs: drip.Costs{"tokens": 100}})
		if a.Delay > 0 {
			waiting++
		}
	}
	s, err := b.Inspect(t.Context(), drip.SharedID("model"))
	if want := 100 * waiting; err != nil || waiting == 0 || s.Booked < want*9/10 || s.Booked > want*11/10 {
		t.Errorf("%d tokens are booked by %d operations of 100, %v", s.Booked, waiting, err)
	}
}

// A message that a short window of its entity denies again and again books a long window once. So the long window does not
// run out of slots while it has capacity.
func TestDeniedMessagesBookOnce(t *testing.T) {
	const begin, second = 1_700_006_400_000, time.Second
	rnd := rand.New(rand.NewPCG(274, 9))
	load := buckettest.Load{
		Options: drip.Options{
			Size: 1 << 20, RefreshRate: 1 << 20,
			Windows: []drip.Window{
				{Size: 4400, RefreshInterval: 10 * second, Unit: "input"}, {Size: 468, RefreshInterval: second, Unit: "output"},
				{Size: 98_450, RefreshRate: 32_800, RefreshInterval: time.Hour, Unit: "input"},
			},
			Shared: map[string]drip.Limit{
				"app": {Size: 20, RefreshInterval: 10 * second}, "endpoint": {Size: 468, RefreshInterval: 10 * second, Unit: "output"},
			},
		},
		Late: func() int64 { return rnd.Int64N(20) },
		Runs: func(_ *buckettest.Call, now int64) int64 { return now + 200 },
	}
	for i := range 410 {
		load.Calls = append(load.Calls, &buckettest.Call{At: begin, Entity: fmt.Sprint("tenant ", i%2), Request: drip.Request{
			Costs:  drip.Costs{"input": 1 + rnd.IntN(550), "output": 1 + rnd.IntN(312)},
			Within: []string{"app", "endpoint"}[:1+i%2],
		}})
	}
	load.Play(t)
	if last := time.UnixMilli(buckettest.OutcomeOf(load.Calls).Last); last.Sub(time.UnixMilli(begin)) > 20*time.Minute {
		t.Errorf("the last one ran at %v, want it about a quarter of an hour after the first", last)
	}
}

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
				var small []*buckettest.Call                                                                               // of the others
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
						small = append(small, m)
					}
				}
				load.Play(t)
				share := used[short] / (perMinute[short] * minutes)
				if short == "calls" {
					share = used[""] / (perMinute[""] * minutes)
				}
				got, ofSmall := buckettest.OutcomeOf(load.Calls), buckettest.OutcomeOf(small)
				t.Logf("%+v of %d calls, %.3f of %s used, %d over; %d of %d of the small tenants", got, len(load.Calls), share, short, over, ofSmall.Ran, len(small))
				if over > 0 || share < 0.97 || float64(ofSmall.Ran) < c.small*float64(len(small)) {
					t.Errorf("%d over, %.3f used, %d of %d of the small tenants ran", over, share, ofSmall.Ran, len(small))
				}
			})
		}
	}
}
