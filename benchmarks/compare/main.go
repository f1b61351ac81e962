// Compare reads the output of benchmarks and writes the figures that docs/speed.md shows:
//
//	go test -run '^$' -bench . . | go run ./compare -page ../docs/speed.md
//
// The table is a template, figures.md, in which {{metric "Memory/keys=1/workers=1" "drip-ns"}} stands for a figure. A
// figure that is not in the output is an error, so no figure there is older than the others.
package main

import (
	"bufio"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

//go:embed figures.md
var figures string

// Compare replaces the text of the page between these two.
const begin, end = "<!-- figures: make compare -->\n", "<!-- end of the figures -->"

func main() {
	log.SetFlags(0)
	page := flag.String("page", "", "a `file` to write the figures into, where it is marked")
	flag.Parse()
	if err := run(os.Stdin, os.Stdout, *page); err != nil {
		log.Fatal("compare: ", err)
	}
}

func run(in io.Reader, out io.Writer, page string) error {
	m, err := read(in)
	if err != nil {
		return err
	}
	table, err := m.fill(figures)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, table); err != nil || page == "" {
		return err
	}
	return replace(page, table)
}

// metrics are all values that were printed, by benchmark and unit.
type metrics map[string]map[string][]float64

var (
	benchmark = regexp.MustCompile(`^Benchmark(\S+?)(?:-\d+)?\s`)
	value     = regexp.MustCompile(`(\S+) (\S+)\s*(?:\t|$)`)
)

// read takes the lines that are results of benchmarks, and passes over all others.
func read(in io.Reader) (metrics, error) {
	m := metrics{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		name := benchmark.FindStringSubmatch(lines.Text())
		if name == nil {
			continue
		}
		if m[name[1]] == nil {
			m[name[1]] = map[string][]float64{}
		}
		for _, v := range value.FindAllStringSubmatch(lines.Text(), -1) {
			if n, err := strconv.ParseFloat(v[1], 64); err == nil {
				m[name[1]][v[2]] = append(m[name[1]][v[2]], n)
			}
		}
	}
	return m, lines.Err()
}

// rows are the rows of the tables, in the order of the keys.
var rows = struct {
	InMemory, Delays map[string]string // the name of a row, and the benchmark
	Callers, Clients []int
	Leases           []int
	Scripts          []string
	Limits           []int
}{
	InMemory: map[string]string{
		"**drip**":               "drip-ns",
		"golang.org/x/time/rate": "xtime-ns",
		"sethvargo/go-limiter":   "sethvargo-ns",
		"throttled/throttled":    "throttled-ns",
		"uber-go/ratelimit":      "uber-ns",
		"ulule/limiter":          "ulule-ns",
	},
	Callers: []int{1, 16, 64, 256},
	Clients: []int{1, 10, 50},
	Leases:  []int{0, 100, 1000, 10_000, 100_000},
	Scripts: []string{"decide.lua", "swap.lua"},
	Limits:  []int{1, 2, 3},
	Delays: map[string]string{
		"50 ms to 30 s":                      "uniform_50ms-30s",
		"to whole seconds":                   "whole_seconds",
		"to the same instant, 1,000 of them": "1000_at_a_time",
	},
}

// fill fills in a template. A figure of a benchmark that ran several times is the median.
func (m metrics) fill(text string) (string, error) {
	t, err := template.New("figures.md").Funcs(template.FuncMap{
		"metric": func(benchmark, unit string) (float64, error) {
			v := m[benchmark][unit]
			if len(v) == 0 {
				return 0, fmt.Errorf("%s has not printed a figure in %s", "Benchmark"+benchmark, unit)
			}
			slices.Sort(v)
			return v[len(v)/2], nil
		},
		"whole":   func(v float64) string { return thousands(math.Round(v)) },
		"two":     func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"one":     func(v float64) string { return fmt.Sprintf("%.1f", v) },
		"inverse": func(v float64) float64 { return 1 / v },
	}).Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, rows)
	return b.String(), err
}

func thousands(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// replace writes the table where the file has it marked.
func replace(name, table string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(b), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return errors.New(name + " does not say where the table is: " + strings.TrimSpace(begin) + " … " + end)
	}
	return os.WriteFile(name, []byte(before+begin+table+end+after), 0o644)
}
