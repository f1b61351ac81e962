// Package outage tells when something begins to fail and when that is over.
package outage

import (
	"sync/atomic"
	"time"
)

// Outage knows when something begins to fail and when that is over, also if it does not fail for everybody. The zero
// value is ready; it is safe for concurrent use.
type Outage struct {
	on     atomic.Bool
	failed atomic.Int64 // the last time, ns since 1970
}

// over is how long after its last failure something is believed to work: longer than any pause between two tries of a
// message that waits, which is ten seconds.
const over = 20 * time.Second

// Fails notes a failure, and reports whether it is the first.
func (o *Outage) Fails() bool {
	o.failed.Store(time.Now().UnixNano())
	return o.on.CompareAndSwap(false, true)
}

// Works notes a success, and reports whether it ends the outage.
func (o *Outage) Works() bool {
	return o.on.Load() && time.Now().UnixNano()-o.failed.Load() > int64(over) && o.on.CompareAndSwap(true, false)
}
