// Package postgres keeps the entities of drip in PostgreSQL, where any number of processes share them. It is tested on
// PostgreSQL 15, and needs nothing that is not in 10. docs/storage/postgres.md has more on poolers, standbys and
// YugabyteDB.
//
// # URL
//
// "postgres://user:password@host:5432/database" with the parameters of [pgxpool.ParseConfig] and, for [Options],
// schema, max_hold, timeout and delete_every: "postgres://host/db?schema=limits&max_hold=1h". Importing the package
// registers the schemes postgres and postgresql. For a pool of your own call [New].
//
// # Atomicity
//
// All rules are in package decision; SQL only reads and writes. Do decides in one of two ways:
//
//   - Compare and set, in one round trip. The storage remembers the entities that it has decided about, and decides in this
//     process. One statement stores the result if the row still has the remembered revision, the leases are as expected, and
//     the time is still the time of the decision. If the statement stores nothing, the storage locks.
//   - Lock, in two round trips. The storage locks and reads the row in the first one, and writes it in the second one. It does
//     this for entities that it does not remember, and for entities that others have changed since.
//
// A Throttle, a Pause, an Announce, a Pin with an end and decisions within shared limits use the lock. The storage
// locks the rows of the entity and of the limits in the order of their keys. Callers that wait at the same time share a
// round trip and a transaction.
//
// The cost of a decision does not depend on the number of leases that are out. The storage deletes leases that have
// ended when a decision depends on it, at most a thousand in a transaction; that takes more round trips.
//
// The server refuses a decision because of concurrent changes (40001, 40P01, 23505) or because this process stopped
// while it had a lock (25P03). It also refuses a late statement, which divides by zero (22012). Then nothing was
// stored, and the storage decides the call again until Timeout is over. It does not repeat a call whose answer is lost:
// the call fails with [ErrNoAnswer], and may have been done. A caller whose context ends leaves at once, and the
// storage gives back the token, lease or slot of its call.
//
// If statement_timeout or lock_timeout of the server ends a transaction because of one row, only the calls about that
// row fail. Nothing was stored, and the storage decides the others again.
//
// Decisions are not part of your transactions: they use connections of the pool, at most four at a time. They are
// correct at every default_transaction_isolation.
//
// # Expiry
//
// A row counts as not stored from the time on at which forgetting its entity changes no answer. While plain tokens are
// out, that is MaxHold after the last run, when they count as returned. The storage also keeps the entity for MaxHold
// at least if the caller gives times that are a minute or more away from the server's.
//
// # Clock
//
// Unless the caller gives a time, the server's clock decides. A decision that was made before it was sent is only
// stored if the server's clock has reached its time and is in the same interval of every window. When the server's
// clock steps back, entities stand still until it is where it was.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/address"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/internal/recall"
	"github.com/drip-go/drip/storage"
)

// Options of a Storage. The zero value is ready.
type Options struct {
	// Schema is the schema of the tables, at most 63 bytes. Storages with different schemas do not share entities.
	// Defaults to "drip".
	Schema string

	// MaxHold is how long a plain token may be out: when an entity with such tokens out has run nothing for so long,
	// all of them count as returned. It should be well above the longest operation. If a bucket takes longer to fill,
	// that time replaces it. At least 1ms. Defaults to 24 hours.
	MaxHold time.Duration

	// Timeout is the longest time that a call takes in the database, with all calls that share its transaction. A process
	// that stops in the middle of a transaction keeps the others from its entities, at most 64, for half of Timeout. A
	// caller leaves earlier when its own context ends. At least 1ms. Defaults to 5 seconds.
	Timeout time.Duration

	// DeleteEvery is how often the calls of this process delete expired rows. Below zero they never do: then call
	// DeleteIdle. Defaults to 10 minutes.
	DeleteEvery time.Duration

	// Remember is the most entities that the storage remembers, about 400 bytes each. A decision about another entity
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
	lane    *batch.Lane
	memory  *recall.Memory[record]
	clock   *recall.Clock
	closed  atomic.Bool

	deleteEvery time.Duration
	deleteDue   atomic.Int64    // by the reading of clock
	open        context.Context // ends with Close
	end         context.CancelFunc
}

