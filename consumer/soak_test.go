package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/workertest"
)

// fault is something that goes wrong for a while in a soak. It returns when it is over.
type fault struct {
	name string
	do   func(s *soak) error
}

var faults = []fault{
	{"the connections are cut", func(s *soak) error { s.proxy.cut(); return nil }},
	{"the broker hangs", func(s *soak) error {
		if err := s.server.Pause(); err != nil {
			return err
		}
		time.Sleep(time.Second)
		return s.server.Resume()
	}},
	{"the broker is short of memory", func(s *soak) error {
		if _, err := s.server.Ctl(s.t.Context(), "set_vm_memory_high_watermark", "0.0000001"); err != nil {
			return err
		}
		time.Sleep(time.Second)
		_, err := s.server.Ctl(s.t.Context(), "set_vm_memory_high_watermark", "0.8")
		return err
	}},
	{"the broker is killed", func(s *soak) error {
		if err := s.server.Kill(); err != nil {
			return err
		}
		return s.server.Start(s.t.Context())
	}},
	{"the limiter gives no answer", func(s *soak) error {
		s.outage.Store(true)
		time.Sleep(time.Second)
		s.outage.Store(false)
		return nil
	}},
	{"confirmations are lost", func(s *soak) error {
		s.lossy.Store(true)
		time.Sleep(time.Second)
		s.lossy.Store(false)
		s.proxy.cut()
		return nil
	}},
	{"the consumer is stopped and another started", func(s *soak) error {
		s.stop()
		s.stop = s.consume()
		return nil
	}},
}

// soak is a steady load on one consumer while things go wrong.
type soak struct {
	t      *testing.T
	server *servers.RabbitMQ
	proxy  *proxy
	url    string
	bucket *drip.Bucket
	stop   func()

	outage, lossy atomic.Bool

	mu      sync.Mutex
	handled map[string]int
	out     int // published, and confirmed
}

const soakQueue = "orders"

func (s *soak) consume() (stop func()) {
	s.t.Helper()
	o := Options{
		URL: s.url, Queue: soakQueue, Limiter: wayward(s.bucket, &s.outage),
		Entity: byType,
		Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.handled[d.MessageId]++
			if s.handled[d.MessageId] == 1 && rand.N(50) == 0 {
				s.handled[d.MessageId] = 0 // it is tried again
				return fmt.Errorf("bad luck")
			}
			return nil
		}),
		RetryDelay: 100 * time.Millisecond, Attempts: 20,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for { // as a supervisor does: what can't begin is started again
			err := consume(ctx, o)
			if err == nil || ctx.Err() != nil {
				ended <- err
				return
			}
			sleep.For(ctx, firstBackoff)
		}
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("Run = %v", err)
		}
	}
}

// load publishes messages at a steady rate until ctx ends. It counts the confirmed messages.
func (s *soak) load(ctx context.Context) {
	const batch, every = 20, 100 * time.Millisecond
	for n, tick := 0, time.NewTicker(every); ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for !s.published(ctx, n*batch, (n+1)*batch) && ctx.Err() == nil {
			time.Sleep(every)
		}
	}
}

// published tells whether the broker has confirmed these messages.
func (s *soak) published(ctx context.Context, from, to int) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var messages []workertest.Message
	for i := from; i < to; i++ {
		messages = append(messages, workertest.Message{ID: fmt.Sprint(i), Entity: fmt.Sprint("shop", i%10)})
	}
	q := conforming{s.server.URL(), soakQueue}
	if q.Publish(ctx, messages...) != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = to
	return true
}

// counted returns how many of the messages that were published have been handled, and how many of those twice.
func (s *soak) counted() (published, handled, twice int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.out {
		switch times := s.handled[fmt.Sprint(i)]; {
		case times > 1:
			twice++
			fallthrough
		case times > 0:
			handled++
		}
	}
	return s.out, handled, twice
}

// resources are what must not grow.
type resources struct {
	goroutines       int
	heap             uint64
	channels, queues int
}

func (s *soak) resources() (r resources) {
	s.t.Helper()
	out, err := s.server.Ctl(s.t.Context(), "eval", "{length(rabbit_channel:list()), length(rabbit_amqqueue:list())}.")
	if err == nil {
		_, err = fmt.Sscanf(out, "{%d,%d}", &r.channels, &r.queues)
	}
	oktest.OK(s.t, err)
	r.goroutines, r.heap = runtime.NumGoroutine(), heapInUse()
	return r
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestSoak runs a steady load with random faults. At the end the process uses as much as at the beginning.
func TestSoak(t *testing.T) {
	const lasts = 10 * time.Second
	server := servers.OwnRabbitMQ(t)
	bucket := buckettest.New(t, drip.Options{Size: 20, RefreshRate: 40})
	s := &soak{t: t, server: server, bucket: bucket, handled: map[string]int{}}
	s.proxy, s.url = through(t, server.URL(), 0)
	s.proxy.through(func(f frame) bool { return !f.confirms() || !s.lossy.Load() })
	b := connect(t, server.URL())
	b.declare(soakQueue, Quorum)
	b.must(b.ch.Close())

	// The queues are older than the three seconds in which a kill loses them, and have seen a round, before it begins.
	s.stop = s.consume()
	ctx, cancel := context.WithCancel(t.Context())
	var loading sync.WaitGroup
	loading.Go(func() { s.load(ctx) })
	everything := func() bool { published, handled, _ := s.counted(); return handled == published && published > 0 }
	eventually(t, "a message is handled", func() bool { _, handled, _ := s.counted(); return handled > 0 }) // all queues are there
	time.Sleep(5 * time.Second)
	s.stop()
	before := s.resources()
	s.stop = s.consume()

	happened := map[string]int{}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		f := faults[rand.N(len(faults))]
		happened[f.name]++
		if err := f.do(s); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		time.Sleep(rand.N(2 * time.Second))
	}
	cancel()
	loading.Wait()
	oktest.Eventually(t, 2*time.Minute, "every message is handled", everything)
	oktest.Eventually(t, 2*time.Minute, "nothing is left", func() bool { return b.ready(soakQueue) == 0 })
	s.stop()
	published, _, twice := s.counted()
	t.Logf("of %d messages none was lost, %d were handled twice; %v", published, twice, happened)
	var after resources
	defer func() {
		if t.Failed() {
			stacks := make([]byte, 1<<20)
			t.Logf("before %+v, after %+v\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
		}
	}()
	eventually(t, "what was used is given back", func() bool {
		after = s.resources()
		return after.goroutines <= before.goroutines+2 && after.channels <= before.channels && after.queues <= before.queues
	})
	s.handled = nil
	if after.heap = heapInUse(); after.heap > before.heap+10<<20 {
		t.Errorf("the heap has %d bytes, before it had %d", after.heap, before.heap)
	}
	t.Logf("before %+v, after %+v", before, after)
}
