package lab

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// SharedResult is the outcome of a SharedScenario. A measure that means nothing there is NaN.
type SharedResult struct {
	Scenario SharedScenario

	// Result is the first of the Report, of Admit.
	Result

	// Use is the part of a shared limit that was used, in the seconds that begin with enough waiting for all of it. Of
	// several limits it is the one that was used least. Seconds in which one is short count only if they are at least
	// 10.
	Use float64

	// Makespan is the time from Begin to the last start, and Fluid the same of the optimum.
	Makespan, Fluid time.Duration

	// Watched is the waits of the watched messages, FluidWatched the same of the optimum, and Urgent the waits of the
	// urgent messages.
	Watched, FluidWatched, Urgent SharedWait

	// Jain is the index of fairness over spans of 60 s; 1 is fair. Its values are the units served to each entity that
	// waits all the time, as a part of its fair service: what weighted max-min gives, in each second, to the messages that
	// wait then. It is the median of the spans.
	Jain float64

	// Weights is by how much the share of the entities of one weight was off, until the first entity is through at
	// best.
	Weights float64

	// Report is the same as the Report of Run, for Admit and the optimum.
	Report Report

	// LateP99 is how much later than at best entities were through, as a part of their time at best. 99 % do not exceed
	// it.
	LateP99 float64
}

// SharedWait is the median of waits, and the wait that 99 % do not exceed.
type SharedWait struct{ P50, P99 time.Duration }

const jainSpan = 60 // s

func (r *sharedRun) measures(best *fluid, b binding) SharedResult {
	res := SharedResult{
		Scenario: *r.shared, Result: r.result(Admit.Name, r.used(b)), Use: r.use(), Fluid: seconds(best.makespan), FluidWatched: waits(best.watched),
	}
	done := make([]float64, len(r.names))
	var watched, urgent []float64
	for i := range r.messages {
		m := &r.messages[i]
		if m.started == 0 {
			continue
		}
		at := float64(m.started-r.begin) / 1000
		res.Makespan = max(res.Makespan, seconds(at))
		if m.Watched {
			watched = append(watched, at-m.At.Seconds())
		}
		if m.Urgent {
			urgent = append(urgent, at-m.At.Seconds())
		}
		done[m.Entity] = max(done[m.Entity], at)
	}
	res.Watched, res.Urgent = waits(watched), waits(urgent)
	var late []float64
	for i := range done {
		if best.done[i] > 0 {
			late = append(late, (done[i]-best.done[i])/max(5, best.done[i]-best.first[i]))
		}
	}
	res.LateP99 = quantile(late, .99)
	res.Jain = quantile(r.jain(), .5)
	res.Weights = r.weights(best)
	return res
}

// use is the use of the shared limit that was used least.
func (r *sharedRun) use() float64 {
	use := math.NaN()
	for _, s := range r.scopes[len(r.names):] {
		for _, t := range s.tanks() {
			if t.use.many >= 10 && !(t.use.spent/t.use.could >= use) {
				use = t.use.spent / t.use.could
			}
		}
	}
	return use
}

// jain is the index of each span, of the entities that wait all the time. Messages that come in its first second wait
// from its beginning on.
func (r *sharedRun) jain() (indices []float64) {
	for k, any := 0, true; any; k++ {
		var n, sum, squares float64
		any = false
		for _, spans := range r.spans {
			if k >= len(spans) {
				continue
			}
			any = true
			if s := spans[k]; s.waits >= jainSpan-1 && s.fair >= 2 {
				x := s.served / s.fair
				n, sum, squares = n+1, sum+x, squares+x*x
			}
		}
		if n >= 2 && squares > 0 {
			indices = append(indices, sum*sum/(n*squares))
		}
	}
	return indices
}

