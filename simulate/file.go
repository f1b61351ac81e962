package simulate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/lab"
	"github.com/drip-go/drip/internal/limitjson"
	"github.com/drip-go/drip/provider"
)

type duration = limitjson.Duration

// file is a scenario in JSON. "drip help simulate" is its documentation.
type file struct {
	limitjson.Set
	Name      string            `json:"name"`
	Begins    date              `json:"begins"`
	About     string            `json:"about"`
	Limits    *limitjson.Limits `json:"limits"`
	Providers []counter         `json:"providers"`
	Entities  int               `json:"entities"`
	Arrivals  []arrival         `json:"arrivals"`
	Operation spread            `json:"operation"`
	Cost      costs             `json:"cost"`
	Costs     map[string]costs  `json:"costs"`
	Late      spread            `json:"late"`
}

const (
	// most is how many messages a scenario may have. More take minutes, and fewer show the same.
	most = 1_000_000

	// longest is the longest duration, and the last time, that a scenario may have.
	longest = duration(10 * 365 * 24 * time.Hour)
)

// scenario makes one. Files that it names are in the folder dir.
func (f *file) scenario(dir string) (Scenario, error) {
	fail := func(err error) (Scenario, error) { return Scenario{}, err }
	if f.Entities < 0 || f.Entities > 100_000 {
		return fail(fmt.Errorf("entities is %d; it must be from 1 to 100000", f.Entities))
	}
	out := Scenario{Name: f.Name, About: f.About}
	in := &out.load
	in.Travel, in.Entities, in.Begin = time.Duration(f.Travel), max(1, f.Entities), time.Time(f.Begins)
	var err error
	if out.Options, err = f.Options(f.Limits); err != nil {
		return fail(err)
	}
	for _, w := range lab.Windows(&out.Options) {
		if _, known := f.Costs[w.Unit]; w.Unit != "" && !known {
			return fail(fmt.Errorf("costs: there are none of %q, which a limit counts", w.Unit))
		}
	}
	if err := f.count(&out); err != nil {
		return fail(err)
	}
	if in.Operation, err = f.Operation.distribution(); err != nil {
		return fail(fmt.Errorf("operation: %w", err))
	}
	if in.Late, err = f.Late.distribution(); err != nil {
		return fail(fmt.Errorf("late: %w", err))
	}
	if f.Cost != (costs{}) { // else it is 1
		if in.Costs, err = f.Cost.costs(); err != nil {
			return fail(fmt.Errorf("cost: %w", err))
		}
	}
	for _, unit := range slices.Sorted(maps.Keys(f.Costs)) {
		if in.Units == nil {
			in.Units = map[string]lab.Costs{}
		}
		if in.Units[unit], err = f.Costs[unit].costs(); err != nil {
			return fail(fmt.Errorf("costs: %q: %w", unit, err))
		}
	}
	if in.Arrivals, err = f.arrivals(dir, in); err != nil {
		return fail(err)
	}
	return out, nil
}

// count sets the counters of the calls: the providers of the file, or the rules of the preset.
func (f *file) count(out *Scenario) error {
	own, shared := f.Providers, []counter(nil)
	if f.Preset != "" {
		p, err := provider.Named(f.Preset)
		if err != nil {
			return err
		}
		if own == nil {
			if own, err = countersOf(p.Rules); err != nil {
				return err
			}
		}
		for _, name := range slices.Sorted(maps.Keys(p.Shared)) {
			if _, replaced := f.Shared[name]; replaced {
				continue
			}
			more, err := countersOf(p.Shared[name])
			if err != nil {
				return err
			}
			shared = append(shared, more...)
		}
	}
	for i, c := range own {
		if _, err := c.provider(); err != nil {
			return fmt.Errorf("providers[%d]: %w", i, err)
		}
		if _, known := f.Costs[c.Unit]; c.Unit != "" && !known {
			return fmt.Errorf("costs: there are none of %q, which a provider counts", c.Unit)
		}
	}
	out.load.Providers = func() []lab.Provider { return made(own) }
	out.shared = func() []lab.Provider { return made(shared) }
	return nil
}

func made(all []counter) (providers []lab.Provider) {
	for _, c := range all {
		p, _ := c.provider() // it was possible before
		providers = append(providers, lab.Of(c.Unit, p))
	}
	return providers
}

