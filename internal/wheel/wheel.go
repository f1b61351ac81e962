// Package wheel says what the delay queues are: those that package consumer makes and that the command drip looks at.
//
// They are a timing wheel. Time is cut into slots of a ring's width; the messages of slot n, which is n widths after 1970,
// wait in queue n mod slots of that ring, each with the TTL that ends when the slot does its part. So all messages of a
// queue expire together, and none waits behind one that is due later. A delay too long for a ring goes to the next,
// coarser one, comes back early and is placed again.
package wheel

import "fmt"

// Ring is the queues of one width.
type Ring struct {
	Width int64 // of a slot, in ms
	Slots int64 // queues
}

// Rings begin each but the first where the one before ends: the width is at most what that one reaches. The first Everyday
// are declared at the start and reach 19 minutes; the last, for longer delays, when it is needed.
var Rings = [...]Ring{{250, 24}, {4_000, 20}, {64_000, 20}, {1_024_000, 16}}

// Everyday is how many of Rings are for everyday use.
const Everyday = 3

// Early is how many milliseconds before its slot a message that a Consumer will hold leaves its queue of the first ring.
// Dead-lettering a thousand messages that are due at one instant takes the broker 270 ms with quorum queues (3.10, two
// cores), and longer while others are postponed and those of a coarser slot come back, too.
const Early = 700

// Name is a queue's name behind the prefix: "250ms.07", "4s.00".
func (r Ring) Name(queue int64) string {
	if r.Width < 1000 {
		return fmt.Sprintf("%dms.%02d", r.Width, queue)
	}
	return fmt.Sprintf("%ds.%02d", r.Width/1000, queue)
}
