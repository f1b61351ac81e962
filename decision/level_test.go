package decision_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

func TestLevel(t *testing.T) {
	const minute = 60_000
	l := decision.Limits{
		Windows: []decision.Window{{Size: 40, Rate: 10, Interval: 1000}, {Size: 6000, Rate: 6000, Interval: 60 * minute}},
		Tokens:  1000, Guess: 50, Lease: minute, MaxLease: minute,
	}
	if field, _ := l.Ready(); field != "" {
		t.Fatal(field)
	}
	var s decision.State
	leases, now := storage.NewLeases(nil), int64(1_700_000_000_500)
	do := func(op decision.Op) {
		t.Helper()
		l.Apply(&s, leases, &op, now, &decision.Answer{})
	}
	level := func(when string, want float64) {
		t.Helper()
		do(decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
		if s.Level() != want {
			t.Errorf("%s: the level is %v, want %v: %+v", when, s.Level(), want, s.Pins)
		}
	}
	pass := func(ms int64) { // with an operation each half minute
		for ; ms > 30_000; ms -= 30_000 {
			now += 30_000
			do(decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
		}
		now += ms
	}
	refuse := decision.Op{Kind: decision.Throttle, For: 1000, Level: 1}
	do(decision.Op{Kind: decision.Throttle, For: 1000})
	level("nobody follows", 1)
	do(refuse)
	level("after a refusal", 0.8)
	want := []decision.Window{{Size: 32, Rate: 10, Interval: 1250}, {Size: 4800, Rate: 4800, Interval: 60 * minute}}
	for i, w := range want {
		if got := l.InForce(&s, now).Windows[i]; got != w || s.Lines[i].Window != w {
			t.Errorf("window %d is %v, counted by %v; want %v", i, got, s.Lines[i].Window, w)
		}
	}
	do(refuse)
	level("after another one, which belongs to the first", 0.8)
	pass(20_000) // nothing ran for the provider: it lets pass next to nothing
	do(refuse)
	level("after a third one", 0.4)
	do(decision.Op{Kind: decision.Announce, Level: 2500, For: 5 * minute})
	level("with a quarter announced", 0.25)
	do(decision.Op{Kind: decision.Announce, Level: decision.Whole, For: 5 * minute})
	pass(90_000) // twenty intervals
	level("with more announced", 0.4)
	pass(6 * minute)
	if got := s.Level(); got < 0.7 || got > 0.9 {
		t.Errorf("seven minutes after the refusal the level is %v, want the double", got)
	}
	pass(10 * minute)
	level("after twenty minutes", 1)
	do(refuse)
	pass(minute)
	now += 12 * minute
	level("after a pause", 0.5)
	now += 26_000
	level("after the pause", 1)
	pass(minute)
	if len(s.Pins) > 0 && s.Pins[0].Level.Lowered == 0 {
		t.Errorf("a level of nothing is kept: %+v", s.Pins)
	}
	pass(60 * minute)
	if level("after an hour", 1); len(s.Pins) > 0 {
		t.Errorf("a level is kept that nothing lowers: %+v", s.Pins)
	}
}

// A level never lets through more than its limits would, at whatever phase of the intervals the provider counts. Windows
// whose units come back all at once keep the phase of the limits.
func TestLevelIsWithinTheLimits(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		l := decision.Limits{Tokens: 1 << 40, Guess: 50, Lease: 1000, MaxLease: 1000}
		for range 1 + rnd.IntN(2) {
			l.Windows = append(l.Windows, decision.Window{
				Size: 1 + rnd.Int64N([]int64{3, 50}[rnd.IntN(2)]), Rate: 1 + rnd.Int64N(20), Interval: []int64{7, 100, 1000}[rnd.IntN(3)],
			})
		}
		if field, _ := l.Ready(); field != "" {
			t.Fatal(field)
		}
		var s decision.State
		leases, now := storage.NewLeases(nil), int64(1_700_000_000_000)
		var ran []int64
		var tickets []decision.Ticket
		for range 600 {
			op := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}
			switch dice := rnd.IntN(100); {
			case dice == 0:
				op.Kind, op.For, op.Level = decision.Throttle, 1+rnd.Int64N(2000), 1
			case dice == 1:
				op.Kind, op.For, op.Level = decision.Announce, 1+rnd.Int64N(20_000), 1+rnd.Int64N(decision.Whole)
			case dice == 2:
				now += rnd.Int64N(20 * 60_000)
			case dice < 40 && len(tickets) > 0:
				op.Ticket = tickets[rnd.IntN(len(tickets))]
			}
			now += rnd.Int64N([]int64{2, 2, 200, 2000}[rnd.IntN(4)])
			var a decision.Answer
			if l.Apply(&s, leases, &op, now, &a); op.Kind != decision.Admit {
				continue
			}
			if a.Delay > 0 {
				tickets = append(tickets, a.Ticket)
				continue
			}
			ran = append(ran, now)
			for _, w := range l.Windows {
				for i, at := range ran {
					gain := ((now-at)/w.Interval + 1) * w.Rate
					if w.Size <= w.Rate {
						gain = (now/w.Interval - at/w.Interval) * w.Size
					}
					if n := int64(len(ran) - i); n > w.Size+gain {
						t.Fatalf("seed %d: %d ran from %d to %d, %v allows %d; %+v", seed, n, at, now, w, w.Size+gain, s)
					}
				}
			}
		}
		for i := range s.Pins {
			s.Pins[i].Level.Changed = now // it does not rise just now
		}
		before := slices.Clone(l.InForce(&s, now).Windows)
		known, ok := s.Limits()
		if after := known.InForce(&s, now).Windows; !ok || !slices.Equal(after, before) {
			t.Fatalf("seed %d: by the stored limits %v is in force, want %v", seed, after, before)
		}
	}
}

