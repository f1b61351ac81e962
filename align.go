package drip

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
)

// Alignment tells when the intervals of a window begin. The zero Alignment means that they begin at the multiples of
// RefreshInterval in Unix time: one of a minute with every minute.
//
// Daily, Weekly and Monthly follow a calendar, for a quota that comes back at midnight. Their intervals have the length
// of the calendar's, so RefreshInterval stays empty. StartingAt and ByEntity move the intervals of a RefreshInterval.
type Alignment struct {
	by       alignment
	location *time.Location // of a calendar
	at       int64          // of StartingAt, in ms since 1970
	number   int64          // decision.Window.Series of a stored window, whose interval begins at at
}

type alignment int

const (
	byUnix alignment = iota
	byDay
	byWeek
	byMonth
	byTime
	byEntity
)

// alignmentNames begin the texts of alignments; a time has none.
var alignmentNames = []string{byDay: "daily", byWeek: "weekly", byMonth: "monthly", byEntity: "entity"}

// Daily is for intervals that are the days of a time zone, from midnight to midnight. On days when the clocks change
// they are shorter or longer. A nil location means UTC.
func Daily(location *time.Location) Alignment { return Alignment{by: byDay, location: location} }

// Weekly is for intervals that are the weeks of a time zone, from Monday on. A nil location means UTC.
func Weekly(location *time.Location) Alignment { return Alignment{by: byWeek, location: location} }

// Monthly is for intervals that are the months of a time zone. A nil location means UTC. An operation that is postponed
// beyond the end of the month after this one may come back early or up to three days late, because months differ in
// length.
func Monthly(location *time.Location) Alignment { return Alignment{by: byMonth, location: location} }

// StartingAt is for intervals of which one begins at t, such as the time at which a tenant's subscription began.
// Options.Limits can give each entity its own.
func StartingAt(t time.Time) Alignment {
	at := t.UnixMilli()
	if time.UnixMilli(at).Unix() != t.Unix() { // it overflows
		at = tooFar
	}
	return Alignment{by: byTime, at: at}
}

// tooFar is the time of a StartingAt that milliseconds can't hold.
const tooFar = math.MaxInt64

// check returns an error, which begins with the name of the field, for a time that is too far away.
func (a Alignment) check(name string) error {
	if a.by == byTime && a.at == tooFar {
		return fmt.Errorf("%s begins more than 292 million years before or after 1970", name)
	}
	return nil
}

// ByEntity moves the intervals of each entity by a time that drip computes from the entity's name. So a thousand
// entities with a minute do not all go on at the same moment. Use it for limits that gather capacity steadily, as a
// leaky bucket does. A provider that counts by minutes of the clock would see up to twice the Size in one of them.
func ByEntity() Alignment { return Alignment{by: byEntity} }

// String returns the Alignment as the command's files spell it: "daily Europe/Berlin", "daily +05:30", "entity", a
// time; "" for the zero Alignment. A stored window of a calendar, as Inspect returns it without its Options, has a time
// and a number.
func (a Alignment) String() string {
	name := alignmentNames[a.by]
	switch {
	case a.Calendar():
		return name + " " + a.zoneName()
	case a.by == byTime:
		at := time.UnixMilli(a.at).UTC().Format(time.RFC3339Nano)
		if a.number != 0 {
			at += fmt.Sprint(" ", a.number)
		}
		return at
	}
	return name
}

// MarshalText returns the String.
func (a Alignment) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads a String. "daily" alone means UTC. Its error names the malformed text or the unknown time zone.
func (a *Alignment) UnmarshalText(text []byte) error {
	name, zone, _ := strings.Cut(string(text), " ")
	read := Alignment{by: alignment(slices.Index(alignmentNames, name))}
	if read.by < 0 {
		begin, err := time.Parse(time.RFC3339, name)
		if err != nil {
			return fmt.Errorf("%q is not daily, weekly or monthly, with or without a time zone, nor entity, nor a time such as 2026-01-31T12:00:00Z", text)
		}
		read = StartingAt(begin)
	}
	if read.by == byTime && zone != "" {
		n, err := strconv.ParseInt(zone, 10, 64)
		if err != nil || n < 1 || n >= decision.Never {
			return fmt.Errorf("%q has no number of a calendar behind the time", text)
		}
		read.number, zone = n, ""
	}
	if zone != "" && !read.Calendar() {
		return fmt.Errorf("%q has a time zone, which only daily, weekly and monthly have", text)
	}
	if read.Calendar() {
		if t, err := time.Parse(offset, zone); err == nil {
			_, seconds := t.Zone()
			read.location = time.FixedZone("", seconds)
		} else if read.location, err = time.LoadLocation(zone); err != nil { // "" is UTC
			return fmt.Errorf("%q: %w", text, err)
		}
	}
	*a = read
	return nil
}

