package postgres

import (
	"context"
	"crypto/sha256"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// record is the row of an entity. A remembered record does not change.
type record struct {
	revision          int64 // 0: there is no row
	expires           int64
	callersClock      bool
	decidedAt, until  int64
	out               int64 // the number of leases
	firstEnd, lastEnd int64
	data              []byte

	contested bool // others have changed the row since the decision before
}

// fields returns the destinations of the columns in a scan.
func (r *record) fields() []any {
	return []any{&r.revision, &r.expires, &r.callersClock, &r.decidedAt, &r.until, &r.out, &r.firstEnd, &r.lastEnd, &r.data}
}

func (r *record) values(args ...any) []any {
	return append(args, r.revision, r.expires, r.callersClock, r.decidedAt, r.until, r.out, r.firstEnd, r.lastEnd, append([]byte{}, r.data...)) // nil would be null
}

// newRevision returns a revision that no key has had before.
func newRevision() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// rowKey returns the key of an entity's row: the entity, or the beginning of a long entity and a hash of all of it. No
// two entities have the same key: a key with a hash is longer than any other. long is nil if the key is the entity.
func rowKey(entity string) (key, long []byte) {
	const most = 512 // the database indexes no more than 2704 bytes
	if len(entity) < most {
		return []byte(entity), nil
	}
	sum := sha256.Sum256([]byte(entity))
	return append([]byte(entity[:most-len(sum)]), sum[:]...), []byte(entity)
}

// entry is a row with its leases.
type entry struct {
	record
	leases    []int64 // the id and the end of each
	number    int64   // of leases, without those that are left out
	key, name []byte  // of the row, and of the entity
	clock     int64   // the server's time, in microseconds
}

func (e *entry) fields() []any {
	return append(e.record.fields(), &e.leases, &e.number, &e.key, &e.name, &e.clock)
}

// told returns the entry as storage.Reader and storage.Lister do, but with all leases that were read.
func (e *entry) told() (t storage.Entry, err error) {
	t = storage.Entry{Key: string(e.name), Time: time.UnixMicro(e.clock)}
	if t.Leases, err = storage.Decode(e.data, &t.State); err != nil {
		return storage.Entry{}, notState(err)
	} else if len(e.data) > 0 && t.State.Tokens == 0 && len(t.Leases) == 0 { // the leases beside it are of an earlier version
		return t, nil
	}
	for l := e.leases; len(l) > 0; l = l[2:] {
		t.Leases = append(t.Leases, storage.Held{ID: l[0], End: l[1]})
	}
	t.Out = max(e.number, int64(len(t.Leases)))
	return t, nil
}

// get reads an entity and the first leases to end.
func (s *Storage) get(ctx context.Context, key string, most int64) (e entry, err error) {
	if err := s.usable(ctx); err != nil {
		return e, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	row, _ := rowKey(key)
	err = s.send(ctx, statement{sql: clockSQL, to: []any{&e.clock}}, statement{sql: s.sql.read, args: []any{row, most}, to: e.fields()})
	if err == nil && e.clock/1000 >= e.expires {
		e = entry{clock: e.clock, name: []byte(key)}
	}
	return e, err
}

// Get implements [storage.Storage]. The leases of an entity that Do has decided about are a part of Data.
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	e, err := s.get(ctx, key, math.MaxInt64)
	if err == nil && len(e.leases) > 0 {
		var told storage.Entry
		if told, err = e.told(); len(told.Leases) > 0 {
			e.data = storage.Encode(&told.State, told.Leases)
		}
	}
	if err != nil || e.revision == 0 {
		return storage.State{}, storage.NoRevision, err
	}
	return storage.State{Data: e.data, Now: e.decidedAt, Until: e.until}, storage.Revision(e.revision), nil
}

// Read implements [storage.Reader].
func (s *Storage) Read(ctx context.Context, key string) (storage.Entry, error) {
	e, err := s.get(ctx, key, storage.MostListed)
	if err != nil {
		return storage.Entry{}, err
	}
	t, err := e.told()
	t.Leases = t.Leases[:min(len(t.Leases), storage.MostListed)]
	return t, err
}

// Set implements [storage.Storage]. It keeps the key for Until - Now and at least for Options.MaxHold. If Until is
// [decision.Never] it keeps the key for Options.MaxHold.
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	s.deleteNowAndThen()
	ctx, cancel := s.limited(ctx)
	defer cancel()
	keep, stored := s.maxHold, 0
	if state.Until < decision.Never {
		keep = max(keep, min(state.Until-state.Now, decision.Never))
	}
	row, long := rowKey(key)
	args := []any{row, newRevision(), keep, state.Now, state.Until, append([]byte{}, state.Data...), int64(decision.Never)}
	set := statement{sql: s.sql.set, args: append(args, int64(rev)), to: []any{&stored}}
	if rev == storage.NoRevision {
		set.sql, set.args = s.sql.setNew, append(args, long)
	}
	err := s.send(ctx, set)
	s.memory.Put(key, nil)
	if err == nil && stored == 0 {
		return storage.ErrConflict
	}
	return err
}

// List implements [storage.Lister], in the order of the keys, a thousand rows in each round trip. It leaves out rows
// that hold no state.
func (s *Storage) List(ctx context.Context, each func(storage.Entry) error) error {
	const most = 1000
	for after, more := []byte{}, true; more; {
		entries, err := s.entriesAfter(ctx, after, most)
		if err != nil {
			return err
		}
		for _, e := range entries {
			after = e.key
			if t, err := e.told(); err != nil || t.State.Tokens == 0 {
				continue
			} else if err = each(t); err != nil {
				return err
			}
		}
		more = len(entries) == most
	}
	return nil
}

func (s *Storage) entriesAfter(ctx context.Context, key []byte, most int) (entries []entry, err error) {
	if err := s.usable(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	rows, _ := s.pool.Query(ctx, s.sql.list, key, storage.MostListed, most) // CollectRows returns its error
	entries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) { return e, row.Scan(e.fields()...) })
	return entries, s.failure(ctx, err)
}

// DeleteIdle deletes the rows of entities that have expired, ten thousand at a time. It passes over entities with a
// decision under way.
func (s *Storage) DeleteIdle(ctx context.Context) error {
	const most = 10_000
	for deleted := most; deleted == most; {
		if err := s.usable(ctx); err != nil {
			return err
		} else if err := s.send(ctx, statement{sql: s.sql.deletion, args: []any{most}, to: []any{&deleted}}); err != nil {
			return err
		}
	}
	return nil
}

// deleteNowAndThen deletes expired rows when a deletion is due.
func (s *Storage) deleteNowAndThen() {
	due := s.deleteDue.Load()
	if s.deleteEvery < 0 || s.clock.Reading() < due || !s.deleteDue.CompareAndSwap(due, s.nextDelete()) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(s.open, s.deleteEvery)
		defer cancel()
		_ = s.DeleteIdle(ctx) // if it fails, the next one does it
	}()
}

// nextDelete returns a random time, so that processes take turns.
func (s *Storage) nextDelete() int64 {
	return s.clock.Reading() + s.deleteEvery.Microseconds()/2 + rand.N(max(1, s.deleteEvery)).Microseconds()
}
