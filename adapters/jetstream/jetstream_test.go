package dripjetstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
	"github.com/drip-go/drip/workertest"
)

var adapter = workertest.Adapter{Open: open, Late: 100 * time.Millisecond, Again: 4 * time.Second}

func TestMain(m *testing.M) {
	workertest.Child(adapter)
	os.Exit(servers.Main(m))
}

// useNATS starts a server in this process.
func useNATS(t testing.TB) string { t.Helper(); return startNATS(t, t.TempDir(), -1).ClientURL() }

// startNATS starts a server with the data in dir, which ends with the test. Without users anyone may do all.
func startNATS(t testing.TB, dir string, port int, users ...*server.User) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoSigs: true, Users: users})
	ok(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	return s
}

func TestAdapter(t *testing.T) {
	workertest.Run(t, adapter, useNATS(t))
}

func BenchmarkAdapter(b *testing.B) {
	workertest.Benchmark(b, adapter, useNATS(b))
}

type queue struct {
	js   jetstream.JetStream
	name string
}

var connections sync.Map // by URL: a process has one

func open(ctx context.Context, url, name string) (workertest.Queue, error) {
	once, _ := connections.LoadOrStore(url, sync.OnceValues(func() (*nats.Conn, error) { return nats.Connect(url) }))
	nc, err := once.(func() (*nats.Conn, error))()
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	q := &queue{js, name}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Retention: jetstream.WorkQueuePolicy})
	if err == nil {
		_, err = q.consumer(ctx, 0)
	}
	return q, err
}

func (q *queue) consumer(ctx context.Context, maxDeliver int) (jetstream.Consumer, error) {
	return q.js.CreateOrUpdateConsumer(ctx, q.name, jetstream.ConsumerConfig{Durable: "work", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 2 * time.Second, MaxDeliver: maxDeliver})
}

func (q *queue) Publish(ctx context.Context, messages ...workertest.Message) error {
	for _, m := range messages {
		msg := nats.NewMsg(q.name)
		msg.Header.Set("id", m.ID)
		msg.Header.Set("shop", m.Entity)
		if _, err := q.js.PublishMsg(ctx, msg); err != nil {
			return err
		}
	}
	return nil
}

func shop(m jetstream.Msg) (string, error) { return m.Headers().Get("shop"), nil }

func (q *queue) Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, workertest.Message) error) error {
	limit, err := New(q.js, Options{Limiter: l, Entity: shop, RetryDelay: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	c, err := q.consumer(context.WithoutCancel(ctx), 0)
	if err != nil {
		return err
	}
	return limit.Consume(ctx, c, 30, func(ctx context.Context, m jetstream.Msg) error {
		return handle(ctx, workertest.Message{ID: m.Headers().Get("id"), Entity: m.Headers().Get("shop")})
	})
}

// ConsumeBare handles messages as they come, in order.
func (q *queue) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	c, err := q.consumer(ctx, 0)
	if err != nil {
		return err
	}
	consuming, err := c.Consume(func(m jetstream.Msg) {
		if handle(ctx, workertest.Message{ID: m.Headers().Get("id"), Entity: m.Headers().Get("shop")}) == nil {
			_ = m.Ack()
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	consuming.Stop()
	return nil
}

func (q *queue) Left(ctx context.Context) (int, error) {
	s, err := q.js.Stream(ctx, q.name)
	if err != nil {
		return 0, err
	}
	info, err := s.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.State.Msgs), nil
}

var ok = oktest.OK // ends the test if there is an error

// limiting makes a Limit of shops.
func limiting(t *testing.T, js jetstream.JetStream, o Options) *Limit {
	t.Helper()
	if o.Limiter == nil {
		o.Limiter = buckettest.New(t, drip.Options{})
	}
	o.Entity = shop
	limit, err := New(js, o)
	ok(t, err)
	return limit
}

// stream makes a work queue without messages.
func stream(t *testing.T, js jetstream.JetStream, name string) *queue {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}, Retention: jetstream.WorkQueuePolicy})
	ok(t, err)
	return &queue{js, name}
}

