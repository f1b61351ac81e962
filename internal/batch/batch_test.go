package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
)

var limits = decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 1}}, Lease: 60_000}

const most = 4 // senders

// server is what a lane sends to in these tests. It answers when told to, and every decision takes a token.
type server struct {
	mu      sync.Mutex
	batches [][]string // keys, once for each call
	kinds   map[string]map[decision.Kind]int
	refuse  int // how many returns fail
	turn    chan struct{}
}

func newServer(turns int) (*server, *Lane) {
	s := &server{turn: make(chan struct{}), kinds: map[string]map[decision.Kind]int{}}
	return s, New(most, turns, s.send)
}

func (s *server) send(batch []*Turn, answered func([]*Turn)) {
	var keys []string
	s.mu.Lock()
	for _, t := range batch {
		if s.kinds[t.Calls[0].Key] == nil {
			s.kinds[t.Calls[0].Key] = map[decision.Kind]int{}
		}
		for _, c := range t.Calls {
			keys = append(keys, t.Calls[0].Key)
			s.kinds[t.Calls[0].Key][c.Op.Kind]++
			if c.Op.Kind == decision.ReturnToken && s.refuse > 0 {
				s.refuse--
				c.Err, c.Again = errors.New("no connection"), true
			}
		}
	}
	s.batches = append(s.batches, keys)
	s.mu.Unlock()
	<-s.turn
	answered(batch)
}

var getDelay = decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}

func TestCallersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer(10)
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ask := func(key string) {
			wg.Go(func() {
				if _, err := l.Do(ctx, key, key, &limits, nil, getDelay); err != nil {
					t.Error(err)
				}
			})
		}
		for i := range most { // each of these finds a sender free, and is sent alone
			ask(string(rune('a' + i)))
			synctest.Wait()
		}
		for i := range 100 {
			ask(string(rune('a' + i%20)))
		}
		synctest.Wait()
		if len(s.batches) != most {
			t.Fatalf("%d batches are under way, want %d", len(s.batches), most)
		}
		close(s.turn)
		wg.Wait()
		synctest.Wait()
		calls := 0
		for _, b := range s.batches {
			calls += len(b)
		}
		if calls != 100+most || len(s.batches) > most+most+2 {
			t.Errorf("%d calls in %d batches", calls, len(s.batches))
		}
		if l.free != most || len(l.ready) != 0 || len(l.groups) != 0 {
			t.Errorf("%d senders are free, %d entities are ready and %d known", l.free, len(l.ready), len(l.groups))
		}
	})
}

// A caller that cannot leave needs no goroutine, and the calls that come meanwhile are sent, too.
func TestAloneWithoutContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer(10)
		var wg sync.WaitGroup
		for range 3 * most {
			wg.Go(func() {
				if _, err := l.Do(context.Background(), "e", "e", &limits, nil, getDelay); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(s.turn)
		wg.Wait()
		synctest.Wait()
		if n := s.kinds["e"][decision.GetDelay]; n != 3*most || l.free != most {
			t.Errorf("%d of %d calls were sent, %d senders are free", n, 3*most, l.free)
		}
	})
}

// If a caller leaves before its call is sent, nothing is decided. If it leaves later, the Lane gives back the taken
// capacity, however often that fails.
func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer(1)
		s.refuse = 5
		var wg sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		start := func(ctx context.Context, key string, want error) {
			wg.Go(func() {
				if _, err := l.Do(ctx, key, key, &limits, nil, getDelay); !errors.Is(err, want) {
					t.Errorf("the call for %s: %v, want %v", key, err, want)
				}
			})
			synctest.Wait()
		}
		stay := context.WithoutCancel(ctx)
		start(ctx, "sent", context.Canceled)
		for _, key := range []string{"a", "b", "c"} {
			start(stay, key, nil)
		}
		for range 10 {
			start(ctx, "waiting", context.Canceled)
		}
		start(stay, "staying", nil)
		leave()
		synctest.Wait()
		if n := len(l.groups["waiting"].waiting); n > 1 {
			t.Errorf("%d calls wait after all have left", n)
		}
		close(s.turn)
		wg.Wait()
		time.Sleep(10 * longestBackoff) // of the bubble: every Undo was sent again
		synctest.Wait()
		for key, want := range map[string][2]int{"sent": {1, 6}, "waiting": {0, 0}, "staying": {1, 0}, "a": {1, 0}} {
			if taken, back := s.kinds[key][decision.GetDelay], s.kinds[key][decision.ReturnToken]; taken != want[0] || back != want[1] {
				t.Errorf("%s: %d calls and %d returns, want %v", key, taken, back, want)
			}
		}
	})
}

// A sender that panics fails its calls, and goes on with the next.
func TestPanic(t *testing.T) {
	l := New(1, 10, func([]*Turn, func([]*Turn)) { panic("oh") })
	for range 2 {
		if _, err := l.Do(t.Context(), "e", "e", &limits, nil, getDelay); err == nil {
			t.Error("Do of a sender that panics = nil")
		}
	}
}

