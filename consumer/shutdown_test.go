package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// takesItsTime consumes until a signal and has handlers that never return. The second signal is the process's end, as
// Run's documentation says.
func takesItsTime(ctx context.Context, j job) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return consume(ctx, Options{
		URL: j.RabbitMQ, Queue: j.Queue, DrainTime: time.Hour,
		Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error {
			fmt.Println("handling")
			select {}
		}),
	})
}

func TestSecondSignalEndsAtOnce(t *testing.T) {
	b, queue := beside(t)
	b.publish(queue, numbered(0, 1)...)
	handling := make(chan string, 1)
	cmd, _, wait := process(t, job{Kind: "takes its time", RabbitMQ: b.url, Queue: queue}, func(line string) { handling <- line })
	<-handling
	b.must(cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, "it takes no more messages", func() bool { return b.consumers(queue) == 0 })
	b.must(cmd.Process.Signal(syscall.SIGTERM))
	if err := wait(); !wasKilled(err) {
		t.Errorf("the process ended with %v, want the signal", err)
	}
	eventually(t, "the message is back", func() bool { return b.count(queue) == 1 })
}

// When Run ends under load each message is handled once or still there, and no token is out.
func TestShutdownUnderLoad(t *testing.T) {
	b, queue := beside(t)
	const n = 2000
	b.publish(queue, numbered(0, n)...)
	var l ledger
	limiter := delayed(func() time.Duration { return max(0, rand.N(1800*time.Millisecond)-900*time.Millisecond) })
	stop := running(t, Options{
		URL: b.url, Queue: queue, Limiter: limiter,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			time.Sleep(rand.N(20 * time.Millisecond))
			return l.Handle(ctx, d)
		}),
	})
	eventually(t, "messages flow", func() bool { return l.count() > n/4 })
	stop()
	handled := l.count()
	if handled == n {
		t.Fatal("all were handled before the end")
	}
	if out := limiter.Out.Load(); out != 0 {
		t.Errorf("%d tokens were not returned", out)
	}
	// An acknowledgement that the broker has not taken in when the connection closes is none.
	left, back := map[string]bool{}, 0
	eventually(t, "what was not handled is in the queues", func() bool {
		b.drain(queue, func(_, id string) { left[id] = true })
		back = l.handledOf(left)
		return len(left)-back == n-handled
	})
	if back > 32 {
		t.Errorf("%d messages of %d that were handled are back", back, handled)
	}
	if l.twice() != 0 || l.count() != handled {
		t.Errorf("%d messages were handled twice, %d after Run", l.twice(), l.count()-handled)
	}
}

// Handlers that return nil in the grace after the drain time have handled their messages. The broker takes their acknowledgements in.
func TestHandledAfterTheDrainTime(t *testing.T) {
	b, queue := beside(t)
	b.replace(queue, amqp.Table{amqp.QueueTypeArg: "quorum"})
	const n = 500
	b.publish(queue, numbered(0, n)...)
	var l ledger
	begun := make(chan struct{}, n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := begin(ctx, made(t, Options{
		URL: b.url, Queue: queue, Prefetch: 1000, DrainTime: 100 * time.Millisecond,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			begun <- struct{}{}
			<-ctx.Done()
			return l.Handle(ctx, d)
		}),
	}))
	for range n {
		<-begun
	}
	cancel()
	b.must(<-ended)
	// The broker requeues messages without an acknowledgement when it sees the end of the connection. A slow one may miss some.
	eventually(t, "nobody consumes", func() bool { return b.consumers(queue) == 0 })
	time.Sleep(time.Second)
	if back := b.count(queue); back > n/10 || l.count() != n {
		t.Errorf("%d of %d were handled, and Run returned nil, but %d are back in the queue", l.count(), n, back)
	}
}

// drain takes the messages out of all queues of a work queue but the dead letters, and tells from which, and their ids.
func (b *broker) drain(queue string, of func(from, id string)) {
	b.t.Helper()
	for _, q := range b.lookAll(append(b.delayQueues(queue), queue, queue+".drip.due")...) {
		for _, d := range b.takeAll(q.Name) {
			of(q.Name, d.MessageId)
		}
	}
}

func (l *ledger) handledOf(ids map[string]bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range ids {
		if l.handled[id] > 0 {
			n++
		}
	}
	return n
}

// A queue that does not answer the end of its consumer keeps the other one's consumer no longer.
func TestBothConsumersEndAtOnce(t *testing.T) {
	b, queue := beside(t)
	p, url := through(t, b.url, 0)
	var cancels atomic.Int64
	both := make(chan struct{})
	p.through(func(f frame) bool {
		switch {
		case !f.fromBroker && f.is(basicCancel) && cancels.Add(1) == 2:
			close(both)
		case f.fromBroker && f.is(basicCancelOK):
			select {
			case <-both:
			case <-t.Context().Done():
			case <-time.After(2 * closeTimeout):
			}
		}
		return true
	})
	stop := running(t, Options{URL: url, Queue: queue})
	begun(t, b, queue)
	stop()
	if n := cancels.Load(); n != 2 {
		t.Errorf("%d consumers were ended before the broker answered, want 2", n)
	}
}

// One of two processes ends in good order while messages wait in its hands and in delay queues. The other handles each when it is
// due: no message is published a second time, for another wait. TestTakeHolds proves that held messages are given back at once.
func TestShutdownDelaysNothing(t *testing.T) {
	bothTypes(t, func(t *testing.T, b *broker, _ QueueType, queue string) {
		const n = 600
		p, url := through(t, b.url, 0)
		published := p.counts(func(f frame) bool { return !f.fromBroker && f.is(basicPublish) })
		limiter := each(t, func(int) time.Duration { return rand.N(5 * time.Second) }) // in the first ring
		var l ledger
		o := Options{URL: url, Queue: queue, Limiter: limiter, Handler: &l}
		stop := running(t, o)
		b.publish(queue, numbered(0, n)...)
		running(t, o)
		eventually(t, "the other has begun", func() bool { return b.consumers(queue) == 2 && b.consumers(queue+".drip.due") == 2 })
		eventually(t, "messages come back", func() bool { return l.count() > n/4 })
		stop()
		eventually(t, "all are handled", func() bool { return l.count() == n })
		limiter.mu.Lock()
		defer limiter.mu.Unlock()
		logLateness(t, limiter.late)
		if published.Load() != n || l.twice() != 0 {
			t.Errorf("%d publications for %d messages, %d were handled twice", published.Load(), n, l.twice())
		}
	})
}

// A broker that takes no messages does not keep Run: what waits to be postponed is given back.
func TestShutdownWhileBlocked(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	const n = 100
	b.publish(queue, numbered(0, n)...)
	ctl(t, server, "set_vm_memory_high_watermark", "0.0000001")
	var mu sync.Mutex
	asked := 0
	stop := running(t, Options{
		URL: b.url, Queue: queue, DrainTime: time.Hour,
		Limiter: delayed(func() time.Duration { mu.Lock(); defer mu.Unlock(); asked++; return time.Minute }),
	})
	eventually(t, "all wait to be postponed", func() bool { mu.Lock(); defer mu.Unlock(); return asked == n })
	stop()
	// The broker takes the first before it stops reading, and may confirm it too late: then there are two.
	ids, back := map[string]bool{}, 0
	eventually(t, "all are in the queues", func() bool {
		b.drain(queue, func(from, id string) {
			ids[id] = true
			if from == queue {
				back++
			}
		})
		return len(ids) == n
	})
	if back <= n/2 {
		t.Errorf("%d messages of %d were given back", back, n)
	}
}
