package provider

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/drip-go/drip"
)

// Follower adjusts the share of a limit that its entities use, their level, to the provider's responses. Use it for a
// provider whose limit is lower than documented, shared with others, or changing. It never goes above the limit.
//
//	follower := &provider.Follower{Limit: limit}
//	options := provider.Options(limit)
//	options.Limits = follower.Limits
//	…
//	transport := &provider.Transport{Bucket: bucket, Follower: follower}
//
// A refused call lowers the level of its entity. The new level is a little less than the provider has let pass since
// its previous refusal, if that is known, else eight tenths of the old one. Then the level rises with the third power
// of the time: it changes little for minutes, and doubles in ten. A limit that responses announce, such as by
// RateLimit-Policy, bounds the level at once. When little is left of a window, the level makes that last until the
// window's reset. After a pause an entity starts at half its level, and is back at the full level ten seconds later.
//
// Each process has its own level. A decision by another limit than the last one drops the gained capacity and the
// bookings (see drip.Options.Limits). So use a Follower if one process makes all calls of an entity. With four
// processes, each with a Follower, the provider refuses as few calls. If the real limit is half of the limit in the
// code, they use some 85 % of it.
//
// Set the fields before the first call. A Follower is safe for concurrent use.
type Follower struct {
	// Limit is the most that each entity may use, as the function Limit returns it. Required.
	Limit drip.Limit

	// Least is the lowest level, a share of Limit above 0. Defaults to 0.02.
	Least float64

	mu       sync.Mutex
	entities map[string]*followed
	most     int // add looks for entities to forget when there are as many
}

const (
	leastLevel  = 0.02
	firstFactor = 0.8             // of the level after a refusal about which no more is known
	below       = 0.98            // of what the provider has let pass
	rise        = 0.001           // of that, times the third power of the minutes since
	sameRefusal = 2 * time.Second // after a refusal others belong to it, and until the next interval
	longestSame = time.Minute
	measurable  = 5 * time.Second  // between two refusals at least
	changeEvery = 10 * time.Second // it rises at most, but in the middle of an interval, and as often as 20 intervals
	pauseLong   = time.Minute      // without a call
	retryLong   = 10 * time.Second
	rampTime    = 10 * time.Second
	forgetAfter = time.Hour
	levels      = 200 // as many levels are told apart
)

// followed is the state of an entity.
type followed struct {
	lowered   float64 // the level after the last refusal; 1 if there was none
	announced float64 // by responses, at most 1
	refused   time.Time
	accepted  int       // since it was refused
	last      time.Time // the last response
	ramp      time.Time // when it begins to ramp up
	applied   float64   // by which decisions are made
	changed   time.Time // when that changed last
}

// Limits is for drip.Options.Limits. It fails if Follower.Limit has no Size, RefreshRate or RefreshInterval.
func (f *Follower) Limits(_ context.Context, entityID string) (drip.Limit, error) {
	l := f.Limit
	if l.Size < 1 || l.RefreshRate < 1 || l.RefreshInterval < time.Millisecond {
		return l, errors.New("provider: Follower.Limit has no Size, RefreshRate or RefreshInterval")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entities[entityID]
	if e == nil {
		return l, nil
	}
	now := time.Now()
	if now.Sub(e.last) > pauseLong && now.After(e.ramp) {
		e.last, e.ramp = now, now
	}
	level := math.Floor(e.current(now)*levels) / levels
	level = max(min(level, 1), cmp.Or(f.Least, leastLevel))
	// A decision by another limit than the last one loses the capacity that came between the two: nothing in the middle
	// of an interval, else up to an interval's.
	interval := scaled(l, e.applied).RefreshInterval
	middle := now.UnixMilli() % max(1, interval.Milliseconds()) * 4 / max(1, interval.Milliseconds())
	if level < e.applied || middle == 1 || middle == 2 || now.Sub(e.changed) >= max(changeEvery, 20*interval) {
		if level != e.applied {
			e.applied, e.changed = level, now
		}
	}
	return scaled(l, e.applied), nil
}

// Level is the share of its limit in the last decision about an entity, from 0 to 1. It is 1 for an unknown entity.
func (f *Follower) Level(entityID string) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.entities[entityID]; e != nil {
		return e.applied
	}
	return 1
}

