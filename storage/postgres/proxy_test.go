package postgres_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// proxy is a TCP proxy before a server. It passes on whole answers: all that the server says until it is ready for the
// next query. So an answer is a round trip, and when one is lost the server has done all that was asked.
type proxy struct {
	url       string
	answers   atomic.Int64
	unplugged sync.Map // clients of which the server hears nothing more, not even that they have gone

	mu   sync.Mutex
	then map[int]func(client, server net.Conn) (pass bool) // what to do when so many more answers have come
}

// after has f called with the connection of the n-th answer from now, before that is passed on.
func (p *proxy) after(n int, f func(client, server net.Conn) (pass bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.then = map[int]func(client, server net.Conn) bool{n: f}
}

// lose cuts the connection instead of passing on the n-th answer from now.
func (p *proxy) lose(n int) { p.after(n, func(net.Conn, net.Conn) bool { return false }) }

func (p *proxy) answered(client, server net.Conn) (pass bool) {
	p.answers.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	next := map[int]func(client, server net.Conn) bool{}
	pass = true
	for n, f := range p.then {
		if n == 1 {
			pass = f(client, server)
		} else {
			next[n-1] = f
		}
	}
	p.then = next
	return pass
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	server := u.Host
	u.Host = l.Addr().String()
	p := &proxy{url: u.String()}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client, server)
		}
	}()
	return p
}

func (p *proxy) serve(client net.Conn, to string) {
	defer client.Close()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		b := make([]byte, 64<<10)
		for {
			n, err := client.Read(b)
			if _, gone := p.unplugged.Load(client); gone {
				return
			}
			if _, err2 := server.Write(b[:n]); err != nil || err2 != nil {
				_ = server.Close()
				return
			}
		}
	}()
	from := bufio.NewReader(server)
	var answer []byte
	for {
		head, err := from.Peek(5) // a type and a length
		if err != nil {
			_, _ = client.Write(answer)
			return
		}
		message := make([]byte, 1+int(binary.BigEndian.Uint32(head[1:])))
		if _, err := io.ReadFull(from, message); err != nil {
			return
		}
		answer = append(answer, message...)
		ready, auth := message[0] == 'Z', message[0] == 'R'
		if ready && !p.answered(client, server) {
			return
		}
		if ready || auth {
			if _, err := client.Write(answer); err != nil {
				return
			}
			answer = answer[:0]
		}
	}
}

// roundTrips is how many f takes.
func (p *proxy) roundTrips(t *testing.T, what string, want int64, f func()) {
	t.Helper()
	roundTrips(t, what, want, func() int64 {
		before := p.answers.Load()
		f()
		return p.answers.Load() - before
	})
}

// roundTrips is what f tells. It is tried a few times, because what a busy machine delays by a second is decided again.
func roundTrips(t *testing.T, what string, want int64, f func() int64) {
	t.Helper()
	least := int64(1 << 40)
	for range 5 {
		if least = min(least, f()); least == want {
			return
		}
	}
	t.Errorf("%s: %d round trips, want %d", what, least, want)
}

