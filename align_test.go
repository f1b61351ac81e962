package drip_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	ok(t, err)
	return l
}

// calendars name the interval of a time by the calendar alone.
var calendars = []struct {
	name  string
	align func(*time.Location) drip.Alignment
	of    func(time.Time) string
}{
	{"daily", drip.Daily, func(t time.Time) string { return t.Format(time.DateOnly) }},
	{"weekly", drip.Weekly, func(t time.Time) string {
		year, week := t.ISOWeek()
		return fmt.Sprint(year, "-", week)
	}},
	{"monthly", drip.Monthly, func(t time.Time) string { return t.Format("2006-01") }},
}

// A quota of the calendar is used in full in each day, week and month, and never exceeded: across changes of the clocks, leap
// days and long breaks, with tickets, refunds and lost leases. The provider counts by the date alone.
func TestCalendar(t *testing.T) {
	for name, open := range storages {
		for _, c := range calendars {
			for _, in := range []string{"UTC", "Europe/Berlin", "America/Los_Angeles", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu"} {
				t.Run(name+"/"+c.name+"/"+in, func(t *testing.T) {
					testCalendar(t, open(t), c.align(zone(t, in)), zone(t, in), c.of, false)
					testCalendar(t, open(t), c.align(zone(t, in)), zone(t, in), c.of, true)
				})
			}
		}
	}
}

