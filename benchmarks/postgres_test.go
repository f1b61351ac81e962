package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/postgres"
)

// seedFunction is the token bucket of Franck Pachot's series on rate limiting with token buckets in YugabyteDB and
// PostgreSQL (dev.to), whose users storage/postgres is for. The benchmark runs it at serializable, as its author uses
// it, and at repeatable read, with the retries that takes. At read committed it granted 18 times as much as it should.
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

// BenchmarkPostgres compares decisions on one server: GetDelay of drip in one process, GetDelay in as many processes as
// there are clients, apart, and the function above. Each call of the function has a connection. With drip in one
// process 20 connections are enough for all, which suits the function. With drip apart each client has its own, as
// drip's clients do.
//
// The ways take turns of 20 ms, twenty in an iteration, so that a busy machine is as busy for all. With too many
// connections for that, one way takes its twenty turns after the other. Every call is let through. The ratios are
// medians over the turns: drip×seed and apart×seed are to the function at serializable, drip×repeatable and
// apart×repeatable to the function at repeatable read. The processor time of a decision, in microseconds, of clients
// and server, hardly depends on the other work of the machine.
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
	connect := func(w *postgresTurns, most int, isolation string) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(url)
		ok(b, err)
		config.MaxConns = int32(most)
		config.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
		config.ConnConfig.RuntimeParams["application_name"] = schema + w.name
		pool, err := pgxpool.NewWithConfig(ctx, config)
		ok(b, err)
		b.Cleanup(pool.Close)
		w.pools = append(w.pools, pool)
		return pool
	}
	drips := func(name string, processes, connections int) *postgresTurns {
		w := &postgresTurns{name: name, application: schema + name}
		var buckets []*drip.Bucket
		for i := range processes {
			st, err := postgres.New(connect(w, connections, "read committed"), postgres.Options{Schema: schema + name})
			ok(b, err)
			if i == 0 {
				ok(b, st.CreateSchema(ctx))
			}
			bucket := buckettest.New(b, drip.Options{
				Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: time.Second, Storage: st,
			})
			buckets = append(buckets, bucket)
		}
		w.decide = func(client int, key string) error {
			delay, err := buckets[client%processes].GetDelay(ctx, key)
			if err == nil && delay != 0 {
				err = fmt.Errorf("delay %v", delay)
			}
			return err
		}
		return w
	}
	seed := func(name, isolation string, connections int) *postgresTurns {
		w := &postgresTurns{name: name, application: schema + name}
		pool := connect(w, connections, isolation)
		if _, err := pool.Exec(ctx, strings.ReplaceAll(seedFunction, "rate_limiting", schema+name)); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _, _ = pool.Exec(ctx, "drop table "+schema+name+"_token_bucket") })
		w.decide = func(_ int, key string) error {
			for {
				var left int
				err := pool.QueryRow(ctx, "select "+schema+name+"_token_bucket_request($1, 1000000, 1000)", key).Scan(&left)
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
		return w
	}
	few := min(clients, 20)
	ways := []*postgresTurns{
		seed("seed", "serializable", few), seed("repeatable", "repeatable read", few), drips("drip", 1, min(clients, 4)),
		seed("seeds", "serializable", clients), seed("repeatables", "repeatable read", clients), drips("apart", clients, 1),
	}
	admin := connect(&postgresTurns{}, 1, "read committed")
	for _, w := range ways { // makes the rows; and each process of drip has met each entity
		step := clients
		if len(w.pools) > 1 {
			step = 1
		}
		w.clients(b, clients, func(i int) {
			for n := i; n < max(len(keys), clients); n += step {
				if err := w.decide(i, keys[n%len(keys)]); err != nil {
					b.Error(w.name, err)
					return
				}
			}
		})
		w.disconnect(b, admin)
	}
	// Those that take turns need all their connections at once.
	together := [][]*postgresTurns{ways}
	if clients > 10 {
		together = slices.Collect(slices.Chunk(ways, 1))
	}
	b.ResetTimer()
	for b.Loop() {
		for _, ways := range together {
			for _, w := range ways {
				w.meet(b, keys, clients)
			}
			for turn := range 20 {
				for i := range ways {
					ways[(turn+i)%len(ways)].take(b, admin, keys, clients)
				}
			}
			for _, w := range ways {
				w.disconnect(b, admin)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // how long the turns are
	for i, w := range ways {
		b.ReportMetric(median(w.rates), w.name+"/s")
		b.ReportMetric(w.spent.Seconds()*1e6/float64(w.decisions), w.name+"-µs")
		if i%3 < 2 {
			continue
		}
		for j, to := range ways[:2] { // each is compared with the ways of these names
			b.ReportMetric(median(ratios(w.rates, ways[i-2+j].rates)), w.name+"×"+to.name)
		}
	}
}

// postgresTurns is one way to decide, and the results of its turns.
type postgresTurns struct {
	name, application string
	pools             []*pgxpool.Pool
	decide            func(client int, key string) error
	rates             []float64 // decisions a second, turn by turn

	decisions int
	spent     time.Duration // of processors, by this process and the server's sessions
}

// clients has each of them do something, and waits for them.
func (t *postgresTurns) clients(b *testing.B, n int, do func(client int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
}

// meet lets the clients connect, prepare the statements, and decide once about each key, because real connections live
// longer than these and have done so.
func (t *postgresTurns) meet(b *testing.B, keys []string, clients int) {
	t.clients(b, clients, func(i int) {
		for n := i; n < len(keys)+20*clients; n += clients {
			if err := t.decide(i, keys[n%len(keys)]); err != nil {
				b.Error(t.name, err)
				return
			}
		}
	})
}

// take lets the clients decide for 20 ms, as fast as they can.
func (t *postgresTurns) take(b *testing.B, admin *pgxpool.Pool, keys []string, clients int) {
	var decisions atomic.Int64
	before, began := processorTime(b, admin, t.application), time.Now()
	t.clients(b, clients, func(i int) {
		n, next := int64(0), rand.IntN(len(keys))
		for ; time.Since(began) < 20*time.Millisecond; n++ {
			if err := t.decide(i, keys[next]); err != nil {
				b.Error(t.name, err)
				break
			}
			next = (next + 1) % len(keys)
		}
		decisions.Add(n)
	})
	t.rates = append(t.rates, float64(decisions.Load())/time.Since(began).Seconds())
	t.decisions += int(decisions.Load())
	t.spent += processorTime(b, admin, t.application) - before
}

// disconnect leaves the server's connections, of which there are a hundred, to the next way.
func (t *postgresTurns) disconnect(b *testing.B, admin *pgxpool.Pool) {
	for left := 1; left > 0; {
		connections := int32(0)
		for _, pool := range t.pools {
			pool.Reset()
			connections += pool.Stat().TotalConns()
		}
		err := admin.QueryRow(b.Context(), "select count(*) from pg_stat_activity where application_name = $1", t.application).Scan(&left)
		ok(b, err)
		left += int(connections)
	}
}

// processorTime is the processor time of this process, and of the server's processes for this application.
func processorTime(b *testing.B, admin *pgxpool.Pool, application string) time.Duration {
	total := clientTime(b)
	rows, err := admin.Query(context.Background(), "select pid from pg_stat_activity where application_name = $1", application)
	ok(b, err)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	ok(b, err)
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Skip(err) // the server is not on this machine, or the machine is not Linux
		}
		_, fields, _ := strings.Cut(string(stat), ") ") // after the name, which may hold anything
		for _, ticks := range strings.Fields(fields)[11:13] {
			n, err := strconv.ParseInt(ticks, 10, 64)
			ok(b, err)
			total += time.Duration(n) * time.Second / 100
		}
	}
	return total
}
