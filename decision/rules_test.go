package decision_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
)

// begin begins an interval of each length that the tests use. Times of tests count from it, in milliseconds.
const begin = 1_700_006_400_000

// entity drives one entity by hand.
type entity struct {
	t      *testing.T
	l      decision.Limits
	s      decision.State
	leases storage.Leases
}

// newEntity has these windows, which are full, and many tokens.
func newEntity(t *testing.T, windows ...decision.Window) *entity {
	e := &entity{t: t, l: decision.Limits{Windows: windows, Tokens: 1000, Guess: 50, Lease: 60_000, MaxLease: 150_000}}
	e.ready()
	return e
}

func (e *entity) ready() {
	e.t.Helper()
	if field, window := e.l.Ready(); field != "" {
		e.t.Fatalf("field %s of window %d is out of range", field, window)
	}
}

func (e *entity) change(windows ...decision.Window) {
	e.t.Helper()
	e.l.Windows = windows
	e.ready()
}

func (e *entity) do(now int64, op decision.Op) (a decision.Answer) {
	e.l.Apply(&e.s, &e.leases, &op, begin+now, &a)
	return a
}

func (e *entity) admit(now, cost int64, t decision.Ticket) decision.Answer {
	return e.do(now, decision.Op{Kind: decision.Admit, Cost: decision.Cost{cost}, Ticket: t})
}

// runs admits, and fails the test unless it runs.
func (e *entity) runs(now, cost int64, t decision.Ticket) decision.Lease {
	e.t.Helper()
	a := e.admit(now, cost, t)
	if a.Delay != 0 {
		e.t.Fatalf("at %d a cost of %d waits %d because of %d, want it to run", now, cost, a.Delay, a.Bound)
	}
	return a.Lease
}

// waits admits, and fails the test unless it is postponed by delay.
func (e *entity) waits(now, cost int64, t decision.Ticket, delay int64, bound decision.Bound) decision.Ticket {
	e.t.Helper()
	a := e.admit(now, cost, t)
	if a.Delay != delay || a.Bound != bound {
		e.t.Fatalf("at %d a cost of %d waits %d because of %d, want %d because of %d", now, cost, a.Delay, a.Bound, delay, bound)
	}
	return a.Ticket
}

func (e *entity) settle(now int64, l decision.Lease, cost int64) {
	e.t.Helper()
	if !e.do(now, decision.Op{Kind: decision.Settle, Lease: l, Cost: decision.Cost{cost}}).Found {
		e.t.Fatalf("at %d the lease %d was not found", now, l.ID)
	}
}

// left fails the test unless the windows have so much left.
func (e *entity) left(want ...int64) {
	e.t.Helper()
	for i, n := range want {
		if got := e.s.Lines[i].Left; got != n {
			e.t.Fatalf("window %d has %d left, want %d", i, got, n)
		}
	}
}

var newcomer decision.Ticket

func perSecond(size, rate int64) decision.Window {
	return decision.Window{Size: size, Rate: rate, Interval: 1000}
}

// Three a second of a bucket of five, asked step by step.
func TestClassicDelays(t *testing.T) {
	const start, returned = 10_000, -1
	type step struct{ now, want int64 } // the delay, or returned for a token given back
	for name, steps := range map[string][]step{
		"starts empty, and spreads what waits by three": {
			{10_000, 1000}, {10_001, 999}, {10_002, 998}, {10_003, 1997}, {10_500, 1500}, {10_999, 1001}, {10_999, 2001},
		},
		"the interval brings three": {
			{11_000, 0}, {11_000, 0}, {11_999, 0}, {11_999, 1}, {12_000, 0},
		},
		"never more than the bucket holds": {
			{99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 1000}, {99_001, 999},
		},
		"only tokens are short": {
			{99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {100_000, 50}, {100_010, 40}, {100_020, 30}, {100_030, 970},
		},
		"tokens come back": {
			{99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0},
			{99_100, returned}, {99_100, 900}, {100_000, 0}, {100_000, 50},
		},
		"a token too many is none": {
			{99_000, returned}, {99_000, 0}, {99_000, returned}, {99_000, returned}, {99_000, returned},
			{100_000, 0}, {100_000, 0}, {100_000, 0}, {100_000, 0}, {100_000, 0}, {100_000, 1000},
		},
		"a clock that steps back brings nothing": {
			{11_500, 0}, {11_500, 0}, {11_500, 0}, {10_500, 1500}, {11_500, 500}, {9_000, 3000}, {12_000, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEntity(t, perSecond(5, 3))
			e.l.Tokens, e.l.Start = 5, start
			e.ready()
			for i, step := range steps {
				op := decision.Op{Kind: decision.GetDelay}
				if step.want == returned {
					e.do(step.now-begin, decision.Op{Kind: decision.ReturnToken})
				} else if got := e.do(step.now-begin, op).Delay; got != step.want {
					t.Fatalf("step %d: GetDelay at %d = %d, want %d", i, step.now, got, step.want)
				}
			}
		})
	}
}

// core is an atomic storage of States, with nothing in between.
type core struct {
	storage.Storage
	entities map[string]*entity
}

func (c core) Do(_ context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (a decision.Answer, err error) {
	e := c.entities[key]
	if e == nil {
		e = &entity{}
		c.entities[key] = e
	}
	l.Apply(&e.s, &e.leases, &op, op.Now, &a)
	return a, nil
}

func TestRecordedDelays(t *testing.T) {
	if err := traces.Replay(t.Context(), core{entities: map[string]*entity{}}, traces.Runs); err != nil {
		t.Error(err)
	}
}

func TestBookedSlotsAreKept(t *testing.T) {
	e := newEntity(t, perSecond(2, 2))
	e.settle(0, e.runs(0, 2, newcomer), 2)
	first := e.waits(0, 1, newcomer, 1000, decision.BoundWindow)
	second := e.admit(0, 1, newcomer).Ticket
	third := e.admit(0, 1, newcomer).Ticket
	if third.Slot < begin+2000 {
		t.Fatalf("the third of two a second is told %d", third.Slot-begin)
	}
	if a := e.admit(1100, 1, newcomer); a.Delay < 900 || a.Bound != decision.BoundBooked {
		t.Fatalf("a newcomer waits %d because of %d, want the next second because it is booked", a.Delay, a.Bound)
	}
	e.settle(1200, e.runs(1200, 1, second), 1)
	e.settle(1900, e.runs(1900, 1, first), 1)
	e.settle(2900, e.runs(2900, 1, third), 1)
}

func TestSeveralWindowsAreOneDecision(t *testing.T) {
	e := newEntity(t, perSecond(4, 2), decision.Window{Size: 5, Rate: 5, Interval: 60_000})
	e.settle(0, e.runs(0, 3, newcomer), 3)
	e.waits(0, 3, newcomer, 60_000, decision.BoundWindow+1)
	e.left(1)
}

func TestDelaysFollowMeasuredOperations(t *testing.T) {
	e := newEntity(t, perSecond(1000, 1000))
	e.l.Tokens = 1
	for i := range int64(64) {
		e.settle(2000*i+2000, e.runs(2000*i, 1, newcomer), 1)
	}
	e.runs(128_500, 1, newcomer)
	var a decision.Answer
	for range 25 {
		a = e.admit(128_500, 1, newcomer)
	}
	if a.Delay < 20_000 || a.Delay > 50_000 {
		t.Errorf("the 25th behind operations of 2s is told %d ms, want 20s to 50s", a.Delay)
	}
}

func TestLeasesEnd(t *testing.T) {
	e := newEntity(t, perSecond(100, 100))
	e.l.Tokens = 1
	l := e.runs(0, 1, newcomer)
	renewed := e.do(50_000, decision.Op{Kind: decision.Renew, Lease: l}).Lease
	if want := int64(begin + 110_000); renewed.End != want {
		t.Errorf("renewed until %d, want %d", renewed.End, want)
	}
	if a := e.admit(109_999, 1, newcomer); a.Bound != decision.BoundTokens {
		t.Errorf("before its end: a delay of %d ms because of %d, want one because of tokens", a.Delay, a.Bound)
	}
	e.runs(111_000, 1, newcomer)
	if e.do(111_001, decision.Op{Kind: decision.Settle, Lease: renewed, Cost: decision.Cost{1}}).Found {
		t.Error("a lease that has ended was settled")
	}
}

func TestRenewalsHaveAnEnd(t *testing.T) {
	e := newEntity(t, perSecond(100, 100))
	l := e.runs(0, 1, newcomer)
	for now := int64(50_000); now < 150_000; now += 50_000 {
		l = e.do(now, decision.Op{Kind: decision.Renew, Lease: l}).Lease
	}
	if l.End != begin+150_000 {
		t.Errorf("renewed until %d, want %d", l.End-begin, 150_000)
	}
}

func TestRefundsAndDebts(t *testing.T) {
	for name, c := range map[string]struct{ real, at, left int64 }{
		"cheaper":                     {2, 100, 8},
		"dearer is owed":              {14, 100, -4},
		"as thought":                  {5, 100, 5},
		"partly after the window has": {0, 3000, 10},
		"not above Size":              {0, 30_000, 10},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEntity(t, perSecond(10, 1))
			e.settle(c.at, e.runs(0, 5, newcomer), c.real)
			e.left(c.left)
		})
	}
}

