package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The bucket holds 40 and leaks 10 a second, to the millisecond.
func TestAccountLeaks(t *testing.T) {
	start := time.Now()
	a := account{rule: rule{Size: bucketSize, PerSecond: leakRate, AtOnce: mostAtOnce}}
	call := func(ms int, want bool, retryAfter time.Duration) {
		t.Helper()
		now := start.Add(time.Duration(ms) * time.Millisecond)
		refused := a.refuses(now)
		if refused == nil {
			a.enter(now)
			a.leave()
		}
		if (refused == nil) != want {
			t.Fatalf("at %d ms: %+v, want accepted %t", ms, refused, want)
		}
		if refused != nil && (refused.retryAfter-retryAfter).Abs() > time.Microsecond {
			t.Fatalf("at %d ms: retry after %v, want %v", ms, refused.retryAfter, retryAfter)
		}
	}
	for range 40 {
		call(0, true, 0)
	}
	call(0, false, 100*time.Millisecond)
	call(99, false, time.Millisecond) // a refused call costs nothing
	call(100, true, 0)
	call(100, false, 100*time.Millisecond)
	call(150, false, 50*time.Millisecond)
	for range 10 {
		call(1100, true, 0)
	}
	call(1100, false, 100*time.Millisecond)
	for range 40 { // never more than it holds, however long it was idle
		call(3_600_000, true, 0)
	}
	call(3_600_000, false, 100*time.Millisecond)
}

// calls is a callLog that counts. The provider calls it in turn.
type calls struct {
	accept, refuse, answer int
}

func (c *calls) refused(int, string)     { c.refuse++ }
func (c *calls) accepted(int, time.Time) { c.accept++ }
func (c *calls) answered(int, time.Time) { c.answer++ }

// Over HTTP: 429 and when to come again, for each shop by itself, and every call is counted.
func TestProviderAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log calls
		p := newProvider(&log, map[string]rule{appLimit: {Size: 1000, PerSecond: 1000}})
		place := func(shop string, n int) (codes map[int]int, retryAfter string) {
			codes = map[int]int{}
			var mu sync.Mutex
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					w := httptest.NewRecorder()
					p.server.Handler.ServeHTTP(w, httptest.NewRequest("POST", fmt.Sprintf("/shops/%s/orders/%d", shop, i), nil))
					mu.Lock()
					defer mu.Unlock()
					codes[w.Code]++
					if after := w.Header().Get("Retry-After"); after != "" {
						retryAfter = after
					}
				})
			}
			wg.Wait()
			return codes, retryAfter
		}
		for _, step := range []struct {
			shop         string
			n            int
			ok, refused  int
			retryAfter   string
			then         time.Duration
			acceptedThen int
		}{
			{"a", 25, 15, 10, "1", 0, 15},
			{"a", 15, 15, 0, "", 0, 30},
			{"b", 15, 15, 0, "", 0, 45}, // a shop of its own
			{"b", 1, 1, 0, "", 10 * time.Second, 46},
			{"a", 15, 15, 0, "", 0, 61},
		} {
			codes, after := place(step.shop, step.n)
			if codes[http.StatusOK] != step.ok || codes[http.StatusTooManyRequests] != step.refused || after != step.retryAfter {
				t.Errorf("%d calls of shop %s: %v, Retry-After %q; want %d accepted, %d refused, %q",
					step.n, step.shop, codes, after, step.ok, step.refused, step.retryAfter)
			}
			if log.accept != step.acceptedThen || log.answer != log.accept {
				t.Errorf("accepted %d, answered %d; want %d", log.accept, log.answer, step.acceptedThen)
			}
			time.Sleep(step.then)
		}
		if log.refuse != 10 {
			t.Errorf("%d refused calls were counted, want 10", log.refuse)
		}
		// Within a second, the bucket refuses calls that it has no room for.
		began := time.Now()
		for range 3 {
			place("c", 15)
		}
		codes, after := place("c", 15)
		leaked := int(time.Since(began).Seconds() * leakRate)
		if accepted := log.accept - 61; accepted < 40 || accepted > 40+leaked || codes[http.StatusTooManyRequests] == 0 || after != "1" {
			t.Errorf("%d of 60 calls in a moment were accepted, the last 15 %v, Retry-After %q; want 40 and what leaked, %d", accepted, codes, after, leaked)
		}
	})
}

// A call is within the app's limit, and that about the stock within the endpoint's: what one refuses costs the others
// nothing, and the answer names it.
func TestProviderSharesLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log calls
		p := newProvider(&log, map[string]rule{appLimit: {Size: 7, PerSecond: 1}, stockLimit: {Size: 2, PerSecond: 1}})
		call := func(path string) (code int, limit, after string) {
			w := httptest.NewRecorder()
			p.server.Handler.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
			return w.Code, w.Header().Get(limitHeader), w.Header().Get("Retry-After")
		}
		at := func(path string, wantCode int, wantLimit string) {
			t.Helper()
			if code, limit, after := call(path); code != wantCode || limit != wantLimit || (after == "") != (code == http.StatusOK) {
				t.Errorf("%s: %d, limit %q, Retry-After %q; want %d, %q", path, code, limit, after, wantCode, wantLimit)
			}
		}
		var together sync.WaitGroup
		for i := range 2 {
			together.Go(func() { at(fmt.Sprintf("/shops/%d/stock/1", i), http.StatusOK, "") })
		}
		together.Wait()
		at("/shops/3/stock/1", http.StatusTooManyRequests, stockLimit)
		for i := range 5 {
			together.Go(func() { at(fmt.Sprintf("/shops/%d/orders/1", i), http.StatusOK, "") })
		}
		together.Wait()
		at("/shops/9/orders/1", http.StatusTooManyRequests, appLimit)
		time.Sleep(2 * time.Second)
		at("/shops/9/stock/1", http.StatusOK, "")
	})
}
