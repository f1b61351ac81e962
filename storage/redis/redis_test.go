package redis_test

import (
	"context"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/attacks"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestMain(m *testing.M) {
	goredis.SetLogger(silent{}) // the servers that it misses are meant to be missing
	os.Exit(servers.Main(m))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var backends = map[string]func(*testing.T) goredis.UniversalClient{
	"miniredis": func(t *testing.T) goredis.UniversalClient { return connect(t, miniredis.RunT(t).Addr()) },
	"redis":     func(t *testing.T) goredis.UniversalClient { return connectShared(t) },
	"cluster": func(t *testing.T) goredis.UniversalClient {
		return connectCluster(t, servers.OwnRedisCluster(t, 3, 0))
	},
}

func onBackends(t *testing.T, test func(t *testing.T, client goredis.UniversalClient)) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func connect(t testing.TB, addr string) *goredis.Client {
	return connectWith(t, &goredis.Options{Addr: addr})
}

func connectWith(t testing.TB, o *goredis.Options) *goredis.Client {
	client := goredis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func connectShared(t testing.TB) *goredis.Client {
	o, err := goredis.ParseURL(servers.UseRedis(t).URL())
	ok(t, err)
	return connectWith(t, o)
}

func connectCluster(t testing.TB, cluster *servers.RedisCluster) *goredis.ClusterClient {
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: cluster.Addrs()})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

type hook struct{}

func (hook) DialHook(next goredis.DialHook) goredis.DialHook          { return next }
func (hook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }
func (hook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// before is a hook that is called each time before the client sends something.
type before func(commands ...goredis.Cmder)

func (before) DialHook(next goredis.DialHook) goredis.DialHook { return next }
func (b before) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, c goredis.Cmder) error { b(c); return next(ctx, c) }
}
func (b before) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, all []goredis.Cmder) error { b(all...); return next(ctx, all) }
}

// newStorage makes a storage that shares no key with other tests.
func newStorage(t testing.TB, client goredis.UniversalClient) *redis.Storage {
	t.Helper()
	return newStorageWith(t, client, redis.Options{Prefix: fmt.Sprintf("%s-%x:", t.Name(), rand.Uint64())})
}

// oneSlot is a prefix that shares no key with other tests, and whose keys are in one slot of a cluster.
func oneSlot(t testing.TB) string { return fmt.Sprintf("{%s-%x}:", t.Name(), rand.Uint64()) }

func newStorageWith(t testing.TB, client goredis.UniversalClient, o redis.Options) *redis.Storage {
	t.Helper()
	s, err := redis.New(client, o)
	ok(t, err)
	return s
}

func TestStorage(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		storagetest.Run(t, func(t *testing.T) storage.Storage { return newStorage(t, client) })
	})
}

// All of them are -miniredis-runs 300, for a minute.
var miniredisRuns = flag.Int("miniredis-runs", 30, "how many recorded runs are replayed with miniredis, whose Lua is slow")

func TestTraces(t *testing.T) {
	for name, open := range backends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := traces.Runs
			if name == "miniredis" {
				runs = *miniredisRuns
			}
			ok(t, traces.Replay(t.Context(), newStorage(t, open(t)), runs))
		})
	}
}

// perSecond lets ten run at once and five more each second. An entity is full at first.
var perSecond = limits(10, 5, 1000, 50)

func limits(size, rate, interval, wait int64) decision.Limits {
	return *buckettest.Ready(decision.Limits{
		Windows: []decision.Window{{Size: size, Rate: rate, Interval: interval}},
		Tokens:  size, Guess: wait, Lease: 60_000, MaxLease: 3_600_000,
	})
}

var ask, do, getDelay = buckettest.Ask, buckettest.Do, buckettest.GetDelay

func giveBack(ctx context.Context, s storage.Atomic, key string, l *decision.Limits) error {
	_, err := s.Do(ctx, key, l, nil, decision.Op{Kind: decision.ReturnToken, Now: decision.OwnClock})
	return err
}

func returnToken(t testing.TB, s storage.Atomic, key string, l *decision.Limits) {
	t.Helper()
	do(t, s, key, l, decision.Op{Kind: decision.ReturnToken})
}

// one is an operation by the server's clock.
var one = decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: decision.OwnClock}

func admit(t testing.TB, s storage.Atomic, key string, l *decision.Limits) decision.Answer {
	t.Helper()
	return do(t, s, key, l, one)
}

// settle reports whether the lease was out.
func settle(t testing.TB, s storage.Atomic, key string, l *decision.Limits, lease decision.Lease) bool {
	t.Helper()
	return do(t, s, key, l, decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: lease}).Found
}

