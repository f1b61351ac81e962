package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
)

// ledger counts how often each message was handled.
type ledger struct {
	mu      sync.Mutex
	handled map[string]int
}

func (l *ledger) Handle(_ context.Context, d *amqp.Delivery) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handled == nil {
		l.handled = map[string]int{}
	}
	l.handled[d.MessageId]++
	return nil
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.handled)
}

// twice is the number of messages handled more than once.
func (l *ledger) twice() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range l.handled {
		if times > 1 {
			n++
		}
	}
	return n
}

func numbered(from, to int) (messages []amqp.Publishing) {
	for i := from; i < to; i++ {
		messages = append(messages, amqp.Publishing{MessageId: fmt.Sprint(i), DeliveryMode: amqp.Persistent})
	}
	return messages
}

// each postpones every message by a delay of its own, once.
func each(t testing.TB, delay func(i int) time.Duration) *once {
	i := 0
	return &once{t: t, due: map[string]time.Time{}, delay: func() time.Duration { i++; return delay(i - 1) }}
}

func TestBrokerIsKilled(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	b := connect(t, server.URL())
	const n = 1000
	queue := "orders"
	_, err := b.ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	b.must(err)
	var l ledger
	limiter := each(t, func(i int) time.Duration { return time.Duration(1+i%8) * time.Second })
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
	b.publish(queue, numbered(0, n)...)
	// RabbitMQ 3.10 loses a quorum queue when it is killed within about three seconds of its declaration. Those who
	// had to wait for six are handled, so all queues are older.
	eventually(t, "most messages are handled", func() bool { return l.count() > n*5/8 })
	defer func() {
		if t.Failed() {
			out, err := server.Ctl(context.Background(), "list_queues", "name", "state", "messages_ready", "messages_unacknowledged", "consumers")
			t.Logf("%d were handled: %v\n%s", l.count(), err, out)
		}
	}()
	b.must(server.Kill())
	b.must(server.Start(t.Context()))
	// What was being dead-lettered at the kill is in no queue's count until the broker tries again. That is after three
	// minutes unless it is told otherwise, as it is here: see package servers.
	eventually(t, "every message is handled", func() bool { return l.count() == n })
	stop()
	t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
}

