package benchmarks

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

func BenchmarkZZ(b *testing.B) {
	server := servers.UseRedis(b)
	for _, n := range []int{1, 100} {
		for shared := range 2 {
	b.Run(fmt.Sprintf("keys=%d/shared=%d", n, shared), func(b *testing.B) {
	o, _ := goredis.ParseURL(server.URL())
	client := goredis.NewClient(o)
	defer client.Close()
	st, _ := redis.New(client, redis.Options{})
	opts := drip.Options{Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: time.Second, Storage: st}
	if shared == 1 { opts.Shared = map[string]drip.Limit{"app": {Size: 1<<30}} }
	bucket := buckettest.New(b, opts)
	var wg sync.WaitGroup
	b.ResetTimer()
	for g := range 64 {
		wg.Go(func() {
			for i := range b.N/64 {
				key := fmt.Sprint(b.Name(), (g*31+i)%n)
				a, err := bucket.Admit(context.Background(), key, drip.Request{})
				if err != nil || a.Delay != 0 { b.Error(err, a); return }
				if err := bucket.Settle(context.Background(), key, a.Lease, 1); err != nil { b.Error(err); return }
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	info, _ := client.Info(context.Background(), "commandstats").Result()
	for l := range strings.Lines(info) { if strings.Contains(l, "evalsha") || strings.Contains(l, "_get:") { fmt.Print(l) } }
	client.ConfigResetStat(context.Background())
	})
	}}
}
