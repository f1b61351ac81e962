// Package benchmarks compares drip with its peers, side by side in one run.
package benchmarks

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/store/memory"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
)

const manyKeys = 100_000

// keys are n entities in random order, as messages bring them.
func keys(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("tenant-%06d", i)
	}
	rand.Shuffle(n, func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// generous is a bucket that lets every call of a benchmark run.
func generous(b testing.TB) *drip.Bucket {
	return buckettest.New(b, drip.Options{Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: time.Second})
}

// pair takes a token and gives it back: what every operation costs.
func pair(b *testing.B, bucket *drip.Bucket, key string) {
	delay, err := bucket.GetDelay(context.Background(), key)
	if err != nil || delay != 0 {
		b.Errorf("GetDelay = %v, %v", delay, err)
	}
	if err := bucket.ReturnToken(context.Background(), key); err != nil {
		b.Error(err)
	}
}

// leased is pair with Admit and Settle.
func leased(b *testing.B, bucket *drip.Bucket, key string) {
	a, err := bucket.Admit(context.Background(), key, drip.Request{})
	if err != nil || a.Delay != 0 {
		b.Errorf("Admit = %+v, %v", a, err)
	}
	if err := bucket.Settle(context.Background(), key, a.Lease, 1); err != nil {
		b.Error(err)
	}
}

// peers are other limiters in memory, each with a limit that lets everything through. They decide by rate alone. A
// sync.Map holds the limiters without keys, as their users do.
var peers = []struct {
	name string
	new  func(b *testing.B) func(key string)
}{
	{"xtime", func(b *testing.B) func(string) {
		return inMap(func() *rate.Limiter { return rate.NewLimiter(1e9, 1<<30) }, func(l *rate.Limiter) {
			if !l.Allow() {
				b.Error("not allowed")
			}
		})
	}},
	{"uber", func(b *testing.B) func(string) {
		return inMap(func() uber.Limiter { return uber.New(1<<30, uber.WithSlack(1<<20)) }, func(l uber.Limiter) { l.Take() })
	}},
	{"sethvargo", func(b *testing.B) func(string) {
		store, err := memorystore.New(&memorystore.Config{Tokens: 1 << 40, Interval: time.Second})
		ok(b, err)
		b.Cleanup(func() { _ = store.Close(context.Background()) })
		return func(key string) {
			if _, _, _, ok, err := store.Take(context.Background(), key); !ok || err != nil {
				b.Error("not taken", err)
			}
		}
	}},
	{"throttled", func(b *testing.B) func(string) {
		store, err := memstore.NewCtx(0)
		ok(b, err)
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(1e9), MaxBurst: 1e9})
		ok(b, err)
		l.SetMaxCASAttemptsLimit(math.MaxInt) // two on one key may fail a thousand times
		return func(key string) {
			if limited, _, err := l.RateLimitCtx(context.Background(), key, 1); limited || err != nil {
				b.Error("limited", err)
			}
		}
	}},
	{"ulule", func(b *testing.B) func(string) {
		l := ulule.New(memory.NewStore(), ulule.Rate{Period: time.Second, Limit: 1 << 40})
		return func(key string) {
			if c, err := l.Get(context.Background(), key); c.Reached || err != nil {
				b.Error("reached", err)
			}
		}
	}},
}

// inMap asks the limiter of a key, and makes it if there is none yet.
func inMap[L any](make func() L, ask func(L)) func(key string) {
	var m sync.Map
	return func(key string) {
		v, ok := m.Load(key)
		if !ok {
			v, _ = m.LoadOrStore(key, make())
		}
		ask(v.(L))
	}
}

// BenchmarkMemory times drip and its peers in turn, round by round, so that a machine that slows down slows all. It
// reports the medians of at least seven rounds. It also reports the medians of the ratios of each two rounds beside
// each other: how much of the peer's time drip's pair takes, which is two calls and limits the operations at once
// besides. Below 1 drip is faster.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1, manyKeys} {
		for _, workers := range slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) {
			b.Run(fmt.Sprintf("keys=%d/workers=%d", n, workers), func(b *testing.B) {
				keys := keys(n)
				bucket, other := generous(b), generous(b)
				all := []*timed{
					{name: "drip", f: func(key string) { pair(b, bucket, key) }},
					{name: "admit", f: func(key string) { leased(b, other, key) }},
				}
				for _, p := range peers {
					all = append(all, &timed{name: p.name, f: p.new(b)})
				}
				for _, t := range all {
					for _, key := range keys {
						t.f(key)
					}
				}
				for range 7 * b.N {
					for _, t := range all {
						t.ns = append(t.ns, round(keys, workers, t.f))
					}
				}
				b.ReportMetric(0, "ns/op") // how long the rounds are
				drip := all[0]
				for _, t := range all {
					b.ReportMetric(median(t.ns), t.name+"-ns")
				}
				for _, t := range all[1:] {
					b.ReportMetric(median(ratios(drip.ns, t.ns)), "of-"+t.name)
				}
			})
		}
	}
}

// timed is something that is timed, and the nanoseconds a call took in each round.
type timed struct {
	name string
	f    func(key string)
	ns   []float64
}

func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// round calls f 400,000 times, each worker beginning elsewhere in keys, and returns the nanoseconds a call took.
func round(keys []string, workers int, f func(key string)) float64 {
	const calls = 400_000
	began := time.Now()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			next := w * len(keys) / workers
			for range calls / workers {
				f(keys[next])
				if next++; next == len(keys) {
					next = 0
				}
			}
		})
	}
	wg.Wait()
	return float64(time.Since(began)) / calls
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// BenchmarkHeap reports the heap an entity takes, its key not counted, at a million entities.
func BenchmarkHeap(b *testing.B) {
	const n = 1_000_000
	for b.Loop() {
		b.StopTimer()
		keys := keys(n)
		before := heap()
		b.StartTimer()
		bucket := generous(b)
		for _, key := range keys {
			pair(b, bucket, key)
		}
		b.StopTimer()
		b.ReportMetric(float64(heap()-before)/n, "B/entity")
		runtime.KeepAlive(bucket)
		runtime.KeepAlive(keys)
		b.StartTimer()
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

var ok = oktest.OK // ends the test if there is an error
