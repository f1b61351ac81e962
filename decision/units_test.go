package decision_test

import (
	"testing"

	"github.com/drip-go/drip/decision"
)

// ofModel are the limits of a language model: calls, input and output tokens, of a minute each.
func ofModel(calls, input, output int64) []decision.Window {
	return []decision.Window{
		{Size: calls, Rate: calls, Interval: 60_000},
		{Size: input, Rate: input, Interval: 60_000, Unit: 1},
		{Size: output, Rate: output, Interval: 60_000, Unit: 2},
	}
}

func (e *entity) asks(now int64, cost decision.Cost, t decision.Ticket) decision.Answer {
	return e.do(now, decision.Op{Kind: decision.Admit, Cost: cost, Ticket: t})
}

// Each window takes the cost in its unit, and binds only operations that take some of it.
func TestUnits(t *testing.T) {
	const minute = 60_000
	for name, c := range map[string]struct {
		before []decision.Cost // that run
		cost   decision.Cost
		delay  int64
		bound  decision.Bound
		left   []int64
	}{
		"room":                    {nil, decision.Cost{1, 400, 30}, 0, decision.BoundNone, []int64{9, 600, 70}},
		"calls are used up":       {[]decision.Cost{{10}}, decision.Cost{1, 1}, minute, decision.BoundWindow, []int64{0, 1000, 100}},
		"input is used up":        {[]decision.Cost{{1, 700}}, decision.Cost{1, 301}, minute, decision.BoundWindow + 1, []int64{9, 300, 100}},
		"output is used up":       {[]decision.Cost{{1, 700, 100}}, decision.Cost{1, 1, 1}, minute, decision.BoundWindow + 2, []int64{9, 300, 0}},
		"nothing of what is used": {[]decision.Cost{{1, 1000, 0}}, decision.Cost{1, 0, 100}, 0, decision.BoundNone, []int64{8, 0, 0}},
		"tokens without a call":   {[]decision.Cost{{10}}, decision.Cost{0, 5, 5}, 0, decision.BoundNone, []int64{0, 995, 95}},
		"a unit of no window":     {nil, decision.Cost{1, 0, 0, 1 << 30}, 0, decision.BoundNone, []int64{9, 1000, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEntity(t, ofModel(10, 1000, 100)...)
			for _, cost := range c.before {
				if a := e.asks(0, cost, newcomer); a.Delay != 0 {
					t.Fatalf("%v waits %d because of %d", cost, a.Delay, a.Bound)
				}
			}
			a := e.asks(0, c.cost, newcomer)
			if a.Delay != c.delay || a.Bound != c.bound {
				t.Errorf("it waits %d because of %d, want %d because of %d", a.Delay, a.Bound, c.delay, c.bound)
			}
			e.left(c.left...)
			if a.Delay > 0 && e.asks(a.Delay, c.cost, a.Ticket).Delay != 0 {
				t.Error("it does not run in its slot")
			}
		})
	}
}

// An estimate is settled in each unit for itself: the excess of an estimate comes back, and a shortfall is owed in this
// unit alone.
func TestUnitsSettled(t *testing.T) {
	e := newEntity(t, ofModel(10, 1000, 100)...)
	a := e.asks(0, decision.Cost{1, 600, 50}, newcomer)
	e.do(1, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: decision.Cost{1, 200, 180}})
	e.left(9, 800, -80)
	if a := e.asks(2, decision.Cost{1, 800}, newcomer); a.Delay != 0 {
		t.Errorf("one that takes no output waits %d because of %d", a.Delay, a.Bound)
	}
	if a := e.asks(2, decision.Cost{1, 0, 1}, newcomer); a.Bound != decision.BoundWindow+2 || a.Delay != 59_998 {
		t.Errorf("one that takes output waits %d because of %d, want 59998 because of window 3", a.Delay, a.Bound)
	}
	e.s.Ended = 4 // else it asks again when the first costs are known
	if a := e.asks(2, decision.Cost{1, 0, 21}, newcomer); a.Delay <= 59_998 {
		t.Errorf("one that takes more than is left after the debt waits %d, want more than a minute", a.Delay)
	}
	a = e.asks(60_000, decision.Cost{2, 10, 10}, newcomer)
	e.do(60_001, decision.Op{Kind: decision.Cancel, Lease: a.Lease})
	e.left(10, 1000, 20)
}

