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
			// next waits for the next n calls, and returns how many intervals they touch. The calls decided before have arrived.
			next := func(n int) (intervals int) {
				time.Sleep(onTheWay)
				begin, before := time.Now(), calls()
				for calls() < before+n && !t.Failed() {
					time.Sleep(10 * time.Millisecond)
				}
				return int((time.Since(begin)+onTheWay)/time.Second) + 2
			}
			end := contenders.Start(t, four, told)
			next(40)
			ok(t, operator.Pin(t.Context(), "shop", drip.Pin{Window: drip.Window{Size: 3, RefreshInterval: time.Second}}))
			if intervals := next(12); 12 > 3*intervals {
				t.Errorf("pinned: 12 calls ran in %d intervals", intervals)
			}
			end()
			end = contenders.Start(t, four, told)
			if intervals := next(12); 12 > 3*intervals {
				t.Errorf("after a restart: 12 calls ran in %d intervals", intervals)
			}
			ok(t, operator.Unpin(t.Context(), "shop"))
			if intervals := next(40); 40 <= 3*intervals {
				t.Errorf("unpinned: 40 calls ran in %d intervals", intervals)
			}
			end()
			if _, refused := app.Calls(); len(refused) > 0 {
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
		select {
		case <-time.After(min(a.Delay, 100*time.Millisecond)): // so that somebody asks when the pin is off
		case <-ctx.Done():
		}
		return nil
	})
}
