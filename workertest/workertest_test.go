package workertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
)

const mutantVariable = "DRIP_WRONG_ADAPTER"

var adapter = Adapter{Open: open, Late: 200 * time.Millisecond, Again: 4 * time.Second}

func TestMain(m *testing.M) {
	if os.Getenv(withoutChild) == "" {
		Child(adapter)
	}
	os.Exit(servers.Main(m))
}

func open(_ context.Context, url, name string) (Queue, error) {
	o, err := goredis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	mistake := os.Getenv(mutantVariable)
	if mistake == otherProcessesPanic && os.Getenv(variable) != "" {
		panic("oh")
	}
	if mistake == ownProcess {
		name += fmt.Sprint("-", os.Getpid())
	}
	return &sorted{goredis.NewClient(o), name, mistake}, nil
}

// The suite finds nothing wrong with a queue that does all it should.
func TestRightAdapter(t *testing.T) {
	Run(t, adapter, servers.UseRedis(t).URL())
}

// ownProcess is the mistake of a queue in memory.
const ownProcess = "other processes do not reach the queue"

const otherProcessesPanic = "other processes panic"

// wrong are mistakes of adapters, and a rule that each breaks.
var wrong = map[string]string{
	ownProcess:                                  "Crash",
	otherProcessesPanic:                         "Crash",
	"the note is lost":                          "Limit",
	"the limiter is not asked":                  "Limit",
	"messages come back before they are due":    "Limit",
	"messages come back late":                   "Limit",
	"messages are acknowledged before they run": "Crash",
	"what was postponed is lost":                "Limit",
	"a postponement spends an attempt":          "PostponementsSpendNoAttempt",
	"a failure is acknowledged":                 "FailuresAreRetried",
	"nothing is given up, nothing retried":      "PanickingHandler",
	"long handlers are not waited for":          "LongHandler",
	"an outage is a failure":                    "LimiterOutage",
	"Consume leaves its handlers alone":         "Shutdown",
	"messages are delivered twice":              "Shutdown",
}

// TestWrongAdapters runs the rule that a wrong adapter breaks in a process of its own. It must fail there.
func TestWrongAdapters(t *testing.T) {
	url := servers.UseRedis(t).URL()
	if os.Getenv(mutantVariable) != "" {
		Run(t, adapter, url)
		return
	}
	for name, rule := range wrong {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongAdapters$/^"+rule+"$", "-test.short", "-test.timeout=5m")
			cmd.Env = append(os.Environ(), mutantVariable+"="+name, "DRIP_REDIS_URL="+url)
			out, err := cmd.CombinedOutput()
			if text := string(out); err == nil || !strings.Contains(text, "--- FAIL: TestWrongAdapters/"+rule) || strings.Contains(text, "\npanic: ") {
				t.Fatalf("Run finds nothing wrong (%v):\n%s", err, text)
			} else if name == ownProcess && !strings.Contains(text, "another process opens the queue") {
				t.Fatalf("Run does not tell what is wrong:\n%s", text)
			}
		})
	}
}

// sorted is a queue in a sorted set of Redis: the score of a message is when it may be taken. With a mistake it is one of
// the wrong adapters.
type sorted struct {
	client  *goredis.Client
	name    string
	mistake string
}

const invisible = 2 * time.Second

// take takes a message that is due, and hides it for a while.
var take = goredis.NewScript(`
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1)
if #ids == 0 then return {} end
redis.call('ZADD', KEYS[1], ARGV[2], ids[1])
return {ids[1], redis.call('HGET', KEYS[2], ids[1]), redis.call('HGET', KEYS[3], ids[1]) or ''}`)

func (q *sorted) Publish(ctx context.Context, messages ...Message) error {
	for _, m := range messages {
		if err := q.client.HSet(ctx, q.name+":entity", m.ID, m.Entity).Err(); err != nil {
			return err
		}
		if err := q.put(ctx, m.ID, 0); err != nil {
			return err
		}
	}
	return nil
}

// put has a message taken again after d.
func (q *sorted) put(ctx context.Context, id string, d time.Duration) error {
	return q.client.ZAdd(ctx, q.name, goredis.Z{Score: float64(time.Now().Add(d).UnixMilli()), Member: id}).Err()
}

func (q *sorted) Left(ctx context.Context) (int, error) {
	n, err := q.client.ZCard(ctx, q.name).Result()
	return int(n), err
}

func (q *sorted) is(mistake string) bool { return q.mistake == mistake }

