package cli

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drip-go/drip/simulate"
)

// scenario is what is asked of a simulate.Scenario most, as a file says it. drip help simulate is its documentation.
type scenario struct {
	Name      string     `json:"name"`
	About     string     `json:"about"`
	Limits    limits     `json:"limits"`
	Providers []provider `json:"providers"`
	Entities  int        `json:"entities"`
	Arrivals  []arrival  `json:"arrivals"`
	Operation spread     `json:"operation"`
	Cost      costs      `json:"cost"`
	Travel    duration   `json:"travel"`
	Late      spread     `json:"late"`
}

// most is how many messages a scenario may have: more than that take minutes, and what they show is shown by fewer.
const most = 1_000_000

// scenario makes one. Files that it names are in the folder dir.
func (s *scenario) scenario(dir string) (simulate.Scenario, error) {
	fail := func(err error) (simulate.Scenario, error) { return simulate.Scenario{}, err }
	if _, err := s.Limits.bucket(nil); err != nil {
		return fail(err)
	}
	if s.Entities < 0 || s.Entities > 100_000 {
		return fail(fmt.Errorf("entities is %d; it must be from 1 to 100000", s.Entities))
	}
	out := simulate.Scenario{
		Name: s.Name, About: s.About, Options: s.Limits.options(nil), Entities: max(1, s.Entities),
		Travel: time.Duration(s.Travel),
	}
	if s.Travel < 0 {
		return fail(errors.New("travel is below 0"))
	}
	for i, p := range s.Providers {
		if _, err := p.provider(); err != nil {
			return fail(fmt.Errorf("providers[%d]: %w", i, err))
		}
	}
	out.Providers = func() (all []simulate.Provider) {
		for _, p := range s.Providers {
			made, _ := p.provider()
			all = append(all, made)
		}
		return all
	}
	var err error
	if out.Operation, err = s.Operation.distribution(); err != nil {
		return fail(fmt.Errorf("operation: %w", err))
	}
	if out.Late, err = s.Late.distribution(); err != nil {
		return fail(fmt.Errorf("late: %w", err))
	}
	if out.Costs, err = s.Cost.costs(); err != nil {
		return fail(fmt.Errorf("cost: %w", err))
	}
	out.Arrivals, err = s.arrivals(dir, &out.Entities)
	if err != nil {
		return fail(err)
	}
	return out, nil
}

// provider is a simulate.Provider.
type provider struct {
	Kind      string   `json:"kind"`
	Size      int      `json:"size"`
	PerSecond float64  `json:"per_second"`
	Interval  duration `json:"interval"`
}

func (p provider) provider() (simulate.Provider, error) {
	if p.Size < 1 {
		return nil, fmt.Errorf("size is %d; it must be at least 1", p.Size)
	}
	switch p.Kind {
	case "leaky-bucket", "token-bucket":
		if !(p.PerSecond > 0) || p.Interval != 0 {
			return nil, fmt.Errorf("a %s has a size and a per_second above 0", p.Kind)
		}
	case "fixed-window", "first-call-window", "sliding-window":
		if p.Interval < duration(time.Millisecond) || p.PerSecond != 0 {
			return nil, fmt.Errorf("a %s has a size and an interval of at least 1ms", p.Kind)
		}
	}
	switch p.Kind {
	case "leaky-bucket":
		return simulate.LeakyBucket(float64(p.Size), p.PerSecond), nil
	case "token-bucket":
		return simulate.TokenBucket(float64(p.Size), p.PerSecond), nil
	case "fixed-window":
		return simulate.FixedWindow(p.Size, time.Duration(p.Interval)), nil
	case "first-call-window":
		return simulate.FirstCallWindow(p.Size, time.Duration(p.Interval)), nil
	case "sliding-window":
		return simulate.SlidingWindow(p.Size, time.Duration(p.Interval)), nil
	case "concurrency":
		return simulate.Concurrency(p.Size), nil
	}
	return nil, fmt.Errorf("there is no kind %q; there are leaky-bucket, token-bucket, fixed-window, first-call-window, "+
		"sliding-window and concurrency", p.Kind)
}

