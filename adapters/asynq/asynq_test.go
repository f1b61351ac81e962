package dripasynq

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/stalls"
	"github.com/drip-go/drip/worker"
	"github.com/drip-go/drip/workertest"
)

// asynq looks each minute for tasks whose process died a minute ago.
var adapter = workertest.Adapter{Open: open, Late: 1500 * time.Millisecond, Again: 130 * time.Second}

func TestMain(m *testing.M) {
	workertest.Child(adapter)
	os.Exit(servers.Main(m))
}

// With headers a task is put off as itself, without as a copy.
func TestAdapter(t *testing.T) {
	workertest.Run(t, adapter, servers.UseRedis(t).URL())
}

func BenchmarkAdapter(b *testing.B) {
	workertest.Benchmark(b, adapter, servers.UseRedis(b).URL())
}

func TestTasksWithoutHeaders(t *testing.T) {
	a := adapter
	a.Open = func(_ context.Context, url, name string) (workertest.Queue, error) {
		return openWith(url, name, nil, 5)
	}
	workertest.Run(t, a, servers.UseRedis(t).URL())
}

// A task that has one attempt is not archived when it is put off.
func TestLastAttempt(t *testing.T) {
	q := opened(t, Headers, 0)
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1})
	const n = 4
	ok(t, q.Publish(t.Context(), slices.Repeat([]workertest.Message{{Entity: "shop"}}, n)...))
	ran := make(chan struct{}, 2*n)
	_, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return q.Consume(ctx, bucket, func(context.Context, workertest.Message) error { ran <- struct{}{}; return nil })
	})
	for range n {
		<-ran
	}
	end()
	i := asynq.NewInspector(q.redis)
	defer i.Close()
	if info, err := i.GetQueueInfo(q.name); err != nil || info.Archived != 0 || info.Size != 0 {
		t.Errorf("of %d tasks %d are archived, %d are left (%v)", n, info.Archived, info.Size, err)
	}
}

type queue struct {
	redis   asynq.RedisConnOpt
	name    string
	headers func() map[string]string
	retries int
}

func open(_ context.Context, url, name string) (workertest.Queue, error) {
	return openWith(url, name, Headers, 5)
}

func openWith(url, name string, headers func() map[string]string, retries int) (*queue, error) {
	redis, err := asynq.ParseRedisURI(url)
	return &queue{redis, name, headers, retries}, err
}

// opened opens a queue of its own for a test.
func opened(t *testing.T, headers func() map[string]string, retries int) *queue {
	t.Helper()
	q, err := openWith(servers.UseRedis(t).URL(), strings.ReplaceAll(t.Name(), "/", "-")+fmt.Sprint(time.Now().UnixNano()), headers, retries)
	ok(t, err)
	return q
}

// limiting makes a Limit whose tasks are all of one shop, until the test ends.
func limiting(t *testing.T, redis asynq.RedisConnOpt, o Options) *Limit {
	t.Helper()
	if o.Limiter == nil {
		o.Limiter = buckettest.New(t, drip.Options{})
	}
	o.Entity = func(*asynq.Task) (string, error) { return "shop", nil }
	limit, err := New(redis, o)
	ok(t, err)
	t.Cleanup(func() { ok(t, limit.Close()) })
	return limit
}

// enqueue enqueues a task with these options in the queue.
func (q *queue) enqueue(t *testing.T, task *asynq.Task, o ...asynq.Option) {
	t.Helper()
	client := asynq.NewClient(q.redis)
	defer client.Close()
	_, err := client.Enqueue(task, append(o, asynq.Queue(q.name))...)
	ok(t, err)
}

var ok = oktest.OK // ends the test if there is an error

func (q *queue) Publish(ctx context.Context, messages ...workertest.Message) error {
	client := asynq.NewClient(q.redis)
	defer client.Close()
	for _, m := range messages {
		payload, err := json.Marshal(m)
		if err != nil {
			return err
		}
		task := asynq.NewTask("job", payload)
		if q.headers != nil {
			task = asynq.NewTaskWithHeaders("job", payload, q.headers())
		}
		if _, err := client.EnqueueContext(ctx, task, asynq.Queue(q.name), asynq.MaxRetry(q.retries)); err != nil {
			return err
		}
	}
	return nil
}