func TestResumeOpens(t *testing.T) {
	e := newEntity(t, perSecond(70, 7))
	e.do(0, decision.Op{Kind: decision.Throttle, For: 86_400_000})
	e.do(5500, decision.Op{Kind: decision.Resume})
	e.waits(5500, 1, newcomer, 500, decision.BoundWindow)
}

// Resume moves the turns behind the opening, too: newcomers do not wait for the time at which the pause would have ended.
func TestResumeMovesTurns(t *testing.T) {
	e := newEntity(t, decision.Window{Size: 1000, Rate: 1000, Interval: 60_000})
	e.l.Tokens = 2
	first, second := e.runs(0, 1, newcomer), e.runs(0, 1, newcomer)
	var tickets []decision.Ticket
	for range 20 {
		tickets = append(tickets, e.admit(0, 1, newcomer).Ticket)
	}
	e.do(1, decision.Op{Kind: decision.Pause, For: 40_000})
	e.settle(100, first, 1)
	e.settle(100, second, 1)
	for _, ticket := range tickets {
		if a := e.admit(1000, 1, ticket); a.Delay < 39_000 {
			t.Errorf("a ticket comes back after %d ms of the pause", 1000+a.Delay)
		}
	}
	e.do(10_000, decision.Op{Kind: decision.Resume})
	e.runs(15_000, 1, newcomer)
}

// Resume changes nothing if the entity is open: the tickets that were denied a token keep their turns.
func TestResumeOfAnOpenEntity(t *testing.T) {
	play := func(resumes bool) (delays []int64) {
		e := newEntity(t, perSecond(100, 100))
		e.l.Tokens = 1
		e.runs(0, 1, newcomer)
		tickets := make([]decision.Ticket, 10)
		for range 3 {
			for i := range tickets {
				if resumes {
					e.do(max(0, tickets[i].Slot-begin), decision.Op{Kind: decision.Resume})
				}
				a := e.admit(max(0, tickets[i].Slot-begin), 1, tickets[i])
				tickets[i], delays = a.Ticket, append(delays, a.Delay)
			}
		}
		return delays
	}
	if got, want := play(true), play(false); !slices.Equal(got, want) {
		t.Errorf("the delays are %v, without Resume %v", got, want)
	}
}

// After Resume the interval has its capacity, also if nothing was asked in it before and the one before it was used up.
func TestResumeInAnotherInterval(t *testing.T) {
	e := newEntity(t, decision.Window{Size: 3, Rate: 3, Interval: 86_400_000})
	const tomorrow = 86_400_000
	e.settle(0, e.runs(0, 3, newcomer), 3)
	e.do(tomorrow, decision.Op{Kind: decision.Throttle, For: 60_000})
	e.do(tomorrow+10_000, decision.Op{Kind: decision.Resume})
	e.runs(tomorrow+10_000, 3, newcomer)
}

func TestResetEndsLeasesAndKeepsWhatRan(t *testing.T) {
	e := newEntity(t, perSecond(5, 1))
	e.l.Tokens = 1
	l := e.runs(0, 3, newcomer)
	e.do(0, decision.Op{Kind: decision.Reset})
	e.left(2)
	e.runs(0, 1, newcomer)
	if e.do(0, decision.Op{Kind: decision.Settle, Lease: l}).Found {
		t.Error("a lease of before Reset was settled")
	}
}

func TestIdleEntityIsForgotten(t *testing.T) {
	e := newEntity(t, perSecond(10, 10))
	e.settle(0, e.runs(0, 10, newcomer), 10)
	until := e.l.Until(&e.s) - begin
	if until > 60_000 {
		t.Errorf("kept for %d ms, want at most a minute", until)
	}
	kept, forgotten := *e, newEntity(t, perSecond(10, 10))
	for _, cost := range []int64{7, 3, 1} {
		a, b := kept.admit(until, cost, newcomer), forgotten.admit(until, cost, newcomer)
		if a.Delay != b.Delay {
			t.Errorf("a cost of %d waits %d if it was kept, %d if it was forgotten", cost, a.Delay, b.Delay)
		}
	}
}

