package postgres_test

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/attacks"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestMain(m *testing.M) {
	contenders.Main(contend)
	os.Exit(servers.Main(m))
}

// newPool connects to a server. Settings of the sessions may follow, as name and value.
func newPool(t testing.TB, url string, most int32, settings ...string) *pgxpool.Pool {
	t.Helper()
	return newTracedPool(t, nil, url, most, settings...)
}

func newTracedPool(t testing.TB, tracer pgx.QueryTracer, url string, most int32, settings ...string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	ok(t, err)
	config.MaxConns = most
	config.ConnConfig.Tracer = tracer
	config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	for i := 0; i < len(settings); i += 2 {
		config.ConnConfig.RuntimeParams[settings[i]] = settings[i+1]
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// deadlocks counts the deadlocks that the server ended by picking one of these sessions.
type deadlocks struct{ atomic.Int64 }

func (d *deadlocks) ended(err error) {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "40P01" {
		d.Add(1)
	}
}

func (d *deadlocks) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (d *deadlocks) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (d *deadlocks) TraceBatchEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	d.ended(data.Err)
}
func (d *deadlocks) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (d *deadlocks) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	d.ended(data.Err)
}

func sharedPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return newPool(t, servers.UsePostgres(t).URL(), 4)
}

// newSchema names a schema that no other test has.
func newSchema() string { return fmt.Sprintf("drip %x", rand.Uint64()) }

// newStorage makes a storage with a schema of its own.
func newStorage(t testing.TB) *postgres.Storage {
	t.Helper()
	return newStorageWith(t, sharedPool(t), postgres.Options{Schema: newSchema()})
}

func newStorageWith(t testing.TB, pool *pgxpool.Pool, o postgres.Options) *postgres.Storage {
	t.Helper()
	s, err := postgres.New(pool, o)
	ok(t, err)
	ok(t, s.CreateSchema(context.Background()))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// exec runs statements on the table of a schema, which they call drip.entity.
func exec(t testing.TB, pool *pgxpool.Pool, schema, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), in(schema, sql), args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t testing.TB, pool *pgxpool.Pool, schema, sql string, args ...any) (v T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), in(schema, sql), args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func in(schema, sql string) string {
	return strings.ReplaceAll(sql, "drip.", pgx.Identifier{schema}.Sanitize()+".")
}

// limits returns the limits of an entity that is full at first.
func limits(size, rate, interval int64) *decision.Limits {
	return buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: size, Rate: rate, Interval: interval}},
		Guess:   50, Lease: 60_000, MaxLease: 3_600_000, Tokens: 1 << 40, Start: -1 << 42,
	})
}

// plenty lets every operation run, and its only interval does not end while the tests run.
var plenty = limits(1<<40, 1<<40, 1<<40)

var ask, do, getDelay, read = buckettest.Ask, buckettest.Do, buckettest.GetDelay, buckettest.Read

var one = decision.Op{Kind: decision.Admit, Now: decision.OwnClock, Cost: decision.Cost{1}}

func begin(t testing.TB, pool *pgxpool.Pool, schema, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := pool.Begin(context.Background())
	ok(t, err)
	_, err = tx.Exec(context.Background(), in(schema, sql), args...)
	ok(t, err)
	return tx
}

// inUse is the number of plain tokens that are out.
func inUse(t testing.TB, s storage.Reader, key string) int64 {
	t.Helper()
	return read(t, s, key).State.Plain
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	oktest.Eventually(t, 30*time.Second, what, is)
}

func TestStorage(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) storage.Storage { return newStorage(t) })
}

func TestRecordedRuns(t *testing.T) {
	t.Parallel()
	ok(t, traces.Replay(t.Context(), newStorage(t), traces.Runs))
}

// steps is how many operations TestCompare does on each of its storages; a long run has 100000.
var steps = flag.Int("steps", 2000, "how many operations TestCompare does")

func TestCompare(t *testing.T) {
	t.Parallel()
	compare := func(t *testing.T, a storage.Atomic) {
		first := rand.Uint64()
		for seed := range uint64(*steps / 400) {
			storagetest.Compare(t, a, first+seed, 400)
		}
	}
	t.Run("one process", func(t *testing.T) { compare(t, newStorage(t)) })
	t.Run("two processes in turn", func(t *testing.T) {
		o := postgres.Options{Schema: newSchema()}
		compare(t, &inTurn{storages: []storage.Atomic{newStorageWith(t, sharedPool(t), o), newStorageWith(t, sharedPool(t), o)}})
	})
	t.Run("two processes at random, which forget", func(t *testing.T) {
		o := postgres.Options{Schema: newSchema(), Remember: 1}
		compare(t, &inTurn{random: true, storages: []storage.Atomic{newStorageWith(t, sharedPool(t), o), newStorageWith(t, sharedPool(t), o)}})
	})
}

