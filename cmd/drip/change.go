package main

import (
	"bufio"
	"cmp"
	"context"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
)

// change is what the commands that change an entity have in common.
type change struct {
	timeout
	json bool
}

func (c *change) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	c.timeout.flags(set)
}

// subject is an entity that is to be changed.
type subject struct {
	entity  string
	before  snapshot
	storage storage.Storage
}

// bucket is one that changes the entity and keeps all that is known of it. That takes the windows by which its owners
// decide: with fewer of them it would forget what the others have counted, and with others it would forget the entity
// before it is full again. They are stored beside the counts, where there are some.
func (e *subject) bucket(otherwise *limits) (*drip.Bucket, error) {
	l := e.before.limits()
	if l == nil {
		l = otherwise
	}
	return l.bucket(e.storage)
}

// idle are limits for entities of which no counts are kept but one, or none at all: one that is new is full, as it is for
// all who have a Start in the past, and one that is known is forgotten after two years, or as its owners say with
// their next decision.
var idle = &limits{Size: plenty, Rate: plenty, Interval: duration(366 * 24 * time.Hour)}

// do reads the entity and has f change it.
func (c *change) do(ctx context.Context, args []string, f func(context.Context, *subject) error) error {
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	e := &subject{entity: args[1], storage: s}
	reading, cancel := c.within(ctx)
	defer cancel()
	if e.before, err = take(reading, s, e.entity); err != nil {
		return fmt.Errorf("%q: %w", e.entity, err)
	}
	return f(ctx, e)
}

type changeJSON struct {
	Entity      string `json:"entity"`
	Known       bool   `json:"known"`   // before
	Changed     bool   `json:"changed"` // whether it was
	ClosedUntil moment `json:"closed_until"`
}

// tell says what was done.
func (c *change) tell(t *terminal, j changeJSON, format string, args ...any) error {
	if c.json {
		return writeJSON(t.out, j)
	}
	_, err := fmt.Fprintf(t.out, "%s: %s\n", printable(j.Entity), fmt.Sprintf(format, args...))
	return err
}

// pause is "drip pause".
type pause struct {
	change
	limits limitsFlag
}

func (c *pause) flags(set *flag.FlagSet) {
	c.change.flags(set)
	c.limits.flags(set)
}

func (c *pause) run(ctx context.Context, t *terminal, args []string) error {
	l, err := c.limits.read(t)
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(args[2])
	if err != nil || d <= 0 {
		return usagef("DURATION is not one above 0, such as 30s, 10m or 1h30m")
	}
	return c.do(ctx, args, func(ctx context.Context, e *subject) error {
		until := e.before.time.Add(d)
		if closed := e.before.facts().closedUntil; closed.After(until) {
			// Perhaps the provider has asked for it, and its word must not be cut short.
			return c.tell(t, changeJSON{e.entity, e.before.known, false, moment(closed)},
				"closed until %s already, which is later; nothing was changed", clock(closed, e.before.time, t.zone))
		}
		switch {
		case l == nil && !e.before.known:
			l = idle
		case l == nil && e.before.limits() == nil:
			return usagef("the limits of %s are not stored, because only GetDelay was asked about it, and without them what it has used "+
				"would be counted wrongly; --limits tells them", printable(e.entity))
		}
		b, err := e.bucket(l)
		if err != nil {
			return err
		}
		ctx, cancel := c.within(ctx)
		defer cancel()
		if err := b.Pause(ctx, e.entity, d); err != nil {
			return err
		}
		note := ""
		if !e.before.known {
			note = "\nNothing was stored of this entity: it was idle, or has another name."
		}
		return c.tell(t, changeJSON{e.entity, e.before.known, true, moment(until)},
			"closed until %s%s", clock(until, e.before.time, t.zone), note)
	})
}

// resume is "drip resume".
type resume struct{ change }

func (c *resume) run(ctx context.Context, t *terminal, args []string) error {
	return c.do(ctx, args, func(ctx context.Context, e *subject) error {
		closed := e.before.facts().closedUntil
		j := changeJSON{e.entity, e.before.known, !closed.IsZero(), moment{}}
		if closed.IsZero() {
			return c.tell(t, j, "it was not closed")
		}
		b, err := e.bucket(idle)
		if err != nil {
			return err
		}
		ctx, cancel := c.within(ctx)
		defer cancel()
		if err := b.Resume(ctx, e.entity); err != nil {
			return err
		}
		return c.tell(t, j, "open again; it had been closed until %s", clock(closed, e.before.time, t.zone))
	})
}

// reset is "drip reset".
type reset struct {
	change
	yes bool
}

func (c *reset) flags(set *flag.FlagSet) {
	set.BoolVar(&c.yes, "yes", false, "do not ask")
	c.change.flags(set)
}

func (c *reset) run(ctx context.Context, t *terminal, args []string) error {
	return c.do(ctx, args, func(ctx context.Context, e *subject) error {
		f := e.before.facts()
		j := changeJSON{e.entity, e.before.known, e.before.known, moment{}}
		if !e.before.known {
			return c.tell(t, j, "nothing is stored of it: it is idle, or has another name")
		}
		// All that is out counts as gone.
		lost := count(f.inUse(), "token") + " and " + count(f.tickets, "ticket")
		if !c.yes {
			if !t.asked {
				return usagef("it takes back %s of %s; nobody is here to confirm that, so it needs --yes", lost, printable(e.entity))
			}
			question := fmt.Sprintf("Take back %s of %s? If an operation is still under way there may be too many at once. [y/N] ",
				lost, printable(e.entity))
			if yes, err := t.ask(ctx, question); err != nil || !yes {
				return cmp.Or(err, fmt.Errorf("%w: nothing was changed", errNo))
			}
		}
		b, err := e.bucket(idle)
		if err != nil {
			return err
		}
		ctx, cancel := c.within(ctx)
		defer cancel()
		if err := b.Reset(ctx, e.entity); err != nil {
			return err
		}
		return c.tell(t, j, "%s taken back; what has run stays counted", lost)
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