// done waits until no message is left, or ctx ends.
func (q *queue) done(ctx context.Context) {
	for ctx.Err() == nil {
		if n, err := q.Left(ctx); n == 0 && err == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// connect returns a JetStream of its own.
func connect(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(useNATS(t))
	ok(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	ok(t, err)
	return js
}

// Nothing is left of the tickets when their messages are done, and a consumer that would drop postponed messages is an error.
func TestTickets(t *testing.T) {
	js, ctx := connect(t), t.Context()
	q := stream(t, js, "orders")
	limit := limiting(t, js, Options{Limiter: buckettest.New(t, drip.Options{Size: 5, RefreshRate: 5})})
	c, err := q.consumer(ctx, 3)
	ok(t, err)
	if err := limit.Consume(ctx, c, 1, nil); err == nil || !strings.Contains(err.Error(), "MaxDeliver") {
		t.Errorf("Consume = %v with a MaxDeliver of 3", err)
	}
	c, err = q.consumer(ctx, -1)
	ok(t, err)
	if err := limit.Consume(ctx, c, 1, nil); err == nil || !strings.Contains(err.Error(), "handle is nil") {
		t.Errorf("Consume = %v without a handler", err)
	}
	const n = 12
	ok(t, q.Publish(ctx, slices.Repeat([]workertest.Message{{Entity: "shop"}}, n)...))
	var left sync.WaitGroup
	left.Add(n)
	_, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return limit.Consume(ctx, c, 20, func(context.Context, jetstream.Msg) error { left.Done(); return nil })
	})
	left.Wait()
	end()
	s, err := js.Stream(ctx, "drip-orders-work")
	ok(t, err)
	info, err := s.Info(ctx)
	if err != nil || info.State.Msgs != 0 || info.State.LastSeq == 0 {
		t.Errorf("%d of %d tickets are left (%v)", info.State.Msgs, info.State.LastSeq, err)
	}
}

// A message is terminated once, however long its error is.
func TestLongReason(t *testing.T) {
	js := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	limit, c := start(t, js, jetstream.ConsumerConfig{}, Options{})
	ran := 0
	go func() {
		(&queue{js, "orders"}).done(ctx)
		cancel()
	}()
	err := limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error {
		ran++
		return worker.Permanent(errors.New(strings.Repeat("ü", 1<<20)))
	})
	if err != nil || ran != 1 || !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("the message ran %d times, %v", ran, err)
	}
}

// A server before 2.10.4 ignores a termination that has a reason. A message that is given up runs once there, too.
func TestTerminationByAnOldServer(t *testing.T) {
	current := strings.TrimPrefix(useNATS(t), "nats://")
	replacing := func(old, anew string) func(io.Writer, io.Reader) (int64, error) {
		return func(to io.Writer, from io.Reader) (int64, error) {
			for b := make([]byte, 1<<16); ; {
				n, err := from.Read(b)
				if err != nil {
					return 0, err
				}
				_, _ = to.Write(bytes.ReplaceAll(b[:n], []byte(old), []byte(anew)))
			}
		}
	}
	nc, err := nats.Connect("nats://" + servers.Listen(t, func(client net.Conn) {
		servers.Pass(client, current, replacing("+TERM because", "+NONE because"), replacing(`"version":"`+server.VERSION, `"version":"2.10.3`))
	}))
	ok(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ok(t, err)
	limit, c := start(t, js, jetstream.ConsumerConfig{}, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { // until the server has taken the termination
		(&queue{js, "orders"}).done(ctx)
		cancel()
	}()
	ran := 0
	err = limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { ran++; return worker.Permanent(errors.New("because")) })
	if err != nil || ran != 1 || !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("Consume = %v, the message ran %d times on NATS %s", err, ran, nc.ConnectedServerVersion())
	}
}