// inTurn spreads the calls for one storage over several.
type inTurn struct {
	storages []storage.Atomic
	random   bool
	next     int
}

func (i *inTurn) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	if i.next++; i.random {
		i.next = rand.IntN(len(i.storages))
	}
	return i.storages[i.next%len(i.storages)].Do(ctx, key, l, within, op)
}

// The modes of pgx without prepared statements, for poolers that have none.
func TestExecModes(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			pool := newPool(t, servers.UsePostgres(t).URL()+"&default_query_exec_mode="+mode, 4, "datestyle", "SQL, DMY", "timezone", "Asia/Kathmandu")
			o := postgres.Options{Schema: newSchema()}
			s := newStorageWith(t, pool, o)
			storagetest.Compare(t, &inTurn{storages: []storage.Atomic{s, s, newStorageWith(t, pool, o)}}, 1, 200)
			storagetest.Compare(t, s, 2, 200)
			for i := range 5 {
				if d := getDelay(t, s, "shop", limits(3, 1, 1<<36)); (d == 0) != (i < 3) {
					t.Errorf("call %d: %v", i, d)
				}
			}
			long := strings.Repeat("long", 500)
			ok(t, s.Set(t.Context(), long, storage.State{Data: storage.Encode(&decision.State{Tokens: 1, Plain: 7}, nil), Until: 1 << 60}, storage.NoRevision))
			_, rev, err := s.Get(t.Context(), long)
			if n := inUse(t, s, long); err != nil || n != 7 {
				t.Fatalf("Get = %v, and %d tokens are out", err, n)
			}
			ok(t, s.Set(t.Context(), long, storage.State{Data: storage.Encode(&decision.State{Tokens: 1, Plain: 8}, nil), Until: 1 << 60}, rev))
			found := map[string]int64{}
			ok(t, errors.Join(s.DeleteIdle(t.Context()), s.List(t.Context(), func(e storage.Entry) error {
				found[e.Key] = e.State.Plain
				return nil
			})))
			if found[long] != 8 || found["shop"] != 3 {
				t.Errorf("List tells %d and %d", found[long], found["shop"])
			}
		})
	}
}

func TestOptions(t *testing.T) {
	pool := newPool(t, "postgres://nobody@127.0.0.1:1/none", 1)
	for _, o := range []postgres.Options{{MaxHold: -1}, {Timeout: time.Microsecond}, {Remember: -1}, {Schema: strings.Repeat("s", 64)}, {Schema: "s\x00"}} {
		if _, err := postgres.New(pool, o); err == nil || !strings.HasPrefix(err.Error(), "postgres: Options.") {
			t.Errorf("New with %+v = %v", o, err)
		}
	}
	if _, err := postgres.New(nil, postgres.Options{}); err == nil {
		t.Error("New without a pool returns no error")
	}
}

// A user that wants no limit gives the longest time that there is.
func TestLongestTimes(t *testing.T) {
	const longest = time.Duration(math.MaxInt64)
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema(), Timeout: longest, MaxHold: longest, DeleteEvery: longest}
	getDelay(t, newStorageWith(t, pool, o), "idle", plenty)
	exec(t, pool, o.Schema, "update drip.entity set expires = 0")
	for range 10 { // the time until the next deletion is random
		getDelay(t, newStorageWith(t, pool, o), "busy", plenty)
	}
	time.Sleep(50 * time.Millisecond)
	if n := query[int](t, pool, o.Schema, "select count(*) from drip.entity"); n != 2 {
		t.Errorf("%d rows are left, want 2: the next deletion is not due yet", n)
	}
}