func (a Alignment) zone() *time.Location {
	if a.location == nil {
		return time.UTC
	}
	return a.location
}

// offset is the layout of the name of a time zone without a name.
const offset = "-07:00"

// zoneName returns the name of the time zone, or the offset of one that never changes: the name of a time.FixedZone may be unknown, or
// one of another zone.
func (a Alignment) zoneName() string {
	if first := (time.Time{}).In(a.zone()); a.zone() != time.UTC {
		if _, end := first.ZoneBounds(); end.IsZero() {
			return first.Format(offset)
		}
	}
	return a.zone().String()
}

// Calendar reports whether the calendar gives the length of the intervals: those of Daily, Weekly and Monthly. A stored
// window of a calendar, as Inspect returns it without its Options, has a length of its own.
func (a Alignment) Calendar() bool { return a.by >= byDay && a.by <= byMonth }

// moves reports whether the intervals depend on the time or the entity.
func (a Alignment) moves() bool { return a.Calendar() || a.by == byEntity }

// moves reports whether the windows depend on the time or the entity.
func (o *Options) moves() bool {
	return o.Align.moves() || slices.ContainsFunc(o.Windows, func(w Window) bool { return w.Align.moves() })
}

// asked is the entity and the time of a call, for windows that depend on them.
type asked struct {
	entity string
	now    int64 // ms since 1970
}

// askedAt returns the entity and the time of a call. OwnClock means the clock of this machine: near the end of an interval the
// storage may decide by the interval before or after it, which ends or begins at the same time.
func askedAt(entity string, now int64) asked {
	if now == decision.OwnClock {
		now = time.Now().UnixMilli()
	}
	return asked{entity, now}
}

// align sets Interval and Offset of a window, whose Interval is RefreshInterval before.
func (a Alignment) align(w *decision.Window, by asked) {
	begin := int64(0)
	switch {
	case a.Calendar():
		from, to := a.period(by.now)
		w.Offset, w.Interval, w.Series = from, to-from, idOf(a.String())
		if a.by == byMonth || a.zone() != time.UTC {
			return
		}
		begin, w.Series = from, 0 // the days and the weeks of UTC have all the same length
	case a.number != 0:
		w.Offset, w.Series = a.at, a.number
		return
	case a.by == byTime:
		begin = a.at
	case a.by == byEntity:
		begin = idOf(by.entity)
	}
	if w.Interval > 0 {
		w.Offset = (begin%w.Interval + w.Interval) % w.Interval
	}
}

// period returns the beginning and the end of the calendar's interval at a time.
func (a Alignment) period(now int64) (from, to int64) {
	location := a.zone()
	t := time.UnixMilli(now).In(location)
	year, month, day := t.Date()
	days, months := 1, 0
	switch a.by {
	case byWeek:
		day, days = day-(int(t.Weekday())+6)%7, 7
	case byMonth:
		day, days, months = 1, 0, 1
	}
	begin := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	return midnight(begin, location), midnight(begin.AddDate(0, months, days), location)
}

// midnight returns the beginning of a date. time.Date is off by an hour where the clocks change at midnight.
func midnight(date time.Time, location *time.Location) int64 {
	of := func(t time.Time) int {
		year, month, day := t.Date()
		return year*10_000 + int(month)*100 + day
	}
	year, month, day := date.Date()
	t := time.Date(year, month, day, 0, 0, 0, 0, location)
	from, to := t.ZoneBounds()
	if of(t) < of(date) && !to.IsZero() { // there is no midnight: the date begins with the other time
		return to.UnixMilli()
	}
	if last := from.Add(-time.Millisecond); !from.IsZero() && of(last) == of(date) { // midnight comes twice
		_, before := last.Zone()
		_, after := t.Zone()
		return t.UnixMilli() - int64(before-after)*1000
	}
	return t.UnixMilli()
}

func alignmentOf(w decision.Window) Alignment {
	if w.Offset == 0 && w.Series == 0 {
		return Alignment{}
	}
	return Alignment{by: byTime, at: w.Offset, number: w.Series}
}