func testCalendar(t *testing.T, s storage.Storage, align drip.Alignment, in *time.Location, interval func(time.Time) string, first bool) {
	const quota = 5
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	o := drip.Options{Size: 50, RefreshRate: 50, Lease: time.Minute, Storage: s,
		Windows: []drip.Window{{Size: quota, Align: align}},
		Shared:  map[string]drip.Limit{"all": {RefreshRate: 100, Windows: []drip.Window{{Size: 2 * quota, Align: align}}}}}
	if first { // and as the first window
		o.Size, o.RefreshRate, o.Align, o.Windows = quota, quota, align, nil
		o.Shared["all"] = drip.Limit{Size: 2 * quota, Align: align}
	}
	b := buckettest.New(t, o)
	now := time.Date(2023, 9, 1+r.IntN(30), r.IntN(24), r.IntN(60), 0, 0, in)
	ran, tried := map[string]int{}, map[string]int{}
	tickets := map[string]drip.Ticket{}
	for range 600 {
		step := time.Duration(1+r.IntN(9)) * time.Hour
		if r.IntN(150) == 0 {
			step = time.Duration(r.IntN(100*24)) * time.Hour
		}
		now = now.Add(step + time.Duration(r.IntN(3_600_000))*time.Millisecond)
		for range r.IntN(12) {
			shop := fmt.Sprint("shop ", r.IntN(4))
			q := drip.Request{Now: now, Ticket: tickets[shop]}
			a, err := b.Admit(t.Context(), shop, q)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			delete(tickets, shop)
			if tried[interval(now)]++; a.Delay > 0 {
				if r.IntN(2) == 0 {
					tickets[shop] = a.Ticket
				}
				continue
			}
			switch r.IntN(8) {
			case 0:
				err = b.Settle(t.Context(), shop, a.Lease, 0) // it took nothing
			default:
				ran[shop+" in "+interval(now)]++
				ran["all in "+interval(now)]++
				if r.IntN(4) > 0 {
					err = b.Settle(t.Context(), shop, a.Lease, 1)
				}
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	full := 0
	for name, n := range ran {
		most := quota
		if strings.HasPrefix(name, "all") {
			most = 2 * quota
			if n == most {
				full++
			}
		}
		if n > most {
			t.Errorf("seed %d: %d ran of %s, want at most %d", seed, n, name, most)
		}
	}
	if full < len(tried)/3 { // some have few calls
		t.Errorf("seed %d: %d of %d intervals are full", seed, full, len(tried))
	}
}

// The delay of an operation ends with the interval of the calendar.
func TestCalendarDelay(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, c := range []struct {
		align     drip.Alignment
		now, want time.Time
	}{
		{drip.Daily(nil), time.Date(2026, 3, 1, 20, 0, 0, 0, time.UTC), time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)},
		{drip.Daily(berlin), time.Date(2026, 3, 28, 20, 0, 0, 0, berlin), time.Date(2026, 3, 29, 0, 0, 0, 0, berlin)},
		{drip.Daily(berlin), time.Date(2026, 3, 29, 1, 0, 0, 0, berlin), time.Date(2026, 3, 30, 0, 0, 0, 0, berlin)},   // 23 hours
		{drip.Daily(berlin), time.Date(2026, 10, 25, 0, 0, 0, 0, berlin), time.Date(2026, 10, 26, 0, 0, 0, 0, berlin)}, // 25 hours
		{drip.Weekly(berlin), time.Date(2026, 3, 29, 23, 59, 0, 0, berlin), time.Date(2026, 3, 30, 0, 0, 0, 0, berlin)},
		{drip.Monthly(berlin), time.Date(2024, 2, 1, 0, 0, 0, 0, berlin), time.Date(2024, 3, 1, 0, 0, 0, 0, berlin)},
		{drip.Monthly(berlin), time.Date(2026, 12, 31, 23, 0, 0, 0, berlin), time.Date(2027, 1, 1, 0, 0, 0, 0, berlin)},
		{drip.StartingAt(time.UnixMilli(7)), time.UnixMilli(1000), time.UnixMilli(1007)},
	} {
		o := drip.Options{Size: 1, Align: c.align, Start: time.UnixMilli(-1e12)}
		b := buckettest.New(t, o)
		for _, want := range []time.Duration{0, c.want.Sub(c.now)} {
			if d, err := b.GetDelayAt(t.Context(), "shop", c.now); d != want || err != nil {
				t.Errorf("at %v: GetDelayAt = %v, %v; want %v", c.now, d, err, want)
			}
			ok(t, b.ReturnToken(t.Context(), "shop"))
		}
	}
}

// ByEntity spreads the entities over the interval, each at the same place in all processes.
func TestByEntity(t *testing.T) {
	counts := map[time.Duration]int{}
	for _, storage := range []storage.Storage{memory.New(), memory.New()} {
		b := buckettest.New(t, drip.Options{Size: 1, RefreshInterval: 10 * time.Second, Align: drip.ByEntity(), Storage: storage, Start: time.UnixMilli(0)})
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for i := range 1000 {
			shop := fmt.Sprint(i)
			var delay time.Duration
			var err error
			for range 2 {
				if delay, err = b.GetDelayAt(t.Context(), shop, now); err != nil {
					t.Fatal(err)
				}
				ok(t, b.ReturnToken(t.Context(), shop))
			}
			counts[delay]++
			if delay <= 0 || delay > 10*time.Second {
				t.Errorf("the delay of %s is %v", shop, delay)
			}
		}
	}
	for delay, n := range counts {
		if n%2 != 0 || n > 12 {
			t.Errorf("%d times a delay of %v; want each in both storages, and few the same", n, delay)
		}
	}
	if len(counts) < 900 {
		t.Errorf("%d different delays of 1,000 entities", len(counts))
	}
}

// Options.Limits gives an entity its own alignment, and takes a calendar away again.
func TestAlignOfLimits(t *testing.T) {
	own := drip.Limit{Align: drip.Daily(nil)}
	b := buckettest.New(t, drip.Options{Size: 1, RefreshInterval: time.Hour, Start: time.UnixMilli(0),
		Limits: func(context.Context, string) (drip.Limit, error) { return own, nil }})
	now := time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)
	for i, c := range []struct {
		limit drip.Limit
		want  time.Duration
	}{
		{drip.Limit{Align: drip.Daily(nil)}, 11*time.Hour + 30*time.Minute},
		{drip.Limit{}, 30 * time.Minute},
		{drip.Limit{Align: drip.StartingAt(now)}, time.Hour},
		{drip.Limit{RefreshInterval: 20 * time.Minute}, 10 * time.Minute},
		{drip.Limit{RefreshInterval: 20 * time.Minute, Align: drip.StartingAt(now)}, 20 * time.Minute},
	} {
		own = c.limit
		for _, want := range []time.Duration{0, c.want} {
			if d, err := b.GetDelayAt(t.Context(), fmt.Sprint(i), now); d != want || err != nil {
				t.Errorf("%+v: GetDelayAt = %v, %v; want %v", c.limit, d, err, want)
			}
			ok(t, b.ReturnToken(t.Context(), fmt.Sprint(i)))
		}
		s, err := b.Inspect(t.Context(), fmt.Sprint(i))
		if err != nil || len(s.Windows) != 1 || s.Windows[0].Refresh.Before(s.Time) {
			t.Errorf("Inspect = %+v, %v", s, err)
		}
	}
}

// An entity with another RefreshInterval keeps the alignment of the Options, unless that is a calendar's.
func TestAlignOfOptionsStays(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)
	for want, align := range map[time.Time]drip.Alignment{
		now.Add(20 * time.Minute): drip.StartingAt(now),
		now.Add(10 * time.Minute): drip.Daily(nil),
	} {
		o := drip.Options{Size: 1, Align: align, Start: time.UnixMilli(0), Clock: func() time.Time { return now }}
		if align != drip.Daily(nil) {
			o.RefreshInterval = time.Hour
		}
		o.Limits = func(context.Context, string) (drip.Limit, error) {
			return drip.Limit{RefreshInterval: 20 * time.Minute}, nil
		}
		if s := buckettest.Inspect(t, buckettest.New(t, o), "shop"); !s.Windows[0].Refresh.Equal(want) {
			t.Errorf("%v: the interval ends at %v, want %v", align, s.Windows[0].Refresh.UTC(), want)
		}
	}
}