// A rate above Size counts as Size, to the level, too.
func TestLevelOfARateAboveSize(t *testing.T) {
	var levels [2]float64
	for i, rate := range []int64{10, 1000} {
		e := newEntity(t, perSecond(10, rate))
		for second := range int64(60) {
			if second%20 == 10 {
				e.do(second*1000, decision.Op{Kind: decision.Throttle, For: 1, Level: 1})
			}
			for range 10 {
				if a := e.admit(second*1000+500, 1, newcomer); a.Delay > 0 {
					e.do(second*1000+500, decision.Op{Kind: decision.Cancel, Ticket: a.Ticket})
				}
			}
		}
		levels[i] = e.s.Level()
	}
	if levels[0] != levels[1] {
		t.Errorf("after three refusals the level is %v, with a rate above Size %v", levels[0], levels[1])
	}
}

// A bucket whose part is smaller than its rate brings that part of the rate.
func TestLevelOfASmallBucket(t *testing.T) {
	e := newEntity(t, perSecond(12, 10))
	for _, part := range []int64{7000, 5000, 2000} {
		e.do(500, decision.Op{Kind: decision.Announce, For: 60_000, Level: part})
		e.do(500, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
		w := e.l.InForce(&e.s, 500).Windows[0]
		if want := part * 10 * w.Interval / 1000 / decision.Whole; w.Rate < want || w.Rate > want+1 {
			t.Errorf("at %d of %d it brings %d each %d ms, want %d", part, decision.Whole, w.Rate, w.Interval, want)
		}
	}
}

// When a bucket's level rises, its intervals begin at other times. The next one begins no sooner than an interval of the whole
// limit after the last one.
func TestLevelBeginsNoIntervalEarly(t *testing.T) {
	e := newEntity(t, perSecond(4, 2))
	drain := func(at int64) (ran int) {
		for {
			a := e.admit(at, 1, newcomer)
			if a.Delay > 0 {
				e.do(at, decision.Op{Kind: decision.Cancel, Ticket: a.Ticket})
				return ran
			}
			ran++
		}
	}
	e.do(0, decision.Op{Kind: decision.Announce, For: 1_000_000, Level: 5000}) // 2 each 2 s
	drain(44_000)
	if ran := drain(46_000); ran != 2 {
		t.Errorf("%d ran in an interval of two seconds, want 2", ran)
	}
	e.do(46_100, decision.Op{Kind: decision.Announce, For: 1_000_000, Level: 8000}) // each 1.25 s, at 46.25 s
	if early, later := drain(46_300), drain(47_500); early != 0 || later != 2 {
		t.Errorf("%d ran 300 ms after the last interval began, and %d after 1.5 s; want none and 2", early, later)
	}
}

// A level that falls and rises within an interval brings no more than the window's Size, also if its part is less than one call.
func TestLevelToAndFro(t *testing.T) {
	e, ran := newEntity(t, decision.Window{Size: 5, Rate: 5, Interval: 60_000}), 0
	levels := []int64{decision.Whole, 500, 5000} // 5 %: one call in four minutes
	waiting := make([]decision.Ticket, 15)
	for i := range int64(6) {
		now := i * 10_001
		e.do(now, decision.Op{Kind: decision.Announce, For: 3_600_000, Level: levels[i%3]})
		var denied []decision.Ticket
		for _, ticket := range waiting {
			if a := e.do(now, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Ticket: ticket}); a.Delay > 0 {
				denied = append(denied, a.Ticket)
			}
		}
		ran, waiting = ran+len(waiting)-len(denied), denied
	}
	if ran > 5 {
		t.Errorf("%d calls ran in a minute of 5", ran)
	}
}

// A low rate that a provider announces for a second is over soon, or when it announces a higher one.
func TestAnnouncedForASecond(t *testing.T) {
	for _, next := range []int64{0, 5000} {
		e := newEntity(t, perSecond(40, 20))
		e.settle(0, e.runs(0, 1, newcomer), 1)
		e.do(10_000, decision.Op{Kind: decision.Announce, Level: 200, For: 1000})
		if next > 0 {
			e.do(20_000, decision.Op{Kind: decision.Announce, Level: next, For: 60_000})
		}
		ran := 0
		for now := int64(60_000); now < 90_000; now += 1000 {
			for range 20 {
				if a := e.do(now, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}); a.Delay == 0 {
					e.settle(now, a.Lease, 1)
					ran++
				}
			}
		}
		if ran < 250 {
			t.Errorf("next level %d: %d operations ran in 30 seconds; want half of 600, or all", next, ran)
		}
	}
}

