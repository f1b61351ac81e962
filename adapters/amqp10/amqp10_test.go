package dripamqp10

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
	"github.com/drip-go/drip/workertest"
)

var adapter = workertest.Adapter{Open: openQueue, Late: 100 * time.Millisecond, Again: 5 * time.Second}

func TestMain(m *testing.M) {
	workertest.Child(adapter)
	os.Exit(servers.Main(m))
}

// need skips the test with a broker older than RabbitMQ 4.3, where Consume must not begin. scripts/rabbitmq4 runs the tests
// with one that is not.
func need(t testing.TB) (url string) {
	t.Helper()
	url = servers.UseRabbitMQ(t).URL()
	conn, err := amqp091.Dial(url)
	ok(t, err)
	defer conn.Close()
	if version, _ := conn.Properties["version"].(string); !delays(version) {
		err := limiting(t, Options{}).Consume(t.Context(), Queue{URL: url, Name: "orders"}, func(context.Context, *amqp.Message) error { return nil })
		if !errors.Is(err, ErrBroker) {
			t.Errorf("Consume = %v with RabbitMQ %s, want ErrBroker", err, version)
		}
		t.Skipf("RabbitMQ %s does not delay messages; 4.3 does (Consume = %v)", version, err)
	}
	return url
}

func TestAdapter(t *testing.T) {
	workertest.Run(t, adapter, need(t))
}

// The test kills processes and servers, as the tests of package consumer do.
func TestKills(t *testing.T) {
	need(t)
	workertest.Kills(t, adapter, func(t *testing.T) workertest.Server { return servers.OwnRabbitMQ(t) })
}

// A message is rejected once, and no other is delivered again for it, however long its error is.
func TestLongReason(t *testing.T) {
	url := need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	opened, err := openQueue(ctx, url, "reason")
	ok(t, err)
	ok(t, opened.Publish(ctx, workertest.Message{ID: "1", Entity: "shop"}, workertest.Message{ID: "2", Entity: "shop"}))
	limit := limiting(t, Options{})
	ran := ""
	err = limit.Consume(ctx, Queue{URL: url, Name: "reason", InHand: 1}, func(_ context.Context, m *amqp.Message) error {
		if ran += string(m.GetData()); len(ran) > 1 {
			cancel()
			return nil
		}
		return worker.Permanent(errors.New(strings.Repeat("ü", 1<<20)))
	})
	if err != nil || ran != "12" {
		t.Errorf("the messages ran in the order %s, %v", ran, err)
	}
}

// A dead letter that somebody puts back begins anew: its attempts, its postponements and its age count from 0.
func TestDeadLetterBeginsAnew(t *testing.T) {
	url := need(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dead, err := openQueue(ctx, url, "anew.dead")
	ok(t, err)
	err = servers.WithChannel(url, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare("anew", true, false, false, false, amqp091.Table{
			amqp091.QueueTypeArg: "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "anew.dead",
		})
		return err
	})
	ok(t, err)
	q := &queue{url, "anew"}
	ok(t, q.Publish(ctx, workertest.Message{ID: "1", Entity: "shop"}))
	limit := limiting(t, Options{Attempts: 2, RetryDelay: 100 * time.Millisecond})
	var before []int
	_, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return limit.Consume(ctx, Queue{URL: url, Name: "anew"}, func(ctx context.Context, m *amqp.Message) error {
			before = append(before, worker.OperationOf(ctx).Attempts)
			return errors.New("failure")
		})
	})
	s, err := open(ctx, Queue{URL: url, Name: "anew.dead", InHand: 1}, 1)
	ok(t, err)
	defer s.conn.Close()
	channel, err := s.conn.NewSession(ctx, nil)
	ok(t, err)
	sender, err := channel.NewSender(ctx, "/queues/anew", nil)
	ok(t, err)
	for n := range 2 {
		m, err := s.receiver.Receive(ctx, nil)
		if err == nil && n == 0 {
			err = sender.Send(ctx, m, nil)
		}
		if err == nil {
			err = s.receiver.AcceptMessage(ctx, m)
			s.next(ctx)
		}
		ok(t, err)
	}
	end()
	if !slices.Equal(before, []int{0, 1, 0, 1}) {
		t.Errorf("it ran after %v failures; want 0, 1, 0, 1", before)
	}
	if n, err := dead.(*queue).Left(ctx); n != 0 || err != nil {
		t.Errorf("%d dead letters are left, %v", n, err)
	}
}

