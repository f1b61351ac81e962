package dripriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
	"github.com/drip-go/drip/workertest"
)

// River looks every 30 seconds for jobs of dead processes.
var adapter = workertest.Adapter{Open: open, Late: time.Second, Again: 50 * time.Second}

func TestMain(m *testing.M) {
	workertest.Child(adapter)
	os.Exit(servers.Main(m))
}

func TestAdapter(t *testing.T) {
	workertest.Run(t, adapter, usePostgres(t))
}

func BenchmarkAdapter(b *testing.B) {
	workertest.Benchmark(b, adapter, usePostgres(b))
}

// usePostgres makes River's tables in a server.
func usePostgres(t testing.TB) (url string) {
	t.Helper()
	url = servers.UsePostgres(t).URL()
	p, err := pool(url)
	ok(t, err)
	migrator, err := rivermigrate.New(riverpgxv5.New(p), nil)
	if err == nil {
		_, err = migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	}
	ok(t, err)
	return url
}

type job struct {
	workertest.Message
}

func (job) Kind() string { return "job" }

type queue struct {
	pool *pgxpool.Pool
	name string
}

var pools sync.Map // by URL: a process has one

func pool(url string) (*pgxpool.Pool, error) {
	once, _ := pools.LoadOrStore(url, sync.OnceValues(func() (*pgxpool.Pool, error) { return pgxpool.New(context.Background(), url) }))
	return once.(func() (*pgxpool.Pool, error))()
}

func open(_ context.Context, url, name string) (workertest.Queue, error) {
	p, err := pool(url)
	return &queue{p, name}, err
}

func (q *queue) Publish(ctx context.Context, messages ...workertest.Message) error {
	client, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{})
	if err != nil {
		return err
	}
	jobs := make([]river.InsertManyParams, len(messages))
	for i, m := range messages {
		jobs[i] = river.InsertManyParams{Args: job{m}, InsertOpts: &river.InsertOpts{Queue: q.name, MaxAttempts: 5}}
	}
	_, err = client.InsertMany(ctx, jobs)
	return err
}

func (q *queue) Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, workertest.Message) error) error {
	limit, err := New(Options{Limiter: l, Entity: entityOf})
	if err != nil {
		return err
	}
	return q.run(ctx, []rivertype.Middleware{limit}, handle)
}

func (q *queue) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	return q.run(ctx, nil, handle)
}

func (q *queue) run(ctx context.Context, middleware []rivertype.Middleware, handle func(context.Context, workertest.Message) error) error {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, j *river.Job[job]) error { return handle(ctx, j.Args.Message) }))
	client, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{
		Queues: map[string]river.QueueConfig{q.name: {MaxWorkers: 100}}, Workers: workers, Middleware: middleware,
		FetchCooldown: 50 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		JobTimeout: 12 * time.Second, RescueStuckJobsAfter: 15 * time.Second, RetryPolicy: soon{},
	})
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(context.WithoutCancel(ctx))
}

type soon struct{}

func (soon) NextRetry(*rivertype.JobRow) time.Time { return time.Now().Add(300 * time.Millisecond) }

func (q *queue) Left(ctx context.Context) (n int, err error) {
	err = q.pool.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE queue = $1 AND finalized_at IS NULL", q.name).Scan(&n)
	return n, err
}

// holding returns a new queue of a test, with a job of the shop for each ID.
func holding(t *testing.T, name string, ids ...string) *queue {
	t.Helper()
	p, err := pool(usePostgres(t))
	ok(t, err)
	q := &queue{p, fmt.Sprint(name, time.Now().UnixNano())}
	for _, id := range ids {
		ok(t, q.Publish(t.Context(), workertest.Message{ID: id, Entity: "shop"}))
	}
	return q
}

var ok = oktest.OK // ends the test if there is an error

// limiting makes a Limit of the jobs' entities.
func limiting(t *testing.T, o Options) *Limit {
	t.Helper()
	o.Limiter = buckettest.New(t, drip.Options{})
	if o.Entity == nil {
		o.Entity = entityOf
	}
	limit, err := New(o)
	ok(t, err)
	return limit
}

func entityOf(j *rivertype.JobRow) (string, error) { return Arg(j, "Entity") }

// begin is run beside the test.
func (q *queue) begin(t *testing.T, atMost time.Duration, l *Limit, handle func(context.Context, workertest.Message) error) (ctx context.Context, end func()) {
	return oktest.Begin(t, atMost, func(ctx context.Context) error { return q.run(ctx, []rivertype.Middleware{l}, handle) })
}

// runs has a number for each run of each job.
type runs struct {
	mu sync.Mutex
	of map[string][]int
}

// add adds the number of a run, and returns how many runs the job has had.
func (r *runs) add(id string, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[string][]int{}
	}
	r.of[id] = append(r.of[id], n)
	return len(r.of[id])
}

func (r *runs) are(t *testing.T, want map[string][]int) {
	t.Helper()
	if !maps.EqualFunc(r.of, want, slices.Equal[[]int]) {
		t.Errorf("the jobs ran after %v, want %v", r.of, want)
	}
}

