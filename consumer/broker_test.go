package consumer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/wheel"
)

// broker is a test's connection to a real RabbitMQ.
type broker struct {
	t   testing.TB
	url string
	ch  *amqp.Channel
}

func connect(t testing.TB, url string) *broker {
	t.Helper()
	return &broker{t, url, servers.Channel(t, url)}
}

// beside runs a test beside others, on the broker that they share. The queue is a work queue of its own.
func beside(t *testing.T) (b *broker, queue string) {
	t.Helper()
	t.Parallel()
	b = connect(t, useBroker(t))
	return b, b.queue()
}

// alone runs a test beside others, on a broker of its own, which has a quorum queue "orders".
func alone(t *testing.T) (*servers.RabbitMQ, *broker) {
	t.Helper()
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	b := connect(t, server.URL())
	b.declare("orders", Quorum)
	return server, b
}

var must = oktest.OK // ends the test if there is an error

func (b *broker) must(err error) {
	b.t.Helper()
	must(b.t, err)
}

// ctl runs a command of rabbitmqctl and returns its output.
func ctl(t testing.TB, server *servers.RabbitMQ, args ...string) string {
	t.Helper()
	out, err := server.Ctl(t.Context(), args...)
	if err != nil {
		t.Fatalf("rabbitmqctl %q: %v: %s", args, err, out)
	}
	return out
}

// queue declares a durable classic work queue named after the test.
func (b *broker) queue() string {
	b.t.Helper()
	name := strings.NewReplacer("/", ".", " ", "_").Replace(b.t.Name()) + fmt.Sprint(time.Now().UnixNano())
	servers.Declare(b.t, b.ch, "classic", name)
	b.t.Cleanup(func() { b.delete(name) })
	return name
}

// delete deletes a work queue and drip's, so that the broker has no thousands of them to carry through the tests.
func (b *broker) delete(queue string) {
	b.deleteAll(append(b.delayQueues(queue), queue, queue+".drip.due", queue+".drip.dead")...)
}

// deleteAll deletes queues, whether they exist or not.
func (b *broker) deleteAll(queues ...string) {
	_ = servers.WithChannel(b.url, func(ch *amqp.Channel) error { // else the broker is gone, too
		for _, name := range queues {
			ch.QueueDelete(name, false, false, true)
		}
		ch.QueueDeclarePassive(queues[0], true, false, false, false, nil) // answered when all of it is done
		return nil
	})
}

// delayQueues are the names of a Consumer's delay queues.
func (b *broker) delayQueues(queue string) (names []string) {
	return delayQueuesOf(&wheel.Standard, queue)
}

func delayQueuesOf(l *wheel.Layout, queue string) (names []string) {
	for i, r := range l.Rings {
		for n := range r.Slots {
			names = append(names, queue+".drip.due."+l.Queue(i, n))
		}
	}
	return names
}

func (b *broker) replace(queue string, args amqp.Table) {
	b.t.Helper()
	_, err := b.ch.QueueDelete(queue, false, false, false)
	b.must(err)
	_, err = b.ch.QueueDeclare(queue, true, false, false, false, args)
	b.must(err)
}

// publish sends messages and waits until the broker has them all.
func (b *broker) publish(queue string, messages ...amqp.Publishing) {
	b.t.Helper()
	servers.Publish(b.t, b.ch, queue, messages...)
}

func (b *broker) takeAll(queue string) (all []amqp.Delivery) {
	b.t.Helper()
	for {
		d, ok, err := b.ch.Get(queue, true)
		b.must(err)
		if !ok {
			return all
		}
		all = append(all, d)
	}
}

// look returns the state of a queue, and whether there is one.
func (b *broker) look(queue string) (q amqp.Queue, exists bool) {
	b.t.Helper()
	found := b.lookAll(queue)
	if len(found) == 0 {
		return q, false
	}
	return found[0], true
}

// lookAll returns the states of the queues that exist. It uses a connection of its own: asking for a queue that does not
// exist closes the channel. If the leader of a quorum queue does not answer within 250 ms, RabbitMQ reports no messages and no
// consumers for that queue.
func (b *broker) lookAll(queues ...string) (found []amqp.Queue) {
	b.t.Helper()
	conn, err := amqp.Dial(b.url)
	b.must(err)
	defer conn.Close()
	var ch *amqp.Channel
	for _, name := range queues {
		if ch == nil {
			ch, err = conn.Channel()
			b.must(err)
		}
		q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		if code(err) == amqp.NotFound {
			ch = nil
			continue
		}
		b.must(err)
		found = append(found, q)
	}
	return found
}

// waitingIn is the number of messages in the delay queues of a work queue.
func (b *broker) waitingIn(queue string) (n int) {
	b.t.Helper()
	for _, q := range b.lookAll(b.delayQueues(queue)...) {
		n += q.Messages
	}
	return n
}

// ready is the number of messages in all queues of a work queue but the dead letters.
func (b *broker) ready(queue string) (n int) {
	b.t.Helper()
	for _, q := range b.lookAll(append(b.delayQueues(queue), queue, queue+".drip.due")...) {
		n += q.Messages
	}
	return n
}

func (b *broker) count(queue string) int {
	b.t.Helper()
	q, _ := b.look(queue)
	return q.Messages
}

func (b *broker) consumers(queue string) int {
	b.t.Helper()
	q, _ := b.look(queue)
	return q.Consumers
}

// eventually polls until ok; the deadline is for a machine that is very busy.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	oktest.Eventually(t, 5*time.Minute, what, ok)
}

func made(t testing.TB, o Options) *Consumer {
	t.Helper()
	c, err := New(o.filled())
	must(t, err)
	return c
}

// filled sets what a test does not care for: a message's ID is its entity, nothing is limited or logged, and the handler succeeds.
func (o Options) filled() Options {
	if o.Entity == nil {
		o.Entity = byID
	}
	if o.Limiter == nil {
		o.Limiter = &free{}
	}
	if o.Handler == nil {
		o.Handler = &ledger{}
	}
	o.Logger = cmp.Or(o.Logger, quiet)
	return o
}

// running is consuming with a new Consumer.
func running(t testing.TB, o Options) (stop func()) {
	t.Helper()
	return consuming(t, made(t, o))
}

// consuming runs a Consumer until stop is called, or the test ends.
func consuming(t testing.TB, c *Consumer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := begin(ctx, c)
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func consume(ctx context.Context, o Options) error {
	c, err := New(o.filled())
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// begin runs a Consumer, and sends what Run returns.
func begin(ctx context.Context, c *Consumer) (ended <-chan error) {
	end := make(chan error, 1)
	go func() { end <- c.Run(ctx) }()
	return end
}

// byID is the entity function of tests whose limiter tells messages apart.
func byID(d *amqp.Delivery) (string, error) { return d.MessageId, nil }

func useBroker(t testing.TB) string { t.Helper(); return servers.UseRabbitMQ(t).URL() }

func logLateness(t testing.TB, late []time.Duration) {
	t.Helper()
	slices.Sort(late)
	t.Logf("late: p50 %v, p99 %v, max %v of %d", late[len(late)/2], late[len(late)*99/100], late[len(late)-1], len(late))
}
