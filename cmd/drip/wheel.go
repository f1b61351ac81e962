package main

import (
	"fmt"
	"time"
)

// ring is one of the timing wheel that package consumer makes of queues: slot n of time, n widths after 1970, waits in
// queue n mod slots.
type ring struct {
	width time.Duration
	slots int64
}

// The last ring is declared when it is needed, the others together at the start.
var rings = []ring{{250 * time.Millisecond, 24}, {4 * time.Second, 20}, {64 * time.Second, 20}, {1024 * time.Second, 16}}

// early is how long before its slot a message leaves the first ring of a Consumer, which holds it for the rest.
const early = 400 * time.Millisecond

// wheel is the delay queues of a Consumer, or those of DelayQueues in a consume loop that somebody else has written.
type wheel struct {
	prefix string
	early  time.Duration // of the first ring
}

// delayQueue is one of a wheel.
type delayQueue struct {
	name  string
	ring  ring
	slot  int64
	early time.Duration
}

// queues are all that a wheel may have.
func (w wheel) queues() (all []delayQueue) {
	for i, r := range rings {
		for slot := range r.slots {
			q := delayQueue{name: fmt.Sprintf("%s%s.%02d", w.prefix, r.name(), slot), ring: r, slot: slot}
			if i == 0 {
				q.early = w.early
			}
			all = append(all, q)
		}
	}
	return all
}

// firsts are the names of the first queues of the rings that are declared at the start.
func (w wheel) firsts() (names []string) {
	for _, r := range rings[:len(rings)-1] {
		names = append(names, w.prefix+r.name()+".00")
	}
	return names
}

func (r ring) name() string {
	if r.width < time.Second {
		return fmt.Sprintf("%dms", r.width.Milliseconds())
	}
	return fmt.Sprintf("%ds", r.width/time.Second)
}

// expires is when the messages that are in the queue leave it. They do so together.
func (q delayQueue) expires(now time.Time) time.Time {
	width := q.ring.width.Milliseconds()
	slot := (now.UnixMilli() + q.early.Milliseconds()) / width
	slot += 1 + ((q.slot-slot-1)%q.ring.slots+q.ring.slots)%q.ring.slots // the next one that this queue is for
	return time.UnixMilli(slot*width - q.early.Milliseconds())
}
