package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

func oneShop(*amqp.Delivery) (string, error) { return "shop", nil }

// perInterval fails the test if handlers ran at these times more often than the limit allows.
func perInterval(t *testing.T, times []time.Time, size, rate int, interval time.Duration) {
	t.Helper()
	for _, from := range times {
		n := 0
		first := from.UnixMilli() / interval.Milliseconds()
		last := first
		for _, at := range times {
			if !at.Before(from) {
				n++
				last = max(last, at.UnixMilli()/interval.Milliseconds())
			}
		}
		// A handler starts a moment after its admission: one interval more may have passed by then.
		if allowed := size + int(last-first+1)*rate; n > allowed {
			t.Errorf("%d ran in %d intervals, allowed are %d", n, last-first+1, allowed)
		}
	}
}

// unused fails the test if a token of the shop is out or a slot is booked.
func unused(t *testing.T, bucket *drip.Bucket) {
	t.Helper()
	if status := buckettest.Inspect(t, bucket, "shop"); status.InUse != 0 || status.Booked != 0 {
		t.Errorf("%d tokens are out, and %d slots are booked", status.InUse, status.Booked)
	}
}

// A user who can publish to the queues can forge tickets: messages still run, and the limit holds.
func TestForgedTickets(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 5, RefreshRate: 5, Concurrency: 1000})
	var l ledger
	var mu sync.Mutex
	var times []time.Time
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Entity: oneShop, Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
		mu.Lock()
		times = append(times, time.Now())
		mu.Unlock()
		return l.Handle(ctx, d)
	})})
	eventually(t, "the queues are there", func() bool { return b.consumers(queue+".drip.due") > 0 })
	now := time.Now().UnixMilli()
	tickets := []string{
		"", "1", "x", strings.Repeat("1.", 1000), "1.-5.-5.-5.-5.-5",
		"1.9223372036854775807.9223372036854775807.9223372036854775807.9223372036854775807.9223372036854775807",
		fmt.Sprintf("1.%d.%d.1.1.0", now-5000, now-6000), // another entity's, or one long given up
		fmt.Sprintf("1.%d.%d.1.1.0", now+3600_000, now),
		fmt.Sprintf("1.%d.%d.1000000.-9.0", now, now),
		fmt.Sprintf("2.%d.%d.1.1", now, now), "1.0.0.0.0.0", "1.1.1.1.1.1.1",
	}
	for i, ticket := range tickets {
		for _, q := range []string{queue, queue + ".drip.due"} {
			b.publish(q, amqp.Publishing{MessageId: fmt.Sprint(i, q), Headers: amqp.Table{
				headerNote: fmt.Sprintf("due=%d first=%d postponements=1 ticket=%s", now*1000, now, ticket), headerPrefix + "ticket": ticket,
			}})
		}
	}
	// Replayed: the same ticket again and again.
	for i := range 10 {
		b.publish(queue+".drip.due", amqp.Publishing{MessageId: fmt.Sprint("again", i), Headers: amqp.Table{
			headerNote: fmt.Sprintf("due=%d ticket=1.%d.%d.1.3.0", now*1000, now, now),
		}})
	}
	want := 2*len(tickets) + 10
	eventually(t, "all messages are handled", func() bool { return l.count() == want })
	stop()
	perInterval(t, times, 5, 5, time.Second)
}

// With one token for an entity its messages run one after the other, and most of the waiting is done in hand.
func TestMessagesWaitForTokens(t *testing.T) {
	b, queue := beside(t)
	bucket := buckettest.New(t, drip.Options{Size: 1000, Concurrency: 1, WaitForToken: 50 * time.Millisecond})
	var l ledger
	var trips atomic.Int64
	var running1 sync.Mutex
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: bucket, Entity: oneShop, Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
		if !running1.TryLock() {
			t.Error("two operations at once, with one token")
			return nil
		}
		defer running1.Unlock()
		time.Sleep(50 * time.Millisecond)
		trips.Add(int64(OperationOf(ctx).Postponements))
		return l.Handle(ctx, d)
	})})
	const n = 20
	b.publish(queue, numbered(0, n)...)
	eventually(t, "all messages are handled", func() bool { return l.count() == n })
	stop()
	if trips.Load() > 2*n {
		t.Errorf("%d messages made %d trips", n, trips.Load())
	}
	buckettest.Runs(t, bucket, "shop", drip.Request{}) // with the token that is back
}

