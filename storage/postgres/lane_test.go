package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/storage"
)

// database is what a lane sends to in these tests. It answers when told to, and every decision takes a token.
type database struct {
	mu      sync.Mutex
	batches [][]string // operations, as entity and kind
	busy    map[string]bool
	turn    chan struct{}
	t       *testing.T
}

func newDatabase(t *testing.T, senders int) (*database, *lane) {
	d := &database{turn: make(chan struct{}), busy: map[string]bool{}, t: t}
	return d, &lane{decide: d.decide, senders: senders, entities: map[string]*entity{}}
}

func (d *database) decide(batch []*turn, answered func([]*turn)) {
	var ops []string
	d.mu.Lock()
	for _, t := range batch {
		if d.busy[t.key] {
			d.t.Errorf("%s is in two batches at a time", t.key)
		}
		d.busy[t.key] = true
		for _, c := range t.calls {
			ops = append(ops, fmt.Sprint(t.key, c.op.Kind))
		}
	}
	d.batches = append(d.batches, ops)
	d.mu.Unlock()
	<-d.turn
	d.mu.Lock()
	for _, t := range batch {
		delete(d.busy, t.key)
	}
	d.mu.Unlock()
	answered(batch)
}

func (d *database) count(key string, kind storage.Kind) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.batches {
		for _, op := range b {
			if op == fmt.Sprint(key, kind) {
				n++
			}
		}
	}
	return n
}

func TestCallersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const senders = 2
		d, l := newDatabase(t, senders)
		var wg sync.WaitGroup
		const entities, each = 2 * maxBatch, 3
		for i := range senders + entities*each {
			wg.Go(func() {
				if _, err := l.do(t.Context(), fmt.Sprint("e", i%entities), &storage.Limits{}, storage.Op{}); err != nil {
					t.Error(err)
				}
			})
			if i < senders {
				synctest.Wait() // each of the first finds a sender free, and is sent alone
			}
		}
		synctest.Wait()
		if len(d.batches) != senders {
			t.Fatalf("%d batches are under way, want %d", len(d.batches), senders)
		}
		close(d.turn)
		wg.Wait()
		synctest.Wait()
		total := 0
		for _, b := range d.batches {
			total += len(b)
			if len(b) > maxBatch*(each+1) {
				t.Errorf("a batch has %d calls", len(b))
			}
		}
		if total != senders+entities*each || len(d.batches) > senders+4 {
			t.Errorf("%d calls in %d batches", total, len(d.batches))
		}
		if l.senders != senders || len(l.ready) != 0 || len(l.entities) != 0 {
			t.Errorf("%d senders are free, %d entities ready and %d known", l.senders, len(l.ready), len(l.entities))
		}
	})
}

// A caller that cannot leave needs no goroutine, and whoever comes meanwhile is sent all the same.
func TestAloneWithoutContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := newDatabase(t, 2)
		var wg sync.WaitGroup
		for i := range 12 {
			wg.Go(func() {
				if _, err := l.do(context.Background(), fmt.Sprint("e", i%3), &storage.Limits{}, storage.Op{}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		close(d.turn)
		wg.Wait()
		synctest.Wait()
		n := d.count("e0", storage.GetDelay) + d.count("e1", storage.GetDelay) + d.count("e2", storage.GetDelay)
		if n != 12 || l.senders != 2 || len(l.entities) != 0 {
			t.Errorf("%d of 12 calls were sent, %d senders are free, %d entities known", n, l.senders, len(l.entities))
		}
	})
}

// What a call used is used again by others, but not while somebody waits in it. Each has the answer for its entity.
func TestAloneAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := map[string]bool{}
		var mu sync.Mutex
		mark := func(batch []*turn, is bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, turn := range batch {
				if busy[turn.key] == is {
					t.Errorf("%s is in two batches at a time", turn.key)
				}
				busy[turn.key] = is
			}
		}
		l := &lane{senders: 3, entities: map[string]*entity{}, decide: func(batch []*turn, answered func([]*turn)) {
			mark(batch, true)
			time.Sleep(rand.N(3 * time.Millisecond))
			for _, turn := range batch {
				for _, c := range turn.calls {
					c.answer.Delay, _ = strconv.ParseInt(turn.key, 10, 64)
				}
			}
			mark(batch, false)
			answered(batch)
		}}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for range 100 {
					ctx, key := t.Context(), rand.Int64N(5)
					if rand.IntN(2) == 0 {
						ctx = context.Background()
					}
					a, err := l.do(ctx, strconv.FormatInt(key, 10), &storage.Limits{}, storage.Op{})
					if err != nil || a.Delay != key {
						t.Errorf("caller %d has %v, %v, want the answer for %d", i, a, err, key)
					}
					time.Sleep(rand.N(5 * time.Millisecond))
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if l.senders != 3 || len(l.entities) != 0 || len(l.spare) > 3 {
			t.Errorf("%d senders are free, %d entities known, %d kept to be used again", l.senders, len(l.entities), len(l.spare))
		}
	})
}

