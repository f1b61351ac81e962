package cli

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestSimulate(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "sale.svg")
	got := must(t, "simulate", "testdata/sale.json", "--check", "--svg", picture)
	const want = `a sale: five minutes of two shops, each with a leaky bucket of 40 that drains by
2 a second
                           admit  classic  retry-after  optimum
  messages handled           191      191          191      191
`
	if !strings.HasPrefix(got, want) {
		t.Errorf("it prints\n%s", got)
	}
	if again := must(t, "simulate", "testdata/sale.json"); again != got {
		t.Errorf("the same again prints\n%s", again)
	}
	if other := must(t, "simulate", "testdata/sale.json", "--seed=2"); other == got {
		t.Error("another seed makes no difference")
	}
	f, err := os.Open(picture)
	ok(t, err)
	defer f.Close()
	d := xml.NewDecoder(f)
	for first := true; ; first = false {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && !first {
			break
		}
		ok(t, err)
		if e, ok := token.(xml.StartElement); first && (!ok || e.Name.Local != "svg") {
			t.Errorf("the picture begins with %v", token)
		}
	}
	if out := must(t, "simulate", "testdata/sale.json", "--json"); !strings.HasPrefix(out, `{
  "name": "a sale",
  "seed": 1,
  "binding": "1 every 500ms",
  "results": [
    {
      "policy": "admit",
      "messages": 191,
      "done": 191,
      "postponements_mean": `) {
		t.Errorf("as JSON:\n%s", out)
	}
}

// The example of the help is one.
func TestSimulateTheExample(t *testing.T) {
	got := tryWith(t, &terminal{in: strings.NewReader(scenarioExample)}, "simulate", "-", "--check")
	if got.status != statusOK || !strings.HasPrefix(got.out, "plus: a leaky bucket of 40 ") {
		t.Errorf("%+v", got)
	}
}

func TestSimulateCheck(t *testing.T) {
	file := write(t, "much.json", `{"limits": {"size": 10, "rate": 10}, "providers": [{"kind": "leaky-bucket", "size": 3, "per_second": 1}],
		"arrivals": [{"kind": "burst", "count": 30}]}`)
	o := try(t, "simulate", file, "--check")
	if o.status != statusNo || !strings.Contains(o.out, "retry-after") || !strings.HasSuffix(o.err, " calls over the provider's limit\n") {
		t.Errorf("%+v", o)
	}
}

// Without providers the number of calls over the limit is unknown, not 0. Shared limits count for themselves.
func TestSimulateUncounted(t *testing.T) {
	const load = `"limits": {"size": 5, "rate": 5}, "cost": 3, "arrivals": [{"kind": "burst", "count": 9}]`
	out := must(t, "simulate", write(t, "s.json", "{"+load+"}"))
	if !strings.Contains(out, "calls over the limit       -        -            -        -\n") || !strings.HasSuffix(out, "- Nothing counts the calls: the scenario has no providers.\n") {
		t.Errorf("without providers:\n%s", out)
	}
	for _, counting := range []string{`"shared": {"app": {"size": 9}}`, `"providers": [{"kind": "concurrency", "size": 5}]`} {
		out := must(t, "simulate", write(t, "s.json", "{"+counting+", "+load+"}"))
		if strings.Contains(out, "-  ") || strings.Contains(out, "Nothing counts") {
			t.Errorf("with %s:\n%s", counting, out)
		}
	}
}

