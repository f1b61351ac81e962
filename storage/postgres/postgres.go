package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/storage"
)

var (
	// ErrNoAnswer is wrapped by the error of a call that the server did not answer: it was not reached, the connection
	// broke, or Options.Timeout passed. Unless the cause, wrapped too, is a failure to connect, the call may have been
	// done all the same.
	//
	// What the server answers instead of doing the call is returned as a [pgconn.PgError]. Nothing has changed then.
	ErrNoAnswer = errors.New("postgres: no answer")

	// ErrNoSchema is wrapped by the error of a call that found no table. Call CreateSchema. Nothing has changed.
	ErrNoSchema = errors.New("postgres: the schema is missing or not complete")

	// ErrNotState is returned when the row of the entity holds something else than a state of a known version. Nothing
	// has changed.
	ErrNotState = errors.New("postgres: the row holds something else than the state of an entity")

	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("postgres: the storage is closed")
)

// Options of a Storage. The zero value is ready.
type Options struct {
	// Schema is where the table and the functions are. Storages that share a database and have different ones do not
	// share entities. Defaults to "drip".
	Schema string

	// MaxHold is how long a plain token may be out, as far as the storage can tell: when an entity with such tokens out
	// has run nothing for so long, their holders count as dead and all of them are back. It should be well above
	// the longest operation. When a bucket takes longer to fill, that time takes its place. Defaults to 24 hours.
	MaxHold time.Duration

	// Timeout is how long a call may take in the database, with all who share its transaction. It is for a server that
	// hangs: a caller leaves when its own context ends. Defaults to 5 seconds.
	Timeout time.Duration

	// DeleteEvery is how often the calls of this process have idle entities deleted. Below zero it is never: then
	// call DeleteIdle. Defaults to 10 minutes.
	DeleteEvery time.Duration

	// Remember is of how many entities the storage remembers the state, about 300 bytes each: a decision about another one
	// takes a second round trip. Defaults to 100,000.
	Remember int
}

// Storage keeps the state of entities in PostgreSQL. Make one with New or [storage.Open]. It is safe for concurrent
// use.
type Storage struct {
	pool    *pgxpool.Pool
	owned   bool // the pool was made here
	schema  string
	timeout time.Duration
	maxHold int64 // in milliseconds
	sql     *sql
	lane    lane
	memory  memory
	clock   clock
	closed  atomic.Bool

	deleteEvery time.Duration
	deleteDue   atomic.Int64 // by the reading of clock
}

// New returns a Storage that uses the pool. It connects to nothing yet. Close leaves the pool open.
func New(pool *pgxpool.Pool, o Options) (*Storage, error) {
	if o.Schema == "" {
		o.Schema = "drip"
	}
	for _, d := range []struct {
		name   string
		value  *time.Duration
		ifZero time.Duration
	}{
		{"MaxHold", &o.MaxHold, 24 * time.Hour},
		{"Timeout", &o.Timeout, 5 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.ifZero
		}
		if *d.value < time.Millisecond {
			return nil, fmt.Errorf("postgres: Options.%s is %v; it must be at least 1ms, or 0 for the default", d.name, *d.value)
		}
	}
	if o.DeleteEvery == 0 {
		o.DeleteEvery = 10 * time.Minute
	}
	if o.Remember == 0 {
		o.Remember = 100_000
	}
	if o.Remember < 0 {
		return nil, fmt.Errorf("postgres: Options.Remember is %d; it must be at least 1, or 0 for the default", o.Remember)
	}
	s := &Storage{
		pool: pool, schema: o.Schema, timeout: o.Timeout, maxHold: o.MaxHold.Milliseconds(),
		sql:         newSQL(o.Schema),
		memory:      memory{records: map[string]*record{}, most: o.Remember},
		clock:       clock{started: time.Now()},
		deleteEvery: o.DeleteEvery,
	}
	s.lane = lane{
		decide:   s.decide,
		senders:  min(maxSenders, int(pool.Config().MaxConns)),
		entities: map[string]*entity{},
	}
	s.deleteDue.Store(s.nextDelete())
	return s, nil
}

