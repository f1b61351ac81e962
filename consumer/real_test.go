package consumer

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	api "github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/storage"
)

// realVariable has the tests run that take more than half a minute.
const realVariable = "DRIP_TEST_REAL"

// The limits of the provider in these tests: leaky buckets.
var (
	shopRule = contenders.Bucket{Size: 40, PerSecond: 2}
	appRule  = contenders.Bucket{Size: 100, PerSecond: 50}
)

// sharer consumes within the shared limits.
func sharer(ctx context.Context, j job) error {
	s, err := storage.Open(ctx, j.Redis)
	if err != nil {
		return err
	}
	defer s.(io.Closer).Close()
	o := api.Options(shopRule.Keeps())
	o.Storage, o.Concurrency = s, 100
	o.Shared = map[string]drip.Limit{"app": appRule.Keeps()}
	bucket, err := drip.New(o)
	if err != nil {
		return err
	}
	return consume(ctx, Options{
		URL: j.RabbitMQ, Queue: j.Queue, Limiter: bucket,
		Entity: byType,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			op := OperationOf(ctx)
			refused, err := contenders.Send(ctx, j.Provider, url.Values{"shop": {d.Type}, "id": {d.MessageId}, "note": {fmt.Sprint(op.Postponements)}})
			if refused {
				return ThrottledShared("app", time.Second, nil)
			}
			return err
		}),
	})
}

// TestRealThing: 2,000 messages of 30 shops, each with 2 a second, within the app's 50 a second; two processes on RabbitMQ
// and Redis. The provider refuses nothing, and its limit is used.
func TestRealThing(t *testing.T) {
	if os.Getenv(realVariable) == "" {
		t.Skip("it takes 45 seconds; set " + realVariable)
	}
	const shops, messages = 30, 2000
	a := &contenders.App{Own: shopRule, All: appRule}
	providerURL, stop := a.Serve()
	defer stop()
	b := connect(t, useBroker(t))
	j := job{Kind: "shares", RabbitMQ: b.url, Redis: servers.UseRedis(t).URL(), Queue: b.queue(), Provider: providerURL}
	end := contenders.Start(t, 2, j)
	eventually(t, "both are there", func() bool { return b.consumers(j.Queue) == 2 || t.Failed() })
	all := ofShops(shops, 0, messages)
	rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	b.publish(j.Queue, all...)
	oktest.Eventually(t, 2*time.Minute, "all calls", func() bool { calls, _ := a.Calls(); return len(calls) >= messages || t.Failed() })
	end()
	if t.Failed() {
		return
	}
	var trips []int
	ids, sum := map[string]bool{}, 0
	calls, refused := a.Calls()
	for _, c := range calls {
		var n int
		fmt.Sscan(c.Note, &n)
		trips, sum = append(trips, n), sum+n
		ids[c.ID] = true
	}
	slices.Sort(trips)
	used, took := a.Used()
	mean := float64(sum) / messages
	t.Logf("%d calls in %v: %.1f%% of the app's limit; postponements mean %.2f, p99 %d, most %d; refused: %v",
		len(calls), took, 100*used, mean, trips[len(trips)*99/100], trips[len(trips)-1], refused)
	if len(ids) != messages || len(calls) != messages {
		t.Errorf("%d calls for %d of %d messages", len(calls), len(ids), messages)
	}
	if len(refused) > 0 {
		t.Errorf("the provider refused calls: %v", refused)
	}
	if used < 0.97 {
		t.Errorf("%.1f%% of the app's limit were used", 100*used)
	}
	if mean > 1.6 {
		t.Errorf("%.2f postponements a message", mean)
	}
}
