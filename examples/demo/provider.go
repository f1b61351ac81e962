package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// provider is the rate-limited service: an HTTP API that counts calls independently of drip.
//
//	POST /shops/{shop}/orders/{order}   200, or 429 with Retry-After, and Limit if it is one that shops share
//	POST /shops/{shop}/stock/{order}    the same, for an endpoint with a limit of its own
type provider struct {
	url    string
	server http.Server
	log    callLog

	mu     sync.Mutex
	shops  map[string]*account
	shared map[string]*account // the limits that shops share
}

const limitHeader = "Limit"

// callLog gets every call, in the order in which the provider decides.
type callLog interface {
	refused(order int, limit string) // empty for the shop's own
	accepted(order int, at time.Time)
	answered(order int, at time.Time)
}

func newProvider(log callLog, shared map[string]rule) *provider {
	p := &provider{log: log, shops: map[string]*account{}, shared: map[string]*account{}}
	for name, r := range shared {
		p.shared[name] = &account{rule: r}
	}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /shops/{shop}/orders/{order}", p.serve(appLimit))
	routes.HandleFunc("POST /shops/{shop}/stock/{order}", p.serve(appLimit, stockLimit))
	p.server = http.Server{Handler: routes, ReadHeaderTimeout: 10 * time.Second}
	return p
}

// start serves on a free port of 127.0.0.1 until close.
func (p *provider) start() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("provider: %w", err)
	}
	p.url = "http://" + listener.Addr().String()
	go p.server.Serve(listener)
	return nil
}

func (p *provider) close() { p.server.Close() }

// serve returns an endpoint within these limits that shops share.
func (p *provider) serve(within ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		shop := r.PathValue("shop")
		order, err := strconv.Atoi(r.PathValue("order"))
		if err != nil {
			http.Error(w, "an order is a number", http.StatusBadRequest)
			return
		}
		if refused := p.enter(shop, within, order); refused != nil {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.retryAfter.Seconds()))))
			if refused.limit != "" {
				w.Header().Set(limitHeader, refused.limit)
			}
			http.Error(w, refused.reason, http.StatusTooManyRequests)
			return
		}
		time.Sleep(callTime())
		p.leave(shop, within, order) // before the answer: who has it may call again
	}
}

// enter begins a call that all limits allow. It refuses any other call, which changes nothing.
func (p *provider) enter(shop string, within []string, order int) *refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.shops[shop]
	if a == nil {
		a = &account{rule: rule{Size: bucketSize, PerSecond: leakRate, AtOnce: mostAtOnce}}
		p.shops[shop] = a
	}
	now := time.Now()
	refused := a.refuses(now)
	for _, name := range within {
		if r := p.shared[name].refuses(now); refused == nil && r != nil {
			refused = r
			refused.limit = name
		}
	}
	if refused != nil {
		p.log.refused(order, refused.limit)
		return refused
	}
	a.enter(now)
	for _, name := range within {
		p.shared[name].enter(now)
	}
	p.log.accepted(order, now)
	return nil
}

func (p *provider) leave(shop string, within []string, order int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shops[shop].leave()
	for _, name := range within {
		p.shared[name].leave()
	}
	p.log.answered(order, time.Now())
}

// callTime returns how long a call takes: about 100 ms, at times up to 300 ms.
func callTime() time.Duration {
	ms := min(50+60*rand.ExpFloat64(), 300)
	return time.Duration(ms * float64(time.Millisecond))
}

// rule is a leaky bucket and, unless it is 0, how many calls there may be at once.
type rule struct {
	Size, PerSecond, AtOnce int
}

// account counts by a rule: a bucket that drains all the time, and the calls under way. It begins with no call.
type account struct {
	rule
	level    float64 // calls in the bucket
	at       time.Time
	inFlight int
}

// refusal is the reason why a call was refused and when the next call may be accepted.
type refusal struct {
	limit      string // that shops share, else empty
	reason     string
	retryAfter time.Duration
}

// room returns how many calls the bucket still takes.
func (a *account) room(now time.Time) float64 {
	leaked := now.Sub(a.at).Seconds() * float64(a.PerSecond) // Sub goes by the monotonic clock
	return float64(a.Size) - max(0, a.level-leaked)
}

// refuses returns why a call is refused, if it is.
func (a *account) refuses(now time.Time) *refusal {
	if a.AtOnce > 0 && a.inFlight >= a.AtOnce {
		return &refusal{reason: "too many calls at once", retryAfter: time.Second}
	}
	if over := 1 - a.room(now); over > 0 {
		return &refusal{reason: "too many calls", retryAfter: time.Duration(over / float64(a.PerSecond) * float64(time.Second))}
	}
	return nil
}

// enter begins a call, which leave ends.
func (a *account) enter(now time.Time) {
	a.level = float64(a.Size) - a.room(now) + 1
	a.at = now
	a.inFlight++
}

func (a *account) leave() { a.inFlight-- }
