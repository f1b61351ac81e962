package lab

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/drip-go/drip"
)

// calendar numbers the days, weeks or months of a time zone. It counts by dates, and knows of a drip.Alignment only the
// text: it shares no arithmetic with drip.
type calendar struct {
	by string // "daily", "weekly" or "monthly"
	in *time.Location
}

func calendarOf(a drip.Alignment) (*calendar, error) {
	by, zone, _ := strings.Cut(a.String(), " ")
	if t, err := time.Parse("-07:00", zone); err == nil {
		_, seconds := t.Zone()
		return &calendar{by, time.FixedZone(zone, seconds)}, nil
	}
	in, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", a, err)
	}
	return &calendar{by, in}, nil
}

// number is the number of the interval that a time is in.
func (c *calendar) number(ms int64) int64 {
	year, month, day := time.UnixMilli(ms).In(c.in).Date()
	days := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / 86400
	switch c.by {
	case "weekly":
		return (days + 3) / 7 // 1970-01-01 is a Thursday
	case "monthly":
		return int64(year)*12 + int64(month)
	}
	return days
}

// beginning is the first millisecond of the interval with this number. The clocks may skip midnight, or show it twice.
func (c *calendar) beginning(n int64) int64 {
	date := time.Date(1970, 1, 1+int(n), 0, 0, 0, 0, time.UTC)
	switch c.by {
	case "weekly":
		date = time.Date(1970, 1, 1+7*int(n)-3, 0, 0, 0, 0, time.UTC)
	case "monthly":
		date = time.Date(0, time.Month(n), 1, 0, 0, 0, 0, time.UTC)
	}
	const most = 26 * time.Hour // that a time zone is away from UTC
	from := date.Add(-most).UnixMilli()
	return from + int64(sort.Search(int(2*most.Milliseconds()), func(i int) bool { return c.number(from+int64(i)) >= n }))
}

// length is about how long an interval is, and no less.
func (c *calendar) length() time.Duration {
	const day = 24 * time.Hour
	return map[string]time.Duration{"daily": day, "weekly": 7 * day, "monthly": 31 * day}[c.by]
}

// checkAligned is the error of Options with an Alignment that has no calendar, nor a time, here.
func checkAligned(o *drip.Options) error {
	for _, w := range Windows(o) {
		var err error
		if w.Align.Calendar() {
			_, err = calendarOf(w.Align)
		} else if w.Align == drip.ByEntity() {
			err = errors.New(`align "entity" cannot be simulated: the optimum does not know when the intervals of each entity begin`)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", "Options", err)
		}
	}
	return nil
}
