package lab

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// Callers of GetDelay, and messages whose tickets are lost, come back as newcomers. In a shared limit with tokens they get the capacity
// that their own bookings leave, too, and ask again soon if only a token is short.
func TestSharedBookingsNobodyUses(t *testing.T) {
	const messages = 1500
	minute := drip.Limit{Size: 500, RefreshInterval: time.Minute, Concurrency: 20}
	second := drip.Limit{Size: 100, RefreshRate: 20, RefreshInterval: time.Second, Concurrency: 2}
	tokens := drip.Limit{Size: 500, RefreshRate: 500, RefreshInterval: 100 * time.Millisecond, Concurrency: 1}
	longer := drip.Limit{Size: 100, RefreshInterval: 5 * time.Second, Concurrency: 3, Windows: []drip.Window{{Size: 5000, RefreshInterval: 5 * time.Minute}}}
	two := drip.Limit{Size: 50, RefreshInterval: 10 * time.Second, Concurrency: 20}
	none, endpoint := drip.Limit{}, drip.Limit{Size: 100, RefreshInterval: 10 * time.Second, Concurrency: 1}
	for _, c := range []struct {
		name           string
		limit, other   drip.Limit
		operation      time.Duration
		getDelay, lost float64 // parts of the messages; below zero the part of the entities
		most           time.Duration
	}{
		{"tickets", minute, none, 100 * time.Millisecond, 0, 0, 2*time.Minute + 5*time.Second},
		{"half GetDelay", minute, none, 100 * time.Millisecond, 0.5, 0, 3*time.Minute + 5*time.Second},
		{"most GetDelay", minute, none, 100 * time.Millisecond, 0.9, 0, 3*time.Minute + 5*time.Second},
		{"all GetDelay", minute, none, 100 * time.Millisecond, 1, 0, 2*time.Minute + 10*time.Second},
		{"half lost", minute, none, 100 * time.Millisecond, 0, 0.5, 3*time.Minute + 5*time.Second},
		{"all lost", minute, none, 100 * time.Millisecond, 0, 1, 3*time.Minute + 5*time.Second},
		{"two entities of GetDelay", second, none, 20 * time.Millisecond, -0.67, 0, 80 * time.Second},
		{"two entities lose tickets", second, none, 20 * time.Millisecond, 0, -0.67, 80 * time.Second},
		{"all lost, tokens are short", tokens, none, 20 * time.Millisecond, 0, 1, 90 * time.Second},
		{"all lost, two limits", two, endpoint, 20 * time.Millisecond, 0, 1, 7 * time.Minute},
		{"all lost, a longer window", longer, none, 5 * time.Millisecond, 0, 1, 100 * time.Second},
	} {
		now, rnd, events := Begin.UnixMilli(), rand.New(rand.NewPCG(1, 1)), events{}
		shared := map[string]drip.Limit{"app": c.limit}
		if c.other.Size > 0 {
			shared["endpoint"] = c.other
		}
		bucket, err := drip.New(drip.Options{
			Size: 1 << 30, Concurrency: plenty, Shared: shared,
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
		took, mean := milliseconds(last-Begin.UnixMilli()), float64(asked)/messages
		tell(t, ran < messages || took > c.most || mean > 3,
			"%s: %d of %d in %v, %.2f postponements; want at most %v and 3", c.name, ran, messages, took, mean, c.most)
	}
}

// Behind hours of bookings that nobody uses bursts of newcomers wait for each other, not for the bookings.
func TestBurstsBehindAbandoned(t *testing.T) {
	long := []drip.Window{{Size: 3000, RefreshInterval: 10 * time.Minute}}
	for _, c := range []struct {
		size    int // of which 10 come back a second
		windows []drip.Window
		burst   int // each 20 seconds, twenty times
		most    time.Duration
	}{
		{10, nil, 30, 3 * time.Second}, {10, nil, 100, 10 * time.Second}, {40, nil, 100, 8 * time.Second}, {10, long, 30, 3 * time.Second},
	} {
		start := time.UnixMilli(1_800_000_000_000)
		now, worst := start, time.Duration(0)
		b := buckettest.New(t, drip.Options{Size: c.size, RefreshRate: 10, Windows: c.windows, Clock: func() time.Time { return now }, Start: start.Add(-time.Hour)})
		for range 100_000 {
			_, err := b.Admit(t.Context(), "shop", drip.Request{})
			ok(t, err)
		}
		var due events
		var ask func(since time.Time, ticket drip.Ticket)
		ask = func(since time.Time, ticket drip.Ticket) {
			a, err := b.Admit(t.Context(), "shop", drip.Request{Ticket: ticket})
			ok(t, err)
			if a.Delay > 0 {
				due.add(now.Add(a.Delay).UnixMilli(), func() { ask(since, a.Ticket) })
				return
			}
			ok(t, b.Settle(t.Context(), "shop", a.Lease, 1))
			worst = max(worst, now.Sub(since))
		}
		for n := range 20 * c.burst {
			at := start.Add(time.Minute + time.Duration(n/c.burst)*20*time.Second)
			due.add(at.UnixMilli(), func() { ask(at, drip.Ticket{}) })
		}
		for e, any := due.next(); any; e, any = due.next() {
			now = time.UnixMilli(e.at)
			e.do()
		}
		tell(t, worst > c.most, "%d, %v, %d at once: a newcomer waits up to %v, want %v", c.size, c.windows, c.burst, worst, c.most)
	}
}