func TestRoundTrips(t *testing.T) {
	p := newProxy(t, servers.UsePostgres(t).URL())
	pool := newPool(t, p.url, 1)
	o := postgres.Options{Schema: newSchema()}
	s, other := newStorageWith(t, pool, o), newStorageWith(t, pool, o)
	returnToken := func(s *postgres.Storage, key string) {
		t.Helper()
		if _, err := s.Do(t.Context(), key, plenty, storage.Op{Kind: storage.ReturnToken, Now: storage.OwnClock}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*postgres.Storage{s, s, other} { // prepares the statements
		getDelay(t, s, "shop", plenty)
		returnToken(s, "nobody")
		_ = inUse(t, s, "shop")
	}
	getDelay(t, s, "shop", plenty)
	getDelay(t, s, "shop", plenty)

	p.roundTrips(t, "50 decisions of one process", 100, func() {
		for range 50 {
			getDelay(t, s, "shop", plenty)
			returnToken(s, "shop")
		}
	})
	p.roundTrips(t, "what changes nothing", 20, func() {
		for range 20 {
			if _, err := s.Do(t.Context(), "shop", plenty, storage.Op{Kind: storage.Resume, Now: storage.OwnClock}); err != nil {
				t.Fatal(err)
			}
		}
	})
	p.roundTrips(t, "an entity that is new, and one that is new here", 1+1, func() {
		key := newSchema()
		getDelay(t, s, key, plenty)
		getDelay(t, other, key, plenty)
	})
	p.roundTrips(t, "two processes in turn", 40, func() {
		for range 10 {
			getDelay(t, s, "shop", plenty)
			getDelay(t, other, "shop", plenty)
			returnToken(s, "shop")
			returnToken(other, "shop")
		}
	})
	none := limits(1, 1, 1<<36)
	for range 3 {
		getDelay(t, s, "none", none)
		getDelay(t, other, "none", none)
	}
	p.roundTrips(t, "two processes in turn that are denied", 20, func() {
		for range 10 {
			if a, b := getDelay(t, s, "none", none), getDelay(t, other, "none", none); a == 0 || b <= a {
				t.Errorf("postponed by %v and %v", a, b)
			}
		}
	})
	p.roundTrips(t, "two processes in turn, and two windows", 2*20, func() {
		for range 10 {
			getDelay(t, s, "shop2", twoWindows)
			getDelay(t, other, "shop2", twoWindows)
		}
	})
	for _, c := range []struct {
		key    string
		limits *storage.Limits
		want   int64
	}{{"shop", plenty, 1 + 1 + 1 + 2 + 1}, {"shop2", twoWindows, 2 + 2 + 1 + 3 + 2}} {
		for range 20 {
			getDelay(t, other, c.key, c.limits) // is alone with it
		}
		p.roundTrips(t, "an entity that another process had, and alone again: "+c.key, c.want, func() {
			for range 3 {
				getDelay(t, s, c.key, c.limits) // knows that it was shared; finds that it still was; then that it is not
			}
			getDelay(t, other, c.key, c.limits) // finds that it was changed
			getDelay(t, other, c.key, c.limits) // finds that it was not
		})
	}
	direct := newStorageWith(t, sharedPool(t), o)
	makeHot(t, p, s, direct)
	p.roundTrips(t, "an entity that others change all the time", 2*10, func() {
		for range 10 {
			getDelay(t, direct, "shop", twoWindows)
			getDelay(t, s, "shop", twoWindows)
		}
	})
	p.roundTrips(t, "a look", 10, func() {
		for range 10 {
			_ = inUse(t, s, "shop")
		}
	})
	bucket, err := drip.New(drip.Options{Storage: s})
	if err != nil {
		t.Fatal(err)
	}
	p.roundTrips(t, "Inspect, as drip inspect asks", 10, func() {
		for range 10 {
			if status, err := bucket.Inspect(t.Context(), "shop"); err != nil || status.InUse == 0 {
				t.Fatalf("Inspect = %+v, %v", status, err)
			}
		}
	})
	before := p.answers.Load()
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for range 10 {
				getDelay(t, s, []string{"shop", "shop2", "shop3", "shop4"}[i%4], plenty)
			}
		})
	}
	wg.Wait()
	if n := p.answers.Load() - before; n > 320 {
		t.Errorf("640 decisions of 64 callers took %d round trips: they do not share", n)
	}
}

// twoWindows is plenty for which the classic rules are not enough.
var twoWindows = func() *storage.Limits {
	l := *plenty
	l.Windows = []storage.Window{l.Window}
	return &l
}()

// makeAlone makes s believe that it has the shop alone, makeShared that others use it, too, and makeHot that they do all the
// time. s goes through the proxy, other does not.
func makeAlone(t *testing.T, s *postgres.Storage) {
	t.Helper()
	for range 3 {
		getDelay(t, s, "shop", twoWindows)
	}
}

func makeShared(t *testing.T, s, other *postgres.Storage) {
	t.Helper()
	makeAlone(t, s)
	getDelay(t, other, "shop", twoWindows)
	getDelay(t, s, "shop", twoWindows)
}

func makeHot(t *testing.T, p *proxy, s, other *postgres.Storage) {
	t.Helper()
	makeShared(t, s, other)
	p.after(1, func(net.Conn, net.Conn) bool { // it has read
		getDelay(t, other, "shop", twoWindows)
		return true
	})
	before := p.answers.Load()
	getDelay(t, s, "shop", twoWindows)
	if n := p.answers.Load() - before; n < 4 { // more, if a statement had to be prepared
		t.Errorf("a decision that somebody came in between took %d round trips, want 4", n)
	}
}