// A user with the permissions of docs/adapters/jetstream.md may consume. A user who lacks one for tickets learns it at the start, and not
// from messages that wait for ever.
func TestPermissions(t *testing.T) {
	tickets := []string{
		"drip.orders.work.*", "$JS.API.STREAM.UPDATE.drip-orders-work", "$JS.API.STREAM.CREATE.drip-orders-work", "$JS.API.DIRECT.GET.drip-orders-work.>", "$JS.API.STREAM.PURGE.drip-orders-work",
	}
	enough := append(tickets, "$JS.API.CONSUMER.INFO.orders.work", "$JS.API.CONSUMER.MSG.NEXT.orders.work", "$JS.ACK.orders.work.>")
	for _, lacks := range append(tickets, "nothing") {
		t.Run(lacks, func(t *testing.T) {
			t.Parallel()
			user := &server.User{Username: "some", Permissions: &server.Permissions{Publish: &server.SubjectPermission{
				Allow: slices.DeleteFunc(slices.Clone(enough), func(s string) bool { return s == lacks }),
			}}}
			s := startNATS(t, t.TempDir(), -1, &server.User{Username: "all"}, user)
			as := func(name string) jetstream.JetStream {
				nc, err := nats.Connect(s.ClientURL(), nats.UserInfo(name, ""), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
				ok(t, err)
				t.Cleanup(nc.Close)
				js, err := jetstream.New(nc)
				ok(t, err)
				return js
			}
			all := as("all")
			start(t, all, jetstream.ConsumerConfig{}, Options{})
			js := as("some")
			c, err := js.Consumer(t.Context(), "orders", "work")
			ok(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			go func() {
				(&queue{all, "orders"}).done(ctx)
				cancel()
			}()
			err = limiting(t, js, Options{Attempts: 2, RetryDelay: time.Millisecond}).Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { return errors.New("no such luck") })
			switch {
			case lacks == "nothing":
				if err != nil || !errors.Is(context.Cause(ctx), context.Canceled) {
					t.Errorf("Consume = %v, %v", err, context.Cause(ctx))
				}
			case !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), `"work"`):
				t.Errorf("Consume = %v without the permission for %s", err, lacks)
			}
		})
	}
}

// Two consumers have tickets of their own, also if the names of consumer and stream together look alike.
func TestTicketsOfConsumersThatLookAlike(t *testing.T) {
	js := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	limit := limiting(t, js, Options{RetryDelay: time.Millisecond, Attempts: 3})
	var runs [2]atomic.Int64
	var ends sync.WaitGroup
	for i, names := range [][2]string{{"orders-eu", "work"}, {"orders", "eu-work"}} {
		q := stream(t, js, names[0])
		c, err := js.CreateConsumer(ctx, q.name, jetstream.ConsumerConfig{Durable: names[1], AckPolicy: jetstream.AckExplicitPolicy})
		ok(t, err)
		ends.Go(func() {
			err := limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { runs[i].Add(1); return errors.New("no such luck") })
			if err != nil {
				t.Error(err)
			}
		})
	}
	for _, name := range []string{"orders-eu", "orders"} {
		ok(t, (&queue{js, name}).Publish(ctx, workertest.Message{Entity: "shop"}))
	}
	for _, name := range []string{"orders-eu", "orders"} {
		(&queue{js, name}).done(ctx)
	}
	cancel()
	ends.Wait()
	for i := range runs {
		if n := runs[i].Load(); n != 3 {
			t.Errorf("consumer %d: the message ran %d times, want the 3 attempts", i, n)
		}
	}
}

