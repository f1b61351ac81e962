package provider

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

type ruleJSON struct {
	Kind      string         `json:"kind"`
	Size      int            `json:"size"`
	PerSecond float64        `json:"per_second,omitempty"`
	Interval  string         `json:"interval,omitempty"`
	Align     drip.Alignment `json:"align,omitzero"`
	Burst     int            `json:"burst,omitempty"`
	Unit      string         `json:"unit,omitempty"`
}

var kindNames = map[kind]string{
	leakyBucket: "leaky-bucket", tokenBucket: "token-bucket",
	fixedWindow: "fixed-window", calendar: "calendar", slidingWindow: "sliding-window", concurrency: "concurrency",
}

// MarshalJSON writes the rule as {"kind": "leaky-bucket", "size": 40, "per_second": 2}, or for windows
// {"kind": "sliding-window", "size": 60, "interval": "1m0s", "burst": 6}.
func (r Rule) MarshalJSON() ([]byte, error) {
	j := ruleJSON{Kind: kindNames[r.kind], Size: r.n, PerSecond: r.perSecond, Align: r.align, Burst: max(0, r.burst), Unit: r.unit}
	if r.per != 0 {
		j.Interval = r.per.String()
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads the output of MarshalJSON. Its error names an unknown kind, or a value that makes no sense in a
// rule of its kind.
func (r *Rule) UnmarshalJSON(text []byte) error {
	var j ruleJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	read := Rule{n: j.Size, perSecond: j.PerSecond, align: j.Align, burst: j.Burst, unit: j.Unit}
	for k, name := range kindNames {
		if name == j.Kind {
			read.kind = k
		}
	}
	if read.kind == 0 {
		return fmt.Errorf("provider: there is no kind %q of rule; there are leaky-bucket, token-bucket, fixed-window, calendar, "+
			"sliding-window and concurrency", j.Kind)
	}
	if j.Interval != "" {
		per, err := time.ParseDuration(j.Interval)
		if err != nil {
			return fmt.Errorf("provider: interval: %q is not a duration such as 250ms or 24h", j.Interval)
		}
		read.per = per
	}
	if err := read.check(); err != nil {
		return fmt.Errorf("provider: %s: %w", j.Kind, err)
	}
	for _, field := range []struct {
		name string
		set  bool
		of   []kind
	}{
		{"per_second", j.PerSecond != 0, []kind{leakyBucket, tokenBucket}},
		{"interval", j.Interval != "", []kind{fixedWindow, slidingWindow}},
		{"align", j.Align != drip.Alignment{}, []kind{calendar}},
	} {
		if field.set && !slices.Contains(field.of, read.kind) {
			return fmt.Errorf("provider: a %s has no %s", j.Kind, field.name)
		}
	}
	*r = read
	return nil
}
