package lab

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// tank is a window of a limit, or its concurrency, as its provider counts it. Both gain rate with each interval, up to size.
// A concurrency gains what its tokens can do in a millisecond, and has no size: it gathers only the beginnings of as many
// operations as there are tokens, for the optimum.
type tank struct {
	window     // when it gains
	size, rate float64
	gathers    float64
	left       float64
	at         int64
	next       int64 // when the interval after the one of at begins, if a calendar gives it

	room float64 // for fill
	load float64
	use  meter
}

// tankOf is a tank that is full at a time.
func tankOf(w window, at int64) *tank {
	size := float64(w.size)
	return &tank{window: w, size: size, gathers: size, left: size, rate: float64(min(w.rate, w.size)), at: at}
}

// refresh counts the intervals that have begun.
func (t *tank) refresh(ms int64) {
	if t.calendar == nil || ms >= t.next {
		t.left = min(t.size, t.left+t.rate*float64(t.refreshes(t.at, ms)))
	}
	if t.calendar != nil && ms >= t.next { // a date takes long to compute
		t.next = t.beginning(t.number(ms) + 1)
	}
	t.at = ms
}

// long reports whether the optimum, in such steps, waits for the beginning of an interval.
func (t *tank) long(step int64) bool { return t.interval >= max(step, time.Minute.Milliseconds()) }

// pour adds the capacity that comes in a step, after a time in which nothing was taken. A long interval brings its capacity
// with the first step after its beginning, a short one evenly.
func (t *tank) pour(from, idle, step int64) {
	if t.long(step) {
		t.refresh(from)
		return
	}
	in := t.brings(step)
	t.left = min(max(t.gathers, in), min(t.gathers, t.left+t.brings(idle))+in)
}

// grain is the time over which the use of a tank is measured, in whole seconds.
func (t *tank) grain() int64 { return (t.interval + 999) / 1000 * 1000 }

// brings is the capacity that a tank gains in so much time.
func (t *tank) brings(ms int64) float64 { return t.rate * float64(ms) / float64(t.interval) }

// meter counts the use of a tank in those grains that begin with enough waiting to use all of it.
type meter struct {
	enough             bool
	used, before       float64
	spent, could, many float64
}

// scope is one limit, an entity's own or a shared one.
type scope struct {
	windows     []*tank
	tokens      *tank // nil if it limits no concurrency
	concurrency int64
	underWay    int64
	since       int64 // underWay is as it is, ms since 1970
}

// newScope makes the tanks, full at a time. Operations take mean milliseconds and cost units each.
func newScope(l limit, mean, cost float64, at int64) *scope {
	s := &scope{concurrency: l.concurrency, since: at}
	for _, w := range l.windows {
		s.windows = append(s.windows, tankOf(w, at))
	}
	if l.concurrency > 0 {
		n := float64(l.concurrency) * cost
		s.tokens = &tank{window: window{interval: 1}, rate: n / max(1, mean), gathers: n, left: n, at: at}
	}
	return s
}

func (s *scope) tanks() []*tank {
	if s.tokens == nil {
		return s.windows
	}
	return append(s.windows[:len(s.windows):len(s.windows)], s.tokens)
}

// begin counts a call and reports whether it is within the limit.
// A cost above its estimate counts at the end.
func (s *scope) begin(ms int64, costs bill) bool {
	within := true
	for _, t := range s.windows {
		c := costs.in(t.unit)
		t.refresh(ms)
		cost := float64(min(c.estimate, c.actual))
		t.left -= cost
		t.use.used += float64(c.actual)
		within = within && (t.left >= 0 || cost == 0)
	}
	s.busy(ms)
	s.underWay++
	return within && (s.concurrency == 0 || s.underWay <= s.concurrency)
}

func (s *scope) end(ms int64, costs bill) {
	for _, t := range s.windows {
		c := costs.in(t.unit)
		t.refresh(ms)
		t.left -= float64(max(0, c.actual-c.estimate))
	}
	s.busy(ms)
	s.underWay--
}

// busy counts the use of the tokens, up to a time.
func (s *scope) busy(ms int64) {
	if s.tokens != nil {
		s.tokens.use.used += s.tokens.rate * float64(ms-s.since) * float64(s.underWay) / float64(s.concurrency)
	}
	s.since = ms
}

// sharedLimitOf reads a limit of Options.Shared. One without a size has no windows, one without tokens any number.
func sharedLimitOf(o *drip.Options, s drip.Limit) limit {
	if s.Size == 0 && s.RefreshRate == 0 && len(s.Windows) > 0 {
		w := s.Windows[0]
		s.Size, s.RefreshRate, s.RefreshInterval, s.Align, s.Unit, s.Windows = w.Size, w.RefreshRate, w.RefreshInterval, w.Align, w.Unit, s.Windows[1:]
	}
	s.Size, s.RefreshRate = cmp.Or(s.Size, s.RefreshRate), cmp.Or(s.RefreshRate, s.Size)
	s.RefreshInterval = cmp.Or(s.RefreshInterval, time.Second)
	l := limitOf(&drip.Options{Share: o.Share}, &s)
	if s.Size == 0 {
		l.windows = nil
	}
	if s.Concurrency == 0 {
		l.concurrency = 0
	}
	return l
}

// flow is the messages of an entity that are within the same limits.
type flow struct {
	entity  int
	weight  float64
	scopes  []*scope
	tanks   []outlet
	backlog float64 // calls that wait
	given   float64 // by fill

	all       []*message
	messages  []*message // for the optimum: those that wait, of which some calls were served
	fulfilled float64
}

