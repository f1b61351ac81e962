package redis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

// plenty lets everybody run who asks.
var plenty = limits(1_000_000, 1_000_000, 1000, 50)

func TestFlushedKeysAndScripts(t *testing.T) {
	client := connect(t, servers.OwnRedis(t).Addr())
	s := newStorage(t, client)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done atomic.Int64
	for i := range 16 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if d, err := ask(context.Background(), s, fmt.Sprint("shop", (i+n)%5), &plenty); d != 0 || err != nil {
					t.Errorf("GetDelay = %v, %v; want 0", d, err)
					return
				}
				done.Add(1)
			}
		})
	}
	for range 20 {
		before := done.Load()
		eventually(t, "decided", func() bool { return done.Load() > before+100 || t.Failed() })
		if err := errors.Join(client.ScriptFlush(t.Context()).Err(), client.FlushAll(t.Context()).Err()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
	getDelay(t, s, "shop0", &plenty)
	st, rev, err := s.Get(t.Context(), "shop0")
	if err != nil || client.FlushAll(t.Context()).Err() != nil {
		t.Fatal(err)
	}
	if err := s.Set(t.Context(), "shop0", st, rev); !errors.Is(err, storage.ErrConflict) {
		t.Errorf("Set of what was flushed = %v, want ErrConflict", err)
	}
}

func TestRestart(t *testing.T) {
	server := servers.OwnRedis(t)
	s := newStorage(t, connect(t, server.Addr()))
	getDelay(t, s, "shop", &perSecond)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err := ask(t.Context(), s, "shop", &perSecond)
	if !errors.Is(err, redis.ErrNoAnswer) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("GetDelay from a dead server = %v, want ErrNoAnswer because of a refused connection", err)
	}
	if _, _, err := s.Get(t.Context(), "shop"); !errors.Is(err, redis.ErrNoAnswer) {
		t.Errorf("Get from a dead server = %v, want ErrNoAnswer", err)
	}
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := getDelay(t, s, "shop", &perSecond); d != 0 {
		t.Errorf("GetDelay after the restart = %v, want 0", d)
	}
}

// While a server hangs, callers leave when their contexts end; a token that one of them was given is given back.
func TestHangingServer(t *testing.T) {
	server := servers.OwnRedis(t)
	// Without a read timeout nothing else lets them go.
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ReadTimeout: -1})
	defer client.Close()
	s := newStorage(t, client)
	getDelay(t, s, "shop", &plenty)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if d, err := ask(ctx, s, "shop", &plenty); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("GetDelay = %v, %v; want DeadlineExceeded", d, err)
			}
		})
	}
	wg.Wait()
	_, _, get := s.Get(ctx, "shop")
	for name, err := range map[string]error{
		"Get":         get,
		"Set":         s.Set(ctx, "shop", storage.State{}, storage.NoRevision),
		"ReturnToken": giveBack(ctx, s, "shop", &plenty),
	} {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s = %v, want DeadlineExceeded", name, err)
		}
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	getDelay(t, s, "shop", &plenty) // has its turn after those that were sent
	if n := scriptCalls(t, client); n < 3 {
		t.Errorf("%d script calls: nothing was sent while the server hung", n)
	}
	eventually(t, "only the tokens of those who stayed are out", func() bool { return inUse(t, s, "shop") == 2 })
}

