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
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
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
	left int // the answers until then is called
	then func(client net.Conn) (pass bool)
}

// after has f called with the connection of the n-th answer from now, before that is passed on.
func (p *proxy) after(n int, f func(client net.Conn) (pass bool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.then = n, f
}

// lose cuts the connection instead of passing on the n-th answer from now.
func (p *proxy) lose(n int) { p.after(n, func(net.Conn) bool { return false }) }

func (p *proxy) answered(client net.Conn) (pass bool) {
	p.answers.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left--
	return p.left != 0 || p.then(client)
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	u, err := url.Parse(to)
	ok(t, err)
	p, server := &proxy{}, u.Host
	u.Host = servers.Listen(t, func(client net.Conn) { p.serve(client, server) })
	p.url = u.String()
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
		if ready && !p.answered(client) {
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

// roundTrips checks how many f takes after prepare. It is tried a few times, because a decision that a busy machine delays is
// made again.
func (p *proxy) roundTrips(t *testing.T, what string, want int64, prepare, f func()) {
	t.Helper()
	least := int64(1 << 40)
	for range 5 {
		prepare()
		before := p.answers.Load()
		f()
		if least = min(least, p.answers.Load()-before); least == want {
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
	returnToken := func(s *postgres.Storage, key string) { do(t, s, key, plenty, decision.Op{Kind: decision.ReturnToken}) }
	for _, s := range []*postgres.Storage{s, s, other} { // prepares the statements
		getDelay(t, s, "shop", plenty)
		returnToken(s, "nobody")
		_ = inUse(t, s, "shop")
	}
	getDelay(t, s, "shop", plenty)
	getDelay(t, s, "shop", plenty)

	nothing := func() {}
	p.roundTrips(t, "50 decisions of one process", 100, nothing, func() {
		for range 50 {
			getDelay(t, s, "shop", plenty)
			returnToken(s, "shop")
		}
	})
	p.roundTrips(t, "what changes nothing", 20, nothing, func() {
		for range 20 {
			lost := decision.Lease{ID: 1, End: 1 << 42}
			if a := do(t, s, "shop", plenty, decision.Op{Kind: decision.Settle, Lease: lost}); a.Found {
				t.Fatal(a)
			}
		}
	})
	p.roundTrips(t, "an entity that is new, and one that is new here", 2+2, nothing, func() {
		key := newSchema()
		getDelay(t, s, key, plenty)
		getDelay(t, other, key, plenty)
	})
	p.roundTrips(t, "two processes in turn", 2*40, func() {
		makeContested(t, s, other)
		makeContested(t, other, s)
	}, func() {
		for range 10 {
			getDelay(t, s, "shop", plenty)
			getDelay(t, other, "shop", plenty)
			returnToken(s, "shop")
			returnToken(other, "shop")
		}
	})
	p.roundTrips(t, "an entity that another process had, and alone again", 3+2+1+1, func() {
		makeAlone(t, s)
		getDelay(t, other, "shop", plenty)
	}, func() {
		for range 4 {
			getDelay(t, s, "shop", plenty) // finds that it was changed; that it was not; and relies on that
		}
	})
	p.roundTrips(t, "a look", 10, nothing, func() {
		for range 10 {
			_ = inUse(t, s, "shop")
		}
	})
	bucket := buckettest.New(t, drip.Options{Storage: s})
	p.roundTrips(t, "Inspect, as drip inspect asks", 10, nothing, func() {
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

// makeAlone makes s expect that no other process changes the shop, and makeContested that others do.
func makeAlone(t *testing.T, s *postgres.Storage) {
	t.Helper()
	for range 3 {
		getDelay(t, s, "shop", plenty)
	}
}

func makeContested(t *testing.T, s, other *postgres.Storage) {
	t.Helper()
	makeAlone(t, s)
	getDelay(t, other, "shop", plenty)
	getDelay(t, s, "shop", plenty)
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
		{"a swap that is stale", func() { makeAlone(t, s); getDelay(t, direct, "shop", plenty) }, 1, 0},
		{"the row that was locked", func() { makeContested(t, s, direct) }, 1, 0},
		{"what was stored then", func() { makeContested(t, s, direct) }, 2, 1},
	} {
		c.prepare()
		before := inUse(t, direct, "shop")
		p.lose(c.lost)
		if d, err := ask(context.Background(), s, "shop", plenty); !errors.Is(err, postgres.ErrNoAnswer) {
			t.Errorf("%s: %v, %v; want ErrNoAnswer", c.name, d, err)
		}
		if n := inUse(t, direct, "shop") - before; n != c.done {
			t.Errorf("%s: %d tokens were taken, want %d", c.name, n, c.done)
		}
		if d := getDelay(t, s, "shop", plenty); d != 0 {
			t.Errorf("%s: then %v", c.name, d)
		}
		if n := inUse(t, direct, "shop") - before; n != c.done+1 {
			t.Errorf("%s: in the end %d tokens were taken, want %d", c.name, n, c.done+1)
		}
	}
	st, rev, err := s.Get(t.Context(), "shop")
	ok(t, err)
	st.Data = storage.Encode(&decision.State{Tokens: 1, Plain: 77}, nil)
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
	getDelay(t, stopped, "prepared", plenty)
	o.Timeout = 20 * time.Second
	direct := newStorageWith(t, sharedPool(t), o)
	getDelay(t, direct, "shop", plenty)
	locked, served := make(chan struct{}), make(chan struct{})
	makeContested(t, stopped, direct)
	before := inUse(t, direct, "shop")
	p.after(1, func(client net.Conn) bool {
		p.unplugged.Store(client, nil)
		close(locked)
		<-served
		return false
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if d, err := ask(context.Background(), stopped, "shop", plenty); !errors.Is(err, postgres.ErrNoAnswer) {
			t.Errorf("the process that was stopped: %v, %v; want ErrNoAnswer", d, err)
		}
	})
	<-locked
	if d := getDelay(t, direct, "shop", plenty); d != 0 {
		t.Errorf("GetDelay = %v", d)
	}
	close(served)
	wg.Wait()
	if n := inUse(t, direct, "shop") - before; n != 1 {
		t.Errorf("%d tokens were taken, want 1", n)
	}
}
