package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip"
)

// inspect is "drip inspect". Its one round trip is that of take.
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
	entity := args[1]
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
	snap, err := take(ctx, s, entity)
	if err != nil {
		return fmt.Errorf("%q: %w", entity, err)
	}
	r := report{entity: entity, snapshot: snap, facts: snap.facts()}
	if err := r.judge(ctx, l); err != nil {
		return err
	}
	if c.json {
		return writeJSON(t.out, r.json())
	}
	return r.write(t.out, t.zone)
}

// report is what is said of an entity.
type report struct {
	entity   string
	snapshot snapshot
	facts    facts
	limits   source
	status   drip.Status // unless there are no limits
}

// source is where the limits come from.
type source string

const (
	nowhere source = ""
	given   source = "given"
	stored  source = "stored" // the windows of the last decision; how many tokens there are is not among it
)

// judge sets what drip makes of the entity under the limits l, of which the windows may be the stored ones.
func (r *report) judge(ctx context.Context, l *limits) (err error) {
	last := r.snapshot.limits()
	switch {
	case l == nil && last == nil:
		return nil
	case l == nil:
		r.limits, l = stored, last
	case last != nil && l.windowless():
		r.limits = given
		both := *l
		both.Size, both.Rate, both.Interval, both.Windows = last.Size, last.Rate, last.Interval, last.Windows
		l = &both
	default:
		r.limits = given
	}
	r.status, err = r.snapshot.status(ctx, l, r.entity)
	// Without those that count as lost by now.
	r.facts.tickets, r.facts.booked, r.facts.bookedUntil = r.status.Tickets, r.status.Booked, r.status.BookedUntil
	return err
}

func (r *report) write(out io.Writer, zone *time.Location) error {
	var b strings.Builder
	now := r.snapshot.time
	at := func(t time.Time) string {
		left := t.Sub(now)
		if left <= 0 {
			return fmt.Sprintf("%s, %s ago", clock(t, now, zone), short(-left))
		}
		return fmt.Sprintf("%s, in %s", clock(t, now, zone), short(left))
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s  %s\n", name, fmt.Sprintf(format, args...))
	}
	f := &r.facts
	fmt.Fprintf(&b, "%s at %s, by the storage's clock\n", printable(r.entity), now.In(zone).Format("2006-01-02 15:04:05.000 -0700"))
	if !r.snapshot.known {
		line("stored", "nothing: it is idle, or has another name")
	}
	if r.limits != nowhere {
		next := "now"
		if r.status.Delay > 0 {
			next = at(now.Add(r.status.Delay)) + ": " + r.because(r.status.Bound)
			if then := r.status.Then; then != drip.BoundNone {
				next += "; then " + r.because(then)
			}
		}
		line("next", "a newcomer runs %s", next)
		name := "capacity"
		for _, w := range r.status.Windows {
			left := fmt.Sprint(w.Capacity)
			if w.Capacity < 0 {
				left = fmt.Sprintf("owes %d", -w.Capacity)
			}
			line(name, "%s of %s", left, windowText(w.Window))
			name = ""
		}
	} else if r.snapshot.known {
		line("capacity", "%d after the last run", r.snapshot.state.Ops.Capacity)
	}
	of := ""
	if r.limits == given {
		of = fmt.Sprintf(" of %d", r.status.Concurrency)
	}
	line("tokens", "%d%s in use", f.inUse(), of)
	for i, l := range f.leases {
		if i == mostLeases && len(f.leases) > mostLeases+1 {
			line("", "and %d younger ones", len(f.leases)-i)
			break
		}
		line("", "held for %s, ends %s", short(l.age), at(l.end))
	}
	if f.plain > 0 {
		line("", "%d taken by GetDelay: since when is not stored", f.plain)
	}
	if f.operation > 0 {
		line("operations", "take %s on average", short(f.operation))
	}
	if f.tickets > 0 {
		units := ""
		if f.booked != f.tickets {
			units = fmt.Sprintf(", %d units", f.booked)
		}
		line("booked", "%s%s, the last for %s", count(f.tickets, "ticket"), units, at(f.bookedUntil))
	}
	if f.promised.After(f.bookedUntil) {
		line("promised", "slots until %s", at(f.promised))
	}
	if !f.closedUntil.IsZero() {
		line("closed", "until %s", at(f.closedUntil))
	}
	if !f.lastRun.IsZero() {
		line("last run", "%s", at(f.lastRun))
	}
	b.WriteString(r.note())
	_, err := io.WriteString(out, b.String())
	return err
}