// loadScripts has the server know the scripts.
func loadScripts(t testing.TB, s storage.Atomic) {
	t.Helper()
	for range 2 { // then the storage knows the entity
		getDelay(t, s, "known", &plenty)
		returnToken(t, s, "known", &plenty)
	}
}

// inUse returns the plain tokens that are out.
func inUse(t testing.TB, s storage.Storage, key string) int64 {
	t.Helper()
	n, _ := out(t, s, key)
	return n
}

// out returns the plain tokens and the leases that are.
func out(t testing.TB, s storage.Storage, key string) (tokens, leases int64) {
	t.Helper()
	e := buckettest.Read(t, s.(storage.Reader), key)
	return e.State.Plain, e.Out
}

// eventually waits until done, a minute at most.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	oktest.Eventually(t, time.Minute, what, done)
}

func TestOpen(t *testing.T) {
	mini := miniredis.RunT(t)
	mini.RequireUserAuth("user", "s3cret/?@")
	s, err := storage.Open(t.Context(), "redis://user:s3cret%2F%3F%40@"+mini.Addr()+"/3?prefix=app:&max_hold=1h&read_timeout=5s")
	ok(t, err)
	if d := getDelay(t, s.(storage.Atomic), "shop", &perSecond); d != 0 {
		t.Errorf("GetDelay = %v, want 0", d)
	}
	if ttl := mini.DB(3).TTL("app:{shop}"); ttl != time.Hour {
		t.Errorf("the key app:{shop} of database 3 lives for %v, want 1h", ttl)
	}
	ok(t, s.(*redis.Storage).Close())
	if _, err := ask(t.Context(), s.(storage.Atomic), "shop", &perSecond); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("GetDelay after Close = %v, want ErrClosed", err)
	}
	eventually(t, "disconnected", func() bool { return mini.CurrentConnectionCount() == 0 })
}

func TestOpenErrors(t *testing.T) {
	for url, want := range map[string]string{
		"redis://host/one":               `storage: open redis: redis: invalid database number: "one"`,
		"redis://host/0?max_holt=1h":     `storage: open redis: redis: unexpected option: max_holt`,
		"redis://host/0?max_hold=1":      `storage: open redis: redis: max_hold is not a duration such as 1h`,
		"redis://host/0?max_hold=-1s":    `storage: open redis: redis: Options.MaxHold is -1s; it must be at least 1ms, or 0 for the default`,
		"redis://u:s3cret/0@host/0":      `storage: open: malformed URL`,
		"redis://:12/s3cret@host":        `storage: open: malformed URL`,
		"redis:s3cret@host":              `storage: open redis: redis: the URL has no // after the scheme`,
		"redis:///user:s3cret@host/0":    `storage: open redis: redis: the URL has three slashes after the scheme; it must have two`,
		"redis://user:s3cret@host/a/b/c": `storage: open redis: redis: invalid URL path: /a/b/c`,
	} {
		_, err := storage.Open(t.Context(), url)
		if err == nil || err.Error() != want {
			t.Errorf("Open(%s) = %v, want %s", url, err, want)
		}
	}
	if _, err := redis.New(nil, redis.Options{MaxHold: time.Microsecond}); err == nil || !strings.Contains(err.Error(), "Options.MaxHold is 1µs") {
		t.Errorf("New with a MaxHold of 1µs = %v", err)
	}
	for must, prefixes := range map[string][]string{
		"its braces must not be empty":  {"{}", "drip{}:", "{}{drip}:"},
		"its last brace must be closed": {"{", "}{", "app:{", "{drip}{"}, // the entity {a of the prefix app: would be the entity a of app:{
		"":                              {"}", "{drip}{}:", "{a{b}"},
	} {
		for _, prefix := range prefixes {
			want := fmt.Sprintf("redis: Options.Prefix is %q; %s", prefix, must)
			if _, err := redis.New(connect(t, "127.0.0.1:1"), redis.Options{Prefix: prefix}); must == "" && err != nil || must != "" && (err == nil || err.Error() != want) {
				t.Errorf("New with the prefix %q = %v, want %s", prefix, err, must)
			}
		}
	}
	for _, client := range []goredis.UniversalClient{nil, (*goredis.Client)(nil), (*goredis.ClusterClient)(nil), (*goredis.Ring)(nil)} {
		if _, err := redis.New(client, redis.Options{}); err == nil || err.Error() != "redis: the client is nil" {
			t.Errorf("New(%T) = %v", client, err)
		}
	}
}