func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, l := newDatabase(t, 1)
		var wg sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		stay := context.WithoutCancel(ctx)
		start := func(ctx context.Context, key string, kind storage.Kind, want error) {
			wg.Go(func() {
				if _, err := l.do(ctx, key, &storage.Limits{}, storage.Op{Kind: kind}); !errors.Is(err, want) {
					t.Errorf("the call for %s: %v, want %v", key, err, want)
				}
			})
			synctest.Wait()
		}
		start(ctx, "sent", storage.GetDelay, context.Canceled)
		for range 10 {
			start(ctx, "waiting", storage.GetDelay, context.Canceled)
		}
		start(ctx, "both", storage.GetDelay, context.Canceled)
		start(stay, "both", storage.GetDelay, nil)
		leave()
		synctest.Wait()
		if e := l.entities["waiting"]; e != nil && len(e.waiting) > 3 {
			t.Errorf("%d calls wait that all have left", len(e.waiting))
		}
		d.turn <- struct{}{}
		synctest.Wait()
		ctx, leave = context.WithCancel(t.Context())
		start(ctx, "admitted", storage.Admit, context.Canceled)
		start(ctx, "returned", storage.ReturnToken, context.Canceled)
		d.turn <- struct{}{}
		synctest.Wait() // the batch with the last two is under way
		leave()
		synctest.Wait()
		close(d.turn)
		wg.Wait()
		synctest.Wait()
		for op, want := range map[string]int{
			fmt.Sprint("sent", storage.GetDelay): 1, fmt.Sprint("sent", storage.ReturnToken): 1, // its token is given back
			fmt.Sprint("waiting", storage.GetDelay): 0, fmt.Sprint("waiting", storage.ReturnToken): 0,
			fmt.Sprint("both", storage.GetDelay): 1, fmt.Sprint("both", storage.ReturnToken): 0,
			fmt.Sprint("admitted", storage.Admit): 1, fmt.Sprint("admitted", storage.Cancel): 1,
			fmt.Sprint("returned", storage.ReturnToken): 1,
		} {
			if n := d.count(op[:len(op)-1], storage.Kind(op[len(op)-1]-'0')); n != want {
				t.Errorf("%d times %s, want %d", n, op, want)
			}
		}
		if l.senders != 1 || len(l.entities) != 0 {
			t.Errorf("%d senders are free, %d entities known", l.senders, len(l.entities))
		}
	})
}

// What a process remembers is bounded.
func TestMemory(t *testing.T) {
	m := memory{records: map[string]*record{}, most: 100}
	for i := range 1000 {
		key := fmt.Sprint(i)
		m.put(key, &record{revision: int64(i)})
		if r := m.get(key); r == nil || r.revision != int64(i) || len(m.records) > 100 {
			t.Fatalf("%d records, the last one %+v", len(m.records), r)
		}
	}
	for i := range 1000 {
		m.forget(fmt.Sprint(i))
	}
	if len(m.records) != 0 {
		t.Errorf("%d records are left", len(m.records))
	}
}

func TestEnd(t *testing.T) {
	op := storage.Op{Now: storage.OwnClock}
	window := func(interval int64) storage.Limits {
		return storage.Limits{Window: storage.Window{RefreshInterval: interval}}
	}
	two := window(1000)
	two.Windows = []storage.Window{{RefreshInterval: 70}}
	for _, c := range []struct {
		now   int64
		calls []*call
		want  int64
	}{
		{1234, []*call{{limits: window(1000), op: op}}, 2000},
		{1000, []*call{{limits: window(1000), op: op}}, 2000},
		{1999, []*call{{limits: window(1000), op: op}}, 2000},
		{1234, []*call{{limits: window(100), op: op}, {limits: window(60_000), op: op}}, 1300},
		{1234, []*call{{limits: window(60_000), op: op}}, 2234}, // a second at most
		{1234, []*call{{limits: two, op: op}}, 1260},
		{1234, []*call{{limits: window(100), op: storage.Op{Now: 5}}}, 2234}, // the caller's time
		{1234, []*call{{limits: window(100), op: storage.Op{Kind: storage.ReturnToken, Now: storage.OwnClock}}}, 2234},
		{-1234, []*call{{limits: window(1000), op: op}}, -1000},
		{-1000, []*call{{limits: window(1000), op: op}}, 0},
	} {
		if got := (&turn{calls: c.calls}).end(c.now); got != c.want {
			t.Errorf("a decision at %d holds to the end at %d, want %d", c.now, got, c.want)
		}
	}
}
