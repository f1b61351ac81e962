package rabbitmq

import (
	"time"

	"github.com/drip-go/drip/internal/wheel"
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

type delayQueue struct {
	name  string
	ring  wheel.Ring
	slot  int64
	early int64 // in ms
}

// all returns the queues that may exist.
func (d delayQueues) all() (all []delayQueue) {
	for i, r := range d.layout.Rings {
		for slot := range r.Slots {
			q := delayQueue{name: d.prefix + d.layout.Queue(i, slot), ring: r, slot: slot}
			if i == 0 {
				q.early = d.early
			}
			all = append(all, q)
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

// expires returns when the messages in the queue leave it. They leave together.
func (q delayQueue) expires(now time.Time) time.Time {
	slot := (now.UnixMilli() + q.early) / q.ring.Width
	slot += 1 + ((q.slot-slot-1)%q.ring.Slots+q.ring.Slots)%q.ring.Slots // the next slot of this queue
	return time.UnixMilli(slot*q.ring.Width - q.early)
}
