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
// Storage forgets an entity once its bucket is full and no token is out, which changes no answer. There is no
// goroutine: about every 64 ms a caller looks through the next shard, so all shards have their turn in 16 seconds as
// long as there are decisions. Storage keeps an entity that was decided at another time than its own, as in a
// simulation, for a day at least.
//
// # Clock
//
// The clock is the wall clock at New plus the time that has passed since, so setting the machine's clock neither
// stops an entity nor gives it capacity.
package memory

import (
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

func init() {
	storage.Register("memory", func(_ context.Context, u *url.URL) (storage.Storage, error) {
		if u.Opaque+u.Host+u.Path+u.RawQuery != "" {
			return nil, errors.New(`memory: the URL has more than "memory:"`)
		}
		return New(), nil
	})
}

const (
	shards     = 256
	sweepEvery = 64         // ms between looks through two shards
	near       = 60_000     // ms that a caller's clock may be off and still count as the storage's
	day        = 86_400_000 // ms for which an entity that is not near is kept at least
)

// Storage keeps the state of entities in this process's memory. Make one with New. It is safe for concurrent use.
type Storage struct {
	seed   maphash.Seed
	opened time.Time
	shards [shards]shard

	_      [64]byte  // the fields below change; keep them off the cache lines above
	joints sync.Pool // of *joint

	due  atomic.Int64 // the time at which the next shard is due
	next atomic.Uint32
}

type shard struct {
	mu       sync.Mutex
	entities map[uint64]*entity // by the hash of the key
	place    int                // among the shards
	count    int                // of entities
	most     int                // the most entities since the map was made: maps do not shrink
	revision storage.Revision   // the last one given; one count for all keys, so a key that comes back repeats none
	_        [128 - 48]byte
}

type entity struct {
	key      string
	another  *entity // whose key has the same hash
	state    decision.State
	first    [1]decision.Line // the memory of Lines for an entity with one window
	leases   storage.Leases
	until    int64 // by the storage's clock
	revision storage.Revision
	raw      *[]byte // the bytes of Set, if nothing was decided since
	other    bool    // its time is not the storage's: it is decided in a simulation
}

// New returns an empty storage.
func New() *Storage {
	now := time.Now()
	// The clock begins on a whole millisecond: the time of a decision is the time of Read, cut.
	s := &Storage{seed: maphash.MakeSeed(), opened: now.Add(-time.Duration(now.Nanosecond() % 1e6))}
	s.joints.New = func() any { return new(joint) }
	for i := range s.shards {
		s.shards[i].entities, s.shards[i].place = map[uint64]*entity{}, i
	}
	return s
}

// Get implements [storage.Storage]. It sets Data only.
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return storage.State{}, storage.NoRevision, err
	}
	sh, hash := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entity(hash, key)
	switch {
	case e == nil:
		return storage.State{}, storage.NoRevision, nil
	case e.raw != nil:
		return storage.State{Data: bytes.Clone(*e.raw)}, e.revision, nil
	}
	return storage.State{Data: storage.Encode(&e.state, e.leases.All())}, e.revision, nil
}

// Set implements [storage.Storage].
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	raw := bytes.Clone(state.Data)
	sh, hash := s.shard(key)
	sh.mu.Lock()
	e := sh.entity(hash, key)
	current := storage.NoRevision
	if e != nil {
		current = e.revision
	}
	if current != rev {
		sh.mu.Unlock()
		return storage.ErrConflict
	}
	if e == nil {
		e = newEntity(key)
		sh.add(hash, e)
	}
	now := s.now()
	e.raw = &raw
	e.keep(now, state.Now, state.Until)
	sh.changed(e)
	sh.mu.Unlock()
	s.forget(now)
	return nil
}

// Do implements [storage.Atomic].
func (s *Storage) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (a decision.Answer, err error) {
	err = s.Apply(ctx, key, l, within, &op, &a)
	return a, err
}