func message(t *asynq.Task) (m workertest.Message, err error) {
	err = json.Unmarshal(t.Payload(), &m)
	return m, err
}

func (q *queue) Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, workertest.Message) error) error {
	limit, err := New(q.redis, Options{Limiter: l, Entity: func(t *asynq.Task) (string, error) {
		m, err := message(t)
		return m.Entity, err
	}})
	if err != nil {
		return err
	}
	defer limit.Close()
	return q.run(ctx, limit.Configure, limit.Middleware, handle)
}

func (q *queue) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	return q.run(ctx, func(c asynq.Config) asynq.Config { return c }, func(h asynq.Handler) asynq.Handler { return h }, handle)
}

func (q *queue) run(ctx context.Context, configure func(asynq.Config) asynq.Config, middleware asynq.MiddlewareFunc, handle func(context.Context, workertest.Message) error) error {
	server := asynq.NewServer(q.redis, configure(asynq.Config{
		Concurrency: 30, Queues: map[string]int{q.name: 1}, LogLevel: asynq.FatalLevel, ShutdownTimeout: 20 * time.Second,
		TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 300 * time.Millisecond },
	}))
	mux := asynq.NewServeMux()
	mux.Use(middleware)
	mux.HandleFunc("job", func(ctx context.Context, t *asynq.Task) error {
		m, err := message(t)
		if err != nil {
			return err
		}
		return handle(ctx, m)
	})
	if err := server.Start(mux); err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

func (q *queue) Left(context.Context) (int, error) {
	i := asynq.NewInspector(q.redis)
	defer i.Close()
	info, err := i.GetQueueInfo(q.name)
	if err != nil {
		return 0, err
	}
	return info.Pending + info.Active + info.Scheduled + info.Retry, nil
}

type noting struct {
	*drip.Bucket
	tickets []drip.Ticket
}

func (n *noting) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	n.tickets = append(n.tickets, r.Ticket)
	return n.Bucket.Admit(ctx, entity, r)
}

// A task that failed comes back as one that has failed, with a ticket that keeps its place, and not with the one that it has used.
func TestFailedTaskKeepsItsPlace(t *testing.T) {
	q := opened(t, Headers, 5)
	limiter := &noting{Bucket: buckettest.New(t, drip.Options{})}
	ok(t, limiter.Pause(t.Context(), "shop", 3*time.Second))
	ok(t, q.Publish(t.Context(), workertest.Message{Entity: "shop"}))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var attempts []int
	err := q.Consume(ctx, limiter, func(ctx context.Context, _ workertest.Message) error {
		if attempts = append(attempts, worker.OperationOf(ctx).Attempts); len(attempts) < 3 {
			return errors.New("no such luck")
		}
		cancel()
		return nil
	})
	if err != nil || !slices.Equal(attempts, []int{0, 1, 2}) {
		t.Errorf("the attempts before were %v, %v", attempts, err)
	}
	seen := map[drip.Ticket]bool{{}: true}
	for _, ticket := range limiter.tickets[1:] {
		if seen[ticket] {
			t.Errorf("the task came with the tickets %v", limiter.tickets)
			break
		}
		seen[ticket] = true
	}
}

