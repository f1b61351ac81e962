package attacks

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

var attacks = []attack{
	{"a late refund makes no capacity", lateRefund},
	{"a refund after Throttled makes no capacity", refundAfterThrottled},
	{"Resume and Reset open what Throttled closed", open},
	{"a pause does not shorten Throttled", pauseAfterThrottled},
	{"Throttled takes any rate", throttledFastEntity},
	{"GetDelay and Admit are both served", bothKinds},
	{"callers without tickets are served", noTickets},
	{"callers without tickets use a day", noTicketsInADay},
	{"abandoned tickets hold nobody up", abandoned},
	{"abandoned tickets that were denied hold nobody up", abandonedWhileClosed},
	{"a closed endpoint holds up no other operation", closedEndpoint},
	{"estimates too high do not waste the limit", estimates},
	{"a window left out once counts on", leftOut},
	{"empty windows mean the windows of the options", emptyWindows},
	{"a lease is of one entity", foreignLease},
	{"a clock set back costs one postponement", clockBack},
	{"a clock that is set back repeats no month", monthBack},
	{"Reset heals a clock that was ahead", clockAhead},
	{"the first delay counts the debt", owed},
	{"a raised limit is not retroactive", raised},
	{"a pin holds, and only lowers", pins},
	{"a pin of a shared limit holds", sharedPins},
	{"a level holds with a pin", levels},
	{"ReturnToken makes no token", returnedTwice},
	{"a replayed ticket runs no more than the limit", replayed},
	{"a missing context or Bucket is an error", missing},
	{"a small Size has a small RefreshRate", smallSize},
}

// Two leases of half the Size are refunded when the window has long been full.
func lateRefund(t *testing.T, g *target) {
	for _, c := range []struct{ size, rate int }{{100, 10}, {90, 9}, {500, 20}, {64, 64}} {
		s := g.shop(t, drip.Options{Size: c.size, RefreshRate: c.rate, Windows: []drip.Window{{Size: 10 * c.size, RefreshInterval: time.Hour}}})
		x, y := s.runs(c.size/2), s.runs(c.size/2)
		s.settle(x, 0)
		s.pass(time.Duration(c.size/c.rate/2+1) * time.Second)
		s.settle(s.runs(c.size), c.size)
		s.settle(y, 0)
		if a := s.admit(1); a.Delay == 0 {
			t.Errorf("Size %d: %d units ran in one millisecond", c.size, c.size+1)
		}
	}
}

func refundAfterThrottled(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 70, RefreshRate: 7})
	l := s.runs(70)
	s.ok(s.Throttled(t.Context(), "shop", 4*time.Second))
	s.settle(l, 0)
	s.pass(4 * time.Second)
	if ran := s.burst(100); ran > 7 {
		t.Errorf("%d ran when it opened, want at most the 7 of an interval", ran)
	}
}

func open(t *testing.T, g *target) {
	for name, open := range map[string]func(s *shop) error{
		"Resume": func(s *shop) error { return s.Resume(context.Background(), "shop") },
		"Reset":  func(s *shop) error { return s.Reset(context.Background(), "shop") },
	} {
		for _, booked := range []int{0, 50} {
			s := g.shop(t, drip.Options{Size: 80, RefreshRate: 8})
			s.settle(s.runs(80), 80)
			for range booked {
				s.waits()
			}
			s.ok(s.Throttled(t.Context(), "shop", 36*time.Hour))
			s.pass(5 * time.Minute)
			if status, err := s.Inspect(t.Context(), "shop"); err != nil || !status.ClosedUntil.Equal(noon.Add(36*time.Hour)) {
				t.Errorf("%s: closed until %v, %v, want 36 hours from noon", name, status.ClosedUntil, err)
			}
			s.ok(open(s))
			if status, err := s.Inspect(t.Context(), "shop"); err != nil || !status.ClosedUntil.IsZero() {
				t.Errorf("%s: closed until %v, %v, want open", name, status.ClosedUntil, err)
			}
			for kind, ask := range []func() time.Duration{func() time.Duration { return s.admit(1).Delay }, s.getDelay} {
				began := s.now
				n := s.hops(20, ask)
				if waited := s.now.Sub(began); waited > 10*time.Second {
					t.Errorf("%s with %d booked: caller %d ran after %v and %d postponements, want seconds", name, booked, kind, waited, n)
				}
			}
		}
	}
}

