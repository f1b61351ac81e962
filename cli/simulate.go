package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/simulate"
)

// simulation is "drip simulate".
type simulation struct {
	json, check bool
	seed        uint64
	svg         string
}

func (c *simulation) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	set.BoolVar(&c.check, "check", false, "exit with status 4 if drip made a call over a limit or left a message")
	set.Uint64Var(&c.seed, "seed", 1, "the `number` that seeds the random numbers")
	set.StringVar(&c.svg, "svg", "", "a `file` to draw the runs in")
}

func (c *simulation) run(ctx context.Context, t *terminal, args []string) error {
	text, err := readFile(t, args[0])
	if err != nil {
		return err
	}
	s, err := simulate.Parse(args[0], text)
	if err != nil {
		return usageError{err}
	}
	r, err := s.Run(ctx, c.seed)
	if err != nil {
		return usageError{err} // only the file can make it fail
	}
	if c.svg != "" {
		if err := draw(c.svg, r); err != nil {
			return err
		}
	}
	if c.json {
		err = writeJSON(t.out, r)
	} else {
		err = r.WriteTable(t.out)
	}
	if err == nil && c.check {
		err = check(r)
	}
	return err
}

// draw writes the picture. It leaves an existing file alone until the whole picture is drawn.
func draw(name string, r simulate.Report) error {
	var picture bytes.Buffer
	if err := r.WriteSVG(&picture); err != nil {
		return err
	}
	if err := os.WriteFile(name, picture.Bytes(), 0o666); err != nil {
		return usagef("--svg: %w", err)
	}
	return nil
}

// check judges the results of drip.
func check(r simulate.Report) error {
	drip := r.Results[0]
	if drip.OverLimit > 0 {
		return fmt.Errorf("%w: %s over the provider's limit", errNo, entities.Count(drip.OverLimit, "call"))
	}
	if left := drip.Messages - drip.Done; left > 0 {
		return fmt.Errorf("%w: %s not handled", errNo, entities.Count(left, "message"))
	}
	return nil
}
