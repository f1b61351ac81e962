package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// mostEvents is the number of events after which a run of so many messages is given up. A policy that lost its tokens in
// crashes would ask for ever, and one that sends everybody back at the same time needs the square of the messages.
func mostEvents(messages int) int { return max(leastEvents, 32*messages) }

var leastEvents = 2_000_000 // tests have fewer

// longestRun is the longest time that a scenario may take at best.
const longestRun = 20 * 365 * 24 * time.Hour

var errLong = errors.New("its messages take more than 20 years at best")

// run is one policy's way through a scenario: the providers, the broker and the consumers.
type run struct {
	scenario  *Scenario
	eras      []era
	messages  []message    // in order of arrival
	names     []string     // of the entities
	providers [][]Provider // of each entity
	limiter   Limiter
	tickets   bool
	rnd       *rand.Rand
	events    events
	now       int64 // ms since 1970
	hands     hands
	err       error
	most      int             // events
	gaveUp    int             // after so many events
	answers   []time.Duration // the delays, in order

	// Only of a sharedRun:
	copies float64                       // the share of postponements whose message comes back twice
	spread int64                         // the time in which messages are delivered after an outage, ms
	begins func(d *delivery) (over bool) // counts an operation that starts; nil if nothing does
	ends   func(d *delivery)             // the same for its end

	lost, overLimit    int
	used               map[string]int64 // what operations have really cost, by unit
	tokenTime          int64            // how long operations took, from the request on
	lastStart, lastEnd int64
}

// delivery is a message on its way through a consumer.
type delivery struct {
	*message
	carried drip.Ticket // in the message: the broker delivers it again after a failure
	ticket  drip.Ticket // the newest: another one only while a consumer holds the message
	back    bool        // it was postponed before
	isCopy  bool        // it is the second one of a postponement
	held
}

func newRun(s *Scenario, messages []message, seed uint64) *run {
	r := &run{
		scenario: s,
		eras:     s.eras(),
		messages: slices.Clone(messages),
		rnd:      rand.New(rand.NewPCG(seed, 1<<63)), // no entity has this one
		hands:    newHands(s.Hold, s.Seats, s.Processes),
		used:     map[string]int64{},
		most:     mostEvents(len(messages)),
	}
	for n := range s.Entities {
		r.names = append(r.names, fmt.Sprintf("entity-%03d", n))
		r.providers = append(r.providers, s.Providers())
	}
	for _, c := range s.Changes {
		if c.Throttle > 0 {
			r.events.addEnd(s.since(c.At), func() { r.throttle(c.Throttle) })
		}
		if c.Provider != nil {
			r.events.addEnd(s.since(c.At), func() {
				for _, providers := range r.providers {
					for _, p := range providers {
						c.Provider(p, r.now)
					}
				}
			})
		}
	}
	return r
}

func (r *run) play(p Policy) error {
	o := r.scenario.Options
	o.Storage = nil
	o.Start = full(r.scenario.Begin)
	o.Clock = func() time.Time { return time.UnixMilli(r.now) }
	o.Limits = func(context.Context, string) (drip.Limit, error) { return r.eras[eraAt(r.eras, r.now)].own, nil }
	limiter, err := p.New(o)
	if err != nil {
		return err
	}
	r.limiter, r.tickets = limiter, p.Tickets
	r.arrive()
	r.happen()
	return r.err
}

func (r *run) arrive() {
	for i := range r.messages {
		m := &r.messages[i]
		r.events.add(m.arrival, func() {
			if m.flow != nil {
				m.flow.backlog += m.calls
			}
			r.deliver(&delivery{message: m})
		})
	}
}

// throttle closes all entities.
func (r *run) throttle(wait time.Duration) {
	if limiter, ok := r.limiter.(throttler); ok {
		for _, name := range r.names {
			r.err = errors.Join(r.err, limiter.Throttled(name, wait))
		}
	}
}

// playOptimum starts each message when that is best.
func (r *run) playOptimum() {
	r.limiter = nothing{}
	entities := make([][]*message, r.scenario.Entities)
	for i := range r.messages {
		m := &r.messages[i]
		m.crashes, m.lost, m.unacknowledged = false, false, 0
		entities[m.Entity] = append(entities[m.Entity], m)
	}
	for _, messages := range entities {
		starts := optimum(messages, r.eras, r.scenario.closed())
		if len(starts) < len(messages) {
			r.err = errLong
			return
		}
		for i, start := range starts {
			r.events.add(start, func() { r.start(&delivery{message: messages[i]}, drip.Admission{}) })
		}
	}
	r.happen()
}

// closed is from when until when nothing runs at best: the outage, or if there is none the first closing.
func (s *Scenario) closed() [2]int64 {
	for _, c := range s.Changes {
		if c.Throttle > 0 && s.Outage == (Outage{}) {
			return [2]int64{s.since(c.At), s.since(c.At + c.Throttle)}
		}
	}
	return [2]int64{s.since(s.Outage.From), s.since(s.Outage.To)}
}

// nothing is the limiter of the optimum, which needs none.
type nothing struct{}

func (nothing) Admit(string, drip.Request) (drip.Admission, error)   { return drip.Admission{}, nil }
func (nothing) Settle(string, drip.Admission, int, drip.Costs) error { return nil }

func (r *run) happen() {
	for n := 0; n < r.most+r.events.renewals; n++ {
		e, ok := r.events.next()
		if !ok || r.err != nil {
			return
		}
		if r.err = r.scenario.Context.Err(); r.err != nil {
			return
		}
		r.now = e.at
		e.do()
	}
	if len(r.events.heap) > 0 {
		r.gaveUp = r.most
	}
}

