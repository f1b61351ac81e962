package postgres_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// counted checks that the row of the shop tells the truth about its leases.
func counted(t *testing.T, pool *pgxpool.Pool, schema string) (rows int64) {
	t.Helper()
	if wrong := query[int64](t, pool, schema, `select count(*) from drip.entity e where
		leases <> (select count(*) from drip.lease l where l.key = e.key)
		or first_end > (select min(ends) from drip.lease l where l.key = e.key)
		or last_end < (select max(ends) from drip.lease l where l.key = e.key)`); wrong > 0 {
		t.Errorf("%d rows tell something else of their leases than there is", wrong)
	}
	if lost := query[int64](t, pool, schema, "select count(*) from drip.lease where key not in (select key from drip.entity)"); lost > 0 {
		t.Errorf("%d leases have no entity", lost)
	}
	return query[int64](t, pool, schema, "select count(*) from drip.lease where key = 'shop'")
}

// Several processes admit, renew, settle, settle twice and cancel, and leases end by themselves. Others use Get and Set
// meanwhile. The number of leases always equals the number of their rows.
func TestLeasesAreCounted(t *testing.T) {
	o := postgres.Options{Schema: newSchema()}
	pool := sharedPool(t)
	long, short := *plenty, *plenty
	short.Lease, short.MaxLease = 5, 20
	var wg sync.WaitGroup
	for range 3 {
		s := newStorageWith(t, newPool(t, servers.UsePostgres(t).URL(), 4), o)
		for worker := range 6 {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(worker), 2))
				var held []decision.Lease
				for range 60 {
					op := one
					if n := len(held); n > 0 && random.IntN(2) == 0 {
						op.Lease = held[random.IntN(n)] // it may be settled already, or have ended
						op.Kind = []decision.Kind{decision.Settle, decision.Renew, decision.Cancel}[random.IntN(3)]
					}
					l := []*decision.Limits{&long, &short}[random.IntN(2)]
					a, err := s.Do(t.Context(), "shop", l, nil, op)
					if err != nil {
						t.Error(err)
					}
					if a.Lease.ID != 0 {
						held = append(held, a.Lease)
					}
					if random.IntN(20) > 0 {
						continue
					}
					st, rev, err := s.Get(t.Context(), "shop")
					if err == nil {
						err = s.Set(t.Context(), "shop", st, rev)
					}
					if err != nil && !errors.Is(err, storage.ErrConflict) {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	rows := counted(t, pool, o.Schema)
	s := newStorageWith(t, pool, o)
	st, _, err := s.Get(t.Context(), "shop")
	ok(t, err)
	leases, err := storage.Decode(st.Data, new(decision.State))
	e, err2 := s.Read(t.Context(), "shop")
	if err := errors.Join(err, err2); err != nil || e.Out != int64(len(leases)) || rows > e.Out {
		t.Errorf("Get tells %d leases and Read %d, of which %d have rows (%v)", len(leases), e.Out, rows, err)
	}
}

// However many leases have ended, each transaction deletes a bounded number, and none of them counts.
func TestEndedLeases(t *testing.T) {
	o := postgres.Options{Schema: newSchema()}
	pool := sharedPool(t)
	s := newStorageWith(t, pool, o)
	l := *plenty
	l.Tokens = 2500
	do := func(kind decision.Kind, lease decision.Lease, now int64) decision.Answer {
		t.Helper()
		a, err := s.Do(t.Context(), "shop", &l, nil, decision.Op{Kind: kind, Now: now, Lease: lease, Cost: decision.Cost{1}})
		ok(t, err)
		return a
	}
	admitAt := func(now int64) decision.Answer {
		t.Helper()
		return do(decision.Admit, decision.Lease{}, now)
	}
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			for j := range 5 {
				admitAt(1_700_000_000_000 + int64(5*i+j))
			}
		})
	}
	wg.Wait()
	if a := admitAt(1_700_000_003_000); a.Bound != decision.BoundTokens {
		t.Errorf("Admit with all tokens out = %+v", a)
	}
	if n := counted(t, pool, o.Schema); n != 2500 {
		t.Errorf("%d leases are out, want 2500", n)
	}
	l.Tokens = 1
	if a := admitAt(1_700_000_063_001); a.Delay != 0 {
		t.Errorf("Admit when all leases have ended = %+v", a)
	}
	if n := counted(t, pool, o.Schema); n != 1 {
		t.Errorf("%d leases are left, want the last one", n)
	}
	// A lease that was renewed since, and one that was settled, are found by their IDs.
	l.Tokens = 10
	lease := admitAt(1_700_000_063_002).Lease
	renewed := do(decision.Renew, lease, 1_700_000_100_000)
	if !renewed.Found || renewed.Lease.End <= lease.End {
		t.Errorf("Renew = %+v", renewed)
	}
	if a := do(decision.Settle, lease, lease.End+1); !a.Found {
		t.Error("Settle by its old end does not find a renewed lease")
	}
	if a := do(decision.Settle, renewed.Lease, lease.End+1); a.Found {
		t.Error("Settle finds a lease that was settled")
	}
	// An expired row takes its leases along, and so does Reset.
	do(decision.Reset, decision.Lease{}, lease.End+2)
	if n := counted(t, pool, o.Schema); n != 0 {
		t.Errorf("after a Reset %d leases are out", n)
	}
	admitAt(1_700_000_200_000)
	exec(t, pool, o.Schema, "update drip.entity set expires = 0, revision = revision + 1")
	if e := read(t, s, "shop"); e.Out != 0 || e.State.Tokens != 0 {
		t.Errorf("Read of an expired entity = %+v", e)
	}
	l.Tokens = 1
	if a := admitAt(1_700_000_200_001); a.Delay != 0 {
		t.Errorf("Admit of an expired entity = %+v", a)
	}
	if n := counted(t, pool, o.Schema); n != 1 {
		t.Errorf("%d leases are out, want 1", n)
	}
	exec(t, pool, o.Schema, "update drip.entity set expires = 0, revision = revision + 1")
	ok(t, s.DeleteIdle(t.Context()))
	if n := counted(t, pool, o.Schema); n != 0 {
		t.Errorf("%d leases are left of a deleted entity", n)
	}
}

