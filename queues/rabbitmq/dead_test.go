package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/queues"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// channel is one to a broker, and the name of a new work queue.
func channel(t *testing.T) (broker *Broker, ch *amqp.Channel, queue string) {
	t.Helper()
	url := servers.UseRabbitMQ(t).URL()
	ch, queue = servers.Channel(t, url), fmt.Sprintf("orders-%d", time.Now().UnixNano())
	servers.Declare(t, ch, "classic", queue)
	broker, err := New(url, queue)
	oktest.OK(t, err)
	t.Cleanup(func() { broker.Close() })
	return broker, ch, queue
}

// bury declares a queue for dead letters and puts some there.
func bury(t *testing.T, ch *amqp.Channel, queue, kind string, reasons ...string) {
	t.Helper()
	servers.Declare(t, ch, kind, deadQueue(queue))
	for i, reason := range reasons {
		servers.Publish(t, ch, deadQueue(queue), amqp.Publishing{
			Headers: amqp.Table{"x-drip-reason": reason, "x-drip-attempts": int64(3), "nested": amqp.Table{"b": "2", "a": "1"}}, DeliveryMode: 2,
			Body: fmt.Appendf(nil, "order %d", i),
		})
	}
}

func bodies(letters []queues.Letter) (all []string) {
	for _, l := range letters {
		all = append(all, string(l.Body))
	}
	slices.Sort(all)
	return all
}

// Looking loses nothing, however often, and keeps every letter's identity; in a quorum queue no letter is delivered as often as
// a broker tolerates.
func TestLookingLosesNothing(t *testing.T) {
	for _, kind := range []string{"classic", "quorum"} {
		t.Run(kind, func(t *testing.T) {
			b, ch, queue := channel(t)
			bury(t, ch, queue, kind, "failed", "too old", "failed")
			servers.Await(t, ch, deadQueue(queue), 3)
			first, more, err := b.Dead(t.Context(), queue, 10)
			if err != nil || more || len(first) != 3 {
				t.Fatal(first, more, err)
			}
			for i := range 25 {
				servers.Await(t, ch, deadQueue(queue), 3)
				letters, _, err := b.Dead(t.Context(), queue, 10)
				if err != nil || !slices.Equal(bodies(letters), bodies(first)) {
					t.Fatalf("look %d: %v, %v", i, bodies(letters), err)
				}
				for _, l := range letters {
					if !slices.ContainsFunc(first, func(f queues.Letter) bool { return f.ID == l.ID && string(f.Body) == string(l.Body) }) {
						t.Fatalf("look %d: %q has another ID", i, l.Body)
					}
				}
			}
			servers.Await(t, ch, deadQueue(queue), 3)
			d, ok, err := ch.Get(deadQueue(queue), true)
			if err != nil || !ok {
				t.Fatal(ok, err)
			}
			if n := number(d.Headers["x-delivery-count"]); n > mostLooks {
				t.Errorf("a letter was delivered %d times", n)
			}
		})
	}
}

// buryLimited buries letters in a quorum queue with the delivery limit that RabbitMQ 4 has by default.
func buryLimited(t *testing.T, n int) (*Broker, *amqp.Channel, string) {
	t.Helper()
	b, ch, queue := channel(t)
	args := amqp.Table{amqp.QueueTypeArg: "quorum", "x-delivery-limit": int64(20)}
	if _, err := ch.QueueDeclare(deadQueue(queue), true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		servers.Publish(t, ch, deadQueue(queue), amqp.Publishing{
			Headers: amqp.Table{"x-drip-reason": "failed"}, DeliveryMode: amqp.Persistent, Body: fmt.Appendf(nil, "order %d", i),
		})
	}
	servers.Await(t, ch, deadQueue(queue), n)
	return b, ch, queue
}

// An operator who puts back one letter after the other loses none of those that wait.
func TestRequeueOneByOne(t *testing.T) {
	const n = 30
	b, ch, queue := buryLimited(t, n)
	for i := range n {
		first := true
		got, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool {
			pick := first
			first = false
			return pick
		})
		if err != nil || got != 1 {
			t.Fatalf("letter %d: Requeue = %d, %v, want 1", i, got, err)
		}
		servers.Await(t, ch, deadQueue(queue), n-1-i)
	}
	servers.Await(t, ch, queue, n)
}

// A viewer who goes away, however often, takes no letter along.
func TestCancelledRequeue(t *testing.T) {
	const n = 30
	b, ch, queue := buryLimited(t, n)
	for range 25 {
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := b.Requeue(ctx, queue, func(*queues.Letter) bool { cancel(); return false }); !errors.Is(err, context.Canceled) {
			t.Errorf("Requeue = %v, want that it was cancelled", err)
		}
		servers.Await(t, ch, deadQueue(queue), n)
	}
}

