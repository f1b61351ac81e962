package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// statements counts those that have changed a row, by a part of them that no other has.
type statements struct {
	refusals
	mu      sync.Mutex
	changed map[string]int
}

var classicStatements = map[string]string{
	"start": "insert into", "run": "revision = $4, ops_last = greatest", "postpone": "e.ops_capacity = 0", "give back": "e.in_use - 1",
}

type statement struct{}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statement{}, data.SQL)
}

func (s *statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	sql := ctx.Value(statement{}).(string)
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, part := range classicStatements {
		if strings.Contains(sql, "e.booking is null") && strings.Contains(sql, part) && data.CommandTag.RowsAffected() == 1 {
			s.changed[name]++
		}
	}
}

// TestClassic has two processes ask in turn, whose entities are decided about by the statements, and compares each answer
// and the row with those of the calculator: a process that has just begun reads first.
func TestClassic(t *testing.T) {
	t.Parallel()
	clock := newServerClock(t)
	counted := statements{refusals: refusals{t}, changed: map[string]int{}}
	config := clock.pool.Config()
	config.ConnConfig.Tracer = &counted
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	row := func(schema, key string) string {
		return query[string](t, pool, schema, "select coalesce((select concat_ws(',', ops_last, ops_capacity, wait_last, wait_capacity, in_use, until, booking, expires, callers_clock) from drip.entity where key = $1), '')", []byte(key))
	}
	seldom := func() (names []string) { // those that have hardly been tried
		for name := range classicStatements {
			if counted.changed[name] < *steps/20 {
				names = append(names, name)
			}
		}
		return names
	}
	rounds := *steps / 200
	for round := 0; round < rounds || len(seldom()) > 0 && round < 20*rounds; round++ {
		rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
		pick := func(values ...int64) int64 { return values[rnd.IntN(len(values))] }
		interval := pick(1, 7, 100, 1000, 60_000)
		now := pick(0, 1, rnd.Int64N(3*interval))
		limits := func() *storage.Limits {
			return &storage.Limits{
				Window: storage.Window{
					Size: 1 + rnd.Int64N(pick(1, 5, 50)), RefreshRate: 1 + rnd.Int64N(pick(1, 5, 50)), RefreshInterval: interval,
				},
				Concurrency: pick(0, 1, 3, 50, 1<<40), WaitForToken: pick(1, 10, 2500), Lease: 60_000, MaxLease: 60_000,
				Start: pick(-1<<50, 0, year2026.UnixMilli()-interval, year2026.UnixMilli()+now),
			}
		}
		l := limits()
		o := postgres.Options{Schema: newSchema(), Remember: 2, MaxHold: time.Duration(pick(1, 5*interval, 1e7)) * time.Millisecond}
		first, second := newStorageWith(t, pool, o), newStorageWith(t, pool, o)
		first.StandStill()
		second.StandStill()
		both := &inTurn{random: true, storages: []storage.Atomic{first, second}}
		reference := o
		reference.Schema = newSchema()
		newStorageWith(t, pool, reference)
		var steps []string
		for range 150 {
			switch rnd.IntN(12) {
			case 0:
				now += rnd.Int64N(3*interval + 1)
			case 1, 2, 3:
				now += rnd.Int64N(interval/4 + 2)
			case 4:
				if rnd.IntN(8) == 0 {
					now += 100 * interval
				} else if rnd.IntN(3) == 0 {
					now = max(0, now-rnd.Int64N(interval+1)) // it is set back
				}
			case 5:
				if rnd.IntN(5) == 0 {
					interval = pick(interval, interval, 50, 1000)
					l = limits()
				}
			}
			clock.stand(time.Duration(now)*time.Millisecond + 500*time.Microsecond)
			op := storage.Op{Kind: storage.GetDelay, Now: storage.OwnClock}
			if rnd.IntN(10) < 3 {
				op.Kind = storage.ReturnToken
			}
			key := fmt.Sprint("shop", rnd.IntN(3))
			steps = append(steps, fmt.Sprintf("at %d: kind %d for %s of %+v", now, op.Kind, key, *l))
			for _, s := range both.storages { // it reads, which tells the time
				if _, err := s.Do(t.Context(), "nobody", l, storage.Op{Kind: storage.ReturnToken}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := both.Do(t.Context(), key, l, op)
			if err != nil {
				t.Fatalf("%v\n%s", err, strings.Join(steps, "\n"))
			}
			calculator, err := postgres.New(pool, reference)
			if err != nil {
				t.Fatal(err)
			}
			want, err := calculator.Do(t.Context(), key, l, op)
			if err != nil {
				t.Fatal(err)
			}
			if a, b := row(o.Schema, key), row(reference.Schema, key); got != want || a != b {
				t.Fatalf("%s\ngot  %+v and the row\n%s, want\n     %+v and\n%s", strings.Join(steps, "\n"), got, a, want, b)
			}
		}
	}
	t.Logf("rows changed by statement: %v", counted.changed)
	if names := seldom(); len(names) > 0 {
		t.Errorf("the statements to %v have hardly changed a row", names)
	}
}

// An entity that several processes ask about, in no order, takes one round trip a decision. What a process has to itself
// again is soon what it remembers again, which is cheaper.
func TestCalm(t *testing.T) {
	t.Parallel()
	var sent sentences
	processes := twoProcesses(t, &sent)
	sent = nil
	const n = 400
	for range n {
		getDelay(t, processes[rand.IntN(2)], "shop", plenty)
	}
	if extra := len(sent) - n; extra > 10 { // to begin with
		t.Errorf("%d decisions took %d round trips more", n, extra)
	}
	last := ""
	roundTrips(t, "20 decisions of one that shared it before", 20, func() int64 {
		for i := range 10 {
			getDelay(t, processes[i%2], "shop", plenty)
		}
		sent = nil
		for range 20 {
			getDelay(t, processes[0], "shop", plenty)
		}
		last = sent[len(sent)-1]
		return int64(len(sent))
	})
	if !strings.Contains(last, "revision = $10") {
		t.Errorf("the last of 20 decisions is %s", last)
	}
}

// A process whose clock is ahead of the server's, and which has begun a moment ago, takes one round trip a decision, too.
func TestBeforeStart(t *testing.T) {
	t.Parallel()
	var sent sentences
	processes := twoProcesses(t, &sent)
	limits := *plenty
	for range 2 {
		for _, s := range processes {
			getDelay(t, s, "shop", &limits)
		}
	}
	limits.Start = time.Now().Add(time.Hour).UnixMilli()
	roundTrips(t, "10 decisions before the start", 10, func() int64 {
		sent = nil
		for i := range 10 {
			getDelay(t, processes[i%2], "shop", &limits)
		}
		return int64(len(sent))
	})
}

// twoProcesses have the same entities. What they send is told.
func twoProcesses(t *testing.T, sent *sentences) []storage.Atomic {
	t.Helper()
	pool := newTracedPool(t, sent, servers.UsePostgres(t).URL(), 1)
	o := postgres.Options{Schema: newSchema()}
	return []storage.Atomic{newStorageWith(t, pool, o), newStorageWith(t, pool, o)}
}

// sentences is what was sent.
type sentences []string

func (s *sentences) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	*s = append(*s, data.SQL)
	return ctx
}
func (s *sentences) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
