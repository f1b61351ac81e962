package consumer

import (
	"container/list"
	"math"
	"sync"
	"time"
)

// settling settles the deliveries of one channel. It acknowledges many deliveries with one frame when many end at once:
// frames are most of the cost of an acknowledgement, here and in the broker.
type settling struct {
	deliveries acknowledger

	enough int
	full   chan struct{} // gets a value when fresh has enough tags

	mu          sync.Mutex
	outstanding list.List // the tags of deliveries that are not over, in their order
	fresh       []uint64  // the tags to acknowledge
	ended       uint64    // how many deliveries were acknowledged or given back
	writing     bool
}

// gather is how long an acknowledgement waits for others, to be sent with them. If the process dies meanwhile, the broker
// delivers the handled messages again.
const gather = 5 * time.Millisecond

// newSettling makes the settling of a channel. At most enough acknowledgements wait, which should be a part of its prefetch.
func newSettling(deliveries acknowledger, enough int) *settling {
	return &settling{deliveries: deliveries, enough: max(enough, 1), full: make(chan struct{}, 1)}
}

type acknowledger interface { // an *amqp.Channel
	Ack(tag uint64, multiple bool) error
	Nack(tag uint64, multiple, requeue bool) error
}

// received notes a delivery. Call it in the order of the deliveries, and hand its result to ack or giveBack.
func (c *settling) received(tag uint64) *list.Element {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outstanding.PushBack(tag)
}

func (c *settling) giveBack(delivery *list.Element) error {
	if err := c.deliveries.Nack(delivery.Value.(uint64), false, true); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.outstanding.Remove(delivery)
	c.ended++
	return nil
}

// counts returns how many deliveries are in hand, and how many were settled.
func (c *settling) counts() (inHand int, ended uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.outstanding.Len(), c.ended
}

// ack acknowledges a delivery. A call while another call writes joins that write and returns nil even if the write fails: the
// channel is gone then, and no acknowledgement on it is certain anyway.
func (c *settling) ack(delivery *list.Element) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended++
	c.fresh = append(c.fresh, c.outstanding.Remove(delivery).(uint64))
	if c.writing {
		if len(c.fresh) == c.enough {
			c.full <- struct{}{}
		}
		return nil
	}
	c.writing = true
	defer func() { c.writing = false }()
	for len(c.fresh) > 0 {
		if len(c.fresh) < c.enough {
			c.mu.Unlock()
			within(gather, c.full)
			c.mu.Lock()
		}
		select {
		case <-c.full:
		default:
		}
		together, alone := c.take()
		c.mu.Unlock()
		err := c.write(together, alone)
		c.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

// take takes the tags to acknowledge: all up to together, unless it is 0, with one frame, and each of alone. together is a
// tag that the broker waits for, as the broker requires. take requires mu held.
func (c *settling) take() (together uint64, alone []uint64) {
	first := uint64(math.MaxUint64)
	if e := c.outstanding.Front(); e != nil {
		first = e.Value.(uint64)
	}
	for _, tag := range c.fresh {
		if tag < first {
			together = max(together, tag)
		} else {
			alone = append(alone, tag)
		}
	}
	c.fresh = c.fresh[:0]
	return together, alone
}

func (c *settling) write(together uint64, alone []uint64) error {
	if together > 0 {
		if err := c.deliveries.Ack(together, true); err != nil {
			return err
		}
	}
	for _, tag := range alone {
		if err := c.deliveries.Ack(tag, false); err != nil {
			return err
		}
	}
	return nil
}
