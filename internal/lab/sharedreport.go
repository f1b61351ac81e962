package lab

import (
	"maps"
	"slices"

	"github.com/drip-go/drip"
)

// sharedBinding is a window, or behind the last the operations at once, of a shared limit or of the entities' own
// limit.
type sharedBinding struct {
	name   string // of a shared limit; "" for the entities' own
	window int
}

// binding is the limit that was used most.
func (r *sharedRun) binding() (best sharedBinding) {
	used := -1.0
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(r.scenario.Options.Shared))...) {
		for i := range len(r.limit(name).windows) + 1 {
			if b := (sharedBinding{name, i}); r.used(b) > used {
				best, used = b, r.used(b)
			}
		}
	}
	return best
}

func (r *sharedRun) bindingName(b sharedBinding) string {
	text := binding{r.limit(b.name), b.window}.String()
	if b.name != "" {
		text = b.name + ": " + text
	}
	return text
}

func (r *sharedRun) limit(name string) limit {
	o := &r.scenario.Options
	if name != "" {
		return sharedLimitOf(o, o.Shared[name])
	}
	return limitOf(o, &drip.Limit{})
}

// used is the part of a limit that was used, from the first arrival to the last start, or end.
func (r *sharedRun) used(b sharedBinding) float64 {
	l := r.limit(b.name)
	var used float64
	var last int64
	holders := map[int]bool{} // of the limit
	for i := range r.messages {
		m := &r.messages[i]
		if m.started == 0 || b.name != "" && m.Within != nil && !slices.Contains(m.Within, b.name) {
			continue
		}
		holders[m.Entity] = true
		if b.window < len(l.windows) {
			used, last = used+float64(m.costs.in(l.windows[b.window].unit).actual), max(last, m.started)
		} else {
			used, last = used+float64(m.operation), max(last, m.started+m.operation)
		}
	}
	n := 1
	if b.name == "" {
		n = len(holders)
	}
	if used == 0 {
		return 0
	}
	most := float64(n) * allowed([]era{{limit: l}}, b.window, r.messages[0].arrival, last)
	if most == 0 {
		return 0
	}
	return used / most
}
