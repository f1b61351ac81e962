package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

func TestServerStops(t *testing.T) {
	server := servers.OwnPostgres(t)
	t.Run("Restart", func(t *testing.T) { testRestart(t, server) })
	t.Run("Hangs", func(t *testing.T) { testHangs(t, server) })
}

func testRestart(t *testing.T, server *servers.Postgres) {
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, newPool(t, server.URL(), 4), o)
	getDelay(t, s, "shop", plenty)
	ok(t, server.Kill())
	eventually(t, "the connections that were cut are used up", func() bool {
		_, err := ask(t.Context(), s, "shop", plenty)
		if !errors.Is(err, postgres.ErrNoAnswer) {
			t.Fatalf("GetDelay from a dead server = %v, want ErrNoAnswer", err)
		}
		return strings.Contains(err.Error(), "connection refused")
	})
	_, _, get := s.Get(t.Context(), "shop")
	for name, err := range map[string]error{
		"Get": get, "Set": s.Set(t.Context(), "shop", storage.State{}, storage.NoRevision), "DeleteIdle": s.DeleteIdle(t.Context()),
		"List": s.List(t.Context(), nil), "CreateSchema": s.CreateSchema(t.Context()),
	} {
		if !errors.Is(err, postgres.ErrNoAnswer) {
			t.Errorf("%s from a dead server = %v, want ErrNoAnswer", name, err)
		}
	}
	ok(t, server.Start(t.Context()))
	if d := getDelay(t, s, "shop", plenty); d != 0 {
		t.Errorf("GetDelay after the restart = %v", d)
	}
	if n := inUse(t, s, "shop"); n != 2 {
		t.Errorf("%d tokens are out, want 2", n)
	}
}

// While a server hangs, callers leave when their contexts end; a token that one of them was given is given back.
func testHangs(t *testing.T, server *servers.Postgres) {
	o := postgres.Options{Schema: newSchema(), Timeout: time.Minute}
	s := newStorageWith(t, newPool(t, server.URL(), 8), o)
	short := newStorageWith(t, newPool(t, server.URL(), 1), postgres.Options{Schema: o.Schema, Timeout: time.Second})
	getDelay(t, s, "shop", plenty)
	eventually(t, "a decision within the short Timeout", func() bool {
		_, err := ask(t.Context(), short, "other", plenty)
		return err == nil
	})
	ok(t, server.Pause())
	if d, err := ask(context.Background(), short, "other", plenty); !errors.Is(err, postgres.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("GetDelay = %v, %v; want ErrNoAnswer for the Timeout, and no error of a context", d, err)
	}
	if _, _, err := short.Get(context.Background(), "other"); !errors.Is(err, postgres.ErrNoAnswer) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get = %v, want ErrNoAnswer for the Timeout, and no error of a context", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if d, err := ask(ctx, s, "shop", plenty); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("GetDelay = %v, %v; want DeadlineExceeded", d, err)
			}
		})
	}
	wg.Wait()
	_, _, get := s.Get(ctx, "shop")
	_, returned := s.Do(ctx, "shop", plenty, nil, decision.Op{Kind: decision.ReturnToken})
	for name, err := range map[string]error{
		"Get": get, "ReturnToken": returned, "Set": s.Set(ctx, "shop", storage.State{}, storage.NoRevision), "DeleteIdle": s.DeleteIdle(ctx),
	} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s = %v, want DeadlineExceeded", name, err)
		}
	}
	ok(t, server.Resume())
	getDelay(t, s, "shop", plenty) // has its turn after the calls that were sent
	eventually(t, "only the tokens of those who stayed are out", func() bool { return inUse(t, s, "shop") == 2 })
}

// open opens a storage with a pool of its own.
func open(t *testing.T, schema, parameters string) *postgres.Storage {
	t.Helper()
	s, err := storage.Open(t.Context(), servers.UsePostgres(t).URL()+parameters+"&schema="+strings.ReplaceAll(schema, " ", "%20"))
	ok(t, err)
	return s.(*postgres.Storage)
}

