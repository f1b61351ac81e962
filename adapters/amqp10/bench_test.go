package dripamqp10

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
)

// BenchmarkDelays postpones 1,000 messages a second once each, for 45 seconds: by the broker's own delays, and by the delay
// queues of package consumer on the same broker, both from a quorum queue. It reports how long after its time a message asks
// the limiter again. It also reports the CPU time of the broker for a message in the last 15 seconds, when as many messages
// come back as are postponed. "at once" postpones no message: the difference is the postponement. Run it with -benchtime 1x.
func BenchmarkDelays(b *testing.B) {
	need(b)
	uniform := func(int, time.Time) time.Duration { return 50*time.Millisecond + rand.N(29_950*time.Millisecond) }
	for _, c := range []struct {
		name  string
		delay func(i int, start time.Time) time.Duration
	}{
		{"at once", nil},
		{"uniform 50ms-30s", uniform},
		{"whole seconds", func(int, time.Time) time.Duration {
			return time.Until(time.Now().Truncate(time.Second).Add(rand.N(30*time.Second) + time.Second).Truncate(time.Second))
		}},
		{"1000 at a time", func(i int, start time.Time) time.Duration {
			return time.Until(start.Add(time.Duration(15+i/1000) * time.Second))
		}},
	} {
		for name, consume := range map[string]func(context.Context, string, string, *once) error{"native": native, "wheel": wheel} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				for b.Loop() {
					delayed(b, c.delay, consume)
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func delayed(b *testing.B, delay func(int, time.Time) time.Duration, consume func(context.Context, string, string, *once) error) {
	const n, steady = 45_000, 30_000
	server := servers.UseRabbitMQ(b)
	ch, name := servers.Channel(b, server.URL()), fmt.Sprint("delays", time.Now().UnixNano())
	servers.Declare(b, ch, "quorum", name)
	ctx, cancel := context.WithCancel(b.Context())
	start := time.Now().Truncate(time.Second)
	l := &once{due: map[string]time.Time{}, all: make(chan struct{}), n: n}
	if delay != nil {
		l.delay = func(i int) time.Duration { return delay(i, start) }
	}
	ended := make(chan error, 1)
	go func() { ended <- consume(ctx, server.URL(), name, l) }()

	publish := func(from, to int) time.Duration {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for i := from; i < to; i += 10 {
			<-tick.C
			var ten []amqp091.Publishing
			for k := i; k < i+10; k++ {
				ten = append(ten, amqp091.Publishing{MessageId: fmt.Sprint(k), DeliveryMode: amqp091.Persistent})
			}
			servers.Publish(b, ch, name, ten...)
		}
		used, err := server.CPU()
		if err != nil {
			b.Fatal(err)
		}
		return used
	}
	before := publish(0, steady)
	after := publish(steady, n)
	<-l.all
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	if delay != nil && len(l.late) < n {
		b.Errorf("of %d messages %d were postponed: the others came after their time, on a machine that is too busy", n, len(l.late))
	} else if delay != nil {
		slices.Sort(l.late)
		b.ReportMetric(float64(l.late[n/2])/1e6, "late-p50-ms")
		b.ReportMetric(float64(l.late[n*99/100])/1e6, "late-p99-ms")
		b.ReportMetric(float64(l.late[n-1])/1e6, "late-max-ms")
	}
	b.ReportMetric(float64((after-before).Microseconds())/(n-steady), "broker-µs/message")
}

func native(ctx context.Context, url, queue string, l *once) error {
	limit, err := New(Options{Limiter: l, Entity: func(m *amqp.Message) (string, error) { return messageID(m), nil }})
	if err != nil {
		return err
	}
	return limit.Consume(ctx, Queue{URL: url, Name: queue}, func(_ context.Context, m *amqp.Message) error {
		l.ran()
		return nil
	})
}

func wheel(ctx context.Context, url, queue string, l *once) error {
	c, err := consumer.New(consumer.Options{
		URL: url, Queue: queue, Limiter: l, Logger: slog.New(slog.DiscardHandler),
		Entity: func(d *amqp091.Delivery) (string, error) { return d.MessageId, nil },
		Handler: consumer.HandlerFunc(func(context.Context, *amqp091.Delivery) error {
			l.ran()
			return nil
		}),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// once postpones every message once, if it has delays.
type once struct {
	delay func(i int) time.Duration
	n     int
	all   chan struct{} // closed when n messages have run

	mu    sync.Mutex
	due   map[string]time.Time
	late  []time.Duration
	count int
}

var _ worker.Limiter = (*once)(nil)

func (l *once) GetDelay(_ context.Context, id string) (time.Duration, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if due, back := l.due[id]; back {
		l.late = append(l.late, now.Sub(due))
		return 0, nil
	}
	if l.delay == nil {
		return 0, nil
	}
	d := l.delay(len(l.due))
	l.due[id] = now.Add(d)
	return d, nil
}

func (l *once) ReturnToken(context.Context, string) error { return nil }

func (l *once) ran() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count++; l.count == l.n {
		close(l.all)
	}
}
