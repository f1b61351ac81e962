package rabbitmq

import (
	"time"

	"github.com/drip-go/drip/internal/wheel"
	"github.com/drip-go/drip/queues"
)

// delayQueues are the delay queues of one layout: of a Consumer, or of DelayQueues in another consume loop.
type delayQueues struct {
	layout *wheel.Layout
	prefix string
	early  int64 // of the first ring, in ms
}

// delayQueuesOf returns the delay queues that a work queue may have.
func delayQueuesOf(queue string) (all []delayQueues) {
	for _, l := range wheel.Layouts {
		all = append(all, delayQueues{l, queue + ".drip.due.", wheel.Early}, delayQueues{l, queue + ".drip.", 0})
	}
	return all
}

// all returns the queues that may exist.
func (d delayQueues) all(now time.Time) (all []queues.Delay) {
	for i, r := range d.layout.Rings {
		early := int64(0)
		if i == 0 {
			early = d.early
		}
		for queue := range r.Slots {
			slot := (now.UnixMilli() + early) / r.Width
			slot += 1 + ((queue-slot-1)%r.Slots+r.Slots)%r.Slots // the next slot of this queue, whose messages leave it together
			all = append(all, queues.Delay{Name: d.prefix + d.layout.Queue(i, queue), Expires: time.UnixMilli(slot*r.Width - early)})
		}
	}
	return all
}

// firsts returns the names of the first queues of the rings that a consumer declares at the start.
func (d delayQueues) firsts() (names []string) {
	for ring := range d.layout.Everyday {
		names = append(names, d.prefix+d.layout.Queue(ring, 0))
	}
	return names
}
