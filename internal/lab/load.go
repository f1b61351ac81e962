package lab

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// Arrivals makes the times, since Begin, at which the messages of one entity arrive.
type Arrivals func(r *rand.Rand) []time.Duration

// Burst is n messages at once.
func Burst(n int, at time.Duration) Arrivals {
	return func(*rand.Rand) []time.Duration {
		return slices.Repeat([]time.Duration{at}, n)
	}
}

// Steady is messages at equal distances, from a time to another.
func Steady(perSecond float64, from, to time.Duration) Arrivals {
	return func(*rand.Rand) (times []time.Duration) {
		for n := 0; ; n++ {
			since := float64(n) / perSecond * float64(time.Second)
			if since >= float64(to-from) { // which a Duration may not hold
				return times
			}
			times = append(times, from+time.Duration(since))
		}
	}
}

// Poisson is messages that arrive independently of each other, from a time to another.
func Poisson(perSecond float64, from, to time.Duration) Arrivals {
	return func(r *rand.Rand) (times []time.Duration) {
		for t := from; ; {
			gap := r.ExpFloat64() / perSecond * float64(time.Second)
			if gap >= float64(to-t) { // which a Duration may not hold
				return times
			}
			t += time.Duration(gap)
			times = append(times, t)
		}
	}
}

// Day is messages that arrive independently of each other for 24 hours: none at midnight, most at noon.
func Day(perSecondAtNoon float64) Arrivals {
	const day = 24 * time.Hour
	all := Poisson(perSecondAtNoon, 0, day)
	return func(r *rand.Rand) []time.Duration {
		return slices.DeleteFunc(all(r), func(t time.Duration) bool {
			return r.Float64() > (1-math.Cos(2*math.Pi*float64(t)/float64(day)))/2
		})
	}
}

// Mixed is several kinds of arrivals at once, such as a backlog and a steady load.
func Mixed(kinds ...Arrivals) Arrivals {
	return func(r *rand.Rand) (times []time.Duration) {
		for _, a := range kinds {
			times = append(times, a(r)...)
		}
		return times
	}
}

// Distribution draws durations. They are cut to whole milliseconds.
type Distribution func(r *rand.Rand) time.Duration

// Fixed is always the same.
func Fixed(d time.Duration) Distribution {
	return func(*rand.Rand) time.Duration { return d }
}

// Uniform is anything between two durations, alike.
func Uniform(lo, hi time.Duration) Distribution {
	return func(r *rand.Rand) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
}

// Exponential is durations of that mean.
func Exponential(mean time.Duration) Distribution {
	return func(r *rand.Rand) time.Duration { return drawn(r.ExpFloat64() * float64(mean)) }
}

// drawn is a duration that was drawn, in nanoseconds: maybe more than a Duration holds.
func drawn(ns float64) time.Duration { return time.Duration(min(ns, 1<<62)) }

// LogNormal has a long tail: half are below the median, and a few are many times as long. Sigma says how many: with
// 1 one in a hundred takes ten times the median, with 1.5 thirty-three times.
func LogNormal(median time.Duration, sigma float64) Distribution {
	return func(r *rand.Rand) time.Duration {
		return drawn(math.Exp(r.NormFloat64()*sigma) * float64(median))
	}
}

// AtMost cuts durations that are longer, as a timeout does.
func AtMost(most time.Duration, d Distribution) Distribution {
	return func(r *rand.Rand) time.Duration { return min(most, d(r)) }
}

// Costs draws the estimated cost of an operation when it is sent, and its real cost.
type Costs func(r *rand.Rand) (estimate, actual int)

// FixedCost is always the same, and equal to the estimate.
func FixedCost(units int) Costs {
	return func(*rand.Rand) (int, int) { return units, units }
}

// UniformCost is an estimate between two costs. The real cost is off by at most that much, and at least 0.
func UniformCost(lo, hi, off int) Costs {
	return func(r *rand.Rand) (int, int) {
		estimate := lo + r.IntN(hi-lo+1)
		return estimate, max(0, estimate-off+r.IntN(2*off+1))
	}
}

// cost is the cost of an operation in one unit; "" is calls.
type cost struct {
	unit             string
	estimate, actual int
}

func (c Costs) draw(unit string, r *rand.Rand) cost {
	estimate, actual := c(r)
	return cost{unit, estimate, actual}
}

// bill is the cost of an operation in calls, and then in other units.
type bill []cost

// drawBill draws the cost in calls and in other units.
func drawBill(calls Costs, units map[string]Costs, r *rand.Rand) bill {
	b := bill{calls.draw("", r)}
	for _, unit := range slices.Sorted(maps.Keys(units)) {
		b = append(b, units[unit].draw(unit, r))
	}
	return b
}

// in returns the cost in a unit that the scenario has.
func (b bill) in(unit string) cost {
	return b[slices.IndexFunc(b, func(c cost) bool { return c.unit == unit })]
}

// units returns the costs in other units than calls, estimated and real; nil is none.
func (b bill) units() (estimate, actual drip.Costs) {
	if len(b) == 1 {
		return nil, nil
	}
	estimate, actual = drip.Costs{}, drip.Costs{}
	for _, c := range b[1:] {
		estimate[c.unit], actual[c.unit] = c.estimate, c.actual
	}
	return estimate, actual
}

// message is a message and its outcome in one run. It is drawn before the run, so that every policy has the same
// messages. Times are milliseconds since 1970.
type message struct {
	SharedMessage
	arrival           int64
	travel, operation int64
	costs             bill
	crashes, lost     bool
	unacknowledged    int  // which of its acknowledgements is lost, counted from 1; 0 for none
	plain             bool // its consumers ask GetDelay

	flow  *flow   // nil without shared limits
	calls float64 // of the flow, that it really takes: at least 1

	started, ended  int64 // for the first time; 0 until then
	acknowledged    int   // how often
	trips, heldAsks int   // through the broker; asked about while a consumer had it in hand
}

// messages draws the messages of a scenario, in order of arrival.
func (s *Scenario) messages(seed uint64) []message {
	var all []message
	for entity := range s.Entities {
		r := rand.New(rand.NewPCG(seed, uint64(entity)))
		times := s.Arrivals(r)
		for _, at := range times {
			m := message{SharedMessage: SharedMessage{At: at, Entity: entity}, arrival: s.since(at)}
			m.travel = r.Int64N(s.Travel.Milliseconds() + 1)
			m.operation = max(0, s.Operation(r)).Milliseconds()
			m.costs = drawBill(s.Costs, s.Units, r)
			// Drawn even if the share is zero, so that a scenario with failures has the messages of one without.
			m.crashes = r.Float64() < s.Crashes
			m.lost = r.Float64() < s.Lost
			if n := 1 + r.IntN(2); r.Float64() < s.Duplicates {
				m.unacknowledged = n
			}
			m.plain = s.Plain > 0 && r.Float64() < s.Plain
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b message) int { return cmp.Compare(a.arrival, b.arrival) })
	return all
}

// since is a scenario's time in milliseconds since 1970.
func (s *Scenario) since(d time.Duration) int64 { return s.Begin.UnixMilli() + d.Milliseconds() }

// full is a time at which an entity was empty so long before a scenario begins that it is full by then.
func full(begin time.Time) time.Time { return time.UnixMilli(begin.UnixMilli() - Begin.UnixMilli()) }