// New returns a Storage that uses the pool. It connects to nothing yet. Close leaves the pool open. Callers that hold
// connections of the pool while they ask may hold all of them, and wait until Options.Timeout is over: give the Storage
// another pool. An error names the option.
func New(pool *pgxpool.Pool, o Options) (*Storage, error) {
	const (
		longestName = 63 // PostgreSQL cuts off the rest of a name
		maxSenders  = 4  // the most batches under way
		maxBatch    = 64 // the most entities in a batch, and so in a transaction
	)
	if pool == nil {
		return nil, errors.New("postgres: the pool is nil")
	}
	s := &Storage{
		pool: pool, schema: cmp.Or(o.Schema, "drip"), timeout: cmp.Or(o.Timeout, 5*time.Second),
		maxHold:     cmp.Or(o.MaxHold, 24*time.Hour).Milliseconds(),
		sql:         newSQL(o.Schema),
		memory:      recall.New[record](cmp.Or(o.Remember, 100_000)),
		clock:       recall.NewClock(),
		deleteEvery: cmp.Or(o.DeleteEvery, 10*time.Minute),
	}
	switch {
	case len(s.schema) > longestName:
		return nil, fmt.Errorf("postgres: Options.Schema has %d bytes; it must have at most %d", len(s.schema), longestName)
	case strings.Contains(s.schema, "\x00"): // pgx would leave it out, and the name be another's
		return nil, fmt.Errorf("postgres: Options.Schema is %q; it must have no zero byte", s.schema)
	case s.maxHold < 1:
		return nil, fmt.Errorf("postgres: Options.MaxHold is %v; it must be at least 1ms, or 0 for the default", o.MaxHold)
	case s.timeout < time.Millisecond:
		return nil, fmt.Errorf("postgres: Options.Timeout is %v; it must be at least 1ms, or 0 for the default", o.Timeout)
	case o.Remember < 0:
		return nil, fmt.Errorf("postgres: Options.Remember is %d; it must be at least 1, or 0 for the default", o.Remember)
	}
	s.lane = batch.New(min(maxSenders, int(pool.Config().MaxConns)), maxBatch, s.decide)
	s.open, s.end = context.WithCancel(context.Background())
	s.deleteDue.Store(s.nextDelete())
	return s, nil
}

func init() {
	storage.Register("postgres", open)
	storage.Register("postgresql", open)
}

func open(_ context.Context, u *url.URL) (storage.Storage, error) {
	var o Options
	rest, err := address.Split(u, map[string]any{"schema": &o.Schema, "max_hold": &o.MaxHold, "timeout": &o.Timeout, "delete_every": &o.DeleteEvery})
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	config, err := pgxpool.ParseConfig(rest)
	if err != nil {
		return nil, errors.New("postgres: the URL or one of its parameters is wrong") // pgx repeats it
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

// Close makes every later call fail with ErrClosed. Calls that were sent still get their answers. If the pool was
// opened from a URL, Close waits for these answers and closes the pool; calls that wait for a connection then fail with
// ErrClosed, too. First it gives back the tokens and slots of callers that have left, for at most Options.Timeout.
func (s *Storage) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.end()
	if s.owned {
		ctx, cancel := s.limited(context.Background())
		defer cancel()
		s.lane.Drain(ctx)
		s.pool.Close()
	}
	return nil
}

// Do implements [storage.Atomic].
func (s *Storage) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	if err := s.usable(ctx); err != nil {
		return decision.Answer{}, err
	}
	s.deleteNowAndThen()
	return s.lane.Do(ctx, key, key, l, within, op)
}

// CreateSchema makes the schema and the tables with the text of [SchemaSQL], if they are missing. Every process may
// call it when it starts.
func (s *Storage) CreateSchema(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.retry(ctx, func() error {
		var there bool
		err := s.pool.QueryRow(ctx, "select to_regclass($1) is not null and to_regclass($2) is not null",
			pgx.Identifier{s.schema, "entity"}.Sanitize(), pgx.Identifier{s.schema, "lease"}.Sanitize()).Scan(&there)
		if err == nil && !there { // otherwise it would need the right to create
			_, err = s.pool.Exec(ctx, SchemaSQL(s.schema)) // one transaction
		}
		return err
	})
}