func pauseAfterThrottled(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10})
	s.ok(s.Throttled(t.Context(), "shop", time.Hour))
	s.ok(s.Pause(t.Context(), "shop", time.Second))
	s.pass(59 * time.Minute)
	if a := s.waits(); a.Delay < time.Minute {
		t.Errorf("told %v, want the minute that is left", a.Delay)
	}
	s.pass(time.Minute)
	s.runs(1)
}

func throttledFastEntity(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 1 << 40, RefreshRate: 3_000_000})
	s.ok(s.Throttled(t.Context(), "shop", math.MaxInt64))
	s.waits()
	s.ok(s.Resume(t.Context(), "shop"))
	s.hops(3, func() time.Duration { return s.admit(1).Delay })
}

// Both kinds of callers bring nine tenths of the limit, then one brings a backlog and the other polls.
func bothKinds(t *testing.T, g *target) {
	for _, c := range []struct{ booked, plain int }{{2000, 600}, {2640, 60}, {600, 2000}} {
		s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10})
		tickets, plain := every(c.booked, 0, 300*time.Second), every(c.plain, 5*time.Millisecond, 300*time.Second)
		for _, m := range plain {
			m.Plain = true
		}
		s.play(400*time.Second, tickets, plain)
		for name, all := range map[string][]*buckettest.Call{"Admit": tickets, "GetDelay": plain} {
			if wait := buckettest.OutcomeOf(all).Longest; wait > 10*time.Second {
				t.Errorf("%d by Admit and %d by GetDelay: of %s the longest wait is %v, want at most 10s", c.booked, c.plain, name, wait)
			}
		}
	}
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10})
	backlog, polls := every(1000, 0, time.Millisecond), every(20, 10*time.Millisecond, time.Second)
	for _, m := range polls {
		m.Plain = true
	}
	s.play(200*time.Second, backlog, polls)
	wantAll(t, "1000 by Admit beside 20 by GetDelay", backlog, 115*time.Second)
	wantAll(t, "20 by GetDelay beside 1000 by Admit", polls, 115*time.Second)
}

func noTickets(t *testing.T, g *target) {
	for _, o := range []drip.Options{
		{Size: 10, RefreshRate: 10},
		{Size: 40, RefreshRate: 2, RefreshInterval: 200 * time.Millisecond},
		{Size: 20, RefreshRate: 10, Windows: []drip.Window{{Size: 300, RefreshInterval: 20 * time.Second}}},
	} {
		s := g.shop(t, o)
		backlog, stream := every(400, 0, time.Millisecond), every(300, 0, 100*time.Second)
		for _, m := range append(backlog, stream...) {
			m.Forgetful = true
		}
		s.play(500*time.Second, backlog, stream)
		wantAll(t, "400 at once and 300 in 100s at 10 a second, without tickets", append(backlog, stream...), 140*time.Second)
	}
}

// The bookings of callers without tickets in a window of a day go back before the day is over.
func noTicketsInADay(t *testing.T, g *target) {
	for _, plain := range []bool{false, true} {
		s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Windows: []drip.Window{{Size: 1000, RefreshInterval: 24 * time.Hour}}})
		all := every(600, 0, time.Second)
		for _, m := range all {
			m.Forgetful, m.Plain = !plain, plain
		}
		s.play(200*time.Second, all)
		wantAll(t, "600 at 10 a second and 1000 a day", all, 120*time.Second)
	}
}

