package workertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/redis" // for the limits that outlive a process
)

// steps are the steps in handling a message at which a process dies.
var steps = []string{
	"when it has come",
	"after Admit has postponed it",
	"after Admit lets it run",
	"in the handler",
	"after the handler, before the lease is settled",
	"after the lease is settled",
}

const (
	nowhere = iota - 1 // the process lives: see Benchmark
	came
	postponed
	admitted
	handling
	handled
	settled
)

// fateful is how many messages must come to a step before the process dies there: other messages are then at other steps.
const fateful = 3

// job configures a process of the suite.
type job struct {
	Adapter             string // its name
	URL, Queue, Storage string
	Step                int
	Rate                int    // the limit: so many a second, and at once
	Provider            string // URL that the handler calls for each message; see Kills
}

const variable = "DRIP_WORKERTEST"

// command is a process that does the job, not started yet.
func (j job) command(ctx context.Context) *exec.Cmd {
	text, err := json.Marshal(j)
	if err != nil {
		panic(err) // it is texts and numbers
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+string(text))
	return cmd
}

// Child must be the first call of the adapters' TestMain. In a process that Run has started it consumes until it dies,
// and does not return. In any other process it lets eight tests run at once, since they wait most of the time.
func Child(adapters ...Adapter) {
	text := os.Getenv(variable)
	if text == "" {
		if err := flag.Set("test.parallel", "8"); err != nil { // -parallel on the command line is read later, and counts
			panic(err)
		}
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.do(adapters)
	}
	if err == nil {
		os.Exit(0)
	}
	fmt.Println("failed", err)
	os.Exit(1)
}

func (j job) do(adapters []Adapter) error {
	i := slices.IndexFunc(adapters, func(a Adapter) bool { return a.Name == j.Adapter })
	switch {
	case i < 0:
		return fmt.Errorf("TestMain must call workertest.Child with the adapter %q", j.Adapter)
	case j.Provider != "":
		return consumer(adapters[i], j, caller)
	case j.Step == nowhere:
		return consumer(adapters[i], j, teller)
	}
	return victim(context.Background(), adapters[i], j)
}

func victim(ctx context.Context, a Adapter, j job) error {
	b, closeBucket, err := shared(ctx, j.Storage, j.Rate)
	if err != nil {
		return err
	}
	defer closeBucket()
	q, err := a.Open(ctx, j.URL, j.Queue)
	if err != nil {
		return err
	}
	m := &mortal{Bucket: b, at: j.Step}
	return q.Consume(ctx, m, func(_ context.Context, msg Message) error {
		fmt.Println("ran", msg.ID, msg.Entity, time.Now().UnixMilli())
		m.reached(handling)
		time.Sleep(20 * time.Millisecond)
		return nil
	})
}

const crashRate = 4

// shared makes a bucket whose state outlives the process.
func shared(ctx context.Context, url string, rate int) (*drip.Bucket, func(), error) {
	s, err := storage.Open(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	b, err := drip.New(drip.Options{Size: rate, RefreshRate: rate, Lease: 2 * time.Second, Storage: s})
	return b, func() {
		if c, ok := s.(interface{ Close() error }); ok {
			c.Close()
		}
	}, err
}

// dies is the line of a process that comes to its step. One that ends without it has made a mistake.
const dies = "dies at its step"

// mortal is a bucket in a process that dies when the n-th message comes to a step.
type mortal struct {
	*drip.Bucket
	at   int
	seen atomic.Int64
}

func (m *mortal) reached(step int) {
	if m.at == step && m.seen.Add(1) == fateful {
		fmt.Println(dies)
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			p.Kill()
		}
		select {}
	}
}

func (m *mortal) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	m.reached(came)
	a, err := m.Bucket.Admit(ctx, entity, r)
	if a.Delay > 0 {
		m.reached(postponed)
	} else {
		m.reached(admitted)
	}
	return a, err
}

func (m *mortal) Settle(ctx context.Context, entity string, l drip.Lease, cost int, costs ...drip.Costs) error {
	m.reached(handled)
	err := m.Bucket.Settle(ctx, entity, l, cost, costs...)
	m.reached(settled)
	return err
}

// The test kills a process at each step of handling a message. Another one takes over: every message runs, some twice, none
// over the limit, and no token stays out.
func testCrash(t *testing.T, s *suite) {
	url := servers.UseRedis(t).URL()
	for i, name := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			crash(t, newSuite(t, s.Adapter, s.url), i, url)
		})
	}
}

func crash(t *testing.T, s *suite, at int, url string) {
	const n, entities = 24, 2
	entity := s.name + "-" // all queues share the storage
	s.must(s.queue.Publish(t.Context(), messages(n, entity, entities)...))
	ctx, cancel := context.WithTimeout(t.Context(), s.patience())
	defer cancel()
	out, err := job{Adapter: s.Name, URL: s.url, Queue: s.name, Storage: url, Step: at, Rate: crashRate}.command(ctx).Output()
	switch {
	case ctx.Err() != nil:
		t.Fatalf("another process opens the queue at its URL and consumes the messages: in %v fewer than %d of %d came to the step %q; it printed %q",
			s.patience(), fateful, n, steps[at], out)
	case !strings.Contains(string(out), dies):
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("the process was to be killed: %v, %s", err, out)
	}
	for lines := bufio.NewScanner(strings.NewReader(string(out))); lines.Scan(); {
		var r run
		var ms int64
		if k, _ := fmt.Sscanf(lines.Text(), "ran %s %s %d", &r.ID, &r.Entity, &ms); k == 3 {
			r.at = time.UnixMilli(ms)
			s.ran = append(s.ran, r)
		}
	}
	b, closeBucket, err := shared(t.Context(), url, crashRate)
	s.must(err)
	t.Cleanup(closeBucket)
	s.consume(b, s.handle)
	s.eventually(2*s.patience(), "all messages ran", func() bool { m, _ := s.counts(); return m == n })
	s.empty()
	s.within(crashRate, crashRate, time.Second)
	_, twice := s.counts() // at most what the dead process had in hand, which is all
	if len(s.ran) > n+twice {
		t.Errorf("of %d messages some ran more than twice: %d runs", n, len(s.ran))
	}
	s.free(b, entity, entities)
	t.Logf("0 of %d lost, %d ran twice", n, twice)
}
