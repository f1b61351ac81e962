package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// SharedScenario is a case of limits that entities share. Options, Entities, Messages and Operation are required.
type SharedScenario struct {
	// Name and About are the titles of its row in tables.
	Name, About string

	// Options are the limits, including Options.Shared. Each run has its own Storage, Clock, Limits, Weight and Start, and
	// no SharedLimits: all limits are full at Begin.
	Options drip.Options

	// Begin is as in Scenario.
	Begin time.Time

	// Entities are the entities that send messages.
	Entities []SharedEntity

	// Messages draws the messages of the entities. They need not be in order of time.
	Messages func(r *rand.Rand) []SharedMessage

	// Operation is the time that the provider takes.
	Operation Distribution

	// Costs are the costs of the operations in calls. Defaults to the Cost of each message. Units are as in Scenario.
	Costs Costs
	Units map[string]Costs

	// Late is how late a postponed message comes back. Defaults to anything up to 20 ms.
	Late Distribution

	// Processes, Hold and Seats are as in Scenario.
	Processes int
	Hold      time.Duration
	Seats     int

	// LostTickets is the share of postponements whose message comes back without its ticket.
	LostTickets float64

	// Duplicates is the share of postponements whose message comes back twice, with the same ticket. The second one is
	// handled too, and counted by the providers, but by no other measure.
	Duplicates float64

	// Travel is the most time that a request takes to the provider. Defaults to 0.
	Travel time.Duration

	// Providers makes the providers that count the calls of one entity, and SharedProviders the providers that count
	// the calls of all, besides the limits themselves. Both default to none.
	Providers, SharedProviders func() []Provider

	// Context ends the run early, with its error. Defaults to nil: nothing does.
	Context context.Context

	// Unmeasured leaves out the measures of SharedResult that need a look at each second: Use and Jain.
	Unmeasured bool

	// Outage is a time without consumers. Messages that arrive or come back then are delivered within two seconds of
	// its end.
	Outage Outage
}

// SharedEntity is one of the entities of a SharedScenario. The zero value has the limit of the Options and weighs 1.
type SharedEntity struct {
	Limit  drip.Limit
	Weight int
}

// SharedMessage is one message of a SharedScenario.
type SharedMessage struct {
	// At is its arrival.
	At time.Duration

	// Entity is its place in SharedScenario.Entities.
	Entity int

	// Cost, Within and Urgent are the fields of its [drip.Request]. Cost defaults to 1; see SharedScenario.Costs.
	Cost   int
	Within []string
	Urgent bool

	// Watched puts its wait into SharedResult.Watched.
	Watched bool
}

// sharedRun is one way through a SharedScenario.
type sharedRun struct {
	*run
	shared  *SharedScenario
	scopes  []*scope // of the entities, and behind them the shared ones
	flows   []*flow
	begin   int64 // ms since 1970
	waiting int
	step    int64    // of the optimum, ms
	spans   [][]span // of the entities, for Jain's index
}

// RunShared plays a scenario with drip's Admit and Settle in virtual time, and with the optimum. The seed determines
// everything that is random. It returns an error of the Options, or of a decision.
func RunShared(s SharedScenario, seed uint64) (SharedResult, error) {
	r, err := newSharedRun(&s, seed)
	if err == nil {
		err = r.play()
	}
	if err != nil {
		return SharedResult{}, fmt.Errorf("simulate: %s: %w", s.Name, err)
	}
	best, err := newSharedRun(&s, seed)
	if err != nil {
		return SharedResult{}, fmt.Errorf("simulate: %s: %w", s.Name, err)
	}
	optimum := newFluid(best)
	if best.err != nil {
		return SharedResult{}, fmt.Errorf("simulate: %s, optimum: %w", s.Name, best.err)
	}
	binding := best.binding()
	result := r.measures(optimum, binding)
	result.Report = Report{
		Scenario: *r.scenario, Seed: seed, Binding: binding.String(),
		Results: []Result{result.Result, best.result("optimum", best.used(binding))},
	}
	return result, nil
}

