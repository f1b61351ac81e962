package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

// outages are ways in which a Redis gives no answer, or one that is none.
var outages = []struct {
	name       string
	begin, end func(*servers.Redis, *goredis.Client) error
}{
	{"it hangs",
		func(r *servers.Redis, _ *goredis.Client) error { return r.Pause() },
		func(r *servers.Redis, _ *goredis.Client) error { return r.Resume() }},
	{"it is killed",
		func(r *servers.Redis, _ *goredis.Client) error { return r.Kill() },
		func(r *servers.Redis, _ *goredis.Client) error { return r.Start(context.Background()) }},
	{"it has no memory",
		func(_ *servers.Redis, c *goredis.Client) error {
			return c.ConfigSet(context.Background(), "maxmemory", "1").Err()
		},
		func(_ *servers.Redis, c *goredis.Client) error {
			return c.ConfigSet(context.Background(), "maxmemory", "0").Err()
		}},
}

// counted is a bucket that counts its answers.
type counted struct {
	*drip.Bucket
	granted, failed atomic.Int64
}

func (c *counted) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	a, err := c.Bucket.Admit(ctx, entity, r)
	switch {
	case err != nil:
		c.failed.Add(1)
	case a.Delay == 0:
		c.granted.Add(1)
	}
	return a, err
}

// lines is a log that counts how often each line was written.
type lines struct {
	mu sync.Mutex
	n  map[string]int
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == nil {
		l.n = map[string]int{}
	}
	l.n[r.Message]++
	return nil
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n[text]
}

const (
	waitLine      = "no answer from the limiter, messages wait"
	unlimitedLine = "no answer from the limiter, messages run without a limit"
)

// While the storage is away messages wait, or with FailOpen run without a limit, which the log says. Afterwards each has
// been handled once, and no token is out.
func TestStorageOutage(t *testing.T) {
	t.Parallel()
	broker := useBroker(t)
	for _, queues := range []QueueType{Quorum, Classic} {
		for _, failOpen := range []bool{false, true} {
			name := "messages wait"
			if failOpen {
				name = "messages run without a limit"
			}
			t.Run(fmt.Sprint(queues, "/", name), func(t *testing.T) {
				t.Parallel()
				storageOutage(t, connect(t, broker), queues, failOpen)
			})
		}
	}
}

