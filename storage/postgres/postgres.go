// Package postgres keeps the entities of drip in PostgreSQL, where any number of processes share them. It is tested on
// PostgreSQL 15, and asks for nothing that is not in 10. For YugabyteDB see below.
//
// # URL
//
// "postgres://user:password@host:5432/database" with the parameters of [pgxpool.ParseConfig] and, for [Options], schema,
// max_hold, timeout and delete_every: "postgres://host/db?schema=limits&max_hold=1h". Importing the package registers
// the schemes postgres and postgresql. For a pool of your own call [New].
//
// # Schema
//
// There is one table, with a row for each entity. Nothing makes it by itself: call [Storage.CreateSchema] when a process
// starts, or put the text of [SchemaSQL] into your migrations. Without it calls fail with [ErrNoSchema].
//
// # Atomicity
//
// Storage is [storage.Atomic]. It remembers the state of the entities it has decided about, and the revision of their
// rows. So a decision is made in this process, and one statement stores it, in one round trip, if the row still has that
// revision and the time is still that of the decision. For an entity that other processes use as well it is this:
//
//   - Where the classic rules are enough, that is GetDelay and ReturnToken of an entity with one window that nobody was
//     admitted to, the statement takes or gives back the token, or promises the next slot, whatever the others have stored.
//     That is one round trip, too, for an entity that is new here as well. Others are expected until sixteen decisions in
//     a row were undisturbed.
//   - Otherwise the entity is read first: two round trips. When another process comes in between, the row is locked, read
//     and written in two round trips more. An entity for which that happens again and again is locked at once: two
//     round trips, during which the others wait.
//   - What finds out that things are not as remembered has spent a round trip on that: that another process has
//     changed the row, that the last of a window has just been taken, or all tokens are out.
//
// So several processes, each of which decides about an entity with Admit and Settle, take two round trips each time.
//
// Callers who wait at the same time share a round trip, and those who wait for the same entity share one statement
// besides. Nobody waits for company: a caller is sent at once unless several batches are under way.
//
// What the server refuses for what others did at the same time (40001, 40P01, 23505), because this process was stopped
// while it had a lock (25P03), or because a statement was late, which it says by dividing by zero (22012), is decided again
// until Timeout is over; nothing was stored then. A call whose answer is lost
// is not made again, for it might take a second token: it fails with [ErrNoAnswer], and may have been done. A token that it
// took is lost to the entity until it has run nothing for MaxHold.
//
// A caller whose context ends leaves at once. What was not sent yet is not decided; what was is, but a token is given
// back as soon as the answer comes.
//
// # Transactions and pools
//
// Decisions are no part of a transaction of yours: they use connections of the pool, up to four at a time, and one that
// you hold while you ask is not among them. They hold at every default_transaction_isolation. A connection that has been
// idle for a second is pinged by the pool before it is used, which is a round trip more.
//
// Behind PgBouncer use session or transaction pooling. In transaction pooling either set its max_prepared_statements
// above zero, which is there since version 1.21, or add default_query_exec_mode=exec to the URL. Statement pooling
// has no transactions, so it will not do.
//
// The database must be one that can be written to; with several hosts in the URL add target_session_attrs=read-write.
// synchronous_commit=off makes decisions faster where commits wait for a disk or a standby; if the server dies, the last
// ones are forgotten.
//
// # Expiry
//
// A row says when its entity is as good as new: from then on it counts as not stored. While plain tokens are out that is
// MaxHold after the last run, when they count as back. An entity that was decided at a time of the caller's is kept for
// MaxHold after each call, for the server's clock says nothing about that time. Now and then a call has the rows of
// idle entities deleted, see DeleteEvery.
//
// # Clock
//
// Unless the caller gives a time, the server's clock decides, so the clocks of the processes do not matter. One that is
// remembered is only used if it is not ahead of the server's, and in the same interval of every window, when the decision
// is stored, however long it had to wait for the row. What is decided about a row that was locked first is decided at the
// time when that was read. When the server's clock steps back, entities stand still until it is where it was.
//
// # YugabyteDB
//
// Nothing was run on YugabyteDB. There are only plain statements and row locks here, which it has: no function, no
// trigger, no advisory lock. By its documentation this is what differs:
//
//   - Unless yb_enable_read_committed_isolation is set, read committed is snapshot isolation there, and conflicts come as
//     40001 where PostgreSQL waits. They are decided again, as above.
//   - The clock is that of the node a connection is to. What an entity has run keeps its time from going back, but
//     decisions through different nodes may be off by what their clocks differ.
//   - The table is sharded by a hash of the key, so entities spread over the nodes, and [Storage.List] and the deletion
//     of idle rows look at all of them. The fillfactor means nothing there.
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
	// Schema is where the table is. Storages that share a database and have different ones do not share entities.
	// Defaults to "drip".
	Schema string

	// MaxHold is how long a plain token may be out, as far as the storage can tell: when an entity with such tokens out
	// has run nothing for so long, their holders count as dead and all of them are back. It should be well above
	// the longest operation. When a bucket takes longer to fill, that time takes its place. Defaults to 24 hours.
	MaxHold time.Duration

	// Timeout is how long a call may take in the database, with all who share its transaction, or up to an eighth less,
	// and twice the time for which a process that stops in the middle may keep the others from the entities of its batch,
	// 64 at most. Who waits for such rows in four batches keeps its other entities waiting, too. It is for a server that
	// hangs: a caller leaves when its own context ends. Defaults to 5 seconds.
	Timeout time.Duration

	// DeleteEvery is how often the calls of this process have idle entities deleted. Below zero it is never: then
	// call DeleteIdle. Defaults to 10 minutes.
	DeleteEvery time.Duration

	// Remember is of how many entities the storage remembers the state, about 300 bytes each: a decision about another one
	// may take a second round trip. Defaults to 100,000.
	Remember int
}

