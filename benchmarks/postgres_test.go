package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/postgres"
)

// seedFunction is the token bucket of Franck Pachot's series on rate limiting with token buckets in YugabyteDB and
// PostgreSQL (dev.to), whose users storage/postgres is for. It is compared at serializable, as its author uses it and
// where it does not grant too much, with the retries that takes; and at read committed, where it is faster and was seen to
// grant 18 times what it should.
const seedFunction = `
create table if not exists rate_limiting_token_bucket (id text primary key, tk bigint not null, ts timestamptz not null);
create or replace function rate_limiting_token_bucket_request(rate_id text, refill_per_sec int default 2, window_seconds int default 60)
returns int as $$
declare
  new_tk int := null;
begin
  update rate_limiting_token_bucket
  set ts = now(), tk = greatest(least(tk - 1 + refill_per_sec * extract(epoch from clock_timestamp() - ts), window_seconds * refill_per_sec), -1)
  where rate_limiting_token_bucket.id = rate_id
  returning tk into new_tk;
  if new_tk is null then
    insert into rate_limiting_token_bucket (id, tk, ts) values (rate_id, window_seconds * refill_per_sec - 1, clock_timestamp())
    returning tk into new_tk;
  end if;
  return new_tk;
end; $$ language plpgsql;`

// BenchmarkPostgres compares decisions on one server: GetDelay of drip in one process, and in as many as there are
// clients, and the function above, on 20 connections at most. In each iteration they take turns, so
// that a busy machine is as busy for all. Every call is let through. The ratios are medians over the turns: drip×seed is
// one process of drip to the function at serializable, apart×committed as many processes to it at read committed. What a
// decision takes of the processors, in microseconds, of clients and server, hardly depends on what else the machine does.
//
//	go test -run '^$' -bench Postgres -benchtime 7x
func BenchmarkPostgres(b *testing.B) {
	server := servers.UsePostgres(b)
	for _, n := range []int{1, 10_000} {
		for _, clients := range []int{1, 10, 50} {
			b.Run(fmt.Sprintf("ids=%d/clients=%d", n, clients), func(b *testing.B) {
				comparePostgres(b, server.URL(), keys(n), clients)
			})
		}
	}
}

