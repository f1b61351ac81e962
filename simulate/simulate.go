// Package simulate tries limits before you use them. It sends a load through drip and through other policies in virtual
// time, and counts the calls as the provider would. It is the command "drip simulate" for tests:
//
//	s, err := simulate.Read("sale.json")
//	report, err := s.Run(ctx, 1)
//	if drip := report.Results[0]; drip.OverLimit > 0 { … }
//
// "drip help simulate" describes the file. The same scenario with the same seed gives the same numbers on every machine.
package simulate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/lab"
	"github.com/drip-go/drip/internal/limitjson"
)

// Scenario is a load, the limits that it meets, and the providers that count the calls. Read and Parse make one. It is not
// safe for concurrent use.
type Scenario struct {
	// Name and About are the titles of the table and the chart.
	Name, About string

	// Options are the limits. A test may set them to the options of its own program before Run. Run does not use
	// Storage, Clock, Limits, SharedLimits, Weight and Start: entities are full at the beginning. The file says at which
	// date that is.
	Options drip.Options

	load   lab.Scenario
	shared func() []lab.Provider
}

// Read reads a scenario from a file. It looks for a trace that the file names in the folder of the file.
func Read(name string) (Scenario, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Scenario{}, err
	}
	return Parse(name, text)
}

// Parse reads a scenario from the text of a file. name is the name of the file: errors have it, it is the title of a
// scenario without one, and Parse looks for a trace in its folder.
func Parse(name string, text []byte) (Scenario, error) {
	var f file
	if err := limitjson.Decode(name, text, &f); err != nil {
		return Scenario{}, err
	}
	s, err := f.scenario(filepath.Dir(name))
	if err != nil {
		return Scenario{}, fmt.Errorf("%s: %w", name, err)
	}
	s.Name = cmp.Or(s.Name, filepath.Base(name))
	return s, nil
}

// Run plays the scenario with four policies, in this order:
//   - "admit" is drip with tickets.
//   - "classic" is drip with the classic delays.
//   - "retry-after" is a limiter that tells each refused message when to come back. It refills evenly, so it may be over
//     the limit of a window, and then faster than the optimum.
//   - "optimum" knows the future.
//
// With shared limits it plays "admit" and an "optimum" that divides them by weighted max-min at each instant, as if each call of
// an entity cost the average. Then the shared limits themselves count the calls, too, besides the providers.
//
// The seed determines everything that is random. Run returns the context's error when ctx ends.
func (s Scenario) Run(ctx context.Context, seed uint64) (Report, error) {
	if s.load.Arrivals == nil {
		return Report{}, errors.New("simulate: a Scenario is made with Read or Parse")
	}
	in := s.load
	in.Name, in.About, in.Options, in.Context = s.Name, s.About, s.Options, ctx
	if s.Options.Shared == nil {
		r, err := lab.Run(in, seed)
		return reportOf(r), err
	}
	r, err := lab.RunShared(lab.SharedScenario{
		Name: s.Name, About: s.About, Options: s.Options, Begin: in.Begin,
		Entities: make([]lab.SharedEntity, in.Entities),
		Messages: func(r *rand.Rand) (all []lab.SharedMessage) {
			for entity := range in.Entities {
				for _, at := range in.Arrivals(r) {
					all = append(all, lab.SharedMessage{At: at, Entity: entity})
				}
			}
			return all
		},
		Operation: in.Operation, Costs: in.Costs, Units: in.Units, Late: in.Late, Travel: in.Travel,
		Providers: in.Providers, SharedProviders: s.shared, Context: ctx, Unmeasured: true,
	}, seed)
	return reportOf(r.Report), err
}

// Report is the outcome of a scenario.
type Report struct {
	// Name is the title of the scenario, and Seed the seed of the run.
	Name string
	Seed uint64

	// Binding is the limit that binds most: the optimum uses the largest part of it.
	Binding string

	// Results has a result for each policy; the optimum is the last one.
	Results []Result

	lab lab.Report
}

