package provider

import (
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// event is a message that asks, or a call that is over if it has a lease.
type event struct {
	at     int64 // ms
	entity string
	ticket drip.Ticket
	lease  drip.Lease
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(v any)        { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

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
	if err != nil {
		t.Fatal(err)
	}
	const begin = 1_700_000_000_000
	now := int64(begin)
	o.Start = time.UnixMilli(0)
	o.Clock = func() time.Time { return time.UnixMilli(now) }
	bucket, err := drip.New(o)
	if err != nil {
		t.Fatal(err)
	}
	shared := o.Shared[limit]
	perMS := float64(shared.RefreshRate) / float64(shared.RefreshInterval.Milliseconds())
	ownPerMS := float64(o.RefreshRate) / float64(o.RefreshInterval.Milliseconds())
	entities := int(2*perMS/ownPerMS) + 1
	end := now + 2*rules[0].per.Milliseconds() + 10_000
	var waiting events
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range int(2 * perMS * float64(end-begin)) {
		heap.Push(&waiting, event{at: now + rnd.Int64N(1000), entity: fmt.Sprint("entity ", i%entities)})
	}
	var all []call
	own := map[string][]call{}
	for len(waiting) > 0 {
		e := heap.Pop(&waiting).(event)
		if now = max(now, e.at); now > end {
			break
		}
		if e.lease != (drip.Lease{}) {
			if err := bucket.Settle(t.Context(), e.entity, e.lease, 1); err != nil {
				t.Fatal(err)
			}
			continue
		}
		a, err := bucket.Admit(t.Context(), e.entity, drip.Request{Ticket: e.ticket})
		if err != nil {
			t.Fatal(err)
		}
		if a.Delay > 0 {
			heap.Push(&waiting, event{at: now + a.Delay.Milliseconds(), entity: e.entity, ticket: a.Ticket})
			continue
		}
		arrived := now + rnd.Int64N(travel.Milliseconds()+1)
		c := call{arrived, arrived + 1 + rnd.Int64N(200)}
		all, own[e.entity] = append(all, c), append(own[e.entity], c)
		heap.Push(&waiting, event{at: c.ended, entity: e.entity, lease: a.Lease})
	}
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