func init() {
	storage.Register("postgres", open)
	storage.Register("postgresql", open)
}

func open(_ context.Context, u *url.URL) (storage.Storage, error) {
	rest, query := *u, u.Query()
	o := Options{Schema: query.Get("schema")}
	for name, d := range map[string]*time.Duration{
		"max_hold": &o.MaxHold, "timeout": &o.Timeout, "delete_every": &o.DeleteEvery,
	} {
		if given := query.Get(name); given != "" {
			var err error
			if *d, err = time.ParseDuration(given); err != nil {
				return nil, fmt.Errorf("postgres: %s is not a duration such as 1h", name)
			}
		}
		query.Del(name)
	}
	query.Del("schema")
	rest.RawQuery = query.Encode()
	config, err := pgxpool.ParseConfig(rest.String())
	if err != nil {
		return nil, errors.New("postgres: the URL is not one of a database") // pgx repeats it
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s, err := New(pool, o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Close makes every later call fail with ErrClosed. Calls under way are still answered; a pool that was opened from a
// URL is closed after them.
func (s *Storage) Close() error {
	if !s.closed.Swap(true) && s.owned {
		s.pool.Close()
	}
	return nil
}

// Get implements [storage.Storage].
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	state, rev, _, err := s.GetWithTime(ctx, key)
	return state, rev, err
}

// GetWithTime implements [storage.Timed], with the server's clock.
func (s *Storage) GetWithTime(ctx context.Context, key string) (state storage.State, rev storage.Revision, now time.Time, err error) {
	if err := s.usable(ctx); err != nil {
		return state, rev, now, err
	}
	var clock, revision int64
	var encoded []byte
	err = s.retry(ctx, func() error {
		return s.pool.QueryRow(ctx, s.sql.get, rowKey(key)).Scan(&clock, &revision, &encoded)
	})
	if err != nil {
		return state, rev, now, err
	}
	if revision != 0 && state.UnmarshalBinary(encoded) != nil {
		return state, rev, now, ErrNotState
	}
	return state, storage.Revision(revision), time.UnixMicro(clock), nil
}

// Set implements [storage.Storage]. The time of a state is a caller's.
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	keep := s.maxHold
	if state.Until < math.MaxInt64 && state.Ops.Last > 0 {
		keep = max(keep, state.Until-state.Ops.Last)
	}
	encoded, _ := state.MarshalBinary() // it returns no error
	args := []any{rowKey(key), newRevision(), encoded, keep}
	sql := s.sql.insert
	if rev != storage.NoRevision {
		sql, args = s.sql.update, append(args, int64(rev))
	}
	var stored int64
	err := s.retry(ctx, func() error {
		tag, err := s.pool.Exec(ctx, sql, args...)
		stored = tag.RowsAffected()
		return err
	})
	if err == nil && stored == 0 {
		return storage.ErrConflict
	}
	return err
}

const (
	// An entity that has expired counts as not stored.
	getSQL = "select clock, coalesce(revision, 0), state from (select " + micros + " as clock) c " +
		"left join drip.entity on key = $1 and revision <> 0 and expires > clock / 1000"
	insertSQL = "insert into drip.entity as e (key, revision, state, expires, callers_clock) " +
		"values ($1, $2, $3, " + micros + " / 1000 + $4, true) on conflict (key) do update set " +
		"(revision, state, expires, callers_clock) = row(excluded.revision, excluded.state, excluded.expires, true) " +
		"where e.expires <= " + micros + " / 1000"
	updateSQL = "update drip.entity set (revision, state, expires, callers_clock) = row($2, $3, " + micros + " / 1000 + $4, true) " +
		"where key = $1 and revision = $5 and expires > " + micros + " / 1000"

	deleteSQL = "delete from drip.entity where key = any (array(" +
		"select key from drip.entity, (select " + micros + " / 1000 as clock) c where expires <= clock limit $1 for update of entity skip locked))"
)

// sql is the statements in the storage's schema.
type sql struct {
	swap, check, empty, lock, store, drop string
	get, insert, update, delete           string
}

func newSQL(schema string) *sql {
	return &sql{
		in(schema, swapSQL), in(schema, checkSQL), in(schema, emptySQL), in(schema, lockSQL), in(schema, storeSQL), in(schema, dropSQL),
		in(schema, getSQL), in(schema, insertSQL), in(schema, updateSQL), in(schema, deleteSQL),
	}
}

// Do implements [storage.Atomic].
func (s *Storage) Do(ctx context.Context, key string, l *storage.Limits, op storage.Op) (storage.Answer, error) {
	if err := s.usable(ctx); err != nil {
		return storage.Answer{}, err
	}
	s.deleteNowAndThen()
	return s.lane.do(ctx, key, l, op)
}

// send sends statements in one round trip. They are one transaction, as long as none of them begins or ends one.
func (s *Storage) send(ctx context.Context, to interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}, queue func(*pgx.Batch)) error {
	var b pgx.Batch
	queue(&b)
	return to.SendBatch(ctx, &b).Close()
}

