// Simulate plays scenarios and prints the results of drip and of other policies. It needs no server.
//
//	go run ./examples/simulate
//	go run ./examples/simulate -svg late.svg rate-late-hops-60/60s
//	go run ./examples/simulate -summary
//	go run ./examples/simulate -lost 300
//	go run ./examples/simulate -shared
//	go run ./examples/simulate -shared -random 100
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"time"

	"github.com/drip-go/drip/internal/lab"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		log.Fatal(err)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("simulate", flag.ContinueOnError)
	list := flags.Bool("list", false, "name the scenarios there are")
	seed := flags.Uint64("seed", 1, "the seed of the random numbers")
	summary := flags.Bool("summary", false, "print one table, of Admit in comparison, in Markdown")
	lost := flags.Int("lost", 0, "play that `many` random loads of which tickets are lost, and print one table in Markdown")
	shared := flags.Bool("shared", false, "play the scenarios of limits that entities share, and print one table in Markdown")
	random := flags.Int("random", 0, "with -shared: play that `many` random loads instead")
	svg := flags.String("svg", "", "a `file` to draw the runs in")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case *random < 0:
		return fmt.Errorf("-random is %d; it must not be below 0", *random)
	case *lost < 0:
		return fmt.Errorf("-lost is %d; it must not be below 0", *lost)
	case *random > 0 && !*shared:
		return errors.New("-random is a number of loads for -shared")
	case *lost > 0 && (*shared || flags.NArg() > 0):
		return errors.New("-lost plays random loads, and neither -shared nor scenarios")
	case *svg != "" && (*shared || *lost > 0):
		return errors.New("-svg draws scenarios, and neither -shared nor -lost")
	}
	if *list {
		for _, s := range lab.Scenarios() {
			fmt.Fprintf(out, "%-24s%s\n", s.Name, s.About)
		}
		return nil
	}
	if *lost > 0 {
		return losses(out, *lost, *seed)
	}
	if *shared {
		return sharing(out, *random, *seed, flags.Args())
	}
	scenarios, err := named(flags.Args())
	if err != nil {
		return err
	}
	var reports []lab.Report
	if *summary {
		fmt.Fprint(out, heading)
	}
	for i, s := range scenarios {
		report, err := lab.Run(s, *seed)
		if err != nil {
			return err
		}
		reports = append(reports, report)
		if *summary {
			fmt.Fprint(out, row(report))
			continue
		}
		if i > 0 {
			fmt.Fprintln(out)
		}
		if err := report.WriteTable(out); err != nil {
			return err
		}
	}
	if *svg == "" {
		return nil
	}
	return draw(*svg, reports)
}

const heading = `| scenario | postponements: mean, most | the same, retry after | makespan | p99 wait | longest wait | over the limit |
|---|---|---|---|---|---|---|
`

// row has the results of a scenario for Admit, beside retry-after and as multiples of the optimum.
func row(r lab.Report) string {
	admit, retryAfter, optimum := r.Results[0], r.Results[2], r.Results[3]
	times := func(a, b time.Duration) string {
		if a == b {
			return "1.00"
		}
		return fmt.Sprintf("%.2f", float64(a)/float64(b))
	}
	return fmt.Sprintf("| %s | %.2f, %d | %.0f, %d | %s | %s | %s | %d |\n", r.Scenario.Name,
		admit.Redeliveries.Mean, admit.Redeliveries.Max, retryAfter.Redeliveries.Mean, retryAfter.Redeliveries.Max,
		times(admit.Makespan, optimum.Makespan), times(admit.Wait.P99, optimum.Wait.P99), times(admit.Wait.Max, optimum.Wait.Max),
		admit.OverLimit)
}

// losses plays random loads that lose a share of their tickets. It prints how long they took, as multiples of the optimum,
// and how many never ended.
func losses(out io.Writer, n int, seed uint64) error {
	fmt.Fprint(out, "| tickets lost | makespan: median, p95, most | longest wait: median, p95, most | stopped |\n|---|---|---|---|\n")
	for _, share := range []float64{0, 0.01, 0.1, 0.5, 1} {
		var makespans, waits []float64
		stopped := 0
		for i := range uint64(n) {
			s := lab.RandomLoad(i)
			s.LostTickets = share
			report, err := lab.Run(s, seed+i, lab.Admit)
			if err != nil {
				return err
			}
			admit, optimum := report.Results[0], report.Results[1]
			if admit.Done < admit.Messages {
				stopped++
			}
			makespans = append(makespans, admit.Makespan.Seconds()/optimum.Makespan.Seconds())
			waits = append(waits, (admit.Wait.Max+time.Second).Seconds()/(optimum.Wait.Max+time.Second).Seconds())
		}
		fmt.Fprintf(out, "| %v %% | %s | %s | %d |\n", 100*share, spread(makespans), spread(waits), stopped)
	}
	return nil
}

// spread returns the median, the value that 95 % do not exceed, and the largest value.
func spread(values []float64) string {
	slices.Sort(values)
	n := len(values)
	return fmt.Sprintf("%.2f, %.2f, %.2f", values[n/2], values[(n*95-1)/100], values[n-1])
}

// sharing plays the scenarios of these names with shared limits, all if there are none, or random ones instead.
func sharing(out io.Writer, random int, seed uint64, names []string) error {
	scenarios := lab.SharedScenarios()
	if random > 0 {
		scenarios = nil
		for i := range uint64(random) {
			scenarios = append(scenarios, lab.RandomShared(seed+i))
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(scenarios, func(s lab.SharedScenario) bool { return s.Name == name }) {
			return fmt.Errorf("there is no shared scenario %q", name)
		}
	}
	var results []lab.SharedResult
	for _, s := range scenarios {
		if len(names) > 0 && !slices.Contains(names, s.Name) {
			continue
		}
		r, err := lab.RunShared(s, seed)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	return lab.WriteSharedTable(out, results...)
}

// named returns the scenarios of these names, or all without names.
func named(names []string) ([]lab.Scenario, error) {
	if len(names) == 0 {
		return lab.Scenarios(), nil
	}
	var scenarios []lab.Scenario
	for _, name := range names {
		s, ok := lab.Named(name)
		if !ok {
			return nil, fmt.Errorf("there is no scenario %q; -list names those there are", name)
		}
		scenarios = append(scenarios, s)
	}
	return scenarios, nil
}

func draw(name string, reports []lab.Report) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	return errors.Join(lab.WriteSVG(w, reports...), w.Flush(), file.Close())
}
