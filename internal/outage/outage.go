// Package outage tells what to log of something that fails: the beginning, each new cause, and the end.
package outage

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip/internal/panics"
)

// Outage knows when something begins to fail and when that is over, also if it does not fail for everybody. The zero
// value is ready; it is safe for concurrent use.
type Outage struct {
	on atomic.Bool // whether told is not nil, for each operation that works

	mu     sync.Mutex
	failed time.Time       // the last time
	told   map[string]bool // its causes so far
}

const (
	// over is how long after its last failure something is believed to work: longer than any pause between two tries of a
	// message that waits, which is ten seconds.
	over = 20 * time.Second

	// another is how long after the last failure one belongs to another outage, although nothing has shown that it works meanwhile.
	another = time.Minute

	// mostTold bounds the causes of an outage, whose texts may name what each try was for.
	mostTold = 10
)

// Fails notes a failure, and reports whether to tell of it: the outage has not had its cause yet.
func (o *Outage) Fails(err error) bool {
	text := cause(err)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == nil || time.Since(o.failed) > another {
		o.told = map[string]bool{}
	}
	o.failed = time.Now()
	o.on.Store(true)
	if o.told[text] || len(o.told) == mostTold {
		return false
	}
	o.told[text] = true
	return true
}

// Works notes a success, and reports whether it ends the outage.
func (o *Outage) Works() bool {
	if !o.on.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told == nil || time.Since(o.failed) <= over {
		return false
	}
	o.on.Store(false)
	o.told = nil
	return true
}

// cause returns the text of the innermost error. The texts around it may name an entity, a port or a request, which differ at
// each try. Methods of the user's errors may panic.
func cause(err error) (text string) {
	_ = panics.Caught(func() error {
		for inner := err; inner != nil; {
			err = inner
			if several, ok := err.(interface{ Unwrap() []error }); ok {
				all := several.Unwrap()
				inner = all[len(all)-1]
			} else {
				inner = errors.Unwrap(err)
			}
		}
		text = err.Error()
		return nil
	})
	return text
}
