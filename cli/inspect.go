package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/entities"
)

// inspect is "drip inspect". It makes two round trips: for the entity, and for its history.
type inspect struct {
	timeout
	limits limitsFlag
	json   bool
}

func (c *inspect) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	c.limits.flags(set)
	c.timeout.flags(set)
}

func (c *inspect) run(ctx context.Context, t *terminal, args []string) error {
	l, err := c.limits.read(t)
	if err != nil {
		return err
	}
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	ctx, cancel := c.within(ctx)
	defer cancel()
	e, err := entities.Read(ctx, s, args[1])
	if err != nil {
		return err
	}
	j, err := entities.NewJudge(l, s)
	if err != nil {
		return err
	}
	found, err := j.Report(ctx, e)
	if err != nil {
		return err
	}
	used, err := found.Used(ctx, s)
	if err != nil {
		return err
	}
	r := report{found}
	if c.json {
		e := r.json()
		e.Used = usedJSON(used)
		return writeJSON(t.out, e)
	}
	return r.write(t.out, t.zone, used)
}

func (r report) write(out io.Writer, zone *time.Location, used []entities.Use) error {
	var b strings.Builder
	at := func(t time.Time) string {
		left := t.Sub(r.Time)
		if left <= 0 {
			return fmt.Sprintf("%s, %s ago", entities.Clock(t, r.Time, zone), entities.Short(-left))
		}
		return fmt.Sprintf("%s, in %s", entities.Clock(t, r.Time, zone), entities.Short(left))
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s  %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "%s at %s, by the storage's clock\n", entities.Printable(r.Entity), r.Time.In(zone).Format("2006-01-02 15:04:05.000 -0700"))
	if !r.Known {
		line("stored", "nothing: it is idle, or has another name or prefix")
	}
	switch {
	case r.Limits:
		by := ""
		if r.Within > 0 {
			by = ", by its own limit"
		}
		if r.Delay == 0 {
			line("next", "a newcomer runs now%s", by)
		} else {
			does := "runs"
			if r.Bound == drip.BoundTokens { // nobody knows when a token is free
				does = "asks again"
			}
			line("next", "a newcomer %s %s%s", does, at(r.Time.Add(r.Delay)), by)
			for why := range strings.SplitSeq(r.Why(), "; ") {
				line("", "%s", why)
			}
		}
		name := "capacity"
		for _, w := range r.Windows {
			if entities.Unlimited(w.Size) {
				continue
			}
			line(name, "%s of %s", entities.Units(int64(w.Capacity)), entities.Capacity(w, r.Time, zone))
			name = ""
		}
	case len(r.Capacity) > 0:
		left := make([]string, len(r.Capacity))
		for i, n := range r.Capacity {
			left[i] = entities.Units(n)
		}
		line("capacity", "%s after the last decision", strings.Join(left, ", "))
	}
	line("tokens", "%s in use", r.Tokens())
	for i, l := range r.Leases {
		if i == mostLeases && len(r.Leases) > mostLeases+1 {
			line("", "and %d more", r.InUse-r.Plain-i)
			break
		}
		line("", "held for %s, ends %s", entities.Short(l.Age), at(l.End))
	}
	if r.Plain > 0 {
		line("", "%d taken by GetDelay, which stores no times", r.Plain)
	}
	if p := r.Pin; p != nil {
		until := "until drip unpin"
		if !r.PinnedUntil.IsZero() {
			until = "until " + at(r.PinnedUntil)
		}
		line("pinned", "%s; %s", entities.Limit(*p), until)
	}
	if r.Level < 1 {
		line("level", "%.1f %% of the limit, after what the provider refused or announced", 100*r.Level)
	}
	if r.Operation > 0 {
		line("operations", "take %s on average", entities.Short(r.Operation))
	}
	switch {
	case r.Waiting.IsZero():
	case r.Limits && r.Booked > 0:
		line("booked", "%s, the last for %s", entities.Count(r.Booked, "unit"), at(r.Waiting))
	default:
		line("booked", "slots until %s", at(r.Waiting))
	}
	if !r.ClosedUntil.IsZero() {
		line("closed", "until %s", at(r.ClosedUntil))
	}
	if !r.Decided.IsZero() {
		line("decided", "last at %s", at(r.Decided))
	}
	name := "used"
	for _, u := range used {
		line(name, "%s", entities.Printable(u.Text))
		line("", "%s", sparkline(u))
		name = ""
	}
	switch {
	case !r.Limits:
		why := "Nothing was decided, so its limits are not known. This tells them:"
		if r.Known {
			why = "No limit of its own is stored. This tells one:"
		}
		limits := `{"size": N, "rate": N, "interval": "1s"}`
		if _, shared := entities.SharedLimit(r.Entity); shared {
			limits = `{"shared": {"NAME": ` + limits + `}}`
		}
		b.WriteString("\n" + why + "\n--limits '" + limits + "'\n")
	case r.Within > 0:
		fmt.Fprintf(&b, "\nIt was within %s, which may delay it longer.\n"+
			"drip top lists the shared limits; drip inspect URL shared:NAME shows one.\n--limits with \"shared\" includes them here.\n", entities.Count(r.Within, "shared limit"))
	}
	if r.Changed {
		b.WriteString("\nThe last decision was made by other limits.\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// sparkline draws the use in each minute as a character, relative to the most in a minute; "." is nothing.
func sparkline(u entities.Use) string {
	const levels = "▁▂▃▄▅▆▇█"
	var b strings.Builder
	for _, n := range u.Minutes {
		if n == 0 {
			b.WriteByte('.')
			continue
		}
		b.WriteRune([]rune(levels)[(n*8-1)/u.Most])
	}
	return b.String()
}

// mostLeases is how many are shown, the first to end.
const mostLeases = 5

// entityJSON is an entity in JSON; docs/cli.md describes the fields. Without limits, the fields that need them are
// missing.
type entityJSON struct {
	Entity       string       `json:"entity"`
	Time         moment       `json:"time"`
	Known        bool         `json:"known"`
	Limits       string       `json:"limits,omitempty"`
	Delay        *int64       `json:"delay_ms,omitempty"`
	Bound        string       `json:"bound,omitempty"`
	Then         string       `json:"then,omitempty"`
	Limit        string       `json:"limit,omitempty"`
	Windows      []windowJSON `json:"windows,omitempty"`
	Concurrency  int          `json:"concurrency,omitempty"`
	Pin          *pinJSON     `json:"pin,omitempty"`
	Level        float64      `json:"level,omitempty"`
	Within       int          `json:"within,omitempty"`
	InUse        int          `json:"in_use"`
	Plain        int          `json:"plain"`
	Leases       []leaseJSON  `json:"leases"`
	Operation    int64        `json:"operation_ms"`
	Booked       *int         `json:"booked,omitempty"`
	BookedUntil  moment       `json:"booked_until"`
	ClosedUntil  moment       `json:"closed_until"`
	LastDecision moment       `json:"last_decision"`
	Used         []useJSON    `json:"used,omitempty"`
}

type useJSON struct {
	Unit    string  `json:"unit,omitempty"`
	Total   int     `json:"total"`
	From    moment  `json:"from"`
	Minutes [60]int `json:"minutes"`
}

func usedJSON(used []entities.Use) (all []useJSON) {
	for _, u := range used {
		all = append(all, useJSON{u.Unit, u.Total, moment(u.From), u.Minutes})
	}
	return all
}

type windowJSON struct {
	Size     int    `json:"size"`
	Rate     int    `json:"rate"`
	Interval int64  `json:"interval_ms"`
	Unit     string `json:"unit,omitempty"`
	Capacity int    `json:"capacity"`
	Refresh  moment `json:"refresh"`
}

type pinJSON struct {
	Size        int    `json:"size,omitempty"`
	Rate        int    `json:"rate,omitempty"`
	Interval    int64  `json:"interval_ms,omitempty"`
	Concurrency int    `json:"concurrency,omitempty"`
	Raise       bool   `json:"raise"`
	Until       moment `json:"until"`
}

type leaseJSON struct {
	Age int64  `json:"age_ms"`
	End moment `json:"end"`
}

func (r report) json() entityJSON {
	e := entityJSON{
		Entity: r.Entity, Time: moment(r.Time), Known: r.Known, InUse: r.InUse, Plain: r.Plain, Leases: []leaseJSON{},
		Operation: r.Operation.Milliseconds(), BookedUntil: moment(r.Waiting), ClosedUntil: moment(r.ClosedUntil),
		LastDecision: moment(r.Decided), Within: r.Within,
	}
	if p := r.Pin; p != nil {
		e.Pin = &pinJSON{p.Size, p.RefreshRate, p.RefreshInterval.Milliseconds(), p.Concurrency, p.Raise, moment(r.PinnedUntil)}
	}
	if r.Level < 1 {
		e.Level = r.Level
	}
	for _, l := range r.Leases {
		e.Leases = append(e.Leases, leaseJSON{l.Age.Milliseconds(), moment(l.End)})
	}
	if !r.Limits {
		return e
	}
	switch {
	case r.Changed:
		e.Limits = "changed"
	case r.Given:
		e.Limits = "given"
	default:
		e.Limits = "stored"
	}
	e.Limit = r.Limit
	delay := r.Delay.Milliseconds()
	e.Delay, e.Bound, e.Booked = &delay, r.Bound.String(), &r.Booked
	if !entities.Unlimited(r.Concurrency) {
		e.Concurrency = r.Concurrency
	}
	if r.Then != drip.BoundNone {
		e.Then = r.Then.String()
	}
	for _, w := range r.Windows {
		e.Windows = append(e.Windows, windowJSON{w.Size, w.RefreshRate, w.RefreshInterval.Milliseconds(), w.Unit, w.Capacity, moment(w.Refresh)})
	}
	return e
}