// The connection is cut again and again, wherever the messages are on their way.
func TestConnectionIsCut(t *testing.T) {
	direct := connect(t, useBroker(t))
	queue := direct.queue()
	proxy, url := through(t, direct.url, 0)
	const n, cuts = 1000, 6
	var l ledger
	var asked atomic.Int64
	limiter := limiterFunc(func() time.Duration { return time.Duration(asked.Add(1)%3) * 700 * time.Millisecond })
	stop := running(t, Options{URL: url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
	cut := 0
	for i := range cuts {
		before := l.count()
		direct.publish(queue, numbered(i*n/cuts, (i+1)*n/cuts)...)
		eventually(t, "messages flow", func() bool { return l.count() > before })
		cut += proxy.cut()
	}
	eventually(t, "every message is handled", func() bool { return l.count() == n })
	eventually(t, "nothing is left", func() bool {
		return direct.count(queue)+direct.count(queue+".drip.due")+direct.waitingIn(queue) == 0
	})
	stop()
	if cut < cuts {
		t.Errorf("only %d connections were cut", cut)
	}
	if n := direct.count(queue + ".drip.dead"); n != 0 {
		t.Errorf("%d messages were given up", n)
	}
	t.Logf("of %d messages none was lost in %d cuts, %d were handled twice", n, cut, l.twice())
}

// Copies whose confirmation never comes are published again, and nothing is acknowledged for them.
func TestConfirmationsAreLost(t *testing.T) {
	t.Parallel()
	direct := connect(t, useBroker(t))
	queue := direct.queue()
	p, url := through(t, direct.url, 0)
	var dropped atomic.Int64
	var lossy atomic.Bool
	p.through(func(f frame) bool {
		if f.confirms() && lossy.Load() {
			dropped.Add(1)
			return false
		}
		return true
	})
	const n = 300
	var l ledger
	c, err := New(Options{
		URL: url, Queue: queue, Entity: byID, Handler: &l, Logger: quiet,
		Limiter: each(t, func(i int) time.Duration { return time.Duration(i%3) * 300 * time.Millisecond }),
	})
	direct.must(err)
	c.delays.publisher.timeout = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	direct.publish(queue, numbered(0, n/2)...)
	eventually(t, "messages flow", func() bool { return l.count() == n/2 })
	lossy.Store(true)
	direct.publish(queue, numbered(n/2, n)...)
	eventually(t, "confirmations are lost, of several tries", func() bool { return dropped.Load() > 5 })
	lossy.Store(false)
	eventually(t, "every message is handled", func() bool { return l.count() == n })
	eventually(t, "nothing is left", func() bool { return direct.ready(queue) == 0 })
	cancel()
	direct.must(<-done)
	t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
}

// A cluster that loses a node loses no message: first the node that the consumer and the queues' leaders are on, and
// when it is back another. RabbitMQ 3.10 can be minutes late with what it was dead-lettering then, so this runs only when
// DRIP_CLUSTER is set.
func TestNodeIsLost(t *testing.T) {
	if os.Getenv("DRIP_CLUSTER") == "" {
		t.Skip("DRIP_CLUSTER is not set")
	}
	t.Parallel()
	nodes := servers.OwnRabbitMQCluster(t, 3)
	proxy, url := through(t, nodes[0].URL(), 0) // what a load balancer does
	const n = 600
	queue := "orders"
	var l ledger
	limiter := each(t, func(i int) time.Duration { return time.Duration(i%8) * 500 * time.Millisecond })
	publish := func(node *servers.RabbitMQ, from, to int) {
		b := connect(t, node.URL())
		_, err := b.ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
		b.must(err)
		b.publish(queue, numbered(from, to)...)
	}
	publish(nodes[0], 0, n/3)
	began := time.Now()
	stop := running(t, Options{URL: url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
	eventuallyIn(t, 2*time.Minute, "all are handled while all nodes are up", func() bool { return l.count() == n/3 })
	t.Logf("%d messages took %v, declaring the queues included", n/3, time.Since(began))
	lose := func(lost, next int, from, to int) {
		publish(nodes[lost], from, to)
		eventually(t, "some are handled", func() bool { return l.count() > from+(to-from)/4 })
		began := time.Now()
		if err := nodes[lost].Kill(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if t.Failed() {
				out, err := nodes[next].Ctl(context.Background(), "list_queues", "name", "state", "messages_ready", "messages_unacknowledged", "consumers")
				t.Logf("%d were handled: %v\n%s", l.count(), err, out)
			}
		}()
		proxy.to(t, nodes[next].URL())
		proxy.cut()
		eventuallyIn(t, 5*time.Minute, "every message is handled", func() bool { return l.count() == to })
		t.Logf("node %d was lost; all messages were handled %v later", lost, time.Since(began))
	}
	lose(0, 1, n/3, n*2/3)
	if err := nodes[0].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	lose(1, 2, n*2/3, n)
	stop()
	t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
}

// A broker that stops answering, wherever a connection is on its way up, does not keep Run.
func TestBrokerFreezesWhileConnecting(t *testing.T) {
	b := connect(t, useBroker(t))
	queue := b.queue()
	for _, bytes := range []int64{1, 500, 530, 560, 600, 700} { // the handshake ends between 500 and 600
		_, url := through(t, b.url, bytes)
		c, err := New(Options{URL: url, Queue: queue, Limiter: &free{}, Entity: byID, Handler: &ledger{}, Logger: quiet})
		b.must(err)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err = c.Run(ctx)
		cancel()
		if err != nil {
			t.Errorf("stalled after %d bytes, Run = %v", bytes, err)
		}
		t.Logf("stalled after %d bytes, Run returned after %v", bytes, time.Since(began))
	}
}

// The broker closes the channel of a delivery that is not acknowledged for too long, and delivers it again. What
// becomes of the first delivery must leave no copy, or each round would double the message.
func TestBrokerClosesTheChannel(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	b := connect(t, server.URL())
	queue := b.queue()
	if _, err := server.Ctl(t.Context(), "eval", "application:set_env(rabbit, consumer_timeout, 1000), application:set_env(rabbit, channel_tick_interval, 200)."); err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int64
	stop := running(t, Options{
		URL: b.url, Queue: queue, Limiter: &free{}, Entity: byID, Attempts: 2, RetryDelay: time.Millisecond, Logger: quiet,
		Handler: HandlerFunc(func(ctx context.Context, _ *amqp.Delivery) error {
			if runs.Add(1) <= 3 {
				<-ctx.Done()
				return errors.New("too late")
			}
			return nil
		}),
	})
	b.publish(queue, numbered(0, 1)...)
	eventually(t, "the message is handled after all", func() bool { return runs.Load() == 4 })
	stop()
	if n := b.count(queue) + b.count(queue+".drip.due") + b.count(queue+".drip.dead") + b.waitingIn(queue); n != 0 {
		t.Errorf("%d copies are left", n)
	}
}

// A broker that hangs for a while, first while the delay queues are being declared, loses nothing.
func TestBrokerHangs(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	b := connect(t, server.URL())
	queue := b.queue()
	const n = 1000
	var l ledger
	var asked atomic.Int64
	limiter := limiterFunc(func() time.Duration { return time.Duration(asked.Add(1)%3) * 700 * time.Millisecond })
	b.publish(queue, numbered(0, n/2)...)
	running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
	hang := func() {
		t.Helper()
		b.must(server.Pause())
		time.Sleep(4 * time.Second) // this is the fault, not a wait for something
		b.must(server.Resume())
	}
	eventually(t, "the due queue is declared", func() bool { _, exists := b.look(queue + ".drip.due"); return exists })
	hang()
	eventually(t, "messages flow", func() bool { return l.count() > 0 })
	b.publish(queue, numbered(n/2, n)...)
	hang()
	eventually(t, "every message is handled", func() bool { return l.count() == n })
	t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
}

func TestQueuesAreDeleted(t *testing.T) {
	b := connect(t, useBroker(t))
	for name, deleted := range map[string]func(queue string) []string{
		"the work queue":   func(q string) []string { return []string{q} },
		"the due queue":    func(q string) []string { return []string{q + ".drip.due"} },
		"the dead letters": func(q string) []string { return []string{q + ".drip.dead"} },
		"the delay queues": func(q string) (names []string) {
			for i := range rings[0].slots {
				names = append(names, q+".drip.due."+place{queue: i}.name())
			}
			return names
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := connect(t, b.url)
			queue := b.queue()
			var l ledger
			limiter := each(t, func(i int) time.Duration { return time.Duration(i%5) * 300 * time.Millisecond })
			failing := HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
				if d.MessageId == "bad" {
					return errors.New("bad")
				}
				return l.Handle(ctx, d)
			})
			running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: failing, Attempts: 1, Logger: quiet})
			b.publish(queue, numbered(0, 50)...)
			eventually(t, "messages flow", func() bool { return l.count() == 50 })
			for _, q := range deleted(queue) {
				_, err := b.ch.QueueDelete(q, false, false, false)
				b.must(err)
			}
			if name == "the due queue" {
				eventually(t, "it is declared again", func() bool { _, exists := b.look(queue + ".drip.due"); return exists })
			}
			_, err := b.ch.QueueDeclare(queue, true, false, false, false, nil)
			b.must(err)
			// What expires while there is no due queue is kept, and tried again after a while: see TestBrokerIsKilled.
			eventually(t, "the consumer is back", func() bool { return b.consumers(queue+".drip.due") == 1 })
			b.publish(queue, numbered(50, 100)...)
			eventually(t, "messages flow again", func() bool { return l.count() == 100 })
			b.publish(queue, amqp.Publishing{MessageId: "bad"})
			b.letter(queue)
		})
	}
}