// Close returns when the calls that were sent are answered. Calls that wait for a connection then return that the
// storage is closed.
func TestCloseUnderWay(t *testing.T) {
	o := postgres.Options{Schema: newSchema()}
	admin := sharedPool(t)
	direct := newStorageWith(t, admin, o)
	s := open(t, o.Schema, "&pool_max_conns=1&timeout=1m")
	getDelay(t, s, "shop", plenty)
	tx := begin(t, admin, o.Schema, "select from drip.entity for update")
	var wg sync.WaitGroup
	wg.Go(func() {
		if d, err := ask(context.Background(), s, "shop", plenty); d != 0 || err != nil {
			t.Errorf("the call that was sent: %v, %v", d, err)
		}
	})
	waiting(t, admin)
	got := make(chan error)
	go func() {
		_, _, err := s.Get(context.Background(), "shop")
		got <- err
	}()
	time.Sleep(10 * time.Millisecond) // so that it waits for the connection; if it does not yet, it is told the same
	wg.Go(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	eventually(t, "it is closed", func() bool { return errors.Is(s.DeleteIdle(cancelled), postgres.ErrClosed) })
	ok(t, tx.Commit(t.Context()))
	wg.Wait()
	if err := <-got; !errors.Is(err, postgres.ErrClosed) {
		t.Errorf("the call that waited: %v, want ErrClosed", err)
	}
	if n := inUse(t, direct, "shop"); n != 2 {
		t.Errorf("%d tokens are out, want 2", n)
	}
}

// Connections that are cut at any time cost errors and nothing else: never a token that nobody was told of but where
// the answer was lost, and never two for one.
func TestCutConnections(t *testing.T) {
	url := servers.UsePostgres(t).URL()
	o := postgres.Options{Schema: newSchema()}
	admin := newPool(t, url, 1)
	name := fmt.Sprintf("cut %x", time.Now().UnixNano())
	var granted, unknown atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		s := newStorageWith(t, newPool(t, url, 4, "application_name", name), o)
		for range 8 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					switch d, err := ask(context.Background(), s, "shop", plenty); {
					case errors.Is(err, postgres.ErrNoAnswer):
						unknown.Add(1)
					case err != nil || d != 0:
						t.Errorf("GetDelay = %v, %v", d, err)
						return
					default:
						granted.Add(1)
					}
				}
			})
		}
	}
	for range 8 {
		before := granted.Load()
		eventually(t, "decided", func() bool { return granted.Load() > before+10 || t.Failed() })
		if _, err := admin.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", name); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
	n := inUse(t, newStorageWith(t, admin, o), "shop")
	t.Logf("%d granted, %d unknown, %d tokens are out", granted.Load(), unknown.Load(), n)
	if n < granted.Load() || n > granted.Load()+unknown.Load() || unknown.Load() == 0 {
		t.Errorf("%d tokens are out; %d were granted, and of %d the answer was lost", n, granted.Load(), unknown.Load())
	}
}

func TestNoSchema(t *testing.T) {
	pool := sharedPool(t)
	for name, prepare := range map[string]func(schema string){
		"no schema": func(string) {},
		"no table": func(schema string) {
			newStorageWith(t, pool, postgres.Options{Schema: schema})
			exec(t, pool, schema, "drop table drip.entity")
		},
		"no column": func(schema string) {
			newStorageWith(t, pool, postgres.Options{Schema: schema})
			exec(t, pool, schema, "alter table drip.entity drop until")
		},
	} {
		schema := newSchema()
		prepare(schema)
		s, err := postgres.New(pool, postgres.Options{Schema: schema})
		ok(t, err)
		_, decide := ask(t.Context(), s, "shop", plenty)
		_, _, get := s.Get(t.Context(), "shop")
		set := s.Set(t.Context(), "shop", storage.State{}, storage.NoRevision)
		for call, err := range map[string]error{"GetDelay": decide, "Get": get, "Set": set, "List": s.List(t.Context(), nil)} {
			if !errors.Is(err, postgres.ErrNoSchema) || errors.Is(err, postgres.ErrNoAnswer) {
				t.Errorf("%s: %s = %v, want ErrNoSchema", name, call, err)
			} else if !strings.Contains(err.Error(), "CreateSchema") {
				t.Errorf("%s: %s = %v, which does not tell what to do", name, call, err)
			}
		}
		if name != "no column" {
			ok(t, s.CreateSchema(t.Context()))
			getDelay(t, s, "shop", plenty)
		}
	}
	// The table goes while it is used.
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, pool, o)
	getDelay(t, s, "shop", plenty)
	exec(t, pool, o.Schema, "drop table drip.entity")
	if _, err := ask(t.Context(), s, "shop", plenty); !errors.Is(err, postgres.ErrNoSchema) {
		t.Errorf("GetDelay = %v, want ErrNoSchema", err)
	}
	ok(t, s.CreateSchema(t.Context()))
	getDelay(t, s, "shop", plenty)
}

