package workertest

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/stalls"
	"github.com/drip-go/drip/worker"
)

// The limits of each entity in Kills.
const (
	killEntities = 20
	killRate     = 5 // a second, and at once
	killLease    = 2 * time.Second
	killWorkers  = 3
)

// longest is for machines that are busy, and for messages that a killed broker was dead-lettering: they come back after
// minutes.
const longest = 5 * time.Minute

// caller calls the provider for each message.
func caller(j job, b *drip.Bucket) (worker.Limiter, func(context.Context, Message) error) {
	return &punctual{Bucket: b, provider: j.Provider}, func(ctx context.Context, m Message) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, j.Provider+"/?"+url.Values{"id": {m.ID}, "entity": {m.Entity}}.Encode(), nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		return answer.Body.Close()
	}
}

// punctual is a bucket that reports to the provider each operation that it lets run before its slot. It does not report a
// message that waits in hand for a token: such a message runs as soon as an operation gives its token back.
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

// provider is the service that limits the entities. It counts calls independently of drip.
type provider struct {
	*httptest.Server
	mu       sync.Mutex
	calls    map[string][]time.Time // by entity
	ids      map[string]int
	inFlight map[string]int
	most     int // in flight, of any entity
	early    int // operations that the bucket let run before their slots
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
		time.Sleep(20 * time.Millisecond)
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

// served returns how many messages the provider has served, and how many of them more than once.
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

// used returns which share of the limits the calls after from used: of each entity until all but a fiftieth of its calls were
// served. The time when the machine stalled does not count. Entities end at different times, because some have more messages that were
// served twice.
func (p *provider) used(from time.Time, stalled *stalls.Stalls) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, took := 0, time.Duration(0)
	for _, calls := range p.calls {
		after := slices.DeleteFunc(slices.Clone(calls), from.After)
		slices.SortFunc(after, time.Time.Compare)
		if most := len(after) * 98 / 100; most > 0 {
			n += most
			took += after[most].Sub(from) - stalled.Between(from, after[most])
		}
	}
	return float64(n) / (killRate * took.Seconds())
}

// over returns how many calls came in above the limit of their entity, which may have begun anew anew times.
func (p *provider) over(anew int) (worst int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, calls := range p.calls {
		var times []int64
		for _, at := range calls {
			times = append(times, at.UnixMilli())
		}
		// One rate more: when its process was slow, a call was admitted in the interval before.
		worst = max(worst, over(times, killRate*(2+anew), killRate, time.Second))
	}
	return worst
}

// Server is a queue's server that can be killed and started again.
type Server interface {
	// URL is the address of the server, the same after each Start.
	URL() string
	// Kill ends the server at once, as a crash does.
	Kill() error
	// Start starts the server again with its data, and returns when it answers.
	Start(ctx context.Context) error
}

// killing is the state of one run of Kills.
type killing struct {
	tester
	server Server
	redis  *servers.Redis
	job    job

	workers []consumerProcess
	anew    int // how often the limits were lost
}

type consumerProcess struct {
	*exec.Cmd
	input io.Closer
}

func (k *killing) begin(i int) error {
	cmd := k.job.command(k.t.Context())
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	k.workers[i] = consumerProcess{cmd, input}
	return err
}