// A handler that takes long does not keep Consume from connecting again. Its context ends, because the broker delivers its
// message again.
func TestConnectsBesideHandlers(t *testing.T) {
	need(t)
	broker := servers.OwnRabbitMQ(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	opened, err := openQueue(ctx, broker.URL(), "long")
	ok(t, err)
	ok(t, opened.Publish(ctx, workertest.Message{ID: "1", Entity: "shop"}))
	limit := limiting(t, Options{})
	again := make(chan bool)
	release := sync.OnceFunc(func() { close(again) })
	var runs atomic.Int64
	err = limit.Consume(ctx, Queue{URL: broker.URL(), Name: "long"}, func(handling context.Context, m *amqp.Message) error {
		if runs.Add(1) > 1 {
			release()
			return nil
		}
		if out, err := broker.Ctl(ctx, "close_all_connections", "a test"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		select {
		case <-again:
		case <-ctx.Done():
			t.Error("the message was not delivered again")
		}
		if handling.Err() == nil {
			t.Error("the context has not ended")
		}
		cancel()
		return nil
	})
	if err != nil {
		t.Errorf("Consume = %v", err)
	}
}

// A Consume that waits for its last handlers takes no messages from others.
func TestStoppingTakesNothing(t *testing.T) {
	url := need(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	q, err := openQueue(ctx, url, "stopping")
	ok(t, err)
	publish := func(n int) {
		for range n {
			ok(t, q.Publish(ctx, workertest.Message{ID: "m", Entity: "shop"}))
		}
	}
	limit := limiting(t, Options{})
	consume := func(ctx context.Context, handle func()) (ended chan error) {
		ended = make(chan error, 1)
		go func() {
			ended <- limit.Consume(ctx, Queue{URL: url, Name: "stopping"}, func(context.Context, *amqp.Message) error { handle(); return nil })
		}()
		return ended
	}
	stopping, stop := context.WithCancel(ctx)
	begun, release := make(chan bool, 100), make(chan bool)
	first := consume(stopping, func() { begun <- true; <-release })
	publish(1)
	<-begun
	stop()
	const n = 40
	publish(n)
	second := consume(ctx, func() { begun <- true })
	for i := range n {
		select {
		case <-begun:
		case <-time.After(time.Minute):
			t.Fatalf("%d of %d messages were handled beside a Consume that stops", i, n)
		}
	}
	close(release)
	cancel()
	for _, ended := range []chan error{first, second} {
		if err := <-ended; err != nil {
			t.Errorf("Consume = %v", err)
		}
	}
}

// A message that the broker cannot convert ends the session. The good messages around it run, with quick handlers and with slow
// ones, and it alone uses up its deliveries.
func TestMessageThatEndsTheSession(t *testing.T) {
	for name, c := range map[string]struct {
		n, at int
		takes time.Duration
	}{"first": {n: 10}, "in the middle": {n: 400, at: 200}, "behind slow handlers": {n: 30, at: 20, takes: 500 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				t.Skip("the broker gives a message up after 20 deliveries, with pauses between")
			}
			url := need(t)
			queueName := strings.ReplaceAll(t.Name(), "/", "-")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			q, err := openQueue(ctx, url, queueName)
			ok(t, err)
			err = servers.WithChannel(url, func(ch *amqp091.Channel) error {
				for i := range c.n + 1 {
					m := amqp091.Publishing{Headers: amqp091.Table{}, DeliveryMode: amqp091.Persistent, Body: []byte(strconv.Itoa(i))}
					if i == c.at {
						m.Headers["price"] = amqp091.Decimal{Scale: 2, Value: 314}
					}
					if err := ch.PublishWithContext(ctx, "", queueName, false, false, m); err != nil {
						return err
					}
				}
				return nil
			})
			ok(t, err)
			limit := limiting(t, Options{Entity: func(*amqp.Message) (string, error) { return "shop", nil }, Logger: slog.New(slog.DiscardHandler)})
			var mu sync.Mutex
			ran := map[string]bool{}
			err = limit.Consume(ctx, Queue{URL: url, Name: queueName}, func(ctx context.Context, m *amqp.Message) error {
				select {
				case <-time.After(c.takes):
				case <-ctx.Done():
					return ctx.Err()
				}
				mu.Lock()
				defer mu.Unlock()
				if ran[string(m.GetData())] = true; len(ran) == c.n {
					cancel()
				}
				return nil
			})
			if left, _ := q.(*queue).Left(context.Background()); err != nil || len(ran) != c.n {
				t.Errorf("Consume = %v; of %d good messages %d ran, and %d messages are left in the queue", err, c.n, len(ran), left)
			}
		})
	}
}

// Each place that a message leaves is free at once, also beside handlers that take long.
func TestFreePlaces(t *testing.T) {
	url := need(t)
	q, err := openQueue(t.Context(), url, "places")
	ok(t, err)
	limit := limiting(t, Options{})
	const inHand, long, short = 16, 15, 5
	begun, release := make(chan string, long+short), make(chan bool)
	ctx, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return limit.Consume(ctx, Queue{URL: url, Name: "places", InHand: inHand}, func(_ context.Context, m *amqp.Message) error {
			if begun <- string(m.GetData()); string(m.GetData()) == "long" {
				<-release
			}
			return nil
		})
	})
	run := func(id string, n int) {
		t.Helper()
		for range n {
			ok(t, q.Publish(ctx, workertest.Message{ID: id, Entity: "shop"}))
		}
		for i := range n {
			select {
			case <-begun:
			case <-time.After(time.Minute):
				t.Errorf("%d of %d %s messages ran, with InHand %d", i, n, id, inHand)
				return
			}
		}
	}
	run("long", long)
	run("short", short)
	close(release)
	end()
}