// Apply is Do for callers that keep op and a on their stack. It sets a, and keeps neither.
func (s *Storage) Apply(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op *decision.Op, a *decision.Answer) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	if len(within) > 0 {
		return s.applyWithin(key, l, within, op, a)
	}
	sh, hash := s.shard(key)
	sh.mu.Lock()
	e := sh.entity(hash, key)
	known, now := e != nil, int64(0)
	if known && !e.other && op.Kind == decision.ReturnToken && op.Now == decision.OwnClock {
		now = e.state.Now // the time does not matter, and reading the clock costs as much as the rest
	} else {
		now = s.now() // in the lock, so that no decision's time is older than the last decision's
	}
	if !known {
		e = newEntity(key)
	} else if e.raw != nil {
		if err := e.decode(); err != nil {
			sh.mu.Unlock()
			return err
		}
	}
	if op.Now == decision.OwnClock {
		op.Now = now
	}
	l.Apply(&e.state, &e.leases, op, op.Now, a)
	sh.store(hash, e, l, op, now, known)
	sh.mu.Unlock()
	s.forget(now)
	return nil
}

// applyWithin is Apply within shared limits.
func (s *Storage) applyWithin(key string, l *decision.Limits, within []storage.Within, op *decision.Op, a *decision.Answer) error {
	j := s.joints.Get().(*joint)
	defer s.joints.Put(j)
	sh, hash := s.shard(key)
	j.begin(sh, hash, key)
	for i := range within {
		sh, hash := s.shard(within[i].Key)
		j.add(sh, hash, within[i].Key)
	}
	j.lock()
	now := s.now()
	err := j.find()
	if err == nil {
		if op.Now == decision.OwnClock {
			op.Now = now
		}
		for i := range within {
			e := j.parts[i+1].entity
			j.shared = append(j.shared, within[i].In(&e.state, &e.leases))
		}
		e := j.parts[0].entity
		l.ApplyWithin(&e.state, &e.leases, j.shared, op, op.Now, a)
		j.store(0, l, op, now)
		for i := range within {
			j.store(i+1, within[i].Limits, op, now)
		}
	}
	j.unlock()
	s.forget(now)
	return err
}

// keep sets the time from which the storage, whose clock is at now, may forget the entity, if that is end by a clock that
// is at theirs.
func (e *entity) keep(now, theirs, end int64) {
	span := end - theirs
	e.other = now-theirs > near || theirs-now > near
	if e.other {
		span = max(span, day)
	}
	e.until = now + span
}

// decode reads the bytes of Set.
func (e *entity) decode() error {
	leases, err := storage.Decode(*e.raw, &e.state)
	if err != nil {
		return err
	}
	if len(e.state.Lines) <= len(e.first) {
		e.state.Lines = e.first[:copy(e.first[:], e.state.Lines)]
	}
	e.leases, e.raw = *storage.NewLeases(leases), nil
	return nil
}

// Len returns the number of keys: entities, shared limits, and histories of drip.Options.History.
func (s *Storage) Len() int {
	n := 0
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		n += sh.count
		sh.mu.Unlock()
	}
	return n
}

// now returns the time in milliseconds.
func (s *Storage) now() int64 {
	return s.opened.UnixMilli() + time.Since(s.opened).Milliseconds()
}

// clock returns the time with all its digits.
func (s *Storage) clock() time.Time { return s.opened.Add(time.Since(s.opened)) }

// Read implements [storage.Reader].
func (s *Storage) Read(ctx context.Context, key string) (storage.Entry, error) {
	if err := s.usable(ctx); err != nil {
		return storage.Entry{}, err
	}
	sh, hash := s.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.entity(hash, key)
	if e == nil {
		e = newEntity(key)
	}
	return e.entry(s.clock())
}

// usable returns the error of a call that cannot succeed.
func (s *Storage) usable(ctx context.Context) error {
	if s.opened.IsZero() {
		return errors.New("memory: a Storage is made with New")
	}
	return ctx.Err()
}

// shard returns the shard of key, and the hash of key.
func (s *Storage) shard(key string) (*shard, uint64) {
	hash := maphash.String(s.seed, key)
	return &s.shards[hash%shards], hash
}

// forget looks through the next shard when it is due.
func (s *Storage) forget(now int64) {
	due := s.due.Load()
	if now < due || !s.due.CompareAndSwap(due, now+sweepEvery) {
		return
	}
	sh := &s.shards[s.next.Add(1)%shards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.forget(now)
}
