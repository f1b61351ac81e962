package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// BenchmarkRedis compares drip with one Allow of redis_rate v10, which decides by rate alone, on one server. It runs
// drip's GetDelay, and Admit and Settle as a pair, which are the calls of one message. In each iteration they take
// turns, so that a busy machine is as busy for all, and every call is let through. The pair is timed for a process that is
// alone with its entities, and as "among" for a process among others, which leaves each decision to Redis. With one goroutine it also shows
// drip's cost for a context that can end: a goroutine, so that the caller can leave.
//
// Besides decisions a second and latencies it prints the processor time of a decision in microseconds: of the script,
// of the server with it, and of the client. These times hardly depend on the other work of the machine.
//
//	go test -run '^$' -bench Redis -benchtime 10x
func BenchmarkRedis(b *testing.B) {
	server := servers.UseRedis(b)
	for _, n := range []int{1, 10_000} {
		for _, goroutines := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("keys=%d/goroutines=%d", n, goroutines), func(b *testing.B) {
				compareRedis(b, server, keys(n), goroutines, nil)
			})
		}
	}
}

// BenchmarkRedisShared compares them for 100 entities of an app, whose operations are within up to two shared limits besides.
//
//	go test -run '^$' -bench RedisShared -benchtime 10x
func BenchmarkRedisShared(b *testing.B) {
	server := servers.UseRedis(b)
	shared := map[string]drip.Limit{}
	for n, name := range []string{"", "app", "endpoint"} {
		if n > 0 {
			shared[name] = drip.Limit{Size: 1 << 30}
		}
		b.Run(fmt.Sprintf("limits=%d/goroutines=64", n+1), func(b *testing.B) {
			compareRedis(b, server, keys(100), 64, shared)
		})
	}
}

func compareRedis(b *testing.B, server *servers.Redis, keys []string, goroutines int, shared map[string]drip.Limit) {
	o, err := goredis.ParseURL(server.URL())
	ok(b, err)
	client := goredis.NewClient(o)
	defer client.Close()
	for i := range keys {
		keys[i] += fmt.Sprintf("-%x", rand.Uint32()) // the keys of another run have a history
	}
	open := func(o redis.Options) *drip.Bucket {
		st, err := redis.New(client, o)
		ok(b, err)
		return buckettest.New(b, drip.Options{
			Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: time.Second, Storage: st, Shared: shared,
		})
	}
	bucket, among := open(redis.Options{}), open(redis.Options{Prefix: "among:", Remember: -1})
	getDelay := func(ctx context.Context, key string) error {
		delay, err := bucket.GetDelay(ctx, key)
		if err == nil && delay != 0 {
			err = fmt.Errorf("delay %v", delay)
		}
		return err
	}
	admitAndSettle := func(bucket *drip.Bucket) func(ctx context.Context, key string) error {
		return func(ctx context.Context, key string) error {
			key += "-admitted"
			a, err := bucket.Admit(ctx, key, drip.Request{})
			switch {
			case err != nil:
				return err
			case a.Delay != 0:
				return fmt.Errorf("%+v", a)
			}
			return bucket.Settle(ctx, key, a.Lease, 1)
		}
	}
	// Nothing is refused, and keys live on as drip's do. With a high rate they would end after a second, between two turns,
	// and Redis would delete them in somebody else's.
	limit := redis_rate.Limit{Rate: 1, Burst: 1_000_000, Period: time.Minute}
	limiter := redis_rate.NewLimiter(client)
	allow := func(ctx context.Context, key string) error {
		r, err := limiter.Allow(ctx, key, limit)
		if err == nil && r.Allowed != 1 {
			err = fmt.Errorf("%+v", r)
		}
		return err
	}
	turns := []*redisTurns{
		{name: "drip", ctx: context.Background(), decide: getDelay},
		{name: "rate", ctx: context.Background(), decide: allow},
		{name: "pair", ctx: context.Background(), decide: admitAndSettle(bucket)},
		{name: "among", ctx: context.Background(), decide: admitAndSettle(among)},
	}
	if goroutines == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		turns = append(turns, &redisTurns{name: "drip-ctx", ctx: ctx, decide: getDelay})
	}
	for _, t := range turns {
		t.take(b, server, keys, goroutines) // connects, loads the script, makes the keys
		*t = redisTurns{name: t.name, ctx: t.ctx, decide: t.decide}
	}
	b.ResetTimer()
	for b.Loop() {
		for _, t := range turns {
			t.take(b, server, keys, goroutines)
		}
	}
	b.ReportMetric(0, "ns/op") // how long the turns are
	for _, t := range turns {
		if t.name == "rate" {
			continue
		}
		b.ReportMetric(median(ratios(t.rates, turns[1].rates)), t.name+"×rate")
	}
	for _, t := range turns {
		slices.Sort(t.latencies)
		at := func(q float64) float64 {
			return float64(t.latencies[int(q*float64(len(t.latencies)-1))].Nanoseconds()) / 1000
		}
		b.ReportMetric(median(t.rates), t.name+"/s")
		b.ReportMetric(at(0.5), t.name+"-p50-µs")
		b.ReportMetric(at(0.99), t.name+"-p99-µs")
		each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(len(t.latencies)) }
		b.ReportMetric(each(t.script), t.name+"-script-µs")
		b.ReportMetric(each(t.client), t.name+"-client-µs")
		if t.server > 0 {
			b.ReportMetric(each(t.server), t.name+"-server-µs")
		}
	}
}