func TestLeaseOfBeforeAWindowRefundsNothingThere(t *testing.T) {
	e := newEntity(t, perSecond(10, 10))
	old := e.runs(0, 1, newcomer)
	e.change(append(e.l.Windows, decision.Window{Size: 1, Rate: 1, Interval: 60_000})...)
	e.runs(0, 1, newcomer)
	e.settle(0, old, 0)
	e.waits(0, 1, newcomer, 60_000, decision.BoundWindow+1)
}

// A Reset of an entity that is idle but for its leases forgets it, however a backend deletes them.
func TestResetOfIdle(t *testing.T) {
	e := newEntity(t, perSecond(2, 2))
	e.runs(0, 1, newcomer)
	e.runs(0, 1, newcomer)
	e.waits(0, 1, newcomer, 1000, decision.BoundWindow)
	e.do(30_000, decision.Op{Kind: decision.Reset})
	if e.s.Next != 0 || e.s.LastID != 0 || e.leases.Out(0) != 0 {
		t.Errorf("after a Reset it is %+v, want what nobody knows", e.s)
	}
}

// The tokens of dead holders are idle for an eighth of a lease at most, although nobody knows when the holders died.
func TestDeadHolders(t *testing.T) {
	for died := int64(0); died <= 90_000; died += 1000 {
		e := newEntity(t, perSecond(1000, 1000))
		e.l.Tokens = 3
		var held [3]decision.Lease
		for i := range held {
			held[i] = e.runs(0, 1, newcomer)
		}
		renewals := []int64{died / 2, died}
		at, a := int64(0), e.admit(0, 1, newcomer)
		for asks := 0; a.Delay > 0 && asks < 10_000; asks++ {
			at += a.Delay
			for ; len(renewals) > 0 && renewals[0] <= at; renewals = renewals[1:] {
				for i := range held {
					held[i] = e.do(renewals[0], decision.Op{Kind: decision.Renew, Lease: held[i]}).Lease
				}
			}
			a = e.admit(at, 1, a.Ticket)
		}
		if end := died + e.l.Lease; at < end || at > end+e.l.Lease/8+100 {
			t.Errorf("the other one runs at %d ms; the leases end at %d", at, end)
		}
	}
}

// Tickets that were denied a token and do not come back keep newcomers waiting for an interval at most, also if a window gains more
// than it holds.
func TestDeniedTicketsAreLost(t *testing.T) {
	for _, rate := range []int64{3, 4, 1000} {
		e := newEntity(t, perSecond(3, rate))
		e.l.Tokens, e.l.Guess, e.l.Lease, e.l.MaxLease = 1, 1000, 1_000_000, 1_000_000
		held := e.runs(0, 1, newcomer)
		var tickets []decision.Ticket
		for range 40 {
			tickets = append(tickets, e.admit(0, 1, newcomer).Ticket)
		}
		at := tickets[39].Slot - begin
		for _, ticket := range tickets {
			e.admit(at, 1, ticket)
		}
		e.settle(at, held, 1)
		asks := 0
		for e.admit(at, 1, newcomer).Delay > 0 && asks < 100 {
			at += 1000
			asks++
		}
		if asks > 3 {
			t.Errorf("%d a second: a newcomer asks %d times", rate, asks)
		}
	}
}

// Callers of GetDelay that ask again and again, more of them than the limit allows, leave the tickets a third of it.
func TestTicketsBesideGetDelay(t *testing.T) {
	e := newEntity(t, perSecond(10, 10))
	e.l.Tokens = 1 << 40
	type caller struct {
		plain  bool
		ticket decision.Ticket
	}
	due := map[int64][]caller{}
	for range 500 {
		due[0] = append(due[0], caller{})
	}
	ran, now := 0, int64(0)
	for ; ran < 500 && now < 600_000; now++ {
		if now%50 == 0 {
			due[now] = append(due[now], caller{plain: true})
		}
		for _, c := range due[now] {
			op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Ticket: c.ticket}
			if c.plain {
				op = decision.Op{Kind: decision.GetDelay}
			}
			a := e.do(now, op)
			switch at := now + a.Delay; {
			case a.Delay > 0 && c.plain:
				due[at] = append(due[at], c)
			case a.Delay > 0: // up to 20 ms late
				at += int64(len(due)) % 20
				due[at] = append(due[at], caller{ticket: a.Ticket})
			case !c.plain:
				ran++
			}
		}
		delete(due, now)
	}
	if now > 150_000 {
		t.Errorf("%d of 500 tickets ran in %d s, want all in 150 s", ran, now/1000)
	}
}

// Operations of less than a millisecond are no reason never to learn that others take a second.
func TestShortOperations(t *testing.T) {
	for _, guess := range []int64{1, 7, 8, 50} {
		e := newEntity(t, perSecond(100, 100))
		e.l.Guess = guess
		now := int64(0)
		run := func(takes int64) {
			now += 1000
			l := e.runs(now, 1, newcomer)
			e.settle(now+takes, l, 1)
		}
		for range 100 {
			run(0)
		}
		before := e.s.Held
		run(999)
		if after := e.s.Held; after <= before || after > before+100 {
			t.Errorf("a guess of %d: one operation of 1 s moves the sum from %d ms to %d ms", guess, before, after)
		}
		for range 200 {
			run(0)
			run(999)
		}
		if average := e.s.Held / e.s.Ended; average < 200 || average > 600 {
			t.Errorf("a guess of %d: operations that take 500 ms on average take %d ms", guess, average)
		}
	}
}

// Of fewer tokens fewer operations count. The average stays.
func TestDurationsOfFewerTokens(t *testing.T) {
	e := newEntity(t, perSecond(100, 100))
	e.l.Tokens = 200
	now := int64(0)
	run := func() {
		l := e.runs(now, 1, newcomer)
		now += 300
		e.settle(now, l, 1)
	}
	for range 900 {
		run()
	}
	e.l.Tokens = 5
	run()
	if average := e.s.Held / e.s.Ended; average < 295 || average > 305 || e.s.Ended > 100 {
		t.Errorf("operations that take 300 ms take %d ms on average of %d", average, e.s.Ended)
	}
}

// Urgent operations that use all of a window leave half of it, or its cost, to an operation that waited before.
func TestUrgentStarveNobody(t *testing.T) {
	for _, c := range []struct{ size, rate, cost int64 }{{10, 10, 1}, {10, 10, 6}, {10, 10, 10}, {3, 8, 1}, {5, 100, 5}, {1, 2, 1}, {20, 10, 8}} {
		e := newEntity(t, perSecond(c.size, c.rate))
		e.settle(0, e.runs(0, c.size, newcomer), c.size)
		a := e.admit(0, c.cost, newcomer)
		var urgent []decision.Ticket
		for now := int64(0); a.Delay > 0; now += 1000 {
			if now > 10_000 {
				t.Fatalf("%+v: after ten seconds it still waits", c)
			}
			for int64(len(urgent)) < 2*c.size {
				urgent = append(urgent, newcomer)
			}
			if a.Ticket.Slot <= begin+now {
				a = e.admit(now, c.cost, a.Ticket)
			}
			waiting := urgent[:0]
			for _, ticket := range urgent {
				if u := e.do(now, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Urgent: true, Ticket: ticket}); u.Delay > 0 {
					waiting = append(waiting, u.Ticket)
				}
			}
			urgent = waiting
		}
	}
}

