package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/panics"
	"github.com/drip-go/drip/storage"
)

var errNoAnswer = errors.New("no answer within " + storageTime.String())

// A reading is the state of a limiter at a time, by the clock that decides and by the process's clock.
//
// A storage keeps the instant next, in bytes that are no decision.State: a Bucket counts whole units that come at the
// beginnings of intervals, a Limiter counts fractions that come all the time. So the storage does not list a limiter
// as an entity, and refuses a Bucket's operations on it.
type reading struct {
	next, now instant
	born      instant // of this Limiter
	at        time.Time
	revision  storage.Revision
}

// format is the bytes that a storage keeps.
const format = "limiter %d %d"

// load reads the limiter. With a storage it lets go of l.mu for the time that takes.
func (l *Limiter) load() (s reading, err error) {
	if l.storage == nil {
		s.at = time.Now()
		// The wall clock at New and the time that has passed since: setting the clock changes nothing.
		s.next, s.now = l.next, at(l.born.Add(s.at.Sub(l.born)))
		return s, nil
	}
	var (
		stored   storage.State
		entry    storage.Entry
		unread   error
		together sync.WaitGroup
	)
	err = l.io(func(ctx context.Context) (err error) {
		if l.reader != nil { // for its clock
			together.Go(func() {
				unread = panics.Caught(func() (err error) {
					entry, err = l.reader.Read(ctx, l.key+"\x00clock") // of nobody: only the time matters
					return err
				})
			})
		}
		stored, s.revision, err = l.storage.Get(ctx, l.key)
		together.Wait()
		return cmp.Or(err, unread)
	})
	if err != nil {
		return s, err
	}
	s.at = time.Now()
	if l.reader == nil {
		entry.Time = s.at
	}
	s.now = at(entry.Time)
	s.born = s.now.before(s.at.Sub(l.born))
	if s.revision == storage.NoRevision { // never used, or forgotten: it has saved since this Limiter began
		s.next = s.born
		return s, nil
	}
	if _, err := fmt.Sscanf(string(stored.Data), format, &s.next.ms, &s.next.as); err != nil {
		return s, errors.New("the stored bytes are no limiter")
	}
	return s, nil
}

// store stores next, if the limiter has not changed since the reading.
func (l *Limiter) store(s reading, next instant) error {
	if l.storage == nil {
		l.next = next
		return nil
	}
	state := storage.State{
		Data: fmt.Appendf(nil, format, next.ms, next.as),
		Now:  s.now.ms,
		// From this time on the limiter has saved all that it can, as an unknown limiter has. Plus two, because both
		// are less than one too early.
		Until: later(next, s.born).ms + l.duration.Milliseconds() + 2,
	}
	return l.io(func(ctx context.Context) error { return l.storage.Set(ctx, l.key, state, s.revision) })
}

// io calls the storage, without l.mu.
func (l *Limiter) io(call func(context.Context) error) error {
	l.mu.Unlock()
	defer l.mu.Lock()
	ctx, cancel := context.WithTimeout(context.Background(), storageTime)
	defer cancel()
	err := panics.Caught(func() error { return call(ctx) })
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: %v", errNoAnswer, err) // not the context's error: the caller's has not ended
	}
	return err
}