// mostLeases is how many are shown, the oldest ones.
const mostLeases = 5

// note is about what the limits have to do with it.
func (r *report) note() string {
	last := r.snapshot.limits()
	switch {
	case r.limits == stored:
		return "\nThese are the windows of the last decision. --limits '{\"concurrency\": N}' tells how many tokens there are.\n"
	case r.limits == nowhere:
		return "\nThe limits of this entity are not stored. --limits '{\"size\": N, \"rate\": N, \"interval\": \"1s\"}' tells them.\n"
	case last == nil:
		return ""
	}
	var before, now []drip.Window
	before = append(before, drip.Window{Size: last.Size, RefreshRate: last.Rate, RefreshInterval: time.Duration(last.Interval)})
	before = append(before, last.options(nil).Windows...)
	for _, w := range r.status.Windows {
		now = append(now, w.Window)
	}
	if slices.Equal(before, now) {
		return ""
	}
	texts := make([]string, len(before))
	for i, w := range before {
		texts[i] = windowText(w)
	}
	return "\nThe last decision was made by other limits: " + strings.Join(texts, "; ") + ".\n"
}

// because says what a delay comes from.
func (r *report) because(b drip.Bound) string {
	switch b {
	case drip.BoundClosed:
		return "closed, by pause or by the provider"
	case drip.BoundTokens:
		return "all tokens are out, or others wait for one"
	case drip.BoundBooked:
		return "what capacity is left is booked"
	default:
		if i := int(b - drip.BoundWindow); i >= 0 && i < len(r.status.Windows) {
			return "the capacity of " + windowText(r.status.Windows[i].Window) + " is used up"
		}
		return b.String()
	}
}

// windowText is "5, +3 every 1s".
func windowText(w drip.Window) string {
	return fmt.Sprintf("%d, +%d every %s", w.Size, w.RefreshRate, short(w.RefreshInterval))
}

// entityJSON is an entity in JSON; docs/cli.md says what the fields are. What takes limits is left out without any.
type entityJSON struct {
	Entity      string       `json:"entity"`
	Time        moment       `json:"time"`
	Known       bool         `json:"known"`
	Limits      source       `json:"limits,omitempty"`
	Delay       *int64       `json:"delay_ms,omitempty"`
	Bound       string       `json:"bound,omitempty"`
	Then        string       `json:"then,omitempty"`
	Windows     []windowJSON `json:"windows,omitempty"`
	Concurrency int          `json:"concurrency,omitempty"`
	InUse       int          `json:"in_use"`
	Plain       int          `json:"plain"`
	Leases      []leaseJSON  `json:"leases"`
	Operation   int64        `json:"operation_ms"`
	Tickets     int          `json:"tickets"`
	Booked      int          `json:"booked"`
	BookedUntil moment       `json:"booked_until"`
	Promised    moment       `json:"promised_until"`
	ClosedUntil moment       `json:"closed_until"`
	LastRun     moment       `json:"last_run"`
}

type windowJSON struct {
	Size     int   `json:"size"`
	Rate     int   `json:"rate"`
	Interval int64 `json:"interval_ms"`
	Capacity int   `json:"capacity"`
}

type leaseJSON struct {
	Age int64  `json:"age_ms"`
	End moment `json:"end"`
}

func (r *report) json() entityJSON {
	f := &r.facts
	e := entityJSON{
		Entity: r.entity, Time: moment(r.snapshot.time), Known: r.snapshot.known, Limits: r.limits,
		InUse: f.inUse(), Plain: f.plain, Leases: []leaseJSON{}, Operation: f.operation.Milliseconds(),
		Tickets: f.tickets, Booked: f.booked, BookedUntil: moment(f.bookedUntil), Promised: moment(f.promised),
		ClosedUntil: moment(f.closedUntil), LastRun: moment(f.lastRun),
	}
	for _, l := range f.leases {
		e.Leases = append(e.Leases, leaseJSON{l.age.Milliseconds(), moment(l.end)})
	}
	if r.limits == nowhere {
		return e
	}
	delay := r.status.Delay.Milliseconds()
	e.Delay, e.Bound = &delay, r.status.Bound.String()
	if then := r.status.Then; then != drip.BoundNone {
		e.Then = then.String()
	}
	if r.limits == given {
		e.Concurrency = r.status.Concurrency
	}
	for _, w := range r.status.Windows {
		e.Windows = append(e.Windows, windowJSON{w.Size, w.RefreshRate, w.RefreshInterval.Milliseconds(), w.Capacity})
	}
	return e
}