// countersOf are rules as a file says them. A rule with a field that nothing here counts is an error.
func countersOf(rules []provider.Rule) (all []counter, err error) {
	text, err := json.Marshal(rules)
	if err != nil {
		return nil, err
	}
	var read []struct {
		counter
		Burst int `json:"burst"` // of drip's limit, not of the provider's
	}
	if err := limitjson.Strictly(text, &read); err != nil {
		return nil, fmt.Errorf("the preset cannot be simulated: %w", err)
	}
	for _, r := range read {
		all = append(all, r.counter)
	}
	return all, nil
}

// counter is a lab.Provider.
type counter struct {
	Kind      string         `json:"kind"`
	Size      int            `json:"size"`
	PerSecond float64        `json:"per_second"`
	Interval  duration       `json:"interval"`
	Align     drip.Alignment `json:"align"`
	Unit      string         `json:"unit"`
}

func (p counter) provider() (lab.Provider, error) {
	aligned := p.Align != drip.Alignment{}
	switch p.Kind {
	case "leaky-bucket", "token-bucket":
		if !(p.PerSecond > 0) || p.Interval != 0 || aligned {
			return nil, fmt.Errorf("a %s has a size and a per_second above 0", p.Kind)
		}
	case "concurrency":
		if p.PerSecond != 0 || p.Interval != 0 || aligned {
			return nil, errors.New("a concurrency has a size alone")
		}
	case "calendar":
		if p.PerSecond != 0 || p.Interval != 0 || !aligned {
			return nil, errors.New("a calendar has a size and an align, daily, weekly or monthly")
		}
	case "fixed-window", "first-call-window", "sliding-window":
		const ms = duration(time.Millisecond) // in which the provider counts
		if p.Interval < ms || p.Interval%ms != 0 || p.PerSecond != 0 || aligned {
			return nil, fmt.Errorf("a %s has a size and an interval of at least 1ms, in whole milliseconds", p.Kind)
		}
	default:
		return nil, fmt.Errorf("there is no kind %q; there are leaky-bucket, token-bucket, fixed-window, first-call-window, "+
			"sliding-window, calendar and concurrency", p.Kind)
	}
	if p.Size < 1 {
		return nil, fmt.Errorf("size is %d; it must be at least 1", p.Size)
	}
	switch p.Kind {
	case "leaky-bucket":
		return lab.LeakyBucket(float64(p.Size), p.PerSecond), nil
	case "token-bucket":
		return lab.TokenBucket(float64(p.Size), p.PerSecond), nil
	case "fixed-window":
		return lab.FixedWindow(p.Size, time.Duration(p.Interval)), nil
	case "first-call-window":
		return lab.FirstCallWindow(p.Size, time.Duration(p.Interval)), nil
	case "calendar":
		return lab.Calendar(p.Size, p.Align)
	case "sliding-window":
		return lab.SlidingWindow(p.Size, time.Duration(p.Interval)), nil
	}
	return lab.Concurrency(p.Size), nil
}

type date time.Time

// The years that a scenario may be in. A run counts from 1970, and ends long before drip's last time.
const firstYear, lastYear = 2000, 2199

func (d *date) UnmarshalText(text []byte) error {
	t, err := time.Parse(time.RFC3339, string(text))
	if err != nil || t.Year() < firstYear || t.Year() > lastYear {
		return fmt.Errorf("begins: %q is not a time such as 2026-03-01T09:00:00+01:00, from %d to %d", text, firstYear, lastYear)
	}
	*d = date(t)
	return nil
}

// arrival is lab.Arrivals of one kind.
type arrival struct {
	Kind      string   `json:"kind"`
	Count     int      `json:"count"`
	At        duration `json:"at"`
	PerSecond float64  `json:"per_second"`
	From      duration `json:"from"`
	To        duration `json:"to"`
	File      string   `json:"file"`
}

