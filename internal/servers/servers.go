// Package servers starts private RabbitMQ, Redis, PostgreSQL and SQS servers, for tests and for the demo.
//
// Every server listens on free ports of 127.0.0.1 only, and keeps all its files in a temporary folder of its own. The
// package ends a server by its own process id, so it touches neither a server that already runs on the machine nor
// another test binary. A server dies with the Go process that started it, even if that is killed with -9. The next
// process that starts a server then removes its folder.
//
// Private servers run on Linux. Elsewhere set the environment variables below.
//
// # Tests
//
// [UseRabbitMQ], [UseRedis], [UsePostgres] and [UseSQS] give the one shared server of the test binary; it is started on
// first use and stopped by [Main]. [OwnRabbitMQ] and its kin give a server for one test alone, which may kill and pause
// it. Where DRIP_RABBITMQ_URL, DRIP_REDIS_URL, DRIP_POSTGRES_URL or DRIP_SQS_URL is set, the shared server is that one. A
// server that cannot be had skips the test, or fails it when the environment variable CI is set. A variable that names a
// server which is not there always fails it.
//
//	func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }
//
// # Concurrency
//
// All methods may be called by several goroutines. Of one server, Start, Stop, Kill, Pause and Resume wait for each
// other.
package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/drip-go/drip/internal/oktest"
)

// ErrMissing is wrapped by the error of a start for which a program is not installed. The error's text tells in one
// line how to install it.
var ErrMissing = errors.New("not found")

// startLimit bounds the start of a server for a test. It is seconds on a quiet machine; this is for a busy one.
const startLimit = 5 * time.Minute

// TB is the part of testing.TB that is needed here.
type TB interface {
	oktest.TB
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Cleanup(func())
}

// Main runs the tests, stops their servers and returns the exit code. It does the same when the tests are interrupted:
// servers do not get the terminal's Ctrl-C, so that a test which ends in good order still has them.
func Main(m interface{ Run() int }) int {
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupts
		close(closing)
		stopAll()
		os.Exit(130)
	}()
	defer stopAll()
	return m.Run()
}

var (
	sharedRabbitMQ = shared("DRIP_RABBITMQ_URL", func(url string) *RabbitMQ { return &RabbitMQ{server: server{name: "RabbitMQ", url: url}} },
		func(ctx context.Context) (*RabbitMQ, error) { return StartRabbitMQ(ctx) })
	sharedRedis = shared("DRIP_REDIS_URL", func(url string) *Redis { return &Redis{server: server{name: "Redis", url: url}} },
		func(ctx context.Context) (*Redis, error) { return StartRedis(ctx) })
	sharedPostgres = shared("DRIP_POSTGRES_URL", func(url string) *Postgres { return &Postgres{server: server{name: "PostgreSQL", url: url}} }, StartPostgres)
	sharedSQS      = shared("DRIP_SQS_URL", func(url string) *SQS { return &SQS{server{name: "SQS", url: url}} }, StartSQS)
)

// shared returns a function for tests, whose first call takes the server that the variable names, or starts one.
func shared[T any](variable string, running func(url string) T, start func(context.Context) (T, error)) func(TB) T {
	one := sync.OnceValues(func() (T, error) {
		if address := os.Getenv(variable); address != "" {
			return running(address), reachable(variable, address)
		}
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		return start(ctx)
	})
	return func(t TB) T {
		t.Helper()
		s, err := one()
		require(t, err)
		return s
	}
}

// errDead is in the error of a variable that names a server which is not there. It fails a test, and skips none.
var errDead = errors.New("no server is there")

// reachable returns an error if nobody listens at the address that a variable names. It repeats no password.
func reachable(variable, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Port() == "" { // the client knows better
		return nil
	}
	c, err := net.DialTimeout("tcp", u.Host, 10*time.Second)
	if err != nil {
		return fmt.Errorf("%s names %s, but %w: %w", variable, u.Host, errDead, err)
	}
	return c.Close()
}

// UseRabbitMQ returns the broker that all tests of this binary share. Use names of your own in it.
func UseRabbitMQ(t TB) *RabbitMQ { t.Helper(); return sharedRabbitMQ(t) }

// UseRedis returns the Redis that all tests of this binary share. Use keys of your own in it.
func UseRedis(t TB) *Redis { t.Helper(); return sharedRedis(t) }

// UsePostgres returns the PostgreSQL that all tests of this binary share. Use tables of your own in it.
func UsePostgres(t TB) *Postgres { t.Helper(); return sharedPostgres(t) }

// UseSQS returns the SQS server that all tests of this binary share. Use queues of your own in it. Its region is any, and
// so are its credentials; the server that DRIP_SQS_URL names must accept the access key and the secret "test".
func UseSQS(t TB) *SQS { t.Helper(); return sharedSQS(t) }

// OwnRabbitMQ starts a broker for this test alone and stops it when the test is over. For env see [StartRabbitMQ].
func OwnRabbitMQ(t TB, env ...string) *RabbitMQ {
	t.Helper()
	return own(t, func(ctx context.Context) (*RabbitMQ, error) { return StartRabbitMQ(ctx, env...) })
}

// OwnRabbitMQCluster starts a cluster of n nodes for this test alone and stops it when the test is over.
func OwnRabbitMQCluster(t TB, n int) []*RabbitMQ {
	t.Helper()
	return own(t, func(ctx context.Context) (rabbitMQCluster, error) {
		return again(func() (rabbitMQCluster, error) { return startRabbitMQs(ctx, n) })
	})
}

// OwnRedis starts a Redis for this test alone and stops it when the test is over. For args see [StartRedis].
func OwnRedis(t TB, args ...string) *Redis {
	t.Helper()
	return own(t, func(ctx context.Context) (*Redis, error) { return StartRedis(ctx, args...) })
}

// OwnRedisCluster starts a Redis Cluster for this test alone and stops it when the test is over.
func OwnRedisCluster(t TB, masters, replicasPerMaster int) *RedisCluster {
	t.Helper()
	return own(t, func(ctx context.Context) (*RedisCluster, error) {
		return StartRedisCluster(ctx, masters, replicasPerMaster)
	})
}

// OwnPostgres starts a PostgreSQL for this test alone and stops it when the test is over.
func OwnPostgres(t TB) *Postgres {
	t.Helper()
	return own(t, StartPostgres)
}

func own[T interface{ Stop() error }](t TB, start func(context.Context) (T, error)) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	s, err := start(ctx)
	require(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Logf("%v", err)
		}
	})
	return s
}

var must = oktest.OK // ends the test if there is an error

// require ends the test if a server cannot be had. A developer without the program still gets the other tests; CI must
// not pass because it tested nothing.
func require(t TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "" || errors.Is(err, errDead):
		t.Fatalf("%v", err)
	default:
		t.Skipf("%v", err)
	}
}
