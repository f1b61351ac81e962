package drip_test

import (
	"container/heap"
	"fmt"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

type askAt struct {
	at     int64
	entity string
	ticket drip.Ticket
	lease  drip.Lease
}

type asks []askAt

func (e asks) Len() int           { return len(e) }
func (e asks) Less(i, j int) bool { return e[i].at < e[j].at }
func (e asks) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *asks) Push(v any)        { *e = append(*e, v.(askAt)) }
func (e *asks) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// A shared limit is used though its entities have small limits of their own, which are twice as much together.
func TestSharedUseWithSmallOwnLimits(t *testing.T) {
	for _, c := range []struct {
		name     string
		own      drip.Options
		app      drip.Limit
		entities int
		least    float64 // of the limit
	}{
		{"1 each 500ms, app 100 each s", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond}, drip.Limit{Size: 100}, 100, 1},
		{"1 each 500ms, app 10 each 100ms", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond}, 100, 0.98},
		{"2 each s, app 100 each s", drip.Options{Size: 2, RefreshRate: 2}, drip.Limit{Size: 100}, 100, 1},
		{"2 each s, app 10 each 100ms", drip.Options{Size: 2, RefreshRate: 2}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond}, 100, 0.98},
		{"1 each s, app 10 each 100ms", drip.Options{Size: 1, RefreshRate: 1}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond}, 200, 0.98},
		{"1 each 550ms, app 10 each 105ms", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 550 * time.Millisecond}, drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 105 * time.Millisecond}, 105, 0.98},
		{"1 each 263ms, app 5 each 117ms", drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 263 * time.Millisecond}, drip.Limit{Size: 5, RefreshRate: 5, RefreshInterval: 117 * time.Millisecond}, 23, 0.98},
		{"40, 2 each s, app 100 each s", drip.Options{Size: 40, RefreshRate: 2, Concurrency: 40}, drip.Limit{Size: 100}, 100, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			const begin, span = 1_700_000_000_000, 60_000
			now := int64(begin)
			o := c.own
			o.Concurrency = 100
			o.Start, o.Clock = time.UnixMilli(0), func() time.Time { return time.UnixMilli(now) }
			o.Shared = map[string]drip.Limit{"app": c.app}
			b, err := drip.New(o)
			if err != nil {
				t.Fatal(err)
			}
			interval := c.app.RefreshInterval
			if interval == 0 {
				interval = time.Second
			}
			allowed := float64(c.app.Size) * span / float64(interval.Milliseconds())
			var waiting asks
			for i := range int(2 * allowed) {
				heap.Push(&waiting, askAt{at: now, entity: fmt.Sprint("shop ", i%c.entities)})
			}
			ran, asked := 0, 0
			for len(waiting) > 0 {
				e := heap.Pop(&waiting).(askAt)
				if now = max(now, e.at); now >= begin+span {
					break
				}
				if e.lease != (drip.Lease{}) {
					if err := b.Settle(t.Context(), e.entity, e.lease, 1); err != nil {
						t.Fatal(err)
					}
					continue
				}
				asked++
				a, err := b.Admit(t.Context(), e.entity, drip.Request{Ticket: e.ticket})
				if err != nil {
					t.Fatal(err)
				}
				if a.Delay > 0 {
					heap.Push(&waiting, askAt{at: now + a.Delay.Milliseconds(), entity: e.entity, ticket: a.Ticket})
					continue
				}
				ran++
				heap.Push(&waiting, askAt{at: now + 20, entity: e.entity, lease: a.Lease})
			}
			t.Logf("%.1f%% used by %d calls, %d decisions", 100*float64(ran)/allowed, ran, asked)
			if float64(ran) < c.least*allowed {
				t.Errorf("%.1f%% of the shared limit were used, want %v%%", 100*float64(ran)/allowed, 100*c.least)
			}
		})
	}
}
