package redis_test

import (
	"context"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

// latency is a hook that delays each command.
type latency time.Duration

func (latency) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (l latency) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		time.Sleep(time.Duration(l))
		return next(ctx, cmd)
	}
}
func (l latency) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		time.Sleep(time.Duration(l))
		return next(ctx, cmds)
	}
}

// A server that is far away refuses no more swaps than others do, though its answer comes in a later interval.
func TestFarServer(t *testing.T) {
	server := servers.OwnRedis(t)
	admin, client := connect(t, server.Addr()), connect(t, server.Addr())
	s := newStorageWith(t, client, redis.Options{})
	loadScripts(t, s)
	client.AddHook(latency(30 * time.Millisecond))
	l := limits(1_000_000, 1_000_000, 50, 50)
	const decisions = 100
	before := scriptCalls(t, admin)
	for range decisions {
		getDelay(t, s, "shop", &l)
	}
	if n := scriptCalls(t, admin) - before; n > decisions*12/10 {
		t.Errorf("%d script calls for %d decisions", n, decisions)
	}
}
