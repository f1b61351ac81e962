package postgres

import (
	"reflect"
	"strings"
	"testing"

	"github.com/drip-go/drip/storage"
)

// The short statement is taken for what changes no other column than it sets.
func TestOnlyRan(t *testing.T) {
	names := append([]string{"revision", "expires", "callers_clock"}, strings.Split(columns, ", ")...)
	booked := &storage.Booking{Next: 1}
	for _, before := range []record{{revision: 1}, {revision: 1, state: storage.State{Booking: booked}}} {
		for what, change := range map[string]func(*record){
			"nothing":       func(*record) {},
			"revision":      func(r *record) { r.revision++ },
			"expires":       func(r *record) { r.expires++ },
			"callers_clock": func(r *record) { r.callersClock = true },
			"ops_last":      func(r *record) { r.state.Ops.Last++ },
			"ops_capacity":  func(r *record) { r.state.Ops.Capacity++ },
			"wait_last":     func(r *record) { r.state.Wait.Last++ },
			"wait_capacity": func(r *record) { r.state.Wait.Capacity++ },
			"in_use":        func(r *record) { r.state.InUse++ },
			"until":         func(r *record) { r.state.Until++ },
			"booked":        func(r *record) { r.state.Booking = &storage.Booking{Next: 2} },
			"booking gone":  func(r *record) { r.state.Booking = nil },
		} {
			after := before
			change(&after)
			was, is := before.columns(nil), after.columns(nil)
			only := is[len(is)-1].([]int64) == nil // a booking may hold what is not seen here
			for i, name := range names {
				if !reflect.DeepEqual(was[i], is[i]) && !strings.Contains(swapRunsSQL, name+" = $") {
					only = false
				}
			}
			if got := after.onlyRan(&before); got != only {
				t.Errorf("booked %v, %s: onlyRan = %v, want %v", before.state.Booking != nil, what, got, only)
			}
		}
	}
}
