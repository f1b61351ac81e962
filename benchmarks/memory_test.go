// Package benchmarks compares drip with its peers, side by side in one run.
package benchmarks

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
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

func BenchmarkMemory(b *testing.B) {
	for _, n := range []int{1, manyKeys} {
		keys := keys(n)
		bucket, limiters := generous(b), &limiters{}
		for _, c := range []struct {
			name string
			call func(*testing.B, string)
		}{
			{"drip-pair", func(b *testing.B, key string) { pair(b, bucket, key) }},
			{"xtime-allow", limiters.allow},
		} {
			for _, key := range keys {
				c.call(b, key)
			}
			b.Run(fmt.Sprintf("%s/keys=%d/serial", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					c.call(b, keys[i])
					if i++; i == n {
						i = 0
					}
				}
			})
			b.Run(fmt.Sprintf("%s/keys=%d/parallel", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				var started atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					i := int(started.Add(1)) * 37_777 % n
					for pb.Next() {
						c.call(b, keys[i])
						if i++; i == n {
							i = 0
						}
					}
				})
			})
		}
	}
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
