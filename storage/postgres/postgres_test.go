package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// newPool connects to the server. Settings of the sessions may follow, as name and value.
func newPool(t testing.TB, url string, settings ...string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(settings); i += 2 {
		config.ConnConfig.RuntimeParams[settings[i]] = settings[i+1]
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// newStorage makes a storage with a schema of its own.
func newStorage(t testing.TB) *postgres.Storage {
	t.Helper()
	return newStorageIn(t, newPool(t, servers.UsePostgres(t).URL()), fmt.Sprintf("drip %x", rand.Uint64()))
}

func newStorageIn(t testing.TB, pool *pgxpool.Pool, schema string) *postgres.Storage {
	t.Helper()
	s, err := postgres.New(pool, postgres.Options{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CreateSchema(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestStorage(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Storage { return newStorage(t) })
}

func TestCompare(t *testing.T) {
	s := newStorage(t)
	for seed := range uint64(60) {
		storagetest.Compare(t, s, 1000+seed, 400)
	}
}

func TestRecordedRuns(t *testing.T) {
	if err := traces.Replay(t.Context(), newStorage(t), traces.Runs); err != nil {
		t.Error(err)
	}
}
