package main

import (
	"context"
	"flag"
	"fmt"
	"io"
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
	e, err := read(ctx, s, args[1])
	if err != nil {
		return err
	}
	j, err := newJudge(l)
	if err != nil {
		return err
	}
	r, err := j.report(ctx, e)
	if err != nil {
		return err
	}
	if c.json {
		return writeJSON(t.out, r.json())
	}
	return r.write(t.out, t.zone)
}

func (r *report) write(out io.Writer, zone *time.Location) error {
	var b strings.Builder
	at := func(t time.Time) string {
		left := t.Sub(r.Time)
		if left <= 0 {
			return fmt.Sprintf("%s, %s ago", clock(t, r.Time, zone), short(-left))
		}
		return fmt.Sprintf("%s, in %s", clock(t, r.Time, zone), short(left))
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s  %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "%s at %s, by the storage's clock\n", printable(r.Entity), r.Time.In(zone).Format("2006-01-02 15:04:05.000 -0700"))
	if !r.Known {
		line("stored", "nothing: it is idle, or has another name")
	}
	of := ""
	switch {
	case r.limits:
		of = fmt.Sprintf(" of %d", r.Concurrency)
		next := "now"
		if r.Delay > 0 {
			next = at(r.Time.Add(r.Delay)) + ": "
			switch {
			case r.ClosedUntil.IsZero():
				next += r.because(r.Bound)
			case r.Then == drip.BoundNone:
				next += closed
			default:
				next += closed + "; then " + r.because(r.Then)
			}
		}
		line("next", "a newcomer runs %s", next)
		name := "capacity"
		for _, w := range r.Windows {
			line(name, "%s of %s", units(int64(w.Capacity)), windowText(w.Window))
			name = ""
		}
	case r.Known:
		left := make([]string, len(r.capacity))
		for i, n := range r.capacity {
			left[i] = units(n)
		}
		line("capacity", "%s after the last decision", strings.Join(left, ", "))
	}
	line("tokens", "%d%s in use", r.InUse, of)
	for i, l := range r.Leases {
		if i == mostLeases && len(r.Leases) > mostLeases+1 {
			line("", "and %d more", r.InUse-r.plain-i)
			break
		}
		line("", "held for %s, ends %s", short(l.Age), at(l.End))
	}
	if r.plain > 0 {
		line("", "%d taken by GetDelay: since when is not stored", r.plain)
	}
	if r.Operation > 0 {
		line("operations", "take %s on average", short(r.Operation))
	}
	switch {
	case r.waiting.IsZero():
	case r.limits && r.Booked > 0:
		line("booked", "%s, the last for %s", count(r.Booked, "unit"), at(r.waiting))
	default:
		line("booked", "slots until %s", at(r.waiting))
	}
	if !r.ClosedUntil.IsZero() {
		line("closed", "until %s", at(r.ClosedUntil))
	}
	if !r.decided.IsZero() {
		line("decided", "last at %s", at(r.decided))
	}
	switch {
	case !r.limits:
		b.WriteString("\nThe storage does not hold the limits. --limits '{\"size\": N, \"rate\": N, \"interval\": \"1s\"}' tells them.\n")
	case r.changed:
		b.WriteString("\nThe last decision was made by other limits.\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// units is "3" or "owes 3".
func units(n int64) string {
	if n < 0 {
		return fmt.Sprintf("owes %d", -n)
	}
	return fmt.Sprint(n)
}

// mostLeases is how many are shown, the first to end.
const mostLeases = 5

const closed = "closed, by pause or by the provider"

// because says what a delay of an entity that is open comes from.
func (r *report) because(b drip.Bound) string {
	switch b {
	case drip.BoundTokens:
		return "all tokens are out, or others wait for one"
	case drip.BoundBooked:
		return "what capacity is left is booked"
	default:
		if i := int(b - drip.BoundWindow); i >= 0 && i < len(r.Windows) {
			return "the capacity of " + windowText(r.Windows[i].Window) + " is used up"
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
	Entity       string       `json:"entity"`
	Time         moment       `json:"time"`
	Known        bool         `json:"known"`
	Limits       string       `json:"limits,omitempty"`
	Delay        *int64       `json:"delay_ms,omitempty"`
	Bound        string       `json:"bound,omitempty"`
	Then         string       `json:"then,omitempty"`
	Windows      []windowJSON `json:"windows,omitempty"`
	Concurrency  int          `json:"concurrency,omitempty"`
	InUse        int          `json:"in_use"`
	Plain        int          `json:"plain"`
	Leases       []leaseJSON  `json:"leases"`
	Operation    int64        `json:"operation_ms"`
	Booked       *int         `json:"booked,omitempty"`
	BookedUntil  moment       `json:"booked_until"`
	ClosedUntil  moment       `json:"closed_until"`
	LastDecision moment       `json:"last_decision"`
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
	e := entityJSON{
		Entity: r.Entity, Time: moment(r.Time), Known: r.Known, InUse: r.InUse, Plain: r.plain, Leases: []leaseJSON{},
		Operation: r.Operation.Milliseconds(), BookedUntil: moment(r.waiting), ClosedUntil: moment(r.ClosedUntil),
		LastDecision: moment(r.decided),
	}
	for _, l := range r.Leases {
		e.Leases = append(e.Leases, leaseJSON{l.Age.Milliseconds(), moment(l.End)})
	}
	if !r.limits {
		return e
	}
	if e.Limits = "given"; r.changed {
		e.Limits = "changed"
	}
	delay := r.Delay.Milliseconds()
	e.Delay, e.Bound, e.Concurrency, e.Booked = &delay, r.Bound.String(), r.Concurrency, &r.Booked
	if r.Then != drip.BoundNone {
		e.Then = r.Then.String()
	}
	for _, w := range r.Windows {
		e.Windows = append(e.Windows, windowJSON{w.Size, w.RefreshRate, w.RefreshInterval.Milliseconds(), w.Capacity})
	}
	return e
}
