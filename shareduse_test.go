package drip_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

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
			o := c.own
			o.Concurrency = 100
			o.Shared = map[string]drip.Limit{"app": c.app}
			interval := cmp.Or(c.app.RefreshInterval, time.Second)
			allowed := float64(c.app.Size) * span / float64(interval.Milliseconds())
			ran := 0
			load := buckettest.Load{Options: o, End: begin + span, Runs: func(_ *buckettest.Call, now int64) int64 { ran++; return now + 20 }}
			for i := range int(2 * allowed) {
				load.Calls = append(load.Calls, &buckettest.Call{At: begin, Entity: fmt.Sprint("shop ", i%c.entities)})
			}
			load.Play(t)
			t.Logf("%.1f%% used by %d calls", 100*float64(ran)/allowed, ran)
			if float64(ran) < c.least*allowed {
				t.Errorf("%.1f%% of the shared limit were used, want %v%%", 100*float64(ran)/allowed, 100*c.least)
			}
		})
	}
}

// Callers of GetDelay have no tickets. Within a shared limit, too, none of them waits for another one's slot, so each runs about as early
// as the limit lets it, and asks about once more.
func TestGetDelayWithinShared(t *testing.T) {
	const begin = 1_800_000_000_000
	own := drip.Options{Size: 1, RefreshRate: 1}
	for _, c := range []struct {
		app      drip.Limit
		calls    int
		last     int64   // when the last one runs at best, in ms
		mean     float64 // the most postponements of a call
		inBlocks float64 // the same, shop after shop
	}{
		{drip.Limit{Size: 10}, 1000, 99_000, 1.01, 1.45},
		{drip.Limit{Size: 10, Windows: []drip.Window{{Size: 1000, RefreshInterval: time.Hour}}}, 1500, 3_650_000, 1.05, 1.45},
		{drip.Limit{Size: 100, RefreshInterval: time.Hour}, 100, 9000, 1, 1},
		{drip.Limit{Size: 100, RefreshInterval: time.Hour}, 300, 2*3_600_000 + 9000, 1.65, 1.65},
	} {
		for _, inBlocks := range []bool{false, true} {
			late, last, postponed, most := rand.New(rand.NewPCG(1, 1)), int64(0), 0, c.mean
			load := buckettest.Load{Options: own, End: begin + 86_400_000, Late: func() int64 { return late.Int64N(20) }}
			load.Options.Shared = map[string]drip.Limit{"app": c.app}
			if c.app.RefreshInterval == 0 {
				load.Options.Size, load.Options.RefreshRate = 1000, 1000
			}
			load.Runs = func(_ *buckettest.Call, now int64) int64 {
				last = now - begin
				return now + 200
			}
			for i := range c.calls {
				shop := i % 10
				if inBlocks {
					shop, most = i*10/c.calls, c.inBlocks
				}
				load.Calls = append(load.Calls, &buckettest.Call{At: begin + int64(i/100), Entity: fmt.Sprint("shop", shop), Plain: true})
			}
			load.Play(t)
			for _, call := range load.Calls {
				postponed += call.Postponements
			}
			if mean := float64(postponed) / float64(c.calls); mean > most || last > c.last+1000 {
				t.Errorf("%+v, %d calls, in blocks %v: %.2f postponements, want at most %.2f; the last runs after %d ms, want at most %d",
					c.app, c.calls, inBlocks, mean, most, last, c.last+1000)
			}
		}
	}
}

// Callers of GetDelay that lack only a token of their entity book nothing of a shared limit.
func TestGetDelayBooksNothingShared(t *testing.T) {
	begin := time.Date(2026, 3, 1, 4, 20, 8, 0, time.UTC).UnixMilli()
	r, ran, last := rand.New(rand.NewPCG(1, 2)), 0, int64(0)
	load := buckettest.Load{
		Options: drip.Options{Size: 36000, RefreshRate: 36000, Concurrency: 3, Shared: map[string]drip.Limit{"a": {Size: 1140, RefreshInterval: time.Minute}}},
		End:     begin + 600_000,
		Late:    func() int64 { return r.Int64N(20) },
		Runs: func(_ *buckettest.Call, now int64) int64 {
			ran, last = ran+1, now-begin
			return now + 1 + r.Int64N(55)
		},
	}
	for i := range 568 {
		load.Calls = append(load.Calls, &buckettest.Call{At: begin + int64(i)/100, Entity: fmt.Sprint(r.IntN(4)), Plain: r.IntN(10) < 3})
	}
	load.Play(t)
	if ran < len(load.Calls) || last > 5000 {
		t.Errorf("%d of %d ran in %d ms; want all in less than 5 s", ran, len(load.Calls), last)
	}
}