// GetDelay takes a call, and nothing of a window that counts something else.
func TestUnitsGetDelay(t *testing.T) {
	e := newEntity(t, decision.Window{Size: 5, Rate: 5, Interval: 1000, Unit: 1})
	for range 8 {
		if a := e.do(0, decision.Op{Kind: decision.GetDelay}); a.Delay != 0 {
			t.Fatalf("it waits %d because of %d", a.Delay, a.Bound)
		}
	}
	e.left(5)
}

// Each window learns how much of its estimates comes back: slots of tokens that are estimated twice as high stand
// closer, slots of calls do not.
func TestUnitsLearnt(t *testing.T) {
	e := newEntity(t, ofModel(10, 1000, 100)...)
	for minute := range int64(100) {
		a := e.asks(minute*60_000, decision.Cost{1, 800, 10}, newcomer)
		e.do(minute*60_000+1, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: decision.Cost{1, 400, 10}})
	}
	calls, input, output := e.s.Lines[0].Saved, e.s.Lines[1].Saved, e.s.Lines[2].Saved
	if calls != 0 || output != 0 || input < 1500 || input > 2100 {
		t.Errorf("calls %d, input %d and output %d of 4096 come back, want 0, about half and 0", calls, input, output)
	}
}

// The first operation costs nothing, so the operations after it book one unit each. The next operation costs a half. The booked
// slots are worth a half then, not thousands of times as much as before.
func TestFirstCostsNothing(t *testing.T) {
	for _, cost := range []int64{2, 10, 100, 10_000} {
		e := newEntity(t, perSecond(10*cost, 10*cost))
		first, second := e.runs(0, cost, newcomer), e.runs(0, cost, newcomer)
		e.settle(100, first, 0)
		for range 200 {
			e.admit(100, cost, newcomer)
		}
		e.settle(200, second, cost/2)
		if a := e.admit(200, cost, newcomer); a.Delay > 20_000 {
			t.Errorf("a cost of %d: behind 200 others a newcomer waits %d, want at most 20000", cost, a.Delay)
		}
	}
}

// settled runs operations of a minute each that are thought to cost 100 calls and cost 20, and take so long.
func settled(t *testing.T, took int64) *entity {
	e := newEntity(t, decision.Window{Size: 100, Rate: 100, Interval: 60_000})
	for minute := range int64(64) {
		a := e.asks(minute*60_000, decision.Cost{100}, newcomer)
		if a.Delay != 0 {
			t.Fatalf("minute %d: it waits %d", minute, a.Delay)
		}
		e.do(minute*60_000+took, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: decision.Cost{20}})
	}
	return e
}

// An operation that a window denies comes back when the operation in flight has probably returned the rest of its estimate. If
// that returns nothing, the operation asks again after longer and longer times, and runs after the refresh.
func TestRefund(t *testing.T) {
	const now = 64 * 60_000
	e := settled(t, 1000)
	first := e.asks(now, decision.Cost{100}, newcomer)
	a := e.asks(now, decision.Cost{50}, newcomer)
	if first.Delay != 0 || a.Delay < 500 || a.Delay > 1100 || a.Bound != decision.BoundWindow {
		t.Fatalf("the first waits %d, the second %d because of %d; want 0, about 600 and the window", first.Delay, a.Delay, a.Bound)
	}
	held := *e
	held.s = e.s.Copy()
	asks, at, delay := 1, now+a.Delay, int64(0)
	for {
		b := held.asks(at, decision.Cost{50}, a.Ticket)
		if b.Delay == 0 {
			break
		}
		if b.Delay < delay/2 && at+b.Delay < now+60_000 {
			t.Errorf("denied at %d it waits %d, before that %d", at, b.Delay, delay)
		}
		asks, at, delay, a.Ticket = asks+1, at+b.Delay, b.Delay, b.Ticket
		if asks > 30 {
			t.Fatal("it asks for ever")
		}
	}
	if at < now+60_000 || at > now+60_000+8000 || asks > 24 {
		t.Errorf("it runs after %d ms and %d asks, want soon after the refresh and at most 24", at-now, asks)
	}
}

