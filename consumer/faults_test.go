package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/wheel"
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

// ofType are numbered messages of this type, which is their entity for byType.
func ofType(entity string, from, to int) []amqp.Publishing {
	messages := numbered(from, to)
	for i := range messages {
		messages[i].Type = entity
	}
	return messages
}

// ofShops are numbered messages of so many shops in turn, which byType tells.
func ofShops(shops, from, to int) []amqp.Publishing {
	messages := numbered(from, to)
	for i := range messages {
		messages[i].Type = fmt.Sprint("shop", i%shops)
	}
	return messages
}

// each postpones every message by a delay of its own, once.
func each(t testing.TB, delay func(i int) time.Duration) *once {
	i := 0
	return &once{t: t, due: map[string]time.Time{}, delay: func() time.Duration { i++; return delay(i - 1) }}
}

func TestBrokerIsKilled(t *testing.T) {
	server, b := alone(t)
	const n, queue = 1000, "orders"
	var l ledger
	limiter := each(t, func(i int) time.Duration { return time.Duration(1+i%8) * time.Second })
	limiter.copies = true
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: &l})
	b.publish(queue, numbered(0, n)...)
	// RabbitMQ 3.10 loses a quorum queue when it is killed within about three seconds of its declaration. Messages that had
	// to wait for six seconds are handled, so all queues are older.
	eventually(t, "most messages are handled", func() bool { return l.count() > n*5/8 })
	defer func() {
		if t.Failed() {
			out, err := server.Ctl(context.Background(), "list_queues", "name", "state", "messages_ready", "messages_unacknowledged", "consumers")
			t.Logf("%d were handled: %v\n%s", l.count(), err, out)
		}
	}()
	b.must(server.Kill())
	b.must(server.Start(t.Context()))
	// A message that the broker was dead-lettering at the kill is in no queue's count until the broker tries again. That is
	// after three minutes unless the broker is configured otherwise, as here: see package servers.
	eventually(t, "every message is handled", func() bool { return l.count() == n })
	stop()
	t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
}