// Result is the outcome of one policy. It counts each message once, even if some were delivered twice.
type Result struct {
	// Policy is "admit", "classic", "retry-after" or "optimum".
	Policy string

	// Messages is how many messages arrived, and Done how many of them were handled. If it is fewer, Run gave up after
	// two million events, or 32 for each message if that is more.
	Messages, Done int

	// Postponements is the mean number of postponements of a message, PostponementsP99 the number that 99 % of messages
	// do not exceed, and PostponementsMax the largest.
	Postponements                      float64
	PostponementsP99, PostponementsMax int

	// HeldAsks is the mean number of times that a consumer asked for a message it held.
	HeldAsks float64

	// Used is the part of the binding limit that was used, 1 for all of it. It is more if the policy exceeded
	// the limit, or if a short run began with a gathered burst.
	Used float64

	// Makespan is the time from the first arrival to the end of the last operation. With shared limits it leaves out the
	// request's way to the provider.
	Makespan time.Duration

	// Wait is the mean time from the arrival of a message to its start, WaitP99 the time that 99 % of messages do not
	// exceed, and WaitMax the longest.
	Wait, WaitP99, WaitMax time.Duration

	// Overtaken is how many messages started after one of the same entity that arrived an interval later.
	Overtaken int

	// OverLimit is the number of calls that a provider found to be over its limit. It is 0 if the scenario has neither
	// providers nor a preset nor shared limits: then nothing counts the calls.
	OverLimit int
}

func reportOf(r lab.Report) Report {
	out := Report{Name: r.Scenario.Name, Seed: r.Seed, Binding: r.Binding, lab: r}
	for _, s := range r.Results {
		out.Results = append(out.Results, Result{
			Policy: s.Policy, Messages: s.Messages, Done: s.Done,
			Postponements: s.Redeliveries.Mean, PostponementsP99: s.Redeliveries.P99, PostponementsMax: s.Redeliveries.Max,
			HeldAsks: s.HeldAsks, Used: s.Utilisation, Makespan: s.Makespan,
			Wait: s.Wait.Mean, WaitP99: s.Wait.P99, WaitMax: s.Wait.Max, Overtaken: s.Overtaken, OverLimit: s.OverLimit,
		})
	}
	return out
}

// WriteTable writes the report as text, of at most 80 columns: a column for each policy.
func (r Report) WriteTable(w io.Writer) error { return r.lab.WriteTable(w) }

// WriteSVG draws the report over the time since the first arrival: how many messages had arrived, how many were done,
// and the wait of the messages that started at a time. The time axis ends when the slowest policy is done, or after two
// and a half times the time of the optimum.
func (r Report) WriteSVG(w io.Writer) error { return lab.WriteSVG(w, r.lab) }

// MarshalJSON writes the fields of "drip simulate --json", which docs/cli.md describes. Durations are whole
// milliseconds.
func (r Report) MarshalJSON() ([]byte, error) {
	type result struct {
		Policy            string  `json:"policy"`
		Messages          int     `json:"messages"`
		Done              int     `json:"done"`
		PostponementsMean float64 `json:"postponements_mean"`
		PostponementsP99  int     `json:"postponements_p99"`
		PostponementsMax  int     `json:"postponements_max"`
		HeldAsks          float64 `json:"held_asks_mean"`
		Used              float64 `json:"used"`
		Makespan          int64   `json:"makespan_ms"`
		WaitMean          int64   `json:"wait_mean_ms"`
		WaitP99           int64   `json:"wait_p99_ms"`
		WaitMax           int64   `json:"wait_max_ms"`
		Overtaken         int     `json:"overtaken"`
		OverLimit         int     `json:"over_limit"`
	}
	j := struct {
		Name    string   `json:"name"`
		Seed    uint64   `json:"seed"`
		Binding string   `json:"binding"`
		Results []result `json:"results"`
	}{Name: r.Name, Seed: r.Seed, Binding: r.Binding}
	ms := time.Duration.Milliseconds
	for _, s := range r.Results {
		j.Results = append(j.Results, result{
			s.Policy, s.Messages, s.Done, s.Postponements, s.PostponementsP99, s.PostponementsMax, s.HeldAsks,
			s.Used, ms(s.Makespan), ms(s.Wait), ms(s.WaitP99), ms(s.WaitMax), s.Overtaken, s.OverLimit,
		})
	}
	return json.Marshal(j)
}
