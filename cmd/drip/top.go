package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
)

// top is "drip top".
type top struct {
	timeout
	limits     limitsFlag
	json, once bool
	every      duration
	rows       int
}

func (c *top) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print one snapshot as JSON")
	set.BoolVar(&c.once, "once", false, "print one snapshot, also on a terminal")
	set.TextVar(&c.every, "every", duration(2*time.Second), "the pause between two snapshots, a `duration`")
	set.IntVar(&c.rows, "rows", 8, "the `number` of entities in each of the two tables")
	c.limits.flags(set)
	c.timeout.flags(set)
}

func (c *top) run(ctx context.Context, t *terminal, args []string) error {
	if c.rows < 1 || c.every <= 0 {
		return usagef("--rows and --every must be above 0")
	}
	l, err := c.limits.read(t)
	if err != nil {
		return err
	}
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	lister, ok := s.(storage.Lister)
	if !ok {
		return errors.New("this storage cannot list its entities; drip inspect shows one that you name")
	}
	begin := time.Now()
	o, err := c.look(ctx, lister, l)
	switch {
	case err != nil:
		return err
	case c.json:
		return writeJSON(t.out, o.json())
	case c.once || !t.interactive:
		_, err = io.WriteString(t.out, o.text(t.zone))
		return err
	}
	text := o.text(t.zone)
	if err := show(t.out, enter, text); err != nil {
		return err
	}
	// What was seen last stays on the normal screen.
	defer func() { io.WriteString(t.out, leave+text) }()
	for {
		// A storage with very many entities has other things to do.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(time.Duration(c.every), 4*time.Since(begin))):
		}
		begin = time.Now()
		o, err := c.look(ctx, lister, l)
		shown := ""
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // it may come back
			shown = withoutSecrets(message(err), args)
		default:
			text = o.text(t.zone)
			shown = text
		}
		if err := show(t.out, "", shown); err != nil {
			return err
		}
	}
}