// Tickets go on after the server has restarted and has lost the tickets in its memory.
func TestTicketsAfterARestart(t *testing.T) {
	dir := t.TempDir()
	s := startNATS(t, dir, -1)
	port := s.Addr().(*net.TCPAddr).Port
	nc, err := nats.Connect(s.ClientURL(), nats.ReconnectWait(100*time.Millisecond), nats.MaxReconnects(-1))
	ok(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	ok(t, err)
	q := stream(t, js, "orders")
	c, err := q.consumer(t.Context(), -1)
	ok(t, err)
	limit := limiting(t, js, Options{RetryDelay: time.Millisecond, Attempts: 3})
	var runs atomic.Int64
	ctx, end := oktest.Begin(t, 30*time.Second, func(ctx context.Context) error {
		return limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { runs.Add(1); return errors.New("no such luck") })
	})
	watched, err := js.Consumer(ctx, "orders", "work") // Info writes into its consumer
	ok(t, err)
	oktest.Eventually(t, time.Minute, "it consumes", func() bool {
		info, err := watched.Info(ctx)
		return err == nil && info.NumWaiting > 0
	})
	s.Shutdown()
	s.WaitForShutdown()
	startNATS(t, dir, port)
	for nc.Stats().Reconnects == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	ok(t, q.Publish(ctx, workertest.Message{Entity: "shop"}))
	q.done(ctx)
	end()
	if n := runs.Load(); n != 3 {
		t.Errorf("the message ran %d times, want the 3 attempts", n)
	}
}

// Consume ends with an error when nothing more can come.
func TestConsumeEndsWithTheConnection(t *testing.T) {
	js := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	limit, c := start(t, js, jetstream.ConsumerConfig{}, Options{})
	err := limit.Consume(ctx, c, 10, func(context.Context, jetstream.Msg) error { js.Conn().Close(); return nil })
	if !errors.Is(err, jetstream.ErrConnectionClosed) || !strings.Contains(err.Error(), `"work"`) {
		t.Errorf("Consume = %v", err)
	}
}

// absent is a consumer whose server is down until end, and then sends messages until ctx ends.
type absent struct {
	jetstream.Consumer
	ctx context.Context
	end time.Time
}

func (a absent) Messages(...jetstream.PullMessagesOpt) (jetstream.MessagesContext, error) {
	return messages{absent: a}, nil
}

type messages struct {
	jetstream.MessagesContext
	absent absent
}

func (messages) Stop() {}

func (m messages) Next(...jetstream.NextOpt) (jetstream.Msg, error) {
	time.Sleep(time.Second)
	if time.Now().Before(m.absent.end) {
		return nil, errors.New("no server")
	}
	return stray{}, m.absent.ctx.Err()
}

// stray is a message of no consumer.
type stray struct{ jetstream.Msg }

func (stray) Metadata() (*jetstream.MsgMetadata, error) { return nil, errors.New("of no consumer") }
func (stray) InProgress() error                         { return nil }

// An outage costs a line in the log when it begins and one when it is over, not one for each try.
func TestOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
		defer cancel()
		var log bytes.Buffer
		c := &consumption{Limit: &Limit{log: slog.New(slog.NewTextHandler(&log, nil))}, hands: make(chan struct{}, 1)}
		ok(t, c.pull(ctx, ctx, absent{ctx: ctx, end: time.Now().Add(time.Hour)}))
		c.running.Wait()
		for _, line := range []string{"no message from the server, will try again", "messages from the server again"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%d lines are %q", n, line)
			}
		}
	})
}

// start makes a stream with one message and a consumer of it, and a Limit.
func start(t *testing.T, js jetstream.JetStream, config jetstream.ConsumerConfig, o Options) (*Limit, jetstream.Consumer) {
	t.Helper()
	q := stream(t, js, "orders")
	config.Durable, config.AckPolicy, config.MaxDeliver = "work", jetstream.AckExplicitPolicy, -1
	c, err := js.CreateOrUpdateConsumer(t.Context(), q.name, config)
	ok(t, err)
	ok(t, q.Publish(t.Context(), workertest.Message{Entity: "shop"}))
	return limiting(t, js, o), c
}