func TestOpen(t *testing.T) {
	for _, query := range []string{"max_hold=x", "max_hold=-1s", "timeout=1ns", "pool_max_conns=none", "port=x"} {
		_, err := storage.Open(t.Context(), "postgres://me:secret@127.0.0.1:1/db?"+query)
		if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "not one of a database") {
			t.Errorf("Open with %s = %v", query, err)
		}
	}
	if _, err := storage.Open(t.Context(), "postgres:///me:secret@127.0.0.1:1/db"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open with three slashes = %v", err) // pgx repeats the name of the database
	}
	url := servers.UsePostgres(t).URL() + "&schema=opened&max_hold=1h&timeout=20s&delete_every=-1s&pool_max_conns=2"
	for range 2 { // the schema is there the second time
		opened, err := storage.Open(t.Context(), url)
		ok(t, err)
		s := opened.(*postgres.Storage)
		ok(t, s.CreateSchema(t.Context()))
		getDelay(t, s, "shop", plenty)
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Errorf("Close = %v", err)
		}
		for name, err := range map[string]error{
			"CreateSchema": s.CreateSchema(t.Context()), "DeleteIdle": s.DeleteIdle(t.Context()),
			"List": s.List(t.Context(), func(storage.Entry) error { return nil }),
		} {
			if !errors.Is(err, postgres.ErrClosed) {
				t.Errorf("%s after Close = %v, want ErrClosed", name, err)
			}
		}
	}
	if n := query[int64](t, sharedPool(t), "opened", "select count(*) from drip.entity"); n != 1 {
		t.Errorf("%d rows are in the schema of the URL, want 1", n)
	}
}

func TestSchema(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 16)
	for range 5 {
		o := postgres.Options{Schema: newSchema()}
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() { newStorageWith(t, pool, o) })
		}
		wg.Wait()
	}

	// By hand, and for a user who may do no more than the doc of SchemaSQL says.
	schema, user := newSchema(), fmt.Sprintf("user_%x", rand.Uint64())
	exec(t, pool, schema, postgres.SchemaSQL(schema))
	exec(t, pool, schema, "create role "+user+" login; grant usage on schema "+pgx.Identifier{schema}.Sanitize()+" to "+user+
		"; grant select, insert, update, delete on drip.entity, drip.lease to "+user)
	t.Cleanup(func() {
		exec(t, pool, schema, "drop table drip.entity, drip.lease; drop owned by "+user+"; drop role "+user)
	})
	s := newStorageWith(t, newPool(t, servers.UsePostgres(t).URL(), 4, "role", user), postgres.Options{Schema: schema})
	storagetest.Compare(t, s, 1, 200)
	ok(t, s.DeleteIdle(t.Context()))
	if def := postgres.SchemaSQL(""); !strings.Contains(def, "drip.entity") || def != postgres.SchemaSQL("drip") {
		t.Errorf("SchemaSQL of the default schema:\n%s", def)
	}
}

