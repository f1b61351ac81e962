package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
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
	*report // of before
	state   decision.State
	storage storage.Atomic
}

// do changes the entity. It does not know the limits of its owners, and with others it would count its capacity wrongly. So
// it says that the limits are those of the last decision and that it is the time of that decision: then nothing has to be
// counted. The entity is kept for two years, or for as long as its owners say with their next decision.
//
// Of an entity that is not stored, only the closing matters: its owners cut the capacity to what they allow.
func (e *subject) do(ctx context.Context, kind decision.Kind, d time.Duration) error {
	l := decision.Limits{
		Windows: []decision.Window{{Size: decision.MostUnits, Rate: decision.MostUnits, Interval: 1}},
		Tokens:  1, Guess: 1, Lease: 1, MaxLease: 1,
	}
	l.Ready()
	op := decision.Op{Kind: kind, Now: decision.OwnClock, For: min(int64((d+time.Millisecond-1)/time.Millisecond), decision.MostTime/2)}
	if e.Known {
		l.Print, l.Fill = e.state.Print, 2*366*24*time.Hour.Milliseconds()
		now := e.Time.UnixMilli()
		op.Now = min(e.state.Now, now) // not above: Reset puts a time right that is ahead of the clock
		op.For += max(0, now-e.state.Now)
	}
	_, err := e.storage.Do(ctx, e.Entity, &l, op)
	return err
}

// do reads the entity and has f change it.
func (c *change) do(ctx context.Context, args []string, f func(context.Context, *subject) error) error {
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	atomic, ok := s.(storage.Atomic)
	if !ok {
		return errors.New("this storage cannot change its entities")
	}
	reading, cancel := c.within(ctx)
	defer cancel()
	e, err := read(reading, s, args[1])
	if err != nil {
		return err
	}
	j, err := newJudge(nil)
	if err != nil {
		return err
	}
	r, err := j.report(ctx, e)
	if err != nil {
		return err
	}
	return f(ctx, &subject{r, e.State, atomic})
}

// apply does the change, with a time limit of its own: the user may have taken a while to answer.
func (c *change) apply(ctx context.Context, e *subject, kind decision.Kind, d time.Duration) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	if err := e.do(ctx, kind, d); err != nil {
		return fmt.Errorf("%q: %w", e.Entity, err)
	}
	return nil
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
type pause struct{ change }

func (c *pause) run(ctx context.Context, t *terminal, args []string) error {
	d, err := time.ParseDuration(args[2])
	if err != nil || d <= 0 {
		return usagef("DURATION is not one above 0, such as 30s, 10m or 1h30m")
	}
	return c.do(ctx, args, func(ctx context.Context, e *subject) error {
		until := e.Time.Add(d)
		if closed := e.ClosedUntil; closed.After(until) {
			// Perhaps the provider has asked for it, and its word must not be cut short.
			return c.tell(t, changeJSON{e.Entity, e.Known, false, moment(closed)},
				"closed until %s already, which is later; nothing was changed", clock(closed, e.Time, t.zone))
		}
		if err := c.apply(ctx, e, decision.Pause, d); err != nil {
			return err
		}
		note := ""
		if !e.Known {
			note = "\nNothing was stored of this entity: it was idle, or has another name."
		}
		return c.tell(t, changeJSON{e.Entity, e.Known, true, moment(until)}, "closed until %s%s", clock(until, e.Time, t.zone), note)
	})
}

// resume is "drip resume".
type resume struct{ change }

func (c *resume) run(ctx context.Context, t *terminal, args []string) error {
	return c.do(ctx, args, func(ctx context.Context, e *subject) error {
		closed := e.ClosedUntil
		j := changeJSON{e.Entity, e.Known, !closed.IsZero(), moment{}}
		if closed.IsZero() {
			return c.tell(t, j, "it was not closed")
		}
		if err := c.apply(ctx, e, decision.Resume, 0); err != nil {
			return err
		}
		return c.tell(t, j, "open again; it had been closed until %s", clock(closed, e.Time, t.zone))
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
		j := changeJSON{e.Entity, e.Known, e.Known, moment{}}
		if !e.Known {
			return c.tell(t, j, "nothing is stored of it: it is idle, or has another name")
		}
		lost := count(e.InUse, "token") + " and all tickets"
		if !c.yes {
			if !t.asked {
				return usagef("it takes back %s of %s; nobody is here to confirm that, so it needs --yes", lost, printable(e.Entity))
			}
			question := fmt.Sprintf("Take back %s of %s? If an operation is still under way there may be too many at once. [y/N] ",
				lost, printable(e.Entity))
			if yes, err := t.ask(ctx, question); err != nil || !yes {
				return cmp.Or(err, fmt.Errorf("%w: nothing was changed", errNo))
			}
		}
		if err := c.apply(ctx, e, decision.Reset, 0); err != nil {
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
