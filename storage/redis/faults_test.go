package redis_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

// plenty lets every operation run.
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
				key := fmt.Sprint("shop", (i+n)%5)
				op := decision.Op{Kind: decision.Kind(n % 2 * int(decision.Admit)), Now: decision.OwnClock, Cost: decision.Cost{1}}
				a, err := s.Do(context.Background(), key, &plenty, nil, op)
				if a.Delay != 0 || err != nil {
					t.Errorf("%+v = %+v, %v; want to run", op, a, err)
					return
				}
				if op.Kind == decision.Admit {
					op = decision.Op{Kind: decision.Settle, Now: decision.OwnClock, Cost: decision.Cost{1}, Lease: a.Lease}
					if _, err := s.Do(context.Background(), key, &plenty, nil, op); err != nil { // the lease may be gone
						t.Errorf("Settle: %v", err)
						return
					}
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

// A lease of an entity that Redis has lost is over: nothing fails, and nobody else's lease is given back by it.
func TestFlushedLease(t *testing.T) {
	client := connect(t, servers.OwnRedis(t).Addr())
	s := newStorage(t, client)
	bucket := buckettest.New(t, drip.Options{Size: 5, Storage: s})
	lost := buckettest.Runs(t, bucket, "shop", drip.Request{})
	ok(t, client.FlushAll(t.Context()).Err())
	time.Sleep(2 * time.Millisecond) // a lease of an entity that is lost and known again in one millisecond is the same
	for _, known := range []bool{false, true} {
		if known {
			buckettest.Runs(t, bucket, "shop", drip.Request{})
		}
		_, renew := bucket.Renew(t.Context(), "shop", lost.Lease)
		for name, err := range map[string]error{
			"Settle": bucket.Settle(t.Context(), "shop", lost.Lease, 1),
			"Renew":  renew,
			"Cancel": bucket.Cancel(t.Context(), "shop", lost),
		} {
			if !errors.Is(err, drip.ErrNoLease) {
				t.Errorf("%s of a lost lease = %v, want ErrNoLease", name, err)
			}
		}
	}
	if _, n := out(t, s, "shop"); n != 1 {
		t.Errorf("%d leases are out, want that of after the loss", n)
	}
}

// The leases of an entity that Redis has evicted are over, although Redis has kept the set of them.
func TestEvictedEntity(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		s := newStorageWith(t, client, redis.Options{Prefix: t.Name() + ":"})
		l := limits(1_000_000, 1_000_000, 1000, 50)
		l.Tokens = 700
		const leases = 600 // more than a value has
		for range 2 {
			for i := range leases {
				if a := admit(t, s, "shop", &l); a.Delay > 0 {
					t.Fatalf("Admit %d of %d tokens = %+v, want to run", i, l.Tokens, a)
				}
			}
			if _, n := out(t, s, "shop"); n != leases {
				t.Fatalf("%d leases are out, want %d", n, leases)
			}
			if n, err := client.Del(t.Context(), t.Name()+":{shop}").Result(); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	})
}

func TestRestart(t *testing.T) {
	server := servers.OwnRedis(t)
	s := newStorage(t, connect(t, server.Addr()))
	getDelay(t, s, "shop", &perSecond)
	lost := admit(t, s, "shop", &perSecond)
	ok(t, server.Kill())
	_, err := ask(t.Context(), s, "shop", &perSecond)
	if !errors.Is(err, redis.ErrNoAnswer) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("GetDelay from a dead server = %v, want ErrNoAnswer because of a refused connection", err)
	}
	if _, _, err := s.Get(t.Context(), "shop"); !errors.Is(err, redis.ErrNoAnswer) {
		t.Errorf("Get from a dead server = %v, want ErrNoAnswer", err)
	}
	ok(t, server.Start(t.Context()))
	if settle(t, s, "shop", &perSecond, lost.Lease) {
		t.Error("Settle after the restart found a lease that Redis had kept in memory only")
	}
	if d := getDelay(t, s, "shop", &perSecond); d != 0 {
		t.Errorf("GetDelay after the restart = %v, want 0", d)
	}
}