// arrivals are all kinds together. A trace that names its entities says how many there are, and one with dates when the
// scenario begins.
func (f *file) arrivals(dir string, in *lab.Scenario) (lab.Arrivals, error) {
	if len(f.Arrivals) == 0 {
		return nil, errors.New("arrivals: there are none")
	}
	var kinds []lab.Arrivals
	expected := 0.0
	for i, a := range f.Arrivals {
		fail := func(format string, args ...any) (lab.Arrivals, error) {
			return nil, fmt.Errorf("arrivals[%d]: %w", i, fmt.Errorf(format, args...))
		}
		each := 0.0 // about how many messages an entity has of this kind
		switch a.Kind {
		case "burst":
			if a != (arrival{Kind: a.Kind, Count: a.Count, At: a.At}) {
				return fail("a burst has only count and at")
			}
			if a.Count < 1 || a.At < 0 || a.At > longest {
				return fail("a burst has a count of at least 1, and at from 0 to %v", time.Duration(longest))
			}
			each = float64(a.Count)
			kinds = append(kinds, lab.Burst(a.Count, time.Duration(a.At)))
		case "steady", "poisson":
			if a != (arrival{Kind: a.Kind, PerSecond: a.PerSecond, From: a.From, To: a.To}) {
				return fail("%s arrivals have only per_second, from and to", a.Kind)
			}
			if !(a.PerSecond > 0 && a.PerSecond <= 1e9) || a.From < 0 || a.To <= a.From || a.To > longest {
				return fail("%s arrivals have a per_second above 0 and up to 1e9, from, and to after it, up to %v", a.Kind, time.Duration(longest))
			}
			each = a.PerSecond * time.Duration(a.To-a.From).Seconds()
			make := lab.Steady
			if a.Kind == "poisson" {
				make = lab.Poisson
			}
			kinds = append(kinds, make(a.PerSecond, time.Duration(a.From), time.Duration(a.To)))
		case "trace":
			if len(f.Arrivals) > 1 {
				return fail("a trace is all that arrives")
			}
			if a != (arrival{Kind: a.Kind, File: a.File}) {
				return fail("a trace has only a file")
			}
			var t trace
			var err error
			if t, in.Begin, err = readTrace(dir, a.File, in.Begin); err != nil {
				return fail("%w", err)
			}
			if len(t) > 1 && in.Entities > 1 {
				return fail("the trace names its entities, so the field entities is left out")
			}
			if in.Entities = max(in.Entities, len(t)); in.Entities == len(t) {
				each = float64(t.messages()) / float64(len(t))
			} else {
				each = float64(t.messages())
			}
			kinds = append(kinds, t.arrivals())
		default:
			return fail("there is no kind %q; there are burst, steady, poisson and trace", a.Kind)
		}
		expected += each * float64(in.Entities)
	}
	if expected > most {
		return nil, fmt.Errorf("arrivals: they are about %.0f messages; at most %d can be simulated", expected, most)
	}
	return lab.Mixed(kinds...), nil
}

// spread is a lab.Distribution: a duration, or a kind with its numbers.
type spread struct {
	fixed  duration
	Kind   string   `json:"kind"`
	Mean   duration `json:"mean"`
	Median duration `json:"median"`
	Sigma  float64  `json:"sigma"`
	AtMost duration `json:"at_most"`
}

func (s *spread) UnmarshalJSON(text []byte) error {
	if text[0] != '{' && string(text) != "null" {
		return json.Unmarshal(text, &s.fixed)
	}
	type plain spread
	return limitjson.Strictly(text, (*plain)(s))
}

func (s *spread) distribution() (lab.Distribution, error) {
	var d lab.Distribution
	if min(s.fixed, s.Mean, s.Median, s.AtMost) < 0 || max(s.fixed, s.Mean, s.Median, s.AtMost) > longest {
		return nil, fmt.Errorf("its durations must be from 0 to %v", time.Duration(longest))
	}
	switch {
	case *s == spread{fixed: s.fixed}:
		d = lab.Fixed(time.Duration(s.fixed))
	case s.Kind == "exponential":
		if s.Mean <= 0 || s.Median != 0 || s.Sigma != 0 {
			return nil, errors.New("exponential has a mean above 0, and no median or sigma")
		}
		d = lab.Exponential(time.Duration(s.Mean))
	case s.Kind == "log-normal":
		if s.Median <= 0 || !(s.Sigma > 0) || s.Mean != 0 {
			return nil, errors.New("log-normal has a median and a sigma above 0, and no mean")
		}
		d = lab.LogNormal(time.Duration(s.Median), s.Sigma)
	default:
		return nil, fmt.Errorf("there is no kind %q; there are exponential and log-normal", s.Kind)
	}
	return lab.AtMost(time.Duration(cmp.Or(s.AtMost, longest)), d), nil
}

// costs are lab.Costs: a number, or a range.
type costs struct {
	From int `json:"from"`
	To   int `json:"to"`
	Off  int `json:"off"`
}

func (c *costs) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] != '{' {
		err := json.Unmarshal(text, &c.From)
		c.To = c.From
		return err
	}
	type plain costs
	return limitjson.Strictly(text, (*plain)(c))
}

func (c costs) costs() (lab.Costs, error) {
	if c.From < 1 || c.To < c.From || c.Off < 0 || max(c.To, c.Off) > decision.MostUnits {
		return nil, fmt.Errorf("it is a number from 1 to %d, or has from, to not before it, and off not below 0", int64(decision.MostUnits))
	}
	return lab.UniformCost(c.From, c.To, c.Off), nil
}
