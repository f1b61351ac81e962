package contenders

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/provider"
)

// Bucket is a limit of an App: one that leaks.
type Bucket struct{ Size, PerSecond float64 }

// onTheWay is how long a call may take to the provider. The processes of a test have two processors together, or less.
const onTheWay = 500 * time.Millisecond

// Keeps is drip's limit that keeps b.
func (b Bucket) Keeps() drip.Limit {
	l, err := provider.Limit(onTheWay, provider.LeakyBucket(int(b.Size), b.PerSecond))
	if err != nil {
		panic(err)
	}
	l.Concurrency = 0
	return l
}

// App is a provider that knows nothing of drip. It counts each limit separately: the app's, each shop's and an
// endpoint's. A call is a POST with the query parameters shop, endpoint (which may be missing), id and note.
type App struct {
	Own, All, Endpoint Bucket

	mu      sync.Mutex
	buckets map[string]*leaking
	calls   []Call
	refused map[string]int
}

// Call is a call that was accepted.
type Call struct {
	ID, Note string
	At       time.Time
}

type leaking struct {
	level float64
	at    time.Time
}

// ServeHTTP takes a call.
func (a *App) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limits := map[string]Bucket{"app": a.All, "shop " + q.Get("shop"): a.Own}
	if q.Get("endpoint") != "" {
		limits["endpoint"] = a.Endpoint
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, refused := time.Now(), false
	for name, limit := range limits {
		b := a.buckets[name]
		if b == nil {
			b = &leaking{}
			a.buckets[name] = b
		}
		b.level = max(0, b.level-limit.PerSecond*now.Sub(b.at).Seconds())
		b.at = now
		if b.level+1 > limit.Size {
			refused = true
			a.refused[name]++
		}
	}
	if refused {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	for name := range limits {
		a.buckets[name].level++
	}
	a.calls = append(a.calls, Call{q.Get("id"), q.Get("note"), now})
}

// Serve serves until stop is called, at url.
func (a *App) Serve() (url string, stop func()) {
	a.buckets, a.refused = map[string]*leaking{}, map[string]int{}
	s := httptest.NewServer(a)
	return s.URL, s.Close
}

// Calls are the calls that were accepted, in their order, and how many were refused, by the limit.
func (a *App) Calls() (accepted []Call, refused map[string]int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls, a.refused
}

// Used is the part of the app's limit that the calls have used. The whole is the bucket's size and the units that leak
// until the last call.
func (a *App) Used() (part float64, took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.calls) == 0 {
		return 0, 0
	}
	took = a.calls[len(a.calls)-1].At.Sub(a.calls[0].At)
	return float64(len(a.calls)) / (a.All.Size + a.All.PerSecond*took.Seconds()), took
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}, Timeout: 10 * time.Second}

// Send calls an App that is served at address.
func Send(ctx context.Context, address string, query url.Values) (refused bool, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/?"+query.Encode(), nil)
	if err != nil {
		return false, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return false, err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return answer.StatusCode == http.StatusTooManyRequests, errors.Join(err, answer.Body.Close())
}