// A ticket runs in its slot if the rest of an estimate has come back, and another operation has not taken it.
func TestRefundTaken(t *testing.T) {
	const now = 64 * 60_000
	e := settled(t, 1000)
	first := e.asks(now, decision.Cost{100}, newcomer)
	a := e.asks(now, decision.Cost{50}, newcomer)
	e.do(now+a.Delay-1, decision.Op{Kind: decision.Settle, Lease: first.Lease, Cost: decision.Cost{20}})
	if b := e.asks(now+a.Delay-1, decision.Cost{50}, newcomer); b.Delay == 0 {
		t.Error("a newcomer runs before it")
	}
	if b := e.asks(now+a.Delay, decision.Cost{50}, a.Ticket); b.Delay != 0 {
		t.Errorf("it waits %d because of %d", b.Delay, b.Bound)
	}
}

// A slot more than a minute ahead waits for the first costs, with waits that grow. A closed entity's slot at its opening depends on no
// cost, and neither does the slot of a single call.
func TestFarSlotsWaitForCosts(t *testing.T) {
	const day = 86_400_000
	e := newEntity(t, decision.Window{Size: 100, Rate: 100, Interval: day})
	e.l.Lease, e.l.MaxLease = day, day
	e.asks(0, decision.Cost{100}, newcomer)
	now, before := int64(0), int64(10_000)
	for range 3 {
		a := e.asks(now, decision.Cost{100}, newcomer)
		if a.Ticket != (decision.Ticket{}) || a.Bound != decision.BoundWindow || a.Delay < 2*before || a.Delay > 3*before {
			t.Errorf("the answer is %+v, want no ticket, and at least %d", a, 2*before)
		}
		now, before = now+a.Delay, a.Delay
	}
	slot := func(name string, e entity, cost int64) {
		t.Helper()
		if a := e.asks(now, decision.Cost{cost}, newcomer); a.Delay < day/2 || a.Ticket == (decision.Ticket{}) {
			t.Errorf("%s: the answer is %+v, want a slot", name, a)
		}
	}
	copied := func() entity { return entity{t: t, l: e.l, s: e.s.Copy(), leases: e.leases} }
	slot("a single call", copied(), 1)
	known, closed := copied(), copied()
	known.s.Ended = 4
	slot("costs are known", known, 100)
	closed.do(now, decision.Op{Kind: decision.Pause, For: day})
	slot("it is closed", closed, 100)
}

// An operation that ends after the refresh returns nothing to the window. So nothing is saved, and the next one waits for the refresh.
func TestRefundTooLate(t *testing.T) {
	const now = 64 * 60_000
	e := settled(t, 59_999)
	if e.s.Lines[0].Saved < 3000 {
		t.Fatalf("%d of 4096 come back, want about 3,276", e.s.Lines[0].Saved)
	}
	e = newEntity(t, decision.Window{Size: 100, Rate: 100, Interval: 60_000})
	var leases []decision.Lease
	for minute := range int64(64) {
		a := e.asks(minute*60_000, decision.Cost{100}, newcomer)
		for _, l := range leases {
			e.do(minute*60_000, decision.Op{Kind: decision.Settle, Lease: l, Cost: decision.Cost{20}})
		}
		leases = []decision.Lease{a.Lease}
	}
	a := e.asks(now-50_000, decision.Cost{100}, newcomer)
	if saved := e.s.Lines[0].Saved; saved != 0 || a.Delay != 50_000 {
		t.Errorf("%d of 4096 come back, and the next waits %d; want 0 and 50000", saved, a.Delay)
	}
}

// Nobody gives back what the lease of a dead holder took: an operation that waits for it does not ask again all day.
func TestRefundOfDeadHolder(t *testing.T) {
	const day = 86_400_000
	e := newEntity(t, perSecond(1000, 1000), decision.Window{Size: 100, Rate: 100, Interval: day})
	for second := range int64(10) {
		e.settle(second*1000+500, e.runs(second*1000, 10, newcomer), 2)
	}
	e.runs(10_000, 80, newcomer) // and its holder dies
	now, asks, ticket := int64(11_000), 0, newcomer
	for {
		a := e.admit(now, 10, ticket)
		if a.Delay == 0 {
			break
		}
		if now, ticket, asks = now+a.Delay, a.Ticket, asks+1; asks > 30 {
			t.Fatalf("it asks for ever: at %d it waits %d because of %d", now, a.Delay, a.Bound)
		}
	}
	if next := int64(day - begin%day); now < next || now > next+8000 {
		t.Errorf("it runs at %d, want about %d", now, next)
	}
}

