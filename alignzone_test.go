package drip_test

import (
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// The text of an Alignment reads as the same one, also with a zone of a fixed offset that has a name.
func TestAlignmentOfANamedFixedZone(t *testing.T) {
	for _, zone := range []*time.Location{time.FixedZone("UTC+8", 8*3600), time.FixedZone("CET", 3600), time.FixedZone("PST", -8*3600)} {
		text := drip.Daily(zone).String()
		var read drip.Alignment
		if err := read.UnmarshalText([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		july := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
		refresh := func(a drip.Alignment) time.Time {
			b, err := drip.New(drip.Options{Size: 5, Align: a, Clock: func() time.Time { return july }})
			if err != nil {
				t.Fatal(err)
			}
			s, err := b.Inspect(t.Context(), "shop")
			if err != nil {
				t.Fatal(err)
			}
			return s.Windows[0].Refresh
		}
		if got, want := refresh(read), refresh(drip.Daily(zone)); !got.Equal(want) {
			t.Errorf("%q is read as days that end at %v, want %v", text, got.UTC(), want.UTC())
		}
	}
}
