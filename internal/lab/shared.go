package lab

import (
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

type sharedMessage struct {
	SharedMessage
	costs     bill
	calls     float64 // that it really takes, at least 1
	flow      *flow
	operation int64 // ms
	started   int64 // ms since 1970; 0 until then

	asks, trips int // through the broker
}

// sharedDelivery is a message on its way through a consumer.
type sharedDelivery struct {
	*sharedMessage
	carried, ticket drip.Ticket // as in delivery
	isCopy, back    bool        // it is the second one of a postponement; it was postponed before
	held
}

// sharedRun is one way through a SharedScenario.
type sharedRun struct {
	scenario *SharedScenario
	messages []sharedMessage // in order of arrival
	names    []string        // of the entities
	scopes   []*scope        // of the entities, and behind them the shared ones
	flows    []*flow
	bucket   *drip.Bucket
	rnd      *rand.Rand
	events   events
	hands    hands
	counting [][]Provider // of the entities, and behind them of all
	begin    int64        // ms since 1970
	now      int64        // the same
	waiting  int
	step     int64 // of the optimum, ms
	over     int
	answers  []time.Duration // the delays, in order
	spans    [][]span        // of the entities, for Jain's index
	err      error
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
	result := r.result(optimum, binding)
	result.Report = Report{
		Scenario: Scenario{Name: s.Name, About: s.About, Options: s.Options}, Seed: seed, Binding: best.bindingName(binding),
		Results: []Result{result.Result, best.outcome("optimum", binding)},
	}
	return result, nil
}

func newSharedRun(s *SharedScenario, seed uint64) (*sharedRun, error) {
	if len(s.Entities) == 0 || s.Messages == nil || s.Operation == nil {
		return nil, errors.New("SharedScenario.Entities, Messages and Operation are required")
	}
	if err := checkAligned(&s.Options); err != nil {
		return nil, fmt.Errorf("SharedScenario.%w", err)
	}
	if s.Begin.IsZero() {
		s.Begin = Begin
	}
	if s.Late == nil {
		s.Late = Uniform(0, 20*time.Millisecond)
	}
	if s.Context == nil {
		s.Context = context.Background()
	}
	for _, p := range []*func() []Provider{&s.Providers, &s.SharedProviders} {
		if *p == nil {
			*p = func() []Provider { return nil }
		}
	}
	r := &sharedRun{
		scenario: s, begin: s.since(0), rnd: rand.New(rand.NewPCG(seed, 1<<63)), hands: newHands(s.Hold, s.Seats, s.Processes),
	}
	o := s.Options
	o.Storage, o.Start = nil, full(s.Begin)
	o.Clock = func() time.Time { return time.UnixMilli(r.now) }
	byName := map[string]SharedEntity{}
	for i, e := range s.Entities {
		r.names = append(r.names, fmt.Sprintf("entity-%03d", i))
		byName[r.names[i]] = e
		r.counting = append(r.counting, s.Providers())
	}
	r.counting = append(r.counting, s.SharedProviders())
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
	if r.bucket, err = drip.New(o); err != nil {
		return nil, err
	}
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
	var longest int64
	for _, m := range r.scenario.Messages(rnd) {
		calls := r.scenario.Costs
		if calls == nil {
			calls = FixedCost(max(1, m.Cost))
		}
		if m.Entity < 0 || m.Entity >= len(r.names) || m.At < 0 {
			return fmt.Errorf("a message of entity %d at %v", m.Entity, m.At)
		}
		operation := max(0, r.scenario.Operation(rnd)).Milliseconds()
		costs := drawBill(calls, r.scenario.Units, rnd)
		r.messages = append(r.messages, sharedMessage{SharedMessage: m, costs: costs, calls: max(1, float64(costs[0].actual)), operation: operation})
		sum += max(1, float64(costs[0].actual))
		took += float64(operation)
		longest = max(longest, operation+r.scenario.Travel.Milliseconds())
	}
	if err := checkLeases(o, longest, took); err != nil {
		return err
	}
	n := max(1, float64(len(r.messages)))
	slices.SortStableFunc(r.messages, func(a, b sharedMessage) int { return int(a.At.Milliseconds() - b.At.Milliseconds()) })
	scopeOf := func(l limit) (*scope, error) {
		return newScope(l, took/n, sum/n, r.begin), l.payable(r.scenario.Units)
	}
	for _, e := range r.scenario.Entities {
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
			f := &flow{entity: m.Entity, weight: float64(max(1, r.scenario.Entities[m.Entity].Weight)), scopes: []*scope{r.scopes[m.Entity]}}
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
	for i := range r.messages {
		m := &r.messages[i]
		r.events.add(r.scenario.since(m.At), func() { r.deliver(&sharedDelivery{sharedMessage: m}) })
	}
	if !r.scenario.Unmeasured {
		r.events.addEnd(r.begin, r.measure)
	}
	for n := 0; n < r.mostEvents()+r.events.renewals; n++ {
		e, ok := r.events.next()
		if !ok || r.err != nil {
			return r.err
		}
		if err := r.scenario.Context.Err(); err != nil {
			return err
		}
		for _, s := range r.scopes[len(r.names):] {
			if s.tokens != nil {
				s.tokens.use.used += s.tokens.rate * float64(e.at-r.now) * float64(s.underWay) / float64(s.concurrency)
			}
		}
		r.now = e.at
		e.do()
	}
	return nil
}

// mostEvents is the number of events after which the run is given up.
func (r *sharedRun) mostEvents() int { return 4 * mostEvents(len(r.messages)) }

// deliver gives a message to the next consumer.
func (r *sharedRun) deliver(d *sharedDelivery) {
	r.hands.give(&d.held, d.Entity, func() { r.ask(d) })
	r.ask(d)
}

func (r *sharedRun) ask(d *sharedDelivery) {
	if o := r.scenario.Outage; r.now >= r.scenario.since(o.From) && r.now < r.scenario.since(o.To) {
		r.hands.letGo(&d.held)
		d.ticket = d.carried
		r.events.add(r.scenario.since(o.To)+r.rnd.Int64N(2000), func() { r.deliver(d) })
		return
	}
	m := d.sharedMessage
	if !d.isCopy {
		if m.asks == 0 {
			m.flow.backlog += m.calls
		}
		m.asks++
	}
	estimate, _ := m.costs.units()
	a, err := r.bucket.Admit(context.Background(), r.names[m.Entity], drip.Request{
		Cost: m.costs[0].estimate, Costs: estimate, Ticket: d.ticket, Within: m.Within, Urgent: m.Urgent,
	})
	r.answers = append(r.answers, a.Delay)
	switch {
	case err != nil:
		r.err = err
	case a.Delay == 0:
		r.start(d, a)
	case d.back && r.hands.hold(&d.held, &r.events, r.now, a):
		d.ticket = a.Ticket
	default:
		r.postpone(d, a)
	}
}

// postpone sends a message through the broker, with its ticket.
func (r *sharedRun) postpone(d *sharedDelivery, a drip.Admission) {
	r.hands.letGo(&d.held)
	s, t := r.scenario, a.Ticket
	if s.LostTickets > 0 && r.rnd.Float64() < s.LostTickets {
		t = drip.Ticket{}
	}
	again := func(isCopy bool) {
		next := &sharedDelivery{sharedMessage: d.sharedMessage, carried: t, ticket: t, isCopy: isCopy, back: true}
		r.events.add(r.now+(a.Delay+max(0, s.Late(r.rnd))).Milliseconds(), func() { r.deliver(next) })
	}
	again(d.isCopy)
	if s.Duplicates > 0 && !d.isCopy && r.rnd.Float64() < s.Duplicates {
		again(true)
	}
	if !d.isCopy {
		d.trips++
	}
}

func (r *sharedRun) start(d *sharedDelivery, a drip.Admission) {
	r.hands.letGo(&d.held)
	m := d.sharedMessage
	if !d.isCopy {
		m.started = r.now
		if !r.scenario.Unmeasured {
			r.spanOf(m.Entity).served += m.calls
		}
		m.flow.backlog -= m.calls
		r.waiting--
	}
	over := false
	for _, s := range m.flow.scopes {
		over = !s.begin(r.now, m.costs) || over
	}
	if over {
		r.over++
	}
	travel := int64(0)
	if r.scenario.Travel > 0 {
		travel = r.rnd.Int64N(r.scenario.Travel.Milliseconds() + 1)
	}
	r.count(m, r.now+travel, over)
	end := r.now + travel + m.operation
	r.events.renew(admit{r.bucket}, r.names[m.Entity], &a.Lease, r.now, end, &r.err)
	r.events.addEnd(end, func() {
		for _, s := range m.flow.scopes {
			s.end(r.now, m.costs)
		}
		_, actual := m.costs.units()
		if err := r.bucket.Settle(context.Background(), r.names[m.Entity], a.Lease, m.costs[0].actual, actual); err != nil {
			r.err = err
		}
		r.hands.wake(&d.held, m.Within)
	})
}

// count has the providers count a call that reaches them at a time. It may have been found to be over a limit before.
func (r *sharedRun) count(m *sharedMessage, at int64, found bool) {
	providers := slices.Concat(r.counting[m.Entity], r.counting[len(r.names)])
	if len(providers) == 0 {
		return
	}
	r.events.add(at, func() {
		end, over := beginAll(providers, at, m.costs)
		if over && !found {
			r.over++
		}
		r.events.addEnd(at+m.operation, func() { end(r.now) })
	})
}

// measure reads the meters of shared limits, each second.
func (r *sharedRun) measure() {
	r.divide()
	for _, s := range r.scopes[len(r.names):] {
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