func newSharedRun(s *SharedScenario, seed uint64) (*sharedRun, error) {
	if len(s.Entities) == 0 || s.Messages == nil || s.Operation == nil {
		return nil, errors.New("SharedScenario.Entities, Messages and Operation are required")
	}
	in := Scenario{
		Name: s.Name, About: s.About, Options: s.Options, Begin: s.Begin, Providers: s.Providers, Entities: len(s.Entities), Operation: s.Operation,
		Costs: s.Costs, Units: s.Units, Travel: s.Travel, Late: s.Late, Processes: s.Processes, Hold: s.Hold, Seats: s.Seats,
		Outage: s.Outage, LostTickets: s.LostTickets, Context: s.Context,
	}
	if err := in.setCommon(); err != nil {
		return nil, fmt.Errorf("SharedScenario.%w", err)
	}
	if in.Late == nil {
		in.Late = Uniform(0, 20*time.Millisecond)
	}
	r := &sharedRun{run: newRun(&in, nil, seed), shared: s, begin: in.since(0)}
	r.copies, r.spread, r.begins, r.ends = s.Duplicates, 2000, r.count, r.countEnd
	if s.SharedProviders != nil {
		all := s.SharedProviders()
		for i := range r.providers {
			r.providers[i] = append(r.providers[i], all...)
		}
	}
	o := s.Options
	o.Storage, o.Start = nil, full(in.Begin)
	o.Clock = func() time.Time { return time.UnixMilli(r.now) }
	byName := map[string]SharedEntity{}
	for i, name := range r.names {
		byName[name] = s.Entities[i]
	}
	o.Limits, o.SharedLimits, o.Weight = nil, nil, nil
	if slices.ContainsFunc(s.Entities, func(e SharedEntity) bool {
		return e.Limit.Size+e.Limit.RefreshRate+e.Limit.Concurrency > 0 || e.Limit.Windows != nil
	}) {
		o.Limits = func(_ context.Context, id string) (drip.Limit, error) { return byName[id].Limit, nil }
	}
	if slices.ContainsFunc(s.Entities, func(e SharedEntity) bool { return e.Weight > 1 }) {
		o.Weight = func(id string) int { return byName[id].Weight }
	}
	var err error
	if r.limiter, err = Admit.New(o); err != nil {
		return nil, err
	}
	r.tickets = true
	r.spans = make([][]span, len(r.names))
	if err = r.draw(rand.New(rand.NewPCG(seed, 0))); err == nil {
		r.step, err = r.stepLength()
	}
	return r, err
}

// draw makes the messages, and the limits as their providers count them.
func (r *sharedRun) draw(rnd *rand.Rand) error {
	o := &r.scenario.Options
	var sum, took float64
	for _, m := range r.shared.Messages(rnd) {
		calls := r.scenario.Costs
		if calls == nil {
			calls = FixedCost(max(1, m.Cost))
		}
		if m.Entity < 0 || m.Entity >= len(r.names) || m.At < 0 {
			return fmt.Errorf("a message of entity %d at %v", m.Entity, m.At)
		}
		drawn := message{SharedMessage: m, arrival: r.scenario.since(m.At), operation: max(0, r.scenario.Operation(rnd)).Milliseconds()}
		drawn.costs = drawBill(calls, r.scenario.Units, rnd)
		drawn.calls = max(1, float64(drawn.costs[0].actual))
		if r.scenario.Travel > 0 {
			drawn.travel = rnd.Int64N(r.scenario.Travel.Milliseconds() + 1)
		}
		r.messages = append(r.messages, drawn)
		sum += drawn.calls
		took += float64(drawn.operation)
	}
	if err := checkLeases(o, r.messages); err != nil {
		return err
	}
	n := max(1, float64(len(r.messages)))
	slices.SortStableFunc(r.messages, func(a, b message) int { return cmp.Compare(a.arrival, b.arrival) })
	scopeOf := func(l limit) (*scope, error) {
		return newScope(l, took/n, sum/n, r.begin), l.payable(r.scenario.Units)
	}
	for _, e := range r.shared.Entities {
		s, err := scopeOf(limitOf(o, &e.Limit))
		if err != nil {
			return err
		}
		r.scopes = append(r.scopes, s)
	}
	all := slices.Sorted(maps.Keys(o.Shared))
	shared := map[string]*scope{}
	for _, name := range all {
		s, err := scopeOf(sharedLimitOf(o, o.Shared[name]))
		if err != nil {
			return err
		}
		shared[name] = s
		r.scopes = append(r.scopes, s)
	}
	flows := map[string]*flow{}
	for i := range r.messages {
		m := &r.messages[i]
		within := m.Within
		if within == nil {
			within = all
		}
		key := fmt.Sprint(m.Entity, within)
		if flows[key] == nil {
			f := &flow{entity: m.Entity, weight: float64(max(1, r.shared.Entities[m.Entity].Weight)), scopes: []*scope{r.scopes[m.Entity]}}
			for _, name := range within {
				if shared[name] == nil {
					return fmt.Errorf("a message within %q: %w", name, drip.ErrNoShared)
				}
				f.scopes = append(f.scopes, shared[name])
			}
			flows[key] = f
			r.flows = append(r.flows, f)
		}
		m.flow = flows[key]
		m.flow.all = append(m.flow.all, m)
	}
	for _, f := range r.flows {
		f.open()
	}
	return nil
}