// Messages that the broker could not dead-letter come back at once, with its default settings, when somebody runs the
// commands of docs/operating.md. Such messages are left when a broker is killed, or, as here, when their target is gone for a
// while.
func TestBrokerTriesAgain(t *testing.T) {
	t.Parallel()
	const (
		count = `rabbitmqctl eval '[{element(4, amqqueue:get_name(Q)), N} || Q <- rabbit_amqqueue:list(),
  amqqueue:get_type(Q) == rabbit_quorum_queue, {_, N} <- rabbit_amqqueue:info(Q, [messages_dlx]), N > 0].'
`
		again = `rabbitmqctl set_policy drip-try-again '\.drip\..*s\.[0-9][0-9]$' '{"dead-letter-exchange": ""}' --apply-to queues
rabbitmqctl clear_policy drip-try-again
`
	)
	if text, err := os.ReadFile("../docs/operating.md"); err == nil { // scripts/rabbitmq4 has no docs
		for _, commands := range []string{count, again} {
			if !strings.Contains(string(text), commands) {
				t.Errorf("docs/operating.md lacks %s", commands)
			}
		}
	}
	server := servers.OwnRabbitMQ(t, "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}")
	run := func(commands string) string {
		out, err := server.Command(t.Context(), "sh", "-euc", commands).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	stuck := func() (n int) {
		for _, queue := range regexp.MustCompile(`<<"orders\.drip\.due\.v1\.[0-9a-z.]*">>,(\d+)`).FindAllStringSubmatch(run(count), -1) {
			in, err := strconv.Atoi(queue[1])
			must(t, err)
			n += in
		}
		return n
	}
	b := connect(t, server.URL())
	b.declare("orders", Quorum)
	const n = 200
	var l ledger
	limiter := each(t, func(i int) time.Duration { return 20*time.Second + time.Duration(i)*time.Millisecond }) // a busy broker takes seconds to delay them all
	o := Options{URL: b.url, Queue: "orders", Limiter: limiter, Handler: &l}
	stop := running(t, o)
	b.publish("orders", numbered(0, n)...)
	eventually(t, "all are postponed", func() bool { return limiter.asked() == n })
	stop()
	b.must(servers.WithChannel(b.url, func(ch *amqp.Channel) error {
		due, err := ch.QueueDelete("orders.drip.due", false, false, false)
		if due+l.count() > 0 {
			t.Fatal("some were due before")
		}
		return err
	}))
	eventually(t, "all are stuck", func() bool { return stuck() == n })
	stop = running(t, o)
	begun(t, b, "orders")
	if stuck() != n {
		t.Error("they came back by themselves")
	}
	run(again)
	eventually(t, "every message is handled", func() bool { return l.count() == n })
	eventually(t, "none is stuck", func() bool { return stuck() == 0 })
	stop()
}

// bothTypes runs a test for each type of queue, of the work queue and of the declared queues, on the shared broker.
func bothTypes(t *testing.T, test func(t *testing.T, b *broker, queues QueueType, queue string)) {
	t.Helper()
	t.Parallel()
	broker := useBroker(t)
	for _, queues := range []QueueType{Quorum, Classic} {
		t.Run(string(queues), func(t *testing.T) {
			t.Parallel()
			b := connect(t, broker)
			test(t, b, queues, b.typed(queues))
		})
	}
}

// The connections are cut again and again, wherever the messages are on their way.
func TestConnectionIsCut(t *testing.T) {
	const cuts = 6
	bothTypes(t, func(t *testing.T, direct *broker, queues QueueType, queue string) {
		proxy, url := through(t, direct.url, 0)
		var l ledger
		var asked atomic.Int64
		limiter := delayed(func() time.Duration { return time.Duration(asked.Add(1)%3) * 700 * time.Millisecond })
		stop := running(t, Options{URL: url, Queue: queue, QueueType: queues, Limiter: limiter, Handler: &l})
		published, cut := 0, 0
		publish := func(n int) {
			direct.publish(queue, numbered(published, published+n)...)
			published += n
		}
		for range cuts {
			before := l.count()
			publish(150)
			eventually(t, "messages flow", func() bool { return l.count() > before })
			cut += proxy.cut()
		}
		eventually(t, "every message is handled", func() bool { return l.count() == published })
		eventually(t, "no copy is left", func() bool { return direct.ready(queue) == 0 })
		stop()
		if cut < cuts {
			t.Errorf("only %d connections were cut", cut)
		}
		if n := direct.count(queue + ".drip.dead"); n != 0 {
			t.Errorf("%d messages were given up", n)
		}
		t.Logf("of %d messages none was lost when %d connections were cut in %d cuts, %d were handled twice", published, cut, cuts, l.twice())
	})
}

// A Consumer gives back all that it used for connections that were cut: goroutines here, channels in the broker.
func TestCutConnectionsLeaveNothing(t *testing.T) {
	server := servers.OwnRabbitMQ(t) // no other test runs now: it counts the goroutines of the process
	b := connect(t, server.URL())
	b.declare("orders", Quorum)
	proxy, url := through(t, b.url, 0)
	used := func() (goroutines, channels int) {
		_, err := fmt.Sscan(ctl(t, server, "eval", "length(rabbit_channel:list())."), &channels)
		must(t, err)
		return runtime.NumGoroutine(), channels
	}
	goroutines, channels := used()
	var l ledger
	limiter := delayed(func() time.Duration { return time.Duration(rand.IntN(2)) * 300 * time.Millisecond })
	stop := running(t, Options{URL: url, Queue: "orders", Limiter: limiter, Handler: &l})
	for i := range 5 {
		if i > 0 {
			proxy.cut()
		}
		b.publish("orders", numbered(i*20, i*20+20)...)
		eventually(t, "all are handled", func() bool { return l.count() == i*20+20 })
	}
	stop()
	eventually(t, "what was used is given back", func() bool {
		g, c := used()
		return g <= goroutines && c <= channels
	})
}

// begun waits until a Consumer consumes.
func begun(t *testing.T, b *broker, queue string) {
	t.Helper()
	eventually(t, "the consumer has begun", func() bool { return b.consumers(queue) > 0 && b.consumers(queue+".drip.due") > 0 })
}

// Copies whose confirmation never comes are published again, and nothing is acknowledged for them.
func TestConfirmationsAreLost(t *testing.T) {
	bothTypes(t, func(t *testing.T, direct *broker, queues QueueType, queue string) {
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
		c := made(t, Options{
			URL: url, Queue: queue, QueueType: queues, Handler: &l,
			Limiter: each(t, func(i int) time.Duration { return time.Duration(i%3) * 300 * time.Millisecond }),
		})
		c.delays.publisher.timeout = 300 * time.Millisecond
		stop := consuming(t, c)
		direct.publish(queue, numbered(0, n/2)...)
		eventually(t, "messages flow", func() bool { return l.count() == n/2 })
		lossy.Store(true)
		direct.publish(queue, numbered(n/2, n)...)
		eventually(t, "confirmations are lost, of several tries", func() bool { return dropped.Load() > 5 })
		lossy.Store(false)
		eventually(t, "every message is handled", func() bool { return l.count() == n })
		eventually(t, "nothing is left", func() bool { return direct.ready(queue) == 0 })
		stop()
		t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
	})
}

// A cluster that loses a node loses no message: first the node that the consumer and the queues' leaders are on, and
// when it is back another. RabbitMQ 3.10 keeps some of them until the node is back: docs/operating.md says which.
func TestNodeIsLost(t *testing.T) {
	t.Parallel()
	nodes := servers.OwnRabbitMQCluster(t, 3)
	proxy, url := through(t, nodes[0].URL(), 0) // what a load balancer does
	const n = 600
	queue := "orders"
	var l ledger
	limiter := each(t, func(i int) time.Duration { return time.Duration(i%8) * 500 * time.Millisecond })
	limiter.copies = true
	publish := func(node *servers.RabbitMQ, from, to int) {
		b := connect(t, node.URL())
		b.declare(queue, Quorum)
		b.publish(queue, numbered(from, to)...)
	}
	publish(nodes[0], 0, n/3)
	conn, err := amqp.Dial(nodes[0].URL())
	must(t, err)
	version, _ := conn.Properties["version"].(string)
	conn.Close()
	began := time.Now()
	stop := running(t, Options{URL: url, Queue: queue, Limiter: limiter, Handler: &l})
	eventually(t, "all are handled while all nodes are up", func() bool { return l.count() == n/3 })
	t.Logf("%d messages took %v, declaring the queues included", n/3, time.Since(began))
	lose := func(lost, next int, from, to int) {
		publish(nodes[lost], from, to)
		eventually(t, "some are handled", func() bool { return l.count() > from+(to-from)/4 })
		began := time.Now()
		must(t, nodes[lost].Kill())
		defer func() {
			if t.Failed() {
				out, err := nodes[next].Ctl(context.Background(), "list_queues", "name", "state", "messages_ready", "messages_unacknowledged", "consumers")
				t.Logf("%d were handled: %v\n%s", l.count(), err, out)
			}
		}()
		proxy.to(t, nodes[next].URL())
		proxy.cut()
		all := func() bool { return l.count() == to }
		if strings.HasPrefix(version, "3.") {
			for soon := time.Now().Add(20 * time.Second); !all() && time.Now().Before(soon); {
				time.Sleep(20 * time.Millisecond)
			}
		} else {
			eventually(t, "every message is handled", all)
		}
		t.Logf("%v after node %d was lost %d messages were missing", time.Since(began), lost, to-l.count())
		must(t, nodes[lost].Start(t.Context()))
		eventually(t, "every message is handled", all)
	}
	lose(0, 1, n/3, n*2/3)
	lose(1, 2, n*2/3, n)
	stop()
	t.Logf("of %d messages none was lost, %d were handled twice", n, l.twice())
}

// A broker that stops answering, wherever a connection is on its way up, does not keep Run.
func TestBrokerFreezesWhileConnecting(t *testing.T) {
	b, queue := beside(t)
	for _, bytes := range []int64{1, 500, 530, 560, 600, 700} { // the handshake ends between 500 and 600
		_, url := through(t, b.url, bytes)
		c := made(t, Options{URL: url, Queue: queue})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		err := c.Run(ctx)
		cancel()
		if err != nil {
			t.Errorf("stalled after %d bytes, Run = %v", bytes, err)
		}
		t.Logf("stalled after %d bytes, Run returned after %v", bytes, time.Since(began))
	}
}

// The broker closes the channels while a handler runs, and delivers its message again. The first delivery must leave no copy,
// or each round would double the message.
func TestBrokerClosesTheChannel(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	var runs atomic.Int64
	stop := running(t, Options{
		URL: b.url, Queue: queue, Attempts: 2, RetryDelay: time.Millisecond,
		Handler: HandlerFunc(func(ctx context.Context, _ *amqp.Delivery) error {
			if runs.Add(1) <= 3 {
				<-ctx.Done()
				return errors.New("too late")
			}
			return nil
		}),
	})
	b.publish(queue, numbered(0, 1)...)
	// An acknowledgement of a delivery that never was, as if it came from the consumer.
	const fault = `[rabbit_channel_common:do(C, {'basic.ack', 99999, false}) ||
		C <- rabbit_channel:list(), [{consumer_count, N}] <- [catch rabbit_channel:info(C, [consumer_count])], N > 0].` // a listed channel may be closed by now
	for i := range int64(3) {
		eventually(t, "the message is handled", func() bool { return runs.Load() == i+1 })
		ctl(t, server, "eval", fault)
	}
	eventually(t, "the message is handled after all", func() bool { return runs.Load() == 4 })
	stop()
	if n := b.ready(queue) + b.count(queue+".drip.dead"); n != 0 {
		t.Errorf("%d copies are left", n)
	}
}

// A handler that takes longer than the broker's consumer timeout. Up to RabbitMQ 4.2 the broker closes the channel; from
// 4.3 on a quorum queue takes the message back and cancels the consumer, and the handler goes on.
func TestBrokerTakesAMessageBack(t *testing.T) {
	server, b := alone(t)
	const queue = "orders"
	ctl(t, server, "eval", "application:set_env(rabbit, consumer_timeout, 1000), application:set_env(rabbit, channel_tick_interval, 200).")
	var runs atomic.Int64
	var l ledger
	late := make(chan struct{})
	stop := running(t, Options{
		URL: b.url, Queue: queue,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if runs.Add(1) == 1 {
				select {
				case <-late:
				case <-ctx.Done():
				}
			}
			return l.Handle(ctx, d)
		}),
	})
	b.publish(queue, numbered(0, 1)...)
	eventually(t, "the message is handled again", func() bool { return runs.Load() >= 2 })
	close(late)
	b.publish(queue, numbered(1, 2)...)
	eventually(t, "the next is handled", func() bool { return l.among(1, 2) == 1 })
	eventually(t, "nothing is left", func() bool { return b.count(queue) == 0 })
	stop()
	if n := b.ready(queue) + b.count(queue+".drip.dead"); n != 0 {
		t.Errorf("%d copies are left", n)
	}
}