// While a server hangs, callers leave when their contexts end; a token that one of them was given is given back.
func TestHangingServer(t *testing.T) {
	server := servers.OwnRedis(t)
	// Without a read timeout nothing else lets them go.
	client := connectWith(t, &goredis.Options{Addr: server.Addr(), ReadTimeout: -1})
	s := newStorage(t, client)
	getDelay(t, s, "shop", &plenty)
	sent := make(chan bool, 1)
	client.AddHook(before(func(...goredis.Cmder) {
		select {
		case sent <- true:
		default:
		}
	}))
	ok(t, server.Pause())
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			op := decision.Op{Kind: decision.Kind(i % 2 * int(decision.Admit)), Now: decision.OwnClock, Cost: decision.Cost{1}}
			if a, err := s.Do(ctx, "shop", &plenty, nil, op); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v = %+v, %v; want Canceled", op, a, err)
			}
		})
	}
	<-sent
	leave()
	wg.Wait()
	_, _, get := s.Get(ctx, "shop")
	for name, err := range map[string]error{
		"Get":         get,
		"Set":         s.Set(ctx, "shop", storage.State{}, storage.NoRevision),
		"ReturnToken": giveBack(ctx, s, "shop", &plenty),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want Canceled", name, err)
		}
	}
	ok(t, server.Resume())
	getDelay(t, s, "shop", &plenty) // has its turn after the calls that were sent
	if n := scriptCalls(t, client); n < 3 {
		t.Errorf("%d script calls: nothing was sent while the server hung", n)
	}
	eventually(t, "only the tokens of those who stayed are out", func() bool {
		tokens, leases := out(t, s, "shop")
		return tokens == 2 && leases == 0
	})
}

// A call whose answer is lost is not made again, whatever the client's MaxRetries.
func TestLostAnswer(t *testing.T) {
	server := servers.OwnRedis(t)
	proxy := newProxy(t, server.Addr())
	direct := newStorageWith(t, connect(t, server.Addr()), redis.Options{})
	for _, together := range []int{1, 30} {
		client := connectWith(t, &goredis.Options{Addr: proxy.addr, MaxRetries: 10})
		s := newStorageWith(t, client, redis.Options{})
		for _, ctx := range []context.Context{t.Context(), context.Background()} {
			const calls = 3
			key := func(i int) string { return fmt.Sprint("shop", together, ctx.Done() == nil, i/calls) }
			loadScripts(t, s)
			getDelay(t, s, key(0), &plenty)
			returnToken(t, s, key(0), &plenty)
			var ran atomic.Int64
			call := func() {
				proxy.cut.Store(1)
				var lost atomic.Int64
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
			}
			call()
			if together == 1 && inUse(t, direct, key(0)) == 0 { // the server has refused a swap that came late, and the next call is none
				loadScripts(t, s) // connects again
				call()
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
	if err := s.Set(t.Context(), "set", storage.State{Data: storage.Encode(&decision.State{Tokens: 1, Plain: 1}, nil)}, storage.NoRevision); !errors.Is(err, redis.ErrNoAnswer) {
		t.Errorf("Set whose answer is lost = %v, want ErrNoAnswer: ErrConflict would say that nothing has changed", err)
	}
	if n := inUse(t, direct, "set"); n != 1 {
		t.Errorf("Set whose answer is lost stored %d, want 1", n)
	}
}

// A lease whose answer is lost is out once, and ends by itself. A Settle whose answer is lost may be done again.
func TestLostLease(t *testing.T) {
	server := newOffset(t)
	proxy := newProxy(t, server.mini.Addr())
	s := newStorageWith(t, server.connect(t, proxy.addr), redis.Options{})
	direct := newStorageWith(t, server.Client, redis.Options{})
	l := plenty
	l.Tokens = 1
	lose := func(op decision.Op) {
		t.Helper()
		op.Now, op.Cost = decision.OwnClock, decision.Cost{1}
		loadScripts(t, s) // connects again, and hears the server's time
		proxy.cut.Store(1)
		if a, err := s.Do(t.Context(), "shop", &l, nil, op); !errors.Is(err, redis.ErrNoAnswer) {
			t.Fatalf("operation %d = %+v, %v; want ErrNoAnswer", op.Kind, a, err)
		}
	}
	server.stop()
	lose(decision.Op{Kind: decision.Admit})
	if _, n := out(t, direct, "shop"); n != 1 {
		t.Errorf("%d leases are out after an Admit whose answer is lost, want 1", n)
	}
	server.move(time.Minute)
	server.start()
	var a decision.Answer
	eventually(t, "admitted when the lost lease is over", func() bool {
		op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Ticket: a.Ticket}
		a = do(t, s, "shop", &l, op)
		return a.Delay == 0
	})
	lose(decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: a.Lease})
	if _, n := out(t, direct, "shop"); n == 1 { // the server has refused a swap that came late, and the next call is none
		lose(decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: a.Lease})
	}
	if settle(t, s, "shop", &l, a.Lease) {
		t.Error("Settle whose answer was lost was not done")
	}
	if _, n := out(t, direct, "shop"); n != 0 {
		t.Errorf("%d leases are out after it was given back, want 0", n)
	}
}

