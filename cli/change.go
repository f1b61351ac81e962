package cli

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/drip-go/drip/internal/entities"
)

// change is what the commands that change entities have in common.
type change struct {
	timeout
	json, yes   bool
	prefix, all bool
}

func (c *change) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	set.BoolVar(&c.prefix, "prefix", false, "all stored entities whose names begin with ENTITY")
	set.BoolVar(&c.all, "all", false, "all stored entities; ENTITY is left out")
	set.BoolVar(&c.yes, "yes", false, "do not ask")
	c.timeout.flags(set)
}

// leftOut is the argument that the flags make needless.
func (c *change) leftOut() string {
	if c.all {
		return "ENTITY"
	}
	return ""
}

// act is one thing that is done to an entity.
type act func(context.Context, *entities.Subject) (changed bool, err error)

// one reads an entity and has f change it.
func (c *change) one(ctx context.Context, args []string, f func(context.Context, *entities.Subject) error) error {
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	reading, cancel := c.within(ctx)
	defer cancel()
	e, err := entities.Open(reading, s, args[1])
	if err != nil {
		return err
	}
	return f(ctx, e)
}

// do calls f for the entities that the arguments and flags name; doing and done are as of many. outcome tells what became
// of a single one: its ends of closing and pin, and a text.
func (c *change) do(ctx context.Context, t *terminal, args []string, doing, done string, f act,
	outcome func(e *entities.Subject, changed bool) (closed, pinned time.Time, text string),
) error {
	if c.prefix || c.all {
		return c.many(ctx, t, args, doing, done, f)
	}
	return c.one(ctx, args, func(ctx context.Context, e *entities.Subject) error {
		changed, err := c.apply(ctx, e, f)
		if err != nil {
			return err
		}
		closed, pinned, text := outcome(e, changed)
		return c.tell(t, changeJSON{e.Entity, e.Known, changed, moment(closed), moment(pinned)}, text)
	})
}

// apply does the change, with a time limit of its own: the user may have taken a while to answer.
func (c *change) apply(ctx context.Context, e *entities.Subject, f act) (bool, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	return f(ctx, e)
}

type manyJSON struct {
	Entities int `json:"entities"` // to change
	Changed  int `json:"changed"`  // of them
	Failed   int `json:"failed"`
}

// many calls f for all entities to change. doing and done are the names of the change: "pause", "paused for 10m".
func (c *change) many(ctx context.Context, t *terminal, args []string, doing, done string, f act) error {
	prefix := ""
	switch {
	case c.all && c.prefix:
		return usagef("--all and --prefix exclude each other")
	case c.prefix:
		prefix = args[1]
	}
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	listing, cancel := c.within(ctx)
	defer cancel()
	names, err := entities.Names(listing, s, prefix)
	if err != nil {
		return err
	}
	if err := c.confirm(ctx, t, fmt.Sprintf("it would %s %s", doing, entities.Count(len(names), "entity")), fmt.Sprintf("Really %s %s?", doing, entities.Count(len(names), "entity"))); err != nil {
		return err
	}
	changed, failed, err := entities.ChangeAll(ctx, s, names, c.span(), f)
	if err != nil {
		err = fmt.Errorf("%d of %s failed, the first: %w", failed, entities.Count(len(names), "entity"), err)
	}
	if c.json {
		return cmp.Or(writeJSON(t.out, manyJSON{len(names), changed, failed}), err)
	}
	text := entities.Count(changed, "entity") + " " + done
	if same := len(names) - changed - failed; same > 0 {
		text += fmt.Sprintf(", %d needed no change", same)
	}
	_, unwritten := fmt.Fprintln(t.out, text)
	return cmp.Or(err, unwritten)
}

// confirm asks, unless --yes is given. It fails if the answer is no, or if nobody is there to answer.
func (c *change) confirm(ctx context.Context, t *terminal, what, question string) error {
	if c.yes {
		return nil
	}
	if !t.asked {
		return usagef("%s; nobody is here to confirm that, so it needs --yes", what)
	}
	if yes, err := t.ask(ctx, question+" [y/N] "); err != nil || !yes {
		return cmp.Or(err, fmt.Errorf("%w: nothing was changed", errNo))
	}
	return nil
}

type changeJSON struct {
	Entity      string `json:"entity"`
	Known       bool   `json:"known"`   // before
	Changed     bool   `json:"changed"` // whether it was
	ClosedUntil moment `json:"closed_until"`
	PinnedUntil moment `json:"pinned_until"` // null as well if only unpin ends it
}

func (c *change) tell(t *terminal, j changeJSON, text string) error {
	if c.json {
		return writeJSON(t.out, j)
	}
	_, err := fmt.Fprintf(t.out, "%s: %s\n", entities.Printable(j.Entity), text)
	return err
}

// pause is "drip pause".
type pause struct{ change }

func (c *pause) run(ctx context.Context, t *terminal, args []string) error {
	d, err := time.ParseDuration(args[len(args)-1])
	if err != nil || d <= 0 {
		return usagef("DURATION must be a number above 0 with its unit, such as 30s, 10m or 1h30m")
	}
	d = min(d, entities.Longest)
	shut := func(ctx context.Context, e *entities.Subject) (bool, error) { return e.Pause(ctx, d) }
	return c.do(ctx, t, args, "pause", "paused for "+entities.Short(d), shut, func(e *entities.Subject, changed bool) (closed, pinned time.Time, text string) {
		if !changed {
			return e.ClosedUntil, e.PinnedUntil, fmt.Sprintf("closed until %s already, which is later; nothing was changed", entities.Clock(e.ClosedUntil, e.Time, t.zone))
		}
		until := e.Time.Add(d)
		return until, e.PinnedUntil, "closed until " + entities.Clock(until, e.Time, t.zone) + idle(e)
	})
}