func TestSomeOfMany(t *testing.T) {
	b, ch, queue := channel(t)
	reasons := make([]string, 3*together+7)
	for i := range reasons {
		reasons[i] = []string{"failed", "too old", "expired"}[i%3]
	}
	bury(t, ch, queue, "classic", reasons...)
	letters, more, err := b.Dead(t.Context(), queue, 10)
	if err != nil || !more || len(letters) != 10 {
		t.Fatal(len(letters), more, err)
	}
	n, err := b.Requeue(t.Context(), queue, func(l *queues.Letter) bool { return l.Reason == "too old" })
	if want := len(reasons) / 3; err != nil || n != want {
		t.Fatalf("%d, %v; want %d", n, err, want)
	}
	servers.Await(t, ch, queue, n)
	servers.Await(t, ch, deadQueue(queue), len(reasons)-n)
	one := letters[0].ID
	if n, err := b.Requeue(t.Context(), queue, func(l *queues.Letter) bool { return l.ID == one }); n != 1 || err != nil {
		t.Errorf("one: %d, %v", n, err)
	}
	m, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true })
	if err != nil || m != len(reasons)-n-1 {
		t.Errorf("the rest: %d, %v", m, err)
	}
	servers.Await(t, ch, deadQueue(queue), 0)
	servers.Await(t, ch, queue, len(reasons))
	d, _, err := ch.Get(queue, true)
	if err != nil || d.Headers["x-drip-reason"] != "too old" || fmt.Sprint(d.Headers["nested"]) != "map[a:1 b:2]" || d.DeliveryMode != 2 {
		t.Errorf("it came back as %+v, %v", d.Headers, err)
	}
}

// Letters of a quorum queue that are put back are gone from it, also if a letter stays.
func TestOneOfManyStays(t *testing.T) {
	const n = 104
	for range 3 { // the broker does not always drop acknowledgements that it is not ready for
		b, ch, queue := channel(t)
		bury(t, ch, queue, "quorum", slices.Repeat([]string{"failed"}, n)...)
		asked := 0
		if moved, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { asked++; return asked != 4 }); err != nil || moved != n-1 {
			t.Fatalf("Requeue = %d, %v", moved, err)
		}
		servers.Await(t, ch, queue, n-1)
		servers.Await(t, ch, deadQueue(queue), 1)
	}
}

// A message that was given up, and is put back, is handled again as it was published.
func TestBackToItsConsumer(t *testing.T) {
	b, ch, queue := channel(t)
	var broken atomic.Bool
	broken.Store(true)
	handled := make(chan amqp.Delivery, 1)
	c, err := consumer.New(consumer.Options{
		URL: servers.UseRabbitMQ(t).URL(), Queue: queue, Limiter: &buckettest.Plain{}, Attempts: 1,
		Entity: func(d *amqp.Delivery) (string, error) { return "shop", nil },
		Handler: consumer.HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			if broken.Load() {
				return errors.New("the provider knows no such order")
			}
			handled <- *d
			return nil
		}),
	})
	oktest.OK(t, err)
	_, end := oktest.Begin(t, 5*time.Minute, c.Run)
	defer end()
	oktest.OK(t, ch.Publish("", queue, false, false, amqp.Publishing{MessageId: "order-7", Headers: amqp.Table{"tenant": "a"}, Body: []byte("seven")}))
	var letters []queues.Letter
	for begin := time.Now(); len(letters) == 0; time.Sleep(50 * time.Millisecond) {
		if letters, _, err = b.Dead(t.Context(), queue, 10); err != nil || time.Since(begin) > time.Minute {
			t.Fatal("no dead letter", err)
		}
	}
	l := letters[0]
	if l.MessageID != "order-7" || l.Reason != "failed" || l.Error != "the provider knows no such order" || l.Attempts != 1 || string(l.Body) != "seven" || l.RoutingKey != queue {
		t.Errorf("%+v", l)
	}
	broken.Store(false)
	if n, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true }); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	select {
	case d := <-handled:
		if d.MessageId != "order-7" || d.RoutingKey != queue || fmt.Sprint(d.Headers) != "map[tenant:a]" {
			t.Errorf("it came back as %q, %q, %v", d.MessageId, d.RoutingKey, d.Headers)
		}
	case <-time.After(time.Minute):
		t.Fatal("it was not handled again")
	}
	servers.Await(t, ch, deadQueue(queue), 0)
}

