package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/simulate"
)

// simulation is "drip simulate".
type simulation struct {
	json, check bool
	seed        uint64
	svg         string
}

func (c *simulation) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	set.BoolVar(&c.check, "check", false, "exit with status 4 if drip made a call over a limit or left a message")
	set.Uint64Var(&c.seed, "seed", 1, "what all randomness comes from, a `number`")
	set.StringVar(&c.svg, "svg", "", "a `file` to draw the runs in")
}

func (c *simulation) run(ctx context.Context, t *terminal, args []string) error {
	text, err := readFile(t, args[0])
	if err != nil {
		return err
	}
	var file scenario
	if err := decode(args[0], text, &file); err != nil {
		return err
	}
	s, err := file.scenario(filepath.Dir(args[0]))
	if err != nil {
		return usagef("%s: %w", args[0], err)
	}
	if s.Name == "" {
		s.Name = filepath.Base(args[0])
	}
	r, err := play(ctx, s, c.seed)
	if err != nil {
		return err
	}
	if c.svg != "" {
		if err := draw(c.svg, r); err != nil {
			return err
		}
	}
	if c.json {
		err = writeJSON(t.out, reportJSONOf(r))
	} else {
		err = r.WriteTable(t.out)
	}
	if err == nil && c.check {
		err = check(r)
	}
	return err
}

// play runs a scenario, and leaves it alone when ctx ends.
func play(ctx context.Context, s simulate.Scenario, seed uint64) (simulate.Report, error) {
	type outcome struct {
		report simulate.Report
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		r, err := simulate.Run(s, seed)
		done <- outcome{r, err}
	}()
	select {
	case o := <-done:
		return o.report, o.err
	case <-ctx.Done():
		return simulate.Report{}, ctx.Err()
	}
}

// draw writes the picture. A file that is there stays as it is until the new one is whole.
func draw(name string, r simulate.Report) error {
	var picture bytes.Buffer
	if err := simulate.WriteSVG(&picture, r); err != nil {
		return err
	}
	return os.WriteFile(name, picture.Bytes(), 0o666)
}

// check looks at what drip has done.
func check(r simulate.Report) error {
	for _, res := range r.Results {
		if res.Policy != simulate.Admit.Name {
			continue
		}
		if res.OverLimit > 0 {
			return fmt.Errorf("%w: %s over the provider's limit", errNo, entities.Count(res.OverLimit, "call"))
		}
		if left := res.Messages - res.Lost - res.Done; left > 0 {
			return fmt.Errorf("%w: %s not handled", errNo, entities.Count(left, "message"))
		}
	}
	return nil
}

type reportJSON struct {
	Name    string       `json:"name"`
	Seed    uint64       `json:"seed"`
	Binding string       `json:"binding"`
	Results []resultJSON `json:"results"`
}

type resultJSON struct {
	Policy           string  `json:"policy"`
	Messages         int     `json:"messages"`
	Done             int     `json:"done"`
	Lost             int     `json:"lost"`
	RedeliveriesMean float64 `json:"redeliveries_mean"`
	RedeliveriesP99  int     `json:"redeliveries_p99"`
	RedeliveriesMax  int     `json:"redeliveries_max"`
	HeldAsks         float64 `json:"held_asks_mean"`
	Used             float64 `json:"used"`
	Makespan         int64   `json:"makespan_ms"`
	WaitMean         int64   `json:"wait_mean_ms"`
	WaitP99          int64   `json:"wait_p99_ms"`
	WaitMax          int64   `json:"wait_max_ms"`
	Overtaken        int     `json:"overtaken"`
	OverLimit        int     `json:"over_limit"`
}

func reportJSONOf(r simulate.Report) reportJSON {
	j := reportJSON{Name: r.Scenario.Name, Seed: r.Seed, Binding: r.Binding}
	ms := time.Duration.Milliseconds
	for _, s := range r.Results {
		j.Results = append(j.Results, resultJSON{
			s.Policy, s.Messages, s.Done, s.Lost, s.Redeliveries.Mean, s.Redeliveries.P99, s.Redeliveries.Max, s.HeldAsks,
			s.Utilisation, ms(s.Makespan), ms(s.Wait.Mean), ms(s.Wait.P99), ms(s.Wait.Max), s.Overtaken, s.OverLimit,
		})
	}
	return j
}
