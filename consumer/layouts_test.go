package consumer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/wheel"
)

// A Consumer of one layout handles the messages in the delay queues of another layout in time: so an upgrade that changes the
// layout drains the old queues. Consumers of both layouts also run side by side.
func TestLayoutsDrainEachOther(t *testing.T) {
	t.Parallel()
	for _, few := range []bool{true, false} {
		t.Run(fmt.Sprint("few first ", few), func(t *testing.T) {
			b, queue := beside(t)
			t.Cleanup(func() { b.deleteAll(delayQueuesOf(&wheel.Few, queue)...) })
			const n = 200
			var l ledger
			limiter := each(t, func(int) time.Duration { return 5*time.Second + rand.N(10*time.Second) })
			o := Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: &l, FewQueues: few}
			first := running(t, o)
			b.publish(queue, numbered(0, n)...)
			eventually(t, "all wait", func() bool { return limiter.asked() == n })
			o.FewQueues = !few
			second := running(t, o)
			b.publish(queue, numbered(n, 2*n)...)
			time.Sleep(3 * time.Second)
			first()
			eventually(t, "all are handled", func() bool { return l.count() == 2*n })
			second()
			logLateness(t, limiter.late)
		})
	}
}

// All messages come back, none early. TestTakeHolds and TestWheel prove that a Consumer is as exact with few queues.
func TestMessagesComeBackWhenDue(t *testing.T) {
	for l, c := range map[*wheel.Layout]struct {
		queues  int
		longest time.Duration // which takes the second ring
	}{&wheel.Standard: {64, 15 * time.Second}, &wheel.Few: {18, 45 * time.Second}} {
		t.Run(fmt.Sprint(c.queues, " queues"), func(t *testing.T) {
			b, queue := beside(t)
			t.Cleanup(func() { b.deleteAll(delayQueuesOf(l, queue)...) })
			const n = 1000
			var done ledger
			limiter := each(t, func(int) time.Duration { return 50*time.Millisecond + rand.N(c.longest) })
			stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Handler: &done, FewQueues: l == &wheel.Few})
			b.publish(queue, numbered(0, n)...)
			eventually(t, "all are handled", func() bool { return done.count() == n })
			stop()
			logLateness(t, limiter.late)
			if done.twice() != 0 || limiter.out != 0 {
				t.Errorf("%d messages were handled twice, %d tokens were not returned", done.twice(), limiter.out)
			}
			if n := len(b.lookAll(delayQueuesOf(l, queue)...)); n != c.queues {
				t.Errorf("there are %d delay queues, want %d", n, c.queues)
			}
		})
	}
}

// A delay queue in which messages wait stays as long as a process publishes to it, although the broker removes a queue that nobody
// uses for much less time.
func TestUsedQueuesStay(t *testing.T) {
	bothTypes(t, func(t *testing.T, b *broker, queues QueueType, queue string) {
		const idle = 5 * time.Second
		try := func() (postponed, kept int, inTime bool) {
			q, err := newDelayQueues(DelayQueuesOptions{URL: b.url, Queue: queue, QueueType: queues}, quiet)
			b.must(err)
			defer q.Close()
			q.idle = idle
			due := time.Now().Add(time.Hour)
			p, _ := placeFor(q.layout, time.Now().UnixMilli(), due.UnixMilli(), q.held)
			defer b.deleteAll(q.name(p))
			used := time.Now()
			for end := used.Add(3 * idle); time.Now().Before(end); time.Sleep(idle / 4) { // a tick of quorum queues is five seconds
				began := time.Now()
				b.must(q.Postpone(t.Context(), &amqp.Delivery{}, time.Until(due)))
				postponed++
				q.using.Wait()
				if time.Since(used) > idle {
					return 0, 0, false
				}
				used = began
			}
			_ = servers.WithChannel(b.url, func(ch *amqp.Channel) error { // the queue may be gone
				for {
					_, ok, err := ch.Get(q.name(p), true)
					if !ok {
						return err
					}
					kept++
				}
			})
			return postponed, kept, time.Since(used) < idle
		}
		eventually(t, "the queue is used in time on a busy machine", func() bool {
			postponed, kept, inTime := try()
			if inTime && kept != postponed {
				t.Errorf("of %d messages %d were kept", postponed, kept)
			}
			return inTime
		})
	})
}

// The broker removes a delay queue that nobody uses for long, and no other queue of drip.
func TestIdleQueuesAreRemoved(t *testing.T) {
	for _, queues := range []QueueType{Quorum, Classic} {
		t.Run(string(queues), func(t *testing.T) {
			server, b := alone(t)
			c := made(t, Options{URL: b.url, Queue: "orders", QueueType: queues})
			c.delays.idle = time.Second
			stop := consuming(t, c)
			begun(t, b, "orders")
			stop()
			eventually(t, "all are removed", func() bool { // without a look at them, which renews classic queues
				delays, others := 0, 0
				for line := range strings.Lines(ctl(t, server, "list_queues", "--no-table-headers", "name", "arguments")) {
					delay := strings.Contains(line, ".v1.")
					if expires := strings.Contains(line, "x-expires"); expires != delay {
						t.Errorf("it expires: %v: %s", expires, line)
					}
					if delay {
						delays++
					} else {
						others++
					}
				}
				return delays == 0 && others == 3
			})
		})
	}
}
