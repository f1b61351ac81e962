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

// Follower moves how much of a limit its entities use by what the provider's responses say, for a provider whose limit is
// lower than it says, is shared with others, or changes. It never goes above the limit.
//
//	follower := &provider.Follower{Limit: limit}
//	options := provider.Options(limit)
//	options.Limits = follower.Limits
//	…
//	transport := &provider.Transport{Bucket: bucket, Follower: follower}
//
// A call that is refused lowers the level of its entity: to a little less than the provider has let pass since it refused
// one before, if that is known, else to eight tenths. Then the level rises with the third power of the time, so that it
// stays near for minutes, and doubles in ten. What responses announce of the limit, such as RateLimit-Policy, bounds it at
// once, and so does what is left of a window until its reset when little is. After a pause an entity starts at half its
// level, and is at all of it ten seconds later.
//
// The level is this process's, and a decision by another limit than the last one drops what was gained and booked (see
// drip.Options.Limits). So a Follower is for an entity whose calls one process makes. Where four make them, and each has a
// Follower, as few calls are refused, but of a limit that is half of what the code says they use some 85 %.
//
// Set the fields before the first call; a Follower is safe for concurrent use.
type Follower struct {
	// Limit is what the entities may use at most, as Limit returns it. Required.
	Limit drip.Limit

	// Least is the lowest level, a share of Limit above 0. Defaults to 0.02.
	Least float64

	mu       sync.Mutex
	entities map[string]*followed
	most     int // with as many those that are forgotten are looked for
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

// followed is what is known of an entity.
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

// Limits is for drip.Options.Limits. Its error is that of a Limit that does not say all.
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
	// A decision by another limit than the last one loses what came between the two: nothing in the middle of an interval,
	// else up to an interval's.
	interval := scaled(l, e.applied).RefreshInterval
	middle := now.UnixMilli() % max(1, interval.Milliseconds()) * 4 / max(1, interval.Milliseconds())
	if level < e.applied || middle == 1 || middle == 2 || now.Sub(e.changed) >= max(changeEvery, 20*interval) {
		if level != e.applied {
			e.applied, e.changed = level, now
		}
	}
	return scaled(l, e.applied), nil
}

// Level is the share of its limit by which an entity was decided about last, 1 for one that was never heard of.
func (f *Follower) Level(entityID string) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.entities[entityID]; e != nil {
		return e.applied
	}
	return 1
}

// Seen tells what a response to a call of the entity says. A Transport with this Follower does it.
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
		// The provider had nothing left then, and has nothing left now: what it let pass between is what came back.
		passed := float64(e.accepted) / since.Seconds() / f.rate()
		next = min(max(below*passed, level/2), below*level)
	}
	e.lowered, e.refused, e.accepted = max(next, cmp.Or(f.Least, leastLevel)), now, 0
	if s.RetryAfter > retryLong {
		e.ramp = now.Add(s.RetryAfter)
	}
}

// followed is the level at a time by what was refused.
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

// add begins with an entity, and forgets those that were not heard of for long. It requires mu held.
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

// rate is how many calls a second the limit is in the long run, infinite if it counts other units only.
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
		// Of a window that is nearly used up: what is left has to last until there is more.
		if q.PerSecond == 0 && q.Window >= 10*time.Second && q.Limit > 0 && q.Remaining >= 0 && q.Remaining < q.Limit/10 && q.Reset > 0 {
			level = min(level, float64(q.Remaining)/q.Reset.Seconds()/f.rate())
		}
	}
	return level
}

// scaled is a level of a limit. A window that gathers capacity gets its interval longer, which is more exact than a
// smaller rate; one that does not gets fewer units.
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