// Consume returns an error also if its consumer is deleted while all hands are busy, when no pull waits for an answer. It leaves no
// subscription behind.
func TestConsumerDeletedWhileBusy(t *testing.T) {
	js := connect(t)
	limit, c := start(t, js, jetstream.ConsumerConfig{}, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	before := js.Conn().NumSubscriptions()
	err := limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { return js.DeleteConsumer(ctx, "orders", "work") })
	if !errors.Is(err, jetstream.ErrConsumerNotFound) {
		t.Errorf("Consume = %v", err)
	}
	oktest.Eventually(t, time.Minute, "no subscription is left", func() bool { return js.Conn().NumSubscriptions() <= before })
}

// deaf is a consumer whose pulls hear nothing from the server.
type deaf struct {
	jetstream.Consumer
	asking atomic.Int64
	info   func(asking int64)
}

func (d *deaf) Messages(...jetstream.PullMessagesOpt) (jetstream.MessagesContext, error) {
	return silence{}, nil
}

type silence struct{ jetstream.MessagesContext }

func (silence) Next(...jetstream.NextOpt) (jetstream.Msg, error) {
	return nil, jetstream.ErrNoHeartbeat
}
func (silence) Stop() {}

func (d *deaf) Info(context.Context) (*jetstream.ConsumerInfo, error) {
	defer d.asking.Add(-1)
	d.info(d.asking.Add(1))
	time.Sleep(100 * time.Millisecond) // as the server takes
	return nil, errors.New("no answer")
}

// One pull at a time asks for the consumer, whose Info writes into it.
func TestDeafPulls(t *testing.T) {
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{}, Options{Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked := atomic.Int64{}
	d := &deaf{Consumer: c, info: func(asking int64) {
		if asking > 1 {
			t.Errorf("%d pulls ask for the consumer at once", asking)
		}
		if asked.Add(1) == 2 {
			cancel()
		}
	}}
	if err := limit.Consume(ctx, d, pulls, func(context.Context, jetstream.Msg) error { return nil }); err != nil || asked.Load() < 2 {
		t.Errorf("Consume = %v, the pulls have asked %d times", err, asked.Load())
	}
}

// NATS adds a BackOff to the delays of postponed messages, or takes it off: Consume does not begin.
func TestBackOff(t *testing.T) {
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{BackOff: []time.Duration{time.Second, 5 * time.Second}}, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var ran []time.Time
	err := limit.Consume(ctx, c, 5, func(context.Context, jetstream.Msg) error {
		if ran = append(ran, time.Now()); len(ran) < 3 {
			return worker.Later(time.Second, nil)
		}
		cancel()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "BackOff") {
		t.Errorf("Consume = %v, the message ran at %v", err, ran)
	}
}

// A consumer may bound how long a pull waits.
func TestShortPulls(t *testing.T) {
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{MaxRequestExpires: 2 * time.Second}, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	ran := false
	err := limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { ran = true; cancel(); return nil })
	if err != nil || !ran {
		t.Errorf("Consume = %v, the message ran: %v", err, ran)
	}
}

// A program that is stopped while it starts has no error.
func TestConsumeAfterTheEnd(t *testing.T) {
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{}, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := limit.Consume(ctx, c, 1, func(context.Context, jetstream.Msg) error { return nil }); err != nil {
		t.Errorf("Consume = %v", err)
	}
}

// A handler that acknowledges its message itself is named in the log. The message runs once.
func TestHandlerAcknowledges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var log bytes.Buffer
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{}, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ran := 0
	err := limit.Consume(ctx, c, 1, func(_ context.Context, m jetstream.Msg) error {
		ran++
		cancel()
		return m.Ack()
	})
	if text := log.String(); err != nil || ran != 1 || !strings.Contains(text, "the handler has settled its message") || strings.Contains(text, "delivered again") {
		t.Errorf("it ran %d times, %v, log: %s", ran, err, text)
	}
}