// A handler that ends its goroutine leaves its own message unsettled, and holds up no other.
func TestGoexit(t *testing.T) {
	url := need(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	q, err := openQueue(ctx, url, "goexit")
	ok(t, err)
	ok(t, q.Publish(ctx, workertest.Message{ID: "1", Entity: "shop"}, workertest.Message{ID: "2", Entity: "shop"}))
	ran := ""
	err = limiting(t, Options{}).Consume(ctx, Queue{URL: url, Name: "goexit", InHand: 1}, func(_ context.Context, m *amqp.Message) error {
		if ran += string(m.GetData()); ran == "1" {
			runtime.Goexit()
		}
		cancel()
		return nil
	})
	if err != nil || ran != "12" {
		t.Errorf("the messages ran in the order %s, %v", ran, err)
	}
}

// The error of a URL that cannot be used has nothing of its password.
func TestURLError(t *testing.T) {
	limit := limiting(t, Options{})
	for _, url := range []string{
		"amqp://user:se%zzcret@localhost/", "amqp://user:sec/ret@localhost/", "amqp://sec#ret@localhost/", "user:secret@localhost",
		"http://user:secret@localhost/", "amqp://user:secret\x7f@localhost/",
	} {
		err := limit.Consume(t.Context(), Queue{URL: url, Name: "orders"}, func(context.Context, *amqp.Message) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "Queue.URL is not an AMQP URL") || strings.Contains(err.Error(), "sec") || strings.Contains(err.Error(), "se%") {
			t.Errorf("with the URL %q: %v", url, err)
		}
	}
}

// A server that accepts a connection and says nothing, as a proxy without its broker, is an error, after which Consume can try
// again.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a timeout")
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer silent.Close()
	limit := limiting(t, Options{})
	ended := make(chan error, 1)
	go func() {
		ended <- limit.Consume(t.Context(), Queue{URL: "amqp://" + silent.Addr().String() + "/", Name: "orders"}, func(context.Context, *amqp.Message) error { return nil })
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("Consume returns nil")
		}
	case <-time.After(25 * time.Second):
		t.Error("Consume waits for ever")
	}
}