// kills are the kinds of kills. Each function kills a process or a server and starts it again.
var kills = map[string]func(k *killing, i int) error{
	"graceful restarts": func(k *killing, i int) error {
		k.workers[i].input.Close()
		return errors.Join(k.workers[i].Wait(), k.begin(i))
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
	"consumers and the queue": func(k *killing, i int) error {
		if rand.N(10) > 0 {
			return k.worker(i)
		}
		return errors.Join(k.server.Kill(), k.server.Start(k.t.Context()))
	},
}

func (k *killing) worker(i int) error {
	w := k.workers[i]
	if err := w.Process.Kill(); err != nil {
		return err
	}
	_ = w.Wait() // it says that it was killed
	w.input.Close()
	return k.begin(i)
}

// Kills kills processes and servers, and starts them again, about 100 times a minute. start starts the queue's server
// for one test alone. The provider counts calls independently of drip and checks these rules: each message is served.
// No entity has more calls than its limit. No message runs before its slot. Kills logs how much of the limit was used from
// one lease after the last kill on. That fails no test, because a busy machine uses less: 77 % once. With DRIP_KILLS=60s
// each kind of kills lasts a minute, as many of them at once as -parallel says. Without DRIP_KILLS it kills consumers
// alone, for five seconds.
func Kills(t *testing.T, a Adapter, start func(*testing.T) Server) {
	lasts := 5 * time.Second
	v := os.Getenv("DRIP_KILLS")
	if v != "" {
		var err error
		if lasts, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	for name, kill := range kills {
		if v == "" && name != "consumers" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			if v != "" {
				t.Parallel()
			}
			killed(t, a, start(t), kill, lasts)
		})
	}
}

func killed(t *testing.T, a Adapter, server Server, kill func(*killing, int) error, lasts time.Duration) {
	p, stalled := newProvider(t), stalls.Watch(t.Context())
	k := &killing{tester: tester{t}, server: server, redis: servers.OwnRedis(t, "--appendonly", "yes"), workers: make([]consumerProcess, killWorkers)}
	k.job = job{Adapter: a.Name, URL: server.URL(), Queue: "orders", Storage: k.redis.URL(), Step: nowhere, Rate: killRate, Provider: p.URL}
	// Enough messages for all kills, and for half a minute.
	published := killEntities * (killRate + killRate*int((lasts+killLease)/time.Second+30))
	q := k.publish(a, published)
	t.Cleanup(func() {
		if t.Failed() {
			served, _ := p.served()
			left, err := q.Left(context.Background())
			t.Logf("%d of %d messages were served; the queue has %d, error %v", served, published, left, err)
		}
	})
	for i := range k.workers {
		k.must(k.begin(i))
	}
	k.eventually(longest, "all have begun", func() bool { n, _ := p.served(); return n > killEntities*killRate })
	time.Sleep(3 * time.Second) // in which RabbitMQ 3.10 forgets queues that it is killed with
	count := 0
	for end := time.Now().Add(lasts); time.Now().Before(end); count++ {
		k.must(kill(k, rand.N(killWorkers)))
		time.Sleep(rand.N(1200 * time.Millisecond))
	}
	from := time.Now().Add(killLease + time.Second)
	k.eventually(longest, "each is served", func() bool { n, _ := p.served(); return n == published })
	for _, w := range k.workers {
		w.input.Close()
		if err := w.Wait(); err != nil {
			t.Error(err)
		}
	}
	_, twice := p.served()
	t.Logf("of %d messages none was lost in %d kills, %d were served twice; of the limit %.0f %% was used afterwards, apart from stalls of the machine; at most %d of an entity were in flight",
		published, count, twice, 100*p.used(from, stalled), p.most)
	if over := p.over(k.anew); over > 0 {
		t.Errorf("%d calls of an entity were above its limit", over)
	}
	if p.most > killRate && k.anew == 0 { // else leases were forgotten
		t.Errorf("%d calls of an entity were in flight, of %d", p.most, killRate)
	}
	if p.early > 0 {
		t.Errorf("%d operations ran before their slots", p.early)
	}
}

// publish publishes n messages, in eight goroutines: a queue may confirm one by one. It returns the queue.
func (k *killing) publish(a Adapter, n int) Queue {
	q, err := a.Open(k.t.Context(), k.job.URL, k.job.Queue)
	k.must(err)
	var publishing sync.WaitGroup
	for part := range slices.Chunk(messages(n, "shop", killEntities), (n+7)/8) {
		publishing.Go(func() {
			if err := q.Publish(k.t.Context(), part...); err != nil {
				k.t.Error(err)
			}
		})
	}
	publishing.Wait()
	return q
}
