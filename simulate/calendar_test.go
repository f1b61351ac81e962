package simulate

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/drip-go/drip/internal/lab"
	"github.com/drip-go/drip/provider"
)

// The quota of a calendar is never exceeded, and it is used: the last messages run when it has come back often enough, by the
// clocks of its time zone.
func TestCalendar(t *testing.T) {
	for name, c := range map[string]struct {
		begins, align string
		count         int // of 95 in each interval
		last          time.Duration
		late          time.Duration // than at best: slots are computed with the length of the interval before
	}{
		"until midnight":         {`"2026-03-01T22:00:00+01:00"`, "daily Europe/Berlin", 190, 2 * time.Hour, 0},
		"without a date":         {`null`, "daily America/Los_Angeles", 190, 8 * time.Hour, 0},
		"a day of 23 hours":      {`"2026-03-28T20:00:00+01:00"`, "daily Europe/Berlin", 285, 27 * time.Hour, time.Hour},
		"a day of 25 hours":      {`"2026-10-24T20:00:00+02:00"`, "daily Europe/Berlin", 285, 29 * time.Hour, 0},
		"a week":                 {`"2026-03-27T20:00:00+01:00"`, "weekly Europe/Berlin", 190, 51 * time.Hour, time.Hour},
		"the shortest month":     {`"2026-01-30T20:00:00+01:00"`, "monthly Europe/Berlin", 285, 700 * time.Hour, 73 * time.Hour},
		"a month, and the clock": {`"2026-03-15T00:00:00+01:00"`, "monthly Europe/Berlin", 190, 17*24*time.Hour - time.Hour, time.Hour},
		"a zone without a name":  {`"2026-03-01T22:00:00Z"`, "daily -03:30", 190, 5*time.Hour + 30*time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			const limit, load = `{"size": 95, "concurrency": 5, "align": "ALIGN"}`, `, "begins": BEGINS, "travel": "50ms", "operation": "100ms",
				"providers": [{"kind": "calendar", "size": 100, "align": "ALIGN"}], "arrivals": [{"kind": "burst", "count": COUNT}]}`
			for which, text := range map[string]string{
				"limits": `{"limits": ` + limit + load,
				"window": `{"limits": {"size": 50, "rate": 50, "windows": [{"size": 95, "align": "ALIGN"}], "concurrency": 5}` + load,
				"shared": `{"limits": {"size": 50, "rate": 50}, "shared": {"app": ` + limit + `}` + load,
			} {
				text = strings.NewReplacer("BEGINS", c.begins, "ALIGN", c.align, "COUNT", strconv.Itoa(c.count)).Replace(text)
				r := played(t, text)
				best := r.Results[len(r.Results)-1]
				if best.OverLimit != 0 || best.Done != c.count || best.Makespan < c.last-time.Second || best.Makespan > c.last+10*time.Second {
					t.Errorf("%s: the optimum %+v, want the last at %v", which, best, c.last)
				}
				if a := r.Results[0]; a.OverLimit != 0 || a.Done != c.count || a.Makespan < c.last-time.Second || a.Makespan > c.last+c.late+10*time.Second {
					t.Errorf("%s: %+v, want the last at %v", which, a, c.last)
				}
				if used := best.Used; used < 0.5 || used > 1 {
					t.Errorf("%s: %v of %s used", which, used, r.Binding)
				}
				for _, other := range r.Results[1 : len(r.Results)-1] {
					if other.OverLimit != 0 || other.Done != c.count {
						t.Errorf("%s: %+v", which, other)
					}
				}
			}
		})
	}
}

// The providers count by their own calendar: the limit of another one is found out.
func TestCalendarOfAnother(t *testing.T) {
	r := played(t, `{"begins": "2026-03-28T12:00:00Z", "limits": {"size": 95, "concurrency": 5, "align": "daily"},
		"providers": [{"kind": "calendar", "size": 100, "align": "daily America/Los_Angeles"}], "arrivals": [{"kind": "burst", "count": 190}]}`)
	if a := r.Results[0]; a.OverLimit != 90 {
		t.Errorf("%+v, want 90 calls over the limit", a)
	}
}

// A window from a time on has the interval of a file.
func TestStartingAt(t *testing.T) {
	for _, limits := range []string{`"limits": LIMIT`, `"shared": {"app": LIMIT}`} {
		r := played(t, `{`+strings.Replace(limits, "LIMIT", `{"size": 10, "rate": 10, "interval": "24h", "align": "2025-06-01T05:00:00Z"}`, 1)+
			`, "begins": "2026-03-28T12:00:00Z", "arrivals": [{"kind": "burst", "count": 20}]}`)
		best := r.Results[len(r.Results)-1]
		if want := 17 * time.Hour; r.Results[0].Makespan.Round(time.Second) != want || best.Makespan != want || best.Used != 1 {
			t.Errorf("%s: %+v, at best %+v, want %v", limits, r.Results[0], best, want)
		}
	}
}

// With shared limits the optimum, too, waits for the beginning of a long interval: the last messages run in the tenth.
func TestLongIntervalsOfShared(t *testing.T) {
	for _, interval := range []string{"1m", "24h"} {
		every, err := time.ParseDuration(interval)
		ok(t, err)
		r := played(t, `{"shared": {"app": {"size": 5, "rate": 5, "interval": "`+interval+`"}}, "entities": 2, "arrivals": [{"kind": "burst", "count": 24}]}`)
		if a, best := r.Results[0], r.Results[1]; best.Makespan != 9*every || best.Used != 0.96 || a.Makespan < best.Makespan {
			t.Errorf("%s: %+v, at best %+v", interval, a, best)
		}
	}
}

