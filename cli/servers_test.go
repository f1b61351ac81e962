package cli

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// backends make a place for entities on a real server and return its URL.
var backends = map[string]func(*testing.T) string{
	"redis": func(t *testing.T) string {
		return with(t, servers.OwnRedis(t).URL(), "prefix", "shops:")
	},
	"postgres": func(t *testing.T) string {
		address := with(t, servers.UsePostgres(t).URL(), "schema", fmt.Sprintf("cli %d", time.Now().UnixNano()))
		address = with(t, address, "timeout", "1m")
		s := connect(t, address).(*postgres.Storage)
		ok(t, s.CreateSchema(t.Context()))
		return address
	},
}

func with(t *testing.T, address, name, value string) string {
	u, err := url.Parse(address)
	ok(t, err)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

func connect(t *testing.T, address string) storage.Storage {
	s, closing, err := open(t.Context(), address)
	ok(t, err)
	t.Cleanup(closing)
	return s
}

// patient is for servers on a busy machine.
const patient = "--timeout=1m"

func onServers(t *testing.T, f func(t *testing.T, address string)) {
	for name, backend := range backends {
		t.Run(name, func(t *testing.T) { f(t, backend(t)) })
	}
}

// consumers returns the bucket of the consumers that decide about the entities. No interval ends while the test runs.
func consumers(t *testing.T, address string) *drip.Bucket {
	return buckettest.New(t, drip.Options{
		Size: 9, RefreshRate: 9, RefreshInterval: 10_000 * 24 * time.Hour, Concurrency: 4, Storage: connect(t, address),
	})
}

func admit(t *testing.T, b *drip.Bucket, entity string, n int) (last drip.Admission) {
	for range n {
		last = buckettest.Admit(t, b, entity, drip.Request{})
	}
	return last
}

func TestOnServers(t *testing.T) {
	onServers(t, func(t *testing.T, address string) {
		b := consumers(t, address)
		admit(t, b, "shop-1", 3)
		const all = `--limits={"size": 9, "rate": 9, "interval": "240000h", "concurrency": 4}`
		agree := func(entity, bound string) {
			t.Helper()
			begin := time.Now()
			got := inspected(t, patient, address, entity, all)
			a := admit(t, b, entity, 1)
			off := time.Duration(got.Delay)*time.Millisecond - a.Delay // the server's clock goes on in between
			if got.Bound != a.Bound.String() || got.Bound != bound || off.Abs() > time.Since(begin)+time.Millisecond {
				t.Errorf("inspect says %+v of %s; the decision was %v, %v; it should come from %s", got, entity, a.Delay, a.Bound, bound)
			}
		}
		agree("shop-1", "nothing")
		agree("shop-1", "tokens")
		if got := must(t, "pause", patient, address, "shop-1", "48h"); !strings.HasPrefix(got, "shop-1: closed until ") {
			t.Error(got)
		}
		agree("shop-1", "closed")
		if got := must(t, "resume", patient, address, "shop-1"); !strings.HasPrefix(got, "shop-1: open again; it had been closed until ") {
			t.Error(got)
		}
		agree("shop-1", "tokens")
		if got := must(t, "reset", patient, address, "shop-1", "--yes"); got != "shop-1: 4 tokens and all tickets taken back; past operations stay counted\n" {
			t.Error(got)
		}
		agree("shop-1", "nothing")
		// Operations that have run stay counted, five of nine.
		prints(t, "\ncapacity    4 of 9, +9 every 240000h\n", "inspect", patient, address, "shop-1", all)
		if got := inspected(t, patient, address, "shop-2", all); got != (told{Limits: "given", Bound: "nothing"}) {
			t.Errorf("of an entity that is not stored: %+v", got)
		}
	})
}

// One script that reads, on a server that knows it, one GET of the history, and what go-redis says to begin a connection.
func TestInspectIsTwoCallsOfRedis(t *testing.T) {
	address := backends["redis"](t)
	admit(t, consumers(t, address), "shop", 5)
	must(t, "inspect", patient, address, "shop") // the server knows the script from now on
	options, err := goredis.ParseURL(strings.Split(address, "?")[0])
	ok(t, err)
	client := goredis.NewClient(options)
	defer client.Close()
	ok(t, client.ConfigResetStat(t.Context()).Err())
	must(t, "inspect", patient, address, "shop", "--json")
	stats, err := client.Info(t.Context(), "commandstats").Result()
	ok(t, err)
	var called []string
	for line := range strings.Lines(stats) {
		name, rest, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":calls=")
		calls, _, _ := strings.Cut(rest, ",")
		if ok && name != "info" && !strings.HasPrefix(name, "config") {
			called = append(called, name+" "+calls)
		}
	}
	slices.Sort(called)
	// hello and client belong to connecting; a get and time are called by the script.
	called = slices.DeleteFunc(called, func(c string) bool { return strings.HasPrefix(c, "hello") || strings.HasPrefix(c, "client") })
	if want := []string{"evalsha 1", "get 2", "time 1"}; !slices.Equal(called, want) {
		t.Errorf("inspect called %v, want %v", called, want)
	}
}

// An answer that does not come ends with its own status, and does not keep anybody waiting for longer than --timeout.
func TestServerThatHangs(t *testing.T) {
	redis := servers.OwnRedis(t)
	ok(t, redis.Pause())
	for _, args := range []string{"inspect URL shop", "top URL --once", "pause URL shop 1m", "resume URL shop", "reset URL shop --yes"} {
		line := strings.Fields(strings.ReplaceAll(args, "URL", redis.URL()))
		o := try(t, append(line, "--timeout", "100ms")...)
		if o.status != statusNoAnswer || !strings.Contains(o.err, "--timeout sets how long that is.") {
			t.Errorf("drip %s: %+v", args, o)
		}
	}
}

func TestServerThatSaysNo(t *testing.T) {
	redis, database := servers.OwnRedis(t, "--requirepass", "geheim"), servers.UsePostgres(t).URL()
	address := strings.Replace(redis.URL(), "redis://", "redis://:falsch@", 1)
	for line, want := range map[string]string{
		"inspect " + address + " shop":                                "Are the user and the password in the URL right?",
		"inspect " + redis.URL() + " shop":                            "The user and the password are part of the URL",
		"inspect " + with(t, database, "schema", "nowhere") + " shop": "Is the schema right?",
		"top " + with(t, database, "schema", "nowhere"):               "Is the schema right?",
	} {
		o := try(t, append(strings.Fields(line), patient)...)
		if o.status != statusFailure || !strings.Contains(o.err, want) || strings.Contains(o.err, "falsch") {
			t.Errorf("drip %s: %+v\nwant %s", line, o, want)
		}
	}
}

// A URL names one server, which in a Cluster has some of the entities.
func TestNodeOfACluster(t *testing.T) {
	node := "redis://" + servers.OwnRedisCluster(t, 3, 0).Addrs()[0]
	moved := 0
	for i := range 20 {
		o := try(t, "inspect", patient, node, fmt.Sprint("shop-", i))
		if o.status == statusFailure && strings.Contains(o.err, "This is a node of a Redis Cluster, which a URL cannot name.") {
			moved++
		} else if o.status != statusOK {
			t.Errorf("%+v", o)
		}
	}
	if moved == 0 || moved == 20 {
		t.Errorf("of 20 entities %d are on other nodes than the first of three", moved)
	}
}