func (r *sharedRun) play() error {
	r.now = r.begin
	r.waiting = len(r.messages)
	r.most = 4 * mostEvents(len(r.messages))
	r.arrive()
	if !r.shared.Unmeasured {
		r.events.addEnd(r.begin, r.measure)
	}
	r.happen()
	return r.err
}

// count has the limits count an operation that starts, and reports whether it is over one of them.
func (r *sharedRun) count(d *delivery) (over bool) {
	if !d.isCopy {
		if !r.shared.Unmeasured {
			r.spanOf(d.Entity).served += d.calls
		}
		d.flow.backlog -= d.calls
		r.waiting--
	}
	for _, s := range d.flow.scopes {
		over = !s.begin(r.now, d.costs) || over
	}
	return over
}

func (r *sharedRun) countEnd(d *delivery) {
	for _, s := range d.flow.scopes {
		s.end(r.now, d.costs)
	}
}

// measure reads the meters of shared limits, each second.
func (r *sharedRun) measure() {
	r.divide()
	for _, s := range r.scopes[len(r.names):] {
		s.busy(r.now)
		for _, t := range s.tanks() {
			if grain := t.grain(); r.now%grain == 0 {
				r.read(t, grain)
			}
		}
	}
	if r.waiting > 0 {
		r.events.addEnd(r.now+1000, r.measure)
	}
}

func (r *sharedRun) read(t *tank, grain int64) {
	m := &t.use
	if m.enough {
		m.spent += m.used - m.before
		m.could += t.brings(grain)
		m.many++
	}
	m.before = m.used
	for _, s := range r.scopes {
		for _, t := range s.tanks() {
			t.refresh(r.now)
			t.room = min(t.left+t.rate*float64(t.refreshes(r.now, r.now+grain-1)), t.brings(grain))
		}
	}
	fill(r.flows)
	given := 0.0
	for _, f := range r.flows {
		for _, from := range f.tanks {
			if from.tank == t {
				given += f.given * from.each
			}
		}
	}
	o := r.scenario.Outage
	closed := o.To > 0 && r.now+grain > r.scenario.since(o.From) && r.now < r.scenario.since(o.To)+1000
	m.enough = given >= 0.998*t.brings(grain) && !closed
}

// span is the service of one entity in one of the spans of Jain's index.
type span struct {
	served, fair float64 // units; fair is what weighted max-min gives, each second, to the messages that wait then
	waits        int     // the seconds that began with waiting messages
}

// spanOf returns the entity's span that r.now is in.
func (r *sharedRun) spanOf(entity int) *span {
	k := int((r.now - r.begin) / 1000 / jainSpan)
	for len(r.spans[entity]) <= k {
		r.spans[entity] = append(r.spans[entity], span{})
	}
	return &r.spans[entity][k]
}

// divide adds to the spans what the second that begins now brings.
func (r *sharedRun) divide() {
	for _, s := range r.scopes {
		for _, t := range s.tanks() {
			t.refresh(r.now)
			t.room = t.left + t.rate*float64(t.refreshes(r.now, r.now+999))
		}
	}
	fill(r.flows)
	waits := make([]bool, len(r.names))
	for _, f := range r.flows {
		if f.backlog > little {
			r.spanOf(f.entity).fair += f.given
			waits[f.entity] = true
		}
	}
	for entity, w := range waits {
		if w {
			r.spanOf(entity).waits++
		}
	}
}
