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

// step is one of a message's way, at which a process dies.
type step string

const (
	delivered step = "after the delivery"
	refused   step = "after Admit has postponed it"
	admitted  step = "after Admit lets it run"
	handling  step = "in the handler"
	handledIt step = "after the handler, before the lease is settled"
	settled   step = "after the lease is settled, before the acknowledgement"
	// Of these the test sees the frames.
	stored    step = "after the copy is stored, before its confirmation"
	confirmed step = "after the confirmation, before the acknowledgement"
	heldBack  step = "while it is held until it is due"
)

var killedAt = []step{delivered, refused, admitted, handling, handledIt, settled, stored, confirmed, heldBack}

// fateful is how many messages have to come to a step before it kills: others are then at any other.
const fateful = 7

// fate kills its process when the n-th message comes to a step.
type fate struct {
	at   step
	seen atomic.Int64
}

func (f *fate) reached(s step) {
	if f.at == s && f.seen.Add(1) == fateful {
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			p.Kill()
		}
		select {}
	}
}

// mortal is a bucket in a process that may be killed.
type mortal struct {
	*drip.Bucket
	*fate
}

func (m mortal) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	a, err := m.Bucket.Admit(ctx, entity, r)
	if a.Delay > 0 {
		m.reached(refused)
	} else {
		m.reached(admitted)
	}
	return a, err
}

func (m mortal) Settle(ctx context.Context, entity string, l drip.Lease, cost int, costs ...drip.Costs) error {
	m.reached(handledIt)
	err := m.Bucket.Settle(ctx, entity, l, cost, costs...)
	m.reached(settled)
	return err
}

// victim consumes and prints the messages that it handles, until it comes to the job's step.
func victim(ctx context.Context, j job) error {
	f := &fate{at: j.Step}
	bucket, err := drip.New(drip.Options{Size: 3, RefreshRate: 3, RefreshInterval: 300 * time.Millisecond, Concurrency: 100})
	if err != nil {
		return err
	}
	c, err := New(Options{
		URL: j.RabbitMQ, Queue: j.Queue, Limiter: mortal{bucket, f}, Logger: quiet,
		Entity: func(d *amqp.Delivery) (string, error) {
			f.reached(delivered)
			return d.Type, nil
		},
		Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			f.reached(handling)
			_, err := fmt.Println(d.MessageId)
			return err
		}),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// A process that is killed, wherever its messages are, loses none.
func TestProcessIsKilled(t *testing.T) {
	t.Parallel()
	b := connect(t, useBroker(t))
	for _, at := range killedAt {
		t.Run(string(at), func(t *testing.T) {
			t.Parallel()
			b := connect(t, b.url)
			queue := b.queue()
			const kills, perKill = 3, 80
			n := 0
			publish := func() {
				messages := numbered(n, n+perKill)
				for i := range messages {
					messages[i].Type = fmt.Sprint("shop", i%8)
				}
				b.publish(queue, messages...)
				n += perKill
			}
			var mu sync.Mutex
			handled := map[string]int{}
			line := func(id string) {
				mu.Lock()
				defer mu.Unlock()
				handled[id]++
			}
			for range kills {
				publish()
				p, url := through(t, b.url, 0)
				started := make(chan *os.Process, 1)
				p.through(executioner(at, sync.OnceFunc(func() { (<-started).Kill() })))
				cmd, _, wait := process(t, job{Kind: "victim", RabbitMQ: url, Queue: queue, Step: at}, line)
				started <- cmd.Process
				if err := wait(); !wasKilled(err) {
					t.Fatalf("the process ended with %v, want a kill", err)
				}
			}
			publish()
			_, input, wait := process(t, job{Kind: "victim", RabbitMQ: b.url, Queue: queue}, line)
			eventually(t, "every message is handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(handled) == n })
			input.Close()
			if err := wait(); err != nil {
				t.Error(err)
			}
			twice := 0
			for _, times := range handled {
				if times > 1 {
					twice++
				}
			}
			if left := b.count(queue) + b.count(queue+".drip.due") + b.waitingIn(queue) + b.count(queue+".drip.dead"); left > 0 {
				t.Logf("%d copies are left", left)
			}
			t.Logf("of %d messages none was lost in %d kills, %d were handled twice", n, kills, twice)
		})
	}
}

// executioner looks at the frames of a process and kills it at those steps that it can't know of itself. It is called
// after the process began to connect.
func executioner(at step, kill func()) filter {
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
