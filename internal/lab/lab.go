// Package lab sends loads through drip in virtual time and counts the calls as the provider would. Package simulate and
// examples/simulate are its users.
//
// A [Scenario] has the limit, the providers, the arrivals, the time of operations and the faults. [Run] plays it for each
// [Policy] with the same messages, and for the optimum, a queue that knows the future. [RunShared] does it for limits that
// entities share. The same scenario with the same seed gives the same numbers on every machine.
package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/drip-go/drip"
)

// Begin is the instant at which a scenario begins that names no other.
var Begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Scenario is one case to try. All but Options, Arrivals and Operation may be left zero.
type Scenario struct {
	// Name and About are the titles of tables and charts.
	Name, About string

	// Options are the limit that the policies keep. Each run has its own Storage, Clock, Limits and Start: entities
	// are full at Begin.
	Options drip.Options

	// Begin is the instant from which the times of the scenario count, for windows of a calendar. Defaults to the
	// variable Begin.
	Begin time.Time

	// Changes change the limit during the run. They are in order of time.
	Changes []Change

	// Providers makes the providers of one entity, which count the calls. Defaults to none.
	Providers func() []Provider

	// Entities is how many there are, each with a load of its own from Arrivals. Defaults to 1.
	Entities int

	// Arrivals are the times at which the messages of an entity arrive.
	Arrivals Arrivals

	// Operation is the time that the provider takes.
	Operation Distribution

	// Costs are the costs of the operations in calls. Defaults to one each.
	Costs Costs

	// Units are the costs of the operations in other units, by the names in drip.Window.Unit. Each unit of a window is
	// required.
	Units map[string]Costs

	// Travel is the most time that a request takes to the provider; each takes a random part of it. The answer takes no
	// time. Defaults to 0.
	Travel time.Duration

	// Late is how late a postponed message comes back. Defaults to 0.
	Late Distribution

	// Processes is how many consumers there are. Deliveries go to them in turn. Defaults to 1.
	Processes int

	// Hold is the longest time for which a consumer holds a message that has come back, instead of postponing it
	// through the broker again. The consumer asks again after the delay, and for the first held message of an entity
	// also when an operation of that entity ends in its process. Only policies with tickets hold. Below zero they do
	// not. Defaults to 5 seconds, as in package consumer.
	Hold time.Duration

	// Seats is the most messages that one process holds. Defaults to 2,048, as in package consumer.
	Seats int

	// Outage is a time without consumers. Messages that arrive or come back then are delivered at its end. Operations
	// that have begun go on.
	Outage Outage

	// Crashes is the share of messages whose consumer dies during the operation. The provider ends the operation, and
	// the lease is not given back.
	Crashes float64

	// Duplicates is the share of messages one of whose acknowledgements is lost.
	Duplicates float64

	// Lost is the share of messages that never come back from their first postponement.
	Lost float64

	// LostTickets is the share of postponements whose message comes back without its ticket.
	LostTickets float64

	// Plain is the share of messages whose consumers ask GetDelay and give the token back with ReturnToken. It matters to
	// the policy Admit only.
	Plain float64

	// Context ends the run early, with its error. Defaults to nil: nothing does.
	Context context.Context

	// Redelivery is how long the broker takes to deliver again after a crash or a lost acknowledgement. Defaults to
	// 10 seconds.
	Redelivery time.Duration
}

// Outage is a time without consumers. The zero Outage is none.
type Outage struct{ From, To time.Duration }

// Change changes a limit at a time.
type Change struct {
	// At is the time of the change, since Begin.
	At time.Duration

	// Limit is the limit of all entities from then on, as Options.Limits returns it. Nil leaves it as it is.
	Limit *drip.Limit

	// Throttle closes all entities for that time, as Bucket.Throttled does. RetryAfter knows nothing of it.
	Throttle time.Duration

	// Provider is called for each provider of each entity with the time in milliseconds since 1970. Nil leaves them as
	// they are.
	Provider func(p Provider, ms int64)
}

// Run plays a scenario for the policies, or for Admit, Classic and RetryAfter if none are given, and for the optimum.
// The seed determines everything that is random.
func Run(s Scenario, seed uint64, policies ...Policy) (Report, error) {
	if err := s.setDefaults(); err != nil {
		return Report{}, fmt.Errorf("simulate: Scenario.%w", err)
	}
	if len(policies) == 0 {
		policies = []Policy{Admit, Classic, RetryAfter}
	}
	messages := s.messages(seed)
	if err := checkLeases(&s.Options, messages); err != nil {
		return Report{}, fmt.Errorf("simulate: %s: %w", s.Name, err)
	}
	best := newRun(&s, messages, seed)
	best.playOptimum()
	if best.err != nil {
		return Report{}, fmt.Errorf("simulate: %s, optimum: %w", s.Name, best.err)
	}
	binding := best.binding()
	report := Report{Scenario: s, Seed: seed, Binding: binding.String(), Uncounted: len(s.Providers()) == 0}
	for _, p := range policies {
		r := newRun(&s, messages, seed)
		if err := r.play(p); err != nil {
			return Report{}, fmt.Errorf("simulate: %s, %s: %w", s.Name, p.Name, err)
		}
		report.Results = append(report.Results, r.result(p.Name, r.utilisation(binding.window)))
	}
	report.Results = append(report.Results, best.result("optimum", best.utilisation(binding.window)))
	return report, nil
}

// setCommon sets the defaults of fields that a SharedScenario has, too.
func (s *Scenario) setCommon() error {
	if s.Begin.IsZero() {
		s.Begin = Begin
	}
	if s.Providers == nil {
		s.Providers = func() []Provider { return nil }
	}
	if s.Context == nil {
		s.Context = context.Background()
	}
	return checkAligned(&s.Options)
}

func (s *Scenario) setDefaults() error {
	if err := s.setCommon(); err != nil {
		return err
	}
	if s.Arrivals == nil || s.Operation == nil {
		return errors.New("Arrivals and Operation are required")
	}
	for _, share := range []struct {
		name string
		of   float64
	}{{"Crashes", s.Crashes}, {"Duplicates", s.Duplicates}, {"Lost", s.Lost}, {"LostTickets", s.LostTickets}, {"Plain", s.Plain}} {
		if !(share.of >= 0 && share.of <= 1) {
			return fmt.Errorf("%s is %v; it must be from 0 to 1", share.name, share.of)
		}
	}
	for i, c := range s.Changes {
		if c.Limit != nil && c.Limit.Windows != nil && len(c.Limit.Windows) != len(s.Options.Windows) {
			return fmt.Errorf("Changes[%d].Limit.Windows are %d; they must be as many as Options.Windows, %d", i, len(c.Limit.Windows), len(s.Options.Windows))
		}
		if i > 0 && c.At < s.Changes[i-1].At {
			return fmt.Errorf("Changes[%d].At is before the At of the change before it", i)
		}
	}
	for i, e := range s.eras() {
		if err := e.payable(s.Units); err != nil {
			return err
		}
		if !e.possible() {
			field := "Options"
			if i > 0 {
				field = "Changes"
			}
			return fmt.Errorf("%s have a size, rate, interval or concurrency below 1", field)
		}
	}
	if s.Costs == nil {
		s.Costs = FixedCost(1)
	}
	if s.Late == nil {
		s.Late = Fixed(0)
	}
	s.Redelivery = cmp.Or(s.Redelivery, 10*time.Second)
	s.Entities = max(1, s.Entities)
	return nil
}
