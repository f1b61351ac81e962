package consumer

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// BenchmarkHand compares a Consumer with loops written by hand on the same client, with the same prefetch. One loop handles
// and acknowledges. The other publishes each message to a quorum queue and acknowledges it when that is confirmed, with as
// many confirmations outstanding as there are messages in hand. Consumer and loop take turns. The benchmark reports the median
// of the pairs' ratios of messages a second, from the first delivery to the last. Run it with -benchtime 1x.
//
// The headers of a postponed message are most of the difference there: each header costs the broker some 4 µs.
func BenchmarkHand(b *testing.B) {
	const n, pairs = 50_000, 5
	for name, c := range map[string]struct {
		delay time.Duration
		hand  func(*broker, *amqp.Channel, string, func())
	}{
		"handled":   {0, acknowledging},
		"postponed": {time.Hour, republishing},
	} {
		b.Run(name, func(b *testing.B) {
			br := connect(b, useBroker(b))
			queue := br.queue()
			for b.Loop() {
				var ratios, rates []float64
				for range pairs {
					ours := measured(br, queue, n, func(seen func()) (stop func()) {
						bucket := buckettest.New(b, drip.Options{Size: 1_000_000, RefreshRate: 1_000_000})
						o := Options{URL: br.url, Queue: queue, Prefetch: prefetch, Entity: oneShop, Limiter: counting{bucket, seen, c.delay}}
						o.Handler = HandlerFunc(func(context.Context, *amqp.Delivery) error { return nil })
						return running(b, o)
					})
					br.empty(queue)
					hand := measured(br, queue, n, func(seen func()) (stop func()) {
						conn, err := amqp.Dial(br.url)
						br.must(err)
						ch, err := conn.Channel()
						br.must(err)
						br.must(ch.Qos(prefetch, 0, false))
						ended := make(chan struct{})
						go func() { defer close(ended); c.hand(br, ch, queue, seen) }()
						return func() { br.must(ch.Cancel("hand", false)); <-ended; conn.Close() }
					})
					br.empty(queue)
					ratios = append(ratios, hand.Seconds()/ours.Seconds())
					rates = append(rates, n/ours.Seconds())
				}
				b.ReportMetric(median(ratios), "of-hand-written")
				b.ReportMetric(median(rates), "messages/s")
			}
		})
	}
}

const prefetch = 256

// measured publishes n messages and returns the time between the first and the last message seen.
func measured(b *broker, queue string, n int64, start func(seen func()) (stop func())) time.Duration {
	b.publish(queue, numbered(0, int(n))...)
	var count atomic.Int64
	var first, last time.Time
	begun, done := make(chan struct{}), make(chan struct{})
	stop := start(func() {
		switch count.Add(1) {
		case 1:
			first = time.Now()
			close(begun)
		case n:
			<-begun
			last = time.Now()
			close(done)
		}
	})
	<-done
	stop()
	return last.Sub(first)
}

// empty removes the postponed messages, and the copies that a stop has left.
func (b *broker) empty(queue string) {
	for _, q := range b.lookAll(append(b.delayQueues(queue), queue, queue+".drip.due", queue+".by.hand")...) {
		_, err := b.ch.QueuePurge(q.Name, false)
		b.must(err)
	}
}

// counting tells of each question, and postpones everything if delay is not 0.
type counting struct {
	*drip.Bucket
	seen  func()
	delay time.Duration
}

func (c counting) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	c.seen()
	a, err := c.Bucket.Admit(ctx, entity, r)
	if c.delay > 0 && err == nil {
		err = c.Bucket.Cancel(ctx, entity, a)
		a = drip.Admission{Delay: c.delay}
	}
	return a, err
}

func acknowledging(b *broker, ch *amqp.Channel, queue string, seen func()) {
	deliveries, err := ch.Consume(queue, "hand", false, false, false, false, nil)
	b.must(err)
	for d := range deliveries {
		seen()
		b.must(d.Ack(false))
	}
}

func republishing(b *broker, ch *amqp.Channel, queue string, seen func()) {
	conn, err := amqp.Dial(b.url)
	b.must(err)
	defer conn.Close()
	out, err := conn.Channel()
	b.must(err)
	b.must(out.Confirm(false))
	target := queue + ".by.hand"
	b.must(declareQueue(out, target, Quorum, queue, 0))
	deliveries, err := ch.Consume(queue, "hand", false, false, false, false, nil)
	b.must(err)
	type pair struct {
		d       amqp.Delivery
		confirm *amqp.DeferredConfirmation
	}
	unconfirmed := make(chan pair, prefetch)
	acknowledged := make(chan struct{})
	go func() {
		defer close(acknowledged)
		for p := range unconfirmed {
			if p.confirm.Wait() {
				b.must(p.d.Ack(false))
			}
		}
	}()
	for d := range deliveries {
		seen()
		confirm, err := out.PublishWithDeferredConfirm("", target, true, false, amqp.Publishing{
			Headers: d.Headers, DeliveryMode: d.DeliveryMode, MessageId: d.MessageId, Body: d.Body, Expiration: "3600000",
		})
		b.must(err)
		unconfirmed <- pair{d, confirm}
	}
	close(unconfirmed)
	<-acknowledged
	_, err = out.QueueDelete(target, false, false, false)
	b.must(err)
}

func median[T cmp.Ordered](v []T) T {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