// Storage keeps the state of entities in PostgreSQL. Make one with New or [storage.Open]. It is safe for concurrent
// use.
type Storage struct {
	pool    *pgxpool.Pool
	owned   bool // the pool was made here
	plain   bool // it sends statements as pgx does by default
	schema  string
	timeout time.Duration
	maxHold int64 // in milliseconds
	sql     *sql
	lane    lane
	memory  memory
	clock   clock
	closed  atomic.Bool

	deadlines deadlines

	isolated atomic.Bool // sessions begin transactions at a level that refuses to wait for others

	deleteEvery time.Duration
	deleteDue   atomic.Int64    // by the reading of clock
	open        context.Context // ends with Close
	end         context.CancelFunc
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
		pool: pool, plain: plain(pool.Config()), schema: o.Schema, timeout: o.Timeout, maxHold: o.MaxHold.Milliseconds(),
		sql:         newSQL(o.Schema),
		memory:      memory{records: map[string]*record{}, most: o.Remember},
		clock:       clock{started: time.Now()},
		deadlines:   deadlines{after: o.Timeout},
		deleteEvery: o.DeleteEvery,
	}
	s.lane = lane{
		decide:   s.decide,
		senders:  min(maxSenders, int(pool.Config().MaxConns)),
		entities: map[string]*entity{},
	}
	s.open, s.end = context.WithCancel(context.Background())
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

