package redis

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/drip-go/drip/storage"
)

// server is what a lane sends to in these tests. It answers when told to, and every decision takes a token.
type server struct {
	mu      sync.Mutex
	batches [][]string // operations, as entity and op
	turn    chan struct{}
}

// What the calls of these tests ask for, and what gives back what they took.
var (
	opNow    = string([]byte{byte(storage.GetDelay)})
	opReturn = string([]byte{byte(storage.ReturnToken)})
)

func newServer() (*server, *lane) {
	s := &server{turn: make(chan struct{})}
	return s, &lane{decide: s.decide}
}

func (s *server) decide(calls []*call) {
	var ops []string
	for _, c := range calls {
		ops = append(ops, c.key+c.op)
	}
	s.mu.Lock()
	s.batches = append(s.batches, ops)
	s.mu.Unlock()
	<-s.turn
}

func (s *server) count(op string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.batches {
		for _, o := range b {
			if o == op {
				n++
			}
		}
	}
	return n
}

func TestCallersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		for i := range maxSenders + 2*maxBatch {
			wg.Go(func() {
				if _, err := l.do(ctx, &call{key: "e", op: opNow}); err != nil {
					t.Error(err)
				}
			})
			if i < maxSenders {
				synctest.Wait() // each of the first finds a pipeline free, and is sent alone
			}
		}
		synctest.Wait()
		if len(s.batches) != maxSenders {
			t.Fatalf("%d pipelines are under way, want %d", len(s.batches), maxSenders)
		}
		close(s.turn)
		wg.Wait()
		synctest.Wait()
		for i, b := range s.batches {
			if want := 1; i < maxSenders && len(b) != want || i >= maxSenders && len(b) != maxBatch {
				t.Errorf("pipeline %d took %d calls", i, len(b))
			}
		}
		if n := len(s.batches); n != maxSenders+2 {
			t.Errorf("%d pipelines, want %d", n, maxSenders+2)
		}
		if l.senders != 0 || l.looking != 0 || len(l.waiting) != 0 {
			t.Errorf("%d senders, %d of them looking, and %d calls are left", l.senders, l.looking, len(l.waiting))
		}
	})
}

// Those who find no room in a pipeline do not wait until it is back.
func TestMoreThanABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer()
		for range maxBatch + 1 {
			l.waiting = append(l.waiting, &call{key: "e", op: opNow, done: make(chan struct{})})
		}
		l.senders, l.looking = 1, 1
		if batch := l.take(nil); len(batch) != maxBatch {
			t.Errorf("the first pipeline takes %d calls, want %d", len(batch), maxBatch)
		}
		synctest.Wait()
		if n := s.count("e" + opNow); n != 1 {
			t.Errorf("%d calls are sent beside it, want 1", n)
		}
		close(s.turn)
	})
}

// A caller that cannot leave needs no goroutine, and whoever comes meanwhile is sent all the same.
func TestAloneWithoutContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer()
		var wg sync.WaitGroup
		for range 3 * maxSenders {
			wg.Go(func() {
				if _, err := l.do(context.Background(), &call{key: "e", op: opNow}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(s.turn)
		wg.Wait()
		synctest.Wait()
		if n := s.count("e" + opNow); n != 3*maxSenders || l.senders != 0 {
			t.Errorf("%d of %d calls were sent, %d senders are left", n, 3*maxSenders, l.senders)
		}
	})
}

func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer()
		var wg sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		start := func(ctx context.Context, key string, want error) {
			wg.Go(func() {
				if _, err := l.do(ctx, &call{key: key, op: opNow}); !errors.Is(err, want) {
					t.Errorf("the call for %s: %v, want %v", key, err, want)
				}
			})
			synctest.Wait()
		}
		stay := context.WithoutCancel(ctx)
		start(ctx, "sent", context.Canceled)
		for range maxSenders - 1 {
			start(stay, "other", nil)
		}
		for range 10 {
			start(ctx, "waiting", context.Canceled)
		}
		start(stay, "staying", nil)
		leave()
		synctest.Wait()
		if n := len(l.waiting); n > 3 {
			t.Errorf("%d calls wait after all but one have left", n)
		}
		close(s.turn)
		wg.Wait()
		synctest.Wait()
		for op, want := range map[string]int{
			"sent" + opNow: 1, "sent" + opReturn: 1, // its token is given back
			"waiting" + opNow: 0, "waiting" + opReturn: 0,
			"staying" + opNow: 1, "staying" + opReturn: 0, "other" + opReturn: 0,
		} {
			if n := s.count(op); n != want {
				t.Errorf("%d times %s, want %d", n, op, want)
			}
		}
	})
}

func TestByEntity(t *testing.T) {
	calls := []*call{
		{key: "a", op: "1"}, {key: "b", op: "2"}, {key: "a", op: "3"}, {key: "a", op: "4", limits: "others"}, {key: "b", op: "5"}, {key: "a", op: "6"},
	}
	got := ""
	for _, c := range byEntity(calls) {
		for ; c != nil; c = c.next {
			got += c.key + c.op + " "
		}
		got += "| "
	}
	if want := "a1 a3 a6 | b2 b5 | a4 | "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What is taken for a caller who has left is given back by the operation that undoes it.
func TestUndo(t *testing.T) {
	lease, ticket := storage.Lease{ID: 7, Begin: 1, End: 2, Cost: 3}, storage.Ticket{Slot: 9, Epoch: 8, Cost: 3}
	for _, c := range []struct {
		of   call
		want storage.Op
	}{
		{call{kind: storage.GetDelay}, storage.Op{Kind: storage.ReturnToken}},
		{call{kind: storage.Admit, now: 5, answer: storage.Answer{Lease: lease}}, storage.Op{Kind: storage.Cancel, Now: 5, Lease: lease}},
		{call{kind: storage.Admit, now: 5, answer: storage.Answer{Delay: 4, Ticket: ticket}}, storage.Op{Kind: storage.Cancel, Now: 5, Ticket: ticket}},
	} {
		want, err := packOp(&c.want)
		if got := c.of.undo(); err != nil || got == nil || got.op != want || got.kind != c.want.Kind {
			t.Errorf("undo of %+v = %+v, want %+v", c.of, got, c.want)
		}
	}
	for _, c := range []call{
		{kind: storage.GetDelay, answer: storage.Answer{Delay: 1}}, {kind: storage.GetDelay, err: ErrRange},
		{kind: storage.Settle}, {kind: storage.ReturnToken}, {kind: storage.Renew},
	} {
		if got := c.undo(); got != nil {
			t.Errorf("undo of %+v = %+v", c, got)
		}
	}
}