// A preset is its limits and what counts the calls; shared limits hold for all entities together.
func TestSimulatePresetAndShared(t *testing.T) {
	results := func(text string) (string, []simulated) {
		var report struct {
			Binding string
			Results []simulated
		}
		out := must(t, "simulate", write(t, "scenario.json", text), "--json", "--check")
		ok(t, json.Unmarshal([]byte(out), &report))
		return report.Binding, report.Results
	}
	binding, got := results(`{"preset": "shopify rest admin", "travel": "50ms", "arrivals": [{"kind": "burst", "count": 100}]}`)
	if binding != "1 every 500ms" || len(got) != 4 || got[0].Done != 100 || got[0].OverLimit != 0 {
		t.Errorf("a preset: %s, %+v", binding, got)
	}
	binding, got = results(`{"preset": "airtable", "travel": "50ms", "entities": 20, "arrivals": [{"kind": "burst", "count": 50, "at": "1s"}]}`)
	if !strings.HasPrefix(binding, "user: ") || len(got) != 2 || got[0].Done != 1000 || got[0].OverLimit != 0 {
		t.Errorf("a preset with a shared limit: %s, %+v", binding, got)
	}
	binding, got = results(`{"limits": {"size": 38, "rate": 1, "interval": "500ms"}, "shared": {"app": {"size": 5}},
		"entities": 20, "arrivals": [{"kind": "burst", "count": 10, "at": "1s"}], "operation": "100ms"}`)
	if binding != "app: 5 every 1s" || got[0].Done != 200 || got[0].Makespan < 39_000 || got[0].Makespan > 42_000 || got[1].Makespan > got[0].Makespan {
		t.Errorf("a shared limit: %s, %+v", binding, got)
	}
	if o := try(t, "simulate", write(t, "s.json", `{"shared": {"app": {"size": 9}}, "providers": [{"kind": "concurrency", "size": 1}],
		"operation": "1s", "arrivals": [{"kind": "burst", "count": 9}]}`), "--check"); o.status != statusNo {
		t.Errorf("calls over a provider's limit: %+v", o)
	}
}

type simulated struct {
	Policy    string
	Done      int
	OverLimit int   `json:"over_limit"`
	Makespan  int64 `json:"makespan_ms"`
}