func TestBadAlign(t *testing.T) {
	for want, o := range map[string]drip.Options{
		"RefreshInterval is 1h0m0s; it must be 0":             {Align: drip.Daily(nil), RefreshInterval: time.Hour},
		"Windows[0].RefreshInterval is 24h0m0s; it must be 0": {Windows: []drip.Window{{Size: 5, RefreshInterval: 24 * time.Hour, Align: drip.Monthly(nil)}}},
		`Shared["app"].RefreshInterval is 1s; it must be 0`:   {Shared: map[string]drip.Limit{"app": {Size: 1, RefreshInterval: time.Second, Align: drip.Weekly(nil)}}},
		"Align begins more than 292 million years":            {Align: drip.StartingAt(time.Unix(1<<60, 0))},
		"Windows[0].Align begins more than 292 million years": {Windows: []drip.Window{{Size: 5, RefreshInterval: time.Hour, Align: drip.StartingAt(time.Unix(-1<<60, 0))}}},
	} {
		if _, err := drip.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
	b := buckettest.New(t, drip.Options{})
	pin := drip.Pin{Window: drip.Window{Size: 1, Align: drip.Daily(nil)}}
	for _, pin.RefreshInterval = range []time.Duration{time.Hour, 0} {
		if err := b.Pin(t.Context(), "shop", pin); err == nil || errors.Is(err, drip.ErrNoEntity) || !strings.Contains(err.Error(), "Pin.Align") {
			t.Errorf("Pin: %v", err)
		}
	}
	pin.RefreshInterval, pin.Align = time.Hour, drip.StartingAt(time.Unix(1<<60, 0))
	if err := b.Pin(t.Context(), "shop", pin); err == nil || !strings.Contains(err.Error(), "Pin.Align begins") {
		t.Errorf("Pin: %v", err)
	}
}

// StartingAt takes the year 1, which is the zero time, as well as any that a calendar has.
func TestStartingFarAway(t *testing.T) {
	for _, begin := range []time.Time{{}, time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		b := buckettest.New(t, drip.Options{Size: 1, RefreshInterval: 7 * time.Second, Align: drip.StartingAt(begin), Clock: func() time.Time { return now }})
		end := buckettest.Inspect(t, b, "shop").Windows[0].Refresh
		if (end.Unix()-begin.Unix())%7 != 0 || !end.After(now) || end.After(now.Add(7*time.Second)) {
			t.Errorf("intervals that begin at %v: one ends at %v", begin, end)
		}
	}
}

// A Pin that is aligned ByEntity has the intervals of the limit that is aligned so.
func TestPinByEntity(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	limit := drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: time.Hour, Align: drip.ByEntity()}
	tried := limit
	tried.Shadow = true
	o := drip.Options{
		Size: 10, RefreshRate: 10, RefreshInterval: time.Hour, Align: drip.ByEntity(), Clock: func() time.Time { return now },
		Shared: map[string]drip.Limit{"app": limit, "tried": tried, "shadow:tried": tried},
	}
	for _, o.Shadow = range []bool{false, true} {
		b := buckettest.New(t, o)
		ids := []string{"shop", drip.SharedID("app"), drip.SharedID("tried"), drip.SharedID("shadow:tried"), drip.ShadowID("shop")}
		if o.Shadow {
			ids = ids[1:] // it has no own limit
		} else {
			ids = ids[:4]
		}
		for _, id := range ids {
			ok(t, b.Pin(t.Context(), id, drip.Pin{Window: drip.Window{Size: 5, RefreshInterval: time.Hour, Align: drip.ByEntity()}}))
			w := buckettest.Inspect(t, b, id).Windows
			if len(w) != 2 || w[0].Refresh != w[1].Refresh {
				t.Errorf("%s, on trial %v: %+v; want the pin's intervals to end with those of the limit", id, o.Shadow, w)
			}
		}
	}
}