// idle is a note about an entity of which nothing was stored.
func idle(e *entities.Subject) string {
	if e.Known {
		return ""
	}
	return "\nNothing was stored of this entity: it was idle, or has another name or prefix."
}

// resume is "drip resume".
type resume struct{ change }

func (c *resume) run(ctx context.Context, t *terminal, args []string) error {
	open := func(ctx context.Context, e *entities.Subject) (bool, error) { return e.Resume(ctx) }
	return c.do(ctx, t, args, "open", "opened", open, func(e *entities.Subject, changed bool) (closed, pinned time.Time, text string) {
		if !changed {
			return closed, e.PinnedUntil, "it was not closed" + idle(e)
		}
		text = "open again; it had been closed until " + entities.Clock(e.ClosedUntil, e.Time, t.zone)
		if e.Postponed() {
			text += "\nMessages that were postponed until then come back then."
		}
		return closed, e.PinnedUntil, text
	})
}

// reset is "drip reset".
type reset struct{ change }

func (c *reset) run(ctx context.Context, t *terminal, args []string) error {
	clear := func(ctx context.Context, e *entities.Subject) (bool, error) { return e.Reset(ctx) }
	if c.prefix || c.all {
		return c.many(ctx, t, args, "end the pauses and take back all tokens and tickets of", "reset; past operations stay counted", clear)
	}
	return c.one(ctx, args, func(ctx context.Context, e *entities.Subject) error {
		j := changeJSON{e.Entity, e.Known, e.Known, moment{}, moment(e.PinnedUntil)}
		if !e.Known {
			return c.tell(t, j, "nothing is stored of it: it is idle, or has another name or prefix")
		}
		lost := entities.Count(e.InUse, "token") + " and all tickets"
		of := lost + " of " + entities.Printable(e.Entity)
		if err := c.confirm(ctx, t, "it takes back "+of, "Take back "+of+"? If an operation is still under way there may be too many at once. Reset ends a pause, too."); err != nil {
			return err
		}
		if _, err := c.apply(ctx, e, clear); err != nil {
			return err
		}
		return c.tell(t, j, lost+" taken back; past operations stay counted")
	})
}

// pin is "drip pin".
type pin struct {
	change
	limit              string
	burst, concurrency int
	during             patience
	raise              bool
}

func (c *pin) flags(set *flag.FlagSet) {
	set.StringVar(&c.limit, "limit", "", "the limit, a number and an interval: `5/1s`")
	set.IntVar(&c.burst, "burst", 0, "the most `capacity` that is gathered, if that is more than the number of the limit")
	set.IntVar(&c.concurrency, "concurrency", 0, "the `number` of operations at once")
	set.TextVar(&c.during, "for", patience{}, "how long it holds, a `duration`; until drip unpin if it is left out")
	set.BoolVar(&c.raise, "raise", false, "also above the concurrency, and the window with the same interval, of the consumers")
	c.change.flags(set)
}

func (c *pin) run(ctx context.Context, t *terminal, args []string) error {
	p, err := entities.ParsePin(c.limit, c.burst, c.concurrency, time.Duration(c.during.duration), c.raise)
	if err != nil {
		return usageError{err}
	}
	hold := func(ctx context.Context, e *entities.Subject) (bool, error) { return e.Pin(ctx, p) }
	length := ""
	if p.For > 0 {
		length = " for " + entities.Short(p.For)
	}
	return c.do(ctx, t, args, "pin", "pinned to "+entities.Limit(p)+length, hold, func(e *entities.Subject, _ bool) (closed, pinned time.Time, text string) {
		ends := ", until drip unpin"
		if p.For > 0 {
			pinned = e.Time.Add(p.For)
			ends = " until " + entities.Clock(pinned, e.Time, t.zone)
		}
		return e.ClosedUntil, pinned, "pinned to " + entities.Limit(p) + ends + idle(e)
	})
}

// unpin is "drip unpin".
type unpin struct{ change }

func (c *unpin) run(ctx context.Context, t *terminal, args []string) error {
	free := func(ctx context.Context, e *entities.Subject) (bool, error) { return e.Unpin(ctx) }
	return c.do(ctx, t, args, "unpin", "unpinned", free, func(e *entities.Subject, changed bool) (closed, pinned time.Time, text string) {
		if !changed {
			return e.ClosedUntil, pinned, "nothing was pinned" + idle(e)
		}
		return e.ClosedUntil, pinned, "the limits of the consumers alone hold again; pinned was " + entities.Limit(*e.Status.Pin)
	})
}

// ask waits for an answer, until ctx ends.
func (t *terminal) ask(ctx context.Context, question string) (yes bool, err error) {
	fmt.Fprint(t.err, question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(t.in).ReadString('\n')
		answer <- line
	}()
	select {
	case line := <-answer:
		line = strings.ToLower(strings.TrimSpace(line))
		return line == "y" || line == "yes", nil
	case <-ctx.Done():
		fmt.Fprintln(t.err)
		return false, ctx.Err()
	}
}