// outlet is a tank that a flow takes from: so much with each call, on average.
type outlet struct {
	*tank
	each float64
}

// open sets the tanks.
func (f *flow) open() {
	calls := 0.0
	for _, m := range f.all {
		calls += m.calls
	}
	for _, s := range f.scopes {
		for _, t := range s.windows {
			taken := 0.0
			for _, m := range f.all {
				taken += float64(m.costs.in(t.unit).actual)
			}
			if taken > 0 {
				f.tanks = append(f.tanks, outlet{t, taken / calls})
			}
		}
		if s.tokens != nil {
			f.tanks = append(f.tanks, outlet{s.tokens, 1})
		}
	}
}

const little = 1e-9

// fill divides the room of the tanks between flows: all levels rise alike, by weight, until a flow has enough or one of
// its tanks is empty. That is the weighted max-min allocation.
func fill(flows []*flow) {
	var rising []*flow
	for _, f := range flows {
		if f.given = 0; f.backlog > little {
			rising = append(rising, f)
		}
	}
	for len(rising) > 0 {
		for _, f := range rising {
			for _, t := range f.tanks {
				t.load = 0
			}
		}
		for _, f := range rising {
			for _, t := range f.tanks {
				t.load += f.weight * t.each
			}
		}
		level := math.Inf(1)
		for _, f := range rising {
			level = min(level, (f.backlog-f.given)/f.weight)
			for _, t := range f.tanks {
				level = min(level, max(0, t.room)/t.load)
			}
		}
		for _, f := range rising {
			f.given += level * f.weight
			for _, t := range f.tanks {
				t.room -= level * f.weight * t.each
			}
		}
		rising = slices.DeleteFunc(rising, func(f *flow) bool {
			return f.backlog-f.given < little || slices.ContainsFunc(f.tanks, func(t outlet) bool { return t.room < little })
		})
	}
}

// fluid is the optimum: at each instant the limits are divided between entities by weighted max-min, as if messages were
// a liquid. It knows the future as little as drip does, but postpones nothing.
type fluid struct {
	first, done []float64 // of each entity, in s
	makespan    float64
	watched     []float64 // waits, in s
}

// stepLength is the length of a step of the optimum in ms: a tenth of a second, and more if there were too many steps.
func (r *sharedRun) stepLength() (int64, error) {
	asked := map[*tank]float64{}
	for i := range r.messages {
		m := &r.messages[i]
		for _, t := range m.flow.tanks {
			asked[t.tank] += min(m.calls*t.each, cmp.Or(t.size, math.Inf(1)))
		}
	}
	longest := 0.0 // at best
	for t, units := range asked {
		longest = max(longest, (units-t.size)/t.rate*float64(t.interval))
	}
	if longest > float64(longestRun.Milliseconds()) {
		return 0, errLong
	}
	const most = 1e9 // looks at a flow or a limit
	return 100 * int64(1+longest*float64(len(r.flows)+len(r.scopes))/most/100), nil
}

func newFluid(r *sharedRun) *fluid {
	n := len(r.names)
	f := &fluid{first: slices.Repeat([]float64{math.Inf(1)}, n), done: make([]float64, n)}
	var tanks []*tank
	for _, s := range r.scopes {
		tanks = append(tanks, s.tanks()...)
	}
	left := len(r.messages)
	arrived, idle, step := 0, int64(0), r.step
	for ms := int64(0); left > 0; ms += step {
		if r.err = r.scenario.Context.Err(); r.err != nil {
			return f
		}
		if arrived+left == len(r.messages) { // nothing waits
			idle = max(0, r.messages[arrived].At.Milliseconds()/step*step-ms)
			ms += idle
		}
		for ; arrived < len(r.messages) && r.messages[arrived].At.Milliseconds() < ms+step; arrived++ {
			m := &r.messages[arrived]
			m.flow.backlog += m.calls
			m.flow.messages = append(m.flow.messages, m)
			f.first[m.Entity] = min(f.first[m.Entity], m.At.Seconds())
		}
		for _, t := range tanks {
			if ms > 0 {
				t.pour(r.begin+ms, idle, step)
			}
			t.room = t.left
		}
		idle = 0
		if o := r.scenario.Outage; ms >= o.From.Milliseconds() && ms < o.To.Milliseconds() {
			continue
		}
		fill(r.flows)
		for _, t := range tanks {
			t.left = t.room
		}
		at, end, given := float64(ms)/1000, float64(ms+step)/1000, false
		for _, w := range r.flows {
			if w.given == 0 {
				continue
			}
			given = true
			w.backlog -= w.given
			w.fulfilled += w.given
			f.done[w.entity] = end
			f.makespan = end
			for len(w.messages) > 0 && w.fulfilled >= w.messages[0].calls-1e-6 {
				m := w.messages[0]
				w.messages = w.messages[1:]
				w.fulfilled -= m.calls
				left--
				m.started = max(m.arrival, r.begin+ms)
				m.ended = m.started + m.operation
				r.lastEnd = max(r.lastEnd, m.ended)
				if m.Watched {
					f.watched = append(f.watched, max(0, at-m.At.Seconds()))
				}
			}
		}
		if !given { // until the next long interval begins, or somebody comes
			next := int64(0)
			for _, t := range tanks {
				if t.long(step) {
					begins := t.beginning(t.number(t.at)+1) - r.begin
					next = min(cmp.Or(next, begins), begins)
				}
			}
			if arrived < len(r.messages) {
				next = min(next, r.messages[arrived].At.Milliseconds())
			}
			idle = max(0, next/step*step-ms-step)
			ms += idle
		}
	}
	return f
}