func TestAlignmentText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "daily": "daily UTC", "daily UTC": "daily UTC", "weekly Europe/Berlin": "weekly Europe/Berlin", "monthly Asia/Tokyo": "monthly Asia/Tokyo",
		"2026-01-31T12:00:00Z 4711": "2026-01-31T12:00:00Z 4711", "entity": "entity", "2026-01-31T12:00:00.25+01:00": "2026-01-31T11:00:00.25Z",
	} {
		var a, again drip.Alignment
		if err := a.UnmarshalText([]byte(text)); err != nil || a.String() != want {
			t.Errorf("%q is read as %q, %v; want %q", text, a, err, want)
		}
		out, err := a.MarshalText()
		if err == nil {
			err = again.UnmarshalText(out)
		}
		if err != nil || again.String() != want {
			t.Errorf("%q is written as %q, and read as %q, %v", want, out, again, err)
		}
	}
	for _, text := range []string{"yearly", "daily Mars/Olympus", "entity UTC", "2026-01-31T12:00:00Z UTC", "2026-01-31T12:00:00Z -1", "2026-01-31 12:00:00", "daily ../etc/passwd"} {
		a := drip.ByEntity()
		if err := a.UnmarshalText([]byte(text)); err == nil || !strings.Contains(err.Error(), text[:5]) || a != drip.ByEntity() {
			t.Errorf("%q is read as %v, %v", text, a, err)
		}
	}
}

// A zone of a fixed offset is told by its offset, also if it has a name: its text names no other zone, and the stored windows
// belong to no other.
func TestAlignmentOfAFixedZone(t *testing.T) {
	for want, zone := range map[string]*time.Location{
		"daily +05:30": time.FixedZone("", 5*3600+1800), "daily -08:00": time.FixedZone("", -8*3600), "daily +00:00": time.FixedZone("", 0),
		"daily +08:00": time.FixedZone("UTC+8", 8*3600), "daily +01:00": time.FixedZone("CET", 3600), "daily -07:00": time.FixedZone("PST", -7*3600),
	} {
		a := drip.Daily(zone)
		var again drip.Alignment
		if err := again.UnmarshalText([]byte(a.String())); err != nil || a.String() != want || again.String() != want {
			t.Errorf("%v is written as %q, and read as %q, %v; want %q", zone, a, again, err, want)
		}
	}
	now := time.Date(2026, 3, 1, 18, 0, 0, 0, time.UTC)
	o := drip.Options{Size: 1, Start: time.UnixMilli(0), Clock: func() time.Time { return now }}
	ok(t, o.Align.UnmarshalText([]byte("daily +05:30")))
	if next := buckettest.Inspect(t, buckettest.New(t, o), "shop").Windows[0].Refresh; !next.Equal(now.Add(30 * time.Minute)) {
		t.Errorf("the day ends at %v", next.UTC())
	}
}

