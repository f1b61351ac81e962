package consumer

import (
	"fmt"
	"time"
)

// The delay queues are a timing wheel. Time is cut into slots of a ring's width; the messages of slot n wait in
// queue n mod slots of that ring, each with the TTL that ends when the slot does its part. So all messages of a
// queue expire together, and none waits behind one that is due later. A delay too long for a ring goes to the
// next, coarser one, comes back early and is placed again.
type ring struct {
	width int64 // of a slot, in ms
	slots int64 // queues
}

// The first three rings are the 64 queues of everyday use and reach 19 minutes; the last serves longer delays.
// Each ring but the first begins where the one before ends: its width is at most what that one reaches.
var rings = [...]ring{{250, 24}, {4_000, 20}, {64_000, 20}, {1_024_000, 16}}

var everyday = rings[:3]

const (
	// early is how long before its slot a message that will be held leaves its queue. Dead-lettering a thousand
	// messages that are due at one instant takes the broker 270 ms with quorum queues (3.10, two cores), and longer
	// while others are postponed and those of a coarser slot come back, too.
	early = 700

	// lead is how long before its time a message comes back from a coarser ring, to be placed again.
	lead = 1_000

	// longestDelay bounds what a header can ask for.
	longestDelay = 366 * 24 * time.Hour
)

// place is where a message waits.
type place struct {
	ring  int   // index in rings
	queue int64 // of the ring
	leave int64 // when the message leaves that queue, ms since 1970
}

// placeFor finds the place of a message that is due at due, when it is now, both in ms since 1970; ok is false
// when there is no time to wait in a queue. A message that will be held leaves just before the slot it is due in
// and the holder waits for the rest; otherwise it leaves with the first slot that begins at due or later.
func placeFor(now, due int64, held bool) (p place, ok bool) {
	for i, r := range rings {
		slot, leave := due/r.width, int64(0)
		switch {
		case i > 0:
			slot = (due - lead) / r.width
			leave = slot * r.width
		case held:
			leave = slot*r.width - early
		default:
			slot = (due + r.width - 1) / r.width
			leave = slot * r.width
		}
		// The slot just ended may still be leaving its queue, and clocks of processes differ: two slots stay free.
		furthest := now/r.width + r.slots - 2
		if slot > furthest {
			if i < len(rings)-1 {
				continue
			}
			slot = furthest
			leave = slot * r.width
		}
		return place{ring: i, queue: slot % r.slots, leave: leave}, leave > now
	}
	panic("unreachable")
}

// asQueue is the place without its time: what makes a queue.
func (p place) asQueue() place {
	p.leave = 0
	return p
}

// name is the queue's name behind the prefix: "250ms.07", "4s.00".
func (p place) name() string {
	width := time.Duration(rings[p.ring].width) * time.Millisecond
	if width < time.Second {
		return fmt.Sprintf("%dms.%02d", width.Milliseconds(), p.queue)
	}
	return fmt.Sprintf("%ds.%02d", width/time.Second, p.queue)
}