// An urgent operation that is cancelled leaves its capacity to the ticket that would have waited for it.
func TestCancelledUrgent(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		e := newEntity(t, perSecond(1, 1))
		e.runs(0, 1, newcomer)
		first := e.waits(0, 1, newcomer, 1000, decision.BoundWindow)
		urgent := e.do(0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Urgent: true})
		if cancel {
			e.do(500, decision.Op{Kind: decision.Cancel, Ticket: urgent.Ticket, Urgent: true})
		}
		if a := e.admit(1000, 1, first); (a.Delay == 0) != cancel {
			t.Errorf("with the urgent one cancelled %v the ticket waits %d because of %d", cancel, a.Delay, a.Bound)
		}
	}
}

// Ten urgent operations for one token take ten times as long as one, whatever they cost.
func TestUrgentTurns(t *testing.T) {
	for _, cost := range []int64{1, 40, 1000} {
		e := newEntity(t, perSecond(1_000_000, 1_000_000))
		e.l.Tokens, e.l.Guess = 1, 1000
		at, ends, tickets, last := make([]int64, 10), make([]int64, 10), make([]decision.Ticket, 10), int64(0)
		leases := make([]decision.Lease, 10)
		for now := range int64(60_000) {
			for i := range at {
				if ends[i] == now && now > 0 {
					e.do(now, decision.Op{Kind: decision.Settle, Lease: leases[i], Cost: decision.Cost{cost}})
					last = now
				} else if ends[i] == 0 && at[i] == now {
					a := e.do(now, decision.Op{Kind: decision.Admit, Cost: decision.Cost{cost}, Urgent: true, Ticket: tickets[i]})
					if at[i], tickets[i] = now+a.Delay, a.Ticket; a.Delay == 0 {
						leases[i], ends[i] = a.Lease, now+1000
					}
				}
			}
		}
		if last < 10_000 || last > 14_000 {
			t.Errorf("a cost of %d: the last one ended after %d ms; want ten seconds", cost, last)
		}
	}
}

// Urgent operations of many calls take one token each, and leave the other tokens.
func TestUrgentLeaveTokens(t *testing.T) {
	e := newEntity(t, perSecond(100, 100))
	e.l.Tokens, e.l.Guess = 8, 1000
	for i := range int64(3) { // the window has room for one
		e.do(1000, decision.Op{Kind: decision.Admit, Cost: decision.Cost{60}, Urgent: true})
		if a := e.do(1000+100*i, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}); a.Delay > 0 {
			t.Fatalf("beside %d urgent operations a newcomer waits %d ms, bound %d; there are 8 tokens", i+1, a.Delay, a.Bound)
		}
	}
}

// A ticket that was cancelled delays nobody who waits for a token.
func TestCancelledTickets(t *testing.T) {
	e := newEntity(t, perSecond(1000, 1000))
	e.l.Tokens = 1
	e.runs(0, 1, newcomer)
	want := e.admit(0, 1, newcomer)
	e.do(0, decision.Op{Kind: decision.Cancel, Ticket: want.Ticket})
	tickets := make([]decision.Ticket, 200)
	for i := range tickets {
		tickets[i] = e.admit(0, 1, newcomer).Ticket
	}
	for _, ticket := range tickets {
		e.do(0, decision.Op{Kind: decision.Cancel, Ticket: ticket})
	}
	if a := e.admit(0, 1, newcomer); a.Delay != want.Delay {
		t.Errorf("after 200 cancelled tickets one waits %d ms, before them %d", a.Delay, want.Delay)
	}
}

// One ticket is lost, and estimates are large. A caller without a ticket runs when it comes back: nobody else waits for what it lacks.
func TestGetDelayBehindALostTicket(t *testing.T) {
	e := newEntity(t, decision.Window{Size: 1000, Rate: 1, Interval: 60_000})
	a := e.admit(0, 1000, newcomer)
	e.do(0, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: decision.Cost{3000}})
	now := int64(60_000 * 2100) // the debt is paid
	e.admit(now, 200, newcomer)
	asks := 1
	for ; asks < 5; asks++ {
		a := e.do(now, decision.Op{Kind: decision.GetDelay})
		if a.Delay == 0 {
			return
		}
		now += a.Delay
	}
	t.Errorf("it asked %d times", asks)
}

// A newcomer that goes before booked operations, and lacks only a token, has booked nothing until it runs.
func TestNewcomerBesideBookings(t *testing.T) {
	e := newEntity(t, decision.Window{Size: 10, Rate: 10, Interval: 60_000})
	e.l.Tokens = 1
	for i := range int64(10) {
		e.settle(i*100+50, e.runs(i*100, 1, newcomer), 1)
	}
	first, second := e.admit(2000, 1, newcomer).Ticket, e.admit(2000, 1, newcomer).Ticket
	lease := e.runs(60_000, 1, first)
	promised := func(when string, want int64) {
		t.Helper()
		if got := e.s.Lines[0].Promised; got != want {
			t.Errorf("%s %d units are left, want %d", when, got, want)
		}
	}
	promised("beside two bookings", 8)
	newcomer := e.waits(60_000, 1, newcomer, 100, decision.BoundTokens)
	promised("with a newcomer that waits", 8)
	e.do(60_000, decision.Op{Kind: decision.Cancel, Ticket: newcomer})
	promised("after its Cancel", 8)
	newcomer = e.admit(60_000, 1, newcomer).Ticket
	e.settle(60_040, lease, 1)
	e.settle(60_080, e.runs(60_050, 1, newcomer), 1)
	promised("after it ran", 7)
	e.runs(60_100, 1, second)
	promised("after the booking ran", 7)
}

// Bookings of a whole day and more that nobody uses stop newcomers for seconds, whether they have tickets or not.
func TestAbandonedDays(t *testing.T) {
	for _, kind := range []decision.Kind{decision.Admit, decision.GetDelay} {
		for _, abandoned := range []int{100, 4000, 100_000} {
			e := newEntity(t, perSecond(10, 10), decision.Window{Size: 5000, Rate: 5000, Interval: 86_400_000})
			ask := decision.Op{Kind: kind, Cost: decision.Cost{1}}
			for range abandoned {
				e.do(0, ask)
			}
			ran := 0
			for now := int64(500); now < 400_000; now += 1000 {
				for range 3 {
					if a := e.do(now, ask); a.Delay == 0 {
						ran++
					}
				}
			}
			if ran < 950 {
				t.Errorf("%v, %d abandoned: %d newcomers ran in 400 s, want 950 of 1,200", kind, abandoned, ran)
			}
		}
	}
}