// retry does f until the server does not refuse it for what others did at the same time, or ctx ends. It makes the
// error one that this package documents.
func (s *Storage) retry(ctx context.Context, f func() error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := f()
		if err == nil {
			return nil
		}
		if !again(err) || ctx.Err() != nil {
			return s.failure(err)
		}
		time.Sleep(rand.N(wait))
	}
}

// again reports whether an error says that others did something at the same time. Nothing has changed then.
func again(err error) bool {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) {
		return false
	}
	switch answer.Code {
	case "40001", "40P01", "23505": // serialization_failure, deadlock_detected, unique_violation
		return true
	}
	return false
}

// failure makes an error of pgx one that this package documents.
func (s *Storage) failure(err error) error {
	var answer *pgconn.PgError
	if !errors.As(err, &answer) || answer.SeverityUnlocalized == "FATAL" { // which ends the connection
		if s.closed.Load() {
			return ErrClosed
		}
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	switch answer.Code {
	case "3F000", "42P01", "42703": // invalid_schema_name, undefined_table, undefined_column
		return fmt.Errorf("%w: %w", ErrNoSchema, err)
	}
	return err
}

// usable is the error of a call that need not be tried.
func (s *Storage) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// DeleteIdle deletes what is stored of entities that are as good as new. It does so a thousand at a time, and leaves those
// that are just decided about.
func (s *Storage) DeleteIdle(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	for {
		var deleted int64
		err := s.retry(ctx, func() error {
			tag, err := s.pool.Exec(ctx, s.sql.delete, deleteAtOnce)
			deleted = tag.RowsAffected()
			return err
		})
		if err != nil || deleted < deleteAtOnce {
			return err
		}
	}
}

const deleteAtOnce = 1000

// deleteNowAndThen has idle entities deleted when that is due.
func (s *Storage) deleteNowAndThen() {
	due := s.deleteDue.Load()
	if s.deleteEvery < 0 || s.clock.reading() < due || !s.deleteDue.CompareAndSwap(due, s.nextDelete()) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.deleteEvery)
		defer cancel()
		_ = s.DeleteIdle(ctx) // if it failed, the next one does it
	}()
}

// nextDelete is at random, so that processes do it in turn.
func (s *Storage) nextDelete() int64 {
	return s.clock.reading() + (s.deleteEvery/2 + rand.N(max(1, s.deleteEvery))).Microseconds()
}

// maxKey is the longest key of a row. The database indexes no more than 2704 bytes.
const maxKey = 512

// rowKey is the key of an entity's row: the entity, or of a long one its beginning and a hash of all of it.
func rowKey(entity string) []byte {
	if len(entity) < maxKey {
		return []byte(entity)
	}
	sum := sha256.Sum256([]byte(entity))
	return append([]byte(entity[:maxKey-len(sum)]), sum[:]...)
}