// Newcomers who come some seconds after all others have gone away run within seconds.
func abandoned(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Concurrency: 1000})
	for range g.n {
		s.admit(1)
	}
	first, later := every(50, 0, time.Second), every(200, 5*time.Second, 45*time.Second)
	s.play(60*time.Second, first, later)
	wantSoon(t, fmt.Sprintf("behind %d abandoned tickets", g.n), later)
}

func abandonedWhileClosed(t *testing.T, g *target) {
	n := min(g.n, 10_000)
	for name, shut := range map[string]func(s *shop) error{
		"Pause":     func(s *shop) error { return s.Pause(context.Background(), "shop", time.Minute) },
		"Throttled": func(s *shop) error { return s.Throttled(context.Background(), "shop", time.Minute) },
	} {
		s := g.shop(t, drip.Options{Size: 20, RefreshRate: 10, Concurrency: 1000})
		s.settle(s.runs(20), 20)
		var tickets []drip.Ticket
		for range n {
			tickets = append(tickets, s.waits().Ticket)
		}
		s.pass(time.Second)
		s.ok(shut(s))
		s.pass(30 * time.Second)
		for _, ticket := range tickets {
			s.admitOf("shop", 1, ticket)
		}
		opens := s.now.Add(30 * time.Second).Sub(noon)
		all := every(200, opens+5*time.Second, opens+45*time.Second)
		s.play(opens+60*time.Second, all)
		wantSoon(t, fmt.Sprintf("%s: after %d tickets were denied and abandoned", name, n), all)
	}
}

// Messages of an endpoint wait for an hour. When the app's limit is short, the shop's other operations wait no longer than those of a shop
// without such messages.
func closedEndpoint(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{
		Size: 5, RefreshRate: 5, Concurrency: 1000, Shared: map[string]drip.Limit{"app": {Size: 10}, "export": {Size: 20}},
	})
	admit := func(shop string, within ...string) drip.Admission {
		a, err := s.Admit(t.Context(), shop, drip.Request{Within: within})
		s.ok(err)
		return a
	}
	s.ok(s.Throttled(t.Context(), drip.SharedID("export"), time.Hour))
	for range 20 {
		admit("shop", "app", "export")
	}
	s.pass(10 * time.Second)
	for i := range 10 {
		admit(fmt.Sprint("shop-", i), "app")
	}
	if a := admit("shop", "app"); a.Delay > 2*time.Second {
		t.Errorf("it waits %v for %v of %q, want the app's next second", a.Delay, a.Bound, a.Limit)
	}
}

func estimates(t *testing.T, g *target) {
	for _, c := range []struct{ n, cost, real int }{{3000, 10, 5}, {3000, 10, 1}, {2000, 12, 4}} {
		s := g.shop(t, drip.Options{Size: 600, RefreshRate: 30, Concurrency: 10_000})
		all := every(c.n, 0, time.Millisecond)
		for _, m := range all {
			m.Request.Cost, m.Real = c.cost, c.real
		}
		ideal := time.Duration(c.n*c.real-600) * time.Second / 30
		s.play(10*ideal, all)
		wantAll(t, fmt.Sprintf("%d with an estimate of %d that cost %d", c.n, c.cost, c.real), all, ideal*13/10)
	}
}

// in counts the operations that run in a number of seconds that begin now.
func (s *shop) in(seconds int) (ran int) {
	s.t.Helper()
	for range 10 * seconds {
		ran += s.burst(1000)
		s.pass(100 * time.Millisecond)
	}
	return ran
}

// between reports a number that is not in its bounds.
func (s *shop) between(what string, n, least, most int) {
	s.t.Helper()
	if n < least || n > most {
		s.t.Errorf("%s: %d, want %d to %d", what, n, least, most)
	}
}

