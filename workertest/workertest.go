// Package workertest checks a queue's adapter that is built on package worker:
//
//   - No message runs over the limit, or before its postponement is over.
//   - A message is postponed about once, and a postponement spends no attempt.
//   - No message is lost when a process dies, the limiter fails, or a handler fails.
//
// Call Child and Run from the adapter's tests:
//
//	var adapter = workertest.Adapter{Open: open, Late: time.Second, Again: 5 * time.Second}
//
//	func TestMain(m *testing.M) { workertest.Child(adapter); os.Exit(m.Run()) }
//
//	func TestAdapter(t *testing.T) { workertest.Run(t, adapter, os.Getenv("QUEUE_URL")) }
package workertest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/stalls"
	"github.com/drip-go/drip/worker"
)

// Message is a message that the suite sends through a queue.
type Message struct {
	ID, Entity string // its name, unique among published messages, and the entity whose limit it falls under
}

// Queue is a queue in a real server, and a consumer of it that uses the adapter. The suite calls its methods from
// several goroutines at once.
type Queue interface {
	// Publish adds messages.
	Publish(ctx context.Context, messages ...Message) error

	// Consume handles messages through the adapter until ctx ends, at least 30 at once, and returns when the messages in
	// hand have ended. It handles a message whose handle fails again within Adapter.Again, at least three times and at
	// most ten times in all. The context of handle is the context that the adapter gives to a handler.
	Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, Message) error) error

	// Left counts the messages that are not done, wherever they wait, except messages that were given up.
	Left(ctx context.Context) (int, error)
}

// Adapter is an adapter that Run checks.
type Adapter struct {
	// Name distinguishes the adapters of one test binary. It may be empty when there is one.
	Name string

	// Open connects to the queue of that name in the server at url, the url of Run, and makes the queue if there is none.
	// The suite calls it in other processes, too, which inherit the environment.
	Open func(ctx context.Context, url, name string) (Queue, error)

	// Late is how long after its slot a message may ask to run, most of the time. It bounds the median.
	Late time.Duration

	// Again is how long after a crash or a failure a message is handled again, at most.
	Again time.Duration
}

// rules are the subtests of Run.
var rules = []struct {
	name  string
	check func(*testing.T, *suite)
}{
	{"Limit", testLimit},
	{"PostponementsSpendNoAttempt", testAttempts},
	{"FailuresAreRetried", testFailures},
	{"Throttled", testThrottled},
	{"Later", testLater},
	{"LimiterOutage", testOutage},
	{"LongHandler", testLongHandler},
	{"PanickingHandler", testPanic},
	{"Shutdown", testShutdown},
	{"Crash", testCrash},
}

// Run runs every rule as a subtest, each on a queue of its own in the server at url. The rule Crash kills other
// processes that consume the same queue, so a queue in memory breaks it. Its limits are in a Redis: the one at
// DRIP_REDIS_URL, or a private one from the program redis-server.
func Run(t *testing.T, a Adapter, url string) {
	if os.Getenv(variable) != "" { // it would start itself again and again
		t.Fatal("TestMain must call workertest.Child")
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			rule.check(t, newSuite(t, a, url))
		})
	}
}

// suite is a queue with its consumers, for one subtest.
type suite struct {
	Adapter
	tester
	url   string
	name  string
	queue Queue
	ledger
	stalls *stalls.Stalls
}

// queueName is a name that no process has used: several run the suite on one server at once.
func queueName() string { return "drip" + strings.ToLower(rand.Text()) }

func newSuite(t *testing.T, a Adapter, url string) *suite {
	t.Helper()
	s := &suite{Adapter: a, tester: tester{t}, url: url, name: queueName(), stalls: stalls.Watch(t.Context())}
	s.queue = s.open()
	return s
}

func (s *suite) open() Queue {
	s.t.Helper()
	q, err := s.Open(s.t.Context(), s.url, s.name)
	s.must(err)
	return q
}

type tester struct{ t *testing.T }

func (s tester) must(err error) {
	s.t.Helper()
	oktest.OK(s.t, err)
}

// consume runs a consumer until stop is called, which waits for it, or until the test ends.
func (s *suite) consume(l worker.Limiter, handle func(context.Context, Message) error) (stop func()) {
	s.t.Helper()
	q, ended := s.open(), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- q.Consume(ctx, l, handle) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil && !errors.Is(err, context.Canceled) {
				s.t.Errorf("Consume = %v", err)
			}
		case <-time.After(time.Minute):
			s.t.Error("Consume does not return within a minute after its context has ended")
		}
	})
	s.t.Cleanup(stop)
	return stop
}

func (s *suite) publish(entities, n int) {
	s.t.Helper()
	s.must(s.queue.Publish(s.t.Context(), messages(n, "shop", entities)...))
}

