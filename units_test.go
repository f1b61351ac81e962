package drip_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// ofModel are the limits of a language model: 10 calls, 1,000 input and 100 output tokens a minute.
func ofModel() drip.Options {
	return drip.Options{
		Size: 10, RefreshRate: 10, RefreshInterval: time.Minute, Start: time.UnixMilli(0),
		Clock: func() time.Time { return time.UnixMilli(1_700_000_000_000) },
		Windows: []drip.Window{
			{Size: 1000, RefreshInterval: time.Minute, Unit: "input"},
			{Size: 100, RefreshInterval: time.Minute, Unit: "output"},
		},
	}
}

func TestUnits(t *testing.T) {
	for name, open := range storages {
		t.Run(name, func(t *testing.T) {
			o := ofModel()
			o.Storage = open(t)
			o.Shared = map[string]drip.Limit{"app": {Size: 5000, Unit: "input", RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 50, RefreshInterval: time.Minute}}}}
			b := buckettest.New(t, o)
			left := func(id string, want ...int) {
				t.Helper()
				status := buckettest.Inspect(t, b, id)
				for i, w := range status.Windows {
					if w.Capacity != want[i] {
						t.Errorf("%s has %d %s left, want %d", id, w.Capacity, w.Unit, want[i])
					}
				}
			}
			a := buckettest.Runs(t, b, "acme", drip.Request{Costs: drip.Costs{"input": 600, "output": 50}})
			left("acme", 9, 400, 50)
			left(drip.SharedID("app"), 4400, 49)
			waits, err := b.Admit(t.Context(), "acme", drip.Request{Costs: drip.Costs{"input": 500, "output": 50}})
			if err != nil || waits.Delay <= 0 || waits.Bound != drip.BoundWindow+1 {
				t.Fatal(waits, err)
			}
			text := waits.Ticket.String()
			if parsed, err := drip.ParseTicket(text); err != nil || parsed != waits.Ticket {
				t.Errorf("%q is read as %v: %v", text, parsed, err)
			}
			ok(t, b.Settle(t.Context(), "acme", a.Lease, a.Lease.Cost(), drip.Costs{"input": 200}))
			left("acme", 9, 800, 50)
			left(drip.SharedID("app"), 4800, 49)
			if delay, err := b.GetDelay(t.Context(), "acme"); err != nil || delay != 0 {
				t.Error(delay, err)
			}
			left("acme", 8, 800, 50)
		})
	}
}

func TestUnitErrors(t *testing.T) {
	o := ofModel()
	b := buckettest.New(t, o)
	for want, r := range map[string]drip.Request{
		`no window counts this unit: "tokens"`: {Costs: drip.Costs{"tokens": 1}},
		"it has no name":                       {Costs: drip.Costs{"": 1}},
		"1001 input of at most 1000":           {Costs: drip.Costs{"input": 1001}},
		": -1 output":                          {Costs: drip.Costs{"output": -1}},
		"11 of at most 10":                     {Cost: 11},
	} {
		if _, err := b.Admit(t.Context(), "acme", r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one with %q", err, want)
		}
	}
	a := buckettest.Admit(t, b, "acme", drip.Request{})
	if err := b.Settle(t.Context(), "acme", a.Lease, 1, drip.Costs{"tokens": 1}); !errors.Is(err, drip.ErrUnit) {
		t.Error(err)
	}
	if err := b.Settle(t.Context(), "acme", a.Lease, 1, drip.Costs{"input": -1}); !errors.Is(err, drip.ErrCost) {
		t.Error(err)
	}
	ok(t, b.Settle(t.Context(), "acme", a.Lease, 1))
	o.Shared = map[string]drip.Limit{"app": {Size: 1, Unit: "points"}, "all": {Size: 1, Windows: []drip.Window{{Size: 1, RefreshInterval: time.Second, Unit: "a fourth"}}}}
	if _, err := drip.New(o); err == nil || !strings.Contains(err.Error(), "name 4 units") {
		t.Errorf("four units: %v", err)
	}
	o = ofModel()
	o.Limits = func(context.Context, string) (drip.Limit, error) { return drip.Limit{Unit: "points"}, nil }
	if _, err := buckettest.New(t, o).Admit(t.Context(), "acme", drip.Request{}); err == nil || !strings.Contains(err.Error(), `Unit is "points"`) {
		t.Errorf("a unit that only a limit of an entity names: %v", err)
	}
}

// A pin of a unit without a size pins nothing that was meant.
func TestPinWithoutSize(t *testing.T) {
	b := buckettest.New(t, drip.Options{Windows: []drip.Window{{Size: 9, RefreshInterval: time.Second, Unit: "points"}}})
	for _, w := range []drip.Window{{RefreshInterval: time.Second}, {Unit: "points"}, {Unit: "none"}, {Align: drip.ByEntity()}} {
		if err := b.Pin(t.Context(), "shop", drip.Pin{Window: w, Concurrency: 1}); err == nil || !strings.Contains(err.Error(), "Pin.Size is 0") {
			t.Errorf("a pin of %+v: %v", w, err)
		}
	}
}
