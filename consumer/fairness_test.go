package consumer

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// However many handlers the options allow, a message finds a place.
func TestManyHandlers(t *testing.T) {
	for _, most := range []int{1, math.MaxInt32, math.MaxInt / 2, math.MaxInt} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := newPlaces(most).enter(ctx, "shop"); err != nil {
			t.Errorf("with %d places: %v", most, err)
		}
		cancel()
	}
}

// One entity with a great many waiting messages adds nothing to the wait of other entities. The log has the wait of the
// others, without and with it. DRIP_WAITING=100000 makes that many messages wait, and takes nine rounds instead of one.
func TestOneEntityDoesNotDelayOthers(t *testing.T) {
	waiting, rounds := 5000, 1
	if v := os.Getenv("DRIP_WAITING"); v != "" {
		var err error
		if waiting, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
		rounds = 9
	}
	b := connect(t, useBroker(t))
	queue := b.queue()
	bucket := buckettest.New(t, drip.Options{Size: 1000, RefreshRate: 1000, Limits: func(_ context.Context, entity string) (l drip.Limit, err error) {
		if entity == "slow" { // as a shop platform's
			l.Size, l.RefreshRate = 40, 2
		}
		return l, nil
	}})
	const others, each = 100, 10
	var mu sync.Mutex
	var waits []time.Duration
	var slow, postponed int
	running(t, Options{
		URL: b.url, Queue: queue, Limiter: bucket, Logger: quiet,
		Entity: byType,
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
	round := func() []time.Duration {
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
		return waits
	}
	// The first rounds are for warming up, or for the broker to write its messages to disk.
	measured := func() (p50, p99 time.Duration) {
		for range max(1, rounds/3) {
			round()
		}
		var all []time.Duration
		for range rounds {
			all = append(all, round()...)
		}
		slices.Sort(all)
		return all[len(all)/2], all[len(all)*99/100]
	}
	p50Alone, p99Alone := measured()
	messages := make([]amqp.Publishing, waiting)
	for i := range messages {
		messages[i] = amqp.Publishing{Type: "slow", DeliveryMode: amqp.Persistent}
	}
	b.publish(queue, messages...)
	eventuallyIn(t, 10*time.Minute, "they wait", func() bool { return b.count(queue) == 0 })
	p50, p99 := measured()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("%d waits of %d entities: p50 %v and p99 %v alone, %v and %v while %d messages of another wait",
		rounds*others*each, others, p50Alone, p99Alone, p50, p99, waiting-slow)
	if waiting-slow < waiting/2 {
		t.Error("too few of them have waited")
	}
	if postponed > 0 {
		t.Errorf("messages of the others were postponed %d times", postponed)
	}
}
