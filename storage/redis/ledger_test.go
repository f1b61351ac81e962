package redis_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

var ledgerTime = flag.Duration("ledger", 2*time.Second, "how long TestLedger runs")

// ledger counts what ran in each interval of a limit, and what holds a token of it.
type ledger struct {
	limits *decision.Limits
	mu     sync.Mutex
	ran    map[int64]int64 // by the number of the interval of the first window
	plain  atomic.Int64    // GetDelay let run
	held   atomic.Int64
	most   atomic.Int64
}

func (l *ledger) count(at, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ran == nil {
		l.ran = map[int64]int64{}
	}
	l.ran[at/l.limits.Windows[0].Interval] += n
}

func (l *ledger) hold() {
	n := l.held.Add(1)
	for {
		most := l.most.Load()
		if n <= most || l.most.CompareAndSwap(most, n) {
			return
		}
	}
}

// TestLedger has callers of several processes, who give up at random, ask for entities within two shared limits, some of them and
// in another order. Some ask GetDelay. No limit is exceeded in any interval by the server's clock, and no token is out twice or lost.
func TestLedger(t *testing.T) {
	server := servers.OwnRedis(t)
	admin := connect(t, server.Addr())
	processes := []*redis.Storage{}
	for _, remember := range []int{0, 0, 3, -1} {
		processes = append(processes, newStorageWith(t, connect(t, server.Addr()), redis.Options{Remember: remember}))
	}
	newLedger := func(size, interval, tokens int64) *ledger {
		l := limits(size, size, interval, 5)
		l.Tokens = tokens
		return &ledger{limits: &l}
	}
	entities := []*ledger{newLedger(20, 100, 4), newLedger(7, 50, 3), newLedger(50, 200, 100), newLedger(30, 1000, 8)}
	apps := []*ledger{newLedger(35, 100, 9), newLedger(60, 250, 6)}
	ways := [][]int{nil, {0}, {1}, {0, 1}, {1, 0}, {0, 1}}
	began := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), *ledgerTime)
	defer stop()
	var ran, refused, gone atomic.Int64
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), uint64(time.Now().UnixNano())))
			for ctx.Err() == nil {
				s := processes[rnd.IntN(len(processes))]
				if i < 12 && time.Now().UnixMilli()/300%2 == 0 {
					s = processes[0] // alone for a while
				}
				e := rnd.IntN(len(entities))
				key, own, way := fmt.Sprint("shop", e), entities[e], ways[rnd.IntN(len(ways))]
				if rnd.IntN(4) == 0 {
					if getDelay(t, s, key, own.limits) == 0 {
						own.plain.Add(1)
						own.hold()
						time.Sleep(time.Duration(rnd.IntN(4)) * time.Millisecond)
						own.held.Add(-1)
						returnToken(t, processes[rnd.IntN(len(processes))], key, own.limits)
					}
					continue
				}
				all := []*ledger{own}
				var within []storage.Within
				for _, a := range way {
					within = append(within, storage.Within{Key: fmt.Sprint("app", a), Limits: apps[a].limits, ID: int64(a + 1), Weight: 1})
					all = append(all, apps[a])
				}
				call, leave := context.Background(), context.CancelFunc(func() {})
				if rnd.IntN(4) == 0 {
					call, leave = context.WithTimeout(ctx, time.Duration(rnd.IntN(3000))*time.Microsecond)
				}
				op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: decision.OwnClock, Urgent: rnd.IntN(5) == 0}
				var a decision.Answer
				var err error
				for range 4 {
					if a, err = s.Do(call, key, own.limits, within, op); err != nil || a.Delay == 0 {
						break
					}
					refused.Add(1)
					op.Ticket = a.Ticket
					time.Sleep(min(time.Duration(a.Delay)*time.Millisecond, 100*time.Millisecond))
				}
				leave()
				if err != nil {
					gone.Add(1)
					if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					continue
				}
				if a.Delay > 0 {
					_, _ = s.Do(context.Background(), key, own.limits, within, decision.Op{Kind: decision.Cancel, Now: decision.OwnClock, Ticket: a.Ticket, Urgent: op.Urgent})
					continue
				}
				for _, l := range all {
					l.count(a.Lease.Begin, 1)
					l.hold()
				}
				ran.Add(1)
				time.Sleep(time.Duration(rnd.IntN(4)) * time.Millisecond)
				for _, l := range all {
					l.held.Add(-1)
				}
				give := decision.Op{Kind: decision.Settle, Now: decision.OwnClock, Cost: decision.Cost{1}, Lease: a.Lease}
				other := processes[rnd.IntN(len(processes))]
				if b, err := other.Do(context.Background(), key, own.limits, within, give); err != nil || !b.Found {
					t.Errorf("Settle = %+v, %v", b, err)
				}
				if rnd.IntN(20) == 0 {
					if b, err := s.Do(context.Background(), key, own.limits, within, give); err != nil || b.Found {
						t.Errorf("Settle again = %+v, %v", b, err)
					}
				}
			}
		})
	}
	for ctx.Err() == nil { // a slow server, which knows no script afterwards
		time.Sleep(200 * time.Millisecond)
		if err := errors.Join(admin.ScriptFlush(context.Background()).Err(), server.Pause()); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Duration(rand.IntN(70)) * time.Millisecond)
		if err := server.Resume(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	for i, l := range append(entities, apps...) {
		all, w := l.plain.Load(), l.limits.Windows[0]
		for n, ran := range l.ran {
			all += ran
			if ran > w.Size {
				t.Errorf("limit %d: %d ran in interval %d, want at most %d", i, ran, n, w.Size)
			}
		}
		if most := w.Size * (time.Now().UnixMilli()/w.Interval - began.UnixMilli()/w.Interval + 1); all > most || i < len(entities) && l.plain.Load() == 0 {
			t.Errorf("limit %d: %d ran, %d of them after GetDelay; want at most %d", i, all, l.plain.Load(), most)
		}
		if n := l.most.Load(); n > l.limits.Tokens {
			t.Errorf("limit %d: %d were out at once, want at most %d", i, n, l.limits.Tokens)
		}
	}
	for _, key := range []string{"shop0", "shop1", "shop2", "shop3", "app0", "app1"} {
		eventually(t, "no token is out", func() bool {
			tokens, leases := out(t, processes[3], key)
			return tokens == 0 && leases == 0
		})
	}
	t.Logf("%d ran, %d postponed, %d left", ran.Load(), refused.Load(), gone.Load())
}
