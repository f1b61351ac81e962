// Package simulate tries a limit before it is used: it sends a load through drip in virtual time, and counts what
// the provider would have counted.
//
// A [Scenario] says what the limit is, how the provider counts, what arrives, how long operations take and what goes
// wrong. [Run] plays it once for each [Policy] with the same messages, and beside them for the optimum: a queue that
// knows the future. The [Report] is written as a table or drawn as a chart.
//
//	s, _ := simulate.Named("rate-poisson-backlog")
//	report, err := simulate.Run(s, 1)
//
// Nothing waits and nothing depends on the machine: the same scenario with the same seed gives the same numbers.
package simulate

import (
	"errors"
	"fmt"
	"time"

	"github.com/drip-go/drip"
)

// Begin is the instant at which every scenario begins. The times of a scenario count from it.
var Begin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Scenario is one case to try. All but Options, Arrivals and Operation may be left zero.
type Scenario struct {
	// Name and About are the titles of tables and charts.
	Name, About string

	// Options are the limit that the policies keep. Each run has its own Storage, Clock, Limits and Start: entities
	// are full at Begin.
	Options drip.Options

	// Changes are what happens to the limit on the way, in order of time.
	Changes []Change

	// Providers makes the providers of one entity. They count for themselves. Defaults to none.
	Providers func() []Provider

	// Entities is how many there are, each with a load of its own from Arrivals. Defaults to 1.
	Entities int

	// Arrivals is when the messages of an entity arrive.
	Arrivals Arrivals

	// Operation is how long the provider takes.
	Operation Distribution

	// Costs are what the operations cost. Defaults to one unit each.
	Costs Costs

	// Travel is how long a request may be on its way to the provider: each takes a time between 0 and this. The answer
	// takes none. Defaults to 0.
	Travel time.Duration

	// Late is by how much a postponed message misses the time when it should come back. Defaults to nothing.
	Late Distribution

	// Processes is how many consumers there are. Deliveries go to them in turn. Defaults to 1.
	Processes int

	// Hold is the longest delay for which a consumer keeps a message in hand, once it has come back, instead of sending
	// it through the broker again. It asks again when that is over, and when an operation of the same entity ends in its
	// process and this is the first in hand. Only policies with tickets hold. Defaults to 5 minutes and Seats to 1,024,
	// which is what package consumer does; with a Hold below zero they never do.
	Hold time.Duration

	// Seats is the most messages that one process has in hand to ask again.
	Seats int

	// Outage is a time without consumers: what arrives or comes back is delivered at its end. Operations that have
	// begun end as they would.
	Outage Outage

	// Crashes is the share of messages whose holder dies: the operation ends at the provider, and nobody says so.
	Crashes float64

	// Duplicates is the share of messages one of whose acknowledgements is lost.
	Duplicates float64

	// Lost is the share of messages that never come back from their first postponement.
	Lost float64

	// Redelivery is how long the broker takes to deliver again after a crash or a lost acknowledgement. Defaults to
	// 10 seconds.
	Redelivery time.Duration
}

// Outage is a time without consumers. The zero Outage is none.
type Outage struct{ From, To time.Duration }

// Change is something that happens to a limit.
type Change struct {
	// At is when.
	At time.Duration

	// Limit is what holds for all entities from then on, as the function Options.Limits would return it. Nil leaves it
	// as it was.
	Limit *drip.Limit

	// Provider is called for each provider of each entity with the time in milliseconds since 1970. Nil leaves
	// them as they were.
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
	best := newRun(&s, messages, seed)
	best.playOptimum()
	binding := best.binding()
	report := Report{Scenario: s, Seed: seed, Binding: binding.String()}
	for _, p := range policies {
		r := newRun(&s, messages, seed)
		if err := r.play(p); err != nil {
			return Report{}, fmt.Errorf("simulate: %s, %s: %w", s.Name, p.Name, err)
		}
		report.Results = append(report.Results, r.result(p.Name, binding))
	}
	report.Results = append(report.Results, best.result("optimum", binding))
	return report, nil
}

func (s *Scenario) setDefaults() error {
	if s.Arrivals == nil || s.Operation == nil {
		return errors.New("Arrivals and Operation are required")
	}
	for _, share := range []struct {
		name string
		of   float64
	}{{"Crashes", s.Crashes}, {"Duplicates", s.Duplicates}, {"Lost", s.Lost}} {
		if !(share.of >= 0 && share.of <= 1) {
			return fmt.Errorf("%s is %v; it must be from 0 to 1", share.name, share.of)
		}
	}
	for i, c := range s.Changes {
		if c.Limit != nil && c.Limit.Windows != nil && len(c.Limit.Windows) != len(s.Options.Windows) {
			return fmt.Errorf("Changes[%d].Limit.Windows are %d; they must be as many as Options.Windows, %d", i, len(c.Limit.Windows), len(s.Options.Windows))
		}
		if i > 0 && c.At < s.Changes[i-1].At {
			return fmt.Errorf("Changes[%d].At is before that of the one before it", i)
		}
	}
	for i, e := range s.eras() {
		if !e.possible() {
			field := "Options"
			if i > 0 {
				field = "Changes"
			}
			return fmt.Errorf("%s have a size, rate, interval or concurrency below 1", field)
		}
	}
	if s.Providers == nil {
		s.Providers = func() []Provider { return nil }
	}
	if s.Costs == nil {
		s.Costs = FixedCost(1)
	}
	if s.Late == nil {
		s.Late = Fixed(0)
	}
	if s.Hold == 0 {
		s.Hold = 5 * time.Minute
	}
	if s.Seats == 0 {
		s.Seats = 1024
	}
	if s.Redelivery == 0 {
		s.Redelivery = 10 * time.Second
	}
	s.Entities = max(1, s.Entities)
	s.Processes = max(1, s.Processes)
	return nil
}