func TestCloseLeavesTheClientOpen(t *testing.T) {
	client := connect(t, miniredis.RunT(t).Addr())
	s := newStorage(t, client)
	getDelay(t, s, "shop", &perSecond)
	for range 2 {
		ok(t, s.Close())
	}
	if _, err := ask(t.Context(), s, "shop", &perSecond); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("GetDelay after Close = %v, want ErrClosed", err)
	}
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("the client after Close: %v", err)
	}
}

// The server's clock decides: it is an hour off from the clock of this process, and moves only when the test sets it.
func TestServerClock(t *testing.T) {
	mini := miniredis.RunT(t)
	clock := time.Now().Add(-time.Hour).Truncate(time.Second)
	mini.SetTime(clock)
	// Two storages are two processes. If either asked its own clock there would be a burst of 10 more.
	a := newStorageWith(t, connect(t, mini.Addr()), redis.Options{})
	b := newStorageWith(t, connect(t, mini.Addr()), redis.Options{})
	runs := func() (delayed, admitted int) {
		for range 30 {
			for _, s := range []*redis.Storage{a, b} {
				if getDelay(t, s, "shop", &perSecond) == 0 {
					delayed++
					returnToken(t, s, "shop", &perSecond)
				}
				a := admit(t, s, "job", &perSecond)
				end := decision.Op{Kind: decision.Cancel, Ticket: a.Ticket}
				if a.Delay == 0 {
					admitted++
					end = decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: a.Lease}
				}
				do(t, s, "job", &perSecond, end)
			}
		}
		return delayed, admitted
	}
	for i, want := range []int{10, 0, 5, 10, 10} {
		if delayed, admitted := runs(); delayed != want || admitted != want {
			t.Errorf("step %d: GetDelay let %d run and Admit %d, want %d", i, delayed, admitted, want)
		}
		clock = clock.Add(time.Duration(i) * time.Second) // steps of 0, 1, 2 … seconds
		mini.SetTime(clock)
	}
	mini.SetTime(clock.Add(-time.Minute))
	if delayed, admitted := runs(); delayed != 0 || admitted != 0 {
		t.Errorf("after the clock stepped back GetDelay let %d run and Admit %d, want 0", delayed, admitted)
	}
}

func TestTimeToLive(t *testing.T) {
	mini := miniredis.RunT(t)
	at := func(ms int64) { mini.SetTime(time.UnixMilli(1_700_000_000_000 + ms)) }
	s := newStorageWith(t, connect(t, mini.Addr()), redis.Options{MaxHold: time.Minute})
	expect := func(what string, want time.Duration) {
		t.Helper()
		if got := mini.TTL("drip:{shop}"); got != want {
			t.Errorf("%s: the key lives for %v, want %v", what, got, want)
		}
	}
	at(0)
	getDelay(t, s, "shop", &perSecond)
	expect("a token is out", time.Minute)
	at(400)
	returnToken(t, s, "shop", &perSecond)
	st, _, err := s.Get(t.Context(), "shop")
	ok(t, err)
	if got := mini.TTL("drip:{shop}"); got >= time.Minute || got != time.Duration(st.Until-st.Now)*time.Millisecond {
		t.Errorf("after its return: the key lives for %v, want %d ms: until it is as good as new", got, st.Until-st.Now)
	}
	at(1000)
	for getDelay(t, s, "shop", &perSecond) == 0 {
	}
	expect("all tokens are out", time.Minute)
	at(50_000)
	getDelay(t, s, "shop", &perSecond)
	expect("all tokens are out, and asking does not keep them", 11*time.Second)
	mini.FastForward(11 * time.Second)
	at(61_000)
	if d := getDelay(t, s, "shop", &perSecond); d != 0 {
		t.Errorf("MaxHold after the last run: GetDelay = %v, want 0: the holders are dead", d)
	}
	if n := inUse(t, s, "shop"); n != 1 {
		t.Errorf("%d tokens are out, want the new one only", n)
	}
	// A caller's time says nothing about how long the entity will be needed.
	if _, err := s.Do(t.Context(), "simulated", &perSecond, nil, decision.Op{Kind: decision.GetDelay, Now: 1_500_000_000_000}); err != nil {
		t.Fatal(err)
	}
	returnToken(t, s, "simulated", &perSecond)
	if got := mini.TTL("drip:{simulated}"); got != time.Minute {
		t.Errorf("by a caller's clock: the key lives for %v, want MaxHold", got)
	}
	slow := limits(10, 5, 3_600_000, 50)
	getDelay(t, s, "shop", &slow)
	if got := mini.TTL("drip:{shop}"); got < 3*time.Hour {
		t.Errorf("a bucket that fills in three hours lives for %v", got)
	}
}