func pins(t *testing.T, g *target) {
	ctx := context.Background()
	three := drip.Window{Size: 3, RefreshInterval: time.Second}
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Windows: []drip.Window{{Size: 2000, RefreshInterval: time.Hour}}})
	s.ok(s.Pin(ctx, "shop", drip.Pin{Window: three, For: 10 * time.Second}))
	s.between("3 a second, pinned before the first decision", s.in(10), 24, 30)
	s.between("after the pin has ended", s.in(10), 90, 100)
	s.ok(s.Pin(ctx, "shop", drip.Pin{Window: drip.Window{Size: 1000, RefreshInterval: time.Second}, Concurrency: 1000}))
	s.between("a pin above the limit", s.in(10), 90, 100)
	s.ok(s.Pin(ctx, "shop", drip.Pin{Window: drip.Window{Size: 20, RefreshInterval: time.Second}, Raise: true}))
	s.between("raised to 20 a second", s.in(10), 160, 200)
	status, err := s.Inspect(ctx, "shop")
	s.ok(err)
	if p := status.Pin; p == nil || !p.Raise || p.Size != 20 || !status.PinnedUntil.IsZero() || len(status.Windows) != 3 || status.Windows[0].Size != 20 {
		t.Errorf("Status is %+v with the pin %+v, want the pin of 20 a second", status, p)
	}
	s.ok(s.Pin(ctx, "shop", drip.Pin{Window: three, Concurrency: 1}))
	s.ok(s.Reset(ctx, "shop"))
	s.between("3 a second, kept by Reset", s.in(10), 24, 33)
	s.pass(time.Second)
	s.runs(1)
	s.waits()
	s.ok(s.Unpin(ctx, "shop"))
	s.pass(time.Second)
	s.between("without a pin", s.in(10), 90, 101)
	if status, err := s.Inspect(ctx, "shop"); err != nil || status.Pin != nil || len(status.Windows) != 2 || status.Concurrency != 10 {
		t.Errorf("Status is %+v, %v, want the limits of the options", status, err)
	}
	s.ok(s.Unpin(ctx, "another"))
	for name, p := range map[string]drip.Pin{
		"empty": {}, "for less than nothing": {Concurrency: 1, For: -1}, "negative": {Concurrency: -1},
		"no interval": {Window: drip.Window{Size: 1}}, "no size": {Window: drip.Window{RefreshInterval: time.Second}, Concurrency: 1},
		"half a millisecond": {Window: drip.Window{Size: 1, RefreshInterval: 1500 * time.Microsecond}},
	} {
		if err := s.Pin(ctx, "shop", p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func sharedPins(t *testing.T, g *target) {
	ctx := context.Background()
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Shared: map[string]drip.Limit{"app": {Size: 10}}})
	s.between("10 a second", s.in(10), 90, 100)
	s.ok(s.Pin(ctx, drip.SharedID("app"), drip.Pin{Window: drip.Window{Size: 3, RefreshInterval: time.Second}, For: 20 * time.Second}))
	s.pass(time.Second)
	s.between("3 a second", s.in(10), 20, 30)
	s.pass(10 * time.Second)
	s.between("after the pin has ended", s.in(10), 90, 101)
}

// Refusals lower the level, announced rates bound it, and a pin holds beside it.
func levels(t *testing.T, g *target) {
	ctx := context.Background()
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Concurrency: 100, Follow: true})
	level := func(when string, want float64) {
		t.Helper()
		if status, err := s.Inspect(ctx, "shop"); err != nil || status.Level != want {
			t.Errorf("%s the level is %v, %v; want %v", when, status.Level, err, want)
		}
	}
	s.between("10 a second", s.in(10), 90, 100)
	level("before a refusal", 1)
	s.ok(s.Throttled(ctx, "shop", time.Second))
	s.pass(2 * time.Second)
	s.between("eight tenths", s.in(10), 70, 80)
	level("after a refusal", 0.8)
	s.ok(s.Pin(ctx, "shop", drip.Pin{Window: drip.Window{Size: 3, RefreshInterval: time.Second}, For: 20 * time.Second}))
	s.pass(time.Second)
	s.between("3 a second", s.in(10), 20, 30)
	level("with a pin", 0.8)
	s.ok(s.Announced(ctx, "shop", 5, time.Minute))
	s.ok(s.Unpin(ctx, "shop"))
	s.pass(time.Second)
	s.between("the announced 5 a second", s.in(10), 40, 50)
	s.ok(s.Announced(ctx, "shop", 0, time.Minute))
	s.pass(20 * time.Minute)
	s.in(1)
	s.pass(11 * time.Second) // after the pause
	s.between("10 a second again", s.in(10), 85, 101)
	level("after twenty minutes", 1)
}

