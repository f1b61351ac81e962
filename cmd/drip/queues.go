package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/wheel"
)

// queues is "drip queues".
type queues struct {
	timeout
	json bool
}

func (c *queues) flags(set *flag.FlagSet) {
	set.BoolVar(&c.json, "json", false, "print JSON")
	c.timeout.flags(set)
}

// queueState is a queue that exists.
type queueState struct {
	Name      string `json:"name"`
	Messages  int    `json:"messages"`
	Consumers int    `json:"consumers"`
}

// waitingState is a delay queue with messages in it.
type waitingState struct {
	Name     string `json:"name"`
	Messages int    `json:"messages"`
	Expires  moment `json:"expires"`
}

// queuesState is what is found.
type queuesState struct {
	Time    moment         `json:"time"` // by this machine's clock
	Queue   queueState     `json:"queue"`
	Due     *queueState    `json:"due"`      // null if there is none
	Dead    *queueState    `json:"dead"`     // null if there is none
	Waiting int            `json:"waiting"`  // messages
	NextDue moment         `json:"next_due"` // null if none waits
	Delay   []waitingState `json:"delay_queues"`

	now      time.Time
	existing int // delay queues, with those that are empty
}

func (c *queues) run(ctx context.Context, t *terminal, args []string) error {
	url, err := address(args[0])
	if err != nil {
		return err
	}
	ctx, cancel := c.within(ctx)
	defer cancel()
	conn, where, err := dial(ctx, url)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.CloseDeadline(time.Now()) })()
	defer conn.CloseDeadline(time.Now().Add(time.Second))
	s, err := look(conn, args[1])
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("RabbitMQ at %s: %w", where, err)
	}
	if c.json {
		return writeJSON(t.out, s)
	}
	return s.write(t.out, t.zone)
}

// look asks for all queues that belong to a work queue. Each name that does not exist is a line in the broker's log, so it
// asks for all delay queues only where one of those exists that are declared first.
func look(conn *amqp.Connection, queue string) (*queuesState, error) {
	work, err := lookAt(conn, []string{queue, queue + ".drip.due", queue + ".drip.dead"})
	if err != nil {
		return nil, err
	}
	if work[0] == nil {
		return nil, fmt.Errorf("there is no queue %q", queue)
	}
	now := time.Now()
	s := &queuesState{Time: moment(now), Queue: *work[0], Due: work[1], Dead: work[2], Delay: []waitingState{}, now: now}
	for _, d := range []delayQueues{{queue + ".drip.due.", wheel.Early}, {queue + ".drip.", 0}} {
		some, err := lookAt(conn, d.firsts())
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(some, func(q *queueState) bool { return q != nil }) {
			continue
		}
		delays := d.all()
		names := make([]string, len(delays))
		for i, q := range delays {
			names[i] = q.name
		}
		found, err := lookAt(conn, names)
		if err != nil {
			return nil, err
		}
		for i, q := range found {
			if q == nil {
				continue
			}
			s.existing++
			if s.Waiting += q.Messages; q.Messages > 0 {
				s.Delay = append(s.Delay, waitingState{q.Name, q.Messages, moment(delays[i].expires(now))})
			}
		}
	}
	slices.SortStableFunc(s.Delay, func(a, b waitingState) int { return time.Time(a.Expires).Compare(time.Time(b.Expires)) })
	if len(s.Delay) > 0 {
		s.NextDue = s.Delay[0].Expires
	}
	return s, nil
}

// channels is how many ask at the same time: each answer that a queue does not exist costs its channel.
const channels = 8

// lookAt returns what the broker knows of the queues, nil for those it does not.
func lookAt(conn *amqp.Connection, names []string) ([]*queueState, error) {
	found := make([]*queueState, len(names))
	errs := make([]error, channels)
	var wg sync.WaitGroup
	for c := range channels {
		wg.Go(func() {
			var ch *amqp.Channel
			for i := c; i < len(names); i += channels {
				if ch == nil {
					if ch, errs[c] = conn.Channel(); errs[c] != nil {
						return
					}
				}
				q, err := ch.QueueDeclarePassive(names[i], true, false, false, false, nil)
				var refused *amqp.Error
				switch {
				case err == nil:
					found[i] = &queueState{q.Name, q.Messages, q.Consumers}
				case errors.As(err, &refused) && refused.Code == amqp.NotFound:
					ch = nil
				default:
					errs[c] = fmt.Errorf("look at queue %q: %w", names[i], err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// dial connects, and says to where. No error repeats the URL.
func dial(ctx context.Context, rawURL string) (conn *amqp.Connection, where string, err error) {
	u, err := url.Parse(rawURL)
	var uri amqp.URI
	if err == nil {
		uri, err = amqp.ParseURI(rawURL)
	}
	if err != nil || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") { // a part of a password may pass for the host
		return nil, "", usagef("AMQP-URL is not one; it looks like amqp://user:password@host:5672/vhost, with the password escaped")
	}
	where = net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port))
	config := amqp.Config{Properties: amqp.NewConnectionProperties()}
	config.Properties.SetClientConnectionName("drip queues")
	watching := func() bool { return true }
	config.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err == nil { // the handshake knows no context; the client clears the deadline
			watching = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
		}
		return conn, err
	}
	conn, err = amqp.DialConfig(rawURL, config)
	if !watching() && err == nil {
		conn.CloseDeadline(time.Now())
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, "", fmt.Errorf("connect to RabbitMQ at %s: %w", where, err)
	}
	return conn, where, nil
}

func (s *queuesState) write(out io.Writer, zone *time.Location) error {
	var b strings.Builder
	rows := [][]string{{"QUEUE", "messages", "consumers"}}
	for _, q := range []struct {
		*queueState
		about string
	}{{&s.Queue, ""}, {s.Due, "back, and due or nearly so"}, {s.Dead, "given up; the reason is in their headers"}} {
		if q.queueState != nil {
			rows = append(rows, []string{printable(q.Name), fmt.Sprint(q.Messages), fmt.Sprint(q.Consumers), " " + q.about})
		}
	}
	writeTable(&b, 0, rows)
	verb := "wait"
	if s.Waiting == 1 {
		verb = "waits"
	}
	fmt.Fprintf(&b, "\n%s %s in %d of %s", count(s.Waiting, "message"), verb, len(s.Delay), count(s.existing, "delay queue"))
	if next := time.Time(s.NextDue); !next.IsZero() {
		fmt.Fprintf(&b, ", the first until %s, in %s", clock(next, s.now, zone), short(next.Sub(s.now)))
	}
	b.WriteString("\n")
	if len(s.Delay) > 0 {
		rows := [][]string{{"DELAY QUEUE", "messages", "leave at", "in"}}
		for _, q := range s.Delay {
			expires := time.Time(q.Expires)
			rows = append(rows, []string{
				printable(q.Name), fmt.Sprint(q.Messages), clock(expires, s.now, zone), short(expires.Sub(s.now)),
			})
		}
		b.WriteString("\n")
		writeTable(&b, 0, rows)
	}
	_, err := io.WriteString(out, b.String())
	return err
}