// wrong is a hook that answers calls of scripts itself.
type wrong struct {
	hook
	answer atomic.Pointer[string]
}

func (w *wrong) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		c, ok := cmd.(interface{ SetVal(string) })
		answer := w.answer.Load()
		if !ok || answer == nil {
			return next(ctx, cmd)
		}
		c.SetVal(*answer)
		return nil
	}
}
func (w *wrong) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if w.answer.Load() == nil {
			return next(ctx, cmds)
		}
		for _, cmd := range cmds {
			if err := w.ProcessHook(func(context.Context, goredis.Cmder) error { return nil })(ctx, cmd); err != nil {
				return err
			}
		}
		return nil
	}
}

// An answer that is no decision is an error of the calls, and nothing else.
func TestWrongAnswers(t *testing.T) {
	client := connectShared(t)
	s := newStorage(t, client)
	hook := new(wrong)
	client.AddHook(hook)
	number := func(n float64) string {
		return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(n)))
	}
	for _, answer := range []string{
		"", "x", strings.Repeat("\x00", 23), strings.Repeat("\xff", 24), strings.Repeat(number(4), 3),
		strings.Repeat("\x00", 24),                  // it runs, without a lease
		number(16) + number(10) + number(4),         // because of a shared limit, where there is none
		number(0) + number(-1) + number(4),          // before now
		number(4) + strings.Repeat("\x00", 2*8+7*8), // with the lease of nobody
	} {
		hook.answer.Store(&answer)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if a, err := s.Do(t.Context(), "shop", &plenty, nil, one); !errors.Is(err, redis.ErrNoAnswer) {
					t.Errorf("Do answered by %q = %+v, %v; want ErrNoAnswer", answer, a, err)
				}
			})
		}
		wg.Wait()
		if err := s.Set(t.Context(), "other", storage.State{}, storage.NoRevision); !errors.Is(err, redis.ErrNoAnswer) {
			t.Errorf("Set answered by %q = %v, want ErrNoAnswer", answer, err)
		}
	}
	hook.answer.Store(nil)
	if d := getDelay(t, s, "shop", &plenty); d != 0 {
		t.Errorf("GetDelay afterwards = %v, want 0", d)
	}
}

// With a pool of one connection, which others hold, the storage still gives back the tokens of callers that have left.
func TestSmallPool(t *testing.T) {
	server := servers.OwnRedis(t)
	client := connectWith(t, &goredis.Options{Addr: server.Addr(), PoolSize: 1, PoolTimeout: 5 * time.Millisecond, ReadTimeout: -1})
	s := newStorageWith(t, client, redis.Options{})
	direct := newStorageWith(t, connect(t, server.Addr()), redis.Options{})
	getDelay(t, s, "shop", &plenty)
	returnToken(t, s, "shop", &plenty)
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var admitted atomic.Int64
	for range 200 {
		wg.Go(func() {
			a, err := s.Do(ctx, "shop", &plenty, nil, one)
			if err == nil && a.Delay == 0 {
				admitted.Add(1)
			}
		})
	}
	leave()
	conn := client.Conn() // takes the only connection
	if err := conn.Ping(t.Context()).Err(); err != nil && !errors.Is(err, goredis.ErrPoolTimeout) {
		t.Fatal(err)
	}
	wg.Wait()
	ok(t, conn.Close())
	eventually(t, "only the leases of those who stayed are out", func() bool {
		_, leases := out(t, direct, "shop")
		return leases == admitted.Load()
	})
}

// proxy is a TCP proxy that can cut connections instead of passing on an answer.
type proxy struct {
	addr string
	cut  atomic.Int64 // of how many answers to come
}