// The day of 100 is left out by one call in 37, at a steady load or with minutes between the calls.
func leftOut(t *testing.T, g *target) {
	for _, gap := range []time.Duration{time.Second, 5 * time.Minute} {
		calls := 0
		minute, day := drip.Window{Size: 60, RefreshInterval: time.Minute}, drip.Window{Size: 100, RefreshInterval: 24 * time.Hour}
		s := g.shop(t, drip.Options{Size: 60, RefreshRate: 60, RefreshInterval: time.Minute, Limits: func(context.Context, string) (drip.Limit, error) {
			if calls++; calls%37 == 0 {
				return drip.Limit{Windows: []drip.Window{minute}}, nil
			}
			return drip.Limit{Windows: []drip.Window{minute, day}}, nil
		}})
		ran := 0
		for range 400 {
			full := (calls+1)%37 != 0
			a := s.admit(1)
			if a.Delay == 0 {
				s.settle(a.Lease, 1)
				if full {
					ran++
				}
			}
			if s.pass(gap); s.now.Sub(noon) > 11*time.Hour {
				break
			}
		}
		if ran > 100 {
			t.Errorf("with calls each %v %d ran of 100 a day", gap, ran)
		}
	}
}

func emptyWindows(t *testing.T, g *target) {
	var l drip.Limit
	if err := json.Unmarshal([]byte(`{"Windows": []}`), &l); err != nil || l.Windows == nil {
		t.Fatalf("%+v, %v", l, err)
	}
	s := g.shop(t, drip.Options{
		Size: 100, RefreshRate: 100, Windows: []drip.Window{{Size: 7, RefreshInterval: time.Hour}},
		Limits: func(context.Context, string) (drip.Limit, error) { return l, nil },
	})
	if ran := s.burst(100); ran != 7 {
		t.Errorf("%d ran, want the 7 of the window of the options", ran)
	}
}

func foreignLease(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Concurrency: 1})
	a, b := s.admitOf("a", 1, drip.Ticket{}), s.admitOf("b", 1, drip.Ticket{})
	if a.Delay != 0 || b.Delay != 0 || a.Lease == b.Lease {
		t.Fatalf("two entities got %+v and %+v, want two leases that differ", a, b)
	}
	s.ok(isNoLease(s.Settle(t.Context(), "b", a.Lease, 0)))
	s.ok(isNoLease(s.Cancel(t.Context(), "b", a)))
	if _, err := s.Renew(t.Context(), "b", a.Lease); isNoLease(err) != nil {
		t.Errorf("Renew of another entity's lease: %v", err)
	}
	for _, entity := range []string{"a", "b"} {
		if again := s.admitOf(entity, 1, drip.Ticket{}); again.Delay == 0 {
			t.Errorf("%s runs two where one may", entity)
		}
	}
	s.ok(s.Settle(t.Context(), "a", a.Lease, 1))
	s.ok(isNoLease(s.Settle(t.Context(), "a", a.Lease, 1)))
}

