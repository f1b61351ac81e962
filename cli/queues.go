package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/drip-go/drip/internal/columns"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/queues"
	"github.com/drip-go/drip/queues/rabbitmq"
)

// lookQueues is "drip queues".
type lookQueues struct {
	timeout
	json bool
}

func (c *lookQueues) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	c.timeout.flags(set)
}

// openBroker returns the broker of an AMQP-URL argument. The caller must call close.
func openBroker(arg string, names ...string) (*rabbitmq.Broker, error) {
	url, err := address(arg)
	if err != nil {
		return nil, err
	}
	b, err := rabbitmq.New(url, names...)
	if errors.Is(err, rabbitmq.ErrURL) {
		return nil, usagef("AMQP-URL is %w", rabbitmq.ErrURL)
	}
	return b, err
}

func (c *lookQueues) run(ctx context.Context, t *terminal, args []string) error {
	b, err := openBroker(args[0], args[1])
	if err != nil {
		return err
	}
	defer b.Close()
	ctx, cancel := c.within(ctx)
	defer cancel()
	s, err := b.Look(ctx, args[1])
	if err != nil {
		return err
	}
	if c.json {
		return writeJSON(t.out, queuesJSONOf(&s))
	}
	return writeQueues(t.out, &s, t.zone)
}

// queuesJSON is the result in JSON; docs/cli.md describes the fields.
type queuesJSON struct {
	Time    moment      `json:"time"`
	Queue   queueJSON   `json:"queue"`
	Due     *queueJSON  `json:"due"`
	Dead    *queueJSON  `json:"dead"`
	Waiting int         `json:"waiting"`
	NextDue moment      `json:"next_due"`
	Delay   []delayJSON `json:"delay_queues"`
}

type queueJSON struct {
	Name      string `json:"name"`
	Messages  int    `json:"messages"`
	Consumers int    `json:"consumers"`
}

type delayJSON struct {
	Name     string `json:"name"`
	Messages int    `json:"messages"`
	Expires  moment `json:"expires"`
}

func queuesJSONOf(s *queues.State) queuesJSON {
	j := queuesJSON{
		Time: moment(s.Time), Queue: queueJSON(s.Queue), Due: (*queueJSON)(s.Due), Dead: (*queueJSON)(s.Dead),
		Waiting: s.Waiting, Delay: []delayJSON{},
	}
	for _, d := range s.Delays {
		j.Delay = append(j.Delay, delayJSON{d.Name, d.Messages, moment(d.Expires)})
	}
	if len(s.Delays) > 0 {
		j.NextDue = moment(s.Delays[0].Expires)
	}
	return j
}

func writeQueues(out io.Writer, s *queues.State, zone *time.Location) error {
	var b strings.Builder
	rows := [][]string{{"QUEUE", "messages", "consumers"}}
	for _, q := range []struct {
		*queues.Queue
		about string
	}{{&s.Queue, ""}, {s.Due, "back, and due or nearly so"}, {s.Dead, "given up; drip dead list says why"}} {
		if q.Queue != nil {
			rows = append(rows, []string{entities.Printable(q.Name), fmt.Sprint(q.Messages), fmt.Sprint(q.Consumers), " " + q.about})
		}
	}
	columns.Write(&b, 0, rows)
	verb := "wait"
	if s.Waiting == 1 {
		verb = "waits"
	}
	fmt.Fprintf(&b, "\n%s %s in %d of %s", entities.Count(s.Waiting, "message"), verb, len(s.Delays), entities.Count(s.Existing, "delay queue"))
	if len(s.Delays) > 0 {
		next := s.Delays[0].Expires
		fmt.Fprintf(&b, ", the first until %s, in %s", entities.Clock(next, s.Time, zone), entities.Short(next.Sub(s.Time)))
	}
	b.WriteString("\n")
	if len(s.Delays) > 0 {
		rows := [][]string{{"DELAY QUEUE", "messages", "leave at", "in"}}
		for _, q := range s.Delays {
			rows = append(rows, []string{
				entities.Printable(q.Name), fmt.Sprint(q.Messages), entities.Clock(q.Expires, s.Time, zone), entities.Short(q.Expires.Sub(s.Time)),
			})
		}
		b.WriteString("\n")
		columns.Write(&b, 0, rows)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
