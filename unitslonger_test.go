package drip_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

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
		{[]drip.Window{calls(10, second), tokens(1000, second), calls(1000, day)}, 500, 500, 900, 1.1, 1.7},
		{[]drip.Window{calls(10, second), tokens(1000, second), calls(300, minute)}, 500, 500, 900, 1.15, 1.7},
		{[]drip.Window{calls(60, minute), tokens(6000, minute), calls(1000, day)}, 10, 600, 900, 1.4, 1.7},
		{[]drip.Window{calls(10, second), tokens(10_000, minute)}, 500, 500, 300, 1.1, 2.3},
		{[]drip.Window{calls(10, second), tokens(10_000, minute)}, 10, 10, 3000, 1.1, 1.7},
		{[]drip.Window{calls(10, second), tokens(10_000, minute)}, 1, 200, 1000, 1.2, 2.6},
		{[]drip.Window{tokens(100_000, day), calls(5, second)}, 1, 1000, 600, 1.4, 2.4},
		{[]drip.Window{tokens(1000, second), calls(300, minute)}, 10, 300, 1200, 1.45, 2},
	} {
		for _, tenants := range []int{1, 10} {
			for _, inBlock := range []bool{false, true} {
				rnd := rand.New(rand.NewPCG(1, 1))
				counts, best := provider{windows: c.windows}, provider{windows: c.windows}
				ran, over, last, earliest := 0, 0, int64(0), int64(0)
				load := buckettest.Load{
					Options: drip.Options{Size: 1 << 20, Shared: map[string]drip.Limit{"model": {Windows: c.windows}}},
					End:     begin + 10*86_400_000,
					Late:    func() int64 { return rnd.Int64N(20) },
					Runs: func(m *buckettest.Call, now int64) int64 {
						ran++
						last = now - begin
						if !counts.takes(m.Request.Costs["tokens"], last) {
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
				postponed, most := 0, c.mean
				for _, m := range load.Calls {
					postponed += m.Postponements
				}
				if inBlock && tenants > 1 {
					most = c.inBlock
				}
				mean := float64(postponed) / float64(c.messages)
				name := fmt.Sprintf("%v, %d to %d tokens, %d tenants, in blocks %v", c.windows, c.least, c.most, tenants, inBlock)
				t.Logf("%s: %.2f postponements; %v, at best %v", name, mean, time.Duration(last)*time.Millisecond, time.Duration(earliest)*time.Millisecond)
				if over > 0 || ran < len(load.Calls) || mean > most || last > earliest+65_000 {
					t.Errorf("%s: %d over the limit, %d did not run, %.2f postponements, want at most %.1f; %d ms, want at most 65 s more than %d",
						name, over, len(load.Calls)-ran, mean, most, last, earliest)
				}
			}
		}
	}
}

// Inspect tells the booked amount of the first window's unit, which a longer window alone may count.
func TestInspectBookedUnits(t *testing.T) {
	now := time.UnixMilli(1_700_006_430_000) // in the middle of a minute: nearer its ends some slots are so far that they are not booked
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
	last := int64(0)
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
		End:  begin + 86_400_000,
		Late: func() int64 { return rnd.Int64N(20) },
		Runs: func(_ *buckettest.Call, now int64) int64 { last = now - begin; return now + 200 },
	}
	for i := range 410 {
		load.Calls = append(load.Calls, &buckettest.Call{At: begin, Entity: fmt.Sprint("tenant ", i%2), Request: drip.Request{
			Costs:  drip.Costs{"input": 1 + rnd.IntN(550), "output": 1 + rnd.IntN(312)},
			Within: []string{"app", "endpoint"}[:1+i%2],
		}})
	}
	load.Play(t)
	if took := time.Duration(last) * time.Millisecond; took > 20*time.Minute {
		t.Errorf("the messages took %v, want about a quarter of an hour", took)
	}
}