// A backlog of several days uses the quota of each day, and its messages are postponed about once, although the days differ in
// length. Newcomers get nothing of it.
func TestCalendarBacklog(t *testing.T) {
	for _, in := range []string{"UTC", "Europe/Berlin"} {
		begin := time.Date(2026, 3, 27, 12, 0, 0, 0, zone(t, in)).UnixMilli() // the clocks change on the 29th
		ran := map[string]int{}
		load := buckettest.Load{
			Options: drip.Options{Size: 50, Align: drip.Daily(zone(t, in))},
			Runs: func(_ *buckettest.Call, now int64) int64 {
				ran[time.UnixMilli(now).In(zone(t, in)).Format(time.DateOnly)]++
				return now
			},
		}
		for range 230 {
			load.Calls = append(load.Calls, &buckettest.Call{At: begin, Entity: "shop"})
		}
		load.Play(t)
		want := map[string]int{"2026-03-27": 50, "2026-03-28": 50, "2026-03-29": 50, "2026-03-30": 50, "2026-03-31": 30}
		if !maps.Equal(ran, want) {
			t.Errorf("%s: %v ran, want %v", in, ran, want)
		}
		if got := buckettest.OutcomeOf(load.Calls); got.Mean > 1 {
			t.Errorf("%s: %.2f postponements, want at most 1", in, got.Mean)
		}
	}
}

// The interval of each moment is the day, the week or the month of its date: also where the clocks change at midnight, as in
// Santiago, Beirut, Havana and Asuncion, and on the days that a zone has left out. Moments near such a change are half an hour apart.
func TestCalendarOfEveryHour(t *testing.T) {
	var now time.Time
	for _, c := range calendars {
		for _, in := range []string{
			"UTC", "Europe/Berlin", "America/Los_Angeles", "America/Santiago", "Asia/Beirut", "America/Havana", "America/Asuncion", "Australia/Lord_Howe",
			"Pacific/Apia", "Africa/Cairo", "Asia/Gaza", "Africa/Casablanca",
		} {
			location := zone(t, in)
			b := buckettest.New(t, drip.Options{Size: 1, Align: c.align(location), Start: time.UnixMilli(0), Clock: func() time.Time { return now }})
			for now = time.Date(2010, 1, 1, 0, 17, 0, 0, time.UTC); now.Year() < 2013; {
				s := buckettest.Inspect(t, b, "shop")
				end, day := s.Windows[0].Refresh.In(location), func(t time.Time) string { return c.of(t.In(location)) }
				if !end.After(now) || day(end) == day(now) || day(end.Add(-time.Millisecond)) != day(now) {
					t.Errorf("%s in %s: the interval of %v ends at %v", c.name, in, now.In(location), end)
					break
				}
				if from, to := now.In(location).ZoneBounds(); now.Sub(from) < 36*time.Hour || !to.IsZero() && to.Sub(now) < 42*time.Hour {
					now = now.Add(30 * time.Minute)
				} else {
					now = now.Add(5*time.Hour + 30*time.Minute) // another hour of the day each time
				}
			}
		}
	}
}

// An entity that is idle for many days, weeks or months gains the capacity of all of them, as in intervals of one length.
func TestCalendarAfterManyIntervals(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	begin := time.Date(2026, 1, 15, 12, 0, 0, 0, berlin)
	for _, c := range []struct {
		align        drip.Alignment
		size, rate   int
		months, days int // idle
		cost         int // of the operation before, for which all capacity was charged
		want         int
		changedLimit bool
	}{
		{align: drip.Daily(time.UTC), size: 1000, rate: 100, days: 5, cost: 1000, want: 500},
		{align: drip.Daily(berlin), size: 1000, rate: 100, days: 5, cost: 1000, want: 500},
		{align: drip.Daily(berlin), size: 1000, rate: 10, days: 98, cost: 1000, want: 980},
		{align: drip.Daily(berlin), size: 1000, rate: 100, days: 98, cost: 1000, want: 1000},
		{align: drip.Weekly(berlin), size: 1000, rate: 100, days: 7 * 9, cost: 1000, want: 900},
		{align: drip.Monthly(nil), size: 1200, rate: 100, months: 6, cost: 1200, want: 600},
		{align: drip.Monthly(berlin), size: 1200, rate: 100, months: 11, cost: 1200, want: 1100},
		{align: drip.Monthly(berlin), size: 100, rate: 100, months: 2, cost: 300, want: 0},
		{align: drip.Monthly(berlin), size: 100, rate: 100, months: 3, cost: 300, want: 100},
		{align: drip.Daily(berlin), size: 100, rate: 100, days: 3, cost: 350, want: 50},
		{align: drip.Daily(berlin), size: 100, rate: 100, days: 3, cost: 350, want: 10, changedLimit: true}, // by the lower of both,
	} {
		now, size := begin, c.size
		b, err := drip.New(drip.Options{
			Concurrency: 10, Start: time.UnixMilli(0), Clock: func() time.Time { return now },
			Limits: func(context.Context, string) (drip.Limit, error) {
				return drip.Limit{Size: size, RefreshRate: min(c.rate, size), Align: c.align}, nil
			},
			Align: c.align,
		})
		ok(t, err)
		a := buckettest.Runs(t, b, "shop", drip.Request{Cost: c.size})
		ok(t, b.Settle(t.Context(), "shop", a.Lease, c.cost))
		if c.changedLimit {
			size = 90
		}
		now = now.AddDate(0, c.months, c.days)
		got, err := b.Inspect(t.Context(), "shop")
		if err != nil || max(0, got.Windows[0].Capacity) != c.want {
			t.Errorf("%v, %d and %d an interval, after %d months and %d days: %d, %v; want %d", c.align, c.size, c.rate, c.months, c.days, got.Windows[0].Capacity, err, c.want)
		}
	}
}

