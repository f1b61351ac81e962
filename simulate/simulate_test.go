package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/provider"
)

// drip keeps the limits of a language model: calls, input and output tokens. Its makespan is near the optimum's. A
// limiter without costs is over the limits.
func TestUnits(t *testing.T) {
	for name, c := range map[string]struct{ costs, binding string }{
		"calls":  {`"input tokens": 10, "output tokens": 10`, "every"},
		"input":  {`"input tokens": {"from": 500, "to": 3000, "off": 400}, "output tokens": 20`, "input tokens"},
		"output": {`"input tokens": 300, "output tokens": {"from": 200, "to": 1000, "off": 200}`, "output tokens"},
	} {
		r := played(t, `{"preset": "Anthropic, tier 1", "costs": {`+c.costs+`}, "travel": "50ms", "entities": 2,
			"operation": {"kind": "exponential", "mean": "5s", "at_most": "1m"},
			"arrivals": [{"kind": "burst", "count": 40, "at": "10s"}, {"kind": "poisson", "per_second": 0.2, "from": "0s", "to": "10m"}]}`)
		admit, classic, best := r.Results[0], r.Results[1], r.Results[3]
		if admit.OverLimit != 0 || admit.Done != admit.Messages || admit.Makespan > best.Makespan*13/10 || !strings.Contains(r.Binding, c.binding) {
			t.Errorf("%s: the binding limit is %s; admit %+v; optimum %+v", name, r.Binding, admit, best)
		}
		if name != "calls" && classic.OverLimit == 0 {
			t.Errorf("%s: GetDelay, which knows no costs, was never over the limit", name)
		}
	}
}

// A limit that entities share may count several units, too. Calls are counted when they begin, by what they really take.
func TestUnitsOfSharedLimits(t *testing.T) {
	const load = `"operation": {"kind": "exponential", "mean": "2s", "at_most": "30s"}, "travel": "50ms",
		"arrivals": [{"kind": "burst", "count": 60}, {"kind": "poisson", "per_second": 0.1, "to": "8m"}]`
	const input = `{"size": 100000, "interval": "1m", "unit": "input tokens"}`
	for name, c := range map[string]struct{ costs, binding string }{
		"calls":              {`"cost": 2, "costs": {"input tokens": 10}`, "org: 200 every 1m0s"},
		"tokens":             {`"costs": {"input tokens": {"from": 500, "to": 2000}}`, "org: 100000 input tokens every 1m0s"},
		"estimates, too low": {`"costs": {"input tokens": {"from": 500, "to": 2000, "off": 500}}`, "org: 100000 input tokens every 1m0s"},
	} {
		r := played(t, `{`+c.costs+`, "entities": 10, "limits": {"size": 40, "rate": 40, "interval": "1m"},
			"shared": {"org": {"size": 200, "rate": 200, "interval": "1m", "windows": [`+input+`]}}, `+load+`}`)
		admit, best := r.Results[0], r.Results[1]
		if admit.OverLimit != 0 || admit.Done != admit.Messages || admit.Makespan > best.Makespan+time.Minute || r.Binding != c.binding {
			t.Errorf("%s: the binding limit is %s; admit %+v; optimum %+v", name, r.Binding, admit, best)
		}
		if used := best.Used; used < 0.8 || used > 1.01 {
			t.Errorf("%s: the optimum uses %v of %s", name, used, r.Binding)
		}
	}
	other := played(t, `{"costs": {"input tokens": 2000}, "shared": {"org": {"windows": [`+input+`]}}, "limits": {"size": 200},
		"providers": [{"kind": "fixed-window", "size": 90000, "interval": "1m", "unit": "input tokens"}], `+load+`}`)
	if other.Results[0].OverLimit < 5 || other.Binding != "org: 100000 input tokens every 1m0s" {
		t.Errorf("with a provider that lets fewer tokens through: the binding limit is %s; %+v", other.Binding, other.Results[0])
	}
}