// A broker that hangs for a while, first while the delay queues are being declared, loses nothing.
func TestBrokerHangs(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	const n = 1000
	var l ledger
	var asked atomic.Int64
	limiter := delayed(func() time.Duration { return time.Duration(asked.Add(1)%3) * 700 * time.Millisecond })
	b.publish(queue, numbered(0, n/2)...)
	running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: &l})
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

// A Consumer declares deleted queues again. The broker ends the consumers of consumed queues, and returns messages published
// to the other queues.
func TestQueuesAreDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		deleted func(queue string) []string
		told    uint16 // the method by which the broker tells of it
	}{
		"the work queue":   {func(q string) []string { return []string{q} }, basicCancel},
		"the due queue":    {func(q string) []string { return []string{q + ".drip.due"} }, basicCancel},
		"the dead letters": {func(q string) []string { return []string{q + ".drip.dead"} }, basicReturn},
		"the delay queues": {func(q string) []string { return delayQueuesOf(&wheel.Standard, q)[:wheel.Standard.Rings[0].Slots] }, basicReturn},
	} {
		t.Run(name, func(t *testing.T) {
			bothTypes(t, func(t *testing.T, b *broker, queues QueueType, queue string) {
				p, url := through(t, b.url, 0)
				told := p.counts(func(f frame) bool { return f.fromBroker && f.is(c.told) })
				var l ledger
				failing := HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
					if d.MessageId == "bad" {
						return errors.New("bad")
					}
					return l.Handle(ctx, d)
				})
				running(t, Options{
					URL: url, Queue: queue, QueueType: queues, Handler: failing, Attempts: 1,
					Limiter: each(t, func(i int) time.Duration { return time.Duration(i%5) * 300 * time.Millisecond }),
				})
				b.publish(queue, numbered(0, 50)...)
				eventually(t, "messages flow", func() bool { return l.count() == 50 })
				for _, q := range c.deleted(queue) {
					_, err := b.ch.QueueDelete(q, false, false, false)
					b.must(err)
				}
				// A quorum queue that is there again before RabbitMQ 3.10 has told of its end has consumers that get nothing.
				eventually(t, "the broker tells of it", func() bool { return told.Load() > 0 || c.told != basicCancel })
				b.declare(queue, queues)
				// The broker keeps messages that expire while there is no due queue, and tries again after a while: see
				// TestBrokerIsKilled.
				begun(t, b, queue)
				b.publish(queue, numbered(50, 100)...)
				eventually(t, "messages flow again", func() bool { return l.count() == 100 })
				b.publish(queue, amqp.Publishing{MessageId: "bad"})
				b.letter(queue)
				if told.Load() == 0 {
					t.Error("the broker did not return what was published to a queue that was gone")
				}
				if l.twice() != 0 {
					t.Errorf("%d messages were handled twice", l.twice())
				}
			})
		})
	}
}

// A broker that is short of memory takes no messages from publishers. Messages that need no publishing go on, and the others
// go on when the alarm is over.
func TestBrokerIsBlocked(t *testing.T) {
	server, b := alone(t)
	queue := b.queue()
	b.publish(queue, numbered(0, 100)...)
	alarm := func(fraction string) {
		t.Helper()
		ctl(t, server, "set_vm_memory_high_watermark", fraction)
	}
	alarm("0.0000001")
	var l ledger
	limiter := each(t, func(int) time.Duration { return 10 * time.Millisecond })
	for i := range 30 {
		limiter.due[fmt.Sprint(i)] = time.Now() // these may run at once
	}
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: &l})
	eventually(t, "those that may run are handled during the alarm", func() bool { return l.count() >= 30 })
	eventually(t, "the others are in hand", func() bool { return b.count(queue) == 0 })
	alarm("0.8")
	eventually(t, "the others are handled after the alarm", func() bool { return l.count() == 100 })
	stop()
	if l.twice() != 0 {
		t.Errorf("%d messages were handled twice", l.twice())
	}
}