func newProxy(t *testing.T, to string) *proxy {
	p := &proxy{}
	p.addr = servers.Listen(t, func(client net.Conn) {
		servers.Pass(client, to, io.Copy, func(client io.Writer, server io.Reader) (int64, error) {
			b := make([]byte, 64<<10)
			for {
				n, err := server.Read(b)
				if err != nil || p.cut.Add(-1) >= 0 {
					return 0, err
				}
				if _, err := client.Write(b[:n]); err != nil {
					return 0, err
				}
			}
		})
	})
	return p
}

// An Open that fails keeps no connection.
func TestFailedOpenKeepsNothing(t *testing.T) {
	var open atomic.Int64
	accepted := make(chan bool, 100)
	addr := servers.Listen(t, func(client net.Conn) {
		open.Add(1)
		accepted <- true
		_, _ = io.Copy(io.Discard, client)
		open.Add(-1)
	})
	for range 20 {
		if _, err := storage.Open(t.Context(), "redis://"+addr+"?min_idle_conns=1&max_hold=1ns"); err == nil {
			t.Fatal("a MaxHold of a nanosecond is no error")
		}
	}
	last, err := net.Dial("tcp", addr) // comes after those of Open
	ok(t, err)
	<-accepted
	ok(t, last.Close())
	eventually(t, "all connections have ended", func() bool { return open.Load() == 0 })
}

func TestRefusals(t *testing.T) {
	server := servers.OwnRedis(t)
	client := connect(t, server.Addr())
	s := newStorageWith(t, client, redis.Options{})
	getDelay(t, s, "shop", &perSecond)
	lease := admit(t, s, "shop", &perSecond).Lease
	before, rev, err := s.Get(t.Context(), "shop")
	ok(t, err)
	order := func(words ...any) {
		t.Helper()
		ok(t, client.Do(t.Context(), words...).Err())
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
		var decide [3]error
		for i, kind := range []decision.Kind{decision.GetDelay, decision.Admit, decision.Settle} {
			op := decision.Op{Kind: kind, Now: decision.OwnClock, Cost: decision.Cost{1}, Lease: lease}
			_, decide[i] = s.Do(t.Context(), "shop", &perSecond, nil, op)
		}
		set := s.Set(t.Context(), "shop", before, rev)
		order(c.fix...)
		for i, err := range decide {
			if err == nil || !c.is(err) || errors.Is(err, redis.ErrNoAnswer) {
				t.Errorf("%s: operation %d = %v", c.name, i, err)
			}
		}
		if set == nil || !c.is(set) {
			t.Errorf("%s: Set = %v", c.name, set)
		}
		if got, _, err := s.Get(t.Context(), "shop"); !bytes.Equal(got.Data, before.Data) || err != nil {
			t.Errorf("%s: the state has changed to %+v (%v)", c.name, got, err)
		}
	}
	if d := getDelay(t, s, "shop", &perSecond); d != 0 {
		t.Errorf("GetDelay when all is well again = %v, want 0", d)
	}
	if !settle(t, s, "shop", &perSecond, lease) {
		t.Error("Settle when all is well again does not find the lease")
	}
}

// A server that refuses the connection says why, and nothing is done.
func TestRefusedConnection(t *testing.T) {
	addr := servers.OwnRedis(t, "--requirepass", "secret").Addr()
	for want, o := range map[string]goredis.Options{
		"WRONGPASS":                {Password: "wrong"},
		"DB index is out of range": {Password: "secret", DB: 99},
	} {
		o.Addr = addr
		client := connectWith(t, &o)
		for _, remember := range []int{-1, 0} {
			s := newStorageWith(t, client, redis.Options{Remember: remember})
			_, _, get := s.Get(t.Context(), "shop")
			_, read := s.Read(t.Context(), "shop")
			errs := []error{get, read, s.Set(t.Context(), "shop", storage.State{}, storage.NoRevision), s.List(t.Context(), nil)}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					_, err := ask(t.Context(), s, fmt.Sprint("shop", i%5), &plenty)
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, err)
				})
			}
			wg.Wait()
			for i, err := range errs {
				if err == nil || !strings.HasPrefix(err.Error(), "redis: ") || !strings.Contains(err.Error(), want) || errors.Is(err, redis.ErrNoAnswer) {
					t.Errorf("remember %d: call %d = %v, want redis: … %s", remember, i, err, want)
				}
			}
		}
	}
}

