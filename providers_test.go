package drip_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// The table of docs/limits.md: a provider that counts for itself refuses no operation that drip lets run.
func TestProvidersRefuseNothing(t *testing.T) {
	const begin = 1_700_000_000_000
	for name, c := range map[string]struct {
		options drip.Options
		late    int64 // ms a call may be on its way
		allows  func() func(ms int64) bool
	}{
		"fixed window of 50 in 10s": {
			drip.Options{Size: 50, RefreshRate: 50, RefreshInterval: 10 * time.Second}, 0,
			func() func(int64) bool {
				window, n := int64(-1), 0
				return func(ms int64) bool {
					if w := ms / 10_000; w != window {
						window, n = w, 0
					}
					n++
					return n <= 50
				}
			},
		},
		"bucket of 40 that drains by 2 a second": {
			drip.Options{Size: 36, RefreshRate: 2}, 1000, leaky(40, 2),
		},
		"the same, however late calls arrive": {
			drip.Options{Size: 19, RefreshRate: 2}, 60_000, leaky(40, 2),
		},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				c.options.Start = time.UnixMilli(begin).Add(-time.Hour)
				b := buckettest.New(t, c.options)
				var arrivals, underWay []int64
				for now := int64(begin); now < begin+300_000; now += rnd.Int64N(200) {
					if seed%2 == 0 && now%60_000 < 30_000 {
						continue // idle for half of each minute, so that bursts come
					}
					underWay = slices.DeleteFunc(underWay, func(arrival int64) bool {
						if arrival > now {
							return false
						}
						ok(t, b.ReturnToken(t.Context(), "shop"))
						return true
					})
					for range rnd.IntN(30) {
						delay, err := b.GetDelayAt(t.Context(), "shop", time.UnixMilli(now))
						ok(t, err)
						if delay > 0 {
							continue
						}
						arrival := now + rnd.Int64N(c.late+1)
						arrivals, underWay = append(arrivals, arrival), append(underWay, arrival)
					}
				}
				slices.Sort(arrivals)
				allows := c.allows()
				for i, ms := range arrivals {
					if !allows(ms) {
						t.Fatalf("seed %d: the provider refused call %d of %d, at %d ms", seed, i, len(arrivals), ms-begin)
					}
				}
				if len(arrivals) < 100 {
					t.Errorf("seed %d: only %d calls were made", seed, len(arrivals))
				}
			}
		})
	}
}

// leaky is a bucket of that size which drains evenly.
func leaky(size, perSecond float64) func() func(ms int64) bool {
	return func() func(int64) bool {
		level, last := 0.0, int64(0)
		return func(ms int64) bool {
			level = max(0, level-perSecond*float64(ms-last)/1000) + 1
			last = ms
			return level <= size
		}
	}
}