func comparePostgres(b *testing.B, url string, keys []string, clients int) {
	ctx := context.Background()
	// Schemas of their own: what a table was through before makes a difference.
	schema := fmt.Sprintf("drip_%x", rand.Uint32())
	connect := func(name string, most int32, isolation string) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			b.Fatal(err)
		}
		config.MaxConns = most
		config.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
		config.ConnConfig.RuntimeParams["application_name"] = schema + name
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(pool.Close)
		return pool
	}
	open := func(name string, most int32) *drip.Bucket {
		st, err := postgres.New(connect(name, most, "read committed"), postgres.Options{Schema: schema + name})
		if err != nil {
			b.Fatal(err)
		}
		if err := st.CreateSchema(ctx); err != nil {
			b.Fatal(err)
		}
		bucket, err := drip.New(drip.Options{
			Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: time.Second, Start: time.Unix(0, 0), Storage: st,
		})
		if err != nil {
			b.Fatal(err)
		}
		return bucket
	}
	getDelay := func(bucket *drip.Bucket, key string) error {
		delay, err := bucket.GetDelay(ctx, key)
		if err == nil && delay != 0 {
			err = fmt.Errorf("delay %v", delay)
		}
		return err
	}
	together := open("drip", int32(min(clients, 4)))
	apart := make([]*drip.Bucket, clients)
	for i := range apart {
		apart[i] = open("apart", 1) // connects when it is needed
	}
	seed := func(name, isolation string) func(int, string) error {
		pool := connect(name, int32(min(clients, 20)), isolation) // the server has 100 connections, and each of apart has one
		if _, err := pool.Exec(ctx, "drop table if exists rate_limiting_token_bucket;"+seedFunction); err != nil {
			b.Fatal(err)
		}
		return func(_ int, key string) error {
			for {
				var left int
				err := pool.QueryRow(ctx, "select rate_limiting_token_bucket_request($1, 1000000, 1000)", isolation+key).Scan(&left)
				var refused *pgconn.PgError
				if errors.As(err, &refused) && (refused.Code == "40001" || refused.Code == "40P01" || refused.Code == "23505") {
					continue // others were at it, or two were the first
				}
				if err == nil && left < 0 {
					err = errors.New("denied")
				}
				return err
			}
		}
	}
	ways := []*postgresTurns{
		{name: "seed", decide: seed("seed", "serializable")},
		{name: "committed", decide: seed("committed", "read committed")},
		{name: "drip", decide: func(_ int, key string) error { return getDelay(together, key) }},
		{name: "apart", decide: func(i int, key string) error { return getDelay(apart[i], key) }},
	}
	for _, w := range ways { // connects, and makes the rows
		var wg sync.WaitGroup
		for i := range clients {
			wg.Go(func() {
				for n := i; n < max(len(keys), clients); n += clients {
					if err := w.decide(i, keys[n%len(keys)]); err != nil {
						b.Error(w.name, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	b.ResetTimer()
	admin := connect("", 1, "read committed")
	for b.Loop() {
		for _, w := range ways {
			before := processorTime(b, admin, schema+w.name)
			w.take(b, keys, clients)
			w.spent += processorTime(b, admin, schema+w.name) - before
		}
	}
	b.ReportMetric(0, "ns/op") // how long the turns are
	for _, w := range ways {
		b.ReportMetric(median(w.rates), w.name+"/s")
		b.ReportMetric(w.spent.Seconds()*1e6/float64(w.decisions), w.name+"-µs")
		if w.name == "drip" || w.name == "apart" {
			for _, to := range ways[:2] {
				ratios := make([]float64, b.N)
				for i := range ratios {
					ratios[i] = w.rates[i] / to.rates[i]
				}
				b.ReportMetric(median(ratios), w.name+"×"+to.name)
			}
		}
	}
}

// postgresTurns is one way to decide, and what its turns came to.
type postgresTurns struct {
	name   string
	decide func(client int, key string) error
	rates  []float64 // decisions a second, turn by turn

	decisions int
	spent     time.Duration // of processors, by this process and the server's sessions
}

// processorTime is what this process has taken of the processors, and those of the server's that are this application's.
func processorTime(b *testing.B, admin *pgxpool.Pool, application string) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	total := time.Duration(used.Utime.Nano() + used.Stime.Nano())
	rows, err := admin.Query(context.Background(), "select pid from pg_stat_activity where application_name = $1", application)
	if err != nil {
		b.Fatal(err)
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		b.Fatal(err)
	}
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Skip(err) // the server is not on this machine, or the machine is not Linux
		}
		_, fields, _ := strings.Cut(string(stat), ") ") // after the name, which may hold anything
		for _, ticks := range strings.Fields(fields)[11:13] {
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			total += time.Duration(n) * time.Second / 100
		}
	}
	return total
}

// take lets the clients decide for 400 ms, as fast as they can.
func (t *postgresTurns) take(b *testing.B, keys []string, clients int) {
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		decisions int
		began     = time.Now()
	)
	for i := range clients {
		wg.Go(func() {
			n, next := 0, rand.IntN(len(keys))
			for ; time.Since(began) < 400*time.Millisecond; n++ {
				if err := t.decide(i, keys[next]); err != nil {
					b.Error(t.name, err)
					break
				}
				next = (next + 1) % len(keys)
			}
			mu.Lock()
			decisions += n
			mu.Unlock()
		})
	}
	wg.Wait()
	t.rates = append(t.rates, float64(decisions)/time.Since(began).Seconds())
	t.decisions += decisions
}