// A call whose answer is lost is not made again, and was made or not as a whole.
func TestLostAnswer(t *testing.T) {
	p := newProxy(t, servers.UsePostgres(t).URL())
	o := postgres.Options{Schema: newSchema()}
	direct := newStorageWith(t, sharedPool(t), o)
	s := newStorageWith(t, newPool(t, p.url, 1), o)
	for _, c := range []struct {
		name    string
		prepare func()
		lost    int
		done    int64
	}{
		{"a swap", func() { makeAlone(t, s) }, 1, 1},
		{"a read", func() { makeShared(t, s, direct) }, 1, 0},
		{"a swap after reading", func() { makeShared(t, s, direct) }, 2, 1},
		{"the row that was locked", func() { makeHot(t, p, s, direct) }, 1, 0},
		{"what was stored then", func() { makeHot(t, p, s, direct) }, 2, 1},
	} {
		c.prepare()
		before := inUse(t, direct, "shop")
		p.lose(c.lost)
		if d, err := ask(context.Background(), s, "shop", twoWindows); !errors.Is(err, postgres.ErrNoAnswer) {
			t.Errorf("%s: %v, %v; want ErrNoAnswer", c.name, d, err)
		}
		if n := inUse(t, direct, "shop") - before; n != c.done {
			t.Errorf("%s: %d tokens were taken, want %d", c.name, n, c.done)
		}
		if d := getDelay(t, s, "shop", twoWindows); d != 0 {
			t.Errorf("%s: then %v", c.name, d)
		}
		if n := inUse(t, direct, "shop") - before; n != c.done+1 {
			t.Errorf("%s: in the end %d tokens were taken, want %d", c.name, n, c.done+1)
		}
	}
	for _, c := range []struct {
		name string
		op   storage.Kind
		done int64
	}{{"a token", storage.GetDelay, 1}, {"a token that comes back", storage.ReturnToken, -1}} {
		for range 3 { // others always come in between
			for _, kind := range []storage.Kind{storage.GetDelay, storage.GetDelay, storage.ReturnToken} {
				if _, err := s.Do(t.Context(), "plain", plenty, storage.Op{Kind: kind, Now: storage.OwnClock}); err != nil {
					t.Fatal(err)
				}
				getDelay(t, direct, "plain", plenty)
			}
		}
		before := inUse(t, direct, "plain")
		p.lose(1)
		if _, err := s.Do(t.Context(), "plain", plenty, storage.Op{Kind: c.op, Now: storage.OwnClock}); !errors.Is(err, postgres.ErrNoAnswer) {
			t.Errorf("%s: %v, want ErrNoAnswer", c.name, err)
		}
		if n := inUse(t, direct, "plain") - before; n != c.done {
			t.Errorf("%s: %d tokens were taken, want %d", c.name, n, c.done)
		}
	}
	st, rev, err := s.Get(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	st.InUse = 77
	p.lose(2) // the first one prepares
	if err := s.Set(t.Context(), "shop", st, rev); !errors.Is(err, postgres.ErrNoAnswer) {
		t.Errorf("Set whose answer is lost = %v, want ErrNoAnswer: ErrConflict would say that nothing has changed", err)
	}
	if n := inUse(t, direct, "shop"); n != 77 {
		t.Errorf("Set whose answer is lost stored %d", n)
	}
}

// A process that stops between the two round trips keeps the others from the entity for half of its Timeout.
func TestStoppedInTheMiddle(t *testing.T) {
	p := newProxy(t, servers.UsePostgres(t).URL())
	o := postgres.Options{Schema: newSchema(), Timeout: 4 * time.Second}
	stopped := newStorageWith(t, newPool(t, p.url, 1), o)
	getDelay(t, stopped, "prepared", twoWindows)
	o.Timeout = 20 * time.Second
	direct := newStorageWith(t, sharedPool(t), o)
	getDelay(t, direct, "shop", twoWindows)
	locked, served := make(chan struct{}), make(chan struct{})
	makeHot(t, p, stopped, direct)
	before := inUse(t, direct, "shop")
	p.after(1, func(client, _ net.Conn) bool {
		p.unplugged.Store(client, nil)
		close(locked)
		<-served
		return false
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if d, err := ask(context.Background(), stopped, "shop", twoWindows); !errors.Is(err, postgres.ErrNoAnswer) {
			t.Errorf("the process that was stopped: %v, %v; want ErrNoAnswer", d, err)
		}
	})
	<-locked
	if d := getDelay(t, direct, "shop", twoWindows); d != 0 {
		t.Errorf("GetDelay = %v", d)
	}
	close(served)
	wg.Wait()
	if n := inUse(t, direct, "shop") - before; n != 1 {
		t.Errorf("%d tokens were taken, want 1", n)
	}
}
