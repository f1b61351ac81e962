package consumer

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// One entity with a great many messages that wait adds nothing to the wait of others. What others wait is in the log,
// without and with it; DRIP_WAITING=100000 has as many of them.
func TestOneEntityDoesNotDelayOthers(t *testing.T) {
	waiting := 5000
	if v := os.Getenv("DRIP_WAITING"); v != "" {
		var err error
		if waiting, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	b := connect(t, useBroker(t))
	queue := b.queue()
	bucket := newBucket(t, drip.Options{Size: 10, RefreshRate: 10})
	const others, each = 100, 10
	var mu sync.Mutex
	var waits []time.Duration
	var slow, postponed int
	running(t, Options{
		URL: b.url, Queue: queue, Limiter: bucket, Logger: quiet,
		Entity: func(d *amqp.Delivery) (string, error) { return d.Type, nil },
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			if d.Type == "slow" {
				slow++
				return nil
			}
			postponed += OperationOf(ctx).Postponements
			var sent int64
			fmt.Sscan(string(d.Body), &sent)
			waits = append(waits, time.Since(time.Unix(0, sent)))
			return nil
		}),
	})
	round := func() time.Duration {
		mu.Lock()
		waits = nil
		mu.Unlock()
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for i := range others * each {
			<-tick.C
			m := amqp.Publishing{Type: fmt.Sprint("shop", i%others), Body: fmt.Append(nil, time.Now().UnixNano()), DeliveryMode: amqp.Persistent}
			_, err := b.ch.PublishWithDeferredConfirm("", queue, true, false, m)
			b.must(err)
		}
		eventually(t, "all of the others are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(waits) == others*each })
		slices.Sort(waits)
		return waits[len(waits)*99/100]
	}
	round() // the first is for warming up
	without := round()
	messages := make([]amqp.Publishing, waiting)
	for i := range messages {
		messages[i] = amqp.Publishing{Type: "slow", DeliveryMode: amqp.Persistent}
	}
	b.publish(queue, messages...)
	eventuallyIn(t, 10*time.Minute, "they wait", func() bool { return b.count(queue) == 0 })
	with := round()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("p99 of %d waits of %d entities: %v alone, %v while %d messages of another wait", others*each, others, without, with, waiting-slow)
	if waiting-slow < waiting/2 {
		t.Error("too few of them have waited")
	}
	if postponed > 0 {
		t.Errorf("messages of the others were postponed %d times", postponed)
	}
}