// far is a connection to a server that is far away.
type far struct{ net.Conn }

func (f far) Write(b []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return f.Conn.Write(b)
}

// While leases of dead holders end one after the other, quicker than an answer comes, decisions go on.
func TestLeasesThatKeepEnding(t *testing.T) {
	o := postgres.Options{Schema: newSchema(), Timeout: 20 * time.Second}
	pool := sharedPool(t)
	newStorageWith(t, pool, o)
	config, err := pgxpool.ParseConfig(servers.UsePostgres(t).URL())
	ok(t, err)
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return far{conn}, err
	}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	ok(t, err)
	defer slow.Close()
	s := newStorageWith(t, slow, o)
	do(t, s, "shop", plenty, one)
	exec(t, pool, o.Schema, `with held as (insert into drip.lease (key, id, ends)
		select 'shop', id, (date_part('epoch', clock_timestamp()) * 1000)::bigint + 5 * id from generate_series(1, 10000) id returning ends)
		update drip.entity set revision = 1, leases = leases + (select count(*) from held), first_end = (select min(ends) from held)`)
	do(t, s, "shop", plenty, one) // the last of them ends after the Timeout
	counted(t, pool, o.Schema)
}

// An entity whose row somebody else has deleted begins without its old leases, which would be counted off at their ends.
func TestLeasesWithoutARow(t *testing.T) {
	pool := sharedPool(t)
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, pool, o)
	for range 3 {
		do(t, s, "shop", plenty, one)
	}
	exec(t, pool, o.Schema, "delete from drip.entity where key = 'shop'")
	id := do(t, s, "shop", plenty, one).Lease.ID
	got := query[[]int64](t, pool, o.Schema, "select array_agg(id) from drip.lease where key = 'shop'")
	if len(got) != 1 || got[0] != id {
		t.Errorf("its leases are %v, want %d alone", got, id)
	}
}