// A queue that makes no sense is an error before anything is consumed.
func TestQueueErrors(t *testing.T) {
	limit := limiting(t, Options{})
	handle := func(context.Context, *amqp.Message) error { return nil }
	for want, c := range map[string]struct {
		q      Queue
		handle func(context.Context, *amqp.Message) error
	}{
		"Queue.InHand is -1":                 {Queue{InHand: -1}, handle},
		"Queue.InHand is 4294967297":         {Queue{InHand: 1<<32 + 1}, handle},
		"Queue.URL or Queue.Name is missing": {Queue{Name: "-"}, handle},
		"handle is nil":                      {Queue{}, nil},
		"Queue.Conn has a TLSConfig, and Queue.URL is one without TLS": {Queue{Conn: &amqp.ConnOptions{TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}}}, handle},
		`Queue.Conn.HostName = "vhost:shops"`:                          {Queue{URL: "amqp://localhost:1/shops", Name: "orders"}, handle},
	} {
		if c.q.Name == "" {
			c.q.URL, c.q.Name = "amqp://localhost:1/", "orders"
		}
		if err := limit.Consume(t.Context(), c.q, c.handle); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Consume = %v, want %q", err, want)
		}
	}
}

// frame is a frame of AMQP 1.0 with a performative and its fields.
func frame(performative byte, count byte, fields ...byte) []byte {
	body := append([]byte{2, 0, 0, 0, 0, 0x53, performative, 0xc0, byte(len(fields) + 1), count}, fields...)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

// attends answers a client of RabbitMQ 4.3 until it has a receiver.
func attends(conn net.Conn) error {
	header := make([]byte, 8)
	if _, err := io.ReadFull(conn, header); err != nil {
		return err
	}
	version := append([]byte{0xa3, 7}, "version\xa1\x055.0.0"...)
	open := append([]byte{0xa1, 1, 'b', 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40, 0xc1, byte(len(version) + 1), 2}, version...)
	if _, err := conn.Write(append(header, frame(0x10, 10, open...)...)); err != nil {
		return err
	}
	for {
		size := make([]byte, 4)
		if _, err := io.ReadFull(conn, size); err != nil {
			return err
		}
		got := make([]byte, binary.BigEndian.Uint32(size)-4)
		if _, err := io.ReadFull(conn, got); err != nil {
			return err
		}
		var answer []byte
		switch got[6] {
		case 0x11: // begin
			answer = frame(0x11, 4, 0x60, 0, 0, 0x43, 0x52, 100, 0x52, 100)
		case 0x12: // attach, which begins with the link's name
			name := got[bytes.IndexByte(got, 0xa1):]
			link := append(slices.Clone(name[:2+name[1]]), 0x43, 0x42, 0x40, 0x40, 0, 0x53, 0x28, 0x45, 0, 0x53, 0x29, 0x45, 0x40, 0x40, 0x43)
			answer = frame(0x12, 10, link...)
		case 0x13: // flow: the client gives credit
			return nil
		}
		if _, err := conn.Write(answer); err != nil {
			return err
		}
	}
}

// A broker that is gone costs one line in the log, not one for each try to connect.
func TestOutageIsLoggedOnce(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var log bytes.Buffer
	limit := limiting(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	go func() {
		defer cancel()
		defer server.Close()
		for tries := range 5 {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			if tries == 0 {
				err = attends(conn)
			} else {
				_, err = io.ReadFull(conn, make([]byte, 8)) // else closing resets the connection, which is another cause
			}
			if err != nil {
				t.Error(err)
			}
			conn.Close()
		}
	}()
	err = limit.Consume(ctx, Queue{URL: "amqp://" + server.Addr().String(), Name: "orders"}, func(context.Context, *amqp.Message) error { return nil })
	if n := strings.Count(log.String(), "the connection was lost, will connect again"); err != nil || n != 1 {
		t.Errorf("Consume = %v, and the log has %d lines:\n%s", err, n, log.String())
	}
}

// The pauses between connections grow, also if the broker accepts each connection and then ends it.
func TestPauses(t *testing.T) {
	var got []time.Duration
	pauses := time.Duration(0)
	for _, lasted := range []time.Duration{0, time.Second, time.Second, 0, 0, 0, time.Minute, 0} {
		pauses = pause(pauses, lasted)
		got = append(got, pauses/time.Millisecond)
	}
	if want := []time.Duration{100, 200, 400, 800, 1600, 2000, 100, 200}; !slices.Equal(got, want) {
		t.Errorf("the pauses are %d ms, want %d", got, want)
	}
}

func BenchmarkAdapter(b *testing.B) {
	workertest.Benchmark(b, adapter, need(b))
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]bool{"": false, "3.10.8": false, "4.2.9": false, "4.3.0": true, "4.3": true, "4.10.1": true, "5.0.0": true, "x.y": false} {
		if delays(version) != want {
			t.Errorf("delays(%q) = %v", version, !want)
		}
	}
}

var ok = oktest.OK // ends the test if there is an error

// limiting makes a Limit of shops that lets everything run.
func limiting(t testing.TB, o Options) *Limit {
	t.Helper()
	if o.Entity == nil {
		o.Entity = shop
	}
	o.Limiter = &buckettest.Plain{}
	limit, err := New(o)
	ok(t, err)
	return limit
}

type queue struct{ url, name string }

func openQueue(_ context.Context, url, name string) (workertest.Queue, error) {
	q := &queue{url, name}
	return q, servers.WithChannel(q.url, func(ch *amqp091.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp091.Table{amqp091.QueueTypeArg: "quorum"})
		return err
	})
}