func (q *sorted) Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, Message) error) error {
	o := worker.Options[Message]{
		Limiter: l, Entity: func(m Message) (string, error) { return m.Entity, nil }, Attempts: 5, RetryDelay: 200 * time.Millisecond,
	}
	if q.is("a postponement spends an attempt") {
		o.MaxPostponements = 5
	}
	w, err := worker.New(o)
	if err != nil {
		return err
	}
	hands := make(chan struct{}, 30)
	var inHand sync.WaitGroup
	for ctx.Err() == nil {
		hands <- struct{}{}
		now := time.Now()
		got, err := take.Run(ctx, q.client, []string{q.name, q.name + ":entity", q.name + ":note"}, now.UnixMilli(), now.Add(invisible).UnixMilli()).StringSlice()
		if err != nil || len(got) == 0 {
			<-hands
			time.Sleep(10 * time.Millisecond)
			continue
		}
		work := func() {
			defer func() { <-hands }()
			q.work(ctx, w, Message{got[0], got[1]}, got[2], handle)
		}
		if q.is("messages are delivered twice") {
			inHand.Go(func() { hands <- struct{}{}; work() })
		}
		inHand.Go(work)
	}
	if !q.is("Consume leaves its handlers alone") {
		inHand.Wait()
	}
	return nil
}

// work is an adapter.
func (q *sorted) work(ctx context.Context, w *worker.Worker[Message], m Message, note string, handle func(context.Context, Message) error) {
	ctx = context.WithoutCancel(ctx)
	beat, cancel := context.WithCancel(ctx)
	defer cancel()
	if !q.is("long handlers are not waited for") {
		go func() {
			for beat.Err() == nil {
				q.client.ZAddXX(beat, q.name, goredis.Z{Score: float64(time.Now().Add(invisible).UnixMilli()), Member: m.ID})
				time.Sleep(invisible / 4)
			}
		}()
	}
	if q.is("messages are acknowledged before they run") {
		q.client.ZRem(ctx, q.name, m.ID)
	}
	var out worker.Outcome
	if q.is("the limiter is not asked") {
		out.Err = handle(ctx, m)
	} else {
		out = w.Do(ctx, m, note, func(ctx context.Context) error { return handle(ctx, m) })
	}
	cancel()
	switch {
	case q.is("what was postponed is lost") && out.Kind == worker.Postponed, q.is("a failure is acknowledged") && out.Kind == worker.Retried,
		q.is("nothing is given up, nothing retried") && out.Err != nil, q.is("an outage is a failure") && out.Kind == worker.Waiting:
		q.client.ZRem(ctx, q.name, m.ID)
	case out.Delay > 0:
		if !q.is("the note is lost") {
			q.client.HSet(ctx, q.name+":note", m.ID, out.Note.String())
		}
		if q.is("messages come back before they are due") {
			out.Note.Due = time.Time{}
			q.client.HSet(ctx, q.name+":note", m.ID, out.Note.String())
			out.Delay /= 2
		}
		if q.is("messages come back late") {
			out.Delay += 3 * time.Second
		}
		q.put(ctx, m.ID, out.Delay)
	case out.Err == nil || out.Kind == worker.GivenUp:
		q.client.ZRem(ctx, q.name, m.ID)
	default:
		q.put(ctx, m.ID, time.Second)
	}
}

// Within two intervals of a second 4 calls and twice 2 are in a limit of 4, and 2 a second.
func TestOver(t *testing.T) {
	times := []int64{1001, 999, 999, 999, 999, 1000, 1000, 1001}
	if n := over(times, 4, 2, time.Second); n != 0 {
		t.Errorf("%d of 8 calls are over the limit", n)
	}
	if n := over(append(times, 1999), 4, 2, time.Second); n != 1 {
		t.Errorf("%d of 9 calls are over the limit, want 1", n)
	}
}

const withoutChild = "DRIP_WORKERTEST_WITHOUT_CHILD"

// A process of the suite whose TestMain calls no Child would start the suite again, and each of its processes, too.
func TestMainWithoutChild(t *testing.T) {
	servers.UseRedis(t) // or the process skips the suite
	failing(t, "TestMain must call workertest.Child", withoutChild+"=1", variable+"={}")
}

// Run may be given an adapter that Child is not.
func TestMainWithoutAdapter(t *testing.T) {
	failing(t, `TestMain must call workertest.Child with the adapter "other"`, variable+`={"Adapter":"other"}`)
}

// failing runs a rule in a process with these variables, which must fail and print the text.
func failing(t *testing.T, text string, variables ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRightAdapter$/^Later$")
	cmd.Env = append(os.Environ(), variables...)
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), text) {
		t.Errorf("%v: %s", err, out)
	}
}