// A name with a line break is one name, also in the comments of the schema.
func TestSchemaWithALineBreak(t *testing.T) {
	s := newStorageWith(t, sharedPool(t), postgres.Options{Schema: newSchema() + "\nb"})
	getDelay(t, s, "shop", plenty)
}

// An entity whose row has expired with a lease of a dead holder comes back in two processes at once. The leases that one
// of them deletes are the old ones, and not the one that the other has just given.
func TestRevivedTogether(t *testing.T) {
	o := postgres.Options{Schema: newSchema()}
	admin := sharedPool(t)
	l := limits(1000, 1000, 10)
	l.Tokens, l.Lease, l.MaxLease = 1, 60_000, 60_000
	other := newStorageWith(t, admin, o)
	dying := *l
	dying.Lease, dying.MaxLease = 1, 1
	if a := do(t, other, "shop", &dying, one); a.Lease.ID == 0 {
		t.Fatalf("Admit = %+v", a)
	}
	eventually(t, "the row has expired", func() bool {
		return query[bool](t, admin, o.Schema, "select expires < date_part('epoch', clock_timestamp()) * 1000 from drip.entity")
	})

	var got decision.Answer
	var taken atomic.Int64
	config, err := pgxpool.ParseConfig(servers.UsePostgres(t).URL())
	ok(t, err)
	config.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) {
		if taken.Add(1) == 2 { // the storage has read the row, and goes on to delete the old lease
			got = do(t, other, "shop", l, one)
		}
		return true, nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	ok(t, err)
	defer pool.Close()
	s, err := postgres.New(pool, o)
	ok(t, err)
	defer s.Close()
	a := do(t, s, "shop", l, one)
	if got.Lease.ID == 0 {
		t.Fatalf("the other process got %+v", got)
	}
	if a.Lease.ID != 0 {
		t.Errorf("two operations run, with the leases %+v and %+v; one token is there", got.Lease, a.Lease)
	}
	counted(t, admin, o.Schema)
}

// The second of two calls in a transaction needs ended leases of its entity deleted, after those of the shared limit. Meanwhile the first
// has changed the limit's row.
func TestLeasesDeletedOneAfterTheOther(t *testing.T) {
	o := postgres.Options{Schema: newSchema(), Timeout: 30 * time.Second}
	admin, pool := sharedPool(t), newPool(t, servers.UsePostgres(t).URL(), 1)
	s, direct := newStorageWith(t, pool, o), newStorageWith(t, admin, o)
	few := *plenty
	few.Tokens = 10
	dying := few
	dying.Lease, dying.MaxLease = 1, 1
	call := func(s *postgres.Storage, shop string, l *decision.Limits) {
		within := []storage.Within{{Key: "app", Limits: l, ID: 1, Weight: 1}}
		if a, err := s.Do(context.Background(), shop, l, within, one); err != nil || a.Lease.ID == 0 {
			t.Errorf("Admit of %s = %+v, %v", shop, a, err)
		}
	}
	call(direct, "b", &dying)
	eventually(t, "its leases have ended", func() bool {
		return query[bool](t, admin, o.Schema, "select max(ends) < date_part('epoch', clock_timestamp()) * 1000 from drip.lease")
	})
	do(t, direct, "first", plenty, one)
	tx := begin(t, admin, o.Schema, "select from drip.entity where key = 'first' for update")
	defer tx.Rollback(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Do(context.Background(), "first", plenty, nil, one); err != nil {
			t.Error(err)
		}
	})
	waiting(t, admin)
	for i, shop := range []string{"a", "b"} {
		wg.Go(func() { call(s, shop, &few) })
		eventually(t, "the call waits", func() bool { return s.Waiting() == i+1 })
	}
	ok(t, tx.Commit(t.Context()))
	wg.Wait()
	counted(t, admin, o.Schema)
	if n := read(t, direct, "app").Out; n != 2 {
		t.Errorf("%d leases of the limit are out, want 2", n)
	}
}