// A call whose answer is lost is not made again, whatever the client's MaxRetries.
func TestLostAnswer(t *testing.T) {
	server := servers.OwnRedis(t)
	proxy := newProxy(t, server.Addr())
	direct := newStorageWith(t, connect(t, server.Addr()), redis.Options{})
	for _, together := range []int{1, 30} {
		client := goredis.NewClient(&goredis.Options{Addr: proxy.addr, MaxRetries: 10})
		defer client.Close()
		s := newStorageWith(t, client, redis.Options{})
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			const calls = 3
			key := func(i int) string { return fmt.Sprint("shop", together, ctx.Done() == nil, i/calls) }
			getDelay(t, s, key(0), &plenty)
			returnToken(t, s, key(0), &plenty)
			proxy.cut.Store(1)
			var lost, ran atomic.Int64
			var wg sync.WaitGroup
			for i := range together {
				wg.Go(func() {
					switch d, err := ask(ctx, s, key(i), &plenty); {
					case err == nil && d == 0:
						ran.Add(1)
					case errors.Is(err, redis.ErrNoAnswer):
						lost.Add(1)
					default:
						t.Errorf("GetDelay = %v, %v; want 0 or ErrNoAnswer", d, err)
					}
				})
			}
			wg.Wait()
			if lost.Load() == 0 || lost.Load()+ran.Load() != int64(together) {
				t.Errorf("of %d callers %d ran and %d lost the answer", together, ran.Load(), lost.Load())
			}
			out := int64(0)
			for i := 0; i < together; i += calls {
				out += inUse(t, direct, key(i))
			}
			if out < ran.Load() || out > int64(together) {
				t.Errorf("%d tokens are out after %d calls of which %d ran", out, together, ran.Load())
			}
			if together == 1 && out != 1 {
				t.Errorf("%d tokens are out after one call, want that of the lost answer", out)
			}
			getDelay(t, s, key(0), &plenty)
		}
	}
	s := newStorageWith(t, connect(t, proxy.addr), redis.Options{})
	if err := s.Set(t.Context(), "other", storage.State{}, storage.NoRevision); err != nil { // loads the script
		t.Fatal(err)
	}
	proxy.cut.Store(1)
	if err := s.Set(t.Context(), "set", storage.State{InUse: 1}, storage.NoRevision); !errors.Is(err, redis.ErrNoAnswer) {
		t.Errorf("Set whose answer is lost = %v, want ErrNoAnswer: ErrConflict would say that nothing has changed", err)
	}
	if n := inUse(t, direct, "set"); n != 1 {
		t.Errorf("Set whose answer is lost stored %d, want 1", n)
	}
}

// proxy is a TCP proxy that can cut connections instead of passing on an answer.
type proxy struct {
	addr string
	cut  atomic.Int64 // of how many answers to come
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &proxy{addr: l.Addr().String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() {
				_, _ = io.Copy(server, client)
				_ = server.Close()
			}()
			go func() {
				defer client.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := server.Read(b)
					if err != nil || p.cut.Add(-1) >= 0 {
						return
					}
					if _, err := client.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return p
}

func TestRefusals(t *testing.T) {
	server := servers.OwnRedis(t)
	client := connect(t, server.Addr())
	s := newStorageWith(t, client, redis.Options{})
	getDelay(t, s, "shop", &perSecond)
	before, rev, err := s.Get(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	order := func(words ...any) {
		t.Helper()
		if err := client.Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name       string
		spoil, fix []any
		is         func(error) bool
	}{
		{"memory is full", []any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}, goredis.IsOOMError},
		{"it is a replica", []any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}, goredis.IsReadOnlyError},
		{"the user has no right", []any{"acl", "setuser", "default", "-set"}, []any{"acl", "setuser", "default", "+set"},
			func(err error) bool { return strings.Contains(err.Error(), "can't run this command") }},
	} {
		order(c.spoil...)
		_, decide := ask(t.Context(), s, "shop", &perSecond)
		set := s.Set(t.Context(), "shop", before, rev)
		order(c.fix...)
		if decide == nil || !c.is(decide) || errors.Is(decide, redis.ErrNoAnswer) {
			t.Errorf("%s: GetDelay = %v", c.name, decide)
		}
		if set == nil || !c.is(set) {
			t.Errorf("%s: Set = %v", c.name, set)
		}
		if got, _, err := s.Get(t.Context(), "shop"); !got.Equal(before) || err != nil {
			t.Errorf("%s: the state has changed to %+v (%v)", c.name, got, err)
		}
	}
	if d := getDelay(t, s, "shop", &perSecond); d != 0 {
		t.Errorf("GetDelay when all is well again = %v, want 0", d)
	}
}

func TestKeyOfAnotherType(t *testing.T) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			client := open(t)
			prefix := fmt.Sprintf("%s-%x:", t.Name(), rand.Uint64())
			s := newStorageWith(t, client, redis.Options{Prefix: prefix})
			if err := errors.Join(
				client.LPush(t.Context(), prefix+"{list}", "x").Err(),
				client.Set(t.Context(), prefix+"{text}", "hello", time.Minute).Err(),
			); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 100 { // so that they share pipelines
				for _, key := range []string{"list", "text", "shop"} {
					wg.Go(func() {
						_, err := ask(t.Context(), s, key, &plenty)
						if key == "shop" && err != nil || key != "shop" && !errors.Is(err, redis.ErrNotState) {
							t.Errorf("GetDelay(%q) = %v", key, err)
						}
					})
				}
			}
			wg.Wait()
			for _, key := range []string{"list", "text"} {
				if _, _, err := s.Get(t.Context(), key); !errors.Is(err, redis.ErrNotState) {
					t.Errorf("Get(%q) = %v, want ErrNotState", key, err)
				}
				if err := s.Set(t.Context(), key, storage.State{}, storage.NoRevision); !errors.Is(err, redis.ErrNotState) {
					t.Errorf("Set(%q) = %v, want ErrNotState", key, err)
				}
			}
			if n := client.LLen(t.Context(), prefix+"{list}").Val(); n != 1 {
				t.Errorf("the list has %d elements, want 1", n)
			}
		})
	}
}

