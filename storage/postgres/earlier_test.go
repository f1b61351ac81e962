package postgres_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// asFormat has another version store a row's state: with another format, and what that may have changed, too.
func asFormat(t *testing.T, pool *pgxpool.Pool, schema, key string, change int) {
	t.Helper()
	data := query[[]byte](t, pool, schema, "select data from drip.entity where key = $1", []byte(key))
	binary.BigEndian.PutUint64(data, binary.BigEndian.Uint64(data)+uint64(change))
	exec(t, pool, schema, "update drip.entity set data = $1, revision = revision + 1 where key = $2", append(data[:len(data)-4], 7, 7), []byte(key))
}

func TestStateOfAnEarlierVersion(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 2)
	buckettest.EarlierVersion(t, func() buckettest.Aged {
		o := postgres.Options{Schema: newSchema()}
		return buckettest.Aged{
			Old: newStorageWith(t, pool, o), New: newStorageWith(t, pool, o),
			Age:    func(key string) { asFormat(t, pool, o.Schema, key, -1) },
			Leases: func(string) bool { return query[bool](t, pool, o.Schema, "select exists (select from drip.lease)") },
		}
	})
}

// A state of a later version is an error that says so, at once, and stays. The error tells each thing once.
func TestStateOfALaterVersion(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 2)
	for what, change := range map[string]int{"a later version of drip": 1, "something else than the state": 1 << 40} {
		o := postgres.Options{Schema: newSchema()}
		s := newStorageWith(t, pool, o)
		b, err := drip.New(drip.Options{Storage: s, Shared: map[string]drip.Limit{"app": {Size: 9, RefreshRate: 9}}})
		ok(t, err)
		for _, key := range []string{"shop", drip.SharedID("app")} {
			if _, err := b.Admit(t.Context(), "shop", drip.Request{}); err != nil {
				t.Fatal(err)
			}
			asFormat(t, pool, o.Schema, key, change)
			_, admit := b.Admit(t.Context(), "shop", drip.Request{})
			_, inspect := b.Inspect(t.Context(), key)
			for _, err := range []error{admit, inspect} {
				if !errors.Is(err, postgres.ErrNotState) || !errors.Is(err, storage.ErrFormat) || errors.Is(err, storage.ErrLater) != (change == 1) {
					t.Errorf("%v", err)
				} else if text := err.Error(); strings.Count(text, "postgres: ") != 1 || strings.Count(text, key) != 1 || !strings.Contains(text, "postgres: "+what) && change == 1 || strings.Contains(text, storage.ErrFormat.Error()) {
					t.Errorf("the text is %q", text)
				}
			}
			exec(t, pool, o.Schema, "delete from drip.entity where key = $1", []byte(key))
		}
	}
}