func clockBack(t *testing.T, g *target) {
	for _, back := range []time.Duration{time.Second, 7 * time.Second, time.Minute, time.Hour} {
		for name, plain := range map[string]bool{"Admit": false, "GetDelay": true} {
			s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10})
			if plain {
				for range 10 {
					if d := s.getDelay(); d != 0 {
						t.Fatalf("GetDelay of a full entity = %v", d)
					}
					s.returnToken()
				}
			} else {
				s.settle(s.runs(10), 10)
			}
			s.pass(-back)
			var ticket drip.Ticket
			n := s.hops(5, func() time.Duration {
				if plain {
					return s.getDelay()
				}
				a := s.admitOf("shop", 1, ticket)
				ticket = a.Ticket
				return a.Delay
			})
			if n != 1 {
				t.Errorf("%s with the clock set back by %v: %d postponements, want 1", name, back, n)
			}
		}
	}
}

// Months differ in length, so the intervals between two of them are not where their own lengths tell.
func monthBack(t *testing.T, g *target) {
	for _, c := range []struct{ day, back time.Time }{
		{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), time.Date(2026, 1, 15, 0, 0, 0, 0, time.UTC)},
		{time.Date(2026, 3, 30, 0, 0, 0, 0, time.UTC), time.Date(2026, 2, 10, 0, 0, 0, 0, time.UTC)},
	} {
		s := g.shop(t, drip.Options{Size: 5, Align: drip.Monthly(time.UTC)})
		s.now = c.day
		l := s.runs(5)
		s.settle(l, 5)
		for _, s.now = range []time.Time{c.back, c.day.Add(time.Minute)} {
			if a := s.admitOf("shop", 1, l.Ticket()); a.Delay == 0 {
				t.Errorf("a sixth one of March ran at %v", s.now)
			}
		}
	}
}

func clockAhead(t *testing.T, g *target) {
	for name, use := range map[string]func(s *shop){
		"Admit": func(s *shop) { s.settle(s.runs(10), 10) },
		"GetDelay": func(s *shop) {
			s.getDelay()
			s.returnToken()
		},
	} {
		s := g.shop(t, drip.Options{Size: 10, RefreshRate: 5})
		use(s)
		s.pass(365 * 24 * time.Hour)
		s.hops(3, s.getDelay)
		s.returnToken()
		s.pass(-366 * 24 * time.Hour)
		s.now = noon.Add(time.Second)
		s.ok(s.Reset(t.Context(), "shop"))
		if ran := s.burst(20); ran > 0 {
			t.Errorf("%s: %d ran at once after Reset, want none", name, ran)
		}
		s.pass(time.Second)
		if ran := s.burst(20); ran > 5 {
			t.Errorf("%s: %d ran an interval after Reset, want at most its 5", name, ran)
		}
		began := s.now
		s.hops(5, func() time.Duration { return s.admit(1).Delay })
		if waited := s.now.Sub(began); waited > 5*time.Second {
			t.Errorf("%s: a newcomer ran %v after Reset, want seconds", name, waited)
		}
	}
}

// An operation has cost far more than its estimate.
func owed(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 20, RefreshRate: 10})
	s.settle(s.runs(1), 820)
	all := every(300, time.Millisecond, time.Second)
	s.play(300*time.Second, all)
	if n := buckettest.OutcomeOf(all).Mean; n > 1.1 {
		t.Errorf("%.2f postponements a message behind a debt, want about one", n)
	}
	wantAll(t, "300 behind 800 that are owed", all, 120*time.Second)

	s = g.shop(t, drip.Options{Size: 20, RefreshRate: 10})
	s.settle(s.runs(1), 5020)
	if n := s.hops(1000, s.getDelay); n > 2 {
		t.Errorf("%d postponements of GetDelay behind a debt, want at most 2", n)
	}

	s = g.shop(t, drip.Options{Size: 1000, RefreshRate: 1000, Shared: map[string]drip.Limit{"app": {Size: 10}}})
	s.settle(s.runs(1), 820)
	var a drip.Admission
	if n := s.hops(1000, func() time.Duration { a = s.admitOf("shop", 1, a.Ticket); return a.Delay }); n > 2 {
		t.Errorf("%d postponements behind a debt of a shared limit, want at most 2", n)
	}
}

