// Package entities reads the entities of a storage and changes them, for the command and for the limits page, which both
// may not know the limits of the consumers.
package entities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Read reads an entity, in one round trip. Its error names the entity.
func Read(ctx context.Context, s storage.Storage, entity string) (storage.Entry, error) {
	r, ok := s.(storage.Reader)
	if !ok {
		return storage.Entry{}, errors.New("this storage cannot show its entities")
	}
	e, err := r.Read(ctx, entity)
	if err != nil {
		return e, fmt.Errorf("%q: %w", entity, err)
	}
	return e, nil
}

// Judge says what drip makes of entities that were read. It is safe for concurrent use.
type Judge struct {
	bucket *drip.Bucket
	limits bool // they are known
	from   storage.Storage

	mu     sync.Mutex
	shared map[string]storage.Entry // the shared limits as they were read last
	read   map[string]time.Time     // when that was
}

// NewJudge returns a Judge by the limits of these options, of which the Storage does not matter. If they are nil, its
// reports leave out what needs limits. Shared limits are read from s, once a second at most.
func NewJudge(o *drip.Options, s storage.Storage) (*Judge, error) {
	j := &Judge{limits: o != nil, from: s, shared: map[string]storage.Entry{}, read: map[string]time.Time{}}
	if o == nil {
		// By these nothing is forgotten soon.
		o = &drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 366 * 24 * time.Hour}
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

// sharedLimit reads a shared limit, if it was not read within the last second.
func (j *Judge) sharedLimit(ctx context.Context, key string, now time.Time) (storage.Entry, error) {
	if j.from == nil {
		return storage.Entry{Key: key, Time: now}, nil
	}
	j.mu.Lock()
	e, at := j.shared[key], j.read[key]
	j.mu.Unlock()
	if time.Since(at) < time.Second {
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

// SharedLimit is the name of the shared limit with this ID.
func SharedLimit(id string) (name string, ok bool) { return strings.CutPrefix(id, sharedMark) }

// Report is what is said of an entity. Without limits the Status has no meaning in what depends on them: Windows, Delay,
// Bound, Then, Booked and Concurrency.
type Report struct {
	drip.Status
	Limits  bool // they are known
	Changed bool // the last decision was made by other ones

	Plain    int       // tokens without a lease
	Decided  time.Time // the time of the last decision; zero: never
	Waiting  time.Time // the last slot that is promised; zero if it has passed
	Capacity []int64   // of each window, after the last decision
}

// Report says what is known of an entity, or a shared limit, that was read. It keeps nothing of e. One whose own limit
// cannot be told is reported on without limits.
func (j *Judge) Report(ctx context.Context, e storage.Entry) (*Report, error) {
	r, err := j.report(ctx, e, e.Key)
	if err != nil && ctx.Err() == nil {
		if r, err = ignorant().report(ctx, e, "any"); err == nil {
			r.Entity = e.Key
		}
	}
	return r, err
}

// report is Report by the limits of the entity, or shared limit, with this name.
func (j *Judge) report(ctx context.Context, e storage.Entry, name string) (*Report, error) {
	s, err := j.bucket.Inspect(context.WithValue(ctx, questionKey{}, question{name, &e}), name)
	r := &Report{Status: s, Limits: j.limits, Plain: int(e.State.Plain)}
	if !s.Known {
		return r, err
	}
	r.Decided = time.UnixMilli(e.State.Now)
	if last := time.UnixMilli(e.State.Slot); last.After(s.Time) {
		r.Waiting = last
	}
	for _, line := range e.State.Lines {
		r.Capacity = append(r.Capacity, line.Left)
	}
	r.Changed = j.limits && e.State.Print != printOf(s.Windows, e.State.Lines)
	return r, err
}

// printOf is the mark of windows in the state of the entities that are decided by them. The lines tell the numbers of units.
func printOf(windows []drip.WindowStatus, lines []decision.Line) int64 {
	var l decision.Limits
	for i, w := range windows {
		unit := int64(0)
		if i < len(lines) {
			unit = lines[i].Unit
		}
		l.Windows = append(l.Windows, decision.Window{
			Size: int64(w.Size), Rate: int64(w.RefreshRate), Interval: w.RefreshInterval.Milliseconds(), Unit: unit,
		})
	}
	l.Ready() // Print does not depend on what is missing
	return l.Print
}