// A task that is archived begins anew when somebody runs it: by its old note it would be given up, as too old or for too many
// postponements.
func TestArchivedTaskRunAnew(t *testing.T) {
	for name, last := range map[string]error{
		"permanent": worker.Permanent(nil), "last": errors.New("no such luck"), "skip": asynq.SkipRetry, "timeout": context.DeadlineExceeded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := opened(t, Headers, 0)
			if name == "permanent" || name == "skip" {
				q.retries = 1
			}
			task := asynq.NewTaskWithHeaders("job", []byte("{}"), Headers())
			q.enqueue(t, task, asynq.MaxRetry(q.retries), asynq.Timeout(3*time.Second))
			limit := limiting(t, q.redis, Options{MaxPostponements: 1})
			ran := make(chan int, 10)
			ctx, end := oktest.Begin(t, 30*time.Second, func(ctx context.Context) error {
				return q.run(ctx, limit.Configure, limit.Middleware, func(ctx context.Context, _ workertest.Message) error {
					n := worker.OperationOf(ctx).Postponements
					ran <- n
					if n == 0 {
						return worker.Later(time.Millisecond, nil)
					}
					if name == "timeout" {
						<-ctx.Done()
					}
					return last
				})
			})
			inspector := asynq.NewInspector(q.redis)
			defer inspector.Close()
			var postponements []int
			for times := 0; times < 2 && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				info, err := inspector.GetQueueInfo(q.name)
				ok(t, err)
				if info.Archived == 0 {
					continue
				}
				if times++; times < 2 {
					if _, err := inspector.RunAllArchivedTasks(q.name); err != nil {
						t.Fatal(err)
					}
				}
			}
			end()
			for close(ran); len(ran) > 0; {
				postponements = append(postponements, <-ran)
			}
			if !slices.Equal(postponements, []int{0, 1, 0, 1}) {
				t.Errorf("the task ran after %v postponements", postponements)
			}
		})
	}
}

// A task that asynq has made of a group is postponed as any other.
func TestAggregatedTasks(t *testing.T) {
	q := opened(t, nil, 5)
	for i := range 4 {
		q.enqueue(t, asynq.NewTask("job", nil), asynq.Group(fmt.Sprint(i%2)))
	}
	limit := limiting(t, q.redis, Options{Limiter: buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1})})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	configure := func(c asynq.Config) asynq.Config {
		c.GroupGracePeriod = time.Second
		c.GroupAggregator = asynq.GroupAggregatorFunc(func(group string, tasks []*asynq.Task) *asynq.Task {
			return asynq.NewTask("job", fmt.Appendf(nil, `{"ID": "%s: %d"}`, group, len(tasks)))
		})
		return limit.Configure(c)
	}
	var ran []string
	postponements := 0
	err := q.run(ctx, configure, limit.Middleware, func(ctx context.Context, m workertest.Message) error {
		postponements += worker.OperationOf(ctx).Postponements
		if ran = append(ran, m.ID); len(ran) == 2 {
			cancel()
		}
		return nil
	})
	slices.Sort(ran)
	if err != nil || !slices.Equal(ran, []string{"0: 2", "1: 2"}) || postponements == 0 {
		t.Errorf("the groups ran as %q after %d postponements, %v", ran, postponements, err)
	}
}