func TestNotState(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 1)
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, pool, o)
	for _, broken := range []string{"x", strings.Repeat("12345678", 20)} {
		getDelay(t, s, "broken", plenty)
		exec(t, pool, o.Schema, "update drip.entity set data = $1, revision = revision + 1 where key = 'broken'", []byte(broken))
		var wg sync.WaitGroup
		for i := range 60 { // so that they share batches
			wg.Go(func() {
				key := []string{"broken", fmt.Sprint("shop", i)}[i%2]
				_, err := ask(t.Context(), s, key, plenty)
				if key == "broken" && !errors.Is(err, postgres.ErrNotState) || key != "broken" && err != nil {
					t.Errorf("GetDelay(%q) = %v", key, err)
				}
			})
		}
		wg.Wait()
		if _, err := s.Read(t.Context(), "broken"); !errors.Is(err, postgres.ErrNotState) || !errors.Is(err, storage.ErrFormat) {
			t.Errorf("Read = %v, want ErrNotState", err)
		}
		if st, _, err := s.Get(t.Context(), "broken"); err != nil || string(st.Data) != broken {
			t.Errorf("Get = %q, %v; want what the row holds", st.Data, err)
		}
		exec(t, pool, o.Schema, "delete from drip.entity where key = 'broken'")
	}
	if d := getDelay(t, s, "broken", plenty); d != 0 {
		t.Errorf("GetDelay when the row is gone = %v", d)
	}
}

// A call that the server refuses returns an error of its own, and changes nothing, not even in its batch.
func TestRefusals(t *testing.T) {
	pool, admin := newPool(t, servers.UsePostgres(t).URL(), 1), newPool(t, servers.UsePostgres(t).URL(), 1)
	schema := newSchema()
	s := newStorageWith(t, pool, postgres.Options{Schema: schema})
	exec(t, admin, schema, "select") // so that its session has begun
	other := newStorageWith(t, sharedPool(t), postgres.Options{Schema: schema})
	function := "create or replace function drip.refuse() returns trigger language plpgsql as $$ begin %s; return new; end $$"
	trigger := "create %s trigger refuse %s on drip.entity %s for each row execute function drip.refuse()"
	for _, c := range []struct {
		name, body, kind, when, timing, code string
	}{
		{"by a statement", "raise exception 'no'", "", "before insert or update", "", "P0001"},
		{"by one of the batch", "if new.key = 'shop3' then raise exception 'no'; end if", "", "before insert or update", "", "P0001"},
		{"at the commit", "raise exception 'no'", "constraint", "after insert or update", "deferrable initially deferred", "P0001"},
		{"at the commit, for one of the batch", "if new.key = 'shop3' then raise exception 'no'; end if", "constraint", "after insert or update", "deferrable initially deferred", "P0001"},
		{"it is read only", "raise exception 'no' using errcode = '25006'", "", "before insert or update", "", "25006"},
		{"it takes too long", "set local statement_timeout = '1ms'; perform pg_sleep(5)", "", "before insert or update", "", "57014"},
	} {
		for _, contended := range []bool{false, true} {
			before := int64(0)
			for i := range 8 {
				key := fmt.Sprint("shop", i)
				getDelay(t, s, key, plenty)
				if contended {
					getDelay(t, other, key, plenty)
				}
				before += inUse(t, s, key)
			}
			if c.code == "57014" {
				exec(t, admin, schema, "alter role postgres set statement_timeout = '100ms'")
				pool.Reset()
			}
			exec(t, admin, schema, fmt.Sprintf(function, c.body))
			exec(t, admin, schema, fmt.Sprintf(trigger, c.kind, c.when, c.timing))
			granted := together(s, 24, func(key string, d time.Duration, err error) {
				var refused *pgconn.PgError
				if err == nil && d == 0 && strings.Contains(c.name, "batch") && key != "shop3" {
					return // it was in another batch
				}
				if !errors.As(err, &refused) || refused.Code != c.code || errors.Is(err, postgres.ErrNoAnswer) {
					t.Errorf("%s, %v: GetDelay = %v, %v; want %s", c.name, contended, d, err, c.code)
				}
			})
			if c.code == "57014" {
				exec(t, admin, schema, "alter role postgres reset statement_timeout")
				pool.Reset()
			}
			exec(t, pool, schema, "drop trigger refuse on drip.entity")
			after := int64(0)
			for i := range 8 {
				after += inUse(t, s, fmt.Sprint("shop", i))
			}
			if after-before != granted {
				t.Errorf("%s, %v: %d tokens were taken, %d granted", c.name, contended, after-before, granted)
			}
			for i := range 8 {
				if d := getDelay(t, s, fmt.Sprint("shop", i), plenty); d != 0 {
					t.Errorf("%s: GetDelay when all is well again = %v", c.name, d)
				}
			}
		}
	}
}