// arrival is simulate.Arrivals of one kind.
type arrival struct {
	Kind      string   `json:"kind"`
	Count     int      `json:"count"`
	At        duration `json:"at"`
	PerSecond float64  `json:"per_second"`
	From      duration `json:"from"`
	To        duration `json:"to"`
	File      string   `json:"file"`
}

// arrivals are all kinds together. A trace that names its entities says how many there are.
func (s *scenario) arrivals(dir string, entities *int) (simulate.Arrivals, error) {
	if len(s.Arrivals) == 0 {
		return nil, errors.New("arrivals: there are none")
	}
	var kinds []simulate.Arrivals
	expected := 0.0
	for i, a := range s.Arrivals {
		fail := func(format string, args ...any) (simulate.Arrivals, error) {
			return nil, fmt.Errorf("arrivals[%d]: %w", i, fmt.Errorf(format, args...))
		}
		each := 0.0 // about how many messages an entity has of this kind
		switch a.Kind {
		case "burst":
			if a.Count < 1 || a.At < 0 {
				return fail("a burst has a count of at least 1, and at is not below 0")
			}
			each = float64(a.Count)
			kinds = append(kinds, simulate.Burst(a.Count, time.Duration(a.At)))
		case "steady", "poisson":
			if !(a.PerSecond > 0) || a.From < 0 || a.To <= a.From {
				return fail("%s arrivals have a per_second above 0, from, and to after it", a.Kind)
			}
			each = a.PerSecond * time.Duration(a.To-a.From).Seconds()
			make := simulate.Steady
			if a.Kind == "poisson" {
				make = simulate.Poisson
			}
			kinds = append(kinds, make(a.PerSecond, time.Duration(a.From), time.Duration(a.To)))
		case "trace":
			if len(s.Arrivals) > 1 {
				return fail("a trace is all that arrives")
			}
			t, err := readTrace(dir, a.File)
			if err != nil {
				return fail("%w", err)
			}
			if len(t) > 1 && *entities > 1 {
				return fail("the trace names its entities, so the field entities is left out")
			}
			if *entities = max(*entities, len(t)); *entities == len(t) {
				each = float64(t.messages()) / float64(len(t))
			} else {
				each = float64(t.messages())
			}
			kinds = append(kinds, t.arrivals())
		default:
			return fail("there is no kind %q; there are burst, steady, poisson and trace", a.Kind)
		}
		expected += each * float64(*entities)
	}
	if expected > most {
		return nil, fmt.Errorf("arrivals: they are about %.0f messages; at most %d can be simulated", expected, most)
	}
	return simulate.Mixed(kinds...), nil
}

// trace is when the messages of each entity arrived, in the order in which the entities were first seen.
type trace [][]time.Duration

func (t trace) messages() (n int) {
	for _, times := range t {
		n += len(times)
	}
	return n
}

// arrivals are those of one entity after the other: that is how a run asks for them.
func (t trace) arrivals() simulate.Arrivals {
	next := 0
	return func(*rand.Rand) []time.Duration {
		times := t[next%len(t)]
		next++
		return slices.Clone(times)
	}
}

