package contenders_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
	_ "github.com/drip-go/drip/storage/redis"
)

// realVariable has the test run that takes more than half a minute.
const realVariable = "DRIP_TEST_REAL"

const (
	processes = 8
	callers   = 16 // of a process
	shops     = 40
)

var app = contenders.App{
	Own:      contenders.Bucket{Size: 40, PerSecond: 2},
	All:      contenders.Bucket{Size: 100, PerSecond: 50},
	Endpoint: contenders.Bucket{Size: 30, PerSecond: 10},
}

// process is the input of a process, and its report.
type process struct {
	Storage, Provider string // URLs
	Pins              bool   // it is TestPinInProcesses

	Decisions int
}

func TestMain(m *testing.M) {
	contenders.Main(contend)
	os.Exit(servers.Main(m))
}

// TestProcessesWithinSharedLimits: 8 processes decide within the app's limit and an endpoint's in real time. They
// cancel some admitted operations. A provider that counts for itself refuses nothing.
func TestProcessesWithinSharedLimits(t *testing.T) {
	if os.Getenv(realVariable) == "" {
		t.Skip("it takes half a minute; set " + realVariable)
	}
	for name, open := range map[string]func(*testing.T) string{
		"Redis":      func(t *testing.T) string { return servers.OwnRedis(t).URL() },
		"PostgreSQL": withSchema,
	} {
		t.Run(name, func(t *testing.T) {
			a := &contenders.App{Own: app.Own, All: app.All, Endpoint: app.Endpoint}
			providerURL, stop := a.Serve()
			defer stop()
			end, decisions := contenders.Start(t, processes, process{Storage: open(t), Provider: providerURL}), 0
			time.Sleep(15 * time.Second)
			for _, p := range end() {
				decisions += p.Decisions
			}
			calls, refused := a.Calls()
			used, took := a.Used()
			t.Logf("%d calls in %v, after %d decisions of %d processes: %.1f%% of the app's limit; refused: %v", len(calls), took, decisions, processes, 100*used, refused)
			if len(refused) > 0 {
				t.Errorf("the provider refused calls: %v", refused)
			}
			if used < 0.9 {
				t.Errorf("%.1f%% of the app's limit were used", 100*used)
			}
		})
	}
}

func withSchema(t *testing.T) string {
	address := servers.OwnPostgres(t).URL()
	s, err := storage.Open(t.Context(), address)
	ok(t, err)
	p := s.(*postgres.Storage)
	ok(t, errors.Join(p.CreateSchema(t.Context()), p.Close()))
	return address
}

// contend has goroutines that ask, wait and call, half of them the endpoint.
func contend(p *process) error {
	ctx := contenders.Context()
	s, err := storage.Open(ctx, p.Storage)
	if err != nil {
		return err
	}
	defer s.(io.Closer).Close()
	if p.Pins {
		return contendPinned(ctx, p, s)
	}
	o := provider.Options(app.Own.Keeps())
	o.Storage, o.Concurrency = s, 100
	o.Shared = map[string]drip.Limit{"app": app.All.Keeps(), "endpoint": app.Endpoint.Keeps()}
	bucket, err := drip.New(o)
	if err != nil {
		return err
	}
	var decisions [callers]int
	err = inCallers(ctx, func(i int) (err error) {
		decisions[i], err = one(ctx, bucket, p.Provider, i, decisions[i])
		return err
	})
	for _, n := range decisions {
		p.Decisions += n
	}
	return err
}

// inCallers has each of the callers do something again and again, until the context ends or it fails.
func inCallers(ctx context.Context, do func(caller int) error) error {
	var all sync.WaitGroup
	var errs [callers]error
	for i := range callers {
		all.Go(func() {
			for ctx.Err() == nil && errs[i] == nil {
				errs[i] = do(i)
			}
			if ctx.Err() != nil { // which it may be about
				errs[i] = nil
			}
		})
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// one takes one operation through the limits, and counts decisions.
func one(ctx context.Context, bucket *drip.Bucket, providerURL string, caller, decisions int) (int, error) {
	shop := fmt.Sprint("shop ", rand.N(shops))
	q := url.Values{"shop": {shop}}
	r := drip.Request{Within: []string{"app"}, Urgent: caller%5 == 0}
	if caller%2 == 0 {
		r.Within = append(r.Within, "endpoint")
		q.Set("endpoint", "search")
	}
	for {
		a, err := bucket.Admit(ctx, shop, r)
		if err != nil {
			return decisions, err
		}
		decisions++
		if a.Delay == 0 {
			// It is settled also when the time is over: what was sent counts.
			ctx := context.WithoutCancel(ctx)
			if rand.N(20) == 0 {
				return decisions, bucket.Cancel(ctx, shop, a)
			}
			_, err := contenders.Send(ctx, providerURL, q)
			return decisions, errors.Join(err, bucket.Settle(ctx, shop, a.Lease, 1))
		}
		r.Ticket = a.Ticket
		if !sleep.For(ctx, a.Delay) {
			return decisions, ctx.Err()
		}
	}
}

var ok = oktest.OK // ends the test if there is an error