func TestKeyOfAnotherType(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		prefix := oneSlot(t)
		s := newStorageWith(t, client, redis.Options{Prefix: prefix})
		other := newStorageWith(t, client, redis.Options{Prefix: prefix}) // s does not know this state, and would store it again
		do(t, other, "cut off", &plenty, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
		whole := client.Get(t.Context(), prefix+"{cut off}").Val()
		if err := errors.Join(
			client.LPush(t.Context(), prefix+"{list}", "x").Err(),
			client.Set(t.Context(), prefix+"{text}", "hello", time.Minute).Err(),
			client.Set(t.Context(), prefix+"{cut off}", whole[:len(whole)-8], time.Minute).Err(),
			client.Set(t.Context(), prefix+"{fewer than none}", fewerThanNone(whole), time.Minute).Err(),
		); err != nil {
			t.Fatal(err)
		}
		broken := []string{"list", "text", "cut off", "fewer than none"}
		for _, shared := range append([]string{"", "app"}, broken...) {
			var within []storage.Within
			if shared != "" {
				within = []storage.Within{{Key: shared, ID: 1, Weight: 1, Limits: &plenty}}
			}
			var wg sync.WaitGroup
			for i := range 50 { // so that they share pipelines and calls
				for _, key := range append(broken, "shop") {
					wg.Go(func() {
						op := decision.Op{Kind: decision.Kind(i % 4), Now: decision.OwnClock, Cost: decision.Cost{1}} // to Settle
						_, err := s.Do(t.Context(), key, &plenty, within, op)
						well := key == "shop" && (shared == "" || shared == "app")
						if well && err != nil || !well && !errors.Is(err, redis.ErrNotState) {
							t.Errorf("%+v of %q within %q: %v", op, key, shared, err)
						} else if !well && key == "shop" && !strings.Contains(err.Error(), prefix+"{"+shared+"}") {
							t.Errorf("the error does not name the key of %q: %v", shared, err)
						}
					})
				}
			}
			wg.Wait()
		}
		if e, err := s.Read(t.Context(), "shop"); err != nil || e.State.Tokens == 0 {
			t.Errorf("the shop beside them: %+v, %v", e, err)
		}
		ok(t, other.Set(t.Context(), "limiter", storage.State{Data: []byte("of a Limiter"), Until: decision.Never}, storage.NoRevision))
		if _, err := s.Read(t.Context(), "limiter"); !errors.Is(err, storage.ErrFormat) || err.Error() != redis.ErrNotState.Error() {
			t.Errorf("Read of bytes that are no state = %v, want ErrNotState, said once, and ErrFormat", err)
		}
		for _, key := range broken[:2] { // Get and Set do not look into a state
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

// fewerThanNone returns a value whose state has -1 lines, and a length that fits.
func fewerThanNone(value string) string {
	const lines = 8 * (8 + 14) // behind the header and the scalars of the state
	b := []byte(value)
	binary.LittleEndian.PutUint64(b[lines:], math.Float64bits(-1))
	return string(b)
}

// entityOn returns an entity whose key is on the node, or on another one.
func entityOn(t *testing.T, client *goredis.ClusterClient, node *servers.Redis, on bool) string {
	for i := 0; ; i++ {
		master, err := client.MasterForKey(t.Context(), fmt.Sprintf("{shop%d}", i))
		ok(t, err)
		if (master.Options().Addr == node.Addr()) == on {
			return fmt.Sprint("shop", i)
		}
	}
}

func TestClusterNodeHangs(t *testing.T) {
	cluster := servers.OwnRedisCluster(t, 3, 0)
	for _, node := range cluster.Nodes {
		ok(t, connect(t, node.Addr()).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cluster.Addrs(), ReadTimeout: -1})
	defer client.Close()
	s := newStorage(t, client)
	node := cluster.Nodes[1]
	stuck, other := entityOn(t, client, node, true), entityOn(t, client, node, false)
	getDelay(t, s, other, &plenty)
	besideHanging(t, node, s, stuck, other, 1000)
}

// besideHanging has a server hang while 50 callers ask about a stuck entity that is on it, and another entity is not delayed.
func besideHanging(t *testing.T, server *servers.Redis, s storage.Atomic, stuck, other string, n int) {
	t.Helper()
	ok(t, server.Pause())
	ctx, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := ask(ctx, s, stuck, &plenty); !errors.Is(err, context.Canceled) {
				t.Errorf("GetDelay from the server that hangs = %v, want Canceled", err)
			}
		})
	}
	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range n {
		if _, err := ask(soon, s, other, &plenty); err != nil {
			t.Errorf("GetDelay from the server that works = %v", err)
			break
		}
	}
	leave()
	wg.Wait()
	ok(t, server.Resume())
}