// A postponement spends no retry in a server whose Config did not go through Configure, either.
func TestServerWithoutConfigure(t *testing.T) {
	q := opened(t, Headers, 5)
	ok(t, q.Publish(t.Context(), workertest.Message{Entity: "shop"}))
	limit := limiting(t, q.redis, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var left []int
	err := q.run(ctx, func(c asynq.Config) asynq.Config { return c }, limit.Middleware, func(ctx context.Context, _ workertest.Message) error {
		retried, _ := asynq.GetRetryCount(ctx)
		most, _ := asynq.GetMaxRetry(ctx)
		if left = append(left, most-retried); len(left) < 3 {
			return worker.Later(time.Millisecond, nil)
		}
		cancel()
		return nil
	})
	if err != nil || !slices.Equal(left, []int{5, 5, 5}) {
		t.Errorf("the task ran with %v retries left, %v", left, err)
	}
}

// After a task's timeout asynq retries it, whatever its handler returns then. The log does not say that it is given up.
func TestRefusalAfterTheTimeout(t *testing.T) {
	for name, err := range map[string]error{"later": worker.Later(time.Minute, nil), "throttled": worker.Throttled(time.Minute, nil)} {
		var log bytes.Buffer
		limit := limiting(t, asynq.RedisClientOpt{}, Options{MaxPostponements: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, end := context.WithCancel(t.Context())
		handler := limit.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { end(); return err }))
		got := handler.ProcessTask(ctx, asynq.NewTaskWithHeaders("sync", nil, map[string]string{header: "postponements=1"}))
		if !errors.Is(got, context.Canceled) || log.Len() > 0 {
			t.Errorf("%s: %v, and the log says %s", name, got, log.String())
		}
	}
}

// A postponement is no failure, also if Redis is not there when the task is to be put off: a task in its last attempt would never run.
func TestPostponedInAnOutage(t *testing.T) {
	q := opened(t, nil, 0)
	direct := q.redis.(asynq.RedisClientOpt)
	var down atomic.Bool
	var cut atomic.Int64
	through := direct
	down.Store(true)
	through.Addr = servers.Listen(t, func(client net.Conn) {
		if down.Load() {
			cut.Add(1)
			client.Close()
			return
		}
		servers.Pass(client, direct.Addr, io.Copy, io.Copy)
	})
	limit := limiting(t, through, Options{Limiter: buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1})})
	ok(t, q.Publish(t.Context(), workertest.Message{ID: "1"}, workertest.Message{ID: "2"}))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var ran, failures atomic.Int32
	configure := func(c asynq.Config) asynq.Config {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(context.Context, *asynq.Task, error) { failures.Add(1) })
		return limit.Configure(c)
	}
	go func() { // until the copy has failed
		for cut.Load() < 40 && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		down.Store(false)
	}()
	err := q.run(ctx, configure, limit.Middleware, func(context.Context, workertest.Message) error {
		if ran.Add(1) == 2 {
			cancel()
		}
		return nil
	})
	if err != nil || ran.Load() != 2 || failures.Load() != 0 {
		t.Errorf("%d of 2 tasks ran, %d failures (%v)", ran.Load(), failures.Load(), err)
	}
}

// A limiter that does not answer until a task's timeout costs the task no attempt, and a task that is done does not run again.
func TestLimiterThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		method  string
		call    int
		refused bool // the first run
		want    int  // runs
	}{
		"before":   {method: "Admit", call: 1, want: 1},
		"after":    {method: "Settle", call: 1, want: 1},
		"throttle": {method: "Throttled", call: 1, refused: true, want: 2},
		"book":     {method: "Admit", call: 2, refused: true, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := opened(t, Headers, 1)
			task := asynq.NewTaskWithHeaders("job", []byte(`{"Entity": "shop"}`), Headers())
			q.enqueue(t, task, asynq.MaxRetry(1), asynq.Timeout(3*time.Second))
			hang := func(ctx context.Context, method string, n int) error {
				if method == c.method && n == c.call {
					return buckettest.NoAnswer(ctx)
				}
				return nil
			}
			limiter := &buckettest.Hooked{Bucket: buckettest.New(t, drip.Options{Concurrency: 1, Lease: time.Second}), Before: hang}
			began, stalled := time.Now(), stalls.Watch(t.Context())
			var ran, retried atomic.Int64
			ctx, end := oktest.Begin(t, 30*time.Second, func(ctx context.Context) error {
				return q.Consume(ctx, limiter, func(ctx context.Context, _ workertest.Message) error {
					n, _ := asynq.GetRetryCount(ctx)
					retried.Add(int64(n))
					if ran.Add(1) == 1 && c.refused {
						return worker.Throttled(time.Second, nil)
					}
					return nil
				})
			})
			for left := 1; left > 0 && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
				var err error
				left, err = q.Left(ctx)
				ok(t, err)
			}
			late := stalled.Between(began, time.Now())
			end()
			if int(ran.Load()) != c.want || retried.Load() != 0 {
				if late > 50*time.Millisecond { // the worker answers an eighth of a second before the timeout
					t.Skipf("the machine stalled for %v", late)
				}
				t.Errorf("the task ran %d times, want %d, after %d failures", ran.Load(), c.want, retried.Load())
			}
		})
	}
}
