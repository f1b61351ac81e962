package consumer

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

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
			limiter := each(t, func(int) time.Duration { return 5*time.Second + rand.N(25*time.Second) })
			o := Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet, FewQueues: few}
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
	for l, queues := range map[*wheel.Layout]int{&wheel.Standard: 64, &wheel.Few: 18} {
		t.Run(fmt.Sprint(queues, " queues"), func(t *testing.T) {
			b, queue := beside(t)
			t.Cleanup(func() { b.deleteAll(delayQueuesOf(l, queue)...) })
			const n = 1000
			var done ledger
			limiter := each(t, func(int) time.Duration { return 50*time.Millisecond + rand.N(45*time.Second) })
			stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &done, Logger: quiet, FewQueues: l == &wheel.Few})
			b.publish(queue, numbered(0, n)...)
			eventually(t, "all are handled", func() bool { return done.count() == n })
			stop()
			logLateness(t, limiter.late)
			if done.twice() != 0 || limiter.out != 0 {
				t.Errorf("%d messages were handled twice, %d tokens were not returned", done.twice(), limiter.out)
			}
			if n := len(b.lookAll(delayQueuesOf(l, queue)...)); n != queues {
				t.Errorf("there are %d delay queues, want %d", n, queues)
			}
		})
	}
}

// A delay queue that nobody uses for long is removed. One that is used is not, nor one in which messages wait, whoever
// looked last.
func TestIdleQueuesAreRemoved(t *testing.T) {
	for _, queues := range []QueueType{Quorum, Classic} {
		t.Run(string(queues), func(t *testing.T) {
			server, b := alone(t)
			const idle = 12 * time.Second
			existing := func() int { // without a look at them, which renews classic queues
				return strings.Count(ctl(t, server, "list_queues", "--no-table-headers", "name"), ".v1.")
			}
			var l ledger
			limiter := each(t, func(i int) time.Duration { return time.Second + time.Duration(i%10)*time.Second })
			consume := func() (stop func()) {
				c := made(t, Options{URL: b.url, Queue: "orders", QueueType: queues, Limiter: limiter, Entity: byID, Handler: &l, Logger: quiet})
				c.delays.idle = idle
				return consuming(t, c)
			}
			stop := consume()
			n := 0
			for end := time.Now().Add(2 * idle); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				b.publish("orders", numbered(n, n+2)...)
				n += 2
			}
			eventually(t, "all are handled", func() bool { return l.count() == n })
			stop()
			logLateness(t, limiter.late)
			eventually(t, "all are removed", func() bool { return existing() == 0 })
			if _, ok := b.look("orders.drip.due"); !ok {
				t.Error("the queue of due messages was removed")
			}
			stop = consume()
			b.publish("orders", numbered(n, n+20)...)
			eventually(t, "all are handled", func() bool { return l.count() == n+20 })
			stop()
		})
	}
}
