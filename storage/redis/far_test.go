package redis_test

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

// A server that is far away refuses no more swaps than others do, though its answer comes in a later interval.
func TestFarServer(t *testing.T) {
	server := servers.OwnRedis(t)
	admin, client := connect(t, server.Addr()), connect(t, server.Addr())
	s := newStorageWith(t, client, redis.Options{})
	loadScripts(t, s)
	client.AddHook(before(func(...goredis.Cmder) { time.Sleep(30 * time.Millisecond) }))
	l := limits(1_000_000, 1_000_000, 50, 50)
	const decisions = 100
	calls := scriptCalls(t, admin)
	for range decisions {
		getDelay(t, s, "shop", &l)
	}
	if n := scriptCalls(t, admin) - calls; n > decisions*12/10 {
		t.Errorf("%d script calls for %d decisions", n, decisions)
	}
}
