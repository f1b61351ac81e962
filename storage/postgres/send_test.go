package postgres_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/postgres"
)

// What the connection forgets is prepared again. As with all that pgx prepares, one call finds out.
func TestForgottenStatement(t *testing.T) {
	t.Parallel()
	pool := newPool(t, servers.UsePostgres(t).URL(), 1)
	o := postgres.Options{Schema: newSchema()}
	s := newStorageWith(t, pool, o)
	taken := int64(0)
	for range 3 {
		getDelay(t, s, "shop", plenty)
		taken++
		exec(t, pool, "", "deallocate all")
		_, err := ask(t.Context(), s, "shop", plenty)
		var refused *pgconn.PgError
		if err == nil {
			taken++
		} else if !errors.As(err, &refused) || refused.Code != "26000" { // invalid_sql_statement_name
			t.Fatal(err)
		}
	}
	getDelay(t, s, "shop", plenty)
	if n := query[int64](t, pool, o.Schema, "select in_use from drip.entity"); n != taken+1 {
		t.Errorf("%d tokens are out, %d were taken", n, taken+1)
	}
}

// The connection goes back to the pool as it was: a statement of somebody else's may take longer than Timeout.
func TestNoDeadlineIsLeft(t *testing.T) {
	t.Parallel()
	pool := newPool(t, servers.UsePostgres(t).URL(), 1)
	s := newStorageWith(t, pool, postgres.Options{Schema: newSchema(), Timeout: 2 * time.Second})
	getDelay(t, s, "shop", plenty)
	before := query[int](t, pool, "", "select pg_backend_pid()")
	if after := query[int](t, pool, "", "select pg_backend_pid() from pg_sleep(2.1)"); after != before {
		t.Error("that is another connection")
	}
}

// A connection without deadlines is closed when Timeout has passed.
func TestNoDeadlines(t *testing.T) {
	t.Parallel()
	config := newPool(t, servers.UsePostgres(t).URL(), 1).Config()
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return postgres.NoDeadlines{Conn: conn}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	o := postgres.Options{Schema: newSchema(), Timeout: 2 * time.Second}
	s := newStorageWith(t, pool, o)
	for range 3 {
		if d := getDelay(t, s, "shop", plenty); d != 0 {
			t.Errorf("GetDelay = %v", d)
		}
	}
	tx, err := newPool(t, servers.UsePostgres(t).URL(), 1).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), in(o.Schema, "select from drip.entity for update")); err != nil {
		t.Fatal(err)
	}
	_, err = ask(context.Background(), s, "shop", plenty)
	if !errors.Is(err, postgres.ErrNoAnswer) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("GetDelay of a row that is locked = %v, want ErrNoAnswer for the Timeout", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	getDelay(t, s, "shop", plenty)
}
