package redis_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

// offset is a miniredis whose clock runs, ahead of the real one. It counts the calls of scripts.
type offset struct {
	*goredis.Client
	ahead, scripts atomic.Int64
}

func newOffset(t *testing.T) *offset {
	mini := miniredis.RunT(t)
	o := &offset{Client: connect(t, mini.Addr())}
	o.AddHook(before(func(commands ...goredis.Cmder) {
		mini.SetTime(time.Now().Add(time.Duration(o.ahead.Load())))
		for _, c := range commands {
			if c.Name() == "evalsha" {
				o.scripts.Add(1)
			}
		}
	}))
	return o
}

// After the server's clock was set back, entities of the time before cost others nothing, and themselves few script calls.
func TestClockSetBack(t *testing.T) {
	hour := limits(1_000_000, 1_000_000, 3_600_000, 50)
	server := newOffset(t)
	s := newStorageWith(t, server.Client, redis.Options{})
	server.ahead.Store(int64(time.Hour))
	for range 3 {
		getDelay(t, s, "old", &hour)
	}
	server.ahead.Store(0)
	const decisions = 100
	for name, keys := range map[string][]string{"the old": {"old", "old"}, "the old and a new one": {"old", "new"}} {
		before := server.scripts.Load()
		for i := range decisions {
			getDelay(t, s, keys[i%2], &hour)
		}
		if n := server.scripts.Load() - before; n > decisions*12/10 {
			t.Errorf("%s: %d script calls for %d decisions", name, n, decisions)
		}
	}
}

// A lease that is given is out, although the decision took a while to reach the server.
func TestShortLeaseOfSwap(t *testing.T) {
	for _, remember := range []int{-1, 0} {
		server := newOffset(t)
		s := newStorageWith(t, server.Client, redis.Options{Remember: remember})
		l := limits(1_000_000, 1_000_000, 3_600_000, 50)
		l.Tokens, l.Lease = 1, 500
		for range 3 {
			a := admit(t, s, "shop", &l)
			do(t, s, "shop", &l, decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: a.Lease})
		}
		server.ahead.Store(int64(900 * time.Millisecond)) // on the way
		a := admit(t, s, "shop", &l)
		if _, n := out(t, s, "shop"); a.Delay == 0 && n != 1 {
			t.Errorf("remember %d: %d leases", remember, n)
		}
		if b := admit(t, s, "shop", &l); a.Delay == 0 && b.Delay == 0 {
			t.Errorf("remember %d: the only token is out twice: %+v, %+v", remember, a.Lease, b.Lease)
		}
	}
}

// A key that somebody else has spoiled costs nobody else in the same app an answer.
func TestSpoiledKeyOfAnApp(t *testing.T) {
	for name, spoil := range map[string]func(*goredis.Client, string) error{
		"text": func(c *goredis.Client, key string) error {
			return c.Set(context.Background(), key, "hello", time.Minute).Err()
		},
		"list": func(c *goredis.Client, key string) error { return c.LPush(context.Background(), key, "x").Err() },
		"part of a flow": func(c *goredis.Client, key string) error {
			value, err := c.Get(context.Background(), strings.Replace(key, "bad", "good", 1)).Bytes()
			if err != nil {
				return err
			}
			binary.LittleEndian.PutUint64(value[8*23:], math.Float64bits(1e-300)) // the number of flows
			return c.Set(context.Background(), key, value, time.Minute).Err()
		},
	} {
		for _, remember := range []int{-1, 0} {
			client := connectShared(t)
			prefix := fmt.Sprintf("%s-%d-%x:", t.Name(), remember, time.Now().UnixNano())
			s := newStorageWith(t, client, redis.Options{Prefix: prefix, Remember: remember})
			within := []storage.Within{{Key: "app", Limits: &plenty, ID: 1, Weight: 1}}
			op := decision.Op{Kind: decision.GetDelay, Cost: decision.Cost{1}, Now: decision.OwnClock}
			for range 3 {
				for _, key := range []string{"bad", "good"} {
					if _, err := s.Do(t.Context(), key, &plenty, within, op); err != nil {
						t.Fatal(err)
					}
				}
			}
			client.Del(t.Context(), prefix+"{bad}")
			ok(t, spoil(client, prefix+"{bad}"))
			var failed atomic.Int64
			var wg sync.WaitGroup
			for i := range 200 {
				wg.Go(func() {
					if bad := i%100 == 50; bad {
						_, _ = s.Do(t.Context(), "bad", &plenty, within, op)
					} else if _, err := s.Do(t.Context(), "good", &plenty, within, op); err != nil {
						failed.Add(1)
					}
				})
			}
			wg.Wait()
			if n := failed.Load(); n > 0 {
				t.Errorf("%s, remember %d: %d calls about another entity failed", name, remember, n)
			}
		}
	}
}