// A message that was in hand when the server forgot the tickets takes no ticket of another message with it.
func TestTicketsOfOthersStay(t *testing.T) {
	js := connect(t)
	limit, c := start(t, js, jetstream.ConsumerConfig{}, Options{})
	ctx := t.Context()
	n, err := limit.notes(ctx, c.CachedInfo())
	ok(t, err)
	n.put(ctx, "1", "attempts=1")
	if note, err := n.get(ctx, "1"); note != "attempts=1" {
		t.Fatalf("the note is %q, %v", note, err)
	}
	ok(t, js.DeleteStream(ctx, n.config.Name)) // as a restart does with a stream in memory
	n.put(ctx, "2", "attempts=4")
	ok(t, n.drop(ctx, "1"))
	if note, err := n.get(ctx, "2"); note != "attempts=4" {
		t.Errorf("the note of another message is %q, %v", note, err)
	}
	ok(t, n.drop(ctx, "2"))
	if note, err := n.get(ctx, "2"); note != "" || err != nil {
		t.Errorf("the note that was dropped is %q, %v", note, err)
	}
}

// A stream that is made anew has messages with the sequences of the old ones, which have nothing to do with their notes.
func TestNotesOfAnotherStream(t *testing.T) {
	js := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	config := jetstream.ConsumerConfig{AckWait: time.Second}
	limit, c := start(t, js, config, Options{})
	first, stop := context.WithCancel(ctx)
	ok(t, limit.Consume(first, c, 1, func(context.Context, jetstream.Msg) error { stop(); return worker.Later(time.Hour, nil) }))
	ok(t, js.DeleteStream(ctx, "orders"))
	limit, c = start(t, js, config, Options{})
	_, err := c.Next() // a process that dies
	ok(t, err)
	second, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	ran := false
	ok(t, limit.Consume(second, c, 1, func(ctx context.Context, _ jetstream.Msg) error {
		ran = true
		if op := worker.OperationOf(ctx); op.Postponements > 0 {
			t.Errorf("the new message has %d postponements", op.Postponements)
		}
		stop()
		return nil
	}))
	if !ran {
		t.Error("the new message waits for the slot of an old one")
	}
}

// unread is a stream that does not answer once.
type unread struct {
	jetstream.Stream
	once sync.Once
}

func (s *unread) GetLastMsgForSubject(ctx context.Context, subject string) (_ *jetstream.RawStreamMsg, err error) {
	if s.once.Do(func() { err = context.DeadlineExceeded }); err != nil {
		return nil, err
	}
	return s.Stream.GetLastMsgForSubject(ctx, subject)
}

// A message whose ticket the server does not tell waits, and keeps its ticket.
func TestNoAnswerAboutATicket(t *testing.T) {
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{}, Options{})
	notes, err := limit.notes(t.Context(), c.CachedInfo())
	ok(t, err)
	notes.put(t.Context(), "1", "attempts=3")
	notes.stream = &unread{Stream: notes.stream}
	ran := false
	consuming := &consumption{Limit: limit, config: c.CachedInfo().Config, notes: notes, handle: func(ctx context.Context, _ jetstream.Msg) error {
		ran = true
		if n := worker.OperationOf(ctx).Attempts; n != 3 {
			t.Errorf("the message has failed %d times, want 3", n)
		}
		return nil
	}}
	msg, err := c.Next()
	ok(t, err)
	ok(t, msg.Nak())
	for range 2 {
		msg, err = c.Next()
		ok(t, err)
		consuming.step(t.Context(), msg)
	}
	if !ran {
		t.Error("the message did not run")
	}
}

// late is a JetStream whose answers to publishers come too late.
type late struct{ jetstream.JetStream }

