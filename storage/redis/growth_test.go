package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

// BenchmarkLeases prints the time of a call of the script by the leases that are out: the time of a single Admit and of
// its Settle, and the longest call when 600 callers come at once, each of whom does both. The longest is 0 if all took
// less than 0.1 ms. decide.lua decides everything in the first rows. In the others swap.lua stores what the process has
// decided, as long as it knows all leases.
//
//	go test -run '^$' -bench Leases -benchtime 20x ./storage/redis
func BenchmarkLeases(b *testing.B) {
	client := goredis.NewClient(&goredis.Options{Addr: servers.OwnRedis(b, "--slowlog-log-slower-than", "100", "--slowlog-max-len", "10000").Addr()})
	defer client.Close()
	for script, remember := range map[string]int{"decide.lua": -1, "swap.lua": 0} {
		s, err := New(client, Options{Prefix: script, Remember: remember})
		oktest.OK(b, err)
		b.Run(script, func(b *testing.B) { benchmarkLeases(b, client, s) })
	}
}

func benchmarkLeases(b *testing.B, client *goredis.Client, s *Storage) {
	l := buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: decision.MostUnits, Rate: decision.MostUnits, Interval: 1000}},
		Tokens:  decision.MostUnits, Guess: 50, Lease: 3_600_000, MaxLease: 3_600_000,
	})
	do := func(key string, op decision.Op) decision.Answer {
		op.Now, op.Cost = decision.OwnClock, decision.Cost{1}
		a, err := s.Do(context.Background(), key, l, nil, op)
		if err != nil || a.Delay != 0 || op.Kind == decision.Settle && !a.Found {
			b.Errorf("%+v = %+v, %v", op, a, err)
		}
		return a
	}
	for _, leases := range []int{0, 100, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("out=%d", leases), func(b *testing.B) {
			key := fmt.Sprint("leases", leases)
			together := func(n, each int, f func()) {
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() {
						for range each {
							f()
						}
					})
				}
				wg.Wait()
			}
			together(100, leases/100, func() { do(key, decision.Op{Kind: decision.Admit}) })
			var admits, settles []float64
			longest := time.Duration(0)
			for b.Loop() {
				for range 20 {
					before := scriptTime(b, client)
					a := do(key, decision.Op{Kind: decision.Admit})
					between := scriptTime(b, client)
					do(key, decision.Op{Kind: decision.Settle, Lease: a.Lease})
					admits = append(admits, between-before)
					settles = append(settles, scriptTime(b, client)-between)
				}
				client.SlowLogReset(context.Background())
				together(600, 1, func() {
					do(key, decision.Op{Kind: decision.Settle, Lease: do(key, decision.Op{Kind: decision.Admit}).Lease})
				})
				slow, err := client.SlowLogGet(context.Background(), 10_000).Result()
				oktest.OK(b, err)
				for _, c := range slow {
					longest = max(longest, c.Duration)
				}
			}
			slices.Sort(admits)
			slices.Sort(settles)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(admits[len(admits)/2], "admit-µs")
			b.ReportMetric(settles[len(settles)/2], "settle-µs")
			b.ReportMetric(float64(longest.Microseconds())/1000, "longest-ms")
		})
	}
}

// scriptTime is how many microseconds the server has run scripts for.
func scriptTime(b *testing.B, client *goredis.Client) float64 {
	info, err := client.Info(context.Background(), "commandstats").Result()
	oktest.OK(b, err)
	_, of, found := strings.Cut(info, "cmdstat_evalsha:")
	var calls, micros int64
	if found {
		if _, err := fmt.Sscanf(of, "calls=%d,usec=%d,", &calls, &micros); err != nil {
			b.Fatal(err)
		}
	}
	return float64(micros)
}