// A letter that somebody else has published has no absurd age.
func TestAgeOfALetter(t *testing.T) {
	for ms, want := range map[int64]time.Duration{
		61_000: 61 * time.Second, -1: 0, math.MinInt64: 0,
		math.MaxInt64: math.MaxInt64 / time.Millisecond * time.Millisecond, math.MaxInt64/1_000_000 + 1: math.MaxInt64 / time.Millisecond * time.Millisecond,
	} {
		if l := letterOf(&amqp.Delivery{Headers: amqp.Table{"x-drip-age-ms": ms}}); l.Age != want {
			t.Errorf("%d ms: the age is %v, want %v", ms, l.Age, want)
		}
	}
}

// The broker makes dead letters by itself, for example of a message that was delivered too often.
func TestReasonOfTheBroker(t *testing.T) {
	h := amqp.Table{"x-first-death-reason": "delivery_limit"}
	if l := letterOf(&amqp.Delivery{Headers: h}); l.Reason != "delivery_limit" {
		t.Errorf("the reason is %q, want the broker's", l.Reason)
	}
	h["x-drip-reason"] = "failed"
	if l := letterOf(&amqp.Delivery{Headers: h}); l.Reason != "failed" {
		t.Errorf("the reason is %q, want the consumer's", l.Reason)
	}
}

func TestNoQueue(t *testing.T) {
	b, _, queue := channel(t)
	if _, err := b.Look(t.Context(), "nowhere"); !errors.Is(err, ErrNoQueue) {
		t.Error(err)
	}
	if _, _, err := b.Dead(t.Context(), "nowhere", 1); !errors.Is(err, ErrNoQueue) {
		t.Error(err)
	}
	if letters, more, err := b.Dead(t.Context(), queue, 1); err != nil || more || len(letters) > 0 {
		t.Errorf("of a queue without dead letters: %v, %v, %v", letters, more, err)
	}
	if n, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true }); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// A viewer who goes away leaves the connection to the other viewers.
func TestCancelledLook(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	b, err := New(url)
	oktest.OK(t, err)
	defer b.Close()
	if _, err := b.Look(t.Context(), "nowhere"); !errors.Is(err, ErrNoQueue) {
		t.Fatal(err)
	}
	first := b.conn
	for range 20 {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Look(gone, "nowhere"); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled Look: %v", err)
		}
		b.absent.Clear() // it asks for the queues again
		if _, err := b.Look(t.Context(), "nowhere"); !errors.Is(err, ErrNoQueue) {
			t.Errorf("a Look after a cancelled one: %v", err)
		}
	}
	if b.conn != first || first.IsClosed() {
		t.Error("a cancelled Look has ended the connection")
	}
}

// A letter is found and put back, also just after a look that found no queue of dead letters.
func TestDeadAfterALook(t *testing.T) {
	broker, ch, queue := channel(t)
	if _, err := broker.Look(t.Context(), queue); err != nil {
		t.Fatal(err)
	}
	bury(t, ch, queue, "classic", "failed")
	if letters, _, err := broker.Dead(t.Context(), queue, 10); err != nil || len(letters) != 1 {
		t.Errorf("Dead = %v, %v, want the letter", letters, err)
	}
	if n, err := broker.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true }); err != nil || n != 1 {
		t.Errorf("Requeue = %d, %v, want 1", n, err)
	}
}

// Only equal letters have the same ID. A publisher who knew a letter could make another one that was put back in its place.
func TestIdentity(t *testing.T) {
	ids := map[string]amqp.Table{}
	for _, h := range []amqp.Table{
		{"a": "1", "b": "2"}, {"a": "1 b:2"}, {"a": int64(1), "b": "2"}, {"a": []any{"1", "2"}}, {"a": []any{"1 2"}}, {"a": nil}, {"a": "<nil>"}, {"a": []byte("1")}, {"a": "[49]"},
		{"a": amqp.Table{"b": "2"}}, {"a": "map[b:2]"}, {"a": time.Unix(1, 0)}, {"a": time.Unix(1, 0).String()}, {"a": int32(1)}, {"a": true}, {"a": "true"},
	} {
		id := idOf("m", h, []byte("body"))
		if other, known := ids[id]; known {
			t.Errorf("%#v and %#v have the same ID", h, other)
		}
		ids[id] = h
		if again := idOf("m", h, []byte("body")); again != id {
			t.Errorf("%#v has the IDs %s and %s", h, id, again)
		}
	}
}

// A letter has the same ID in processes of other time zones: one lists it, and another puts it back.
func TestIdentityInOtherZones(t *testing.T) {
	id := func(z *time.Location) string {
		at := time.Unix(1_700_000_000, 0).In(z) // as the client has it in a process there
		return idOf("m", amqp.Table{"at": at, "x-death": []any{amqp.Table{"time": at}}}, nil)
	}
	if here, there := id(time.UTC), id(time.FixedZone("", 3600)); here != there {
		t.Errorf("one letter has the IDs %s and %s", here, there)
	}
}

