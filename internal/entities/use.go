package entities

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
)

// Use is how much an entity used of a unit in the last hour.
type Use struct {
	Unit        string // "" is calls
	From        time.Time
	Minutes     [60]int
	Total, Most int    // in the hour, and in a minute
	Text        string // "1204 calls in the last hour, 61 % of the limit"
}

// Used reads the use of an entity, or a shared limit, in one round trip: calls first, then the other units that were
// used. It is empty if no Bucket keeps a history. Its error names the entity.
func (r *Report) Used(ctx context.Context, s storage.Storage) ([]Use, error) {
	b, err := drip.New(drip.Options{Storage: s})
	if err != nil {
		return nil, err
	}
	usage, err := b.Used(ctx, r.Entity)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", r.Entity, err)
	}
	var all []Use
	for _, unit := range slices.Sorted(maps.Keys(usage.Units)) {
		u := Use{Unit: unit, From: usage.From, Minutes: usage.Units[unit]}
		for _, n := range u.Minutes {
			u.Total, u.Most = u.Total+n, max(u.Most, n)
		}
		u.Text = Count(u.Total, "call")
		if unit != "" {
			u.Text = fmt.Sprint(u.Total, " ", unit)
		}
		u.Text += " in the last hour"
		if limit := r.hourly(unit); limit > 0 {
			u.Text += ", " + percent(float64(u.Total)/limit) + " of the limit"
		}
		all = append(all, u)
	}
	return all, nil
}

// percent is a part in words: "0.7 %", "61 %".
func percent(part float64) string {
	if part < 0.0995 {
		return fmt.Sprintf("%.1f %%", 100*part)
	}
	return fmt.Sprintf("%.0f %%", 100*part)
}

// hourly returns how much of a unit the limits bring in an hour, or in an interval that is longer. It is 0 for limits
// that are not known, or limit no such unit.
func (r *Report) hourly(unit string) (least float64) {
	if !r.Limits {
		return 0
	}
	for _, w := range r.Windows {
		if w.Unit != unit || Unlimited(w.Size) {
			continue
		}
		brings := float64(w.RefreshRate) * max(1, float64(time.Hour)/float64(w.RefreshInterval))
		if least == 0 || brings < least {
			least = brings
		}
	}
	return least
}