// A window whose unit changes begins with its remaining capacity, at least 0, and leases give it nothing back.
func TestUnitsChange(t *testing.T) {
	e := newEntity(t, perSecond(10, 10), decision.Window{Size: 10, Rate: 10, Interval: 60_000, Unit: 1})
	a := e.asks(0, decision.Cost{1, 10, 0}, newcomer)
	owed := e.asks(0, decision.Cost{1, 0, 0}, newcomer)
	e.do(0, decision.Op{Kind: decision.Settle, Lease: owed.Lease, Cost: decision.Cost{1, 5000}})
	e.left(8, -5000)
	e.l.Windows[1].Unit = 2
	e.ready()
	if a := e.asks(1, decision.Cost{1, 7, 1}, newcomer); a.Delay != 59_999 {
		t.Errorf("it waits %d because of %d", a.Delay, a.Bound)
	}
	e.do(1, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: decision.Cost{}})
	e.left(9, 0)
	ran := 0
	for now := range int64(600) { // to and fro
		e.l.Windows[1].Unit = 1 + now%2
		e.ready()
		if a := e.asks(1000+200*now, decision.Cost{0, 1, 1}, newcomer); a.Delay == 0 {
			ran++
		}
	}
	if ran > 20 {
		t.Errorf("%d ran in two minutes, want at most 10 a minute", ran)
	}
}

// A shared limit books by the unit that an operation takes most of.
func TestUnitsShared(t *testing.T) {
	for name, c := range map[string]struct {
		cost decision.Cost
		each int64 // of a second
	}{
		"by calls":  {decision.Cost{1, 100, 0}, 10},
		"by input":  {decision.Cost{1, 2500, 0}, 4},
		"by output": {decision.Cost{1, 100, 500}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			own, all := newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(10, 10), decision.Window{Size: 10_000, Rate: 10_000, Interval: 1000, Unit: 1},
				decision.Window{Size: 1000, Rate: 1000, Interval: 1000, Unit: 2})
			each := map[int64]int64{}
			for range 5 * c.each {
				each[own.within(all, 0, decision.Op{Kind: decision.Admit, Cost: c.cost}).Delay/1000]++
			}
			for second := range int64(5) {
				if each[second] != c.each {
					t.Errorf("in second %d there are %d, want %d: %v", second, each[second], c.each, each)
				}
			}
		})
	}
}

// Urgent operations pass the others in the units that they take.
func TestUnitsUrgent(t *testing.T) {
	e := newEntity(t, perSecond(10, 10), decision.Window{Size: 1000, Rate: 1000, Interval: 1000, Unit: 3})
	e.asks(0, decision.Cost{1, 0, 0, 1000}, newcomer)
	back := e.asks(0, decision.Cost{1, 0, 0, 600}, newcomer).Ticket
	other := e.asks(0, decision.Cost{10, 0, 0, 0}, newcomer)
	urgent := e.do(0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1, 0, 0, 600}, Urgent: true})
	if other.Delay == 0 || urgent.Delay != 1000 {
		t.Fatalf("delays of %d and %d", other.Delay, urgent.Delay)
	}
	if a := e.asks(1000, decision.Cost{1, 0, 0, 600}, back); a.Delay == 0 {
		t.Error("one of 600 does not leave the urgent one its 600 of 1000")
	}
	if a := e.do(1000, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1, 0, 0, 600}, Urgent: true, Ticket: urgent.Ticket}); a.Delay != 0 {
		t.Errorf("the urgent one waits %d because of %d", a.Delay, a.Bound)
	}
	if a := e.asks(1000, decision.Cost{1, 0, 0, 400}, back); a.Delay != 0 {
		t.Errorf("the rest waits %d because of %d", a.Delay, a.Bound)
	}
}

// An operation that waits for one unit does not delay operations that take nothing of it, as long as its own part of
// the other units is left, or is back before its slot.
func TestUnitsDoNotKeepUpOthers(t *testing.T) {
	for name, c := range map[string]struct {
		calls      decision.Window
		run, delay int64
		bound      decision.Bound
	}{
		"back before":        {decision.Window{Size: 10, Rate: 10, Interval: 60_000}, 9, 60_000, decision.BoundWindow},
		"in two minutes":     {decision.Window{Size: 10, Rate: 10, Interval: 120_000}, 6, 120_000, decision.BoundBooked},
		"gathers one before": {decision.Window{Size: 10, Rate: 1, Interval: 60_000}, 7, 60_000, decision.BoundBooked},
	} {
		e := newEntity(t, c.calls, ofModel(10, 1000, 100)[1])
		e.asks(0, decision.Cost{1, 1000}, newcomer)
		waits := e.asks(0, decision.Cost{3, 600}, newcomer).Ticket
		for range c.run {
			if a := e.asks(0, decision.Cost{1}, newcomer); a.Delay != 0 {
				t.Fatalf("%s: one that takes a call only waits %d because of %d", name, a.Delay, a.Bound)
			}
		}
		if a := e.asks(0, decision.Cost{1}, newcomer); a.Delay != c.delay || a.Bound != c.bound {
			t.Errorf("%s: the next one waits %d because of %d, want %d because of %d", name, a.Delay, a.Bound, c.delay, c.bound)
		}
		if a := e.asks(60_000, decision.Cost{3, 600}, waits); a.Delay != 0 {
			t.Errorf("%s: it waits %d because of %d when it is back", name, a.Delay, a.Bound)
		}
	}
}