// Close makes every later call fail with ErrClosed. Calls that were sent are still answered. A pool that was opened from
// a URL is closed, for which Close waits until they are; those that wait for a connection then fail with ErrClosed, too.
func (s *Storage) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.end()
	if s.owned {
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
func (s *Storage) GetWithTime(ctx context.Context, key string) (storage.State, storage.Revision, time.Time, error) {
	if err := s.usable(ctx); err != nil {
		return storage.State{}, storage.NoRevision, time.Time{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	var r record
	var clock float64
	var numbers []int64
	err := s.retry(ctx, func() error {
		return s.pool.QueryRow(ctx, s.sql.read.sql, rowKey(key)).Scan(&clock, &r.revision, &numbers, &r.expires, &r.callersClock)
	})
	if err == nil && !r.decode(numbers) {
		err = ErrNotState
	}
	if err != nil {
		return storage.State{}, storage.NoRevision, time.Time{}, err
	}
	now := toMicros(clock)
	if floor(now, 1000) >= r.expires {
		r = record{}
	}
	return r.state, storage.Revision(r.revision), time.UnixMicro(now), nil
}

// Set implements [storage.Storage]. The time of a state is a caller's.
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	keep := s.maxHold
	if state.Until < math.MaxInt64 {
		keep = max(keep, within(state.Until)-within(state.Ops.Last))
	}
	sql, args := s.sql.setNew.sql, appendState([]any{rowKey(key), newRevision(), keep}, &state)
	if rev == storage.NoRevision {
		args = append(args, longName(key))
	} else {
		sql, args = s.sql.set.sql, append(args, int64(rev))
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
	millis = "floor(extract(epoch from clock_timestamp()) * 1000)::bigint"

	// An entity that has expired counts as not stored.
	setNewSQL = "insert into drip.entity as e (key, revision, expires, callers_clock, " + columns + ", entity) " +
		"values ($1, $2, " + millis + " + $3, true, $4, $5, $6, $7, $8, $9, $10, $11) on conflict (key) do update set " +
		"revision = excluded.revision, expires = excluded.expires, callers_clock = true, ops_last = excluded.ops_last, " +
		"ops_capacity = excluded.ops_capacity, wait_last = excluded.wait_last, wait_capacity = excluded.wait_capacity, " +
		"in_use = excluded.in_use, until = excluded.until, booking = excluded.booking where e.expires <= " + millis
	setSQL = "update drip.entity set revision = $2, expires = " + millis + " + $3, callers_clock = true, ops_last = $4, " +
		"ops_capacity = $5, wait_last = $6, wait_capacity = $7, in_use = $8, until = $9, booking = $10 " +
		"where key = $1 and revision = $11 and expires > " + millis

	deleteSQL = "delete from drip.entity where key = any (array(" +
		"select key from drip.entity, (select " + millis + " as clock) c where expires <= clock limit $1 " +
		"for update of entity skip locked))"
)

// sql is the statements in the storage's schema.
type sql struct {
	read, check, swap, swapRuns, create, lock, store, storeNew text
	start, run, postpone, giveBack                             text
	set, setNew, delete, list                                  text
}

// text is that of a statement, and the name under which it is prepared if it is sent alone.
type text struct{ sql, name string }

func newSQL(schema string) *sql {
	in := func(source string) text {
		sql := in(schema, source)
		return text{sql, fmt.Sprintf("drip_%x", sha256.Sum224([]byte(sql)))}
	}
	return &sql{
		read: in(readSQL), check: in(checkSQL), swap: in(swapSQL), swapRuns: in(swapRunsSQL), create: in(createSQL),
		lock: in(lockSQL), store: in(storeSQL), storeNew: in(storeNewSQL),
		start: in(startSQL), run: in(runSQL), postpone: in(postponeSQL), giveBack: in(giveBackSQL),
		set: in(setSQL), setNew: in(setNewSQL), delete: in(deleteSQL), list: in(listSQL),
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

// retry does f until the server does not refuse it for what others did at the same time, or ctx ends. It makes the
// error one that this package documents.
func (s *Storage) retry(ctx context.Context, f func() error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := f()
		if err == nil {
			return nil
		}
		if !again(err) {
			return s.failure(err)
		}
		select {
		case <-time.After(rand.N(wait)):
		case <-ctx.Done():
			return s.failure(err)
		}
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
	case "22012": // division_by_zero: the statement was late
		return true
	case "25P03": // idle_in_transaction_session_timeout: this process was stopped for so long
		return true
	case "42P06", "42P07": // duplicate_schema, duplicate_table: two of CreateSchema
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

// DeleteIdle deletes what is stored of entities that are as good as new. It does so ten thousand at a time, and leaves
// those that are just decided about.
func (s *Storage) DeleteIdle(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	for {
		var deleted int64
		err := s.retry(ctx, func() error {
			tag, err := s.pool.Exec(ctx, s.sql.delete.sql, deleteAtOnce)
			deleted = tag.RowsAffected()
			return err
		})
		if err != nil || deleted < deleteAtOnce {
			return err
		}
	}
}

const deleteAtOnce = 10_000

// deleteNowAndThen has idle entities deleted when that is due.
func (s *Storage) deleteNowAndThen() {
	due := s.deleteDue.Load()
	if s.deleteEvery < 0 || s.clock.reading() < due || !s.deleteDue.CompareAndSwap(due, s.nextDelete()) {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(s.open, s.deleteEvery)
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

// rowKey is the key of an entity's row: the entity, or of a long one its beginning and a hash of all of it. No two have
// the same: those that are hashed are as long as no other.
func rowKey(entity string) []byte {
	if len(entity) < maxKey {
		return []byte(entity)
	}
	sum := sha256.Sum256([]byte(entity))
	return append([]byte(entity[:maxKey-len(sum)]), sum[:]...)
}

// longName is the entity if its key does not say it.
func longName(entity string) []byte {
	if len(entity) < maxKey {
		return nil
	}
	return []byte(entity)
}
