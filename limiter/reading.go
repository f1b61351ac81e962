package limiter

import (
	"context"
	"errors"
	"time"

	"github.com/drip-go/drip/storage"
)

var errNoAnswer = errors.New("no answer within " + storageTime.String())

// A reading is what is known of a limiter at a time, by the clock that decides and by the process's.
//
// A storage keeps it as a State, because any backend keeps those and tells who came first: the instant next is the ledger
// Wait. It is no Bucket's state. A Bucket counts whole units that come at the beginnings of intervals, and here they are
// fractions that come all the time; a Bucket's answers would not be those of the SDKs.
type reading struct {
	next, now instant
	born      instant // of this Limiter
	at        time.Time
	state     storage.State
	revision  storage.Revision
}

// load reads the limiter. With a storage it lets go of l.mu for the time that takes.
func (l *Limiter) load() (s reading, err error) {
	if l.storage == nil {
		s.at = time.Now()
		// The wall clock at New and the time that has passed since: setting the clock changes nothing.
		s.next, s.now = l.next, at(l.born.Add(s.at.Sub(l.born)))
		return s, nil
	}
	var clock time.Time
	err = l.io(func(ctx context.Context) error {
		var err error
		if l.timed != nil {
			s.state, s.revision, clock, err = l.timed.GetWithTime(ctx, l.key)
		} else {
			s.state, s.revision, err = l.storage.Get(ctx, l.key)
		}
		return err
	})
	s.at = time.Now()
	if l.timed == nil {
		clock = s.at
	}
	s.now = at(clock)
	s.born = s.now.before(s.at.Sub(l.born))
	s.next = instant{s.state.Wait.Last, s.state.Wait.Capacity}
	if s.revision == storage.NoRevision { // never used, or forgotten: it has saved for as long as we know of
		s.next = s.born
	}
	return s, err
}

// store makes next what the limiter knows, if nobody changed what was read.
func (l *Limiter) store(s reading, next instant) error {
	if l.storage == nil {
		l.next = next
		return nil
	}
	s.state.Ops.Last = s.now.ms
	s.state.Wait = storage.Ledger{Last: next.ms, Capacity: next.as}
	// Then all is saved that can be, and would be if the limiter was not known. Two: each is less than one too early.
	s.state.Until = later(next, s.born).ms + l.duration.Milliseconds() + 2
	return l.io(func(ctx context.Context) error { return l.storage.Set(ctx, l.key, s.state, s.revision) })
}

// io calls the storage, without l.mu.
func (l *Limiter) io(call func(context.Context) error) error {
	l.mu.Unlock()
	defer l.mu.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), storageTime)
	defer cancel()
	err := call(ctx)
	if err != nil && ctx.Err() != nil {
		return errNoAnswer // not the context's error: the caller's has not ended
	}
	return err
}
