package consumer

import (
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