// over waits until all jobs are over, or ctx ends.
func (q *queue) over(ctx context.Context, t *testing.T) {
	t.Helper()
	for n := -1; n != 0 && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		var err error
		n, err = q.Left(t.Context())
		ok(t, err)
	}
}

// PostgreSQL stores no NUL in a text, and a job whose error it does not store runs again and again.
func TestGarbledError(t *testing.T) {
	q := holding(t, "garbled")
	garbled := errors.New("\xff of \x00 no use")
	outcomes := map[string]func(attempt int) error{
		"failed":    func(int) error { return garbled },
		"permanent": func(int) error { return worker.Permanent(garbled) },
		"panic":     func(int) error { panic(garbled) },
		"entity":    nil,
		"throttled": func(n int) error {
			if n == 1 {
				return worker.Throttled(time.Millisecond, garbled)
			}
			return nil
		},
	}
	for id := range outcomes {
		ok(t, q.Publish(t.Context(), workertest.Message{ID: id, Entity: id}))
	}
	limit := limiting(t, Options{Entity: func(j *rivertype.JobRow) (string, error) {
		entity, err := Arg(j, "Entity")
		if entity == "entity" {
			err = garbled
		}
		return entity + "\xff\x00", err
	}})
	var ran runs
	ctx, end := q.begin(t, 10*time.Second, limit, func(_ context.Context, m workertest.Message) error {
		return outcomes[m.ID](ran.add(m.ID, 0))
	})
	q.over(ctx, t)
	if n, err := q.Left(t.Context()); n != 0 || err != nil {
		t.Errorf("%d jobs are left (%v)", n, err)
	}
	end()
	ran.are(t, map[string][]int{"failed": make([]int, 5), "permanent": {0}, "panic": make([]int, 5), "throttled": {0, 0}})
}

// River's own errors snooze and cancel a job, which is no failure. A job that was cancelled begins anew when somebody retries it.
func TestRiversErrors(t *testing.T) {
	q := holding(t, "own", "cancelled", "snoozed")
	var failures runs
	ctx, end := q.begin(t, 30*time.Second, limiting(t, Options{}), func(ctx context.Context, m workertest.Message) error {
		switch n := failures.add(m.ID, worker.OperationOf(ctx).Attempts); {
		case m.ID == "cancelled":
			return river.JobCancel(errors.New("no"))
		case n < 4:
			return river.JobSnooze(10 * time.Millisecond)
		}
		return nil
	})
	q.over(ctx, t)
	end()
	failures.are(t, map[string][]int{"cancelled": {0}, "snoozed": {0, 0, 0, 0}})
	_, jobs := q.jobs(t)
	for _, j := range jobs {
		var metadata map[string]any
		if err := json.Unmarshal(j.Metadata, &metadata); err != nil || metadata[noteKey] != nil && metadata[noteKey] != "" {
			t.Errorf("a job that is %s keeps its note: %s", j.State, j.Metadata)
		}
	}
	if len(jobs) != 2 {
		t.Errorf("%d jobs, want 2", len(jobs))
	}
}

// A job that is over begins anew when somebody retries it: by its old note it would be given up, as too old or for too many
// postponements.
func TestRetriedByHand(t *testing.T) {
	q := holding(t, "retried", "cancelled", "completed", "discarded")
	var postponements runs
	ctx, end := q.begin(t, 30*time.Second, limiting(t, Options{MaxPostponements: 1, MaxAge: 6 * time.Second}), func(ctx context.Context, m workertest.Message) error {
		n := worker.OperationOf(ctx).Postponements
		postponements.add(m.ID, n)
		switch {
		case n == 0 || m.ID == "cancelled":
			return worker.Later(time.Millisecond, nil)
		case m.ID == "discarded":
			return errors.New("no such luck")
		}
		return nil
	})
	began := time.Now()
	q.over(ctx, t)
	if took := time.Since(began); took > 5*time.Second {
		t.Skipf("the machine is busy: the jobs took %v", took)
	}
	time.Sleep(time.Until(began.Add(7 * time.Second))) // all of them are too old
	client, jobs := q.jobs(t)
	for _, j := range jobs {
		_, err := client.JobRetry(t.Context(), j.ID)
		ok(t, err)
	}
	q.over(ctx, t)
	end()
	// One attempt is left to a discarded job.
	postponements.are(t, map[string][]int{"cancelled": {0, 1, 0, 1}, "completed": {0, 1, 0, 1}, "discarded": {0, 1, 1, 1, 1, 1, 0, 1}})
}

