package consumer

import (
	"time"

	"github.com/drip-go/drip/internal/wheel"
)

const (
	early = wheel.Early

	// lead is how long before its time a message comes back from a coarser ring, to be placed again.
	lead = 1_000

	// longestDelay is the longest delay that a header can ask for.
	longestDelay = 366 * 24 * time.Hour
)

// place is where a message waits.
type place struct {
	ring  int   // index in the layout's rings
	queue int64 // of the ring
	leave int64 // when the message leaves that queue, ms since 1970
}

// placeFor finds the place in a layout of a message that is due at due. now and due are in ms since 1970. ok is false when
// there is no time to wait in a queue. With held the message leaves just before the slot it is due in, and the holder waits
// for the rest. Otherwise it leaves with the first slot that begins at due or later.
func placeFor(l *wheel.Layout, now, due int64, held bool) (p place, ok bool) {
	for i, r := range l.Rings {
		slot, leave := due/r.Width, int64(0)
		switch {
		case i > 0:
			slot = (due - lead) / r.Width
			leave = slot * r.Width
		case held:
			leave = slot*r.Width - early
		default:
			slot = (due + r.Width - 1) / r.Width
			leave = slot * r.Width
		}
		// The slot just ended may still be leaving its queue, and clocks of processes differ: two slots stay free.
		furthest := now/r.Width + r.Slots - 2
		if slot > furthest {
			if i < len(l.Rings)-1 {
				continue
			}
			slot = furthest
			leave = slot * r.Width
		}
		return place{ring: i, queue: slot % r.Slots, leave: leave}, leave > now
	}
	panic("unreachable")
}

// others returns the places that may replace p, the best first. With held the message comes back earlier, to be placed again.
// Otherwise it comes later.
func (p place) others(l *wheel.Layout, now int64, held bool) (others []place) {
	if held {
		for i := p.ring; i >= 0; i-- {
			r := l.Rings[i]
			ahead := int64(0)
			if i == 0 {
				ahead = early
			}
			last := min(p.leave, (now/r.Width+r.Slots-2)*r.Width-ahead)
			for slot := (last + ahead) / r.Width; ; slot-- {
				leave := slot*r.Width - ahead
				if leave <= now {
					break
				}
				if q := (place{ring: i, queue: slot % r.Slots, leave: leave}); q != p {
					others = append(others, q)
				}
			}
		}
		return others
	}
	for i := p.ring; i < len(l.Rings); i++ {
		r := l.Rings[i]
		for slot := (p.leave + r.Width - 1) / r.Width; slot <= now/r.Width+r.Slots-2; slot++ {
			if q := (place{ring: i, queue: slot % r.Slots, leave: slot * r.Width}); q != p {
				others = append(others, q)
			}
		}
	}
	return others
}

// asQueue returns the place without its time: the ring and the queue.
func (p place) asQueue() place {
	p.leave = 0
	return p
}
