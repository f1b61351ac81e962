// Package wheel defines the delay queues that package consumer makes and that the command drip looks at.
//
// They are a timing wheel. A ring cuts time into slots of its width. Slot n is n widths after 1970, and its messages
// wait in queue n mod slots of the ring. The TTL of each ends when the slot does its part. So all messages of a queue
// expire together, and none waits behind one that is due later. A delay too long for a ring goes to the next, coarser
// one, comes back early and is placed again.
package wheel

import "fmt"

// Ring is the queues of one width.
type Ring struct {
	Width int64 // of a slot, in ms
	Slots int64 // queues
}

// Layout is the delay queues of a work queue. All layouts send due messages to the same queue. So processes with
// different layouts run side by side, and the messages in a layout that nobody uses any more come back like all others.
type Layout struct {
	// Name is a part of the queues' names. Anything that two processes must agree on, such as the rings or the
	// arguments of the queues' declarations, needs a new name when it changes.
	Name string

	// Rings are in order of their widths. The width of each is less than the reach of the ring before it. The first
	// Everyday are declared at the start. The others, for longer delays, are declared when they are needed.
	Rings    []Ring
	Everyday int
}

var (
	// Standard has 64 queues for delays of up to 19 minutes, and 16 for longer ones.
	Standard = Layout{"v1", []Ring{{250, 24}, {4_000, 20}, {64_000, 20}, {1_024_000, 16}}, 3}

	// Few has 18 queues for delays of up to two minutes, 8 more for delays of up to 14, and another 8 for longer ones.
	Few = Layout{"v1few", []Ring{{4_000, 10}, {24_000, 8}, {144_000, 8}, {864_000, 8}}, 2}

	// Layouts are all layouts.
	Layouts = []*Layout{&Standard, &Few}
)

// Early is how many milliseconds before its slot a message that a Consumer will hold leaves its queue of the first
// ring. Dead-lettering a thousand messages that are due at one instant takes the broker 270 ms with quorum queues
// (3.10, two cores). It takes longer while others are postponed and the messages of a coarser slot come back, too.
const Early = 700

// Queue is the name, behind the prefix, of a ring's queue: "v1.250ms.07", "v1.4s.00".
func (l *Layout) Queue(ring int, queue int64) string {
	if w := l.Rings[ring].Width; w%1000 > 0 {
		return fmt.Sprintf("%s.%dms.%02d", l.Name, w, queue)
	}
	return fmt.Sprintf("%s.%ds.%02d", l.Name, l.Rings[ring].Width/1000, queue)
}