// Messages that come back without their tickets use all that is left of a longer window before its refresh, also if that counts
// another unit.
func TestLostTicketsBeforeARefresh(t *testing.T) {
	const minute = int64(60_000)
	first := minute - begin%minute
	for unit, cost := range []decision.Cost{{1}, {1, 3}} {
		size := 50 * cost[unit]
		e := newEntity(t, perSecond(1, 1), decision.Window{Size: size, Rate: size, Interval: minute, Unit: int64(unit)})
		at, ran := make([]int64, 70), 0
		for now := range minute {
			for i := range at {
				if at[i] == now {
					a := e.do(first+now, decision.Op{Kind: decision.Admit, Cost: cost})
					at[i] += a.Delay
					if a.Delay == 0 {
						ran++
						e.do(first+now, decision.Op{Kind: decision.Settle, Cost: cost, Lease: a.Lease})
					}
				}
			}
		}
		if ran < 49 {
			t.Errorf("unit %d: %d ran before the refresh, want 49 of 50", unit, ran)
		}
	}
}

// Tickets that come back in a pause of several intervals get slots behind it as fast as the window brings capacity.
func TestSlotsBehindAPause(t *testing.T) {
	for _, rate := range []int64{10, 1000} { // a rate above Size counts as Size
		e := newEntity(t, perSecond(10, rate))
		for range 10 {
			e.runs(0, 1, newcomer)
		}
		var tickets []decision.Ticket
		for range 40 {
			tickets = append(tickets, e.admit(0, 1, newcomer).Ticket)
		}
		e.do(500, decision.Op{Kind: decision.Pause, For: 5500})
		slots := map[int64]int{}
		for _, ticket := range tickets {
			again := e.admit(ticket.Slot-begin, 1, ticket).Ticket
			slots[(again.Slot-begin)/1000]++
		}
		for second, n := range slots {
			if second < 6 || n > 11 {
				t.Errorf("a rate of %d: %d slots in second %d, want at most 10 and from second 6 on", rate, n, second)
			}
		}
	}
}

// Tickets that come back in a pause run when it is over, as far as the windows have room. Turns would leave a part of the interval.
func TestTicketsDueInAPause(t *testing.T) {
	const minute = int64(60_000)
	inAMinute := decision.Window{Size: 60, Rate: 60, Interval: minute}
	for name, c := range map[string]struct {
		windows  []decision.Window
		end, all int64 // of the pause, and by when all have run
	}{
		"a minute":              {[]decision.Window{inAMinute}, 90_000, 120_000},
		"a second and a minute": {[]decision.Window{perSecond(20, 20), inAMinute}, 90_000, 123_000},
	} {
		e, first := newEntity(t, c.windows...), minute-begin%minute
		tickets, ran, last := map[int64][]decision.Ticket{}, 0, int64(0)
		for range 180 {
			tickets[0] = append(tickets[0], newcomer)
		}
		for now := int64(0); now <= 3*minute; now++ {
			if now == 50_000 {
				e.do(first+now, decision.Op{Kind: decision.Pause, For: c.end - now})
			}
			for _, ticket := range tickets[now] {
				if a := e.admit(first+now, 1, ticket); a.Delay > 0 {
					tickets[now+a.Delay] = append(tickets[now+a.Delay], a.Ticket)
				} else {
					ran++
					last = now
				}
			}
		}
		if ran < 180 || last > c.all {
			t.Errorf("%s: %d of 180 ran, the last after %d ms; want all after %d", name, ran, last, c.all)
		}
	}
}

// Behind hours of bookings that nobody uses newcomers come more at once than an interval brings, but fewer than two do.
func TestNewcomersBehindAbandoned(t *testing.T) {
	for name, windows := range map[string][]decision.Window{
		"a second":                 {perSecond(2, 2)},
		"a second and ten minutes": {perSecond(2, 2), {Size: 900, Rate: 900, Interval: 600_000}},
	} {
		e, longest := newEntity(t, windows...), int64(0)
		for range 10_000 {
			e.admit(0, 1, newcomer)
		}
		due, came := map[int64][]decision.Ticket{}, map[int64]int64{} // by the number of the ticket
		for now := int64(5000); now < 300_000; now++ {
			if now%4000 == 500 && now < 200_000 {
				due[now] = append(due[now], newcomer, newcomer, newcomer)
			}
			for _, ticket := range due[now] {
				since := now
				if ticket.Number > 0 {
					since = came[ticket.Number]
				}
				a := e.admit(now, 1, ticket)
				if a.Delay > 0 {
					due[now+a.Delay] = append(due[now+a.Delay], a.Ticket)
					came[a.Ticket.Number] = since
				}
				longest = max(longest, now+a.Delay-since)
			}
		}
		if longest > 4000 {
			t.Errorf("%s: a newcomer waits %d ms, want 4000 at most", name, longest)
		}
	}
}

// Tickets that were cancelled are hardly booked, if the entity was paused again and again: with many tokens the tickets
// come late or book a second time before, with few tokens some have their slots in the next interval.
func TestCancelledWhilePaused(t *testing.T) {
	for _, test := range []struct{ tokens, pauses, late int64 }{{1_000_000, 10_000, 0}, {1_000_000, 10_000, 3000}, {100, 1, 0}} {
		for now := int64(5); now < 1000; now += 10 {
			e := newEntity(t, perSecond(1000, 50))
			e.l.Tokens = test.tokens
			var tickets [20]decision.Ticket
			end := now + test.pauses
			for at := now; at < end; at++ {
				e.do(at, decision.Op{Kind: decision.Pause, For: 2000})
				for i := range tickets {
					if begin+at >= tickets[i].Slot+test.late {
						tickets[i] = e.admit(at, 1, tickets[i]).Ticket
					}
				}
			}
			for _, ticket := range tickets {
				e.do(end, decision.Op{Kind: decision.Cancel, Ticket: ticket})
			}
			if booked := e.l.Booked(&e.s); booked > 2 { // a slot leaves nothing to the next interval
				t.Errorf("%+v from %d: %d are booked", test, now, booked)
			}
		}
	}
}

