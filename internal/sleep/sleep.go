// Package sleep sleeps as long as a context lives.
package sleep

import (
	"context"
	"math"
	"math/rand/v2"
	"time"
)

// For sleeps for d and reports whether ctx lived that long.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Jitter adds up to a quarter to d, so that messages that failed together don't come back together. It never subtracts.
func Jitter(d time.Duration) time.Duration { return d + rand.N(min(d/4, math.MaxInt64-d)+1) }