// redisTurns is one way to decide, and the results of its turns.
type redisTurns struct {
	name   string
	ctx    context.Context
	decide func(context.Context, string) error

	rates     []float64 // decisions a second, turn by turn
	latencies []time.Duration

	script, server, client time.Duration // of a processor
}

// take lets the goroutines decide for 300 ms, as fast as they can.
func (t *redisTurns) take(b *testing.B, server *servers.Redis, keys []string, goroutines int) {
	script, client := scriptTime(b, server), clientTime(b)
	var (
		wg        sync.WaitGroup
		mu        sync.Mutex
		decisions int
		before, _ = server.CPU() // unknown when the server was not started here
		began     = time.Now()
	)
	for range goroutines {
		wg.Go(func() {
			var latencies []time.Duration
			next := rand.IntN(len(keys))
			for now := time.Now(); now.Sub(began) < 300*time.Millisecond; {
				if err := t.decide(t.ctx, keys[next]); err != nil {
					b.Error(err)
					break
				}
				if next++; next == len(keys) {
					next = 0
				}
				end := time.Now()
				latencies = append(latencies, end.Sub(now))
				now = end
			}
			mu.Lock()
			defer mu.Unlock()
			decisions += len(latencies)
			t.latencies = append(t.latencies, latencies...)
		})
	}
	wg.Wait()
	t.rates = append(t.rates, float64(decisions)/time.Since(began).Seconds())
	after, _ := server.CPU()
	t.server += after - before
	t.client += clientTime(b) - client
	t.script += scriptTime(b, server) - script
}

// scriptTime is how long the server has run scripts.
func scriptTime(b *testing.B, server *servers.Redis) time.Duration {
	o, err := goredis.ParseURL(server.URL())
	ok(b, err)
	client := goredis.NewClient(o)
	defer client.Close()
	info, err := client.Info(context.Background(), "commandstats").Result()
	ok(b, err)
	_, of, found := strings.Cut(info, "cmdstat_evalsha:")
	if !found { // none yet
		return 0
	}
	var calls, micros int64
	if _, err := fmt.Sscanf(of, "calls=%d,usec=%d,", &calls, &micros); err != nil {
		b.Fatal(err)
	}
	return time.Duration(micros) * time.Microsecond
}

// clientTime is the processor time of this process.
func clientTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	ok(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