// readTrace reads a CSV file: a line a message, with the time and, if there are several, the entity. A first line that has
// no time is a header.
func readTrace(dir, name string) (trace, error) {
	if name == "" {
		return nil, errors.New("a trace has a file")
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(dir, name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.FieldsPerRecord = -1
	r.TrimLeadingSpace = true
	r.Comment = '#'
	type message struct {
		at     time.Duration // since 1970, or since the beginning
		entity string
	}
	var messages []message
	var dates bool // the times are those of a calendar
	for n := 0; ; n++ {
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		at, date, err := parseTime(record[0])
		line, _ := r.FieldPos(0)
		switch {
		case err != nil && n == 0:
			continue
		case err == nil && len(messages) > 0 && date != dates:
			err = errors.New("some times have a date and others have none")
		case err == nil && len(record) > 2:
			err = errors.New("there are more than two columns, time and entity")
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		m := message{at: at}
		if dates = date; len(record) > 1 {
			m.entity = record[1]
		}
		messages = append(messages, m)
	}
	if len(messages) == 0 {
		return nil, fmt.Errorf("%s: there is no message in it", name)
	}
	first := slices.MinFunc(messages, func(a, b message) int { return cmp.Compare(a.at, b.at) }).at
	var begin time.Duration
	if dates { // a scenario begins at midnight, and so does this: windows are aligned
		begin = first.Truncate(24 * time.Hour)
	} else if first < 0 {
		return nil, fmt.Errorf("%s: a time is below 0", name)
	}
	var t trace
	numbers := map[string]int{}
	for _, m := range messages {
		i, seen := numbers[m.entity]
		if !seen {
			i = len(t)
			numbers[m.entity] = i
			t = append(t, nil)
		}
		t[i] = append(t[i], m.at-begin)
	}
	return t, nil
}

// parseTime reads a date with a time, seconds since 1970, or a duration since the beginning.
func parseTime(text string) (at time.Duration, date bool, err error) {
	text = strings.TrimSpace(text)
	if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return time.Duration(t.UnixMilli()) * time.Millisecond, true, nil
	}
	if n, err := strconv.ParseFloat(text, 64); err == nil && math.Abs(n) < 1e10 && !math.IsNaN(n) {
		return time.Duration(math.Round(n*1000)) * time.Millisecond, n >= 1e8, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d, false, nil
	}
	return 0, false, fmt.Errorf("%q is not a time such as 2026-01-31T12:00:00Z, 1769860800.250 or 1m30s", text)
}

// spread is a simulate.Distribution: a duration, or a kind with its numbers.
type spread struct {
	Kind   string   `json:"kind"`
	At     duration `json:"at"`
	Mean   duration `json:"mean"`
	Median duration `json:"median"`
	Sigma  float64  `json:"sigma"`
	AtMost duration `json:"at_most"`
}

func (s *spread) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '"' {
		s.Kind = "fixed"
		return json.Unmarshal(text, &s.At)
	}
	type plain spread
	return strictly(text, (*plain)(s))
}

func (s *spread) distribution() (simulate.Distribution, error) {
	var d simulate.Distribution
	switch s.Kind {
	case "", "fixed":
		if s.At < 0 {
			return nil, errors.New("it is below 0")
		}
		d = simulate.Fixed(time.Duration(s.At))
	case "exponential":
		if s.Mean <= 0 {
			return nil, errors.New("exponential has a mean above 0")
		}
		d = simulate.Exponential(time.Duration(s.Mean))
	case "log-normal":
		if s.Median <= 0 || !(s.Sigma > 0) {
			return nil, errors.New("log-normal has a median and a sigma above 0")
		}
		d = simulate.LogNormal(time.Duration(s.Median), s.Sigma)
	default:
		return nil, fmt.Errorf("there is no kind %q; there are exponential and log-normal", s.Kind)
	}
	if s.AtMost > 0 {
		d = simulate.AtMost(time.Duration(s.AtMost), d)
	}
	return d, nil
}

// costs are simulate.Costs: a number, or a range.
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
	return strictly(text, (*plain)(c))
}

func (c costs) costs() (simulate.Costs, error) {
	switch {
	case c == costs{}:
		return simulate.FixedCost(1), nil
	case c.From < 1 || c.To < c.From || c.Off < 0:
		return nil, errors.New("it is a number from 1 on, or has from, to not before it, and off not below 0")
	}
	return simulate.UniformCost(c.From, c.To, c.Off), nil
}

// strictly decodes a part of a file in which every field has to be known: an UnmarshalJSON forgets that the whole is.
func strictly(text []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	return d.Decode(v)
}
