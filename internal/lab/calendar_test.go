package lab

import (
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/drip-go/drip"
)

// since is a time of a scenario that begins at Begin.
func since(d time.Duration) int64 { return (&Scenario{Begin: Begin}).since(d) }

// The intervals of a calendar begin where its dates change, also where the clocks change then.
func TestCalendar(t *testing.T) {
	for _, c := range []struct{ align, at, begins, next string }{
		{"daily", "2026-03-01T12:00:00Z", "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"},
		{"daily +05:30", "2026-03-01T23:00:00Z", "2026-03-01T18:30:00Z", "2026-03-02T18:30:00Z"},
		{"daily Europe/Berlin", "2026-03-29T21:59:59Z", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"}, // 23 hours
		{"daily Europe/Berlin", "2026-10-25T22:59:59Z", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}, // 25 hours
		{"daily America/Los_Angeles", "2026-11-02T00:00:00Z", "2026-11-01T07:00:00Z", "2026-11-02T08:00:00Z"},
		{"daily America/Santiago", "2026-09-06T12:00:00Z", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}, // no midnight
		{"daily America/Havana", "2026-11-01T12:00:00Z", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},   // two of them
		{"weekly Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z"},
		{"weekly", "2026-01-01T00:00:00Z", "2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"},
		{"monthly Europe/Berlin", "2026-03-31T21:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"},
		{"monthly", "2026-12-31T12:00:00Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		var align drip.Alignment
		ok(t, align.UnmarshalText([]byte(c.align)))
		of, err := calendarOf(align)
		ok(t, err)
		n := of.number(date(t, c.at).UnixMilli())
		for i, want := range []string{c.begins, c.next} {
			begin := of.beginning(n + int64(i))
			if got := time.UnixMilli(begin).UTC().Format(time.RFC3339Nano); got != want || of.number(begin) != n+int64(i) || of.number(begin-1) != n+int64(i)-1 {
				t.Errorf("%s at %s: %d begins at %s, want %s", c.align, c.at, n+int64(i), got, want)
			}
		}
	}
}

func date(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	ok(t, err)
	return at
}

// A window from a time on, and one whose interval takes the place of a calendar.
func TestLimitOfAligned(t *testing.T) {
	l := limitOf(&drip.Options{Size: 5, RefreshInterval: time.Hour, Align: drip.StartingAt(date(t, "2026-03-01T00:20:00Z"))}, &drip.Limit{})
	at := date(t, "2026-05-01T10:30:00Z").UnixMilli()
	w := l.windows[0]
	if got, want := w.gains(6, at), date(t, "2026-05-01T12:20:00Z").UnixMilli(); got != want || w.refreshes(at, want-1) != 1 {
		t.Errorf("6 more at %v, want %v; %d intervals", got, want, w.refreshes(at, want-1))
	}
	daily := drip.Options{Size: 70, Align: drip.Daily(nil)}
	if w := limitOf(&daily, &drip.Limit{}).windows[0]; w.calendar == nil || w.rate != 70 {
		t.Errorf("a day: %+v", w)
	}
	if w := limitOf(&daily, &drip.Limit{RefreshInterval: time.Minute}).windows[0]; w.calendar != nil || w.interval != 60_000 || w.rate != 50 {
		t.Errorf("an interval in its place: %+v", w)
	}
	if w := limitOf(&drip.Options{}, &drip.Limit{Align: drip.Monthly(nil)}).windows[0]; w.calendar == nil || w.calendar.by != "monthly" {
		t.Errorf("a month in place of an interval: %+v", w)
	}
}

func TestUnknownAlignments(t *testing.T) {
	// The file of a time zone that has one change, in 1970.
	zone, err := time.LoadLocationFromTZData("Nowhere", []byte("TZif"+strings.Repeat("\x00", 31)+"\x01\x00\x00\x00\x02\x00\x00\x00\x04"+
		"\x00\x00\x00\x00\x01\x00\x00\x0e\x10\x00\x00\x00\x00\x1c\x20\x01\x00ABC\x00"))
	ok(t, err)
	nowhere := drip.Daily(zone)
	for want, o := range map[string]drip.Options{
		`align "entity" cannot be simulated`: {Align: drip.ByEntity()},
		"unknown time zone Nowhere":          {Windows: []drip.Window{{Size: 3, Align: nowhere}}},
	} {
		for _, err := range errorsOf(o, 1, 0) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %s", err, want)
			}
		}
	}
	if _, err := Calendar(3, nowhere); err == nil {
		t.Error("Calendar with an unknown time zone has no error")
	}
}
