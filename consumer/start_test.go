package consumer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

// cannot runs a Consumer and opens delay queues, each of which is to fail with an error that is want and has the texts.
func cannot(t *testing.T, o Options, want error, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := made(t, o).Run(ctx)
	delays, errDelays := OpenDelayQueues(ctx, DelayQueuesOptions{URL: o.URL, Queue: o.Queue, QueueType: o.QueueType, FailFast: o.FailFast})
	if errDelays == nil {
		delays.Close()
	}
	for what, err := range map[string]error{"Run": err, "OpenDelayQueues": errDelays} {
		for _, text := range texts {
			if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s = %v, want %v with %q", what, err, want, text)
			}
		}
	}
}

// However long a broker was down, a consumer tries again soon after it is back, and not all the time before. The log tells of it once.
func TestTriesAgainSoonAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for outage := time.Second; outage < time.Hour; outage = outage * 5 / 4 {
			began, tries := time.Now(), 0
			var log lines
			err := start(t.Context(), false, slog.New(&log), func() error {
				if tries++; time.Since(began) < outage {
					return errors.New("connection refused")
				}
				return nil
			})
			if late := time.Since(began) - outage; err != nil || late > 2500*time.Millisecond {
				t.Errorf("a try succeeded %v after an outage of %v (error %v)", late, outage, err)
			}
			if n := log.count("cannot begin, will try again"); n != 1 {
				t.Errorf("the log has %d lines about an outage of %v", n, outage)
			}
			if most := 8 + int(outage/(2*time.Second)); tries > most {
				t.Errorf("%d tries in an outage of %v, want at most %d", tries, outage, most)
			}
		}
	})
}

// The publisher of a Consumer ends with Run. A second Run could postpone no message.
func TestRunsOnce(t *testing.T) {
	c := made(t, Options{URL: "amqp://localhost:1/", Queue: "orders"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	first := begin(ctx, c)
	eventually(t, "the first Run has begun", c.begun.Load)
	if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), "Run was called before") {
		t.Errorf("a second Run = %v", err)
	}
	cancel()
	if err := <-first; err != nil {
		t.Errorf("the first Run = %v", err)
	}
}

// A handler that needs longer than the drain time does not hide why Run has ended.
func TestQueueBecomesAStream(t *testing.T) {
	b, queue := beside(t)
	begun := make(chan bool, 1)
	ended := begin(t.Context(), made(t, Options{
		URL: b.url, Queue: queue, DrainTime: time.Millisecond,
		Handler: HandlerFunc(func(ctx context.Context, _ *amqp.Delivery) error { begun <- true; <-ctx.Done(); return nil }),
	}))
	b.publish(queue, numbered(0, 1)...)
	<-begun
	b.replace(queue, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeStream})
	b.endsRun(queue, ended)
}

// A publisher may set the header that a stream adds. If the queue is known to be none, that costs no message a delivery.
func TestStreamHeaderCostsNothing(t *testing.T) {
	b, queue := beside(t)
	b.replace(queue, amqp.Table{amqp.QueueTypeArg: "quorum", "x-delivery-limit": 0})
	messages := numbered(0, 20)
	messages[0].Headers = amqp.Table{"x-stream-offset": int64(1)}
	b.publish(queue, messages...)
	var l ledger
	running(t, Options{URL: b.url, Queue: queue, Prefetch: 1, Handler: &l})
	oktest.Eventually(t, time.Minute, "all are handled", func() bool { return l.count() == 20 })
}

// endsRun publishes to a stream until Run has ended, with ErrQueue.
func (b *broker) endsRun(stream string, ended <-chan error) {
	b.t.Helper()
	var err error
	eventually(b.t, "Run ends", func() bool {
		b.publish(stream, numbered(100, 101)...)
		select {
		case err = <-ended:
			return true
		default:
			return false
		}
	})
	if !errors.Is(err, ErrQueue) {
		b.t.Errorf("Run = %v", err)
	}
}

// user adds a user with permissions for the work queue "orders", and returns the URL.
func user(t *testing.T, server *servers.RabbitMQ, name, configure, write, read string) string {
	t.Helper()
	for _, args := range [][]string{{"add_user", name, "secret"}, {"set_permissions", "-p", "/", name, configure, write, read}} {
		ctl(t, server, args...)
	}
	return strings.Replace(server.URL(), "guest:guest", name+":secret", 1)
}

