package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

var duration = flag.Duration("duration", 200*time.Millisecond, "how long the tests of the limit contend")

// contest is a test in which many ask for one entity as fast as they can, by the server's clock. It gains 4 each 20 ms,
// from nothing and without end, so what was granted must be exactly what the intervals brought.
type contest struct {
	t     *testing.T
	s     *postgres.Storage // of one more, who asks at last for what is left
	start int64
	l     *storage.Limits
}

func newContest(t *testing.T, s *postgres.Storage) *contest {
	c := &contest{t: t, s: s}
	c.start = c.now()
	c.l = contestLimits(c.start)
	return c
}

func contestLimits(start int64) *storage.Limits {
	l := limits(1_000_000, 4, 20)
	l.Start = start
	return l
}

// now is the server's clock.
func (c *contest) now() int64 {
	c.t.Helper()
	_, _, now, err := c.s.GetWithTime(context.Background(), "shop")
	if err != nil {
		c.t.Fatal(err)
	}
	return now.UnixMilli()
}

// check asks for what is left, until nothing is, and compares.
func (c *contest) check(granted int64) {
	c.t.Helper()
	brought := func(now int64) int64 {
		return c.l.RefreshRate * (now/c.l.RefreshInterval - c.start/c.l.RefreshInterval)
	}
	for total := granted; ; total++ {
		before := c.now()
		if getDelay(c.t, c.s, "shop", c.l) == 0 {
			continue
		}
		if least, most := brought(before), brought(c.now()); total < least || total > most {
			c.t.Errorf("%d were granted and %d left, the intervals brought %d to %d", granted, total-granted, least, most)
		}
		return
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
				granted := make([]int64, sessions)
				for i := range sessions {
					pool := newPool(t, url, 1, "default_transaction_isolation", level)
					s := newStorageWith(t, pool, o)
					wg.Go(func() {
						defer pool.Close()
						for began := time.Now(); time.Since(began) < *duration; {
							d, err := ask(context.Background(), s, "shop", c.l)
							if err != nil {
								t.Error(err)
								return
							}
							if d == 0 {
								granted[i]++
							}
						}
					})
				}
				wg.Wait()
				total := int64(0)
				for _, n := range granted {
					total += n
				}
				c.check(total)
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
		l := limits(5, 1, 1<<44)
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

// A decision is no part of the caller's transaction: the time does not stand still in it, and what it takes stays taken.
func TestInsideTransaction(t *testing.T) {
	clock := newServerClock(t)
	s := newStorageWith(t, clock.pool, postgres.Options{Schema: newSchema()})
	clock.stand(0)
	l := limits(10, 10, 1000)
	tx, err := clock.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := grants(t, s, l, 40); n != 10 {
		t.Errorf("%d of 40 granted, want 10", n)
	}
	clock.stand(time.Second)
	if n := grants(t, s, l, 40); n != 10 {
		t.Errorf("a second later %d of 40 granted, want 10", n)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := grants(t, s, l, 40); n != 0 {
		t.Errorf("after the rollback %d of 40 granted, want none", n)
	}
}

const processes, goroutines = 4, 8

// process is what a process of TestProcesses is told, and what it reports.
type process struct {
	URL, Schema string
	Start       int64
	Duration    time.Duration

	Granted, Calls int64
}

// TestProcesses has processes with several goroutines each ask for one entity.
func TestProcesses(t *testing.T) {
	schema := newSchema()
	url := servers.UsePostgres(t).URL()
	c := newContest(t, newStorageWith(t, sharedPool(t), postgres.Options{Schema: schema}))
	reports := contenders.Start(t, processes, process{URL: url, Schema: schema, Start: c.start, Duration: 2 * *duration})()
	var granted, calls int64
	for _, r := range reports {
		granted += r.Granted
		calls += r.Calls
	}
	t.Logf("%d of %d calls granted", granted, calls)
	c.check(granted)
}

// contend is what one of the processes does.
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
			for began := time.Now(); time.Since(began) < p.Duration; {
				d, err := ask(ctx, s, "shop", contestLimits(p.Start))
				mu.Lock()
				p.Calls++
				if err == nil && d == 0 {
					p.Granted++
				}
				failed = errors.Join(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return failed
}