// The dates of a trace are dates of the calendar, whether the scenario says when it begins or not.
func TestTraceOnTheCalendar(t *testing.T) {
	dir := t.TempDir()
	lines := strings.Repeat("2026-06-28T21:30:00Z\n", 20)
	ok(t, os.WriteFile(filepath.Join(dir, "trace.csv"), []byte(lines), 0o666))
	parse := func(begins string) (Scenario, error) {
		return Parse(filepath.Join(dir, "s.json"), []byte(`{`+begins+`"limits": {"size": 10, "align": "daily Europe/Berlin"}, "arrivals": [{"kind": "trace", "file": "trace.csv"}]}`))
	}
	for _, begins := range []string{"", `"begins": "2026-06-28T23:30:00+02:00", `, `"begins": "2026-02-01T00:00:00Z", `} {
		s, err := parse(begins)
		if err != nil {
			t.Errorf("%s: %v", begins, err)
			continue
		}
		r, err := s.Run(t.Context(), 1)
		if err != nil || r.Results[0].Makespan.Round(time.Second) != 30*time.Minute || r.Results[3].Makespan != 30*time.Minute {
			t.Errorf("%s: %v, %+v", begins, err, r.Results)
		}
	}
	if _, err := parse(`"begins": "2026-06-29T00:00:00Z", `); err == nil || !strings.Contains(err.Error(), ": it is before the beginning") {
		t.Errorf("a trace before the beginning: %v", err)
	}
}

// Gemini's day is one of a calendar: the preset keeps it across the change of the clocks.
func TestPresetOfACalendar(t *testing.T) {
	s := parsed(t, `{"begins": "2026-03-07T21:00:00-08:00", "costs": {"input tokens": 100}, "travel": "50ms", "operation": "100ms",
		"limits": {"windows": [{"size": 9, "interval": "1s", "unit": "input tokens"}]},
		"arrivals": [{"kind": "burst", "count": 570, "at": "10s"}]}`)
	p := provider.Gemini(100, 100_000, 200)
	var err error
	s.Options, err = p.Options(50 * time.Millisecond)
	ok(t, err)
	counters, err := countersOf(p.Rules)
	ok(t, err)
	if counters[2].Kind != "calendar" {
		t.Fatalf("the rules are %v", p.Rules)
	}
	s.load.Providers = func() []lab.Provider { return made(counters) }
	r, err := s.Run(t.Context(), 1)
	ok(t, err)
	// 190 on each day, and the second one has 23 hours.
	a, best := r.Results[0], r.Results[3]
	if last := 26 * time.Hour; a.OverLimit != 0 || a.Done != 570 || a.Makespan > best.Makespan+time.Hour+time.Minute || best.Makespan < last || best.Makespan > last+10*time.Minute {
		t.Errorf("the binding limit is %s; %+v; at best %+v", r.Binding, a, best)
	}
}

func TestErrors(t *testing.T) {
	const burst = `"arrivals": [{"kind": "burst", "count": 3}]`
	for text, want := range map[string]string{
		`"begins": "tomorrow"`:                                                                    `begins: "tomorrow" is not a time such as 2026-03-01T09:00:00+01:00`,
		`"begins": "1999-01-01T00:00:00Z"`:                                                        "from 2000 to 2199",
		`"providers": [{"kind": "calendar", "size": 3}]`:                                          "a calendar has a size and an align",
		`"providers": [{"kind": "calendar", "size": 3, "align": "entity"}]`:                       "it must be daily, weekly or monthly",
		`"providers": [{"kind": "calendar", "size": 3, "align": "daily", "interval": "24h"}]`:     "a calendar has a size and an align",
		`"providers": [{"kind": "fixed-window", "size": 3, "align": "daily", "interval": "24h"}]`: "a fixed-window has a size and an interval",
		`"providers": [{"kind": "token-bucket", "size": 3, "align": "daily", "per_second": 1}]`:   "a token-bucket has a size and a per_second",
		`"providers": [{"kind": "concurrency", "size": 3, "align": "daily"}]`:                     "a concurrency has a size alone",
		`"providers": [{"kind": "calendar", "size": 3, "align": "daily Nowhere"}]`:                "unknown time zone Nowhere",
		`"limits": {"size": 5, "rate": 5, "align": "entity"}`:                                     `align "entity" cannot be simulated`,
		// A window of another unit than calls needs the costs of operations in it.
		`"preset": "Anthropic, tier 1"`:                      `costs: there are none of "input tokens"`,
		`"limits": {"size": 9, "rate": 9, "unit": "points"}`: `costs: there are none of "points", which a limit counts`,
		`"limits": {"size": 9, "rate": 9}, "providers": [{"kind": "concurrency", "size": 1, "unit": "points"}]`: `costs: there are none of "points", which a provider counts`,
		`"limits": {"size": 9, "rate": 9}, "costs": {"points": {"from": 3}}`:                                    `costs: "points": it is a number`,
		`"limits": {"size": 9, "rate": 9, "unit": "points"}, "costs": {"points": 0}`:                            `costs: "points": it is a number from 1`,
	} {
		s, err := Parse("s.json", []byte(`{`+text+`, `+burst+`}`))
		if err == nil {
			_, err = s.Run(t.Context(), 1)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