func (q *queue) Publish(ctx context.Context, messages ...workertest.Message) error {
	conn, err := amqp.Dial(ctx, q.url, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return err
	}
	sender, err := session.NewSender(ctx, "/queues/"+q.name, nil)
	if err != nil {
		return err
	}
	for _, m := range messages {
		err := sender.Send(ctx, &amqp.Message{
			Header: &amqp.MessageHeader{Durable: true}, Data: [][]byte{[]byte(m.ID)}, ApplicationProperties: map[string]any{"shop": m.Entity},
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

func shop(m *amqp.Message) (string, error) {
	shop, _ := m.ApplicationProperties["shop"].(string)
	return shop, nil
}

func (q *queue) Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, workertest.Message) error) error {
	limit, err := New(Options{Limiter: l, Entity: shop, RetryDelay: 200 * time.Millisecond})
	if err != nil {
		return err
	}
	return limit.Consume(ctx, Queue{URL: q.url, Name: q.name}, func(ctx context.Context, m *amqp.Message) error {
		entity, err := shop(m)
		if err != nil {
			return err
		}
		return handle(ctx, workertest.Message{ID: string(m.GetData()), Entity: entity})
	})
}

// ConsumeBare handles messages as they come, in order.
func (q *queue) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	s, err := open(ctx, Queue{URL: q.url, Name: q.name, InHand: 30}, 30)
	if err != nil {
		return err
	}
	defer s.conn.Close()
	for {
		m, err := s.receiver.Receive(ctx, nil)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = handle(ctx, workertest.Message{ID: string(m.GetData())})
		}
		if err == nil {
			err = s.receiver.AcceptMessage(ctx, m)
			s.next(ctx)
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

func (q *queue) Left(context.Context) (n int, err error) {
	err = servers.WithChannel(q.url, func(ch *amqp091.Channel) error {
		queue, err := ch.QueueDeclarePassive(q.name, true, false, false, false, nil)
		n = queue.Messages
		return err
	})
	return n, err
}
