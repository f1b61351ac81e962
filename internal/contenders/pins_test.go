package contenders_test

import (
	"context"
	"errors"
	"io"
	"net/url"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/internal/stalls"
	"github.com/drip-go/drip/storage"
)

// pinned is what all processes of TestPinInProcesses have in their code.
var pinned = drip.Options{Size: 20, RefreshRate: 20, Concurrency: 1000}

// TestPinInProcesses: four processes ask as fast as they can. A pin holds in all of them from the next decision on. It
// still holds after all of them have restarted. After Unpin the limit of the code holds. A provider counts the calls,
// and finds none above that limit.
func TestPinInProcesses(t *testing.T) {
	const four, onTheWay = 4, 500 * time.Millisecond // the longest time from a decision to its call
	for name, open := range map[string]func(*testing.T) string{
		"Redis":      func(t *testing.T) string { return servers.OwnRedis(t).URL() },
		"PostgreSQL": withSchema,
	} {
		t.Run(name, func(t *testing.T) {
			// The app counts the limit of the code. Calls that were decided in two intervals may arrive together.
			app := &contenders.App{Own: contenders.Bucket{Size: 60, PerSecond: 20}, All: contenders.Bucket{Size: 1e6, PerSecond: 1e6}}
			providerURL, stop := app.Serve()
			defer stop()
			told := process{Storage: open(t), Provider: providerURL, Pins: true}
			s, err := storage.Open(t.Context(), told.Storage)
			ok(t, err)
			defer s.(io.Closer).Close()
			o := pinned
			o.Storage = s
			operator := buckettest.New(t, o)
			calls := func() int {
				accepted, _ := app.Calls()
				return len(accepted)
			}
			stalled, started := stalls.Watch(t.Context()), time.Now()
			// next waits for the next n calls, and judges how many intervals they touch. The calls decided before have arrived, unless
			// the machine stalls. Then it waits for as many again.
			next := func(what string, n int, right func(intervals int) bool) {
				t.Helper()
				for !t.Failed() {
					from := time.Now()
					time.Sleep(onTheWay)
					begin, before := time.Now(), calls()
					for calls() < before+n && !t.Failed() {
						time.Sleep(10 * time.Millisecond)
					}
					intervals := int((time.Since(begin)+onTheWay)/time.Second) + 2
					if right(intervals) {
						return
					} else if stalled.Between(from, time.Now()) < onTheWay/10 {
						t.Errorf("%s: %d calls ran in %d intervals", what, n, intervals)
					}
				}
			}
			slow := func(intervals int) bool { return 12 <= 3*intervals }
			end := contenders.Start(t, four, told)
			next("before", 40, func(int) bool { return true })
			ok(t, operator.Pin(t.Context(), "shop", drip.Pin{Window: drip.Window{Size: 3, RefreshInterval: time.Second}}))
			next("pinned", 12, slow)
			end()
			end = contenders.Start(t, four, told)
			next("after a restart", 12, slow)
			ok(t, operator.Unpin(t.Context(), "shop"))
			next("unpinned", 40, func(intervals int) bool { return 40 > 3*intervals })
			end()
			if _, refused := app.Calls(); len(refused) > 0 && stalled.Between(started, time.Now()) < time.Second {
				t.Errorf("the provider refused %v", refused)
			}
		})
	}
}

// contendPinned has goroutines that ask, wait and call.
func contendPinned(ctx context.Context, p *process, s storage.Storage) error {
	o := pinned
	o.Storage = s
	bucket, err := drip.New(o)
	if err != nil {
		return err
	}
	var requests [callers]drip.Request
	return inCallers(ctx, func(i int) error {
		a, err := bucket.Admit(ctx, "shop", requests[i])
		if requests[i].Ticket = a.Ticket; err != nil {
			return err
		}
		if a.Delay == 0 {
			ctx := context.WithoutCancel(ctx)
			_, err := contenders.Send(ctx, p.Provider, url.Values{"shop": {"shop"}})
			return errors.Join(err, bucket.Settle(ctx, "shop", a.Lease, 1))
		}
		sleep.For(ctx, min(a.Delay, 100*time.Millisecond)) // so that somebody asks when the pin is off
		return nil
	})
}
