package cli

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"github.com/drip-go/drip/internal/columns"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/queues"
)

// dead is "drip dead".
type dead struct {
	change
	id, reason string
	rows       int
}

func (c *dead) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	set.BoolVar(&c.yes, "yes", false, "requeue: do not ask")
	set.BoolVar(&c.all, "all", false, "requeue: put all dead letters back")
	set.StringVar(&c.id, "id", "", "the dead letter with this `ID` alone, as list prints it")
	set.StringVar(&c.reason, "reason", "", "those that were given up for this `reason` alone")
	set.IntVar(&c.rows, "rows", 0, "the `number` of dead letters that list looks at, by default 20")
	c.timeout.flags(set)
}

// leftOut is no argument: --all means dead letters here.
func (c *dead) leftOut() string { return "" }

func (c *dead) picks(l *queues.Letter) bool {
	return (c.id == "" || c.id == l.ID) && (c.reason == "" || c.reason == l.Reason)
}

func (c *dead) run(ctx context.Context, t *terminal, args []string) error {
	b, err := openBroker(args[1], args[2])
	if err != nil {
		return err
	}
	defer b.Close()
	switch {
	case c.rows < 0:
		return usagef("--rows must be above 0")
	case args[0] == "list" && (c.all || c.yes):
		return usagef("list takes no --all and no --yes")
	case args[0] == "requeue" && c.rows > 0:
		return usagef("requeue takes no --rows")
	case args[0] == "list":
		return c.list(ctx, t, b, args[2])
	case args[0] == "requeue":
		return c.requeue(ctx, t, b, args[2])
	}
	return usagef("ACTION is %q; it is list or requeue", args[0])
}

type lettersJSON struct {
	More    bool         `json:"more"` // there are others
	Letters []letterJSON `json:"letters"`
}

type letterJSON struct {
	ID            string `json:"id"`
	MessageID     string `json:"message_id"`
	Reason        string `json:"reason"`
	Error         string `json:"error"`
	Attempts      int    `json:"attempts"`
	Postponements int    `json:"postponements"`
	Age           int64  `json:"age_ms"`
	Size          int    `json:"size"`
}

func (c *dead) list(ctx context.Context, t *terminal, b queues.Broker, queue string) error {
	ctx, cancel := c.within(ctx)
	defer cancel()
	most := cmp.Or(c.rows, 20)
	letters, more, err := b.Dead(ctx, queue, most)
	if err != nil {
		return err
	}
	j := lettersJSON{more, []letterJSON{}}
	rows := [][]string{{"ID", " reason", "attempts", "postponed", "age", "bytes", " error"}}
	for _, l := range letters {
		if !c.picks(&l) {
			continue
		}
		j.Letters = append(j.Letters, letterJSON{l.ID, l.MessageID, l.Reason, l.Error, l.Attempts, l.Postponements, l.Age.Milliseconds(), l.Size})
		rows = append(rows, []string{
			l.ID, " " + entities.Printable(l.Reason), fmt.Sprint(l.Attempts), fmt.Sprint(l.Postponements), entities.Short(l.Age), fmt.Sprint(l.Size),
			" " + entities.Printable(l.Error),
		})
	}
	if c.json {
		return writeJSON(t.out, j)
	}
	if len(rows) == 1 {
		none := "There are no dead letters."
		switch {
		case more:
			none = fmt.Sprintf("None of the first %d dead letters has that ID or reason; --rows looks at more.", most)
		case len(letters) > 0:
			none = "No dead letter has that ID or reason."
		}
		_, err = fmt.Fprintln(t.out, none)
		return err
	}
	var text strings.Builder
	if t.interactive {
		cutLast(rows, 80)
	}
	columns.Write(&text, 0, rows)
	if more {
		fmt.Fprintf(&text, "These are of the first %d; --rows shows more.\n", most)
	}
	_, err = fmt.Fprint(t.out, text.String())
	return err
}

type requeueJSON struct {
	Requeued int `json:"requeued"`
}

func (c *dead) requeue(ctx context.Context, t *terminal, b queues.Broker, queue string) error {
	switch some := c.id != "" || c.reason != ""; {
	case c.all && some:
		return usagef("--all goes without --id and --reason")
	case !c.all && !some:
		return usagef("requeue needs --id ID, --reason REASON or --all")
	}
	if c.id == "" {
		which := "all dead letters of " + entities.Printable(queue)
		if c.reason != "" {
			which += " with the reason " + entities.Printable(c.reason)
		}
		if err := c.confirm(ctx, t, "it puts back "+which, "Put back "+which+"?"); err != nil {
			return err
		}
	}
	// Many letters take long. The timeout is for one answer, so it begins anew with each letter.
	timeout := c.span()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()
	one := false
	n, err := b.Requeue(ctx, queue, func(l *queues.Letter) bool {
		late.Reset(timeout)
		if one || !c.picks(l) {
			return false
		}
		one = c.id != "" // of several that are alike
		return true
	})
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, context.DeadlineExceeded) {
		err = fmt.Errorf("put back dead letters of %s: %w", entities.Printable(queue), cause)
	}
	if err == nil && n == 0 && c.id != "" {
		err = fmt.Errorf("%s has no dead letter with the ID %s; drip dead list shows the IDs", entities.Printable(queue), entities.Printable(c.id))
	}
	if c.json {
		return cmp.Or(writeJSON(t.out, requeueJSON{n}), err)
	}
	if n > 0 || err == nil {
		_, unwritten := fmt.Fprintf(t.out, "%s put back\n", entities.Count(n, "message"))
		err = cmp.Or(err, unwritten)
	}
	return err
}