// entityOn returns an entity whose key is on the node, or on another one.
func entityOn(t *testing.T, client *goredis.ClusterClient, node *servers.Redis, on bool) string {
	for i := 0; ; i++ {
		master, err := client.MasterForKey(t.Context(), fmt.Sprintf("{shop%d}", i))
		if err != nil {
			t.Fatal(err)
		}
		if (master.Options().Addr == node.Addr()) == on {
			return fmt.Sprint("shop", i)
		}
	}
}

func TestClusterNodeHangs(t *testing.T) {
	cluster := servers.OwnRedisCluster(t, 3, 0)
	for _, node := range cluster.Nodes {
		if err := connect(t, node.Addr()).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err(); err != nil {
			t.Fatal(err)
		}
	}
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: -1})
	defer client.Close()
	s := newStorage(t, client)
	node := cluster.Nodes[1]
	stuck, other := entityOn(t, client, node, true), entityOn(t, client, node, false)
	getDelay(t, s, other, &plenty)
	if err := node.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := ask(ctx, s, stuck, &plenty); !errors.Is(err, context.Canceled) {
				t.Errorf("GetDelay from the node that hangs = %v, want Canceled", err)
			}
		})
	}
	for range 1000 {
		getDelay(t, s, other, &plenty)
	}
	leave()
	wg.Wait()
	if err := node.Resume(); err != nil {
		t.Fatal(err)
	}
}

func TestClusterFailover(t *testing.T) {
	cluster := servers.OwnRedisCluster(t, 3, 1)
	client := connectCluster(t, cluster)
	s := newStorage(t, client)
	key := entityOn(t, client, cluster.Nodes[0], true)
	getDelay(t, s, key, &plenty)
	if err := cluster.Nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	var last error
	eventually(t, "decided by the replica", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		d, err := ask(ctx, s, key, &plenty)
		var answer goredis.Error
		if err != nil && !errors.Is(err, redis.ErrNoAnswer) && !errors.As(err, &answer) && !errors.Is(err, context.DeadlineExceeded) || err == nil && d != 0 {
			t.Fatalf("GetDelay = %v, %v", d, err)
		}
		if err != nil {
			last = err
		}
		return err == nil
	})
	t.Logf("while there was no master: %v", last)
}

// scriptCalls returns how many scripts the server has run.
func scriptCalls(t *testing.T, client *goredis.Client) (n int) {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		for _, name := range []string{"cmdstat_eval:", "cmdstat_evalsha:"} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				var calls int
				if _, err := fmt.Sscanf(rest, "calls=%d", &calls); err != nil {
					t.Fatal(err)
				}
				n += calls
			}
		}
	}
	return n
}

func TestScriptCalls(t *testing.T) {
	client := connect(t, servers.OwnRedis(t).Addr())
	s := newStorage(t, client)
	getDelay(t, s, "shop", &plenty) // loads the script
	count := func(what string, decisions int, f func()) (calls int) {
		before := scriptCalls(t, client)
		f()
		calls = scriptCalls(t, client) - before
		t.Logf("%s: %d decisions in %d script calls", what, decisions, calls)
		if calls > decisions {
			t.Errorf("%s: %d script calls for %d decisions", what, calls, decisions)
		}
		return calls
	}
	if calls := count("one after the other", 100, func() {
		for range 50 {
			getDelay(t, s, "shop", &plenty)
			returnToken(t, s, "shop", &plenty)
		}
	}); calls != 100 {
		t.Errorf("%d calls", calls)
	}
	together := func(entity func(int) string) func() {
		return func() {
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for range 50 {
						getDelay(t, s, entity(i), &plenty)
					}
				})
			}
			wg.Wait()
		}
	}
	if calls := count("64 for one entity", 64*50, together(func(int) string { return "shop" })); calls > 64*50/2 {
		t.Errorf("callers for one entity do not share calls")
	}
	count("64 for 64 entities", 64*50, together(func(i int) string { return fmt.Sprint("shop", i) }))
}
