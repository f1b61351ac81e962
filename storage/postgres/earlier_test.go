package postgres_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
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

// An entity, or a shared limit, with a state of an earlier version begins anew, with empty windows and all tokens.
func TestStateOfAnEarlierVersion(t *testing.T) {
	pool := newPool(t, servers.UsePostgres(t).URL(), 2)
	l := limits(2000, 2000, 1<<40)
	for kind := decision.GetDelay; kind <= decision.Announce; kind++ {
		leases := 2
		if kind == decision.Admit {
			leases = 1200 // more than a purge deletes
		}
		o := postgres.Options{Schema: newSchema()}
		old, s := newStorageWith(t, pool, o), newStorageWith(t, pool, o)
		getDelay(t, old, "shop", l)
		var lease decision.Lease
		for range leases {
			lease = do(t, old, "shop", l, one).Lease
		}
		asFormat(t, pool, o.Schema, "shop", -1)
		entries := 0
		ok(t, s.List(t.Context(), func(storage.Entry) error { entries++; return nil }))
		e, err := s.Read(t.Context(), "shop")
		st, _, failed := s.Get(t.Context(), "shop")
		if err != nil || failed != nil || e.State.Tokens != 0 || e.Out != 0 || len(e.Leases) != 0 || entries != 0 || len(st.Data) == 0 {
			t.Errorf("before the first decision: %+v, %v, %v, %v; List tells %d", e, err, st, failed, entries)
		}
		op := decision.Op{Kind: kind, Cost: decision.Cost{1}, Lease: lease, For: 1, Level: 5000}
		if kind == decision.Pin {
			op.Pin = &decision.PinnedLimit{Tokens: 1500}
		}
		if a := do(t, s, "shop", l, op); a.Found || a.Delay == 0 && kind == decision.Admit {
			t.Errorf("operation %d = %+v", kind, a)
		}
		for range 3 { // with a lock, and without
			if a := do(t, s, "shop", l, one); a.Delay == 0 || a.Bound == decision.BoundTokens {
				t.Errorf("after operation %d an Admit is %+v; want the next interval", kind, a)
			}
		}
		if e := read(t, s, "shop"); e.Out != 0 || e.State.Plain != 0 {
			t.Errorf("after operation %d: %+v", kind, e)
		}
		if rows := query[int](t, pool, o.Schema, "select count(*) from drip.lease"); rows != 0 {
			t.Errorf("after operation %d: %d leases of before are still there", kind, rows)
		}
	}
}

func TestSharedStateOfAnEarlierVersion(t *testing.T) {
	pool, o := newPool(t, servers.UsePostgres(t).URL(), 2), postgres.Options{Schema: newSchema()}
	s, l := newStorageWith(t, pool, o), limits(1000, 1000, 1<<40)
	within := []storage.Within{{Key: "app", ID: 1, Weight: 1, Limits: l}, {Key: "other", ID: 2, Weight: 1, Limits: l}}
	first, err := s.Do(t.Context(), "shop", l, within, one)
	ok(t, err)
	asFormat(t, pool, o.Schema, "other", -1)
	for i := range 3 {
		if a, err := s.Do(t.Context(), "shop", l, within, one); err != nil || a.Delay == 0 || i == 0 && a.Limit != 2 {
			t.Errorf("Admit = %+v, %v; want the next interval of the second limit", a, err)
		}
	}
	settle := decision.Op{Kind: decision.Settle, Now: decision.OwnClock, Cost: decision.Cost{1}, Lease: first.Lease}
	if a, err := s.Do(t.Context(), "shop", l, within, settle); err != nil || !a.Found {
		t.Errorf("Settle of the lease that the shop has = %+v, %v", a, err)
	}
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