func TestList(t *testing.T) {
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, pool, o)
	want := map[string]int64{}
	for i := range 2300 {
		want[fmt.Sprint("shop", i)] = 1
	}
	want[strings.Repeat("x", 511)], want[strings.Repeat("x", 512)], want[strings.Repeat("x", 9000)] = 1, 1, 1
	want["\x00\xff"] = 1
	var wg sync.WaitGroup
	for key := range want {
		wg.Go(func() { getDelay(t, s, key, plenty) })
	}
	wg.Wait()
	for _, key := range []string{"idle", "broken"} {
		getDelay(t, s, key, plenty)
	}
	exec(t, pool, o.Schema, "update drip.entity set expires = 5 where key = 'idle'")
	exec(t, pool, o.Schema, "update drip.entity set data = 'x' where key = 'broken'")
	got := map[string]int64{}
	ok(t, s.List(t.Context(), func(e storage.Entry) error {
		if _, twice := got[e.Key]; twice || time.Since(e.Time).Abs() > time.Minute {
			t.Errorf("List tells %+v", e)
		}
		got[e.Key] = e.State.Plain
		return nil
	}))
	if len(got) != len(want) {
		t.Errorf("List tells %d entities, want %d", len(got), len(want))
	}
	for key := range want {
		if got[key] != 1 {
			t.Errorf("List tells %d tokens of %.20q, want 1", got[key], key)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := s.List(ctx, func(storage.Entry) error { cancel(); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v, want Canceled", err)
	}
}

// The memory of a process is bounded. It is safe that another sender makes it forget an entity at any time.
func TestForgetful(t *testing.T) {
	s := newStorageWith(t, sharedPool(t), postgres.Options{Schema: newSchema(), Remember: 2})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 30 {
				if d, err := ask(t.Context(), s, fmt.Sprint("shop", i%8), plenty); d != 0 || err != nil {
					t.Errorf("GetDelay = %v, %v", d, err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		if n := inUse(t, s, fmt.Sprint("shop", i)); n != 60 {
			t.Errorf("%d tokens of shop%d are out, want 60", n, i)
		}
	}
}

// A call that changes nothing writes nothing: no new version of the row, no insert and delete of an empty one.
func TestUnchangedIsNotWritten(t *testing.T) {
	t.Parallel()
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema()}
	first, second := newStorageWith(t, pool, o), newStorageWith(t, pool, o)
	for name, s := range map[string]storage.Atomic{"one process": first, "two in turn": &inTurn{storages: []storage.Atomic{first, second}}} {
		l := limits(5, 5, 1<<36)
		key := newSchema()
		leased := do(t, s, key, l, one)
		version := func() string {
			return query[string](t, pool, o.Schema, "select xmin::text || ctid::text from drip.entity where key = $1", []byte(key))
		}
		settle := decision.Op{Kind: decision.Settle, Lease: leased.Lease, Cost: decision.Cost{1}}
		if a := do(t, s, key, l, settle); !a.Found {
			t.Fatalf("Settle = %+v", a)
		}
		before := version()
		for _, op := range []decision.Op{
			{Kind: decision.ReturnToken}, settle, {Kind: decision.Cancel, Lease: leased.Lease}, {Kind: decision.Renew, Lease: leased.Lease},
		} {
			for range 3 {
				if a := do(t, s, key, l, op); a.Found {
					t.Errorf("%s: operation %d = %+v", name, op.Kind, a)
				}
			}
			if now := version(); now != before {
				t.Errorf("%s: operation %d, which changes nothing, wrote the row", name, op.Kind)
				before = now
			}
		}
		if _, _, err := first.Get(t.Context(), key); err != nil || version() != before {
			t.Errorf("Get wrote the row (%v)", err)
		}
		// A denial books a slot, so that the next one is told a later one: that is written.
		for range 4 {
			do(t, s, key, l, one)
		}
		before = version()
		first := do(t, s, key, l, one)
		if second := do(t, s, key, l, one); first.Delay == 0 || second.Ticket == first.Ticket || version() == before {
			t.Errorf("a denial did not book: %+v, then %+v", first, second)
		}
	}
	written := "select sum(n_tup_ins + n_tup_upd + n_tup_del)::bigint from pg_stat_user_tables where schemaname = $1"
	read := "select sum(seq_scan + idx_scan)::bigint from pg_stat_user_tables where schemaname = $1"
	s := newStorageWith(t, pool, postgres.Options{Schema: o.Schema})
	stat := func(sql string) int64 { return query[int64](t, pool, o.Schema, sql, o.Schema) }
	flush := func(sql string, past int64) { // the server counts with a delay
		eventually(t, "counted", func() bool { return stat(sql) >= past })
	}
	flush(written, 2*(2+2+8+2)) // a run and its settlement change a lease, too
	before, scans := stat(written), stat(read)
	for i := range 20 {
		if a := do(t, s, fmt.Sprint("nobody", i), plenty, decision.Op{Kind: decision.ReturnToken}); a.Found {
			t.Fatalf("ReturnToken = %+v", a)
		}
	}
	flush(read, scans+20)
	if after := stat(written); after != before {
		t.Errorf("20 returns to unknown entities wrote %d rows", after-before)
	}
}

// The count of rows equals the count of entities that are not idle.
func TestDeleteIdle(t *testing.T) {
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema(), DeleteEvery: time.Millisecond}
	s := newStorageWith(t, pool, o)
	getDelay(t, s, "busy", plenty)
	quick := limits(1, 1, 1)
	for i := range 60 {
		key := fmt.Sprint("idle", i)
		getDelay(t, s, key, quick)
		do(t, s, key, quick, decision.Op{Kind: decision.ReturnToken})
	}
	eventually(t, "the calls of this process had the idle rows deleted", func() bool {
		getDelay(t, s, "busy", plenty)
		return query[int64](t, pool, o.Schema, "select count(*) from drip.entity") == 1
	})
	// The storage decides about a deleted entity as if it had never been there, from memory too.
	if d := getDelay(t, s, "idle7", quick); d != 0 {
		t.Errorf("GetDelay of an entity whose row is gone = %v", d)
	}
}

// A process that only sets, as one with a limiter.Limiter does, has idle rows deleted, too.
func TestDeleteIdleAfterSet(t *testing.T) {
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema(), DeleteEvery: time.Millisecond, MaxHold: time.Millisecond}
	s := newStorageWith(t, pool, o)
	keys := 0
	eventually(t, "the calls of this process had idle rows deleted", func() bool {
		now := time.Now().UnixMilli()
		ok(t, s.Set(t.Context(), fmt.Sprint(keys), storage.State{Data: []byte("x"), Now: now, Until: now + 1}, storage.NoRevision))
		keys++
		return query[int](t, pool, o.Schema, "select count(*) from drip.entity") < keys
	})
}

// DeleteIdle does not wait for rows with a decision under way.
func TestDeleteIdleSkips(t *testing.T) {
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, pool, o)
	for _, key := range []string{"a", "b"} {
		getDelay(t, s, key, plenty)
	}
	exec(t, pool, o.Schema, "update drip.entity set expires = 0")
	tx := begin(t, pool, o.Schema, "select from drip.entity where key = 'a' for no key update")
	ok(t, s.DeleteIdle(t.Context()))
	ok(t, tx.Rollback(t.Context()))
	if left := query[string](t, pool, o.Schema, "select string_agg(encode(key, 'escape'), ',') from drip.entity"); left != "a" {
		t.Errorf("%q is left, want the row that was locked", left)
	}
}