// A pause in a backlog leaves no gap behind it: the tickets that it displaces book again behind the last one, and newcomers
// behind those. So the last one of 300 runs 30 s after the first, and the 5 s of the pause.
func TestPauseLeavesNoGap(t *testing.T) {
	e := newEntity(t, perSecond(10, 10))
	tickets := make([]decision.Ticket, 0, 300)
	for range 300 {
		tickets = append(tickets, e.admit(0, 1, newcomer).Ticket)
	}
	now := int64(0)
	for ; len(tickets) > 0 && now < 100_000; now += 10 {
		if now == 1500 {
			e.do(now, decision.Op{Kind: decision.Pause, For: 5000})
		}
		tickets = slices.DeleteFunc(tickets, func(ticket decision.Ticket) bool { return ticket.Slot == 0 })
		for i := range tickets {
			if ticket := &tickets[i]; ticket.Slot <= begin+now {
				*ticket = e.admit(now, 1, *ticket).Ticket
			}
		}
	}
	if now > 36_000 {
		t.Errorf("the last one ran after %d ms", now)
	}
	if booked := e.l.Booked(&e.s); booked > 10 {
		t.Errorf("%d are booked for nobody", booked)
	}
}

// Operations that change nothing leave the stored limits without a pin that has ended, and so does Unpin.
func TestAfterTheEndOfAPin(t *testing.T) {
	for name, pin := range map[string]decision.PinnedLimit{
		"raised": {Window: perSecond(100, 50), Tokens: 2000, Raise: 1},
		"lower":  {Window: perSecond(3, 3), Tokens: 2},
	} {
		e := newEntity(t, perSecond(10, 5))
		e.do(0, decision.Op{Kind: decision.Pin, Pin: &pin, For: 5000})
		e.runs(100, 1, newcomer)
		for i, kind := range []decision.Kind{decision.ReturnToken, decision.Settle, decision.Unpin, decision.ReturnToken} {
			if a := e.do(6000, decision.Op{Kind: kind}); a.Found {
				t.Errorf("%s: operation %d found something", name, i)
			}
			if l, _ := e.s.Limits(); !slices.Equal(l.Windows, e.l.Windows) || l.Tokens != e.l.Tokens {
				t.Errorf("%s: after operation %d the stored limits are %+v and %d tokens, want %+v and %d", name, i, l.Windows, l.Tokens, e.l.Windows, e.l.Tokens)
			}
		}
	}
}

// Nobody knows when a limit has changed. So a window brings no more than with a change at any time.
func TestChangeOfAnInterval(t *testing.T) {
	window := func(n, interval, offset int64) decision.Window {
		return decision.Window{Size: n, Rate: n, Interval: interval, Offset: offset}
	}
	for name, c := range map[string]struct {
		before, after decision.Window
		now, left     int64 // after begin, which is an interval of all, where the window is empty
	}{
		"the same":                       {window(10, 1000, 0), window(10, 1000, 0), 1000, 10},
		"another size":                   {window(10, 1000, 0), window(4, 1000, 0), 1000, 4},
		"a multiple":                     {window(10, 1000, 0), window(10, 2000, 0), 2000, 10},
		"a multiple, not yet":            {window(10, 1000, 0), window(10, 2000, 0), 1999, 0},
		"a part":                         {window(10, 2000, 0), window(4, 1000, 0), 2000, 4},
		"no multiple":                    {window(10, 2000, 0), window(10, 3000, 0), 3000, 0},
		"no multiple, a second interval": {window(10, 2000, 0), window(10, 3000, 0), 6000, 10},
		"at another time":                {window(10, 1000, 0), window(10, 1000, 500), 1500, 0},
		"at another time, later":         {window(10, 1000, 0), window(10, 1000, 500), 2500, 10},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEntity(t, c.before)
			e.runs(0, c.before.Size, newcomer)
			e.left(0)
			e.change(c.after)
			e.do(c.now, decision.Op{Kind: decision.Pause, For: 1})
			e.left(c.left)
		})
	}
}

// A window that counts what an interval uses has the difference at once if its Size rises, and less if it falls: what was used stays
// used. So it does if two processes with different limits take turns.
func TestChangeOfASize(t *testing.T) {
	const day = 86_400_000
	for name, c := range map[string]struct {
		sizes []int64 // the first one, of which 50 are used, then the next ones
		left  []int64 // after each change
		owed  int64   // used above the estimate before
		next  int64   // left on the next day
	}{
		"raised":                  {[]int64{50, 100}, []int64{50}, 0, 100},
		"lowered":                 {[]int64{100, 60}, []int64{10}, 0, 60},
		"lowered below the use":   {[]int64{100, 30}, []int64{0}, 0, 30},
		"lowered in steps":        {[]int64{100, 40, 30, 20}, []int64{0, 0, 0}, 0, 20},
		"to and fro":              {[]int64{100, 30, 100, 30, 100}, []int64{0, 50, 0, 50}, 0, 100},
		"not as far":              {[]int64{100, 30, 60}, []int64{0, 10}, 0, 60},
		"to and fro, then raised": {[]int64{100, 30, 100, 30, 120}, []int64{0, 50, 0, 70}, 0, 120},
		"owed, raised":            {[]int64{50, 100}, []int64{-7}, 7, 93},
		"owed, to and fro":        {[]int64{50, 30, 50, 30}, []int64{-7, -7, -7}, 7, 23},
	} {
		t.Run(name, func(t *testing.T) {
			of := func(size int64) decision.Window { return decision.Window{Size: size, Rate: size, Interval: day} }
			e := newEntity(t, of(c.sizes[0]))
			e.settle(0, e.runs(0, 50, newcomer), 50+c.owed)
			for i, size := range c.sizes[1:] {
				e.change(of(size))
				e.do(int64(i), decision.Op{Kind: decision.Pause, For: 1})
				e.left(c.left[i])
			}
			e.do(day, decision.Op{Kind: decision.Pause, For: 1})
			e.left(c.next)
		})
	}
}

// A window that changes to and fro within an interval brings no more than its largest Size, also if it gathers for a time or has another
// Interval.
func TestChangesToAndFro(t *testing.T) {
	window := func(size, rate, interval int64) decision.Window {
		return decision.Window{Size: size, Rate: rate, Interval: interval}
	}
	for name, cycle := range map[string][]decision.Window{
		"gathers":                    {window(3, 2, 60_000), window(1, 2, 60_000), window(2, 2, 60_000)},
		"has a shorter interval":     {window(3, 3, 1000), window(1, 1, 60_000), window(2, 2, 60_000)},
		"gathers at a lower rate":    {window(9, 2, 60_000), window(4, 1, 60_000), window(1, 1, 60_000), window(7, 7, 60_000)},
		"gathers over two intervals": {window(4, 4, 1000), window(5, 1, 60_000), window(1, 1, 1000), window(4, 4, 1000)},
	} {
		t.Run(name, func(t *testing.T) {
			e, ran, most := newEntity(t, cycle[0]), int64(0), int64(0)
			for range 5 {
				for _, w := range cycle {
					most = max(most, w.Size)
					e.change(w)
					for e.do(0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}).Delay == 0 {
						ran++
					}
				}
			}
			if ran > most {
				t.Errorf("%d ran at one instant; want at most %d", ran, most)
			}
		})
	}
}