// together has n callers ask for shop0 to shop7, and tells how many tokens they were given.
func together(s storage.Atomic, n int, told func(key string, d time.Duration, err error)) int64 {
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			key := fmt.Sprint("shop", i%8)
			d, err := ask(context.Background(), s, key, plenty)
			if err == nil && d == 0 {
				granted.Add(1)
			}
			told(key, d, err)
		})
	}
	wg.Wait()
	return granted.Load()
}

// A database that may only be read answers with an error, whatever is remembered of it.
func TestReadOnly(t *testing.T) {
	admin := sharedPool(t)
	user := fmt.Sprintf("reader_%x", time.Now().UnixNano())
	exec(t, admin, "", "create role "+user+" login superuser")
	t.Cleanup(func() { exec(t, admin, "", "drop role "+user) })
	pool := newPool(t, strings.Replace(servers.UsePostgres(t).URL(), "postgres@", user+"@", 1), 2)
	s := newStorageWith(t, pool, postgres.Options{Schema: newSchema()})
	t.Cleanup(func() { exec(t, admin, "", "reassign owned by "+user+" to postgres") })
	getDelay(t, s, "shop", plenty)
	set := func(v string) {
		exec(t, admin, "", "alter role "+user+" set default_transaction_read_only = "+v)
		pool.Reset()
	}
	set("on")
	for _, key := range []string{"shop", "new"} {
		var refused *pgconn.PgError
		if _, err := ask(t.Context(), s, key, plenty); !errors.As(err, &refused) || refused.Code != "25006" {
			t.Errorf("GetDelay(%q) = %v, want 25006", key, err)
		}
	}
	set("off")
	if getDelay(t, s, "shop", plenty); inUse(t, s, "shop") != 2 {
		t.Errorf("%d tokens are out, want 2", inUse(t, s, "shop"))
	}
}

// The storage decides a call again that the server refused because of concurrent changes, and counts it once.
func TestDecidedAgain(t *testing.T) {
	pool := sharedPool(t)
	schema := newSchema()
	s := newStorageWith(t, pool, postgres.Options{Schema: schema})
	other := newStorageWith(t, sharedPool(t), postgres.Options{Schema: schema})
	exec(t, pool, schema, "create sequence drip.tries")
	for _, code := range []string{"40001", "23505", "25P03"} {
		for _, at := range [][3]string{
			{"", "before insert or update", ""},
			{"constraint", "after insert or update", "deferrable initially deferred"}, // as serializable transactions fail
		} {
			exec(t, pool, schema, `create or replace function drip.refuse() returns trigger language plpgsql as $$ begin
				if nextval('`+strings.ReplaceAll(in(schema, "drip.tries"), "'", "''")+`') % 3 > 0 then raise exception 'again' using errcode = '`+code+`'; end if;
				return new; end $$`)
			exec(t, pool, schema, fmt.Sprintf("create %s trigger refuse %s on drip.entity %s for each row execute function drip.refuse()", at[0], at[1], at[2]))
			key := fmt.Sprint(code, at)
			for range 10 {
				for _, s := range []*postgres.Storage{s, s, other} {
					if d := getDelay(t, s, key, plenty); d != 0 {
						t.Errorf("%s: GetDelay = %v", key, d)
					}
				}
			}
			exec(t, pool, schema, "drop trigger refuse on drip.entity")
			if n := inUse(t, s, key); n != 30 {
				t.Errorf("%s: %d tokens are out after 30 runs", key, n)
			}
		}
	}
	// For ever is not longer than Timeout.
	exec(t, pool, schema, "create or replace function drip.refuse() returns trigger language plpgsql as $$ begin raise exception 'again' using errcode = '40001'; end $$")
	exec(t, pool, schema, "create trigger refuse before insert on drip.entity for each row execute function drip.refuse()")
	hasty := newStorageWith(t, pool, postgres.Options{Schema: schema, Timeout: 200 * time.Millisecond})
	if _, err := ask(t.Context(), hasty, "never", plenty); err == nil {
		t.Error("GetDelay of what is always refused succeeds")
	}
}

