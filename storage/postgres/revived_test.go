package postgres_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/postgres"
)

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
