package rabbitmq

import (
	"time"

	"github.com/drip-go/drip/internal/wheel"
)

// delayQueues are those of a layout that a Consumer has, or DelayQueues in a consume loop that somebody else has written.
type delayQueues struct {
	layout *wheel.Layout
	prefix string
	early  int64 // of the first ring, in ms
}

// delayQueuesOf are those that there may be for a work queue.
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

// all are those that there may be.
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

// firsts are the names of the first queues of the rings that are declared at the start.
func (d delayQueues) firsts() (names []string) {
	for ring := range d.layout.Everyday {
		names = append(names, d.prefix+d.layout.Queue(ring, 0))
	}
	return names
}

// expires is when the messages that are in the queue leave it. They do so together.
func (q delayQueue) expires(now time.Time) time.Time {
	slot := (now.UnixMilli() + q.early) / q.ring.Width
	slot += 1 + ((q.slot-slot-1)%q.ring.Slots+q.ring.Slots)%q.ring.Slots // the next one that this queue is for
	return time.UnixMilli(slot*q.ring.Width - q.early)
}
