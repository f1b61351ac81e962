package provider

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drip-go/drip/internal/buckettest"
)

// Presets with shared limits: many entities with twice as much to do as the shared limit allows keep it and their own,
// and use it. A counter of the arriving calls tells.
func TestSharedPresetsAreKept(t *testing.T) {
	for _, p := range Presets() {
		for limit, rules := range p.Shared {
			t.Run(p.Name+"/"+limit, func(t *testing.T) { keeps(t, p, limit, rules) })
		}
	}
}

func keeps(t *testing.T, p Preset, limit string, rules []Rule) {
	o, err := p.Options(travel)
	ok(t, err)
	const begin = 1_700_000_000_000
	shared := o.Shared[limit]
	perMS := float64(shared.RefreshRate) / float64(shared.RefreshInterval.Milliseconds())
	ownPerMS := float64(o.RefreshRate) / float64(o.RefreshInterval.Milliseconds())
	entities := int(2*perMS/ownPerMS) + 1
	end := begin + 2*rules[0].per.Milliseconds() + 10_000
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []call
	own := map[string][]call{}
	load := buckettest.Load{Options: o, End: end, Runs: func(m *buckettest.Call, now int64) int64 {
		arrived := now + rnd.Int64N(travel.Milliseconds()+1)
		c := call{arrived, arrived + 1 + rnd.Int64N(200)}
		all, own[m.Entity] = append(all, c), append(own[m.Entity], c)
		return c.ended
	}}
	for i := range int(2 * perMS * float64(end-begin)) {
		load.Calls = append(load.Calls, &buckettest.Call{At: begin + rnd.Int64N(1000), Entity: fmt.Sprint("entity ", i%entities)})
	}
	load.Play(t)
	inOrder := func(x, y call) int { return cmp.Compare(x.arrived, y.arrived) }
	check := func(name string, calls []call, rules []Rule) {
		slices.SortFunc(calls, inOrder)
		for _, r := range rules {
			if i := r.over(calls); i >= 0 {
				t.Errorf("%s: %v: call %d of %d is over the limit", name, r, i, len(calls))
			}
		}
	}
	check(limit, all, rules)
	for entity, calls := range own {
		check(entity, calls, p.Rules)
	}
	used := float64(len(all)) / (perMS * float64(end-begin))
	t.Logf("%d calls of %d entities, %.1f%% of what drip's limit brings", len(all), len(own), 100*used)
	if used < 0.8 { // where the own limit has intervals of a fraction of a second, too, not all is used
		t.Errorf("%.1f%% were used", 100*used)
	}
}
