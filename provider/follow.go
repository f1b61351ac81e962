package provider

import (
	"context"
	"maps"
	"math"
	"sync"
	"time"
)

// announcer is a Throttler that learns of announced rates, such as a *drip.Bucket.
type announcer interface {
	Announced(ctx context.Context, entityID string, perSecond float64, d time.Duration) error
}

// announced remembers the rates of which the bucket has been told. The zero value is ready.
type announced struct {
	mu    sync.Mutex
	rates map[string]rate
	most  int // changed looks for rates to forget when there are as many
}

type rate struct {
	perSecond float64
	at        time.Time
}

const (
	announcedFor  = 10 * time.Minute
	announceEvery = time.Second      // at most
	announceAgain = 10 * time.Second // after the bucket could not be told: each try holds up a response
	untold        = -1               // the rate of which the bucket could not be told
)

// changed reports whether the bucket should be told of an entity's rate. A response without one, 0, says nothing: it may
// come from a cache, from a gateway, or from an endpoint that tells no limit.
func (a *announced) changed(entityID string, perSecond float64, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	last, known := a.rates[entityID]
	if now.Sub(last.at) > announcedFor {
		known = false
	}
	off := perSecond - last.perSecond
	switch since := now.Sub(last.at); {
	case perSecond == 0:
		return false
	case known && since < announceEvery, known && last.perSecond == untold && since < announceAgain:
		return false
	case known && since < announcedFor/2 && off*off <= last.perSecond*last.perSecond/200/200:
		return false
	}
	if a.rates == nil {
		a.rates = map[string]rate{}
	}
	if len(a.rates) >= a.most {
		maps.DeleteFunc(a.rates, func(_ string, r rate) bool { return now.Sub(r.at) > announcedFor })
		a.most = max(1024, 2*len(a.rates))
	}
	a.rates[entityID] = rate{perSecond, now}
	return true
}

// failed notes that the bucket was not told of an entity's rate.
func (a *announced) failed(entityID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rates[entityID] = rate{untold, time.Now()}
}

// PerSecond returns the rate of calls in the long run that the response tells, for Bucket.Announced; 0 if it tells
// none.
func (s *Status) PerSecond() float64 {
	least := math.Inf(1)
	for _, q := range s.Quotas {
		if q.Unit != "requests" {
			continue
		}
		rate := q.PerSecond
		if rate == 0 && q.Limit > 0 && q.Window > 0 {
			rate = float64(q.Limit) / q.Window.Seconds()
		}
		if rate > 0 {
			least = min(least, rate)
		}
		// The window is nearly used up: the remaining calls must last until its reset.
		if q.PerSecond == 0 && q.Window >= 10*time.Second && q.Limit > 0 && q.Remaining >= 0 && q.Remaining < q.Limit/10 && q.Reset > 0 {
			least = min(least, max(float64(q.Remaining), 0.5)/q.Reset.Seconds())
		}
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return least
}
