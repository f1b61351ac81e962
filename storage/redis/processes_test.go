package redis_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

const processes, goroutines = 8, 16

// A long run is -duration 10s.
var duration = flag.Duration("duration", 2*time.Second, "how long TestProcesses contends, each time")

// process is the input and the report of a process of TestProcesses.
type process struct {
	Addr     string
	Limits   decision.Limits
	Admit    bool // instead of GetDelay
	Duration time.Duration

	Granted, Calls int64
	MostInFlight   int64
}

// TestProcesses has 8 processes of 16 goroutines ask for one entity: GetDelay as fast as they can, Admit when they are
// told to. The granted capacity must not exceed the gain of the intervals. The operations in flight, which the
// processes count in another key, must not exceed Size.
func TestProcesses(t *testing.T) {
	for _, admit := range []bool{false, true} {
		for name, limits := range map[string]decision.Limits{
			"capacity is short": limits(40, 6, 2, 5),
			"tokens are short":  limits(10, 1000, 1, 5),
		} {
			t.Run(fmt.Sprintf("%s/Admit=%t", name, admit), func(t *testing.T) { testProcesses(t, limits, admit) })
		}
	}
}

func testProcesses(t *testing.T, limits decision.Limits, admit bool) {
	server := servers.OwnRedis(t)
	client := connect(t, server.Addr())
	s := newStorageWith(t, client, redis.Options{})
	wait := contenders.Start(t, processes, process{Addr: server.Addr(), Limits: limits, Admit: admit, Duration: *duration})
	eventually(t, "all processes are there", func() bool {
		return client.PubSubNumSub(t.Context(), "go").Val()["go"] == processes || t.Failed()
	})
	begin, err := client.Time(t.Context()).Result()
	ok(t, err)
	ok(t, client.Publish(t.Context(), "go", "").Err())
	reports := wait()
	if t.Failed() {
		return
	}
	var total process
	least := reports[0].Granted
	for _, r := range reports {
		total.Granted += r.Granted
		total.Calls += r.Calls
		total.MostInFlight = max(total.MostInFlight, r.MostInFlight)
		least = min(least, r.Granted)
	}
	end, err := client.Time(t.Context()).Result()
	ok(t, err)
	intervals := end.UnixMilli()/limits.Windows[0].Interval - begin.UnixMilli()/limits.Windows[0].Interval
	brought := limits.Tokens + limits.Windows[0].Rate*intervals
	t.Logf("%d calls, %d granted, the intervals brought %d; at most %d in flight; the least served process got %.2f of the mean",
		total.Calls, total.Granted, brought, total.MostInFlight, float64(least)*processes/float64(total.Granted))
	if total.Granted == 0 || total.Granted > brought {
		t.Errorf("granted %d, the intervals brought %d", total.Granted, brought)
	}
	if total.MostInFlight > limits.Tokens {
		t.Errorf("%d in flight at most, allowed are %d", total.MostInFlight, limits.Tokens)
	}
	if tokens, leases := out(t, s, "shop"); tokens != 0 || leases != 0 {
		t.Errorf("%d tokens and %d leases are out at the end", tokens, leases)
	}
}

func contend(p *process) error {
	client := goredis.NewClient(&goredis.Options{Addr: p.Addr})
	defer client.Close()
	s, err := redis.New(client, redis.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	start := client.Subscribe(ctx, "go")
	defer start.Close()
	if _, err := start.ReceiveMessage(ctx); err != nil {
		return err
	}
	var (
		began  = time.Now()
		mu     sync.Mutex
		failed error
		wg     sync.WaitGroup
	)
	for range goroutines {
		wg.Go(func() {
			var granted, calls, most int64
			var err error
			take, give := decision.Op{Kind: decision.GetDelay}, decision.Op{Kind: decision.ReturnToken}
			if p.Admit {
				take, give = decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}, decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}}
			}
			take.Now, give.Now = decision.OwnClock, decision.OwnClock
			for err == nil && time.Since(began) < p.Duration {
				var a decision.Answer
				a, err = s.Do(ctx, "shop", &p.Limits, nil, take)
				calls++
				take.Ticket, give.Lease = a.Ticket, a.Lease
				if err != nil || a.Delay > 0 {
					if p.Admit { // who has a ticket loses nothing by coming when told
						time.Sleep(time.Duration(a.Delay) * time.Millisecond)
					}
					continue
				}
				granted++
				in, err1 := client.Incr(ctx, "in flight").Result()
				most = max(most, in)
				_, err2 := client.Decr(ctx, "in flight").Result()
				back, err3 := s.Do(ctx, "shop", &p.Limits, nil, give)
				err = errors.Join(err1, err2, err3)
				if err == nil && !back.Found {
					err = errors.New("what was taken was not out any more")
				}
			}
			mu.Lock()
			defer mu.Unlock()
			p.Granted += granted
			p.Calls += calls
			p.MostInFlight = max(p.MostInFlight, most)
			failed = errors.Join(failed, err)
		})
	}
	wg.Wait()
	return failed
}