// Callers that leave at any moment get an error, and what their call has taken is given back. All others get the answer of their
// own call, which is decided once.
func TestEachCallerGetsItsAnswer(t *testing.T) {
	const callers, each = 16, 300
	var mu sync.Mutex
	admitted, cancelled := map[int64]int{}, map[int64]int{}
	l := New(most, 3, func(batch []*Turn, answered func([]*Turn)) {
		for i, turn := range batch {
			mu.Lock()
			for _, c := range turn.Calls {
				if c.Op.Kind == decision.Cancel {
					cancelled[c.Op.Lease.ID]++
					continue
				}
				admitted[c.Op.Cost[0]]++
				c.Answer.Lease.ID = c.Op.Cost[0]
			}
			mu.Unlock()
			if i%2 == 0 {
				runtime.Gosched()
			}
			answered([]*Turn{turn})
		}
	})
	served := map[int64]bool{}
	var wg sync.WaitGroup
	for caller := range int64(callers) {
		wg.Go(func() {
			for n := range int64(each) {
				id, ctx, leave := 1+caller*each+n, context.Background(), func() {}
				if n%3 > 0 {
					ctx, leave = context.WithCancel(ctx)
				}
				if n%3 == 2 {
					go leave()
				}
				group := string(rune('a' + id%5))
				a, err := l.Do(ctx, group, group, &limits, nil, decision.Op{Kind: decision.Admit, Cost: decision.Cost{id}, Now: decision.OwnClock})
				if err == nil && a.Lease.ID != id || err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("call %d: %+v, %v", id, a, err)
				}
				mu.Lock()
				served[id] = err == nil
				mu.Unlock()
				leave()
			}
		})
	}
	wg.Wait()
	for l.busy() {
		runtime.Gosched()
	}
	for id := range int64(callers*each + 1) {
		if served[id] && (admitted[id] != 1 || cancelled[id] != 0) || !served[id] && admitted[id] != cancelled[id] || admitted[id] > 1 {
			t.Errorf("call %d: served %v, admitted %d times, cancelled %d times", id, served[id], admitted[id], cancelled[id])
		}
	}
}

// busy reports whether a sender is under way, or a call waits.
func (l *Lane) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.free < most || len(l.groups) > 0
}

// While the server hangs, entities whose callers have left are not remembered.
func TestLeaversOfManyEntities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer(10)
		for i := range most {
			key := strconv.Itoa(-i)
			go func() { _, _ = l.Do(context.Background(), key, key, &limits, nil, getDelay) }()
			synctest.Wait()
		}
		for i := range 10_000 {
			key := strconv.Itoa(i + 1)
			if _, err := l.Do(left(t), key, key, &limits, nil, getDelay); err == nil {
				t.Fatal("no error")
			}
		}
		if n := len(l.groups) + len(l.ready); n > most+4 {
			t.Errorf("%d entities without a waiting call are remembered", n)
		}
		close(s.turn)
		synctest.Wait()
	})
}

// Drain waits for what callers that have left must give back, also if that fails at first, and for nothing else.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, l := newServer(10)
		s.refuse = 3
		drained := func(ctx context.Context) <-chan struct{} {
			done := make(chan struct{})
			go func() {
				l.Drain(ctx)
				close(done)
			}()
			synctest.Wait()
			return done
		}
		is := func(done <-chan struct{}) bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = l.Do(ctx, "shop", "shop", &limits, nil, getDelay) }()
		synctest.Wait()
		if !is(drained(t.Context())) {
			t.Error("it waits for a caller that waits itself")
		}
		cancel()
		synctest.Wait()
		all, impatient := drained(t.Context()), drained(left(t))
		if is(all) || !is(impatient) {
			t.Error("a token is not given back yet, and the context of one call has ended")
		}
		close(s.turn)
		<-all
		if n := s.kinds["shop"][decision.ReturnToken]; n != 4 {
			t.Errorf("the token was given back %d times, of which 3 failed; want 4", n)
		}
	})
}

func left(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func at(i int) time.Time { return time.UnixMilli(int64(i)) }

// A turn of a group has calls of all its entities, however many one of them has, in the order of each.
func TestTurnsAreFair(t *testing.T) {
	for _, entities := range []int{1, 2, 50, 128, 200} {
		var calls []*Call
		for i := range 1000 {
			calls = append(calls, &Call{Key: "noisy", until: at(i)})
		}
		for i := range 10 * entities {
			calls = append(calls, &Call{Key: fmt.Sprint("quiet", i%entities), until: at(i)})
		}
		taken, rest := fair(calls)
		if len(taken) != mostCalls || len(taken)+len(rest) != len(calls) {
			t.Fatalf("%d entities: %d calls taken, %d left of %d", entities, len(taken), len(rest), len(calls))
		}
		counts, last := map[string]int{}, map[string]*Call{}
		for _, c := range append(taken[:mostCalls:mostCalls], rest...) {
			if l := last[c.Key]; l != nil && !c.until.After(l.until) {
				t.Fatalf("%d entities: the calls of %s are in another order", entities, c.Key)
			}
			last[c.Key] = c
		}
		for _, c := range taken {
			counts[c.Key]++
		}
		if want := min(entities+1, mostCalls); len(counts) != want {
			t.Errorf("%d entities: a turn has calls of %d, want %d", entities, len(counts), want)
		}
	}
}
