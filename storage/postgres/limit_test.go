package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/postgres"
)

var duration = flag.Duration("duration", 200*time.Millisecond, "how long the tests of the limit contend")

// contest is a test in which many ask for one entity as fast as they can, by the server's clock. It gains 2 each 20 ms,
// from nothing and without end, so the granted capacity must equal the gain of the intervals exactly.
type contest struct {
	t     *testing.T
	s     *postgres.Storage
	start int64
	l     *decision.Limits
}

func newContest(t *testing.T, s *postgres.Storage) *contest {
	start := read(t, s, "shop").Time.UnixMilli()
	return &contest{t, s, start, contestLimits(start)}
}

func contestLimits(start int64) *decision.Limits {
	l := limits(1_000_000, 2, 20)
	l.Start = start
	return l
}

// contendFor asks for a while, and then until it is told that nothing is left: what the intervals have brought until the end
// of that while, by the server's clock, was granted to somebody then.
func contendFor(d time.Duration, s *postgres.Storage, l *decision.Limits) (granted, calls, until int64, err error) {
	ctx, began := context.Background(), time.Now()
	for {
		if until == 0 && time.Since(began) > d {
			e, err := s.Read(ctx, "shop")
			if err != nil {
				return granted, calls, 0, err
			}
			until = e.Time.UnixMilli()
		}
		delay, err := ask(ctx, s, "shop", l)
		switch calls++; {
		case err != nil:
			return granted, calls, until, err
		case delay == 0:
			granted++
		case until > 0:
			return granted, calls, until, nil
		}
	}
}

// check compares the granted capacity with the gain of the intervals until a time, and with the capacity that is left.
func (c *contest) check(granted, until int64) {
	c.t.Helper()
	brought := func(now int64) int64 {
		w := c.l.Windows[0]
		return w.Rate * (now/w.Interval - c.start/w.Interval)
	}
	if least := brought(until); granted < least {
		c.t.Errorf("%d were granted of %d that were asked for", granted, least)
	}
	e := read(c.t, c.s, "shop")
	if left, want := e.State.Lines[0].Left, brought(e.State.Now); granted+left != want {
		c.t.Errorf("%d were granted and %d are left, the intervals brought %d", granted, left, want)
	}
}

// Each session is a storage with a connection of its own, as it would be a process. The isolation level is what the
// sessions begin their transactions with unless told otherwise.
func TestLimitAtEveryIsolation(t *testing.T) {
	url := servers.UsePostgres(t).URL()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		for _, sessions := range []int{1, 4, 16, 50} {
			t.Run(fmt.Sprint(level, "/", sessions), func(t *testing.T) {
				o := postgres.Options{Schema: newSchema(), Timeout: time.Minute}
				c := newContest(t, newStorageWith(t, newPool(t, url, 1, "default_transaction_isolation", level), o))
				var wg sync.WaitGroup
				var total, until atomic.Int64
				for range sessions {
					pool := newPool(t, url, 1, "default_transaction_isolation", level)
					s := newStorageWith(t, pool, o)
					wg.Go(func() {
						defer pool.Close()
						granted, _, end, err := contendFor(*duration, s, c.l)
						if err != nil {
							t.Error(err)
						}
						total.Add(granted)
						until.Store(end) // of any of them
					})
				}
				wg.Wait()
				c.check(total.Load(), until.Load())
			})
		}
	}
}

// Two transactions that make the same entity: one waits for the other, or is told to try again. Both are decided.
func TestFirstCallRace(t *testing.T) {
	url := servers.UsePostgres(t).URL()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		o := postgres.Options{Schema: newSchema()}
		var storages []*postgres.Storage
		for range 8 {
			storages = append(storages, newStorageWith(t, newPool(t, url, 1, "default_transaction_isolation", level), o))
			getDelay(t, storages[len(storages)-1], "connected", plenty)
		}
		l := limits(5, 1, 1<<36)
		for round := range 10 {
			var wg sync.WaitGroup
			granted := make([]bool, len(storages))
			for i, s := range storages {
				wg.Go(func() {
					d, err := ask(context.Background(), s, fmt.Sprint("shop", round), l)
					if err != nil {
						t.Error(err)
					}
					granted[i] = err == nil && d == 0
				})
			}
			wg.Wait()
			n := 0
			for _, g := range granted {
				if g {
					n++
				}
			}
			if n != 5 {
				t.Errorf("%s: %d of 8 first calls granted, want 5", level, n)
			}
		}
	}
}

// A decision is no part of the caller's transaction: the time does not stand still in it, and its tokens stay taken.
func TestInsideTransaction(t *testing.T) {
	clock := newServerClock(t)
	s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema()})
	clock.stand(0)
	l := limits(10, 10, 1000)
	tx, err := clock.pool.Begin(t.Context())
	ok(t, err)
	if n := grants(t, s, l, 40); n != 10 {
		t.Errorf("%d of 40 granted, want 10", n)
	}
	clock.stand(time.Second)
	if n := grants(t, s, l, 40); n != 10 {
		t.Errorf("a second later %d of 40 granted, want 10", n)
	}
	ok(t, tx.Rollback(t.Context()))
	if n := grants(t, s, l, 40); n != 0 {
		t.Errorf("after the rollback %d of 40 granted, want none", n)
	}
}

const processes, goroutines = 4, 8

// process is the input and the report of a process of TestProcesses.
type process struct {
	URL, Schema string
	Start       int64
	Duration    time.Duration

	Granted, Calls, Until int64
}

// TestProcesses has processes with several goroutines each ask for one entity.
func TestProcesses(t *testing.T) {
	schema := newSchema()
	url := servers.UsePostgres(t).URL()
	c := newContest(t, newStorageWith(t, sharedPool(t), postgres.Options{Schema: schema}))
	reports := contenders.Start(t, processes, process{URL: url, Schema: schema, Start: c.start, Duration: 2 * *duration})()
	var granted, calls, until int64
	for _, r := range reports {
		granted += r.Granted
		calls += r.Calls
		until = max(until, r.Until)
	}
	t.Logf("%d of %d calls granted", granted, calls)
	c.check(granted, until)
}

func contend(p *process) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, p.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := postgres.New(pool, postgres.Options{Schema: p.Schema})
	if err != nil {
		return err
	}
	var (
		mu     sync.Mutex
		failed error
		wg     sync.WaitGroup
	)
	for range goroutines {
		wg.Go(func() {
			granted, calls, until, err := contendFor(p.Duration, s, contestLimits(p.Start))
			mu.Lock()
			defer mu.Unlock()
			p.Granted += granted
			p.Calls += calls
			p.Until = max(p.Until, until)
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	return failed
}