// Redis keeps leases, tickets and closed entities for as long as they matter.
func TestTimeToLiveOfAdmission(t *testing.T) {
	const hour = 3_600_000
	admit := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}
	for name, c := range map[string]struct {
		ops   []decision.Op
		least time.Duration
	}{
		"a lease is out":         {[]decision.Op{admit}, 90 * time.Second},
		"tickets are booked":     {[]decision.Op{admit, admit, admit, admit, admit}, 2 * time.Second},
		"throttled":              {[]decision.Op{admit, {Kind: decision.Throttle, For: 2 * hour}}, 2 * time.Hour},
		"paused":                 {[]decision.Op{{Kind: decision.Pause, For: 48 * hour}}, 48 * time.Hour},
		"paused and a token out": {[]decision.Op{{Kind: decision.GetDelay}, {Kind: decision.Pause, For: 48 * hour}}, 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			mini := miniredis.RunT(t)
			now := time.UnixMilli(1_700_000_000_000)
			mini.SetTime(now)
			s := newStorageWith(t, connect(t, mini.Addr()), redis.Options{})
			l := limits(2, 2, 1000, 50)
			l.Lease, l.Tokens = 90_000, 100
			for _, op := range c.ops {
				do(t, s, "shop", &l, op)
			}
			state, _, err := s.Get(t.Context(), "shop")
			ok(t, err)
			ttl := mini.TTL("drip:{shop}")
			if ttl < c.least || state.Until != decision.Never && ttl != time.UnixMilli(state.Until).Sub(now) {
				t.Errorf("the key lives for %v, want %v at least, and until %v", ttl, c.least, time.UnixMilli(state.Until).Sub(now))
			}
			mini.FastForward(c.least - time.Millisecond)
			mini.SetTime(now.Add(c.least - time.Millisecond))
			if op := c.ops[len(c.ops)-1].Kind; op == decision.Throttle || op == decision.Pause {
				a := do(t, s, "shop", &l, admit)
				if a.Bound != decision.BoundClosed || a.Delay < 1 {
					t.Errorf("Admit a millisecond before it opens = %+v, want BoundClosed", a)
				}
			}
		})
	}
}

func TestIdleEntitiesAreGone(t *testing.T) {
	client := connect(t, servers.OwnRedis(t).Addr())
	s := newStorage(t, client)
	fast := limits(3, 1, 20, 1)
	fast.Lease = 30
	for i := range 200 {
		shop := func(what string) string { return fmt.Sprint(what, i) }
		if d := getDelay(t, s, shop("plain"), &fast); d != 0 {
			t.Fatalf("GetDelay = %v, want 0", d)
		}
		returnToken(t, s, shop("plain"), &fast)
		settled := admit(t, s, shop("settled"), &fast)
		do(t, s, shop("settled"), &fast, decision.Op{Kind: decision.Settle, Cost: decision.Cost{2}, Lease: settled.Lease})
		for range 6 { // leases that nobody gives back, and tickets that do not come
			admit(t, s, shop("lost"), &fast)
		}
		do(t, s, shop("throttled"), &fast, decision.Op{Kind: decision.Throttle, For: 50})
		do(t, s, shop("paused"), &fast, decision.Op{Kind: decision.Pause, For: 50})
	}
	getDelay(t, s, "holder", &fast)
	eventually(t, "only the entity whose token is out is left", func() bool {
		return client.DBSize(t.Context()).Val() == 1
	})
}

func TestRevisionsAreNotRepeated(t *testing.T) {
	client := connectShared(t)
	s := newStorageWith(t, client, redis.Options{Prefix: t.Name()})
	seen := map[storage.Revision]bool{}
	for range 100 {
		for range 3 {
			getDelay(t, s, "shop", &perSecond)
			_, rev, err := s.Get(t.Context(), "shop")
			if err != nil || seen[rev] {
				t.Fatalf("revision %d (%v) is repeated", rev, err)
			}
			seen[rev] = true
		}
		ok(t, client.Del(t.Context(), t.Name()+"{shop}").Err())
	}
}

// The entities of a Cluster are on all its nodes, also if they begin alike.
func TestEntitiesOfACluster(t *testing.T) {
	client := connectCluster(t, servers.OwnRedisCluster(t, 3, 0))
	s := newStorage(t, client)
	for i := range 300 {
		getDelay(t, s, fmt.Sprintf("a}%d", i), &plenty)
		getDelay(t, s, fmt.Sprintf("{a}%d", i), &plenty)
	}
	ok(t, client.ForEachMaster(t.Context(), func(ctx context.Context, node *goredis.Client) error {
		n, err := node.DBSize(ctx).Result()
		if n < 150 {
			t.Errorf("%v of 600 entities are on a node, want about 200", n)
		}
		return err
	}))
}