// The error of a call that waits for the program's own connections names the pool, and what to do.
func TestNoFreeConnection(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 1)
	s := newStorageWith(t, pool, postgres.Options{Schema: newSchema(), Timeout: 50 * time.Millisecond})
	conn, err := pool.Acquire(t.Context())
	ok(t, err)
	defer conn.Release()
	if _, err := ask(t.Context(), s, "shop", plenty); !errors.Is(err, postgres.ErrNoAnswer) || !strings.Contains(err.Error(), "the pool gave no connection (all are in use; give the storage a pool of its own)") {
		t.Error(err)
	}
}

// A process that locks rows in another order can cause a deadlock. If the server ends the storage's transaction, the
// storage decides again.
func TestDeadlock(t *testing.T) {
	url := servers.UsePostgres(t).URL()
	schema := newSchema()
	var picked deadlocks
	pool := newTracedPool(t, &picked, url, 1, "deadlock_timeout", "200ms") // the first to look is picked
	s := newStorageWith(t, pool, postgres.Options{Schema: schema, Timeout: 30 * time.Second})
	keys := []string{"a", "b", "c", "z"}
	for _, key := range keys {
		getDelay(t, s, key, plenty)
	}
	admin := newPool(t, url, 4, "deadlock_timeout", "1h")
	const sql = "select from drip.entity where key = $1 for update"
	lock := func(key string) pgx.Tx { return begin(t, admin, schema, sql, []byte(key)) }
	waiters := func(n int) bool {
		return query[int](t, admin, "", "select count(*)::int from pg_stat_activity where wait_event_type = 'Lock' and query like '%entity%'") == n
	}
	rounds := int64(0)
	for picked.Load() == 0 && rounds < 20 && !t.Failed() { // the three calls may not be in one batch the first time
		rounds++
		first, second, third := lock("c"), lock("b"), lock("z")
		var wg sync.WaitGroup
		call := func(key string) {
			wg.Go(func() {
				if d, err := ask(context.Background(), s, key, plenty); d != 0 || err != nil {
					t.Errorf("GetDelay(%q) = %v, %v", key, d, err)
				}
			})
		}
		call("z")
		waiting(t, admin)
		for _, key := range keys[:3] {
			call(key)
		}
		eventually(t, "the three are in one batch", func() bool { return s.Waiting() == 3 })
		ok(t, third.Commit(t.Context()))
		eventually(t, "the batch has a, and waits for b", func() bool { return waiters(1) })
		// This one waits for a, and has c, which the batch wants when it gets b. If a was alone, it gets it.
		got := make(chan error, 1)
		go func() {
			_, err := first.Exec(context.Background(), in(schema, sql), []byte("a"))
			got <- err
		}()
		eventually(t, "a is waited for, or free", func() bool { return len(got) == 1 || waiters(2) })
		ok(t, second.Commit(t.Context()))
		ok(t, errors.Join(<-got, first.Commit(t.Context())))
		wg.Wait()
	}
	if picked.Load() == 0 {
		t.Errorf("no deadlock in %d rounds", rounds)
	}
	for _, key := range keys {
		if n := inUse(t, s, key); n != 1+rounds {
			t.Errorf("%d tokens of %s are out, want %d", n, key, 1+rounds)
		}
	}
}

// A pool of one connection is enough, and who holds it keeps the decisions waiting no longer than they want to.
func TestOneConnection(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 1)
	s := newStorageWith(t, pool, postgres.Options{Schema: newSchema()})
	if n := together(s, 64, func(_ string, d time.Duration, err error) {
		if err != nil {
			t.Error(err)
		}
	}); n != 64 {
		t.Errorf("%d of 64 granted", n)
	}
	conn, err := pool.Acquire(t.Context())
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := ask(ctx, s, "shop0", plenty); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("GetDelay = %v, want DeadlineExceeded", err)
	}
	conn.Release()
	eventually(t, "who left gets its token back", func() bool { return inUse(t, s, "shop0") == 8 })
}

