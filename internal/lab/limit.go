package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
)

// limit is the limit of Options, with their defaults filled in. Times are milliseconds.
type limit struct {
	windows     []window
	concurrency int64
}

// window gains rate at the beginning of each interval, up to size.
type window struct {
	size, rate, interval int64 // of a calendar, interval is about right
	unit                 string
	shift                int64     // how much earlier than the multiples of interval, in Unix time, intervals begin
	calendar             *calendar // or nil
}

// limitOf reads the limit of Options, without limits of single entities.
func limitOf(o *drip.Options, own *drip.Limit) limit {
	share := cmp.Or(o.Share, 1)
	part := func(n int) int64 { return int64(math.Floor(share*float64(n) + 1e-9)) }
	windowOf := func(size, rate int, interval time.Duration, align drip.Alignment, unit string) window {
		// A rate above the size counts as the size.
		w := window{size: part(size), rate: part(min(rate, size)), interval: interval.Milliseconds(), unit: unit}
		if align.Calendar() {
			w.calendar, _ = calendarOf(align) // checkAligned has the error
			w.interval = w.calendar.length().Milliseconds()
		} else if begin, err := time.Parse(time.RFC3339Nano, align.String()); err == nil && w.interval > 0 {
			w.shift = w.interval - begin.UnixMilli()%w.interval
		}
		return w
	}
	size, align := cmp.Or(own.Size, o.Size, 100), cmp.Or(own.Align, o.Align)
	if own.RefreshInterval != 0 && align.Calendar() {
		align = own.Align // an interval takes a calendar's place
	}
	rate := 50
	if align.Calendar() {
		rate = size
	}
	first := windowOf(size, cmp.Or(own.RefreshRate, o.RefreshRate, rate),
		cmp.Or(own.RefreshInterval, o.RefreshInterval, time.Second), align, cmp.Or(own.Unit, o.Unit))
	l := limit{windows: []window{first}, concurrency: part(cmp.Or(own.Concurrency, o.Concurrency))}
	if l.concurrency == 0 {
		l.concurrency = first.size
		if first.unit != "" {
			l.concurrency = decision.MostUnits
		}
	}
	further := o.Windows
	if own.Windows != nil {
		further = own.Windows
	}
	for _, w := range further {
		l.windows = append(l.windows, windowOf(w.Size, cmp.Or(w.RefreshRate, w.Size), w.RefreshInterval, w.Align, w.Unit))
	}
	return l
}

// Windows returns all windows of Options and their shared limits, the first one of each with Align and Unit alone.
func Windows(o *drip.Options) []drip.Window {
	all := append([]drip.Window{{Align: o.Align, Unit: o.Unit}}, o.Windows...)
	for _, l := range o.Shared {
		all = append(append(all, drip.Window{Align: l.Align, Unit: l.Unit}), l.Windows...)
	}
	return all
}

// payable is the error of a window that counts a unit without costs.
func (l *limit) payable(units map[string]Costs) error {
	for _, w := range l.windows {
		if w.unit != "" && units[w.unit] == nil {
			return fmt.Errorf("%s have no costs of %q, which a window counts", "Units", w.unit)
		}
	}
	return nil
}

// possible reports whether anything can ever run.
func (l *limit) possible() bool {
	return l.concurrency > 0 && !slices.ContainsFunc(l.windows, func(w window) bool { return min(w.size, w.rate, w.interval) < 1 })
}

// number is the number of the interval that a time is in.
func (w *window) number(ms int64) int64 {
	if w.calendar != nil {
		return w.calendar.number(ms)
	}
	return (ms + w.shift) / w.interval
}

// beginning is when the interval with this number begins.
func (w *window) beginning(n int64) int64 {
	if w.calendar != nil {
		return w.calendar.beginning(n)
	}
	return n*w.interval - w.shift
}

// refreshes is how many intervals begin after a time, up to and with another.
func (w *window) refreshes(after, upTo int64) int64 {
	return max(0, w.number(upTo)-w.number(after))
}

// gains is when a window has gained so many missing units, from a time on. No time overflows, whatever the numbers.
func (w *window) gains(missing, at int64) int64 {
	return w.beginning(w.number(at) + min((missing+w.rate-1)/w.rate, longestRun.Milliseconds()/w.interval+1))
}

// era is the limit that holds from a time on, until the time of the next era.
type era struct {
	from int64
	limit
	own drip.Limit
}

// eras of a scenario: at least one, with the limit of Options.
func (s *Scenario) eras() []era {
	all := []era{{limit: limitOf(&s.Options, &drip.Limit{})}}
	for _, c := range s.Changes {
		if c.Limit != nil {
			all = append(all, era{s.since(c.At), limitOf(&s.Options, c.Limit), *c.Limit})
		}
	}
	return all
}

// eraAt is the number of the era of a time.
func eraAt(eras []era, ms int64) int {
	n, found := slices.BinarySearchFunc(eras, ms, func(e era, ms int64) int { return cmp.Compare(e.from, ms) })
	if found {
		return n
	}
	return n - 1
}

// allowed is the most that the eras allow an entity to use of its i-th window from a time, full, to another. For the
// window after the last one it is how long the entity may hold tokens in all.
func allowed(eras []era, i int, from, to int64) float64 {
	n := eraAt(eras, from)
	var sum float64
	if windows := eras[n].windows; i < len(windows) {
		sum = float64(windows[i].size)
	}
	for ; n < len(eras) && from < to; n++ {
		end := to
		if n+1 < len(eras) {
			end = min(to, eras[n+1].from)
		}
		if windows := eras[n].windows; i < len(windows) {
			sum += float64(windows[i].rate) * float64(windows[i].refreshes(from, end))
		} else {
			sum += float64(eras[n].concurrency) * float64(end-from)
		}
		from = end
	}
	return sum
}