// A backlog of half an hour that waits for tokens does not hold up operations that take none, also when the calls of a second are used
// up. They come back one after the other.
func TestBacklogOfAUnit(t *testing.T) {
	windows := []decision.Window{perSecond(1, 1), {Size: 1, Rate: 1, Interval: 60_000, Unit: 1}}
	for name, limits := range map[string]struct{ own, all []decision.Window }{
		"own":               {windows, []decision.Window{perSecond(100, 100)}},
		"shared":            {[]decision.Window{perSecond(100, 100)}, windows},
		"calls of its own":  {windows[:1], windows[1:]},
		"tokens of its own": {[]decision.Window{perSecond(100, 100), windows[1]}, windows[:1]},
	} {
		e, all := newEntity(t, limits.own...), newEntity(t, limits.all...)
		for range 30 {
			e.within(all, 0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1, 1}})
		}
		for i := range int64(5) {
			if a := e.within(all, 100, one); a.Delay > (i+2)*1000 || i > 2 && a.Delay < 1000 {
				t.Errorf("%s: call %d waits %d ms because of %d", name, i, a.Delay, a.Bound)
			}
		}
	}
}

// Operations of one unit and operations of another one do not wait behind each other.
func TestBacklogsOfTwoUnits(t *testing.T) {
	e := newEntity(t, perSecond(1000, 1000), decision.Window{Size: 1, Rate: 1, Interval: 1000, Unit: 1}, decision.Window{Size: 1, Rate: 1, Interval: 60_000, Unit: 2})
	for i := range int64(30) {
		for _, c := range []struct {
			cost decision.Cost
			most int64
		}{{decision.Cost{1, 0, 1}, i * 60_000}, {decision.Cost{1, 1, 0}, (i + 5) * 1000}} {
			if a := e.do(0, decision.Op{Kind: decision.Admit, Cost: c.cost}); a.Delay > c.most {
				t.Errorf("operation %d of cost %d waits %d ms because of %d, want at most %d", i, c.cost, a.Delay, a.Bound, c.most)
			}
		}
	}
}

// A unit that is used up for a minute stops no callers that take calls only: they use the calls that lost tickets leave.
func TestUsedUpUnitStopsNoCalls(t *testing.T) {
	e := newEntity(t, perSecond(5, 1), decision.Window{Size: 2, Rate: 2, Interval: 60_000, Unit: 1})
	e.do(0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1, 2}})
	for range 100 {
		e.do(0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
	}
	ran := 0
	for second := range int64(50) {
		if e.do(second*1000, decision.Op{Kind: decision.GetDelay}).Delay == 0 {
			ran++
		}
		e.do(second*1000, decision.Op{Kind: decision.ReturnToken})
	}
	if ran < 40 {
		t.Errorf("%d calls ran in 50 s, want one each second", ran)
	}
}

// Two versions of a program differ in a limit that is far from short, and decide in turns. The slots are at the rate of the short one.
func TestUnitsOfTwoVersions(t *testing.T) {
	e := newEntity(t, ofModel(60, 10_000, 10_000)...)
	for i := range int64(50) {
		e.l.Windows = ofModel(60-i%2*30, 10_000, 10_000)
		e.ready()
		a := e.asks(i*50, decision.Cost{1, 1000}, newcomer)
		if a.Delay == 0 {
			e.do(i*50, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: decision.Cost{1, 1000}})
		}
		if most := i / 10 * 60_000; a.Delay > most {
			t.Fatalf("message %d of ten a minute is delayed by %d ms, want at most %d", i, a.Delay, most)
		}
	}
}