// A broker that is short of memory takes no messages from publishers. What needs no publishing goes on, and the
// rest does when the alarm is over.
func TestBrokerIsBlocked(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	b := connect(t, server.URL())
	queue := b.queue()
	b.publish(queue, numbered(0, 100)...)
	alarm := func(fraction string) {
		t.Helper()
		if out, err := server.Ctl(t.Context(), "set_vm_memory_high_watermark", fraction); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	alarm("0.0000001")
	var l ledger
	limiter := each(t, func(int) time.Duration { return 10 * time.Millisecond })
	for i := range 30 {
		limiter.due[fmt.Sprint(i)] = time.Now() // these may run at once
	}
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
	eventually(t, "those that may run are handled during the alarm", func() bool { return l.count() >= 30 })
	eventually(t, "the others are in hand", func() bool { return b.count(queue) == 0 })
	alarm("0.8")
	eventually(t, "the others are handled after the alarm", func() bool { return l.count() == 100 })
	stop()
	if l.twice() != 0 {
		t.Errorf("%d messages were handled twice", l.twice())
	}
}

// Without an answer of the limiter messages wait, and run when it is back.
func TestLimiterFails(t *testing.T) {
	b := connect(t, useBroker(t))
	queue := b.queue()
	var mu sync.Mutex
	broken := true
	var l ledger
	running(t, Options{
		URL: b.url, Queue: queue, Entity: byID, Handler: &l, Logger: quiet,
		Limiter: failing(func() error {
			mu.Lock()
			defer mu.Unlock()
			if broken {
				return errors.New("the storage is away")
			}
			return nil
		}),
	})
	b.publish(queue, numbered(0, 20)...)
	eventually(t, "all are in hand", func() bool { return b.count(queue) == 0 })
	mu.Lock()
	if l.count() != 0 {
		t.Errorf("%d messages ran without an answer of the limiter", l.count())
	}
	broken = false
	mu.Unlock()
	eventually(t, "all are handled", func() bool { return l.count() == 20 })
}

type failing func() error

func (f failing) GetDelay(context.Context, string) (time.Duration, error) { return 0, f() }
func (f failing) ReturnToken(context.Context, string) error               { return nil }
