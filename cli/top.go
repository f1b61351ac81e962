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
	"github.com/drip-go/drip/internal/columns"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/internal/sleep"
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
	set.IntVar(&c.rows, "rows", 8, "the `number` of rows in each table")
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
		_, err = io.WriteString(t.out, o.text(t))
		return err
	}
	text := o.text(t)
	if err := show(t.out, enter, text); err != nil {
		return err
	}
	// The last output stays on the normal screen.
	defer func() { io.WriteString(t.out, leave+text) }()
	for {
		// Do not keep a storage with very many entities busy.
		if !sleep.For(ctx, max(time.Duration(c.every), 4*time.Since(begin))) {
			return nil
		}
		begin = time.Now()
		o, err := c.look(ctx, lister, j)
		shown := ""
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil: // it may come back
			shown = forTerminal(err, args)
		default:
			text = o.text(t)
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
	entities, inUse, waiting, closed int  // without shared limits
	busiest, longest, shared         ranking
}

// look reads all entities, or as many as there is time for. It keeps the entities to show.
func (c *top) look(ctx context.Context, lister storage.Lister, j *entities.Judge) (*overall, error) {
	within, cancel := c.within(ctx)
	defer cancel()
	o := &overall{
		complete: true,
		busiest:  ranking{most: c.rows, order: byUse},
		longest:  ranking{most: c.rows, order: byWaiting},
		shared:   ranking{most: c.rows, order: byUse},
	}
	err := lister.List(within, func(e storage.Entry) error {
		r, err := j.Report(within, e)
		if err == nil {
			o.add(report{r})
		}
		return err
	})
	if err != nil && o.entities+len(o.shared.reports) > 0 && ctx.Err() == nil && within.Err() != nil {
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
	if _, shared := entities.SharedLimit(r.Entity); shared {
		o.shared.add(r)
		return
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

const (
	nameWidth   = 18 // characters of a name that top shows
	screenWidth = 80
	leastName   = 15 // of a name and of a reason, if lines would be longer than screenWidth
	leastReason = 9
)

// Headings of the tables.
const (
	busiest      = "BUSIEST"
	longest      = "LONGEST WAITING"
	sharedLimits = "SHARED LIMITS"
)

func (o *overall) text(t *terminal) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s, %s in use, %d waiting, %d closed\n", o.time.In(t.zone).Format("15:04:05"), entities.Count(o.entities, "entity"),
		entities.Count(o.inUse, "token"), o.waiting, o.closed)
	if !o.complete {
		b.WriteString("There are more, for which there was no time: see --timeout.\n")
	}
	rows := [][]string{{""}}
	rows = append(rows, o.busiest.rows(busiest, "nothing is stored")...)
	rows = append(rows, []string{""})
	rows = append(rows, o.longest.rows(longest, "nothing waits")...)
	if len(o.shared.reports) > 0 {
		rows = append(rows, []string{""})
		rows = append(rows, o.shared.rows(sharedLimits, "")...)
	}
	rows, names := withoutEmpty(map[string]bool{busiest: true, longest: true, sharedLimits: true}, rows), nameWidth
	if t.interactive {
		rows, names = fit(rows)
	}
	columns.Write(&b, names, rows) // names in a column of one width, so that nothing dances
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

// fit makes lines of at most screenWidth: if it must, without the times of the last decisions, then without the ends of
// closings, which the reasons tell, then with names and reasons that are cut. It also returns the width of the names.
func fit(rows [][]string) (fitting [][]string, names int) {
	for _, heading := range []string{"decided", "closed"} {
		if wide(rows) > screenWidth {
			rows = withoutColumn(heading, rows)
		}
	}
	over, widths := wide(rows)-screenWidth, columns.Widths(rows)
	names = max(leastName, nameWidth-max(0, over))
	over -= nameWidth - names
	for _, row := range rows {
		if last := len(row) - 1; last > 0 && over > 0 {
			row[last] = " " + cut(strings.TrimPrefix(row[last], " "), max(leastReason, widths[last]-over))
		}
		if len(row) > 1 {
			row[0] = cut(row[0], names)
		}
	}
	return rows, names
}

// wide is the length of the longest line.
func wide(rows [][]string) int {
	widths := columns.Widths(rows)
	n := 2 * (len(widths) - 1)
	for i, w := range widths {
		if i == 0 {
			w = max(w, nameWidth)
		}
		n += w
	}
	return n
}

func (r report) row() []string {
	until := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return brief(t.Sub(r.Time))
	}
	tightest, booked := r.tightest(), "-"
	if tightest != "-" {
		booked = fmt.Sprint(r.Booked)
	}
	name, _ := entities.SharedLimit(r.Entity)
	row := []string{
		cut(entities.Printable(name), nameWidth), strings.Replace(r.Tokens(), " of ", "/", 1), brief(max(0, r.Time.Sub(r.Decided))) + " ago", booked,
		until(r.Waiting), until(r.ClosedUntil),
	}
	if !r.Limits {
		return append(row, "-", "-", " -")
	}
	row = append(row, tightest)
	if r.Delay == 0 {
		why := " -"
		if r.Within > 0 {
			why = " shared limits aside"
		}
		return append(row, "now", why)
	}
	why := func(b drip.Bound) string {
		if r.Limit == "" {
			return b.String()
		}
		return entities.Printable(r.Limit) + ": " + b.String()
	}
	because := why(r.Bound)
	if !r.ClosedUntil.IsZero() {
		because = "closed"
	}
	if r.Then != drip.BoundNone {
		because += ", " + why(r.Then)
	}
	return append(row, brief(r.Delay), " "+because)
}

// brief is a duration in at most seven characters.
func brief(d time.Duration) string {
	if d >= time.Hour {
		d = d.Round(time.Minute)
	}
	return entities.Short(d)
}

// tightest is the capacity of the window that has the smallest part of its size left, with its number if there are
// several; "-" if no window limits anything.
func (r report) tightest() string {
	at := -1
	for i, w := range r.Windows {
		if entities.Unlimited(w.Size) {
			continue
		}
		if at < 0 || float64(w.Capacity)/float64(w.Size) < float64(r.Windows[at].Capacity)/float64(r.Windows[at].Size) {
			at = i
		}
	}
	if !r.Limits || at < 0 {
		return "-"
	}
	text := thousands(r.Windows[at].Capacity) + "/" + thousands(r.Windows[at].Size)
	if len(r.Windows) > 1 {
		text = fmt.Sprintf("%d: %s", at+1, text)
	}
	return text
}

// thousands is a number in at most five characters and its sign. It cuts large ones.
func thousands(n int) string {
	switch {
	case n > -10_000 && n < 10_000:
		return fmt.Sprint(n)
	case n > -10_000_000 && n < 10_000_000:
		return fmt.Sprint(n/1000, "k")
	}
	return fmt.Sprint(n/1_000_000, "M")
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
	Shared   []entityJSON `json:"shared_limits"`
}

func (o *overall) json() overallJSON {
	return overallJSON{moment(o.time), o.complete, o.entities, o.inUse, o.waiting, o.closed, o.busiest.json(), o.longest.json(), o.shared.json()}
}

func (k *ranking) json() []entityJSON {
	all := make([]entityJSON, len(k.reports))
	for i, r := range k.reports {
		all[i] = r.json()
	}
	return all
}
