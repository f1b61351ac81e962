package main

import (
	"time"

	"github.com/drip-go/drip/internal/wheel"
)

// delayQueues is those of a Consumer, or those of DelayQueues in a consume loop that somebody else has written.
type delayQueues struct {
	prefix string
	early  int64 // of the first ring, in ms
}

type delayQueue struct {
	name  string
	ring  wheel.Ring
	slot  int64
	early int64 // in ms
}

// all are those that there may be.
func (d delayQueues) all() (all []delayQueue) {
	for i, r := range wheel.Rings {
		for slot := range r.Slots {
			q := delayQueue{name: d.prefix + r.Name(slot), ring: r, slot: slot}
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
	for _, r := range wheel.Rings[:wheel.Everyday] {
		names = append(names, d.prefix+r.Name(0))
	}
	return names
}

// expires is when the messages that are in the queue leave it. They do so together.
func (q delayQueue) expires(now time.Time) time.Time {
	slot := (now.UnixMilli() + q.early) / q.ring.Width
	slot += 1 + ((q.slot-slot-1)%q.ring.Slots+q.ring.Slots)%q.ring.Slots // the next one that this queue is for
	return time.UnixMilli(slot*q.ring.Width - q.early)
}
