package consumer

import (
	"errors"
	"sync/atomic"
	"time"
)

// outage knows when something begins to fail and when that is over, also if it does not fail for everybody.
type outage struct {
	on     atomic.Bool
	failed atomic.Int64 // the last time, ns since 1970
}

// outageOver is how long after its last failure something is believed to work: longer than any pause between two tries
// of a message that waits.
const outageOver = 2 * longestBackoff

// fails notes a failure, and reports whether it is the first.
func (o *outage) fails() bool {
	o.failed.Store(time.Now().UnixNano())
	return o.on.CompareAndSwap(false, true)
}

// works notes a success, and reports whether it ends the outage.
func (o *outage) works() bool {
	return o.on.Load() && time.Now().UnixNano()-o.failed.Load() > int64(outageOver) && o.on.CompareAndSwap(true, false)
}

// crowd counts the messages of a queue that wait in hand for the limiter's answer. It may fail for some entities and
// answer for others, so these are left an eighth of the prefetch. A nil crowd is never full.
type crowd struct {
	n    atomic.Int64
	most int64
}

func newCrowd(prefetch int) *crowd { return &crowd{most: int64(prefetch - max(prefetch/8, 1))} }

func (c *crowd) enter() {
	if c != nil {
		c.n.Add(1)
	}
}

func (c *crowd) leave() {
	if c != nil {
		c.n.Add(-1)
	}
}

func (c *crowd) isFull() bool { return c != nil && c.n.Load() > c.most }

// errCrowded is the error of a message that should wait elsewhere.
var errCrowded = errors.New("too many messages wait for an answer")

// crowdedDelay is what it spends there, but for the jitter.
const crowdedDelay = 5 * time.Second