func TestRunRefuses(t *testing.T) {
	if _, err := (Scenario{}).Run(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "Read or Parse") {
		t.Errorf("a Scenario that was not read: %v", err)
	}
	s := parsed(t, `{"limits": {"size": 1, "rate": 1}, "arrivals": [{"kind": "burst", "count": 100000}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Run(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("Run with a context that has ended: %v", err)
	}
	s.Options.Size = -1
	if _, err := s.Run(t.Context(), 1); err == nil {
		t.Error("Run with a negative Size has no error")
	}
	if _, err := Read("nowhere.json"); err == nil {
		t.Error("Read of a file that is not there has no error")
	}
}

func parsed(t *testing.T, text string) Scenario {
	t.Helper()
	s, err := Parse("s.json", []byte(text))
	ok(t, err)
	return s
}

func played(t *testing.T, text string) Report {
	t.Helper()
	r, err := parsed(t, text).Run(t.Context(), 1)
	ok(t, err)
	return r
}

// The shared limits that a file names replace the preset's shared limits and their counters.
func TestSharedOfThePresetIsReplaced(t *testing.T) {
	const load = `"travel": "50ms", "entities": 40, "arrivals": [{"kind": "burst", "count": 20, "at": "1s"}]`
	given := played(t, `{"preset": "airtable", `+load+`}`)
	replaced := played(t, `{"preset": "airtable", "shared": {"user": {"size": 400}}, `+load+`}`)
	if given.Results[0].OverLimit != 0 || replaced.Results[0].OverLimit != 0 || replaced.Results[0].Makespan >= given.Results[0].Makespan {
		t.Errorf("50 a second: %+v\n400 a second: %+v", given.Results[0], replaced.Results[0])
	}
}

// Every preset can be simulated, and drip makes no call over its limits.
func TestPresets(t *testing.T) {
	for _, p := range provider.Presets() {
		costs := ""
		if strings.HasPrefix(p.Name, "Anthropic") {
			costs = `"costs": {"input tokens": 1000, "output tokens": 100},`
		}
		t.Run(p.Name, func(t *testing.T) {
			r := played(t, `{"preset": "`+p.Name+`", `+costs+` "travel": "50ms", "operation": "100ms", "entities": 3,
				"arrivals": [{"kind": "burst", "count": 40, "at": "10s"}]}`)
			if a := r.Results[0]; a.OverLimit != 0 || a.Done != 120 {
				t.Errorf("%d calls over the limit, %d of 120 done", a.OverLimit, a.Done)
			}
		})
	}
}

// The shared limits of a scenario are those of its Options. A limit that a program changes at run time changes no run.
func TestSharedLimitsAreLeftOut(t *testing.T) {
	s := parsed(t, `{"shared": {"app": {"size": 1}}, "arrivals": [{"kind": "burst", "count": 5}]}`)
	s.Options.SharedLimits = func(context.Context, string) (drip.Limit, error) { return drip.Limit{Size: 9}, nil }
	r, err := s.Run(t.Context(), 1)
	if err != nil || r.Results[0].OverLimit != 0 || r.Results[0].WaitMax != 4*time.Second {
		t.Errorf("Run = %+v, %v; want a call a second", r.Results, err)
	}
}

// A call that is over several limits is one call.
func TestCallsOverTheLimitCountOnce(t *testing.T) {
	s := parsed(t, `{"shared": {"a": {"size": 1}, "b": {"size": 1}},
		"providers": [{"kind": "fixed-window", "size": 1, "interval": "1s"}], "arrivals": [{"kind": "burst", "count": 5}]}`)
	for _, name := range []string{"a", "b"} { // on trial: drip does not keep them
		s.Options.Shared[name] = drip.Limit{Size: 1, Shadow: true}
	}
	r, err := s.Run(t.Context(), 1)
	if err != nil || r.Results[0].OverLimit != 4 {
		t.Errorf("Run = %+v, %v; want 4 of 5 calls over the limit", r.Results, err)
	}
}

var ok = oktest.OK // ends the test if there is an error
