package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

// A server of several slots may look like a single one: behind a proxy, or with a client that wraps another. There entities
// without shared limits need one slot each.
func TestSlotsBehindAProxy(t *testing.T) {
	cluster := servers.OwnRedisCluster(t, 3, 0)
	for _, remember := range []int{-1, 0} {
		client := struct{ goredis.UniversalClient }{connectCluster(t, cluster)}
		s := newStorageWith(t, client, redis.Options{Prefix: fmt.Sprint("p", remember, ":"), Remember: remember})
		var mu sync.Mutex
		failed, last := 0, error(nil)
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for range 50 {
					op := decision.Op{Kind: decision.GetDelay, Cost: decision.Cost{1}, Now: decision.OwnClock}
					if _, err := s.Do(context.Background(), fmt.Sprint("shop", i), &plenty, nil, op); err != nil {
						mu.Lock()
						failed, last = failed+1, err
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		if failed > 0 {
			t.Errorf("remember %d: %d of 1600 calls failed, the last with %v", remember, failed, last)
		}
	}
}
