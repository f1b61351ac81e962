// Package memory is the default storage of drip: fast, and gone with the process.
//
// # URL
//
// "memory:" opens a new, empty storage. Importing the package registers the scheme.
//
// # Atomicity
//
// Storage is [storage.Atomic]. An entity belongs to one of 256 shards, a shard is a map behind a mutex, and a
// decision is made in place under that mutex without an allocation.
//
// # Expiry
//
// An entity is forgotten once its bucket is full and no token is out, which changes no answer. There is no
// goroutine: about every 64 ms the caller of that moment looks through the next shard, so all of them have their
// turn in 16 seconds as long as anything is decided.
//
// # Clock
//
// The clock is the wall clock at New plus the time that has passed since, so setting the machine's clock neither
// stops an entity nor gives it capacity.
package memory

import (
	"context"
	"hash/maphash"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip/storage"
)

func init() {
	storage.Register("memory", func(context.Context, *url.URL) (storage.Storage, error) { return New(), nil })
}

const (
	shards     = 256
	sweepEvery = 64 // ms between two shards looked through
)

// Storage keeps the state of entities in this process's memory. Make one with New. It is safe for concurrent use.
type Storage struct {
	seed   maphash.Seed
	opened time.Time
	sweeps [2]sweep // for each timeline
	shards [shards]shard
}

// A timeline says whose time an entity is decided by. Entities are forgotten by the times of their own timeline
// only: a simulation that runs through a year must not make the entities of the real clock look idle.
type timeline uint8

const (
	ownClock timeline = iota
	callersClock
)

// sweep is the progress of forgetting on one timeline.
type sweep struct {
	due  atomic.Int64 // the time the next shard is to be looked through
	next atomic.Uint32
}

type shard struct {
	mu       sync.Mutex
	entities map[string]*entity
	most     int              // the most entities since the map was made: maps do not shrink
	revision storage.Revision // the last one given; one count for all keys, so a key that comes back repeats none
	_        [64]byte         // keep neighbours off this cache line
}

type entity struct {
	storage.State
	revision storage.Revision
	timeline timeline
}

// New returns an empty storage.
func New() *Storage {
	s := &Storage{seed: maphash.MakeSeed(), opened: time.Now()}
	for i := range s.shards {
		s.shards[i].entities = map[string]*entity{}
	}
	return s
}

// Get implements [storage.Storage].
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	if err := ctx.Err(); err != nil {
		return storage.State{}, storage.NoRevision, err
	}
	sh := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.entities[key]; e != nil {
		return e.State.Clone(), e.revision, nil
	}
	return storage.State{}, storage.NoRevision, nil
}

// Set implements [storage.Storage].
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sh := s.shard(key)
	sh.mu.Lock()
	e := sh.entities[key]
	if current := revisionOf(e); current != rev {
		sh.mu.Unlock()
		return storage.ErrConflict
	}
	if e == nil {
		e = sh.add(key)
	}
	e.timeline = callersClock
	e.State = state.Clone()
	sh.changed(e)
	sh.mu.Unlock()
	s.forget(callersClock, state.Ops.Last)
	return nil
}

// Do implements [storage.Atomic].
func (s *Storage) Do(ctx context.Context, key string, l *storage.Limits, op storage.Op) (a storage.Answer, err error) {
	err = s.Apply(ctx, key, l, &op, &a)
	return a, err
}

// Apply is Do, and sets a, for callers who keep op and a on their stack. It does not keep them.
func (s *Storage) Apply(ctx context.Context, key string, l *storage.Limits, op *storage.Op, a *storage.Answer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now, line := op.Now, callersClock
	sh := s.shard(key)
	sh.mu.Lock()
	if now == storage.OwnClock && op.Kind.Timed() {
		now, line = s.now(), ownClock // in the lock, so that nobody decides by a time older than the last decision's
	}
	e := sh.entities[key]
	if e == nil {
		if op.Kind.OnKnown() {
			sh.mu.Unlock()
			return nil
		}
		e = sh.add(key)
		e.State = l.New()
	}
	l.Apply(&e.State, op, now, a)
	sh.changed(e)
	if !op.Kind.Timed() {
		sh.mu.Unlock()
		return nil
	}
	e.timeline = line
	sh.mu.Unlock()
	s.forget(line, now)
	return nil
}

// Len is the number of entities held.
func (s *Storage) Len() int {
	n := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += len(sh.entities)
		sh.mu.Unlock()
	}
	return n
}

func (s *Storage) now() int64 {
	return s.opened.UnixMilli() + time.Since(s.opened).Milliseconds()
}

// GetWithTime implements [storage.Timed].
func (s *Storage) GetWithTime(ctx context.Context, key string) (storage.State, storage.Revision, time.Time, error) {
	state, rev, err := s.Get(ctx, key)
	return state, rev, s.opened.Add(time.Since(s.opened)), err
}

func (s *Storage) shard(key string) *shard {
	return &s.shards[maphash.String(s.seed, key)%shards]
}

// forget looks through the next shard when that is due on the timeline, whose time is now.
func (s *Storage) forget(line timeline, now int64) {
	sw := &s.sweeps[line]
	due := sw.due.Load()
	early := due-sweepEvery <= now && now < due // a time long before is that of another simulation
	if early || !sw.due.CompareAndSwap(due, now+sweepEvery) {
		return
	}
	s.shards[sw.next.Add(1)%shards].forget(line, now)
}

func (sh *shard) forget(line timeline, now int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for key, e := range sh.entities {
		if e.timeline == line && e.Until <= now {
			delete(sh.entities, key)
		}
	}
	if len(sh.entities) < sh.most/4 {
		kept := make(map[string]*entity, len(sh.entities))
		for key, e := range sh.entities {
			kept[key] = e
		}
		sh.entities, sh.most = kept, len(kept)
	}
}

// add makes an entity. It requires sh.mu held, as changed does.
func (sh *shard) add(key string) *entity {
	e := &entity{}
	sh.entities[key] = e
	sh.most = max(sh.most, len(sh.entities))
	return e
}

// changed gives an entity its next revision.
func (sh *shard) changed(e *entity) {
	sh.revision++
	e.revision = sh.revision
}

func revisionOf(e *entity) storage.Revision {
	if e == nil {
		return storage.NoRevision
	}
	return e.revision
}