func (l late) PublishMsg(ctx context.Context, m *nats.Msg, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	_, err := l.JetStream.PublishMsg(ctx, m, o...)
	return nil, errors.Join(err, context.DeadlineExceeded)
}

// The log does not say that a ticket is lost which the server may have stored.
func TestLateAnswerAboutATicket(t *testing.T) {
	var log bytes.Buffer
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{}, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	notes, err := limit.notes(t.Context(), c.CachedInfo())
	ok(t, err)
	notes.js = late{notes.js}
	notes.put(t.Context(), "1", "attempts=3")
	if note, err := notes.get(t.Context(), "1"); note != "attempts=3" || err != nil || !strings.Contains(log.String(), "may be lost") {
		t.Errorf("the note is %q, %v, and the log: %s", note, err, log.String())
	}
}

// mute tells the server nothing while its message is in hand, like a message of a connection that is lost.
type mute struct{ jetstream.Msg }

func (mute) InProgress() error { return nil }

// A message that is delivered again while it is in hand does not run beside itself, also if another call of Consume gets it. It ends with
// its first delivery.
func TestDeliveredWhileInHand(t *testing.T) {
	js := connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	limit, c := start(t, js, jetstream.ConsumerConfig{AckWait: 500 * time.Millisecond}, Options{})
	notes, err := limit.notes(ctx, c.CachedInfo())
	ok(t, err)
	began, end := make(chan struct{}, 2), make(chan struct{})
	handle := func(context.Context, jetstream.Msg) error {
		began <- struct{}{}
		<-end
		return nil
	}
	consuming := &consumption{Limit: limit, config: c.CachedInfo().Config, notes: notes, handle: handle}
	first, err := c.Next()
	ok(t, err)
	var running sync.WaitGroup
	running.Go(func() { consuming.step(ctx, mute{first}) })
	<-began
	for _, consuming := range []*consumption{consuming, {Limit: limit, config: consuming.config, notes: notes, handle: handle}} {
		again, err := c.Next()
		ok(t, err)
		returned := make(chan struct{})
		running.Go(func() { consuming.step(ctx, mute{again}); close(returned) })
		select {
		case <-returned:
		case <-began:
			t.Error("the message runs twice at the same time")
		}
	}
	close(end)
	running.Wait()
	(&queue{js, "orders"}).done(ctx)
	ok(t, ctx.Err())
}

// naked notes the delay of its message.
type naked struct {
	jetstream.Msg
	delay time.Duration
}

func (m *naked) NakWithDelay(d time.Duration) error {
	m.delay = d
	return m.Msg.NakWithDelay(d)
}

// A message that waits for days comes back while the server still has its note.
func TestDelayOfDays(t *testing.T) {
	limit, c := start(t, connect(t), jetstream.ConsumerConfig{}, Options{})
	notes, err := limit.notes(t.Context(), c.CachedInfo())
	ok(t, err)
	msg, err := c.Next()
	ok(t, err)
	m := &naked{Msg: msg}
	consuming := &consumption{Limit: limit, config: c.CachedInfo().Config, notes: notes, handle: func(context.Context, jetstream.Msg) error {
		return worker.Later(7*24*time.Hour, nil)
	}}
	consuming.step(t.Context(), m)
	note, err := notes.get(t.Context(), "1")
	ok(t, err)
	due := time.Until(worker.ParseNote(note).Due)
	if m.delay < time.Hour || m.delay >= noteAge || due < 6*24*time.Hour {
		t.Errorf("the message waits for %v, its note says %v, and the server keeps that for %v", m.delay, due, noteAge)
	}
}

func TestNoJetStream(t *testing.T) {
	o := Options{Limiter: &buckettest.Plain{}, Entity: func(jetstream.Msg) (string, error) { return "shop", nil }}
	if _, err := New(nil, o); err == nil || !strings.Contains(err.Error(), "JetStream is nil") {
		t.Errorf("New = %v without a JetStream", err)
	}
}
