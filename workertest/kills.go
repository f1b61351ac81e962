package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

// The limits of each entity in TestKills.
const (
	killEntities = 20
	killSize     = 5
	killRate     = 5 // a second
	killLease    = 2 * time.Second
	killWorkers  = 3
)

// caller is a process that calls the provider for each message, with a Consumer, or with a loop of its own and Limit.
func caller(ctx context.Context, j job) error {
	s, err := storage.Open(ctx, j.Redis)
	if err != nil {
		return err
	}
	defer s.(io.Closer).Close()
	b, err := drip.New(drip.Options{Size: killSize, RefreshRate: killRate, Start: time.Unix(0, 0), Storage: s, Lease: killLease})
	if err != nil {
		return err
	}
	bucket := &punctual{Bucket: b, provider: j.Provider}
	handler := HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, j.Provider+"/?"+url.Values{"id": {d.MessageId}, "entity": {d.Type}}.Encode(), nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	})
	entity := func(d *amqp.Delivery) (string, error) { return d.Type, nil }
	if j.Loop {
		return supervised(ctx, func() error { return loops(ctx, j, bucket, entity, handler) })
	}
	c, err := New(Options{URL: j.RabbitMQ, Queue: j.Queue, Limiter: bucket, Entity: entity, Handler: handler, Logger: quiet, RetryDelay: 100 * time.Millisecond, Attempts: 100})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// punctual is a bucket that tells the provider of each operation that it lets run before its slot. But a message that waits in
// hand for a token runs as soon as somebody gives one back.
type punctual struct {
	*drip.Bucket
	provider string
	inHand   sync.Map // tickets
}

func (p *punctual) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	a, err := p.Bucket.Admit(ctx, entity, r)
	_, waited := p.inHand.Load(r.Ticket)
	switch {
	case err != nil:
	case a.Delay > 0:
		if a.Bound == drip.BoundTokens {
			p.inHand.Store(a.Ticket, nil)
		}
	case !waited && !r.Ticket.IsZero() && time.Now().Before(r.Ticket.Slot()):
		answer, err := http.Post(p.provider+"/early", "", nil)
		if err != nil {
			return a, err
		}
		return a, answer.Body.Close()
	}
	return a, err
}

// supervised calls run again when it ends before ctx does.
func supervised(ctx context.Context, run func() error) error {
	for ctx.Err() == nil {
		run()
		sleep(ctx, firstBackoff)
	}
	return nil
}

// loops is the consume loop of docs/consumer.md.
func loops(ctx context.Context, j job, l Limiter, entity EntityFunc, h Handler) error {
	conn, err := dial(ctx, j.RabbitMQ, amqp.Config{}, "looping")
	if err != nil {
		return err
	}
	defer closeConnection(conn)
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(50, 0, false)
	}
	if err != nil {
		return err
	}
	delays, err := OpenDelayQueues(ctx, DelayQueuesOptions{URL: j.RabbitMQ, Queue: j.Queue})
	if err != nil {
		return err
	}
	defer delays.Close()
	deliveries, err := ch.ConsumeWithContext(ctx, j.Queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	handle := Limit(l, entity, delays)(h).Handle
	var hands sync.WaitGroup
	for range 50 {
		hands.Go(func() {
			for d := range deliveries {
				if err := handle(ctx, &d); err == nil {
					d.Ack(false)
				} else {
					sleep(ctx, 100*time.Millisecond)
					d.Nack(false, true)
				}
			}
		})
	}
	hands.Wait()
	return nil
}

// provider is the service that the entities have their limits with. It counts for itself.
type provider struct {
	*httptest.Server
	mu       sync.Mutex
	calls    map[string][]time.Time // by entity
	ids      map[string]int
	inFlight map[string]int
	most     int // in flight, of any entity
	early    int // operations that were let run before their slots
}