// The permissions of docs/operating.md are enough, and where one is missing the error says so at the start.
func TestPermissions(t *testing.T) {
	server, b := alone(t)
	const configure, write, read = `^orders\.drip\.`, `^amq\.default$`, `^orders(\.drip\..+)?$`
	o := Options{URL: user(t, server, "enough", configure, write, read), Queue: "orders"}
	for name, p := range map[string][3]string{
		"configure": {`^$`, write, read}, "write": {configure, `^$`, read}, "read": {configure, write, `^$`},
	} {
		o := o
		o.URL = user(t, server, name, p[0], p[1], p[2])
		cannot(t, o, nil, "docs/operating.md lists the permissions that drip needs")
	}
	var l ledger
	o.Handler = &l
	o.Limiter = each(t, func(i int) time.Duration { return time.Duration(i%2) * 1500 * time.Millisecond })
	stop := running(t, o)
	b.publish("orders", numbered(0, 20)...)
	eventually(t, "all are handled", func() bool { return l.count() == 20 })
	stop()
	// Where all queues exist, too.
	o.URL = strings.Replace(server.URL(), "guest:guest", "write:secret", 1)
	cannot(t, o, nil, "docs/operating.md lists the permissions that drip needs")
	// For a user who may not configure the work queue, the first message shows that the queue is a stream.
	b.replace("orders", amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeStream})
	o.URL = strings.Replace(server.URL(), "guest:guest", "enough:secret", 1)
	ended := begin(t.Context(), made(t, o))
	eventually(t, "it has begun", func() bool { return b.consumers("orders.drip.due") > 0 })
	b.endsRun("orders", ended)
}

// RabbitMQ 3.10 without the feature flag stream_queue dead-letters at most once, whatever a queue asks for.
func TestFeatureFlags(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t, "RABBITMQ_FEATURE_FLAGS=quorum_queue")
	b := connect(t, server.URL())
	if out, err := server.Ctl(t.Context(), "list_feature_flags", "name", "state"); err != nil || !strings.Contains(out, "stream_queue\tdisabled") {
		t.Skip("this RabbitMQ has no quorum queues without at-least-once dead-lettering")
	}
	b.declare("orders", Classic)
	o := Options{URL: b.url, Queue: "orders"}
	cannot(t, o, ErrBroker, "rabbitmqctl enable_feature_flag stream_queue")
	var l ledger
	o.QueueType, o.Handler = Classic, &l
	running(t, o)
	b.publish("orders", numbered(0, 10)...)
	eventually(t, "all are handled with classic queues", func() bool { return l.count() == 10 })
}

// A broker that dies while a connection begins has not refused it, though the client says so.
func TestBrokerDiesInTheHandshake(t *testing.T) {
	t.Parallel()
	for name, method := range map[string]byte{"start-ok": 11, "open": 40} {
		t.Run(name, func(t *testing.T) {
			b, queue := beside(t)
			p, url := through(t, b.url, 0)
			var seen atomic.Int64
			p.through(func(f frame) bool {
				const connection = 10
				if f.kind == 1 && !f.fromBroker && f.payload[1] == connection && f.payload[3] == method && seen.Add(1) <= 2 {
					p.cut()
					return false
				}
				return true
			})
			var l ledger
			running(t, Options{URL: url, Queue: queue, Handler: &l})
			b.publish(queue, numbered(0, 1)...)
			eventually(t, "it is handled", func() bool { return l.count() == 1 })
			seen.Store(0)
			delays, err := OpenDelayQueues(t.Context(), DelayQueuesOptions{URL: url, Queue: queue})
			b.must(err)
			b.must(delays.Close())
		})
	}
}

// A broker that is down at the start is waited for.
func TestBrokerIsDownAtTheStart(t *testing.T) {
	server, b := alone(t)
	b.publish("orders", numbered(0, 10)...)
	ctl(t, server, "stop_app")
	var l ledger
	o := Options{URL: server.URL(), Queue: "orders", Handler: &l}
	fast := o
	fast.FailFast = true
	if err := made(t, fast).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "connect to RabbitMQ at 127.0.0.1") {
		t.Errorf("Run = %v with FailFast", err)
	}
	running(t, o)
	opened := make(chan error, 1)
	go func() {
		delays, err := OpenDelayQueues(t.Context(), DelayQueuesOptions{URL: o.URL, Queue: o.Queue})
		if err == nil {
			err = delays.Close()
		}
		opened <- err
	}()
	ctl(t, server, "start_app")
	b.must(<-opened)
	eventually(t, "all are handled", func() bool { return l.count() == 10 })
}
