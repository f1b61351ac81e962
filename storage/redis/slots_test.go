package redis_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

// A server of several slots may look like a single one: behind a proxy, or with a client that wraps another. There entities
// without shared limits need one slot each.
func TestSlotsBehindAProxy(t *testing.T) {
	cluster := servers.OwnRedisCluster(t, 3, 0)
	for _, remember := range []int{-1, 0} {
		client := struct{ goredis.UniversalClient }{connectCluster(t, cluster)}
		s := newStorageWith(t, client, redis.Options{Prefix: fmt.Sprint("p", remember, ":"), Remember: remember})
		var failed atomic.Int64
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				for range 50 {
					op := decision.Op{Kind: decision.GetDelay, Cost: decision.Cost{1}, Now: decision.OwnClock}
					if _, err := s.Do(context.Background(), fmt.Sprint("shop", i), &plenty, nil, op); err != nil && failed.Add(1) == 1 {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := failed.Load(); n > 0 {
			t.Errorf("remember %d: %d of 1600 calls failed", remember, n)
		}
	}
}

// A proxy that spreads keys over servers sends a call to the server of its first key. The other entities are unknown there, and so
// they are at their own server after a while without an operation. No server gets their values by mistake. With a single server,
// new entities share their calls after a while.
func TestServersBehindAProxy(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			var behind spreading
			for range n {
				behind = append(behind, connect(t, servers.OwnRedis(t).Addr()))
			}
			client := connect(t, "none")
			client.AddHook(behind)
			s := newStorage(t, client)
			ran := map[string]int{}
			for range 3 {
				admitShops(t, s, ran)
				for _, server := range behind {
					for server.DBSize(t.Context()).Val() > 0 {
						time.Sleep(10 * time.Millisecond)
					}
				}
			}
			if len(ran) < 3*64 {
				t.Errorf("64 shops ran %d operations in three rounds", len(ran))
			}
			for call, times := range ran {
				if times > 1 {
					t.Errorf("%s: %d operations, want 1", call, times)
				}
			}
		})
	}
}

// admitShops has 64 shops, with one operation each 100 ms, ask at the same time. It counts in ran the operations of each interval.
func admitShops(t *testing.T, s *redis.Storage, ran map[string]int) {
	l := limits(1, 1, 100, 1)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			key := fmt.Sprint("shop", i)
			for range 20 {
				a, err := s.Do(t.Context(), key, &l, nil, one)
				if err != nil {
					t.Error(err)
					return
				} else if a.Delay > 0 {
					continue
				}
				mu.Lock()
				ran[fmt.Sprint(key, " in interval ", a.Lease.Begin/100)]++
				mu.Unlock()
				settle := decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: a.Lease, Now: decision.OwnClock}
				if _, err := s.Do(t.Context(), key, &l, nil, settle); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// spreading has commands done by the server of their first key.
type spreading []*goredis.Client

func (s spreading) server(c goredis.Cmder) *goredis.Client {
	h := fnv.New32()
	_, _ = fmt.Fprint(h, c.Args()[min(3, len(c.Args())-1)])
	return s[h.Sum32()%uint32(len(s))]
}

func (s spreading) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (s spreading) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, c goredis.Cmder) error { return s.server(c).Process(ctx, c) }
}

func (s spreading) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, all []goredis.Cmder) (err error) {
		for _, c := range all {
			err = errors.Join(err, s.server(c).Process(ctx, c))
		}
		return err
	}
}

// A Ring keeps an entity on one server, and its shared limits perhaps on another one.
func TestRing(t *testing.T) {
	addrs := map[string]string{"a": servers.OwnRedis(t).Addr(), "b": servers.OwnRedis(t).Addr()}
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: addrs})
	t.Cleanup(func() { _ = ring.Close() })
	four := limits(4, 1, 3_600_000, 50)
	admitted := func(s *redis.Storage) (n int, err error) {
		for i := range 16 {
			within := []storage.Within{{Key: fmt.Sprint("app", i), Limits: &plenty, ID: int64(i + 1), Weight: 1}}
			a, err := s.Do(t.Context(), "shop", &four, within, one)
			if err != nil {
				return n, err
			} else if a.Delay == 0 {
				n++
			}
		}
		return n, nil
	}
	s := newStorageWith(t, ring, redis.Options{})
	if n, err := admitted(s); !errors.Is(err, storage.ErrApart) {
		t.Errorf("%d of 4 operations run within shared limits, %v; want ErrApart", n, err)
	}
	if n, err := admitted(newStorageWith(t, ring, redis.Options{Prefix: "{drip}:"})); n != 4 || err != nil {
		t.Errorf("with all keys on one server %d of 4 operations run, %v", n, err)
	}
	listed := map[string]bool{}
	for i := range 50 {
		getDelay(t, s, fmt.Sprint("shop", i), &plenty)
	}
	value, err := ring.Get(t.Context(), "drip:{shop0}").Result()
	ok(t, err)
	ok(t, ring.ForEachShard(t.Context(), func(ctx context.Context, c *goredis.Client) error { // one server has it from a time when the other was down
		return c.Set(ctx, "drip:{moved}", value, time.Minute).Err()
	}))
	times := 0
	err = s.List(t.Context(), func(e storage.Entry) error {
		if listed[e.Key] = true; e.Key == "moved" {
			times++
		}
		return nil
	})
	if len(listed) != 51 || times != 1 || err != nil {
		t.Errorf("List of 51 entities on two servers = %d, %v; %d times the one that was on both", len(listed), err, times)
	}
	holder, err := ring.GetShardClientForKey("drip:{moved}")
	ok(t, err)
	ok(t, holder.Del(t.Context(), "drip:{moved}").Err())
	ok(t, s.List(t.Context(), func(e storage.Entry) error {
		if e.Key == "moved" {
			t.Error("List tells an entity that its server does not have")
		}
		return nil
	}))
}