// What makes a terminal show another screen, without a cursor and with long lines cut, and what undoes it.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// show writes a text over what the screen has. It begins no line with a line feed, so that a screen that is too low does not
// scroll.
func show(out io.Writer, before, text string) error {
	var b strings.Builder
	b.WriteString(before)
	n := 0
	for line := range strings.Lines(text) {
		n++
		fmt.Fprintf(&b, "\x1b[%d;1H%s\x1b[K", n, strings.TrimSuffix(line, "\n"))
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(out, b.String())
	return err
}

// overall is a snapshot of a storage.
type overall struct {
	time                             time.Time
	complete                         bool // all entities were read
	entities, inUse, tickets, closed int
	busiest, longest                 ranking
}

// look reads all entities, or as many as there is time for. It keeps those that are shown.
func (c *top) look(ctx context.Context, lister storage.Lister, l *limits) (*overall, error) {
	within, cancel := c.within(ctx)
	defer cancel()
	o := &overall{
		complete: true,
		busiest:  ranking{most: c.rows, order: byUse},
		longest:  ranking{most: c.rows, order: byWaiting},
	}
	err := lister.List(within, func(e storage.Entry) error {
		r := &report{entity: e.Key, snapshot: snapshot{state: e.State, known: true, time: e.Time}}
		r.facts = r.snapshot.facts()
		o.add(r)
		return nil
	})
	if err != nil && o.entities > 0 && ctx.Err() == nil && within.Err() != nil {
		o.complete, err = false, nil
	}
	if err != nil {
		return nil, err
	}
	if o.time.IsZero() {
		o.time = time.Now()
	}
	for _, r := range slices.Concat(o.busiest.reports, o.longest.reports) {
		if err := r.judge(ctx, l); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *overall) add(r *report) {
	f := &r.facts
	if r.snapshot.time.After(o.time) {
		o.time = r.snapshot.time
	}
	o.entities++
	o.inUse += f.inUse()
	o.tickets += f.tickets
	if !f.closedUntil.IsZero() {
		o.closed++
	}
	if f.inUse() > 0 || !f.lastRun.IsZero() {
		o.busiest.add(r)
	}
	if !f.waiting().IsZero() {
		o.longest.add(r)
	}
}

// ranking is the first ones by an order.
type ranking struct {
	most    int
	order   func(a, b *report) int
	reports []*report
}

func (k *ranking) add(r *report) {
	k.reports = slices.DeleteFunc(k.reports, func(o *report) bool { return o.entity == r.entity }) // a storage may tell twice
	if i, _ := slices.BinarySearchFunc(k.reports, r, k.order); i < k.most {
		k.reports = slices.Insert(k.reports, i, r)
		k.reports = k.reports[:min(k.most, len(k.reports))]
	}
}

// byUse puts those first that have most operations in flight, then those that ran last.
func byUse(a, b *report) int {
	return cmp.Or(
		cmp.Compare(b.facts.inUse(), a.facts.inUse()),
		b.facts.lastRun.Compare(a.facts.lastRun),
		cmp.Compare(a.entity, b.entity),
	)
}

// byWaiting puts those first whose last one waits longest, then those with most to wait.
func byWaiting(a, b *report) int {
	return cmp.Or(
		b.facts.waiting().Compare(a.facts.waiting()),
		cmp.Compare(b.facts.tickets, a.facts.tickets),
		cmp.Compare(a.entity, b.entity),
	)
}

func (o *overall) text(zone *time.Location) string {
	var b strings.Builder
	entities := fmt.Sprintf("%d entities", o.entities)
	if o.entities == 1 {
		entities = "1 entity"
	}
	fmt.Fprintf(&b, "%s  %s, %s in use, %s out, %d closed\n", o.time.In(zone).Format("15:04:05"), entities,
		count(o.inUse, "token"), count(o.tickets, "ticket"), o.closed)
	if !o.complete {
		b.WriteString("There are more, for which there was no time: see --timeout.\n")
	}
	rows := [][]string{{""}}
	rows = append(rows, o.busiest.rows("BUSIEST", "nothing has run")...)
	rows = append(rows, []string{""})
	rows = append(rows, o.longest.rows("LONGEST WAITING", "nothing waits")...)
	writeTable(&b, 24, rows) // the first column as wide as most names, so that nothing dances
	return b.String()
}

func (k *ranking) rows(name, none string) [][]string {
	if len(k.reports) == 0 {
		return [][]string{{name}, {none}}
	}
	rows := [][]string{{name, "in use", "last run", "takes", "tickets", "waiting", "closed", "capacity", "next", " because of"}}
	for _, r := range k.reports {
		rows = append(rows, r.row())
	}
	return rows
}

// row is a line of a table.
func (r *report) row() []string {
	f, now := &r.facts, r.snapshot.time
	until := func(t time.Time) string {
		switch left := t.Sub(now); {
		case t.IsZero():
			return "-"
		case left < 0:
			return "overdue"
		default:
			return short(left)
		}
	}
	ran, takes := "-", "-"
	if !f.lastRun.IsZero() {
		ran = short(max(0, now.Sub(f.lastRun))) + " ago"
	}
	if f.operation > 0 {
		takes = short(f.operation)
	}
	row := []string{
		cut(printable(r.entity), 40), fmt.Sprint(f.inUse()), ran, takes, fmt.Sprint(f.tickets), until(f.waiting()), until(f.closedUntil),
	}
	if r.limits == nowhere {
		return append(row, "-", "-")
	}
	s := &r.status
	if r.limits == given {
		row[1] = fmt.Sprintf("%d of %d", s.InUse, s.Concurrency)
	}
	capacity := make([]string, len(s.Windows))
	for i, w := range s.Windows {
		capacity[i] = fmt.Sprintf("%d of %d", w.Capacity, w.Size)
	}
	row = append(row, strings.Join(capacity, ", "))
	if s.Delay == 0 {
		return append(row, "now")
	}
	because := s.Bound.String()
	if s.Then != drip.BoundNone {
		because += ", then " + s.Then.String()
	}
	return append(row, short(s.Delay), " "+because)
}

type overallJSON struct {
	Time     moment       `json:"time"`
	Complete bool         `json:"complete"`
	Entities int          `json:"entities"`
	InUse    int          `json:"in_use"`
	Tickets  int          `json:"tickets"`
	Closed   int          `json:"closed"`
	Busiest  []entityJSON `json:"busiest"`
	Longest  []entityJSON `json:"longest_waiting"`
}

func (o *overall) json() overallJSON {
	return overallJSON{moment(o.time), o.complete, o.entities, o.inUse, o.tickets, o.closed, o.busiest.json(), o.longest.json()}
}

func (k *ranking) json() []entityJSON {
	all := make([]entityJSON, len(k.reports))
	for i, r := range k.reports {
		all[i] = r.json()
	}
	return all
}