// narrow complains about lines that are wider than 80 columns.
func narrow(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// A trace may be written in several ways.
func TestTrace(t *testing.T) {
	scenario := func(trace string) string {
		name := write(t, "trace.csv", trace)
		return write(t, "scenario.json", `{"name": "n", "limits": {"size": 1, "rate": 1}, "arrivals": [{"kind": "trace", "file": "`+name+`"}]}`)
	}
	want := must(t, "simulate", scenario("0,a\n0,b\n0s,a\n250ms,a\n1.5,b\n"))
	for _, same := range []string{
		"time,entity\n0,x\n0,y\n0,x\n0.25,x\n1.5,y\n",
		"1500ms,b\n0,a\n0,b\n0,a\n0.25,a\n",
		"# dates\n2026-01-31T00:00:00Z, a\n2026-01-31T00:00:00Z, b\n2026-01-31T00:00:00Z, a\n2026-01-31T01:00:00.25+01:00, a\n2026-01-31T00:00:01.5Z, b\n",
		"\ufeff0,a\n0,b\n0,a\n0.25,a\n1.5,b\n", // of a spreadsheet
		"\ufeff\"0s\",\"a\"\n0,b\n0,a\n0.25,a\n1.5,b\n",
		"\ufeff\"time\",\"entity\"\n0,a\n0,b\n0,a\n0.25,a\n1.5,b\n",
		"1769817600,a\n1769817600,b\n1769817600,a\n1769817600.25,a\n1769817601.5,b\n",
	} {
		if got := must(t, "simulate", scenario(same)); got != want {
			t.Errorf("%s\ngives\n%s\nwant\n%s", same, got, want)
		}
	}
	for trace, wrong := range map[string]string{
		"":                           "there is no message in it",
		"time\n":                     "there is no message in it",
		"0\nnoon\n":                  `:2: "noon" is not a time such as`,
		"0\n2026-01-31T00:00:00Z\n":  "some times have a date and others have none",
		"0,a,b\n":                    "there are more than two columns",
		"1s,a\n2s\n":                 ":2: some messages have an entity and others have none",
		"1s,a\n2s,\n":                ":2: some messages have an entity and others have none",
		"1s\n2s,a\n":                 ":2: some messages have an entity and others have none",
		"1s\n-1s\n":                  ":2: it is before the beginning",
		"0,\"a\n":                    "extraneous or missing",
		"0\n90000h\n1s\n":            ":2: it is more than 87600h0m0s after the beginning",
		"0,a\n9999-12-31T00:00:00Z":  "is not a time such as",
		"9999999999999999999999,a\n": `:1: "9999999999999999999999" is not a time such as`,
		"24:00,a\n1s,a\n":            `:1: "24:00" is not a time such as`,
	} {
		if o := try(t, "simulate", scenario(trace)); o.status != statusUsage || !strings.Contains(o.err, wrong) {
			t.Errorf("%q: %+v, want %s", trace, o, wrong)
		}
	}
}

func TestScenarioErrors(t *testing.T) {
	const burst = `"arrivals": [{"kind": "burst", "count": 3}]`
	for text, want := range map[string]string{
		`{}`:                           "arrivals: there are none",
		"":                             "it is empty",
		`{"arrivals":`:                 "it ends too early",
		`{` + burst + `, "limts": {}}`: "unknown field \"limts\"\ndrip help limits and drip help simulate describe the fields.",
		`{` + burst + `, "limits": {"rate": -1}}`:                                                               "limits: rate is -1",
		`{` + burst + `, "entities": 1000000}`:                                                                  "entities is 1000000; it must be from 1 to 100000",
		`{` + burst + `, "travel": "-1s"}`:                                                                      "travel is below 0",
		`{` + burst + `, "operation": {"kind": "exponential", "maen": "1s"}}`:                                   `unknown field "maen"`,
		`{` + burst + `, "operation": {"kind": "exponential"}}`:                                                 "operation: exponential has a mean above 0",
		`{` + burst + `, "operation": 5}`:                                                                       `operation is 5; it must be a duration such as "250ms"`,
		`{` + burst + `, "late": null}`:                                                                         "",
		`{` + burst + `, "late": {"kind": "odd"}}`:                                                              `late: there is no kind "odd"`,
		`{` + burst + `, "operation": {"kind": "fixed", "mean": "1s"}}`:                                         `operation: there is no kind "fixed"`,
		`{` + burst + `, "operation": {"mean": "1s"}}`:                                                          `operation: there is no kind ""`,
		`{` + burst + `, "operation": {"kind": "exponential", "mean": "1s", "median": "1s"}}`:                   "operation: exponential has a mean above 0, and no median or sigma",
		`{` + burst + `, "late": {"kind": "log-normal", "median": "1s", "sigma": 1, "mean": "1s"}}`:             "late: log-normal has a median and a sigma above 0, and no mean",
		`{"arrivals": [{"kind": "burst", "count": 3, "from": "1s"}]}`:                                           "arrivals[0]: a burst has only count and at",
		`{"arrivals": [{"kind": "steady", "per_second": 1, "to": "1s", "count": 3}]}`:                           "arrivals[0]: steady arrivals have only per_second, from and to",
		`{"arrivals": [{"kind": "trace", "file": "x.csv", "to": "1s"}]}`:                                        "arrivals[0]: a trace has only a file",
		`{` + burst + `, "providers": [{"kind": "concurrency", "size": 1, "interval": "1s"}]}`:                  "providers[0]: a concurrency has a size alone",
		`{` + burst + `, "cost": 0}`:                                                                            "",
		`{` + burst + `, "cost": -1}`:                                                                           "cost: it is a number from 1 to 1099511627776",
		`{` + burst + `, "providers": [{"kind": "odd", "size": 1}]}`:                                            `providers[0]: there is no kind "odd"`,
		`{` + burst + `, "providers": [{"kind": "leaky"}]}`:                                                     `providers[0]: there is no kind "leaky"`,
		`{` + burst + `, "providers": [{"kind": "concurrency"}]}`:                                               "providers[0]: size is 0",
		`{` + burst + `, "providers": [{"kind": "leaky-bucket", "size": 1, "interval": "1s"}]}`:                 "a leaky-bucket has a size and a per_second above 0",
		`{` + burst + `, "providers": [{"kind": "fixed-window", "size": 1}]}`:                                   "a fixed-window has a size and an interval of at least 1ms",
		`{` + burst + `, "providers": [{"kind": "sliding-window", "size": 1, "interval": "1500us"}]}`:           "a sliding-window has a size and an interval of at least 1ms, in whole milliseconds",
		`{` + burst + `, "preset": "xero", "limits": {}}`:                                                       "a preset gives the limits of an entity: leave out the preset, or limits of your own",
		`{` + burst + `, "preset": "slack-5"}`:                                                                  `there is no preset "slack-5"; there are "Slack, tier 2"`,
		`{` + burst + `, "shared": {"app": {"size": -1}}}`:                                                      `limits: shared["app"]`,
		`{"arrivals": [{"kind": "odd"}]}`:                                                                       `arrivals[0]: there is no kind "odd"`,
		`{"arrivals": [{"kind": "burst"}]}`:                                                                     "arrivals[0]: a burst has a count",
		`{"arrivals": [{"kind": "poisson", "per_second": 1}]}`:                                                  "arrivals[0]: poisson arrivals have a per_second above 0",
		`{"arrivals": [{"kind": "trace"}]}`:                                                                     "arrivals[0]: a trace has a file",
		`{"arrivals": [{"kind": "trace", "file": "nowhere.csv"}]}`:                                              "nowhere.csv: no such file",
		`{"entities": 3, "arrivals": [{"kind": "trace", "file": "` + absolute(t, "testdata/sale.csv") + `"}]}`:  "the trace names its entities",
		`{"arrivals": [{"kind": "steady", "per_second": 1000, "to": "10h"}]}`:                                   "at most 1000000 can be simulated",
		`{"arrivals": [{"kind": "steady", "per_second": 1e-300, "to": "1h"}]}`:                                  "",
		`{"arrivals": [{"kind": "poisson", "per_second": 1e-300, "to": "1h"}]}`:                                 "",
		`{"arrivals": [{"kind": "poisson", "per_second": 1e14, "to": "10ns"}]}`:                                 "arrivals[0]: poisson arrivals have a per_second above 0 and up to 1e9",
		`{"arrivals": [{"kind": "burst", "count": 1, "at": "2500000h"}]}`:                                       "arrivals[0]: a burst has a count of at least 1, and at from 0 to 87600h0m0s",
		`{` + burst + `, "operation": {"kind": "exponential", "mean": "1s", "at_most": "-1s"}}`:                 "operation: its durations must be from 0",
		`{` + burst + `, "late": "2562047h"}`:                                                                   "late: its durations must be from 0",
		`{` + burst + `, "operation": {"kind": "log-normal", "median": "1s", "sigma": 1e300, "at_most": "1m"}}`: "",
		`{` + burst + `, "cost": 1000}`:                                                                         "the cost is out of range: 1000 of at most 100",
		`{` + burst + `, "cost": {"from": 1, "to": 2, "off": 9223372036854775807}}`:                             "cost: it is a number from 1 to 1099511627776",
		`{` + burst + `, "cost": {"from": 1, "to": 9223372036854775807}}`:                                       "cost: it is a number from 1 to 1099511627776",
		`{` + burst + `, "costs": {"points": 5}}`:                                                               `no window counts this unit: "points"`,
		`{` + burst + `, "limits": {"size": 1.5}}`:                                                              "limits.size is a number 1.5; it must be a whole number",
		`{` + burst + `, "limits": {"wait_for_token": "2562047h"}}`:                                             "limits: wait_for_token is 2562047h0m0s; it must be at most",
		`{` + burst + `, "limits": {"windows": [{"size": 1, "interval": "2562047h"}]}}`:                         "limits: windows[0].interval is 2562047h0m0s; it must be at most",
		`{` + burst + `, "shared": {"app": {"size": 1, "lease": "1s"}}}`:                                        `shared limit "app": it has no lease and no max_lease; give them`,
		"{" + burst + ",\n" + burst + "}":                                                                       `scenario.json:2: the field "arrivals" is there twice`,
		`{` + burst + `, "shared": {"app": {"size": 1}, "app": {"size": 2}}}`:                                   `scenario.json:1: the field "app" is there twice`,
		`[]`: "it is an array; it must be a { }",
	} {
		o := try(t, "simulate", write(t, "scenario.json", text))
		if want == "" {
			if o.status != statusOK {
				t.Errorf("%s: %+v", text, o)
			}
		} else if o.status != statusUsage || !strings.Contains(o.err, want) {
			t.Errorf("%s: %+v, want %s", text, o, want)
		}
	}
}

func absolute(t *testing.T, name string) string {
	name, err := filepath.Abs(name)
	ok(t, err)
	return name
}
