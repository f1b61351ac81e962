package cli

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSimulate(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "sale.svg")
	got := must(t, "simulate", "testdata/sale.json", "--check", "--svg", picture)
	const want = `a sale: five minutes of two shops, each with a leaky bucket of 40 that drains by 2 a second
                     redeliveries            held        used of             wait                              over
  policy       done          mean  p99  max  asks  1 every 500ms  makespan   mean     p99     max  overtaken  limit
`
	if !strings.HasPrefix(got, want) || !strings.Contains(got, "\n  admit         191 ") || !strings.Contains(got, "\n  optimum       191 ") {
		t.Errorf("it prints\n%s", got)
	}
	if again := must(t, "simulate", "testdata/sale.json"); again != got {
		t.Errorf("the same again prints\n%s", again)
	}
	if other := must(t, "simulate", "testdata/sale.json", "--seed=2"); other == got {
		t.Error("another seed makes no difference")
	}
	f, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := xml.NewDecoder(f)
	for first := true; ; first = false {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && !first {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); first && (!ok || e.Name.Local != "svg") {
			t.Errorf("the picture begins with %v", token)
		}
	}
	if json := must(t, "simulate", "testdata/sale.json", "--json"); !strings.HasPrefix(json, `{
  "name": "a sale",
  "seed": 1,
  "binding": "1 every 500ms",
  "results": [
    {
      "policy": "admit",
      "messages": 191,
      "done": 191,
`) {
		t.Errorf("as JSON:\n%s", json)
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
	if o.status != statusNo || !strings.Contains(o.out, "policy") || !strings.HasSuffix(o.err, " calls over the provider's limit\n") {
		t.Errorf("%+v", o)
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
		"-1s\n":                      "a time is below 0",
		"0,\"a\n":                    "extraneous or missing",
		"9999999999999999999999,a\n": "there is no message in it",
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
		`{"arrivals":`:                 "it ends too early",
		`{` + burst + `, "limts": {}}`: `unknown field "limts"`,
		`{` + burst + `, "limits": {"rate": -1}}`:                                                              "limits: RefreshRate is -1",
		`{` + burst + `, "entities": 1000000}`:                                                                 "entities is 1000000; it must be from 1 to 100000",
		`{` + burst + `, "travel": "-1s"}`:                                                                     "travel is below 0",
		`{` + burst + `, "operation": {"kind": "exponential", "maen": "1s"}}`:                                  `unknown field "maen"`,
		`{` + burst + `, "operation": {"kind": "exponential"}}`:                                                "operation: exponential has a mean above 0",
		`{` + burst + `, "late": {"kind": "odd"}}`:                                                             `late: there is no kind "odd"`,
		`{` + burst + `, "cost": 0}`:                                                                           "",
		`{` + burst + `, "cost": -1}`:                                                                          "cost: it is a number from 1 on",
		`{` + burst + `, "providers": [{"kind": "odd", "size": 1}]}`:                                           `providers[0]: there is no kind "odd"`,
		`{` + burst + `, "providers": [{"kind": "concurrency"}]}`:                                              "providers[0]: size is 0",
		`{` + burst + `, "providers": [{"kind": "leaky-bucket", "size": 1, "interval": "1s"}]}`:                "a leaky-bucket has a size and a per_second above 0",
		`{` + burst + `, "providers": [{"kind": "fixed-window", "size": 1}]}`:                                  "a fixed-window has a size and an interval of at least 1ms",
		`{"arrivals": [{"kind": "odd"}]}`:                                                                      `arrivals[0]: there is no kind "odd"`,
		`{"arrivals": [{"kind": "burst"}]}`:                                                                    "arrivals[0]: a burst has a count",
		`{"arrivals": [{"kind": "poisson", "per_second": 1}]}`:                                                 "arrivals[0]: poisson arrivals have a per_second above 0",
		`{"arrivals": [{"kind": "trace"}]}`:                                                                    "arrivals[0]: a trace has a file",
		`{"arrivals": [{"kind": "trace", "file": "nowhere.csv"}]}`:                                             "nowhere.csv: no such file",
		`{"entities": 3, "arrivals": [{"kind": "trace", "file": "` + absolute(t, "testdata/sale.csv") + `"}]}`: "the trace names its entities",
		`{"arrivals": [{"kind": "steady", "per_second": 1000, "to": "10h"}]}`:                                  "at most 1000000 can be simulated",
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
	if err != nil {
		t.Fatal(err)
	}
	return name
}