// The entity is closed before the token of the refused operation is free, or another begins in between.
func TestThrottledHasItsToken(t *testing.T) {
	bucket := buckettest.New(t, drip.Options{Size: 10, Concurrency: 1})
	var closed []bool
	l := &buckettest.Hooked{Bucket: bucket, Before: func(_ context.Context, method string, _ int) error {
		if method == "Settle" {
			closed = append(closed, !buckettest.Inspect(t, bucket, "shop").ClosedUntil.IsZero())
		}
		return nil
	}}
	var p postponed
	h := Limit(l, oneShop, &p)(HandlerFunc(func(context.Context, *amqp.Delivery) error { return Throttled(time.Hour, nil) }))
	must(t, h.Handle(t.Context(), &amqp.Delivery{}))
	if !slices.Equal(closed, []bool{true}) || len(p) != 1 || p[0] < 59*time.Minute {
		t.Errorf("closed when settled: %v; postponed by %v", closed, p)
	}
}

// forToken is the answer to a message that waits for a token of its entity.
var forToken = drip.Admission{Delay: time.Hour, Bound: drip.BoundTokens}

// The queue wakes the first message that waits for a token, and has at most the given number of slots.
func TestHeldQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &heldQueue{most: 2}
		first, second := k.enter("shop", 0), k.enter("shop", 0)
		if k.enter("other", 0) != nil {
			t.Error("a third of two slots was taken")
		}
		woken := make(chan int, 2)
		wait := func(s *heldSlot, n int) { k.wait(t.Context(), s, forToken); woken <- n }
		go wait(second, 2)
		synctest.Wait()
		k.wake("shop", nil) // the first asks just now
		if n := <-woken; n != 2 {
			t.Errorf("slot %d was woken", n)
		}
		go wait(first, 1)
		go wait(second, 2)
		synctest.Wait()
		k.wake("nobody", nil)
		k.wake("shop", nil)
		if n := <-woken; n != 1 {
			t.Errorf("slot %d was woken, want the first", n)
		}
		began := time.Now()
		<-woken
		if time.Since(began) != time.Hour {
			t.Errorf("who is not woken waits for %v, want its hour", time.Since(began))
		}
		k.leave(first)
		k.leave(second)
		if len(k.slots) != 0 {
			t.Errorf("%d slots are left", len(k.slots))
		}
	})
}

// An operation wakes the first message that waits for a token of its entity, and the first one of any entity that waits for a token
// of a shared limit that the operation was within.
func TestHeldQueueOfSharedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var within []string
		s := taking(t, Options{
			Limiter: buckettest.New(t, drip.Options{Shared: map[string]drip.Limit{"app": {Size: 9}, "orders": {Size: 9}}}),
			Request: func(*amqp.Delivery) drip.Request { return drip.Request{Within: within} },
		})
		woken := make(chan string, 9)
		for _, c := range [][2]string{{"shop", ""}, {"shop", "app"}, {"other", "app"}, {"other", "orders"}} {
			slot, a := s.held.enter(c[0], 0), forToken
			a.Limit = c[1]
			go func() { s.held.wait(t.Context(), slot, a); woken <- c[0] + ":" + c[1] }()
			synctest.Wait()
		}
		for _, c := range []struct {
			entity string
			within []string
			want   []string
		}{
			{"third", []string{}, nil}, {"third", []string{"app"}, []string{"shop:app"}}, {"third", nil, []string{"other:app", "other:orders"}},
			{"shop", []string{}, []string{"shop:"}},
		} {
			within = c.within
			from := newSettling(&givenBack{}, 1)
			s.process(&delivery{message: open(amqp.Delivery{MessageId: c.entity}, time.Now(), false), from: from, tag: from.received(1)})
			synctest.Wait()
			var got []string
			for len(woken) > 0 {
				got = append(got, <-woken)
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("an operation of %s within %q wakes %q, want %q", c.entity, c.within, got, c.want)
			}
		}
	})
}