func TestNothingMovesAfterClose(t *testing.T) {
	b, ch, queue := channel(t)
	bury(t, ch, queue, "classic", "failed")
	b.Close()
	if letters, _, err := b.Dead(t.Context(), queue, 10); !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("Dead = %d letters, %v", len(letters), err)
	}
	if n, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true }); !errors.Is(err, amqp.ErrClosed) {
		t.Errorf("Requeue = %d, %v", n, err)
	}
}

// An operator puts back letters again and again that their queue does not take. None of them comes to the limit of deliveries.
func TestRequeueIsRefused(t *testing.T) {
	const n = 10
	b, ch, queue := buryLimited(t, n)
	full := amqp.Table{amqp.QueueTypeArg: "classic", "x-max-length": int64(0), "x-overflow": "reject-publish"}
	if _, err := ch.QueueDeclare(dueQueue(queue), true, false, false, false, full); err != nil {
		t.Fatal(err)
	}
	for range 25 {
		if moved, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true }); moved != 0 || err == nil {
			t.Fatalf("Requeue = %d, %v, want an error", moved, err)
		}
		servers.Await(t, ch, deadQueue(queue), n)
	}
}

// A letter that is larger than the broker takes now, as RabbitMQ 4 takes less, stays, and the error tells its size. The others are put
// back, without copies. Those that are looked at are seen, also when a copy would have to replace the large one.
func TestLetterThatTheBrokerNoLongerTakes(t *testing.T) {
	server := servers.OwnRabbitMQ(t)
	ch, queue := servers.Channel(t, server.URL()), "orders"
	servers.Declare(t, ch, "classic", queue)
	servers.Declare(t, ch, "quorum", deadQueue(queue))
	const before, behind = 3, 100
	for i := range before + 1 + behind {
		body := []byte("order")
		if i == before {
			body = make([]byte, 5000)
		}
		servers.Publish(t, ch, deadQueue(queue), amqp.Publishing{Headers: amqp.Table{"x-drip-reason": "failed"}, Body: body})
	}
	if out, err := server.Ctl(t.Context(), "eval", "application:set_env(rabbit, max_message_size, 1000), persistent_term:put(max_message_size, 1000)."); err != nil {
		t.Fatal(out, err)
	}
	b, err := New(server.URL(), queue)
	oktest.OK(t, err)
	defer b.Close()
	for range mostLooks + 2 {
		if letters, _, err := b.Dead(t.Context(), queue, 1000); err != nil || len(letters) != before+1+behind {
			t.Fatalf("Dead = %d letters, %v", len(letters), err)
		}
		servers.Await(t, ch, deadQueue(queue), before+1+behind)
	}
	asked := 0
	moved, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { asked++; return true })
	if moved != before+behind || err == nil || !strings.Contains(err.Error(), "size 5000") || asked != before+1+behind {
		t.Errorf("Requeue = %d, %v after %d letters; want %d, and the size", moved, err, asked, before+behind)
	}
	servers.Await(t, ch, queue, before+behind)
	servers.Await(t, ch, deadQueue(queue), 1)
}

// A message that the broker itself made a dead letter may keep its header CC. Neither looking at it nor putting it back sends it once more
// to the queues that the header names.
func TestLettersForOtherQueues(t *testing.T) {
	b, ch, queue := channel(t)
	other := queue + ".other"
	servers.Declare(t, ch, "classic", other)
	servers.Declare(t, ch, "quorum", deadQueue(queue))
	letter := amqp.Publishing{Headers: amqp.Table{"CC": []any{other}}, DeliveryMode: amqp.Persistent, Body: []byte("order")}
	servers.Publish(t, ch, deadQueue(queue), letter)
	servers.Await(t, ch, deadQueue(queue), 1)
	servers.Await(t, ch, other, 1)
	id := ""
	for range mostLooks + 2 {
		letters, _, err := b.Dead(t.Context(), queue, 10)
		if err != nil || len(letters) != 1 || id != "" && letters[0].ID != id {
			t.Fatalf("Dead = %+v, %v", letters, err)
		}
		id = letters[0].ID
		servers.Await(t, ch, deadQueue(queue), 1)
	}
	if n, err := b.Requeue(t.Context(), queue, func(*queues.Letter) bool { return true }); n != 1 || err != nil {
		t.Fatalf("Requeue = %d, %v", n, err)
	}
	servers.Await(t, ch, queue, 1)
	servers.Await(t, ch, other, 1)
}
