package consumer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// The steps of a message's way of which the test sees the frames. At the other steps workertest.Run kills processes.
const (
	stored    = "after the copy is stored, before its confirmation"
	confirmed = "after the confirmation, before the acknowledgement"
	heldBack  = "while it is held until it is due"
)

// fateful is how many messages have to be held before it kills: others are then at any other step.
const fateful = 7

// victim consumes and prints the messages that it handles.
func victim(ctx context.Context, j job) error {
	bucket, err := drip.New(drip.Options{Size: 3, RefreshRate: 3, RefreshInterval: 300 * time.Millisecond, Concurrency: 100})
	if err != nil {
		return err
	}
	return consume(ctx, Options{
		URL: j.RabbitMQ, Queue: j.Queue, Limiter: bucket, Entity: byType,
		Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			_, err := fmt.Println(d.MessageId)
			return err
		}),
	})
}

// A process that is killed, wherever its messages are, loses none.
func TestProcessIsKilled(t *testing.T) {
	t.Parallel()
	for _, at := range []string{stored, confirmed, heldBack} {
		t.Run(at, func(t *testing.T) {
			b, queue := beside(t)
			const kills, perKill = 3, 80
			n := 0
			publish := func() {
				b.publish(queue, ofShops(8, n, n+perKill)...)
				n += perKill
			}
			var l ledger
			line := func(id string) { l.Handle(t.Context(), &amqp.Delivery{MessageId: id}) }
			for range kills {
				publish()
				p, url := through(t, b.url, 0)
				started := make(chan *os.Process, 1)
				p.through(executioner(at, sync.OnceFunc(func() { (<-started).Kill() })))
				cmd, _, wait := process(t, job{Kind: "victim", RabbitMQ: url, Queue: queue}, line)
				started <- cmd.Process
				if err := wait(); !wasKilled(err) {
					t.Fatalf("the process ended with %v, want a kill", err)
				}
			}
			publish()
			_, input, wait := process(t, job{Kind: "victim", RabbitMQ: b.url, Queue: queue}, line)
			eventually(t, "every message is handled", func() bool { return l.count() == n })
			input.Close()
			must(t, wait())
			if left := b.ready(queue) + b.count(queue+".drip.dead"); left > 0 {
				t.Logf("%d copies are left", left)
			}
			t.Logf("of %d messages none was lost in %d kills, %d were handled twice", n, kills, l.twice())
		})
	}
}

// executioner looks at the frames of a process and kills it at a step. It is called after the process began to connect.
func executioner(at string, kill func()) filter {
	var seen atomic.Int64
	var dead atomic.Bool
	return func(f frame) bool {
		switch at {
		case stored:
			if f.confirms() { // one frame may confirm many
				dead.Store(true)
			}
		case confirmed:
			if f.confirms() {
				seen.Add(1)
			}
			if f.acknowledges() && seen.Load() > 0 {
				dead.Store(true)
			}
		case heldBack:
			if f.fromBroker && f.is(basicDeliver) && bytes.Contains(f.payload, []byte(".drip.due")) && seen.Add(1) > fateful {
				dead.Store(true)
			}
		}
		if dead.Load() {
			kill()
			return false
		}
		return true
	}
}

// wasKilled tells whether a process ended by a signal.
func wasKilled(err error) bool {
	exit := (*exec.ExitError)(nil)
	return errors.As(err, &exit) && !exit.Exited()
}