// A server of a Ring that hangs delays no calls to the others.
func TestRingServerHangs(t *testing.T) {
	hangs, works := servers.OwnRedis(t), servers.OwnRedis(t)
	// The Ring does not notice it, and nothing else lets the calls go.
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": hangs.Addr(), "b": works.Addr()}, HeartbeatFrequency: time.Hour, ReadTimeout: -1})
	defer ring.Close()
	s := newStorage(t, ring)
	on := func(server *servers.Redis) string {
		for i := 0; ; i++ {
			shop := fmt.Sprint("shop", i)
			if client, err := ring.GetShardClientForKey("{" + shop + "}"); err != nil {
				t.Fatal(err)
			} else if client.Options().Addr == server.Addr() {
				return shop
			}
		}
	}
	besideHanging(t, hangs, s, on(hangs), on(works), 100)
}

func TestClusterFailover(t *testing.T) {
	cluster := servers.OwnRedisCluster(t, 3, 1)
	client := connectCluster(t, cluster)
	s := newStorage(t, client)
	key := entityOn(t, client, cluster.Nodes[0], true)
	lease := admit(t, s, key, &plenty).Lease
	ok(t, cluster.Nodes[0].Kill())
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
	// The replica may have been told of the lease, or not: that is no error.
	settle(t, s, key, &plenty, lease)
}

// scriptCalls returns how many scripts the server has run.
func scriptCalls(t *testing.T, client *goredis.Client) (n int) {
	t.Helper()
	info, err := client.Info(t.Context(), "commandstats").Result()
	ok(t, err)
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

// A decision is one script call at most, and one round trip; callers that wait at the same time have fewer.
func TestScriptCalls(t *testing.T) {
	server := servers.OwnRedis(t)
	admin, client := connect(t, server.Addr()), connect(t, server.Addr())
	s := newStorage(t, client)
	loadScripts(t, s)
	var sent atomic.Int64
	client.AddHook(before(func(...goredis.Cmder) { sent.Add(1) }))
	count := func(what string, decisions int, f func()) (calls int) {
		before, trips := scriptCalls(t, admin), sent.Load()
		f()
		calls, trips = scriptCalls(t, admin)-before, sent.Load()-trips
		t.Logf("%s: %d decisions in %d script calls and %d round trips", what, decisions, calls, trips)
		if calls > decisions || trips > int64(decisions) {
			t.Errorf("%s: %d script calls and %d round trips for %d decisions", what, calls, trips, decisions)
		}
		return calls
	}
	for kind := decision.GetDelay; kind <= decision.Reset; kind++ {
		var a decision.Answer
		if kind != decision.GetDelay && kind != decision.ReturnToken {
			a = admit(t, s, "shop", &plenty)
		}
		op := decision.Op{Kind: kind, Cost: decision.Cost{1}, Lease: a.Lease, For: 1}
		if calls := count(fmt.Sprintf("an operation of kind %d", kind), 1, func() { a = do(t, s, "shop", &plenty, op) }); calls != 1 {
			t.Errorf("%d calls", calls)
		}
		if found := kind == decision.ReturnToken || kind == decision.Settle || kind == decision.Cancel || kind == decision.Renew; a.Found != found {
			t.Errorf("an operation of kind %d = %+v", kind, a)
		}
	}
	together := func(entity func(int) string, each func(key string)) func() {
		return func() {
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					for range 50 {
						each(entity(i))
					}
				})
			}
			wg.Wait()
		}
	}
	one := func(int) string { return "shop" }
	several := func(i int) string { return fmt.Sprint("shop", i) }
	decide := func(key string) { getDelay(t, s, key, &plenty) }
	admitAndSettle := func(key string) {
		settle(t, s, key, &plenty, admit(t, s, key, &plenty).Lease)
	}
	for _, c := range []struct {
		what      string
		decisions int
		do        func()
	}{
		{"64 callers of GetDelay for one entity", 64 * 50, together(one, decide)},
		{"64 callers of Admit and Settle for one entity", 2 * 64 * 50, together(one, admitAndSettle)},
	} {
		if calls := count(c.what, c.decisions, c.do); calls > c.decisions/2 {
			t.Errorf("%s do not share calls", c.what)
		}
	}
	count("64 callers of GetDelay for 64 entities", 64*50, together(several, decide))
	count("64 callers of Admit and Settle for 64 entities", 2*64*50, together(several, admitAndSettle))
}