func storageOutage(t *testing.T, b *broker, queues QueueType, failOpen bool) {
	redis := servers.OwnRedis(t, "--appendonly", "yes")
	client := goredis.NewClient(&goredis.Options{Addr: redis.Addr()})
	defer client.Close()
	s, err := storage.Open(t.Context(), redis.URL()+"?dial_timeout=300ms&read_timeout=300ms")
	b.must(err)
	defer s.(io.Closer).Close()
	limiter := &counted{Bucket: buckettest.New(t, drip.Options{Size: 10, RefreshRate: 20, Concurrency: 3, Lease: 2 * time.Second, Storage: s})}
	queue := b.typed(queues)
	var l ledger
	var log lines
	var runs atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := begin(ctx, made(t, Options{
		URL: b.url, Queue: queue, QueueType: queues, Limiter: limiter, FailOpen: failOpen, Logger: slog.New(&log),
		Entity: byType,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if run := runs.Add(1); !failOpen && run > limiter.granted.Load() {
				t.Error("a message runs that the limiter has not let run")
			}
			return l.Handle(ctx, d)
		}),
	}))

	const shops, batch = 5, 50
	out := 0
	publish := func() {
		b.publish(queue, ofShops(shops, out, out+batch)...)
		out += batch
	}
	for _, o := range outages {
		before := l.count()
		publish()
		eventually(t, "messages flow, and some are postponed", func() bool { return l.count() > before })
		failed, began := limiter.failed.Load(), time.Now()
		b.must(o.begin(redis, client))
		published := out
		publish() // none of these can have been admitted
		if failOpen {
			eventually(t, o.name+": all are handled meanwhile", func() bool { return l.among(published, out) == batch })
			if log.count(unlimitedLine) == 0 {
				t.Errorf("%s: nothing was logged of what runs without a limit", o.name)
			}
		} else {
			eventually(t, o.name+": it was asked again and again", func() bool { return limiter.failed.Load()-failed > 3*batch })
			// Of each message that waits the tries are twice as far from each other each time, 100 ms at least.
			tries, lasted := float64(limiter.failed.Load()-failed), time.Since(began)
			if most := float64(out-before) * (1 + math.Log2(1+lasted.Seconds()*10)); tries > most {
				t.Errorf("%s: it was asked %v times in %v, want at most %v", o.name, tries, lasted, most)
			}
			if n := l.among(published, out); n != 0 {
				t.Errorf("%s: %d messages ran meanwhile", o.name, n)
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("%s: Run = %v", o.name, err)
		default:
		}
		b.must(o.end(redis, client))
		eventually(t, "after "+o.name+" all are handled", func() bool { return l.count() == out })
	}
	cancel()
	b.must(<-ended)
	if n := b.ready(queue) + b.count(queue+".drip.dead"); n != 0 {
		t.Errorf("%d messages are left", n)
	}
	if l.twice() != 0 {
		t.Errorf("%d messages were handled twice", l.twice())
	}
	for i := range shops {
		eventually(t, "no token is out", func() bool {
			status, err := limiter.Inspect(t.Context(), fmt.Sprint("shop", i))
			b.must(err)
			return status.InUse == 0
		})
	}
	// An outage is logged for each of its few causes, such as a timeout and then a refused connection, not for every message and try.
	if n := log.count(waitLine) + log.count(unlimitedLine); n < 1 || n > 5*len(outages) {
		t.Errorf("%d outages were logged %d times", len(outages), n)
	}
	without := runs.Load() - limiter.granted.Load()
	if (without > 0) != failOpen {
		t.Errorf("%d messages ran without a limit", without)
	}
	t.Logf("of %d messages none was lost, %d were handled twice, %d without a limit; the limiter failed %d times",
		out, l.twice(), without, limiter.failed.Load())
}

// typed declares a durable work queue of a type.
func (b *broker) typed(t QueueType) string {
	b.t.Helper()
	name := b.queue()
	if t != Classic {
		b.replace(name, amqp.Table{amqp.QueueTypeArg: string(t)})
	}
	return name
}

// declare declares a work queue, which may be there already.
func (b *broker) declare(name string, t QueueType) {
	b.t.Helper()
	var args amqp.Table // none at all, as for one that was there before us, means a classic one
	if t != Classic {
		args = amqp.Table{amqp.QueueTypeArg: string(t)}
	}
	_, err := b.ch.QueueDeclare(name, true, false, false, false, args)
	b.must(err)
}

// among is how many of those messages were handled.
func (l *ledger) among(from, to int) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := from; i < to; i++ {
		if l.handled[fmt.Sprint(i)] > 0 {
			n++
		}
	}
	return n
}

// A limiter that fails for one entity alone, as where one node of a Redis Cluster is down, stops no other.
func TestFailingEntityStarvesNobody(t *testing.T) {
	bothTypes(t, func(t *testing.T, b *broker, queues QueueType, queue string) {
		var away atomic.Bool
		away.Store(true)
		limiter := &free{Delays: func(entity string) (time.Duration, error) {
			if entity == "failing" && away.Load() {
				return 0, errors.New("no answer")
			}
			return 0, nil
		}}
		const n = 50
		b.publish(queue, append(ofType("failing", 0, n), ofType("fine", n, 2*n)...)...)
		var l ledger
		running(t, Options{
			URL: b.url, Queue: queue, QueueType: queues, Prefetch: 10, Hold: 8, Limiter: limiter, Handler: &l,
			Entity: byType,
		})
		eventually(t, "the others are handled", func() bool { return l.among(n, 2*n) == n })
		if l.among(0, n) > 0 {
			t.Errorf("%d messages ran without an answer", l.among(0, n))
		}
		away.Store(false)
		eventually(t, "all are handled", func() bool { return l.count() == 2*n })
		if l.twice() > 0 {
			t.Errorf("%d messages were handled twice", l.twice())
		}
	})
}