// Seen tells the Follower the status of a response to a call of the entity. A Transport with this Follower calls it.
func (f *Follower) Seen(entityID string, s Status) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.entities[entityID]
	if e == nil {
		e = f.add(entityID, now)
	}
	e.last = now
	e.announced = f.announced(s)
	if !s.Throttled {
		e.accepted++
		return
	}
	// A lower level shows with the next interval.
	same := min(max(sameRefusal, scaled(f.Limit, e.applied).RefreshInterval+time.Second), longestSame)
	if !e.refused.IsZero() && now.Sub(e.refused) < same {
		return
	}
	level := e.followed(now)
	next := level * firstFactor
	if since := now.Sub(e.refused); !e.refused.IsZero() && since >= measurable {
		// The provider had nothing left then, and has nothing left now. So it let pass as much as came back in between.
		passed := float64(e.accepted) / since.Seconds() / f.rate()
		next = min(max(below*passed, level/2), below*level)
	}
	e.lowered, e.refused, e.accepted = max(next, cmp.Or(f.Least, leastLevel)), now, 0
	if s.RetryAfter > retryLong {
		e.ramp = now.Add(s.RetryAfter)
	}
}

// followed is the level at a time by the refusals alone.
func (e *followed) followed(now time.Time) float64 {
	minutes := now.Sub(e.refused).Minutes()
	return min(1, e.lowered*(1+rise/below*minutes*minutes*minutes))
}

// current is the level at a time.
func (e *followed) current(now time.Time) float64 {
	level := min(e.followed(now), e.announced)
	if up := now.Sub(e.ramp); up < rampTime && !e.ramp.IsZero() {
		level *= 0.5 + 0.5*max(0, up.Seconds())/rampTime.Seconds()
	}
	return level
}

// add adds an entity, and forgets entities without a response for forgetAfter. It requires mu held.
func (f *Follower) add(entityID string, now time.Time) *followed {
	if f.entities == nil {
		f.entities = map[string]*followed{}
	}
	if len(f.entities) >= f.most {
		for name, e := range f.entities {
			if now.Sub(e.last) > forgetAfter {
				delete(f.entities, name)
			}
		}
		f.most = max(1024, 2*len(f.entities))
	}
	e := &followed{lowered: 1, announced: 1, applied: 1}
	f.entities[entityID] = e
	return e
}

// rate is the limit's rate in calls a second in the long run. It is infinite if the limit counts other units only.
func (f *Follower) rate() float64 {
	rate := math.Inf(1)
	l := &f.Limit
	for _, w := range append([]drip.Window{{Size: l.Size, RefreshRate: l.RefreshRate, RefreshInterval: l.RefreshInterval, Unit: l.Unit}}, l.Windows...) {
		if w.Unit == "" {
			rate = min(rate, float64(cmp.Or(w.RefreshRate, w.Size))/w.RefreshInterval.Seconds())
		}
	}
	return rate
}

// announced is the level that a response tells, 1 if it tells none.
func (f *Follower) announced(s Status) float64 {
	level := 1.0
	for _, q := range s.Quotas {
		if q.Unit != "requests" || math.IsInf(f.rate(), 1) {
			continue
		}
		rate := q.PerSecond
		if rate == 0 && q.Limit > 0 && q.Window > 0 {
			rate = float64(q.Limit) / q.Window.Seconds()
		}
		if rate > 0 {
			level = min(level, rate/f.rate())
		}
		// The window is nearly used up: the remaining calls must last until its reset.
		if q.PerSecond == 0 && q.Window >= 10*time.Second && q.Limit > 0 && q.Remaining >= 0 && q.Remaining < q.Limit/10 && q.Reset > 0 {
			level = min(level, float64(q.Remaining)/q.Reset.Seconds()/f.rate())
		}
	}
	return level
}

// scaled is a level of a limit. A window that gathers capacity gets a longer interval, which is more exact than a
// smaller rate. Any other window gets fewer units.
func scaled(l drip.Limit, level float64) drip.Limit {
	if level >= 1 {
		return l
	}
	l.Size, l.RefreshRate, l.RefreshInterval = scaledWindow(l.Size, l.RefreshRate, l.RefreshInterval, level)
	windows := make([]drip.Window, len(l.Windows))
	for i, w := range l.Windows {
		windows[i] = w
		windows[i].Size, windows[i].RefreshRate, windows[i].RefreshInterval = scaledWindow(w.Size, cmp.Or(w.RefreshRate, w.Size), w.RefreshInterval, level)
	}
	l.Windows = windows
	return l
}

func scaledWindow(size, rate int, interval time.Duration, level float64) (int, int, time.Duration) {
	scaled := max(1, int(float64(size)*level))
	if size <= rate {
		return scaled, scaled, interval
	}
	few := min(rate, scaled)
	longer := float64(interval.Milliseconds()) * float64(few) / (float64(rate) * level)
	return scaled, few, time.Duration(math.Ceil(longer)) * time.Millisecond
}