// A job that somebody cancels, while it waits or while it runs, begins anew when somebody retries it. It does not wait for its old slot:
// River cancels it again if it is snoozed.
func TestCancelledByHand(t *testing.T) {
	q := holding(t, "byhand", "waits", "runs")
	var postponements runs
	began := make(chan bool, 1) // the last run before the change
	ctx, end := q.begin(t, 30*time.Second, limiting(t, Options{}), func(ctx context.Context, m workertest.Message) error {
		switch n := postponements.add(m.ID, worker.OperationOf(ctx).Postponements); {
		case m.ID == "waits" && n == 1:
			return worker.Later(time.Hour, nil)
		case m.ID == "runs" && n == 1:
			return worker.Later(time.Millisecond, nil)
		case m.ID == "runs" && n == 2:
			began <- true
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	select {
	case <-began:
	case <-ctx.Done():
	}
	for ready := false; !ready && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		_, jobs := q.jobs(t)
		ready = slices.ContainsFunc(jobs, func(j *rivertype.JobRow) bool { return j.State == rivertype.JobStateScheduled })
	}
	client, jobs := q.jobs(t)
	for _, change := range []func(context.Context, int64) (*rivertype.JobRow, error){client.JobCancel, client.JobRetry} {
		for _, j := range jobs {
			_, err := change(t.Context(), j.ID)
			ok(t, err)
		}
		q.over(ctx, t)
	}
	end()
	postponements.are(t, map[string][]int{"waits": {0, 0}, "runs": {0, 1, 0}})
}

// River makes an array of metadata that is no object, such as those of a nil map. The note is in it.
func TestMetadataOfANilMap(t *testing.T) {
	q := holding(t, "nilmap")
	client, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{})
	ok(t, err)
	_, err = client.Insert(t.Context(), job{workertest.Message{ID: "1", Entity: "shop"}}, &river.InsertOpts{Queue: q.name, MaxAttempts: 5, Metadata: []byte("null")})
	ok(t, err)
	var before runs
	ctx, end := q.begin(t, 30*time.Second, limiting(t, Options{}), func(ctx context.Context, m workertest.Message) error {
		switch op := worker.OperationOf(ctx); before.add(m.ID, 10*op.Attempts+op.Postponements) {
		case 1:
			return worker.Later(time.Millisecond, nil)
		case 2:
			return errors.New("failure")
		case 3:
			return worker.Later(time.Millisecond, nil)
		}
		return nil
	})
	q.over(ctx, t)
	end()
	before.are(t, map[string][]int{"1": {0, 1, 11, 12}})
}

// A job whose snooze would pass its deadline is cancelled at once.
func TestSnoozePastTheDeadline(t *testing.T) {
	q := holding(t, "snoozedpast", "1")
	limit := limiting(t, Options{Request: func(j *rivertype.JobRow) drip.Request { return drip.Request{Deadline: j.CreatedAt.Add(time.Minute)} }})
	ctx, end := q.begin(t, 10*time.Second, limit, func(context.Context, workertest.Message) error { return river.JobSnooze(time.Hour) })
	q.over(ctx, t)
	end()
	_, jobs := q.jobs(t)
	for _, j := range jobs {
		if j.State != rivertype.JobStateCancelled {
			t.Errorf("the job is %s, for %v: %s", j.State, time.Until(j.ScheduledAt).Round(time.Second), j.Metadata)
		}
	}
}

// A job that River interrupts when its client stops has not failed, and keeps its note also at its last attempt.
func TestInterruptedJob(t *testing.T) {
	p, err := pool(usePostgres(t))
	ok(t, err)
	limit := limiting(t, Options{})
	for name, attempts := range map[string]int{"last": 1, "first": 5} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			began := make(chan [2]int, 3) // failures and postponements before
			again := false
			workers := river.NewWorkers()
			river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[job]) error {
				op := worker.OperationOf(ctx)
				began <- [2]int{op.Attempts, op.Postponements}
				switch {
				case again:
					return nil
				case op.Postponements == 0:
					return worker.Later(time.Millisecond, nil)
				}
				<-ctx.Done()
				return ctx.Err()
			}))
			var got [][2]int
			for _, runs := range []int{2, 3} {
				client, err := river.NewClient(riverpgxv5.New(p), &river.Config{
					Queues: map[string]river.QueueConfig{"interrupted" + name: {MaxWorkers: 1}}, Workers: workers, Middleware: []rivertype.Middleware{limit},
					FetchCooldown: 50 * time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
				})
				if err == nil && !again {
					_, err = client.Insert(ctx, job{workertest.Message{Entity: "shop"}}, &river.InsertOpts{Queue: "interrupted" + name, MaxAttempts: attempts})
				}
				if err == nil {
					err = client.Start(ctx)
				}
				for err == nil && len(got) < runs {
					select {
					case ran := <-began:
						got = append(got, ran)
					case <-ctx.Done():
						err = ctx.Err()
					}
				}
				if err == nil {
					err = client.StopAndCancel(ctx)
				}
				ok(t, err)
				again = true
			}
			if want := [][2]int{{0, 0}, {0, 1}, {0, 1}}; !slices.Equal(got, want) {
				t.Errorf("the job ran after %v failures and postponements, want %v", got, want)
			}
		})
	}
}

// jobs returns the jobs of a queue, and a client for them.
func (q *queue) jobs(t *testing.T) (*river.Client[pgx.Tx], []*rivertype.JobRow) {
	t.Helper()
	client, err := river.NewClient(riverpgxv5.New(q.pool), &river.Config{})
	ok(t, err)
	jobs, err := client.JobList(t.Context(), river.NewJobListParams().Queues(q.name))
	ok(t, err)
	return client, jobs.Jobs
}
