package consumer

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/servers"
)

// BenchmarkLateness postpones 1,000 messages a second once each, for 45 seconds. It reports how long after its time a message
// asks the limiter again. It also reports the CPU time of the broker for a message in the last 15 seconds, when as many
// messages come back as are postponed. Run it with -benchtime 1x.
func BenchmarkLateness(b *testing.B) {
	const n, steady = 45_000, 30_000
	start := time.Now()
	for name, delay := range map[string]func(i int) time.Duration{
		"uniform 50ms-30s": func(int) time.Duration { return 50*time.Millisecond + rand.N(29_950*time.Millisecond) },
		"whole seconds": func(int) time.Duration {
			return time.Until(time.Now().Truncate(time.Second).Add(rand.N(30*time.Second) + time.Second).Truncate(time.Second))
		},
		"1000 at a time": func(i int) time.Duration { return time.Until(start.Add(time.Duration(15+i/1000) * time.Second)) },
	} {
		b.Run(name, func(b *testing.B) {
			server := servers.UseRabbitMQ(b)
			broker := connect(b, server.URL())
			for b.Loop() {
				l := each(b, delay)
				queue := broker.queue()
				var handled ledger
				stop := running(b, Options{URL: broker.url, Queue: queue, Limiter: l, Handler: &handled})
				start = time.Now().Truncate(time.Second)
				broker.thousandASecond(queue, 0, steady)
				before, err := server.CPU()
				broker.must(err)
				broker.thousandASecond(queue, steady, n)
				after, err := server.CPU()
				broker.must(err)
				eventually(b, "all are handled", func() bool { return handled.count() == n })
				stop()
				reportLateness(b, l.late)
				b.ReportMetric(float64((after-before).Microseconds())/(n-steady), "broker-µs/message")
			}
		})
	}
}

// thousandASecond publishes the messages of these numbers, ten each 10 ms.
func (b *broker) thousandASecond(queue string, from, to int) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := from; i < to; i += 10 {
		<-tick.C
		b.publish(queue, numbered(i, i+10)...)
	}
}

func reportLateness(b *testing.B, late []time.Duration) {
	slices.Sort(late)
	n := len(late)
	b.ReportMetric(float64(late[n/2])/1e6, "late-p50-ms")
	b.ReportMetric(float64(late[n*99/100])/1e6, "late-p99-ms")
	b.ReportMetric(float64(late[n-1])/1e6, "late-max-ms")
}