// Storages that take turns with an entity and its shared limit take few calls more than decisions: after a refusal a storage
// leaves them to decide.lua for longer each time. A storage that is alone afterwards decides by itself again.
func TestRefusedSwaps(t *testing.T) {
	server := servers.OwnRedis(t)
	client := connect(t, server.Addr())
	a, b := newStorageWith(t, client, redis.Options{}), newStorageWith(t, client, redis.Options{})
	loadScripts(t, a)
	within := []storage.Within{{Key: "app", Limits: &plenty, ID: 1, Weight: 1}}
	decide := func(s storage.Atomic) {
		if a, err := s.Do(t.Context(), "shop", &plenty, within, one); err != nil || a.Delay != 0 {
			t.Fatalf("Admit = %+v, %v", a, err)
		}
	}
	const decisions = 1000
	count := func(each func(i int)) int {
		before := scriptCalls(t, client)
		for i := range decisions {
			each(i)
		}
		return scriptCalls(t, client) - before
	}
	if n := count(func(i int) { decide([]storage.Atomic{a, b}[i%2]) }); n > decisions*11/10 {
		t.Errorf("%d script calls for %d decisions in turns", n, decisions)
	}
	if n := count(func(int) { decide(a) }); n > decisions*11/10 {
		t.Errorf("%d script calls for %d decisions of one alone", n, decisions)
	}
	if _, leases := out(t, a, "app"); leases != 2*decisions {
		t.Errorf("%d leases are out, want %d", leases, 2*decisions)
	}
}

// Callers in a hurry share calls as all others do: most of a thousand callers with a deadline of 1 to 20 ms get an
// answer, and the storage gives back the tokens of the others.
func TestShortDeadlines(t *testing.T) {
	s := newStorage(t, connect(t, servers.OwnRedis(t).Addr()))
	admit(t, s, "shop", &plenty)
	var wg sync.WaitGroup
	var admitted, missed atomic.Int64
	for i := range 1000 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+i%20)*time.Millisecond)
			defer cancel()
			switch a, err := s.Do(ctx, "shop", &plenty, nil, one); {
			case err == nil && a.Delay == 0:
				admitted.Add(1)
			case errors.Is(err, context.DeadlineExceeded):
				missed.Add(1)
			default:
				t.Errorf("Admit = %+v, %v", a, err)
			}
		})
	}
	wg.Wait()
	t.Logf("of 1000 callers %d were admitted, %d were too late", admitted.Load(), missed.Load())
	eventually(t, "only the leases of those who were admitted are out", func() bool {
		_, leases := out(t, s, "shop")
		return leases == 1+admitted.Load()
	})
}

// Close of a storage with a client of its own gives back what the calls of callers that have left take.
func TestCloseAfterLeaving(t *testing.T) {
	server := servers.OwnRedis(t)
	client := connect(t, server.Addr())
	direct := newStorageWith(t, client, redis.Options{})
	opened, err := storage.Open(t.Context(), server.URL()+"?read_timeout=-1")
	ok(t, err)
	s := opened.(*redis.Storage)
	getDelay(t, s, "shop", &perSecond)
	ok(t, server.Pause())
	ctx, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer leave()
	if _, err := ask(ctx, s, "shop", &perSecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the call of the caller that left: %v", err)
	}
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	eventually(t, "Close is under way", func() bool {
		_, err := ask(ctx, s, "shop", &perSecond)
		return errors.Is(err, redis.ErrClosed)
	})
	ok(t, server.Resume())
	ok(t, <-closed)
	if e, err := direct.Read(t.Context(), "shop"); err != nil || e.State.Plain != 1 {
		t.Errorf("%d tokens are out, %v; want the 1 of the caller that stayed", e.State.Plain, err)
	}
}

