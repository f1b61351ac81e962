package entities

import (
	"testing"
	"time"

	"github.com/drip-go/drip"
)

func TestWhy(t *testing.T) {
	own := []drip.WindowStatus{{Window: drip.Window{Size: 2, RefreshRate: 1, RefreshInterval: time.Second}}}
	later := time.Unix(1, 0)
	for want, s := range map[string]drip.Status{
		"": {},
		"the capacity of 2, +1 every 1s is used up": {Delay: 1, Bound: drip.BoundWindow},
		`the shared limit "app": window 1`:          {Delay: 1, Bound: drip.BoundWindow, Limit: "app"},
		"closed, by pause or by the provider":       {Delay: 1, Bound: drip.BoundClosed, ClosedUntil: later},
		"closed, by pause or by the provider; then the capacity of 2, +1 every 1s is used up": {
			Delay: 1, Bound: drip.BoundClosed, ClosedUntil: later, Then: drip.BoundWindow,
		},
		`closed, by pause or by the provider; then the shared limit "app": window 1`: {
			Delay: 1, Bound: drip.BoundWindow, Limit: "app", ClosedUntil: later, Then: drip.BoundWindow,
		},
		`the shared limit "app": closed; then the shared limit "app": window 1`: {Delay: 1, Bound: drip.BoundClosed, Limit: "app", Then: drip.BoundWindow},
	} {
		s.Windows = own
		r := Report{Status: s, Limits: true}
		if got := r.Why(); got != want {
			t.Errorf("Why = %q, want %q", got, want)
		}
	}
}
