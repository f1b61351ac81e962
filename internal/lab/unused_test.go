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
		rnd := rand.New(rand.NewPCG(1, 1))
		load := buckettest.Load{
			Options: drip.Options{Size: 1 << 30, Concurrency: cmp.Or(c.tokens, plenty), Shared: map[string]drip.Limit{"app": c.limit}},
			Late:    func() int64 { return rnd.Int64N(21) },
			Runs: func(_ *buckettest.Call, now int64) int64 {
				return now + int64(rnd.ExpFloat64()*float64(c.operation.Milliseconds()))
			},
		}
		if c.other.Size > 0 {
			load.Options.Shared["endpoint"] = c.other
		}
		for i := range messages {
			entity := i % 3
			is := func(part float64) bool { return part < 0 && float64(entity) < -3*part || rnd.Float64() < part }
			load.Calls = append(load.Calls, &buckettest.Call{At: since(0) + int64(i)/10, Entity: strconv.Itoa(entity), Plain: is(c.getDelay), Forgetful: is(c.lost)})
		}
		load.Play(t)
		got, hops := buckettest.OutcomeOf(load.Calls), 3.0
		if c.tokens > 0 { // GetDelay waits for each token
			hops = 6
		}
		took := milliseconds(got.Last - since(0))
		tell(t, got.Ran < messages || took > c.most || got.Mean > hops,
			"%s: %d of %d in %v, %.2f postponements; want at most %v and %v", c.name, got.Ran, messages, took, got.Mean, c.most, hops)
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
		start, rnd := int64(1_800_000_000_000), rand.New(rand.NewPCG(1, 1))
		o := drip.Options{Size: c.size, RefreshRate: 10, Windows: c.windows, Concurrency: cmp.Or(c.tokens, plenty)}
		if c.shops > 0 {
			o = within(plenty, plenty, drip.Limit{Size: c.size, RefreshRate: 10, Windows: c.windows, Concurrency: o.Concurrency})
		}
		shop := func(n int) string { return strconv.Itoa(n % max(1, c.shops)) }
		load := buckettest.Load{Options: o, Runs: func(m *buckettest.Call, now int64) int64 {
			if m.Leaves {
				return now + 1
			}
			return now + 500*int64(min(1, c.tokens))
		}}
		const abandoned = 100_000
		for n := range abandoned { // one after the other until the capacity is used up
			load.Calls = append(load.Calls, &buckettest.Call{At: start + int64(min(n, c.size)), Entity: shop(n), Leaves: true})
		}
		at := start + 60_000
		for n := range 20 * max(c.burst, 20) {
			if c.burst == 0 {
				at += int64(rnd.ExpFloat64() / c.stream * 1000)
			} else {
				at = start + 60_000 + int64(n/c.burst)*20_000
			}
			load.Calls = append(load.Calls, &buckettest.Call{At: at, Entity: shop(n)})
		}
		load.Play(t)
		worst := buckettest.OutcomeOf(load.Calls[abandoned:]).Longest
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
		limit := drip.Limit{Size: plenty, Concurrency: c.tokens}
		if c.minute > 0 {
			limit.Size, limit.RefreshInterval = c.minute, time.Minute
		}
		o := drip.Options{Size: limit.Size, RefreshRate: limit.Size, RefreshInterval: limit.RefreshInterval, Concurrency: c.tokens}
		if c.shops > 0 {
			o = within(plenty, plenty, limit)
		}
		start, takes := int64(1_800_000_000_000), c.takes.Milliseconds()
		load := buckettest.Load{Options: o, Runs: func(_ *buckettest.Call, now int64) int64 { return now + takes }}
		send := func(at int64, n int, leaves bool) {
			load.Calls = append(load.Calls, &buckettest.Call{At: at, Entity: strconv.Itoa(n % max(1, c.shops)), Leaves: leaves})
		}
		for n := range abandoned {
			send(start+5*takes, n, true)
		}
		for n := range c.tokens * 4 { // their duration is known
			send(start+int64(n/c.tokens)*takes, n, false)
		}
		for n := range bursts * c.burst {
			send(start+int64(1+n/c.burst)*60_000, n, false)
		}
		load.Play(t)
		worst := buckettest.OutcomeOf(load.Calls[abandoned:]).Longest
		best := time.Duration(c.burst/c.tokens-1) * c.takes
		tell(t, worst > best+best/4, "%d tokens of %v, %d a minute, %d shops: one of %d newcomers waits up to %v, at best %v", c.tokens, c.takes, c.minute, c.shops, c.burst, worst, best)
	}
}
