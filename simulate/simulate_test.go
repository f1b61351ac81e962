package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/drip-go/drip/provider"
)

// A preset with other units than calls is refused with a reason.
func TestUnitsAreRefused(t *testing.T) {
	s, err := Parse("s.json", []byte(`{"preset": "Anthropic, tier 1", "arrivals": [{"kind": "burst", "count": 1}]}`))
	if err == nil {
		_, err = s.Run(t.Context(), 1)
	}
	if err == nil || !strings.Contains(err.Error(), "input tokens") || !strings.Contains(err.Error(), "calls only") {
		t.Errorf("got %v, want an error that names the unit", err)
	}
}

func TestRunRefuses(t *testing.T) {
	if _, err := (Scenario{}).Run(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "Read or Parse") {
		t.Errorf("a Scenario that was not read: %v", err)
	}
	s, err := Parse("many.json", []byte(`{"limits": {"size": 1, "rate": 1}, "arrivals": [{"kind": "burst", "count": 100000}]}`))
	if err != nil {
		t.Fatal(err)
	}
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

// The shared limits that a file names replace the preset's shared limits and their counters.
func TestSharedOfThePresetIsReplaced(t *testing.T) {
	run := func(text string) Report {
		s, err := Parse("s.json", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Run(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	const load = `"travel": "50ms", "entities": 40, "arrivals": [{"kind": "burst", "count": 20, "at": "1s"}]`
	given := run(`{"preset": "airtable", ` + load + `}`)
	replaced := run(`{"preset": "airtable", "shared": {"user": {"size": 400}}, ` + load + `}`)
	if given.Results[0].OverLimit != 0 || replaced.Results[0].OverLimit != 0 || replaced.Results[0].Makespan >= given.Results[0].Makespan {
		t.Errorf("50 a second: %+v\n400 a second: %+v", given.Results[0], replaced.Results[0])
	}
}

// Every preset can be simulated, and drip makes no call over its limits.
func TestPresets(t *testing.T) {
	for _, p := range provider.Presets() {
		if strings.HasPrefix(p.Name, "Anthropic") {
			continue // the simulator counts calls only, and says so: see TestUnitsAreRefused
		}
		s, err := Parse("s.json", []byte(`{"preset": "`+p.Name+`", "travel": "50ms", "operation": "100ms", "entities": 3,
			"arrivals": [{"kind": "burst", "count": 40, "at": "10s"}]}`))
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		r, err := s.Run(t.Context(), 1)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		if a := r.Results[0]; a.OverLimit != 0 || a.Done != 120 {
			t.Errorf("%s: %d calls over the limit, %d of 120 done", p.Name, a.OverLimit, a.Done)
		}
	}
}