// Processes that ask for several entities, in any order, do not wait for each other in a circle.
func TestNoDeadlocks(t *testing.T) {
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema()}
	keys := make([]string, 12)
	for i := range keys {
		keys[i] = fmt.Sprint("shop", i)
	}
	var wg sync.WaitGroup
	var granted atomic.Int64
	var picked deadlocks
	for _, key := range keys { // two who make rows may wait for each other: the server ends that
		if d, err := ask(t.Context(), newStorageWith(t, pool, o), key, plenty); d != 0 || err != nil {
			t.Fatalf("GetDelay = %v, %v", d, err)
		}
		granted.Add(1)
	}
	for range 3 {
		s := newStorageWith(t, newTracedPool(t, &picked, servers.UsePostgres(t).URL(), 4), o)
		for range 24 {
			wg.Go(func() {
				for range 4 {
					mixed := slices.Clone(keys)
					rand.Shuffle(len(mixed), func(i, j int) { mixed[i], mixed[j] = mixed[j], mixed[i] })
					for _, key := range mixed {
						if d, err := ask(t.Context(), s, key, plenty); d != 0 || err != nil {
							t.Errorf("GetDelay = %v, %v", d, err)
							return
						}
						granted.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := picked.Load(); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
	s, total := newStorageWith(t, pool, o), int64(0)
	for _, key := range keys {
		total += inUse(t, s, key)
	}
	if total != granted.Load() {
		t.Errorf("%d tokens are out, %d were granted", total, granted.Load())
	}
}

var ok = oktest.OK // ends the test if there is an error

func TestAttacks(t *testing.T) {
	attacks.Run(t, 1_000, func(t *testing.T) storage.Storage { return newStorage(t) })
}

func TestManyLeasesEnded(t *testing.T) { buckettest.EndedLeases(t, newStorage(t)) }

// The sslmode and sslrootcert of the URL apply. The certificate of an unknown authority is an error, and so is a server
// without TLS.
func TestTLS(t *testing.T) {
	server := servers.OwnPostgres(t) // without TLS and without a password
	config, err := pgx.ParseConfig(server.URL())
	ok(t, err)
	plain, err := url.Parse(server.URL())
	ok(t, err)
	front := servers.FrontTLS(t, plain.Host, servers.PostgresAsks)
	schema := newSchema()
	newStorageWith(t, newPool(t, server.URL(), 1), postgres.Options{Schema: schema})
	for _, test := range []struct {
		host, parameters string
		ok               bool
	}{
		{front.Addr, "sslmode=verify-full&sslrootcert=" + url.QueryEscape(front.CAFile), true},
		{front.Addr, "sslmode=verify-full", false},
		{plain.Host, "sslmode=require", false},
	} {
		u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, "secret"), Host: test.host, Path: "/" + config.Database, RawQuery: test.parameters + "&schema=" + url.QueryEscape(schema)}
		s, err := storage.Open(t.Context(), u.String())
		ok(t, err)
		defer s.(io.Closer).Close()
		_, err = ask(t.Context(), s.(storage.Atomic), "shop", limits(1, 1, 1000))
		switch {
		case test.ok && err != nil:
			t.Errorf("%s: %v", test.parameters, err)
		case !test.ok && (err == nil || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: %v, want an error without the password", test.parameters, err)
		case test.host == front.Addr && !test.ok && !errors.As(err, new(x509.UnknownAuthorityError)):
			t.Errorf("%s: %v, want the unknown authority", test.parameters, err)
		}
	}
}