// No interval of a calendar is so much longer than another that a bucket would be forgotten before it is full.
func TestCalendarIsNotForgotten(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, c := range []struct {
		align        drip.Alignment
		at           time.Time
		months, days int
	}{
		{drip.Daily(berlin), time.Date(2026, 3, 29, 12, 0, 0, 0, berlin), 0, 98}, // of 23 hours
		{drip.Monthly(berlin), time.Date(2026, 2, 10, 0, 0, 0, 0, berlin), 98, 0},
	} {
		now, last := c.at, storage.State{}
		clock := func() time.Time { return now }
		b, err := drip.New(drip.Options{Size: 1000, RefreshRate: 10, Align: c.align, Concurrency: 10, Storage: keepIn(&last), Clock: clock, Start: time.UnixMilli(0)})
		ok(t, err)
		a := buckettest.Runs(t, b, "shop", drip.Request{Cost: 1000})
		ok(t, b.Settle(t.Context(), "shop", a.Lease, 1000))
		until := time.UnixMilli(last.Until)
		if full := c.at.AddDate(0, c.months, c.days); until.Before(full) {
			t.Errorf("%v: it is forgotten at %v, and full after %v", c.align, until, full)
		}
	}
}

// A raised quota of a calendar stays raised in days and months of another length.
func TestRaiseOfACalendar(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for _, c := range []struct {
		align  drip.Alignment
		pinned time.Duration
		begin  time.Time
		months int
	}{
		{drip.Daily(berlin), 24 * time.Hour, time.Date(2026, 3, 28, 12, 0, 0, 0, berlin), 0},
		{drip.Daily(berlin), 24 * time.Hour, time.Date(2026, 10, 24, 12, 0, 0, 0, berlin), 0},
		{drip.Monthly(berlin), 28 * 24 * time.Hour, time.Date(2026, 2, 3, 12, 0, 0, 0, berlin), 1},
		{drip.Monthly(berlin), 31 * 24 * time.Hour, time.Date(2026, 1, 3, 12, 0, 0, 0, berlin), 1},
	} {
		now := c.begin
		b := buckettest.New(t, drip.Options{Size: 10, Align: c.align, Concurrency: 1000, Start: time.UnixMilli(0), Clock: func() time.Time { return now }})
		ok(t, b.Pin(t.Context(), "shop", drip.Pin{Window: drip.Window{Size: 100, RefreshInterval: c.pinned}, Raise: true}))
		for range 3 {
			a := buckettest.Admit(t, b, "shop", drip.Request{Cost: 10})
			if got, err := b.Inspect(t.Context(), "shop"); a.Delay > 0 || err != nil || got.Windows[0].Capacity != 90 {
				t.Errorf("%v at %v: %v, %d left, %v; want 90 of 100", c.align, now, a.Delay, got.Windows[0].Capacity, err)
			}
			ok(t, b.Settle(t.Context(), "shop", a.Lease, 10))
			now = now.AddDate(0, c.months, 0)
			if c.months == 0 {
				now = now.AddDate(0, 0, 1)
			}
		}
	}
}
