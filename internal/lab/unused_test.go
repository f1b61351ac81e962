package lab

import (
	"cmp"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// Callers of GetDelay, and messages whose tickets are lost, come back as newcomers. In a shared limit with tokens they get the capacity
// that their own bookings leave, too, and ask again soon if only a token is short, their own or one of the limit.
func TestSharedBookingsNobodyUses(t *testing.T) {
	const messages = 1500
	minute := drip.Limit{Size: 500, RefreshInterval: time.Minute, Concurrency: 20}
	second := drip.Limit{Size: 100, RefreshRate: 20, RefreshInterval: time.Second, Concurrency: 2}
	tokens := drip.Limit{Size: 500, RefreshRate: 500, RefreshInterval: 100 * time.Millisecond, Concurrency: 1}
	longer := drip.Limit{Size: 100, RefreshInterval: 5 * time.Second, Concurrency: 3, Windows: []drip.Window{{Size: 5000, RefreshInterval: 5 * time.Minute}}}
	two := drip.Limit{Size: 50, RefreshInterval: 10 * time.Second, Concurrency: 20}
	none, endpoint := drip.Limit{}, drip.Limit{Size: 100, RefreshInterval: 10 * time.Second, Concurrency: 1}
	calls := drip.Limit{Size: 50, RefreshInterval: time.Second}
	for _, c := range []struct {
		name           string
		limit, other   drip.Limit
		operation      time.Duration
		getDelay, lost float64 // parts of the messages; below zero the part of the entities
		most           time.Duration
		tokens         int // of an entity; 0: any number
	}{
		{"tickets", minute, none, 100 * time.Millisecond, 0, 0, 2*time.Minute + 5*time.Second, 0},
		{"half GetDelay", minute, none, 100 * time.Millisecond, 0.5, 0, 3*time.Minute + 5*time.Second, 0},
		{"most GetDelay", minute, none, 100 * time.Millisecond, 0.9, 0, 3*time.Minute + 5*time.Second, 0},
		{"all GetDelay", minute, none, 100 * time.Millisecond, 1, 0, 2*time.Minute + 10*time.Second, 0},
		{"half lost", minute, none, 100 * time.Millisecond, 0, 0.5, 3*time.Minute + 5*time.Second, 0},
		{"all lost", minute, none, 100 * time.Millisecond, 0, 1, 3*time.Minute + 5*time.Second, 0},
		{"two entities of GetDelay", second, none, 20 * time.Millisecond, -0.67, 0, 80 * time.Second, 0},
		{"two entities lose tickets", second, none, 20 * time.Millisecond, 0, -0.67, 80 * time.Second, 0},
		{"all lost, tokens are short", tokens, none, 20 * time.Millisecond, 0, 1, 90 * time.Second, 0},
		{"all lost, two limits", two, endpoint, 20 * time.Millisecond, 0, 1, 7 * time.Minute, 0},
		{"all lost, a longer window", longer, none, 5 * time.Millisecond, 0, 1, 100 * time.Second, 0},
		{"all GetDelay, a slow endpoint", minute, calls, 5 * time.Millisecond, 1, 0, 2*time.Minute + 15*time.Second, 0},
		{"all lost, a slow endpoint", minute, calls, 5 * time.Millisecond, 0, 1, 3*time.Minute + 15*time.Second, 0},
		{"all GetDelay, own tokens are short", minute, none, 100 * time.Millisecond, 1, 0, 2*time.Minute + 20*time.Second, 2},
		{"all lost, own tokens are short", minute, none, 100 * time.Millisecond, 0, 1, 3*time.Minute + 20*time.Second, 2},
	} {
		now, rnd, events := Begin.UnixMilli(), rand.New(rand.NewPCG(1, 1)), events{}
		shared := map[string]drip.Limit{"app": c.limit}
		if c.other.Size > 0 {
			shared["endpoint"] = c.other
		}
		bucket, err := drip.New(drip.Options{
			Size: 1 << 30, Concurrency: cmp.Or(c.tokens, plenty), Shared: shared,
			Start: time.UnixMilli(0), Clock: func() time.Time { return time.UnixMilli(now) },
		})
		ok(t, err)
		asked, ran, last := 0, 0, int64(0)
		for i := range messages {
			entity := i % 3
			is := func(part float64) bool { return part < 0 && float64(entity) < -3*part || rnd.Float64() < part }
			name, getDelay, lost := strconv.Itoa(entity), is(c.getDelay), is(c.lost)
			var ask func(drip.Ticket)
			ask = func(ticket drip.Ticket) {
				var a drip.Admission
				var err error
				if getDelay {
					a.Delay, err = bucket.GetDelay(t.Context(), name)
				} else {
					a, err = bucket.Admit(t.Context(), name, drip.Request{Ticket: ticket})
				}
				ok(t, err)
				if lost {
					a.Ticket = drip.Ticket{}
				}
				if a.Delay > 0 {
					asked++
					events.add(now+a.Delay.Milliseconds()+rnd.Int64N(21), func() { ask(a.Ticket) })
					return
				}
				ran++
				last = max(last, now)
				events.addEnd(now+int64(rnd.ExpFloat64()*float64(c.operation.Milliseconds())), func() {
					if getDelay {
						ok(t, bucket.ReturnToken(t.Context(), name))
					} else {
						ok(t, bucket.Settle(t.Context(), name, a.Lease, 1))
					}
				})
			}
			events.add(now+int64(i)/10, func() { ask(drip.Ticket{}) })
		}
		for range 50 * messages {
			if e, any := events.next(); any {
				now = e.at
				e.do()
			}
		}
		took, mean, hops := milliseconds(last-Begin.UnixMilli()), float64(asked)/messages, 3.0
		if c.tokens > 0 { // GetDelay waits for each token
			hops = 6
		}
		tell(t, ran < messages || took > c.most || mean > hops,
			"%s: %d of %d in %v, %.2f postponements; want at most %v and %v", c.name, ran, messages, took, mean, c.most, hops)
	}
}

// Behind hours of bookings that nobody uses newcomers wait for each other, not for the bookings, in an own limit and in a shared one.
func TestBehindAbandoned(t *testing.T) {
	long := []drip.Window{{Size: 3000, RefreshInterval: 10 * time.Minute}}
	daily := []drip.Window{{Size: 40000, RefreshInterval: 24 * time.Hour}}
	few := []drip.Window{{Size: 60, RefreshInterval: time.Minute}}
	minutes := []drip.Window{{Size: 400, RefreshInterval: time.Minute}}
	for _, c := range []struct {
		size    int // of which 10 come back a second
		tokens  int // of operations that take half a second; 0: any number
		windows []drip.Window
		shops   int     // that have abandoned their tickets, within a shared limit; 0 if it is the shop's own
		burst   int     // each 20 seconds, twenty times
		stream  float64 // a second, at random, instead
		most    time.Duration
	}{
		{10, 0, nil, 0, 30, 0, 3 * time.Second}, {10, 0, nil, 0, 100, 0, 10 * time.Second}, {40, 0, nil, 0, 100, 0, 8 * time.Second},
		{10, 0, long, 0, 30, 0, 3 * time.Second}, {10, 0, nil, 0, 0, 8, 5 * time.Second},
		{10, 0, nil, 1, 30, 0, 3 * time.Second}, {10, 0, nil, 1, 100, 0, 10 * time.Second}, {40, 0, nil, 1, 100, 0, 10 * time.Second},
		{10, 0, nil, 30, 30, 0, 3 * time.Second}, {10, 0, nil, 1, 0, 8, 5 * time.Second}, {10, 0, nil, 30, 0, 9, 10 * time.Second},
		{10, 0, long, 1, 30, 0, 3 * time.Second}, {10, 0, long, 30, 30, 0, 3 * time.Second}, {10, 0, minutes, 0, 30, 0, 4 * time.Second},
		{10, 0, minutes, 1, 30, 0, 4 * time.Second}, {10, 0, daily, 0, 30, 0, 3 * time.Second}, {10, 0, daily, 30, 30, 0, 3 * time.Second},
		{10, 0, few, 0, 30, 0, 8 * time.Minute}, {10, 0, few, 1, 30, 0, 8 * time.Minute}, {10, 0, few, 30, 30, 0, 8 * time.Minute},
		{800, 25, nil, 1, 210, 0, 20 * time.Second},
	} {
		start := time.UnixMilli(1_800_000_000_000)
		now, worst, rnd := start, time.Duration(0), rand.New(rand.NewPCG(1, 1))
		o := drip.Options{Size: c.size, RefreshRate: 10, Windows: c.windows, Clock: func() time.Time { return now }, Start: time.UnixMilli(0)}
		o.Concurrency = cmp.Or(c.tokens, plenty)
		if c.shops > 0 {
			o.Shared = map[string]drip.Limit{"app": {Size: c.size, RefreshRate: 10, Windows: c.windows, Concurrency: o.Concurrency}}
			o.Size, o.RefreshRate, o.Windows, o.Concurrency = plenty, plenty, nil, plenty
		}
		shop := func(n int) string { return strconv.Itoa(n % max(1, c.shops)) }
		b := buckettest.New(t, o)
		for n := range 100_000 {
			if a := buckettest.Admit(t, b, shop(n), drip.Request{}); a.Delay == 0 {
				now = now.Add(time.Millisecond)
				ok(t, b.Settle(t.Context(), shop(n), a.Lease, 1))
			}
		}
		var due events
		var ask func(shop string, since time.Time, ticket drip.Ticket)
		ask = func(shop string, since time.Time, ticket drip.Ticket) {
			a, err := b.Admit(t.Context(), shop, drip.Request{Ticket: ticket})
			ok(t, err)
			if a.Delay > 0 {
				due.add(now.Add(a.Delay).UnixMilli(), func() { ask(shop, since, a.Ticket) })
				return
			}
			due.addEnd(now.Add(time.Duration(min(1, c.tokens))*time.Second/2).UnixMilli(), func() { ok(t, b.Settle(t.Context(), shop, a.Lease, 1)) })
			worst = max(worst, now.Sub(since))
		}
		at := start.Add(time.Minute)
		for n := range 20 * max(c.burst, 20) {
			if c.burst == 0 {
				at = at.Add(time.Duration(rnd.ExpFloat64() / c.stream * float64(time.Second)))
			} else {
				at = start.Add(time.Minute + time.Duration(n/c.burst)*20*time.Second)
			}
			since := at
			due.add(at.UnixMilli(), func() { ask(shop(n), since, drip.Ticket{}) })
		}
		for e, any := due.next(); any; e, any = due.next() {
			now = time.UnixMilli(e.at)
			e.do()
		}
		tell(t, worst > c.most, "%d, %d tokens, %v, %d shops, %d at once, %v a second: a newcomer waits up to %v, want %v", c.size, c.tokens, c.windows, c.shops, c.burst, c.stream, worst, c.most)
	}
}

// If tokens alone are short, tokens that nobody takes tell that the tickets do not come.
func TestTokensBehindAbandoned(t *testing.T) {
	const abandoned, bursts = 20_000, 5
	for _, c := range []struct {
		tokens int
		takes  time.Duration // an operation
		minute int           // the calls of a minute; 0: any number
		shops  int           // within a shared limit; 0 if it is the shop's own
		burst  int           // each minute
	}{
		{10, time.Second / 2, 0, 0, 100}, {10, time.Second / 2, 0, 1, 100}, {10, time.Second / 2, 0, 30, 100}, {10, time.Second / 2, 1500, 0, 100},
		{10, time.Second / 2, 1500, 30, 100}, {2, 2 * time.Second, 0, 0, 20}, {2, 2 * time.Second, 0, 3, 20}, {50, 5 * time.Second, 0, 1, 200},
	} {
		now, worst := time.UnixMilli(1_800_000_000_000), time.Duration(0)
		limit := drip.Limit{Size: plenty, Concurrency: c.tokens}
		if c.minute > 0 {
			limit.Size, limit.RefreshInterval = c.minute, time.Minute
		}
		o := drip.Options{Size: limit.Size, RefreshRate: limit.Size, RefreshInterval: limit.RefreshInterval, Concurrency: c.tokens}
		if c.shops > 0 {
			o = drip.Options{Size: plenty, RefreshRate: plenty, Concurrency: plenty, Shared: map[string]drip.Limit{"app": limit}}
		}
		o.Clock, o.Start = func() time.Time { return now }, time.UnixMilli(0)
		b := buckettest.New(t, o)
		shop := func(n int) string { return strconv.Itoa(n % max(1, c.shops)) }
		var due events
		var ask func(shop string, since time.Time, ticket drip.Ticket)
		ask = func(shop string, since time.Time, ticket drip.Ticket) {
			a, err := b.Admit(t.Context(), shop, drip.Request{Ticket: ticket})
			ok(t, err)
			switch {
			case a.Delay == 0:
				if !since.IsZero() {
					worst = max(worst, now.Sub(since))
				}
				due.addEnd(now.Add(c.takes).UnixMilli(), func() { ok(t, b.Settle(t.Context(), shop, a.Lease, 1)) })
			case !since.IsZero():
				due.add(now.Add(a.Delay).UnixMilli(), func() { ask(shop, since, a.Ticket) })
			}
		}
		start := now
		for n := range c.tokens * 4 { // their duration is known
			due.add(start.Add(time.Duration(n/c.tokens)*c.takes).UnixMilli(), func() { ask(shop(n), now, drip.Ticket{}) })
		}
		for n := range abandoned {
			due.add(start.Add(5*c.takes).UnixMilli(), func() { ask(shop(n), time.Time{}, drip.Ticket{}) })
		}
		for n := range bursts * c.burst {
			at := start.Add(time.Duration(1+n/c.burst) * time.Minute)
			due.add(at.UnixMilli(), func() { ask(shop(n), at, drip.Ticket{}) })
		}
		for e, any := due.next(); any; e, any = due.next() {
			now = time.UnixMilli(e.at)
			e.do()
		}
		best := time.Duration(c.burst/c.tokens-1) * c.takes
		tell(t, worst > best+best/4, "%d tokens of %v, %d a minute, %d shops: one of %d newcomers waits up to %v, at best %v", c.tokens, c.takes, c.minute, c.shops, c.burst, worst, best)
	}
}