// An hour after a refusal a level is whole again, also beside a window of days.
func TestLevelBesideDays(t *testing.T) {
	const hour, day = 3_600_000, 86_400_000
	e := newEntity(t, perSecond(40, 10), decision.Window{Size: 900, Rate: 300, Interval: day}, decision.Window{Size: 1000, Rate: 1000, Interval: day})
	for i := range int64(6) {
		e.do(i*6000, decision.Op{Kind: decision.Throttle, For: 1, Level: 1})
		e.admit(i*6000+3000, 1, newcomer)
	}
	if e.s.Level() > 0.1 {
		t.Fatalf("after six refusals the level is %v", e.s.Level())
	}
	for at := int64(60_000); at < hour+120_000; at += 30_000 {
		e.admit(at, 0, newcomer)
	}
	if e.s.Level() != 1 {
		t.Errorf("after an hour the level is %v", e.s.Level())
	}
	if left := e.s.Lines[2].Left; left < 900 {
		t.Errorf("the day has %d left of 1000, of which few have run", left)
	}
}

// An operation that takes most of a Size runs when the level is over, although nobody else asks meanwhile.
func TestLevelOfALoneOperation(t *testing.T) {
	const hour = 3_600_000
	e := newEntity(t, decision.Window{Size: 10, Rate: 10, Interval: hour})
	e.runs(0, 1, newcomer)
	e.do(1000, decision.Op{Kind: decision.Throttle, For: 1, Level: 1})
	now, ticket := int64(hour/2), newcomer
	for range 5 {
		a := e.admit(now, 9, ticket)
		if a.Delay == 0 {
			return
		}
		now, ticket = now+a.Delay, a.Ticket
	}
	t.Errorf("after %d hours it has not run: the level is %v", now/hour, e.s.Level())
}

// An operation that costs more than the Size at the level asks about as often as the level rises, however short the
// intervals are.
func TestLevelBelowACost(t *testing.T) {
	for _, interval := range []int64{10, 1000} {
		e := newEntity(t, decision.Window{Size: 10, Rate: 10, Interval: interval})
		all := newEntity(t, decision.Window{Size: 10, Rate: 10, Interval: interval})
		for _, which := range []string{"own", "shared"} {
			refused := decision.Op{Kind: decision.Throttle, For: 1, Level: 1}
			if which == "own" {
				e.do(0, refused)
			} else {
				e = newEntity(t, perSecond(1000, 1000))
				all.do(0, refused)
			}
			now, asks, ticket := int64(1000), 0, newcomer
			for asks < 100 {
				a := e.within(all, now, decision.Op{Kind: decision.Admit, Cost: decision.Cost{10}, Ticket: ticket})
				if a.Delay == 0 {
					break
				}
				now, asks, ticket = now+a.Delay, asks+1, a.Ticket
			}
			if asks > 60 || now > 600_000 {
				t.Errorf("%d ms, %s limit: after %d asks and %d ms the level is %v", interval, which, asks, now, e.s.Level())
			}
		}
	}
}

// The limits of a stored state are those of its last decision at any level, also if a window of an hour gathers capacity.
func TestLimitsOfALevel(t *testing.T) {
	const hour = 3_600_000
	for part := int64(decision.Whole / 10); part <= decision.Whole; part += 7 {
		e := newEntity(t, decision.Window{Size: 4000, Rate: 100, Interval: hour})
		for _, op := range []decision.Op{
			{Kind: decision.Throttle, For: 1, Level: 1}, {Kind: decision.Announce, For: hour, Level: part}, {Kind: decision.Admit, Cost: decision.Cost{1}},
		} {
			e.do(500, op)
		}
		if stored, known := e.s.Limits(); !known || stored.Windows[0].Interval != hour {
			t.Fatalf("at a level of %v the interval is %d, want %d", e.s.Level(), stored.Windows[0].Interval, hour)
		}
	}
}

// An entity that nobody asks about while its level ends has a full bucket after as much time as any other.
func TestCapacityAfterALevel(t *testing.T) {
	const hour = 3_600_000
	for _, w := range []decision.Window{{Size: 12, Rate: 6, Interval: hour}, {Size: 1000, Rate: 10, Interval: 60_000}} {
		for _, idle := range []int64{24, 48, 24 * 7} {
			e := newEntity(t, w)
			e.do(0, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
			e.do(0, decision.Op{Kind: decision.Throttle, For: 1000, Level: 1})
			e.do(idle*hour, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}})
			if left := e.s.Lines[0].Left; left != w.Size-1 {
				t.Errorf("%+v: %d left after %d hours, want %d", w, left, idle, w.Size-1)
			}
		}
	}
}