func newProvider(t *testing.T) *provider {
	p := &provider{calls: map[string][]time.Time{}, ids: map[string]int{}, inFlight: map[string]int{}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, entity := r.FormValue("id"), r.FormValue("entity")
		p.mu.Lock()
		if r.URL.Path == "/early" {
			p.early++
			p.mu.Unlock()
			return
		}
		p.calls[entity] = append(p.calls[entity], time.Now())
		p.inFlight[entity]++
		p.most = max(p.most, p.inFlight[entity])
		p.mu.Unlock()
		sleep(r.Context(), 20*time.Millisecond)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.inFlight[entity]--
		if r.Context().Err() == nil {
			p.ids[id]++
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// served is how many messages it has served, and how many of them twice.
func (p *provider) served() (n, twice int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, times := range p.ids {
		if times > 1 {
			twice++
		}
	}
	return len(p.ids), twice
}

// used is how much of all limits was used from a time on, until all but a fiftieth of what was left then was served.
func (p *provider) used(from time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var after []time.Time
	for _, calls := range p.calls {
		for _, at := range calls {
			if at.After(from) {
				after = append(after, at)
			}
		}
	}
	slices.SortFunc(after, time.Time.Compare)
	n := len(after) * 98 / 100
	return float64(n) / (killEntities * killRate * after[n].Sub(from).Seconds())
}

// over is how many calls came in above the limit of their entity, which may have begun anew so many times. What is called in
// an interval was let in that one or, when its process was slow, in the one before.
func (p *provider) over(anew int) (worst int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, calls := range p.calls {
		slices.SortFunc(calls, time.Time.Compare)
		for i := range calls {
			for k := i; k < len(calls); k++ {
				intervals := int(calls[k].Unix() - calls[i].Unix() + 1)
				worst = max(worst, k-i+1-killSize*(1+anew)-killRate*(intervals+1))
			}
		}
	}
	return worst
}

// killing is what a run of TestKills is about.
type killing struct {
	t        *testing.T
	rabbitmq *servers.RabbitMQ
	redis    *servers.Redis
	job      job

	workers []consumerProcess
	anew    int // how often the limits were lost
}

type consumerProcess struct {
	process *os.Process
	input   io.Closer
	wait    func() error
}

func (k *killing) begin(i int) {
	cmd, input, wait := process(k.t, k.job, func(string) {})
	k.workers[i] = consumerProcess{cmd.Process, input, wait}
}

// kills are what is killed, and brought back.
var kills = map[string]func(k *killing, i int) error{
	"graceful restarts": func(k *killing, i int) error {
		w := k.workers[i]
		w.input.Close()
		err := w.wait()
		k.begin(i)
		return err
	},
	"consumers": (*killing).worker,
	"consumers and Redis with its data": func(k *killing, i int) error {
		if rand.N(10) > 0 {
			return k.worker(i)
		}
		return errors.Join(k.redis.Kill(), k.redis.Start(k.t.Context()))
	},
	"consumers and Redis without its data": func(k *killing, i int) error {
		if rand.N(10) > 0 {
			return k.worker(i)
		}
		k.anew++
		client := goredis.NewClient(&goredis.Options{Addr: k.redis.Addr()})
		defer client.Close()
		return errors.Join(client.FlushAll(k.t.Context()).Err(), k.redis.Kill(), k.redis.Start(k.t.Context()))
	},
	"consumers and RabbitMQ": func(k *killing, i int) error {
		if rand.N(10) > 0 {
			return k.worker(i)
		}
		return errors.Join(k.rabbitmq.Kill(), k.rabbitmq.Start(k.t.Context()))
	},
}

func (k *killing) worker(i int) error {
	w := k.workers[i]
	if err := w.process.Kill(); err != nil {
		return err
	}
	w.wait() // it says that it was killed
	w.input.Close()
	k.begin(i)
	return nil
}

// Processes are killed and started again about 100 times a minute, and so are the servers. The provider counts for itself:
// each message is served, no entity has more calls than its limit, none comes before its slot, and from one lease after the last
// kill on nine tenths of the limit are used. With DRIP_KILLS=60s it lasts a minute for each of the kinds, as many of them at once
// as -parallel says; without, consumers alone are killed, for five seconds.
func TestKills(t *testing.T) {
	lasts := 5 * time.Second
	v := os.Getenv("DRIP_KILLS")
	if v != "" {
		var err error
		if lasts, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	for name, kill := range kills {
		for _, loop := range []bool{false, true} {
			kind := "Consumer"
			if loop {
				kind = "Limit"
			}
			if v == "" && name != "consumers" {
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				if v != "" {
					t.Parallel()
				}
				killed(t, kill, loop, lasts)
			})
		}
	}
}

func killed(t *testing.T, kill func(*killing, int) error, loop bool, lasts time.Duration) {
	p := newProvider(t)
	k := &killing{t: t, rabbitmq: servers.OwnRabbitMQ(t), redis: servers.OwnRedis(t, "--appendonly", "yes"), workers: make([]consumerProcess, killWorkers)}
	k.job = job{Kind: "calls", RabbitMQ: k.rabbitmq.URL(), Redis: k.redis.URL(), Queue: "orders", Provider: p.URL, Loop: loop}
	// Enough for all of it, and for half a minute.
	published := killEntities * (killSize + killRate*int((lasts+killLease)/time.Second+30))
	publish := func() {
		b := connect(t, k.rabbitmq.URL())
		b.declare("orders", Quorum)
		messages := numbered(0, published)
		for i := range messages {
			messages[i].Type = fmt.Sprint("shop", i%killEntities)
		}
		b.publish("orders", messages...)
	}
	publish()
	for i := range k.workers {
		k.begin(i)
	}
	eventually(t, "all have begun", func() bool { n, _ := p.served(); return n > killEntities*killSize })
	time.Sleep(3 * time.Second) // in which RabbitMQ 3.10 forgets queues that it is killed with
	count := 0
	for end := time.Now().Add(lasts); time.Now().Before(end); count++ {
		if err := kill(k, rand.N(killWorkers)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(1200 * time.Millisecond))
	}
	from := time.Now().Add(killLease + time.Second)
	eventually(t, "each is served", func() bool { n, _ := p.served(); return n == published })
	for _, w := range k.workers {
		w.input.Close()
		if err := w.wait(); err != nil {
			t.Error(err)
		}
	}
	_, twice := p.served()
	used := p.used(from)
	t.Logf("of %d messages none was lost in %d kills, %d were served twice; of the limit %.0f %% was used afterwards, at most %d of an entity were in flight",
		published, count, twice, 100*used, p.most)
	if over := p.over(k.anew); over > 0 {
		t.Errorf("%d calls of an entity were above its limit", over)
	}
	if p.most > killSize && k.anew == 0 { // else leases were forgotten
		t.Errorf("%d calls of an entity were in flight, of %d", p.most, killSize)
	}
	if p.early > 0 {
		t.Errorf("%d operations ran before their slots", p.early)
	}
	if used < .9 {
		t.Errorf("%.0f %% of the limit was used from a lease after the kills on, want 90", 100*used)
	}
}
