// Package entities reads the entities of a storage and changes them, for the command and for the limits page. Both know
// the limits of the consumers from the stored entities.
package entities

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/panics"
	"github.com/drip-go/drip/internal/reading"
	"github.com/drip-go/drip/storage"
)

// Read reads an entity, in one round trip. Its error names the entity.
func Read(ctx context.Context, s storage.Storage, entity string) (e storage.Entry, err error) {
	if strings.HasPrefix(entity, "history:") { // the storage has a record there that is no entity
		err = fmt.Errorf(`%w begins with "history:"`, drip.ErrNoEntity)
	} else if entity == sharedMark {
		err = fmt.Errorf("%w without a name after %q", drip.ErrNoEntity, sharedMark)
	} else {
		e, err = reading.Entity(ctx, s, entity)
	}
	if err != nil {
		return e, fmt.Errorf("%q: %w", entity, err)
	}
	return e, nil
}

// Judge reports on entities that were read, by their limits. It is safe for concurrent use.
type Judge struct {
	bucket *drip.Bucket
	limits bool // they are given
	within bool // shared limits, too
	from   storage.Storage

	mu     sync.Mutex
	shared map[string]storage.Entry // the shared limits as they were read last
	read   map[string]time.Time     // when that was
}

// NewJudge returns a Judge with the limits of these options, whose Storage does not matter. If they are nil, the Judge
// uses the limits that are stored with each entity; those do not tell which shared limits it is within. The Judge reads
// shared limits from s, every 50 ms at most.
func NewJudge(o *drip.Options, s storage.Storage) (*Judge, error) {
	j := &Judge{limits: o != nil, within: o != nil && o.Shared != nil, from: s, shared: map[string]storage.Entry{}, read: map[string]time.Time{}}
	if o == nil {
		o = &drip.Options{Limits: func(ctx context.Context, _ string) (drip.Limit, error) {
			return limitOf(ctx.Value(questionKey{}).(question).entry), nil
		}, Shared: numbered}
	}
	with := *o
	with.Storage, with.Clock = given{judge: j}, nil
	var err error
	j.bucket, err = drip.New(with)
	return j, err
}

// given is the storage of a Judge's Bucket: the entity that it reads is in the context.
type given struct {
	storage.Storage // nil: Inspect only reads
	judge           *Judge
}

// question is about an entry, under a key.
type question struct {
	key   string
	entry *storage.Entry
}

type questionKey struct{}

// Read implements storage.Reader. The Bucket gets a copy, as it is the caller's.
func (g given) Read(ctx context.Context, key string) (storage.Entry, error) {
	q := ctx.Value(questionKey{}).(question)
	e := *q.entry
	if key != q.key {
		var err error
		if e, err = g.judge.sharedLimit(ctx, key, e.Time); err != nil {
			return e, err
		}
	}
	e.State = e.State.Copy()
	return e, nil
}

// current is how long the state of a shared limit that was read is used. An older one seems to have room: operations have used since
// what it would have gained.
const current = 50 * time.Millisecond

// sharedLimit reads a shared limit, if it was not read just now.
func (j *Judge) sharedLimit(ctx context.Context, key string, now time.Time) (storage.Entry, error) {
	if j.from == nil {
		return storage.Entry{Key: key, Time: now}, nil
	}
	j.mu.Lock()
	e, at := j.shared[key], j.read[key]
	j.mu.Unlock()
	if time.Since(at) < current {
		return e, nil
	}
	e, err := Read(ctx, j.from, key)
	if err == nil {
		j.mu.Lock()
		j.shared[key], j.read[key] = e, time.Now()
		j.mu.Unlock()
	}
	return e, err
}

// sharedMark begins the IDs of shared limits.
var sharedMark = drip.SharedID("")

// SharedLimit returns the name of the shared limit with this ID.
func SharedLimit(id string) (name string, ok bool) { return strings.CutPrefix(id, sharedMark) }

// Report is the state of an entity. Without limits the fields of Status that depend on them have no meaning: Windows,
// Delay, Bound, Then, Booked and Concurrency.
type Report struct {
	drip.Status
	Limits  bool // they are known
	Given   bool // they are the limits of the Judge, not the stored ones
	Changed bool // the last decision was surely made by other ones

	Within   int       // the number of shared limits that its operations were within; 0 if the Judge has shared limits
	Plain    int       // tokens without a lease
	Decided  time.Time // the time of the last decision; zero: never
	Waiting  time.Time // the last slot that is promised; zero if it has passed
	Capacity []int64   // of each window that limits, after the last decision
}

// Report reports on an entity, or a shared limit, that was read. It keeps nothing of e. If the Judge does not know the
// entity's own limit, Report uses the stored one.
func (j *Judge) Report(ctx context.Context, e storage.Entry) (*Report, error) {
	name := e.Key
	if !j.limits {
		name = anybody // the entity's may be one of numbered
	}
	r, err := j.report(ctx, e, name)
	if err != nil && ctx.Err() == nil {
		r, err = ignorant().report(ctx, e, anybody)
	}
	if err == nil {
		r.Entity = e.Key
	}
	return r, err
}

// anybody is the name of an entity for a Judge that is given no limits.
const anybody = "any"

// report is Report by the limits of the entity, or shared limit, with this name. It returns a panic of the user's Limits or
// Weight as an error: they may not expect each name that a visitor asks for.
func (j *Judge) report(ctx context.Context, e storage.Entry, name string) (*Report, error) {
	var s drip.Status
	err := panics.Caught(func() (err error) {
		s, err = j.bucket.Inspect(context.WithValue(ctx, questionKey{}, question{name, &e}), name)
		return err
	})
	_, known := e.State.Limits()
	r := &Report{Status: s, Limits: j.limits || known, Given: j.limits, Plain: int(e.State.Plain)}
	if !s.Known {
		return r, err
	}
	r.Decided = time.UnixMilli(e.State.Now)
	last := e.State.Slot
	for _, f := range e.State.Flows { // of operations that wait for a shared limit
		if f.Key > 0 && f.Units+f.Later > 0 {
			last = max(last, f.Until)
		}
	}
	if last := time.UnixMilli(last); last.After(s.Time) {
		r.Waiting = last
	}
	for _, line := range e.State.Lines {
		if !Unlimited(int(line.Left)) {
			r.Capacity = append(r.Capacity, line.Left)
		}
	}
	for _, f := range e.State.Flows {
		if f.Key > 0 && !j.within {
			r.Within++
		}
	}
	r.Changed = j.limits && changed(s.Windows, e.State.Copy(), s.Time.UnixMilli())
	return r, err
}

// changed reports whether the limits in force surely differ from the stored ones. Stored limits at a level are rounded, so it cannot
// compare them.
func changed(windows []drip.WindowStatus, stored decision.State, now int64) bool {
	l, known := stored.Limits()
	return known && stored.Level() == 1 && !slices.EqualFunc(windows, l.InForce(&stored, now).Windows, func(a drip.WindowStatus, b decision.Window) bool {
		if b.Series != 0 { // the stored interval of the calendar has another beginning and length
			b.Interval = a.RefreshInterval.Milliseconds()
			b.Offset = a.Refresh.UnixMilli() - b.Interval
		}
		w := window(b)
		w.Unit = a.Unit // the names are not stored
		return a.Window == w
	})
}
