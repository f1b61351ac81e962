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

// provider is the rate-limited service: an HTTP API that knows nothing of drip and counts for itself.
//
//	POST /shops/{shop}/orders/{order}   200, or 429 with Retry-After
type provider struct {
	url    string
	server http.Server
	log    callLog

	mu    sync.Mutex
	shops map[string]*account
}

// callLog hears of every call, in the order in which the provider decides.
type callLog interface {
	refused(order int)
	accepted(order int, at time.Time)
	answered(order int, at time.Time)
}

func newProvider(log callLog) *provider {
	p := &provider{log: log, shops: map[string]*account{}}
	routes := http.NewServeMux()
	routes.HandleFunc("POST /shops/{shop}/orders/{order}", p.placeOrder)
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

func (p *provider) placeOrder(w http.ResponseWriter, r *http.Request) {
	shop := r.PathValue("shop")
	order, err := strconv.Atoi(r.PathValue("order"))
	if err != nil {
		http.Error(w, "an order is a number", http.StatusBadRequest)
		return
	}
	if refused := p.enter(shop, order); refused != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.retryAfter.Seconds()))))
		http.Error(w, refused.reason, http.StatusTooManyRequests)
		return
	}
	time.Sleep(callTime())
	p.leave(shop, order) // before the answer: who has it may call again
}

func (p *provider) enter(shop string, order int) *refusal {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.shops[shop]
	if a == nil {
		a = &account{}
		p.shops[shop] = a
	}
	now := time.Now()
	refused := a.enter(now)
	if refused != nil {
		p.log.refused(order)
	} else {
		p.log.accepted(order, now)
	}
	return refused
}

func (p *provider) leave(shop string, order int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shops[shop].leave()
	p.log.answered(order, time.Now())
}

// callTime is how long a call takes: about 100 ms, at times up to 300.
func callTime() time.Duration {
	ms := min(50+60*rand.ExpFloat64(), 300)
	return time.Duration(ms * float64(time.Millisecond))
}

// account is a shop at the provider: a leaky bucket that drains all the time, and the calls under way. The zero value
// is a shop that has made no call yet.
type account struct {
	level    float64 // calls in the bucket
	at       time.Time
	inFlight int
}

// refusal says why a call was refused and when the next one may be accepted.
type refusal struct {
	reason     string
	retryAfter time.Duration
}

// enter begins a call, which leave ends, or refuses it, which changes nothing.
func (a *account) enter(now time.Time) *refusal {
	if a.inFlight >= mostAtOnce {
		return &refusal{"too many calls at once", time.Second}
	}
	level := max(0, a.level-now.Sub(a.at).Seconds()*leakRate) // Sub goes by the monotonic clock
	if over := level + 1 - bucketSize; over > 0 {
		return &refusal{"too many calls", time.Duration(over / leakRate * float64(time.Second))}
	}
	a.level, a.at = level+1, now
	a.inFlight++
	return nil
}

func (a *account) leave() { a.inFlight-- }
