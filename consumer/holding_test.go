package consumer

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// Waiting messages of one entity, more than Prefetch and Hold, hold up no other entity: neither messages that come for the
// first time nor messages that come back. All other messages are handled while they wait.
//
// Prefetch and Hold are as small as the promise allows. Waiting messages take nothing of Prefetch, and at most half of Hold
// for longer than until they are due. Besides, an entity's handlers take as many places as it has tokens.
func TestHoldingStarvesNobody(t *testing.T) {
	t.Parallel()
	broker := useBroker(t)
	for name, scenario := range map[string]func(*holding){
		"for a token":                      (*holding).forToken,
		"until it is due":                  (*holding).untilDue,
		"for an entity closed for minutes": (*holding).closedMinutes,
		"for an entity throttled an hour":  (*holding).throttledHour,
	} {
		for _, queues := range []QueueType{Quorum, Classic} {
			t.Run(fmt.Sprint(name, "/", queues), func(t *testing.T) {
				t.Parallel()
				h := &holding{t: t, b: connect(t, broker), queues: queues}
				h.queue = h.b.typed(queues)
				scenario(h)
			})
		}
	}
}

const (
	tightPrefetch = 2  // one for the handler of the slow entity, which has one token
	tightHold     = 20 // of which half may wait in the held queue
	slowMessages  = 60
)

// holding is a consumer with messages of the entity "slow" that wait, and of others.
type holding struct {
	t      *testing.T
	b      *broker
	queues QueueType
	queue  string
	stop   func()

	slow, others ledger
	postponed    atomic.Int64 // of the others
}

// begin begins to consume and publishes the messages of the slow entity.
func (h *holding) begin(l Limiter, slow HandlerFunc) *Consumer {
	h.t.Helper()
	c := made(h.t, Options{
		URL: h.b.url, Queue: h.queue, QueueType: h.queues, Limiter: l, Prefetch: tightPrefetch, Hold: tightHold,
		Entity: byType,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if d.Type == "slow" {
				if err := slow(ctx, d); err != nil {
					return err
				}
				return h.slow.Handle(ctx, d)
			}
			h.postponed.Add(int64(OperationOf(ctx).Postponements))
			return h.others.Handle(ctx, d)
		}),
	})
	h.stop = consuming(h.t, c)
	h.b.publish(h.queue, ofType("slow", 0, slowMessages)...)
	return c
}

// othersRun publishes messages of ten others, of which some have to be postponed, and waits until all are handled.
func (h *holding) othersRun() {
	h.t.Helper()
	messages := ofShops(10, 0, 200)
	h.b.publish(h.queue, messages...)
	eventually(h.t, "all of the others are handled", func() bool { return h.others.count() == len(messages) })
	if h.others.twice() != 0 || h.postponed.Load() == 0 {
		h.t.Errorf("of the others %d were handled twice; they were postponed %d times, want some", h.others.twice(), h.postponed.Load())
	}
}

// slowRuns waits until the slow entity's messages run again, and stops the consumer.
func (h *holding) slowRuns() {
	h.t.Helper()
	eventually(h.t, "those that waited run", func() bool { return h.slow.count() > tightHold/2 })
	h.accounted()
}

// slowWaits stops the consumer. No message of the slow entity has run.
func (h *holding) slowWaits() {
	h.t.Helper()
	h.accounted()
	if h.slow.count() != 0 {
		h.t.Errorf("%d messages have run", h.slow.count())
	}
}

// accounted stops the consumer: what was not handled is in the queues.
func (h *holding) accounted() {
	h.t.Helper()
	h.stop()
	eventually(h.t, "what was not handled is in the queues", func() bool {
		return h.b.ready(h.queue) == slowMessages-h.slow.count()
	})
	if h.slow.twice() != 0 {
		h.t.Errorf("%d messages were handled twice", h.slow.twice())
	}
}

// heldFull waits until as many messages wait in the held queue as may.
func (h *holding) heldFull(c *Consumer) {
	h.t.Helper()
	eventually(h.t, "as many wait in hand as may", func() bool {
		c.held.mu.Lock()
		defer c.held.mu.Unlock()
		return len(c.held.slots) == tightHold/2
	})
}

// reluctant is a bucket with one token for each entity that postpones some by little: of the others each fourth that asks,
// and of the slow entity the first so many.
type reluctant struct {
	*drip.Bucket
	first, slow, others atomic.Int64
}

func reluctantBucket(t testing.TB) *reluctant {
	return &reluctant{Bucket: buckettest.New(t, drip.Options{Size: 1000, Concurrency: 1})}
}

func (r *reluctant) Admit(ctx context.Context, entity string, q drip.Request) (drip.Admission, error) {
	if entity == "slow" && r.slow.Add(1) <= r.first.Load() || entity != "slow" && r.others.Add(1)%4 == 0 {
		return drip.Admission{Delay: 300 * time.Millisecond}, nil
	}
	return r.Bucket.Admit(ctx, entity, q)
}

func (h *holding) forToken() {
	release, letGo := context.WithCancel(h.t.Context()) // which ends before the consumer is stopped
	var running atomic.Int64
	bucket := reluctantBucket(h.t)
	ended := buckettest.Runs(h.t, bucket.Bucket, "slow", drip.Request{}) // else the others wait longer than in hand
	h.b.must(bucket.Settle(h.t.Context(), "slow", ended.Lease, 1))
	c := h.begin(bucket, func(context.Context, *amqp.Delivery) error {
		running.Add(1)
		<-release.Done()
		return nil
	})
	h.heldFull(c)
	h.othersRun()
	if running.Load() != 1 {
		h.t.Errorf("%d messages ran with one token", running.Load())
	}
	letGo()
	h.slowRuns()
}

func (h *holding) untilDue() {
	bucket := reluctantBucket(h.t)
	bucket.first.Store(math.MaxInt64) // by so little that they stay in hand
	h.begin(bucket, func(context.Context, *amqp.Delivery) error { return nil })
	eventually(h.t, "more are back than may be in hand", func() bool { return h.b.count(h.queue+".drip.due") > tightHold })
	h.othersRun()
	if h.slow.count() != 0 {
		h.t.Errorf("%d messages have run", h.slow.count())
	}
	bucket.first.Store(0)
	h.slowRuns()
}

func (h *holding) closedMinutes() {
	bucket := reluctantBucket(h.t)
	bucket.first.Store(slowMessages)                                 // which come back to find it closed
	h.b.must(bucket.Throttled(h.t.Context(), "slow", 4*time.Minute)) // for longer than this test may take
	h.begin(bucket, func(context.Context, *amqp.Delivery) error { return nil })
	eventually(h.t, "all are postponed for minutes", func() bool { return h.b.waitingIn(h.queue) == slowMessages })
	h.b.must(bucket.Throttled(h.t.Context(), "slow", 4*time.Minute)) // which took what time it took
	h.othersRun()
	h.slowWaits()
}

func (h *holding) throttledHour() {
	var refused atomic.Int64
	h.begin(reluctantBucket(h.t), func(context.Context, *amqp.Delivery) error {
		refused.Add(1)
		return Throttled(time.Hour, nil)
	})
	eventually(h.t, "all are postponed", func() bool { return h.b.waitingIn(h.queue) == slowMessages })
	h.othersRun()
	if refused.Load() != 1 {
		h.t.Errorf("%d messages were refused; after the first none was to run", refused.Load())
	}
	h.slowWaits()
}