// The use above a Size that fell says nothing about the next interval, also if that begins with a Pin or an Unpin.
func TestChangeOfASizeBesideAPin(t *testing.T) {
	const day = 86_400_000
	window := func(size int64) decision.Window { return decision.Window{Size: size, Rate: size, Interval: day} }
	pin := decision.Op{Kind: decision.Pin, Pin: &decision.PinnedLimit{Window: perSecond(1000, 1000)}, For: 2 * day}
	for name, c := range map[string]struct {
		pinned bool
		first  decision.Op // of the day
	}{
		"neither": {false, decision.Op{Kind: decision.GetDelay}}, "Pin": {false, pin}, "Unpin": {true, decision.Op{Kind: decision.Unpin}},
	} {
		e := newEntity(t, window(100))
		if c.pinned {
			e.do(0, pin)
		}
		e.settle(0, e.runs(0, 100, newcomer), 100)
		e.change(window(40))
		e.do(1000, decision.Op{Kind: decision.Pause, For: 1})
		e.do(day+1000, c.first)
		e.change(window(100))
		if a := e.admit(day+5000, 99, newcomer); a.Delay > 0 {
			t.Errorf("%s: on the next day 99 of 100 wait %d ms", name, a.Delay)
		}
	}
}

// The use stays counted if a level falls, and its rise gives the difference. Then Options with a smaller Size leave nothing.
func TestChangeOfASizeAtALevel(t *testing.T) {
	of := func(size int64) decision.Window { return decision.Window{Size: size, Rate: size, Interval: 3_600_000} }
	e := newEntity(t, of(100))
	e.runs(0, 20, newcomer)
	e.do(0, decision.Op{Kind: decision.Announce, Level: decision.Whole / 2, For: 60_000})
	e.do(1, decision.Op{Kind: decision.Pause, For: 1})
	e.left(30)
	e.change(of(30))
	e.do(2, decision.Op{Kind: decision.Pause, For: 1})
	e.left(0)
	e.do(70_000, decision.Op{Kind: decision.Pause, For: 1})
	e.left(10)
}

// The use above a Size that fell says nothing about the next interval, also if the larger Size is back only then.
func TestChangeOfASizeEnds(t *testing.T) {
	const day = 86_400_000
	for name, c := range map[string]struct {
		series int64
		sizes  []int64 // on the first day, and then the first ones on the next days
		left   []int64 // on each day, with the last one of its sizes
	}{
		"days":                 {0, []int64{30, 100}, []int64{0, 100}},
		"lowered":              {0, []int64{100, 60}, []int64{0, 60}},
		"lower on all days":    {0, []int64{30, 30, 100}, []int64{0, 30, 100}},
		"a Series":             {7, []int64{30, 100}, []int64{0, 100}},
		"a Series, lowered":    {7, []int64{100, 60}, []int64{0, 60}},
		"a Series, all lower":  {7, []int64{30, 30, 100}, []int64{0, 30, 100}},
		"a Series, to and fro": {7, []int64{30, 100, 30}, []int64{0, 100, 30}},
	} {
		t.Run(name, func(t *testing.T) {
			offset := int64(begin % day)
			if c.series != 0 {
				offset = begin
			}
			of := func(n int, size int64) decision.Window {
				w := decision.Window{Size: size, Rate: size, Interval: day, Offset: offset, Series: c.series}
				if c.series != 0 {
					w.Offset += int64(n) * day
				}
				return w
			}
			e := newEntity(t, of(0, 100))
			e.runs(0, 100, newcomer)
			for n, size := range c.sizes {
				e.change(of(n, size))
				e.do(int64(n)*day+1, decision.Op{Kind: decision.Pause, For: 1})
				e.left(c.left[n])
			}
			e.change(of(len(c.sizes)-1, 200))
			e.do(int64(len(c.sizes)-1)*day+2, decision.Op{Kind: decision.Pause, For: 1})
			e.left(200)
		})
	}
}

// A pin with Raise gives the difference at once, and its end takes the unused part.
func TestRaiseOfAPin(t *testing.T) {
	window := decision.Window{Size: 50, Rate: 50, Interval: 86_400_000}
	e := newEntity(t, window)
	e.runs(0, 50, newcomer)
	window.Size, window.Rate = 80, 80
	e.do(0, decision.Op{Kind: decision.Pin, Pin: &decision.PinnedLimit{Window: window, Raise: 1}, For: 1000})
	e.runs(0, 20, newcomer)
	e.do(2000, decision.Op{Kind: decision.Pause, For: 1})
	e.left(0)
	e.do(86_400_000, decision.Op{Kind: decision.Pause, For: 1})
	e.left(50)
}

// An operation that was refused asks again at once with the ticket of its lease. It books, so that the newcomers behind it
// are told slots of their own.
func TestRefusedBooks(t *testing.T) {
	for _, size := range []int64{1, 3, 5} {
		e := newEntity(t, perSecond(size, size))
		var lease decision.Lease
		for range size {
			lease = e.runs(begin, 1, newcomer)
		}
		e.settle(begin+100, lease, 1)
		slots := map[int64]int64{}
		a := e.admit(begin+100, 1, decision.Ticket{Slot: lease.Begin})
		slots[a.Ticket.Slot/1000]++
		for range 9 {
			slots[e.admit(begin+100, 1, newcomer).Ticket.Slot/1000]++
		}
		for second, n := range slots {
			if n > size {
				t.Errorf("%d a second: %d operations have their slots in second %d", size, n, second-begin/1000)
			}
		}
	}
}

// Callers of GetDelay keep no slots from each other. The first ticket gets its slot all the same, although they take all that is left: once
// it was denied, it keeps its slot from them.
func TestGetDelayBesideTheFirstTicket(t *testing.T) {
	getDelay := decision.Op{Kind: decision.GetDelay}
	e := newEntity(t, perSecond(1, 1), decision.Window{Size: 100, Rate: 100, Interval: 86_400_000})
	now, ran := int64(0), 0
	for range 10 {
		if a := e.do(now, getDelay); a.Delay == 0 {
			ran++
		}
		now += 1000
	}
	if ran != 10 {
		t.Errorf("%d of 10 callers that are back run", ran)
	}
	e.do(now, getDelay)
	ticket, denied := e.admit(now, 1, newcomer).Ticket, 0
	for now = ticket.Slot - begin; denied < 3; denied++ {
		e.do(now, getDelay)
		a := e.admit(now, 1, ticket)
		if a.Delay == 0 {
			break
		}
		now, ticket = now+a.Delay, a.Ticket
	}
	if denied > 1 {
		t.Errorf("the ticket was denied %d times", denied)
	}
}