// messages are m0, m1, ... of each entity in turn, such as shop0 and shop1.
func messages(n int, entity string, entities int) []Message {
	all := make([]Message, n)
	for i := range all {
		all[i] = Message{ID: fmt.Sprint("m", i), Entity: fmt.Sprint(entity, i%entities)}
	}
	return all
}

// eventually waits until is returns true, and fails the test after within.
func (s tester) eventually(within time.Duration, what string, is func() bool) {
	s.t.Helper()
	oktest.Eventually(s.t, within, what, is)
}

// patience is how long the suite waits for something that may be slow on a busy machine.
func (s *suite) patience() time.Duration {
	if testing.Short() {
		return 5*time.Second + s.Again + s.Late
	}
	return 2*time.Minute + 3*s.Again + 5*s.Late
}

// empty waits until no message is left in the queue.
func (s *suite) empty() {
	s.t.Helper()
	s.eventually(s.patience(), "the queue is empty", func() bool {
		n, err := s.queue.Left(s.t.Context())
		s.must(err)
		return n == 0
	})
}

// ledger notes which messages ran, and when.
type ledger struct {
	mu  sync.Mutex
	ran []run
}

type run struct {
	Message
	at            time.Time
	postponements int
	attempts      int
}

func (l *ledger) note(ctx context.Context, m Message) (times int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := run{Message: m, at: time.Now()}
	if op := worker.OperationOf(ctx); op != nil {
		r.postponements, r.attempts = op.Postponements, op.Attempts
	}
	l.ran = append(l.ran, r)
	for _, r := range l.ran {
		if r.ID == m.ID {
			times++
		}
	}
	return times
}

func (l *ledger) handle(ctx context.Context, m Message) error {
	l.note(ctx, m)
	return nil
}

func (l *ledger) runs() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ran)
}

// counts returns how many messages ran, and how many of these more than once.
func (l *ledger) counts() (distinct, twice int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := map[string]int{}
	for _, r := range l.ran {
		if n[r.ID]++; n[r.ID] == 2 {
			twice++
		}
	}
	return len(n), twice
}

// all waits until n messages ran.
func (s *suite) all(n int) {
	s.t.Helper()
	s.eventually(s.patience(), fmt.Sprintf("all %d messages ran", n), func() bool { m, _ := s.counts(); return m >= n })
}

// once fails the test if messages ran twice.
func (s *suite) once() {
	s.t.Helper()
	if _, twice := s.counts(); twice > 0 {
		s.t.Errorf("%d messages ran twice", twice)
	}
}

// within fails the test if more messages of an entity ran than the limit allows.
func (s *suite) within(size, rate int, interval time.Duration) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	of := map[string][]int64{}
	for _, r := range s.ran {
		of[r.Entity] = append(of[r.Entity], r.at.UnixMilli())
	}
	for entity, times := range of {
		if n := over(times, size, rate, interval); n > 0 {
			s.t.Errorf("%d of %s ran above the limit", n, entity)
		}
	}
}

// over returns how many calls at these times, in milliseconds, are above a limit at worst, as its provider counts. A handler
// begins a moment after its admission, so one interval more may have begun.
func over(times []int64, size, rate int, interval time.Duration) (worst int) {
	slices.Sort(times)
	for i, from := range times {
		for n, at := range times[i:] {
			intervals := int(at/interval.Milliseconds()-from/interval.Milliseconds()) + 1
			worst = max(worst, n+1-size-intervals*rate)
		}
	}
	return worst
}

// free fails the test if tokens of such entities are out.
func (s *suite) free(b *drip.Bucket, entity string, entities int) {
	s.t.Helper()
	for i := range entities {
		s.eventually(s.patience(), "no token is out", func() bool { return buckettest.Inspect(s.t, b, fmt.Sprint(entity, i)).InUse == 0 })
	}
}

// watched is a bucket that notes the calls of its methods. A message is not late while the machine stalls, nor to blame if it is
// postponed again because of that.
type watched struct {
	*drip.Bucket
	stalls                      *stalls.Stalls
	mu                          sync.Mutex
	newcomers, postponed, early int
	late                        []time.Duration
}

func (w *watched) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	a, err := w.Bucket.Admit(ctx, entity, r)
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	stalled := time.Duration(0)
	if r.Ticket.IsZero() {
		w.newcomers++
	} else {
		stalled = w.stalls.Between(r.Ticket.Slot(), now)
		late := now.Sub(r.Ticket.Slot()) - stalled
		if late < -5*time.Millisecond {
			w.early++
		}
		w.late = append(w.late, late)
	}
	if a.Delay > 0 && stalled == 0 {
		w.postponed++
	}
	return a, err
}