// weights is NaN if all weigh the same.
func (r *sharedRun) weights(best *fluid) float64 {
	weigh := func(entity int) int { return max(1, r.shared.Entities[entity].Weight) }
	weight, served := map[int]float64{}, map[int]float64{} // of all that weigh so much
	var weightOfAll, servedToAll float64
	for i := range r.names {
		weight[weigh(i)] += float64(weigh(i))
		weightOfAll += float64(weigh(i))
	}
	if len(weight) < 2 {
		return math.NaN()
	}
	until := seconds(slices.Min(best.done)).Milliseconds()
	for i := range r.messages {
		if m := &r.messages[i]; m.started > 0 && m.started-r.begin < until {
			served[weigh(m.Entity)] += m.calls
			servedToAll += m.calls
		}
	}
	off := 0.0
	for w, n := range weight {
		off = max(off, math.Abs(served[w]/servedToAll*weightOfAll/n-1))
	}
	return off
}

// binding is the limit that was used most: a shared one, or the entities' own.
func (r *sharedRun) binding() (best binding) {
	o, used := &r.scenario.Options, -1.0
	for _, name := range append([]string{""}, slices.Sorted(maps.Keys(o.Shared))...) {
		l := r.eras[0].limit
		if name != "" {
			l = sharedLimitOf(o, o.Shared[name])
		}
		for i := range len(l.windows) + 1 {
			if b := (binding{l, i, name}); r.used(b) > used {
				best, used = b, r.used(b)
			}
		}
	}
	return best
}

// used is the part of a limit that was used, from the first arrival to the last start, or end.
func (r *sharedRun) used(b binding) float64 {
	var used float64
	var last int64
	holders := map[int]bool{} // of the limit
	for i := range r.messages {
		m := &r.messages[i]
		if m.started == 0 || b.shared != "" && m.Within != nil && !slices.Contains(m.Within, b.shared) {
			continue
		}
		holders[m.Entity] = true
		if b.window < len(b.windows) {
			used, last = used+float64(m.costs.in(b.windows[b.window].unit).actual), max(last, m.started)
		} else {
			used, last = used+float64(m.operation), max(last, m.started+m.operation)
		}
	}
	n := 1
	if b.shared == "" {
		n = len(holders)
	}
	if used == 0 {
		return 0
	}
	most := float64(n) * allowed([]era{{limit: b.limit}}, b.window, r.messages[0].arrival, last)
	if most == 0 {
		return 0
	}
	return used / most
}

func waits(s []float64) SharedWait {
	if len(s) == 0 {
		return SharedWait{}
	}
	return SharedWait{seconds(quantile(s, .5)), seconds(quantile(s, .99))}
}

func seconds(s float64) time.Duration { return time.Duration(math.Round(s*1000)) * time.Millisecond }

// quantile is NaN if there are no values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

// WriteSharedTable writes results as a table in Markdown, a row each.
func WriteSharedTable(w io.Writer, results ...SharedResult) error {
	var b strings.Builder
	b.WriteString("| scenario | postponements: mean, p99, most | used | makespan: s, of the optimum's | watched wait: p50, p99; at best | urgent wait: p50, p99 | Jain | late | over the limit |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		watched, urgent := "", ""
		if r.Watched != (SharedWait{}) {
			watched = fmt.Sprintf("%s; %s", r.Watched, r.FluidWatched)
		}
		if r.Urgent != (SharedWait{}) {
			urgent = r.Urgent.String()
		}
		fmt.Fprintf(&b, "| %s: %s | %.2f, %d, %d | %s | %.0f, %.2f | %s | %s | %s | %s | %d |\n", r.Scenario.Name, r.Scenario.About,
			r.Redeliveries.Mean, r.Redeliveries.P99, r.Redeliveries.Max, percent(r.Use), r.Makespan.Seconds(),
			r.Makespan.Seconds()/r.Fluid.Seconds(), watched, urgent, number(r.Jain), percent(max(0, r.LateP99)), r.OverLimit)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// String is the wait as "0.5, 1.0 s".
func (w SharedWait) String() string {
	return fmt.Sprintf("%.1f, %.1f s", w.P50.Seconds(), w.P99.Seconds())
}

func percent(part float64) string {
	if math.IsNaN(part) {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}

func number(n float64) string {
	if math.IsNaN(n) {
		return ""
	}
	return fmt.Sprintf("%.2f", n)
}