// An operation of few units that waits for what large ones give back asks a few times, not each few milliseconds.
func TestFewUnitsOfARefund(t *testing.T) {
	for _, cost := range []int64{1, 20, 150} {
		e := newEntity(t, decision.Window{Size: 1000, Rate: 1000, Interval: 60_000})
		now := int64(0)
		for range 3 {
			lease := e.runs(now, 600, newcomer)
			now += 10_000
			e.do(now, decision.Op{Kind: decision.Settle, Lease: lease, Cost: decision.Cost{5}})
		}
		now = 120_000
		e.runs(now, 600, newcomer)
		e.runs(now, 400, newcomer)
		asked, ticket := 0, decision.Ticket{}
		for end := now + 10_000; now < end; asked++ {
			a := e.admit(now, cost, ticket)
			if a.Delay == 0 {
				t.Fatalf("an operation of %d runs in a window that is used up", cost)
			}
			now, ticket = now+a.Delay, a.Ticket
		}
		if asked > 16 {
			t.Errorf("an operation of %d asks %d times in 10 s", cost, asked)
		}
	}
}

// A ticket that booked nothing leaves nothing to a longer window when a shorter one denies it.
func TestDeniedBesideBookings(t *testing.T) {
	const hour, day = 3_600_000, 86_400_000
	found := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		e := newEntity(t, perSecond(3, 3), decision.Window{Size: 500, Rate: 500, Interval: day, Offset: 3 * hour})
		e.l.Tokens, e.l.Guess = 2, 100
		now := int64(0)
		var tickets []decision.Ticket
		var held []decision.Lease
		for range 300 {
			switch k := r.IntN(10); {
			case k < 2 && len(held) > 0:
				i := r.IntN(len(held))
				e.do(now, decision.Op{Kind: decision.Settle, Lease: held[i], Cost: held[i].Cost})
				held = slices.Delete(held, i, i+1)
			case k < 7:
				op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}
				if i := slices.IndexFunc(tickets, func(t decision.Ticket) bool { return t.Slot <= begin+now }); i >= 0 && k < 5 {
					op.Ticket = tickets[i]
					tickets = slices.Delete(tickets, i, i+1)
				}
				before := e.s.Copy()
				a := e.do(now, op)
				if a.Delay > 0 {
					tickets = append(tickets, a.Ticket)
				} else {
					held = append(held, a.Lease)
				}
				if op.Ticket.Again == 2 && a.Delay > 0 && a.Ticket.Again != 2 {
					found++
					if got, was := e.s.Lines[1].Promised, before.Lines[1].Promised; got != was-1 {
						t.Fatalf("seed %d: %d of the day are not promised, %d before; want one less", seed, got, was)
					}
				}
			default:
				now += int64(r.IntN(300))
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d such tickets", found)
	}
}

// A pause takes nothing from a newcomer that its windows gathered before.
func TestPauseOfAFullEntity(t *testing.T) {
	const hour = 3_600_000
	e := newEntity(t, decision.Window{Size: 40, Rate: 20, Interval: hour})
	e.settle(0, e.runs(0, 40, newcomer), 40)
	e.do(2*hour+1000, decision.Op{Kind: decision.Pause, For: 60_000})
	e.runs(2*hour+61_000, 40, newcomer)
}

// After a pin new operations have slots by the entity's own limits, not behind those that the pin gave.
func TestSlotsAfterAPin(t *testing.T) {
	const hour = 3_600_000
	pin := decision.Op{Kind: decision.Pin, Pin: &decision.PinnedLimit{Window: decision.Window{Size: 5, Rate: 5, Interval: hour}}}
	for _, lasts := range []int64{0, 50_000} { // 0: until Unpin
		e := newEntity(t, perSecond(40, 20))
		pin.For = lasts
		e.do(0, pin)
		e.settle(0, e.runs(0, 5, newcomer), 5)
		if a := e.admit(1, 1, newcomer); a.Delay < hour/2 {
			t.Fatalf("the pin delays it by %d ms", a.Delay)
		}
		if lasts == 0 {
			e.do(50_000, decision.Op{Kind: decision.Unpin})
		}
		e.runs(60_000, 40, newcomer)
		if a := e.admit(60_000, 1, newcomer); a.Delay > 1000 {
			t.Errorf("a pin for %d ms: the next one waits %d ms; want a second", lasts, a.Delay)
		}
	}
}

// An entity is not forgotten while tickets wait for tokens, although all tokens are free for a moment.
func TestTicketsForTokensAreRemembered(t *testing.T) {
	e := newEntity(t, perSecond(100, 100))
	e.l.Tokens = 1
	for i := range int64(10) {
		e.settle(20_000*i+20_000, e.runs(20_000*i, 1, newcomer), 1)
	}
	l := e.runs(200_000, 1, newcomer)
	var tickets [20]decision.Answer
	for i := range tickets {
		tickets[i] = e.admit(200_000, 1, newcomer)
	}
	e.settle(200_100, l, 1)
	last := tickets[19].Ticket
	if until := e.l.Until(&e.s); until < last.Slot {
		t.Errorf("it may be forgotten %d ms before the last ticket is due", last.Slot-until)
	}
	now := int64(200_000 + tickets[0].Delay)
	e.admit(now+5000, 1, newcomer)
	if e.s.Next < 20 || e.s.Ended < 2 {
		t.Errorf("%d tickets and %d operations are known, want 20 and 2", e.s.Next, e.s.Ended)
	}
}

// A pause that ends at once changes nothing, whether the promised slots end before it would have ended or behind that.
func TestPauseForNothing(t *testing.T) {
	for _, booked := range []int{5, 50, 500} {
		e := newEntity(t, perSecond(10, 10))
		for range 10 + booked {
			e.admit(0, 1, newcomer)
		}
		want := e.s.Slot
		e.do(100, decision.Op{Kind: decision.Pause, For: 10_000})
		e.do(100, decision.Op{Kind: decision.Resume})
		if e.s.Slot != want {
			t.Errorf("%d booked: the last slot moves by %d ms", booked, e.s.Slot-want)
		}
	}
}

// The last operation took no millisecond. A message with a far slot still waits for the operation that has been running for long.
func TestFarSlotAfterAnInstant(t *testing.T) {
	e := newEntity(t, decision.Window{Size: 4, Rate: 4, Interval: 60_000})
	e.settle(0, e.runs(0, 2, newcomer), 2)
	e.runs(0, 2, newcomer)
	for range 6 {
		if a := e.admit(30_000, 2, newcomer); a.Ticket.Slot == 0 && a.Delay != 30_001 {
			t.Errorf("it asks again in %d ms, want 30001", a.Delay)
		} else if a.Ticket.Slot == 0 {
			return
		}
	}
	t.Error("each message has a slot")
}
