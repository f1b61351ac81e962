package lab

import (
	"maps"
	"slices"

	"github.com/drip-go/drip"
)

// outcome is a sharedRun as a Result.
func (r *sharedRun) outcome(policy string, b sharedBinding) Result {
	res := Result{Policy: policy, Messages: len(r.messages), OverLimit: r.over, Utilisation: r.used(b)}
	if len(r.messages) == 0 {
		return res
	}
	var trips []int64
	for i := range r.messages {
		m := &r.messages[i]
		trips = append(trips, int64(m.trips))
		res.HeldAsks += float64(max(0, m.asks-1-m.trips)) / float64(len(r.messages))
		res.arrivals = append(res.arrivals, r.scenario.since(m.At))
		if m.started > 0 {
			res.waits = append(res.waits, waited{m.started, m.started - r.scenario.since(m.At)})
			res.ends = append(res.ends, m.started+m.operation)
		}
	}
	res.sum(trips)
	if res.Done < res.Messages {
		res.GaveUp = r.mostEvents()
	}
	if res.Done > 0 {
		res.Makespan = milliseconds(res.ends[res.Done-1] - res.arrivals[0])
	}
	res.Overtaken = r.overtaken()
	return res
}

// overtaken is how many messages started after one of the same entity that arrived an interval later.
func (r *sharedRun) overtaken() (n int) {
	byEntity := make([][]*message, len(r.names))
	for i := range r.messages {
		m := &r.messages[i]
		byEntity[m.Entity] = append(byEntity[m.Entity], &message{arrival: r.scenario.since(m.At), started: m.started})
	}
	interval := limitOf(&r.scenario.Options, &drip.Limit{}).windows[0].interval
	for _, messages := range byEntity {
		n += overtaken(messages, interval)
	}
	return n
}

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
	most := float64(n) * allowed([]era{{limit: l}}, b.window, r.scenario.since(r.messages[0].At), last)
	if most == 0 {
		return 0
	}
	return used / most
}
