package main

import (
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"
)

// api is the provider: a leaky bucket of 10 for each shop that drains by 5 a second.
type api struct {
	mu      sync.Mutex
	level   map[string]float64
	last    map[string]time.Time
	calls   int
	refused int
}

const (
	size      = 10
	perSecond = 5
)

// newAPI returns an API whose bucket of one shop somebody else has filled just before its first call.
func newAPI(full string) *api {
	return &api{level: map[string]float64{full: size}, last: map[string]time.Time{}}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	shop, now := r.Header.Get("X-Shop"), time.Now()
	if a.last[shop].IsZero() {
		a.last[shop] = now
	}
	level := max(0, a.level[shop]-perSecond*now.Sub(a.last[shop]).Seconds())
	a.calls++
	if missing := level + 1 - size; missing > 0 {
		a.refused++
		w.Header().Set("Retry-After", fmt.Sprint(math.Ceil(missing/perSecond)))
		http.Error(w, "too many calls", http.StatusTooManyRequests)
		return
	}
	a.level[shop], a.last[shop] = level+1, now
	w.Header().Set("RateLimit", fmt.Sprintf(`"shop";r=%d;t=%d`, int(size-level-1), int(math.Ceil((level+1)/perSecond))))
}