// after plans what happens some time from now.
func (r *run) after(ms int64, do func()) { r.events.add(r.now+ms, do) }

// deliver gives a message to the next consumer.
func (r *run) deliver(d *delivery) {
	if end, out := r.outage(); out {
		if r.spread > 0 {
			end += r.rnd.Int64N(r.spread)
		}
		r.events.add(end, func() { r.deliver(d) })
		return
	}
	r.hands.give(&d.held, d.Entity, func() { r.askHeld(d) })
	r.ask(d)
}

func (r *run) ask(d *delivery) {
	var a drip.Admission
	var err error
	limiter, plain := r.limiter.(others)
	if plain = plain && d.plain; plain {
		a.Delay, err = limiter.GetDelay(r.names[d.Entity])
	} else {
		costs, _ := d.costs.units()
		a, err = r.limiter.Admit(r.names[d.Entity], drip.Request{
			Cost: d.costs[0].estimate, Costs: costs, Ticket: d.ticket, Within: d.Within, Urgent: d.Urgent,
		})
	}
	r.answers = append(r.answers, a.Delay)
	switch {
	case err != nil:
		r.err = errors.Join(r.err, err)
	case a.Delay == 0:
		r.start(d, a)
	case r.tickets && !plain && d.back && r.hands.hold(&d.held, &r.events, r.now, a):
		d.ticket = a.Ticket
	default:
		r.postpone(d, a)
	}
}

// askHeld asks about a message in hand. A consumer that has gone gives it back to the broker.
func (r *run) askHeld(d *delivery) {
	if _, out := r.outage(); out {
		r.hands.letGo(&d.held)
		d.ticket = d.carried
		r.deliver(d)
		return
	}
	if !d.isCopy {
		d.heldAsks++
	}
	r.ask(d)
}

// postpone sends a message through the broker, with its ticket.
func (r *run) postpone(d *delivery, a drip.Admission) {
	r.hands.letGo(&d.held)
	if d.lost && d.trips == 0 {
		d.trips++
		r.lost++
		return
	}
	if r.scenario.LostTickets > 0 && r.rnd.Float64() < r.scenario.LostTickets {
		a.Ticket = drip.Ticket{}
	}
	again := func(isCopy bool) {
		next := &delivery{message: d.message, carried: a.Ticket, ticket: a.Ticket, back: true, isCopy: isCopy}
		late := max(0, r.scenario.Late(r.rnd))
		r.after((a.Delay + late).Milliseconds(), func() { r.deliver(next) })
	}
	again(d.isCopy)
	if !d.isCopy {
		d.trips++
		if r.copies > 0 && r.rnd.Float64() < r.copies {
			again(true)
		}
	}
	r.acknowledge(d)
}

// acknowledge lets the broker forget a delivery, or not.
func (r *run) acknowledge(d *delivery) {
	d.acknowledged++
	if d.acknowledged == d.unacknowledged {
		r.redeliver(d)
	}
}

func (r *run) redeliver(d *delivery) {
	again := &delivery{message: d.message, carried: d.carried, ticket: d.carried, back: d.back}
	r.after(r.scenario.Redelivery.Milliseconds(), func() { r.deliver(again) })
}

func (r *run) start(d *delivery, a drip.Admission) {
	r.hands.letGo(&d.held)
	if !d.isCopy {
		d.started = cmp.Or(d.started, r.now)
	}
	r.lastStart = r.now
	for _, c := range d.costs {
		r.used[c.unit] += int64(c.actual)
	}
	r.tokenTime += d.travel + d.operation
	over := r.begins != nil && r.begins(d)
	then := func() { r.finish(d, a) }
	if d.crashes {
		d.crashes = false // the next holder lives
		then = func() { r.redeliver(d) }
	} else if limiter, ok := r.limiter.(renewer); ok && !d.plain {
		r.events.renew(limiter, r.names[d.Entity], &a.Lease, r.now, r.now+d.travel+d.operation, &r.err)
	}
	if r.scenario.Travel == 0 {
		r.call(d, over, then)
		return
	}
	r.after(d.travel, func() { r.call(d, over, then) })
}

// call is an operation at the provider. It may be known to be over a limit.
func (r *run) call(d *delivery, over bool, then func()) {
	end, tooMany := beginAll(r.providers[d.Entity], r.now, d.costs)
	if over || tooMany {
		r.overLimit++
	}
	r.events.addEnd(r.now+d.operation, func() {
		end(r.now)
		if !d.isCopy {
			r.lastEnd = r.now
		}
		then()
	})
}

// finish does the work of a consumer that has the provider's answer.
func (r *run) finish(d *delivery, a drip.Admission) {
	if !d.isCopy {
		d.ended = cmp.Or(d.ended, r.now)
	}
	if r.ends != nil {
		r.ends(d)
	}
	var err error
	if limiter, ok := r.limiter.(others); ok && d.plain {
		err = limiter.ReturnToken(r.names[d.Entity])
	} else {
		_, costs := d.costs.units()
		err = r.limiter.Settle(r.names[d.Entity], a, d.costs[0].actual, costs)
	}
	if err != nil {
		r.err = errors.Join(r.err, err)
		return
	}
	r.acknowledge(d)
	r.hands.wake(&d.held, d.Within)
}

// outage tells whether there is no consumer, and until when.
func (r *run) outage() (end int64, out bool) {
	from, to := r.scenario.since(r.scenario.Outage.From), r.scenario.since(r.scenario.Outage.To)
	return to, from <= r.now && r.now < to
}