// Emptied at 10 an hour, 59 minutes later the limit is one a second.
func raised(t *testing.T, g *target) {
	for _, plain := range []bool{false, true} {
		limit := drip.Limit{Size: 1000, RefreshRate: 10, RefreshInterval: time.Hour}
		s := g.shop(t, drip.Options{Limits: func(context.Context, string) (drip.Limit, error) { return limit, nil }})
		count := func(most int) (ran int) {
			for range most {
				if plain {
					if s.getDelay() > 0 {
						return ran
					}
					s.returnToken()
					ran++
				} else if n := s.burst(1); n == 0 {
					return ran
				} else {
					ran += n
				}
			}
			return ran
		}
		if ran := count(1001); ran != 1000 {
			t.Fatalf("%d ran of a full entity, want 1000", ran)
		}
		s.pass(59 * time.Minute)
		limit = drip.Limit{Size: 1000, RefreshRate: 1, RefreshInterval: time.Second}
		if ran := count(1000); ran > 10 {
			t.Errorf("%d ran at once under the new limit, want at most what an hour brought, 10", ran)
		}
		s.pass(10 * time.Second)
		if ran := count(1000); ran > 20 {
			t.Errorf("%d ran ten seconds later, want at most 20", ran)
		}
	}
}

func returnedTwice(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 100, RefreshRate: 100, Concurrency: 3})
	for range 3 {
		s.getDelay()
	}
	for range 10 {
		s.returnToken()
	}
	ran := 0
	for range 10 {
		if s.getDelay() == 0 {
			ran++
		}
	}
	if ran > 3 {
		t.Errorf("%d tokens were out, want at most 3", ran)
	}
	if status, err := s.Inspect(t.Context(), "shop"); err != nil || status.InUse > 3 {
		t.Errorf("Inspect says %d in use, %v; want at most 3", status.InUse, err)
	}
}

func replayed(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 10, RefreshRate: 10, Concurrency: 1000})
	s.settle(s.runs(10), 10)
	ticket := s.waits().Ticket
	honest := every(20, 0, time.Millisecond)
	s.play(0, honest)
	ran := map[int64]int{}
	for i := range 100 {
		s.now = noon.Add(time.Duration(i) * 100 * time.Millisecond)
		for range 10 {
			if a := s.admitOf("shop", 1, ticket); a.Delay == 0 {
				s.settle(a.Lease, 1)
				ran[s.now.Unix()]++
			}
		}
	}
	for second, n := range ran {
		if n > 10 {
			t.Errorf("%d ran in the second %d, want at most 10", n, second)
		}
	}
}

func missing(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{})
	var none context.Context
	for name, b := range map[string]*drip.Bucket{"a nil context": s.Bucket, "a zero Bucket": {}} {
		ctx := none
		if name == "a zero Bucket" {
			ctx = t.Context()
		}
		_, admit := b.Admit(ctx, "shop", drip.Request{})
		_, get := b.GetDelay(ctx, "shop")
		_, inspect := b.Inspect(ctx, "shop")
		for call, err := range map[string]error{
			"Admit": admit, "GetDelay": get, "Inspect": inspect, "ReturnToken": b.ReturnToken(ctx, "shop"),
			"Throttled": b.Throttled(ctx, "shop", time.Second), "Reset": b.Reset(ctx, "shop"),
		} {
			if err == nil {
				t.Errorf("%s with %s returned no error", call, name)
			}
		}
	}
}

func smallSize(t *testing.T, g *target) {
	s := g.shop(t, drip.Options{Size: 5, Concurrency: 100})
	told := map[time.Duration]int{}
	for range 50 {
		told[s.getDelay()]++
	}
	for d, n := range told {
		if n > 5 {
			t.Errorf("%d callers are told %v, want at most 5", n, d)
		}
	}
}
