package workertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
)

// Bare is a Queue that can also handle its messages without the adapter, for Benchmark.
type Bare interface {
	Queue

	// ConsumeBare is Consume with the queue's client and without the adapter.
	ConsumeBare(ctx context.Context, handle func(context.Context, Message) error) error
}

const (
	benchMessages, benchShops = 2000, 30
	benchRate                 = 2 // a second, and at once
)

// Benchmark measures an adapter, whose queues must be Bare. Run it with -benchtime 1x. Limited takes 2,000 messages of
// 30 shops through two processes that share their limits in Redis, 2 a second for each shop: 33 seconds if the limit is
// used to the full. Free has a limit that is never reached, Bare has no limit.
func Benchmark(b *testing.B, a Adapter, url string) {
	b.Run("Limited", func(b *testing.B) {
		for b.Loop() {
			limited(b, a, url)
		}
	})
	handles := map[string]func(context.Context, Queue, func(context.Context, Message) error) error{
		"Free": func(ctx context.Context, q Queue, handle func(context.Context, Message) error) error {
			return q.Consume(ctx, buckettest.New(b, drip.Options{Size: 1 << 30, RefreshRate: 1 << 30}), handle)
		},
		"Bare": func(ctx context.Context, q Queue, handle func(context.Context, Message) error) error {
			return q.(Bare).ConsumeBare(ctx, handle)
		},
	}
	for _, name := range []string{"Free", "Bare"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				q := published(b, a, url, queueName())
				ctx, cancel := context.WithCancel(b.Context())
				var ran, began atomic.Int64 // with the first message: a consumer may take its time to begin
				all := make(chan struct{})
				ended := make(chan error, 1)
				go func() {
					ended <- handles[name](ctx, q, func(context.Context, Message) error {
						switch ran.Add(1) {
						case 1:
							began.Store(time.Now().UnixNano())
						case benchMessages:
							close(all)
						}
						return nil
					})
				}()
				<-all
				b.ReportMetric((benchMessages-1)/time.Since(time.Unix(0, began.Load())).Seconds(), "messages/s")
				cancel()
				if err := <-ended; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// published makes a queue with all messages.
func published(b *testing.B, a Adapter, url, name string) Queue {
	b.Helper()
	q, err := a.Open(b.Context(), url, name)
	if err != nil {
		b.Fatal(err)
	}
	if err := q.Publish(b.Context(), messages(benchMessages, name+"-", benchShops)...); err != nil {
		b.Fatal(err)
	}
	return q
}

// told is a bucket that writes a line for each ticket that comes back and for each message that runs: see tally.
type told struct {
	*drip.Bucket
	mu  sync.Mutex
	out io.Writer
}

func (l *told) line(a ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintln(l.out, a...)
}

func (l *told) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	a, err := l.Bucket.Admit(ctx, entity, r)
	if !r.Ticket.IsZero() {
		l.line("back", time.Since(r.Ticket.Slot()).Microseconds())
	}
	return a, err
}

func (l *told) handle(ctx context.Context, m Message) error {
	postponements := 0
	if op := worker.OperationOf(ctx); op != nil {
		postponements = op.Postponements
	}
	l.line("ran", m.ID, m.Entity, time.Now().UnixMilli(), postponements)
	return nil
}

// consumer consumes until standard input ends, with the limiter and the handler that does makes.
func consumer(a Adapter, j job, does func(job, *drip.Bucket) (worker.Limiter, func(context.Context, Message) error)) error {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	bucket, closeBucket, err := shared(ctx, j.Storage, j.Rate)
	if err != nil {
		return err
	}
	defer closeBucket()
	q, err := a.Open(ctx, j.URL, j.Queue)
	for end := time.Now().Add(time.Minute); err != nil && ctx.Err() == nil && time.Now().Before(end); q, err = a.Open(ctx, j.URL, j.Queue) {
		time.Sleep(100 * time.Millisecond) // a server that was killed is about to come back
	}
	if ctx.Err() != nil {
		return nil // it was stopped before it began
	}
	if err != nil {
		return err
	}
	l, handle := does(j, bucket)
	if err := q.Consume(ctx, l, handle); ctx.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// teller makes the limiter and the handler of the second process of Benchmark.
func teller(_ job, b *drip.Bucket) (worker.Limiter, func(context.Context, Message) error) {
	l := &told{Bucket: b, out: os.Stdout}
	return l, l.handle
}

// limited takes all messages through two processes.
func limited(b *testing.B, a Adapter, url string) {
	storage, name := servers.UseRedis(b).URL(), queueName()
	bucket, closeBucket, err := shared(b.Context(), storage, benchRate)
	if err != nil {
		b.Fatal(err)
	}
	defer closeBucket()
	q := published(b, a, url, name)

	other := job{Adapter: a.Name, URL: url, Queue: name, Storage: storage, Step: nowhere, Rate: benchRate}.command(b.Context())
	other.Stderr = os.Stderr
	stop, err := other.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	reader, writer := io.Pipe()
	other.Stdout = writer
	if err := other.Start(); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.Context())
	l := &told{Bucket: bucket, out: writer}
	ended := make(chan error, 1)
	go func() { ended <- q.Consume(ctx, l, l.handle) }()

	t := tally{ran: map[string]int{}, at: map[string][]int64{}}
	over := time.AfterFunc(10*time.Minute, func() { writer.CloseWithError(fmt.Errorf("only %d messages ran", len(t.ran))) })
	defer over.Stop()
	lines := bufio.NewScanner(reader)
	for len(t.ran) < benchMessages && lines.Scan() {
		t.read(lines.Text())
	}
	go io.Copy(io.Discard, reader)
	cancel()
	stop.Close()
	if err := <-ended; err != nil {
		b.Error(err)
	}
	if err := other.Wait(); err != nil {
		b.Error(err)
	}
	if lines.Err() != nil {
		b.Fatal(lines.Err())
	}
	t.report(b)
}

// tally counts the lines of both processes.
type tally struct {
	ran     map[string]int
	at      map[string][]int64 // by entity, ms
	late    []int64            // µs
	carried int                // postponements
}

func (t *tally) read(line string) {
	var id, entity string
	var at, late int64
	var postponements int
	if n, _ := fmt.Sscanf(line, "ran %s %s %d %d", &id, &entity, &at, &postponements); n == 4 {
		t.ran[id]++
		t.at[entity] = append(t.at[entity], at)
		t.carried += postponements
	}
	if n, _ := fmt.Sscanf(line, "back %d", &late); n == 1 {
		t.late = append(t.late, late)
	}
}

func (t *tally) report(b *testing.B) {
	doubled, refused, used, could := 0, 0, 0, 0
	for _, n := range t.ran {
		doubled += n - 1
	}
	for _, times := range t.at {
		slices.Sort(times)
		first, last := times[0]/1000, times[len(times)-1]/1000
		used += len(times)
		could += benchRate + benchRate*int(last-first)
		refused += over(times, benchRate, benchRate, time.Second)
	}
	b.ReportMetric(float64(t.carried)/benchMessages, "postponements/message")
	if n := len(t.late); n > 0 {
		slices.Sort(t.late)
		b.ReportMetric(float64(t.late[n/2])/1000, "p50-late-ms")
		b.ReportMetric(float64(t.late[n*99/100])/1000, "p99-late-ms")
	}
	b.ReportMetric(float64(used)/float64(could)*100, "%used")
	b.ReportMetric(float64(refused), "refused")
	b.ReportMetric(float64(doubled), "doubled")
	b.ReportMetric(0, "ns/op")
}