// impatient is a hook that gives up the commands for which a connection is made, as a circuit breaker may.
type impatient struct {
	hook
	dials chan bool
	sent  sync.WaitGroup // the commands that were given up
}

var errImpatient = errors.New("given up")

func (i *impatient) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		done := make(chan error, 1)
		i.sent.Go(func() { done <- next(ctx, cmd) })
		select {
		case err := <-done:
			return err
		case <-i.dials:
			return errImpatient
		}
	}
}

// A hook gives a call up that is sent later. No other value takes the place of its argument meanwhile.
func TestCallGivenUpByAHook(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // a sync.Pool has a part for each
	server := servers.OwnRedis(t)
	admin := connect(t, server.Addr())
	var slow atomic.Bool
	impatient, dial := &impatient{dials: make(chan bool)}, make(chan bool)
	client := connectWith(t, &goredis.Options{Addr: server.Addr(), DialTimeout: time.Minute, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		if slow.CompareAndSwap(true, false) {
			impatient.dials <- true
			<-dial
		}
		return net.Dial(network, addr)
	}})
	client.AddHook(impatient)
	s := newStorageWith(t, client, redis.Options{})
	l := limits(1000, 1000, 3_600_000, 1000)
	for range 4 {
		getDelay(t, s, "small", &l)
	}
	for range 500 {
		getDelay(t, s, "large", &l)
	}
	before, err := s.Read(t.Context(), "small")
	ok(t, err)
	admin.Do(t.Context(), "client", "kill", "type", "normal", "skipme", "yes")
	eventually(t, "the connections have ended", func() bool { return strings.Count(admin.ClientList(t.Context()).Val(), "\n") == 1 })
	slow.Store(true)
	if _, err := s.Do(context.Background(), "small", &l, nil, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}); err == nil {
		t.Fatal("the hook did not give the call up")
	}
	for range 20 {
		getDelay(t, s, "large", &l)
	}
	close(dial)
	impatient.sent.Wait()
	after, err := s.Read(t.Context(), "small")
	ok(t, err)
	if after.State.Plain > before.State.Plain+1 {
		t.Errorf("plain tokens of small: %d before, %d after one call", before.State.Plain, after.State.Plain)
	}
}

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

// offset is a miniredis whose clock runs, ahead of the real one. It counts the calls of scripts.
type offset struct {
	*goredis.Client
	mini           *miniredis.Miniredis
	stopped        atomic.Bool
	ahead, scripts atomic.Int64
}

func newOffset(t *testing.T) *offset {
	o := &offset{mini: miniredis.RunT(t)}
	o.Client = o.connect(t, o.mini.Addr())
	return o
}

// connect returns another client, which may connect through a proxy.
func (o *offset) connect(t *testing.T, addr string) *goredis.Client {
	client := connectWith(t, &goredis.Options{Addr: addr, MaxRetries: 10})
	client.AddHook(before(func(commands ...goredis.Cmder) {
		if !o.stopped.Load() {
			o.set()
		}
		for _, c := range commands {
			if c.Name() == "evalsha" {
				o.scripts.Add(1)
			}
		}
	}))
	return client
}

func (o *offset) set() { o.mini.SetTime(time.Now().Add(time.Duration(o.ahead.Load()))) }

// move sets the clock ahead.
func (o *offset) move(d time.Duration) { o.ahead.Add(int64(d)) }

// stop has the clock stand still until start.
func (o *offset) stop() {
	o.stopped.Store(true)
	o.set()
}

func (o *offset) start() { o.stopped.Store(false) }

// After the server's clock was set back, entities of the time before cost others nothing, and themselves few script calls.
func TestClockSetBack(t *testing.T) {
	hour := limits(1_000_000, 1_000_000, 3_600_000, 50)
	server := newOffset(t)
	s := newStorageWith(t, server.Client, redis.Options{})
	server.move(time.Hour)
	for range 3 {
		getDelay(t, s, "old", &hour)
	}
	server.move(-time.Hour)
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
			settle(t, s, "shop", &l, admit(t, s, "shop", &l).Lease)
		}
		server.move(900 * time.Millisecond) // on the way
		server.stop()                       // the lease does not end before it is looked at
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
			value, err := c.Get(context.Background(), strings.Replace(key, "{bad}", "{good}", 1)).Bytes()
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