// TestRights uses a user with only the rights of the package's documentation.
func TestRights(t *testing.T) {
	server := servers.OwnRedis(t)
	admin := connect(t, server.Addr())
	err := admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~drip:*", "+eval", "+evalsha", "+get", "+set", "+time",
		"+getrange", "+exists", "+unlink", "+pexpire", "+zadd", "+zrem", "+zcard", "+zcount", "+zscore", "+zrangebyscore").Err()
	ok(t, err)
	s, err := storage.Open(t.Context(), "redis://app:secret@"+server.Addr())
	ok(t, err)
	defer s.(*redis.Storage).Close()
	loadScripts(t, s.(storage.Atomic))
	getDelay(t, s.(storage.Atomic), "shop", &perSecond)
	if n := inUse(t, s, "shop"); n != 1 {
		t.Errorf("%d tokens are out, want 1", n)
	}
	ok(t, s.Set(t.Context(), "other", storage.State{}, storage.NoRevision))
}

var ok = oktest.OK // ends the test if there is an error

func TestAttacks(t *testing.T) {
	attacks.Run(t, 2_000, func(t *testing.T) storage.Storage { return newStorage(t, connectShared(t)) })
}

func TestManyLeasesEnded(t *testing.T) { buckettest.EndedLeases(t, newStorage(t, connectShared(t))) }

// The client's certificates apply. Over rediss: the certificate of an unknown authority is an error, and nothing is sent.
func TestTLS(t *testing.T) {
	front := servers.FrontTLS(t, servers.OwnRedis(t).Addr(), nil)
	client := connectWith(t, &goredis.Options{Addr: front.Addr, TLSConfig: front.Trusts})
	if a, err := newStorage(t, client).Do(t.Context(), "shop", &plenty, nil, one); err != nil || a.Delay != 0 {
		t.Errorf("Do = %+v, %v; want to run", a, err)
	}

	s, err := storage.Open(t.Context(), "rediss://drip:secret@"+front.Addr)
	ok(t, err)
	defer s.(io.Closer).Close()
	_, err = s.(storage.Atomic).Do(t.Context(), "shop", &plenty, nil, one)
	if !errors.As(err, new(x509.UnknownAuthorityError)) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Do = %v, want the unknown authority", err)
	}
}

// The package comment names these sizes.
func TestSizes(t *testing.T) {
	const entity, window, pin, within, lease, calendar, waiting, grain = 376, 152, 200, 112, 16, 104, 264, 3
	app := map[string]drip.Limit{"app": {Size: 3, RefreshRate: 1}}
	for name, c := range map[string]struct {
		options drip.Options
		sizes   map[string]int
	}{
		"one window": {drip.Options{}, map[string]int{"drip:{x}": entity + 3*lease}},
		"two windows": {
			drip.Options{Windows: []drip.Window{{Size: 100, RefreshInterval: time.Minute}}}, map[string]int{"drip:{x}": entity + window + 3*lease},
		},
		"a shared limit": {
			drip.Options{Shared: app}, map[string]int{"drip:{x}": entity + within + 3*lease, "drip:{shared:app}": entity + calendar + 3*lease},
		},
	} {
		server := miniredis.RunT(t)
		server.SetTime(time.UnixMilli(1_700_000_000_000)) // no booked slot comes due, so none counts as abandoned
		s, err := redis.New(connect(t, server.Addr()), redis.Options{})
		ok(t, err)
		o := c.options
		o.Size, o.RefreshRate, o.Concurrency, o.Storage = 10, 10, 3, s
		b := buckettest.New(t, o)
		check := func(name string, more int) {
			for key, want := range c.sizes {
				if value, _ := server.Get(key); len(value) != want+more {
					t.Errorf("%s: %s has %d bytes, want %d", name, key, len(value), want+more)
				}
			}
		}
		for range 3 {
			buckettest.Admit(t, b, "x", drip.Request{})
		}
		check(name, 0)
		if o.Shared != nil {
			for range decision.Grains + 100 {
				buckettest.Admit(t, b, "y", drip.Request{Within: []string{"app"}})
			}
			value, _ := server.Get("drip:{shared:app}")
			if most := entity + 3*lease + calendar + waiting + grain*decision.Grains; len(value) > most || len(value) < most-waiting {
				t.Errorf("%s: the value has %d bytes with all grains booked, want at most %d", name, len(value), most)
			}
		} else {
			ok(t, b.Pin(t.Context(), "x", drip.Pin{Concurrency: 2}))
			check(name+", pinned", pin)
		}
	}
}
