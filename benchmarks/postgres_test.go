package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/postgres"
)

// seedFunction is the token bucket of Franck Pachot's series "Rate limiting with Postgres / Token Buckets" (dev.to),
// whose users storage/postgres is for. It is compared under read committed, where it is fastest and where it grants up to
// 18 times what it should.
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
// clients, and the function above, of which each client has a connection of its own. In each iteration they take turns, so
// that a busy machine is as busy for all. Every call is let through.
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
	connect := func(most int32) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(url)
		if err != nil {
			b.Fatal(err)
		}
		config.MaxConns = most
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(pool.Close)
		return pool
	}
	// Schemas of their own: what a table was through before makes a difference.
	schema := fmt.Sprintf("drip_%x", rand.Uint32())
	open := func(most int32) *drip.Bucket {
		st, err := postgres.New(connect(most), postgres.Options{Schema: schema})
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
	together := open(int32(min(clients, 4)))
	apart := make([]*drip.Bucket, clients)
	for i := range apart {
		apart[i] = open(1) // connects when it is needed
	}
	pool := connect(int32(min(clients, 40))) // the server has 100
	if _, err := pool.Exec(ctx, "drop table if exists rate_limiting_token_bucket;"+seedFunction); err != nil {
		b.Fatal(err)
	}
	seed := func(_ int, key string) error {
		for {
			var left int
			err := pool.QueryRow(ctx, "select rate_limiting_token_bucket_request($1, 1000000, 1000)", key).Scan(&left)
			var refused *pgconn.PgError
			if errors.As(err, &refused) && refused.Code == "23505" { // two were the first
				continue
			}
			if err == nil && left < 0 {
				err = errors.New("denied")
			}
			return err
		}
	}
	ways := []*postgresTurns{
		{name: "seed", decide: seed},
		{name: "drip", decide: func(_ int, key string) error { return getDelay(together, key) }},
		{name: "apart", decide: func(i int, key string) error { return getDelay(apart[i], key) }},
	}
	for _, w := range ways {
		w.take(b, keys, clients) // connects, and makes the rows
		w.rates = nil
	}
	b.ResetTimer()
	for b.Loop() {
		for _, w := range ways {
			w.take(b, keys, clients)
		}
	}
	b.ReportMetric(0, "ns/op") // how long the turns are
	for _, w := range ways {
		b.ReportMetric(median(w.rates), w.name+"/s")
		ratios := make([]float64, b.N)
		for i := range ratios {
			ratios[i] = w.rates[i] / ways[0].rates[i]
		}
		if w != ways[0] {
			b.ReportMetric(median(ratios), w.name+"×seed")
		}
	}
}

// postgresTurns is one way to decide, and what its turns came to.
type postgresTurns struct {
	name   string
	decide func(client int, key string) error
	rates  []float64 // decisions a second, turn by turn
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
}
