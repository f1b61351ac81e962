// Package benchmarks compares drip with its peers, side by side in one run.
package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/drip-go/drip"
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
	bucket, err := drip.New(drip.Options{
		Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: time.Second, Start: time.Unix(0, 0),
	})
	if err != nil {
		b.Fatal(err)
	}
	return bucket
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

// limiters is what users of x/time/rate write: a limiter for each key in a sync.Map.
type limiters struct{ m sync.Map }

func (l *limiters) allow(b *testing.B, key string) {
	v, ok := l.m.Load(key)
	if !ok {
		v, _ = l.m.LoadOrStore(key, rate.NewLimiter(1e9, 1<<30))
	}
	if !v.(*rate.Limiter).Allow() {
		b.Error("not allowed")
	}
}

// BenchmarkMemory times drip's pair and x/time/rate's Allow in turn, round by round, so that a machine that slows
// down slows both. It reports the medians, and that of the ratio of each two rounds: below 1 drip is faster.
func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1, manyKeys} {
		for _, workers := range slices.Compact([]int{1, runtime.GOMAXPROCS(0)}) {
			b.Run(fmt.Sprintf("keys=%d/workers=%d", n, workers), func(b *testing.B) {
				keys := keys(n)
				bucket, limiters := generous(b), &limiters{}
				drip := func(key string) { pair(b, bucket, key) }
				peer := func(key string) { limiters.allow(b, key) }
				for _, key := range keys {
					drip(key)
					peer(key)
				}
				var drips, peers, ratios []float64
				for b.Loop() {
					d, p := round(keys, workers, drip), round(keys, workers, peer)
					drips, peers, ratios = append(drips, d), append(peers, p), append(ratios, d/p)
				}
				b.ReportMetric(median(drips), "ns/pair")
				b.ReportMetric(median(peers), "ns/Allow")
				b.ReportMetric(median(ratios), "ratio")
			})
		}
	}
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
	slices.Sort(v)
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