// Two consumers take messages through a limit. Each message is a newcomer once, is postponed about once at most, comes back
// when its slot is there, and runs once. No more messages run than the limit allows.
func testLimit(t *testing.T, s *suite) {
	const n, entities, size, rate = 60, 3, 4, 4
	w := &watched{Bucket: buckettest.New(t, drip.Options{Size: size, RefreshRate: rate, Concurrency: 1000}), stalls: s.stalls}
	for range 2 {
		s.consume(w, s.handle)
	}
	s.publish(entities, n)
	s.all(n)
	s.empty()
	s.once()
	s.within(size, rate, time.Second)
	s.free(w.Bucket, "shop", entities)
	for _, r := range s.ran {
		if r.attempts != 0 {
			t.Errorf("a message has %d attempts after %d postponements", r.attempts, r.postponements)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.newcomers != n {
		t.Errorf("%d messages came %d times without a ticket", n, w.newcomers)
	}
	if w.early > 0 {
		t.Errorf("messages came back %d times before they were due", w.early)
	}
	if w.postponed > n*13/10 {
		t.Errorf("%d messages were postponed %d times", n, w.postponed)
	}
	slices.Sort(w.late)
	if len(w.late) == 0 {
		t.Fatal("no message was postponed")
	}
	p50, p99 := w.late[len(w.late)/2], w.late[len(w.late)*99/100]
	if p50 > s.Late {
		t.Errorf("messages came back %v late, half of them; want at most %v", p50, s.Late)
	}
	t.Logf("%.2f postponements a message, late by %v (p50), %v (p99)", float64(w.postponed)/n, p50.Round(time.Millisecond), p99.Round(time.Millisecond))
}

// stubborn postpones each entity several times, for longer than an adapter holds a message in hand.
type stubborn struct {
	*drip.Bucket
	mu    sync.Mutex
	asked map[string]int
}

const refusals = 12

func (l *stubborn) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.asked[entity]++; l.asked[entity] <= refusals {
		return drip.Admission{Delay: 300 * time.Millisecond}, nil
	}
	return l.Bucket.Admit(ctx, entity, r)
}

// A message that is postponed more often than it may be attempted still runs.
func testAttempts(t *testing.T, s *suite) {
	s.publish(2, 2)
	s.consume(&stubborn{Bucket: buckettest.New(t, drip.Options{}), asked: map[string]int{}}, s.handle)
	s.eventually(s.patience()+refusals*(s.Late+2*time.Second), "both messages ran", func() bool { n, _ := s.counts(); return n == 2 })
	s.once()
	s.empty()
	for _, r := range s.ran {
		if r.attempts != 0 || r.postponements != refusals {
			t.Errorf("after %d postponements the note tells of %d, and of %d attempts", refusals, r.postponements, r.attempts)
		}
	}
}

// A handler that fails is called again. Its token is back meanwhile.
func testFailures(t *testing.T, s *suite) {
	b := buckettest.New(t, drip.Options{Concurrency: 1})
	s.publish(1, 2)
	s.consume(b, func(ctx context.Context, m Message) error {
		if s.note(ctx, m) < 3 {
			return errors.New("no such luck")
		}
		return nil
	})
	s.eventually(s.patience()+4*s.Again, "both ran three times", func() bool { return s.runs() == 6 })
	s.empty()
	s.free(b, "shop", 1)
}

// When the provider refuses a call, no message of its entity runs until the time that it asked for is over. Messages of other
// entities run.
func testThrottled(t *testing.T, s *suite) {
	const closed = 3 * time.Second
	b := buckettest.New(t, drip.Options{})
	var until atomic.Int64
	s.consume(b, func(ctx context.Context, m Message) error {
		if m.Entity == "shop0" && until.CompareAndSwap(0, time.Now().Add(closed).UnixNano()) {
			return worker.Throttled(closed, nil)
		}
		s.note(ctx, m)
		return nil
	})
	s.must(s.queue.Publish(t.Context(), Message{"refused", "shop0"}))
	s.eventually(s.patience(), "a call is refused", func() bool { return until.Load() != 0 })
	s.eventually(s.patience(), "its token is back", func() bool { return buckettest.Inspect(t, b, "shop0").InUse == 0 })
	published := time.Now()
	s.publish(2, 6)
	s.all(7)
	s.empty()
	s.once()
	others := false
	for _, r := range s.ran {
		before := r.at.UnixNano() < until.Load()-int64(50*time.Millisecond)
		if before && r.Entity == "shop0" {
			t.Errorf("%s ran %v before the provider allows it", r.ID, time.Duration(until.Load()-r.at.UnixNano()))
		}
		others = others || before
		if r.attempts != 0 {
			t.Errorf("%s has spent %d attempts", r.ID, r.attempts)
		}
	}
	if !others && s.stalls.Between(published, time.Unix(0, until.Load())) == 0 {
		t.Error("nothing of the other entity ran meanwhile")
	}
	s.free(b, "shop", 2)
}

// A handler that returns Later gets its message again then. Other messages of the entity run meanwhile.
func testLater(t *testing.T, s *suite) {
	const later = 2 * time.Second
	b := buckettest.New(t, drip.Options{})
	var asked atomic.Int64
	s.publish(1, 5)
	s.consume(b, func(ctx context.Context, m Message) error {
		if m.ID == "m0" && asked.CompareAndSwap(0, time.Now().UnixNano()) {
			return worker.Later(later, nil)
		}
		s.note(ctx, m)
		return nil
	})
	s.all(5)
	s.empty()
	s.once()
	others := 0
	for _, r := range s.ran {
		passed := time.Duration(r.at.UnixNano() - asked.Load())
		switch {
		case r.ID == "m0" && (passed < later || r.attempts != 0 || r.postponements != 1):
			t.Errorf("the message came after %v with %d attempts and %d postponements", passed, r.attempts, r.postponements)
		case r.ID != "m0" && passed-s.stalls.Between(time.Unix(0, asked.Load()), r.at) < later:
			others++
		}
	}
	if others != 4 {
		t.Errorf("%d of 4 others ran meanwhile", others)
	}
}

// While the limiter gives no answer no message runs, and none spends an attempt or a postponement. Afterwards every message
// runs once.
func testOutage(t *testing.T, s *suite) {
	const n = 10
	var back atomic.Bool
	var asked atomic.Int64
	l := &buckettest.Hooked{Bucket: buckettest.New(t, drip.Options{}), Before: func(_ context.Context, method string, _ int) error {
		if method == "Admit" && !back.Load() {
			asked.Add(1)
			return errors.New("no answer")
		}
		return nil
	}}
	s.publish(2, n)
	s.consume(l, s.handle)
	s.eventually(s.patience(), "messages wait for the limiter", func() bool { return asked.Load() > 7*n })
	if ran, _ := s.counts(); ran > 0 {
		t.Errorf("%d messages ran without an answer", ran)
	}
	back.Store(true)
	s.all(n)
	s.empty()
	s.once()
	for _, r := range s.ran {
		if r.attempts != 0 || r.postponements != 0 {
			t.Errorf("the outage has cost %d attempts and %d postponements", r.attempts, r.postponements)
		}
	}
}

// An operation may take longer than the queue waits for a dead process, and longer than its lease: the worker renews the
// lease, and the adapter the queue's wait.
func testLongHandler(t *testing.T, s *suite) {
	const lease = 2 * time.Second
	b := buckettest.New(t, drip.Options{Lease: lease})
	began := time.Now()
	var lost atomic.Bool
	s.publish(1, 2)
	for range 2 {
		s.consume(b, func(ctx context.Context, m Message) error {
			s.note(ctx, m)
			select {
			case <-time.After(min(s.Again+time.Second, 8*time.Second)):
			case <-ctx.Done():
				lost.Store(true)
				if s.stalls.Between(began, time.Now()) < lease/4 {
					t.Errorf("the context of the handler has ended: %v", context.Cause(ctx))
				}
			}
			return nil
		})
	}
	s.all(2)
	s.empty()
	if lost.Load() {
		t.Skipf("the machine stalled for %v, and has renewed no lease of %v in time", s.stalls.Between(began, time.Now()), lease)
	}
	s.once()
	s.free(b, "shop", 1)
}

// A handler that panics has failed.
func testPanic(t *testing.T, s *suite) {
	b := buckettest.New(t, drip.Options{})
	s.publish(1, 2)
	s.consume(b, func(ctx context.Context, m Message) error {
		if s.note(ctx, m) == 1 {
			panic("oh")
		}
		return nil
	})
	s.eventually(s.patience()+2*s.Again, "both ran twice", func() bool { return s.runs() == 4 })
	s.empty()
	s.free(b, "shop", 1)
}

// A consumer that is stopped ends its handlers first. A handled message is not handled again, and no other message is lost.
func testShutdown(t *testing.T, s *suite) {
	const n = 40
	b := buckettest.New(t, drip.Options{Concurrency: 5})
	handle := func(ctx context.Context, m Message) error {
		time.Sleep(200 * time.Millisecond) // whatever the context says
		return s.handle(ctx, m)
	}
	stop := s.consume(b, handle)
	s.publish(1, n)
	s.eventually(s.patience(), "some ran", func() bool { return s.runs() > 2 })
	stop()
	before := s.runs()
	time.Sleep(300 * time.Millisecond)
	if now := s.runs(); now != before {
		t.Errorf("%d handlers were running when Consume had returned", now-before)
	}
	s.consume(b, handle)
	s.eventually(2*s.patience(), "all ran", func() bool { m, _ := s.counts(); return m == n })
	s.empty()
	s.once()
	s.free(b, "shop", 1)
}
