package cli

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
	"github.com/drip-go/drip/internal/entities"
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
	j, err := entities.NewJudge(l, s)
	if err != nil {
		return err
	}
	begin := time.Now()
	o, err := c.look(ctx, lister, j)
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
	// The last output stays on the normal screen.
	defer func() { io.WriteString(t.out, leave+text) }()
	for {
		// Do not keep a storage with very many entities busy.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(time.Duration(c.every), 4*time.Since(begin))):
		}
		begin = time.Now()
		o, err := c.look(ctx, lister, j)
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

// Sequences that make a terminal show another screen, without a cursor and with long lines cut, and that undo it.
const (
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
)

// show writes a text over the content of the screen. It begins no line with a line feed, so that a screen that is too
// low does not scroll.
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
	entities, inUse, waiting, closed int
	busiest, longest                 ranking
}

// look reads all entities, or as many as there is time for. It keeps the entities to show.
func (c *top) look(ctx context.Context, lister storage.Lister, j *entities.Judge) (*overall, error) {
	within, cancel := c.within(ctx)
	defer cancel()
	o := &overall{
		complete: true,
		busiest:  ranking{most: c.rows, order: byUse},
		longest:  ranking{most: c.rows, order: byWaiting},
	}
	err := lister.List(within, func(e storage.Entry) error {
		r, err := j.Report(ctx, e)
		if err == nil {
			o.add(report{r})
		}
		return err
	})
	if err != nil && o.entities > 0 && ctx.Err() == nil && within.Err() != nil {
		o.complete, err = false, nil
	}
	if o.time.IsZero() {
		o.time = time.Now()
	}
	return o, err
}

func (o *overall) add(r report) {
	if r.Time.After(o.time) {
		o.time = r.Time
	}
	o.entities++
	o.inUse += r.InUse
	if !r.ClosedUntil.IsZero() {
		o.closed++
	}
	o.busiest.add(r)
	if !r.Waiting.IsZero() {
		o.waiting++
		o.longest.add(r)
	}
}

// ranking is the first reports by an order.
type ranking struct {
	most    int
	order   func(a, b report) int
	reports []report
}

func (k *ranking) add(r report) {
	k.reports = slices.DeleteFunc(k.reports, func(o report) bool { return o.Entity == r.Entity }) // a storage may tell twice
	if i, _ := slices.BinarySearchFunc(k.reports, r, k.order); i < k.most {
		k.reports = slices.Insert(k.reports, i, r)
		k.reports = k.reports[:min(k.most, len(k.reports))]
	}
}

// byUse sorts by operations in flight, the most first, then by the last decision, the latest first.
func byUse(a, b report) int {
	return cmp.Or(cmp.Compare(b.InUse, a.InUse), b.Decided.Compare(a.Decided), cmp.Compare(a.Entity, b.Entity))
}

// byWaiting puts those first whose last one waits longest, then those with most to wait.
func byWaiting(a, b report) int {
	return cmp.Or(b.Waiting.Compare(a.Waiting), cmp.Compare(b.Booked, a.Booked), cmp.Compare(a.Entity, b.Entity))
}

// nameWidth is how many characters of an entity's name top shows. With it lines fit 80 columns, as long as a limit has
// one window.
const nameWidth = 18

// Headings of the tables.
const (
	busiest = "BUSIEST"
	longest = "LONGEST WAITING"
)

func (o *overall) text(zone *time.Location) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s, %s in use, %d waiting, %d closed\n", o.time.In(zone).Format("15:04:05"), entityCount(o.entities),
		entities.Count(o.inUse, "token"), o.waiting, o.closed)
	if !o.complete {
		b.WriteString("There are more, for which there was no time: see --timeout.\n")
	}
	rows := [][]string{{""}}
	rows = append(rows, o.busiest.rows(busiest, "nothing is stored")...)
	rows = append(rows, []string{""})
	rows = append(rows, o.longest.rows(longest, "nothing waits")...)
	rows = withoutEmpty(map[string]bool{busiest: true, longest: true}, rows)
	writeTable(&b, nameWidth, rows) // names in a column of one width, so that nothing dances
	return b.String()
}

func (k *ranking) rows(name, none string) [][]string {
	if len(k.reports) == 0 {
		return [][]string{{name}, {none}}
	}
	rows := [][]string{{name, "in use", "decided", "booked", "waiting", "closed", "capacity", "next", " why not"}}
	for _, r := range k.reports {
		rows = append(rows, r.row())
	}
	return rows
}

// row is a line of a table.
func (r report) row() []string {
	until := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return entities.Short(t.Sub(r.Time))
	}
	inUse, booked := fmt.Sprint(r.InUse), "-"
	if r.Limits {
		inUse, booked = fmt.Sprintf("%d/%d", r.InUse, r.Concurrency), fmt.Sprint(r.Booked)
	}
	row := []string{
		cut(entities.Printable(r.Entity), nameWidth), inUse, entities.Short(max(0, r.Time.Sub(r.Decided))) + " ago", booked,
		until(r.Waiting), until(r.ClosedUntil),
	}
	if !r.Limits {
		return append(row, "-", "-", " -")
	}
	capacity := make([]string, len(r.Windows))
	for i, w := range r.Windows {
		capacity[i] = fmt.Sprintf("%d/%d", w.Capacity, w.Size)
	}
	row = append(row, strings.Join(capacity, " "))
	if r.Delay == 0 {
		return append(row, "now", " -")
	}
	because := r.Bound.String()
	if !r.ClosedUntil.IsZero() {
		because = "closed"
		if r.Then != drip.BoundNone {
			because += ", then " + r.Then.String()
		}
	}
	return append(row, entities.Short(r.Delay), " "+because)
}

type overallJSON struct {
	Time     moment       `json:"time"`
	Complete bool         `json:"complete"`
	Entities int          `json:"entities"`
	InUse    int          `json:"in_use"`
	Waiting  int          `json:"waiting"`
	Closed   int          `json:"closed"`
	Busiest  []entityJSON `json:"busiest"`
	Longest  []entityJSON `json:"longest_waiting"`
}

func (o *overall) json() overallJSON {
	return overallJSON{moment(o.time), o.complete, o.entities, o.inUse, o.waiting, o.closed, o.busiest.json(), o.longest.json()}
}

func (k *ranking) json() []entityJSON {
	all := make([]entityJSON, len(k.reports))
	for i, r := range k.reports {
		all[i] = r.json()
	}
	return all
}