// The storage gives back the lease of a caller that has left, even if there is no connection for that at first.
func TestLeftWithoutConnection(t *testing.T) {
	admin := sharedPool(t)
	pool := newPool(t, servers.UsePostgres(t).URL(), 1)
	o := postgres.Options{Schema: newSchema(), Timeout: 5 * time.Second}
	s := newStorageWith(t, pool, o)
	getDelay(t, s, "shop", plenty)
	tx := begin(t, admin, o.Schema, "select from drip.entity for update")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := s.Do(ctx, "shop", plenty, nil, one)
		left <- err
	}()
	waiting(t, admin)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Fatalf("Admit = %v, want Canceled", err)
	}
	taken := make(chan *pgxpool.Conn)
	go func() {
		conn, err := pool.Acquire(context.Background()) // after the call that was sent
		if err != nil {
			t.Error(err)
		}
		taken <- conn
	}()
	ok(t, tx.Commit(t.Context()))
	direct, conn := newStorageWith(t, admin, o), <-taken
	back := func() bool {
		e := read(t, direct, "shop")
		return e.Out == 0 && e.State.LastID > 0
	}
	eventually(t, "no connection was to be had, or it was back before the connection was taken", func() bool {
		return pool.Stat().CanceledAcquireCount() > 0 || back()
	})
	conn.Release()
	eventually(t, "the lease is given back", back)
}

// A row that is locked for too long fails the calls about it, and no others that share their transaction.
func TestLockedRowInABatch(t *testing.T) {
	app := []storage.Within{{Key: "app", Limits: plenty, ID: 1, Weight: 1}}
	for _, c := range []struct {
		setting, code, locked string
		remembered            bool
	}{
		{"lock_timeout", "55P03", "b", false},
		{"lock_timeout", "55P03", "b", true},
		{"lock_timeout", "55P03", "app", false},
		{"statement_timeout", "57014", "b", false},
		{"statement_timeout", "57014", "b", true},
	} {
		t.Run(fmt.Sprint(c.setting, ", ", c.locked, ", remembered: ", c.remembered), func(t *testing.T) {
			o := postgres.Options{Schema: newSchema(), Timeout: 30 * time.Second}
			admin, pool := sharedPool(t), newPool(t, servers.UsePostgres(t).URL(), 1, c.setting, "500")
			s, direct := newStorageWith(t, pool, o), newStorageWith(t, admin, o)
			call := func(s *postgres.Storage, shop string) error {
				within := app
				if c.locked != "app" || shop > "b" {
					within = nil
				}
				_, err := s.Do(context.Background(), shop, plenty, within, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
				return err
			}
			shops := []string{"x", "y", "a", "b", "c", "d"} // only the first is sent before the connection is free
			for _, shop := range shops {
				if c.remembered {
					ok(t, call(s, shop))
				} else {
					ok(t, call(direct, shop))
				}
			}
			tx := begin(t, admin, o.Schema, "select from drip.entity where key = $1 for update", []byte(c.locked))
			defer tx.Rollback(context.Background())
			conn, err := pool.Acquire(t.Context())
			ok(t, err)
			failed := func(shop string) bool { return shop == "b" || c.locked == "app" && shop == "a" }
			var wg sync.WaitGroup
			for i, shop := range shops {
				wg.Go(func() {
					err := call(s, shop)
					var answer *pgconn.PgError
					if slow := errors.As(err, &answer) && answer.Code == c.code; slow != failed(shop) || err != nil && !slow {
						t.Errorf("GetDelay of %s = %v", shop, err)
					}
				})
				eventually(t, "the call waits, or is the first", func() bool { return i == 0 || s.Waiting() == i })
			}
			conn.Release()
			wg.Wait()
			ok(t, tx.Rollback(t.Context()))
			for _, shop := range shops {
				want := int64(2)
				if failed(shop) {
					want = 1
				}
				if n := inUse(t, direct, shop); n != want {
					t.Errorf("%s has %d tokens out, want %d", shop, n, want)
				}
			}
		})
	}
}

// Close of a storage with a pool of its own gives back what the calls of callers that have left take.
func TestCloseAfterLeaving(t *testing.T) {
	o := postgres.Options{Schema: newSchema()}
	admin := sharedPool(t)
	direct := newStorageWith(t, admin, o)
	s := open(t, o.Schema, "&timeout=1m")
	getDelay(t, s, "shop", plenty)
	tx := begin(t, admin, o.Schema, "select from drip.entity for update")
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := ask(ctx, s, "shop", plenty)
		left <- err
	}()
	waiting(t, admin)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("the call of the caller that left: %v", err)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	eventually(t, "it is closed", func() bool { return errors.Is(s.DeleteIdle(ctx), postgres.ErrClosed) })
	ok(t, tx.Commit(t.Context()))
	ok(t, <-closed)
	if n := inUse(t, direct, "shop"); n != 1 {
		t.Errorf("%d tokens are out, want the 1 of the caller that stayed", n)
	}
}
