package lab

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// The tests of this file change a load so that nothing should change.

func urgently(d draw) draw {
	return changed(d, func(_ *rand.Rand, _ int, m *SharedMessage) { m.Urgent = true })
}

// An entity whose messages are all urgent uses its limit as if none were.
func TestAllUrgent(t *testing.T) {
	for name, c := range map[string]struct {
		o         drip.Options
		operation time.Duration
		messages  int
		makespan  time.Duration
		mean      float64
	}{
		"a token":     {drip.Options{Size: 100, RefreshRate: 100, Concurrency: 1, WaitForToken: 5 * time.Second}, 5 * time.Second, 200, 1250 * time.Second, 10},
		"two windows": {drip.Options{Size: 10, Concurrency: plenty, Windows: []drip.Window{{Size: 50, RefreshInterval: 10 * time.Second}}}, 50 * time.Millisecond, 600, 116 * time.Second, 2},
	} {
		got := mustRunShared(t, SharedScenario{
			Options: c.o, Entities: entities(1), Operation: Fixed(c.operation), Unmeasured: true,
			Messages: urgently(sent(shuffled, c.messages)),
		}, 1)
		if got.Makespan > c.makespan || got.Redeliveries.Mean > c.mean {
			t.Errorf("%s: %v, %.2f postponements; want at most %v, %.2f", name, got.Makespan, got.Redeliveries.Mean, c.makespan, c.mean)
		}
	}
}

// If all messages are urgent, shared limits and the entities' own ones are used as if none were.
func TestAllUrgentShared(t *testing.T) {
	for _, seed := range []uint64{9, 21, 23} {
		s := RandomShared(seed)
		want := mustRunShared(t, s, seed)
		s.Messages = urgently(s.Messages)
		if got := mustRunShared(t, s, seed); got.Makespan > want.Makespan*105/100 || got.Redeliveries.Mean > want.Redeliveries.Mean+.3 {
			t.Errorf("%s: %v, %.2f postponements; as drawn %v, %.2f", s.About, got.Makespan, got.Redeliveries.Mean, want.Makespan, want.Redeliveries.Mean)
		}
	}
}

// Tickets that were cancelled leave no gap in an entity's line.
func TestCancelledLine(t *testing.T) {
	now := Begin
	b := buckettest.New(t, drip.Options{
		Size: 25, Concurrency: plenty, Clock: func() time.Time { return now },
		Shared: map[string]drip.Limit{"app": {Size: 100}},
	})
	for i := range 4 { // four entities with a backlog each make the app short
		for range 500 {
			buckettest.Admit(t, b, string(rune('b'+i)), drip.Request{})
		}
	}
	var last time.Duration
	for range 500 {
		last = buckettest.Admit(t, b, "a", drip.Request{}).Delay
		a := buckettest.Admit(t, b, "a", drip.Request{})
		ok(t, b.Cancel(t.Context(), "a", a))
	}
	if last > 30*time.Second {
		t.Errorf("the last of 500 waits %v", last)
	}
}

// A longer window of the entity that is far from short changes nothing.
func TestLooseOwnWindow(t *testing.T) {
	for _, seed := range []uint64{8, 23, 39} {
		s := RandomShared(seed)
		want := mustRunShared(t, s, seed)
		s.Options.Windows = []drip.Window{{Size: 10*s.Options.Size + 60*s.Options.RefreshRate, RefreshInterval: 40 * time.Second}}
		if got := mustRunShared(t, s, seed); got.Redeliveries.Mean > want.Redeliveries.Mean+.02 || got.Redeliveries.Max > want.Redeliveries.Max+1 {
			t.Errorf("%s: %.2f postponements, at most %d; without the longer window %.2f, %d", s.About, got.Redeliveries.Mean, got.Redeliveries.Max, want.Redeliveries.Mean, want.Redeliveries.Max)
		}
	}
}

// A shared limit that is far from short changes no answer, also if slots lie behind its calendar.
func TestFarBehindTheCalendar(t *testing.T) {
	for name, app := range map[string]drip.Limit{"rate": {Size: 1_000_000}, "gathered": {Size: 100_000, RefreshRate: 100}} {
		s := SharedScenario{
			Options:  drip.Options{Size: 3, RefreshInterval: time.Hour, Concurrency: 20},
			Entities: entities(5), Operation: Fixed(50 * time.Millisecond),
			Messages: changed(sent(inTurn, times(5, 180)...), func(_ *rand.Rand, i int, m *SharedMessage) { m.Urgent = i%10 == 0 }),
		}
		alone := playShared(t, s)
		s.Options.Shared = map[string]drip.Limit{"app": app}
		if within := playShared(t, s); !slices.Equal(alone.answers, within.answers) {
			t.Errorf("%s: %d answers, %d without it", name, len(within.answers), len(alone.answers))
		}
	}
}

// The names of shared limits mean nothing, and a limit that is far from short changes no answer, whatever units the limits count.
func TestNamesOfSharedLimits(t *testing.T) {
	play := func(points, tokens, loose string) *sharedRun {
		o := drip.Options{Size: plenty, RefreshRate: plenty, Concurrency: plenty, Windows: []drip.Window{{Size: plenty, RefreshInterval: time.Second, Unit: "points"}}}
		o.Shared = map[string]drip.Limit{
			points: {Size: 15, RefreshInterval: time.Second, Unit: "points"},
			tokens: {Size: 4500, RefreshInterval: time.Second, Unit: "tokens"},
		}
		if loose != "" {
			o.Shared[loose] = drip.Limit{Size: plenty}
		}
		return playShared(t, SharedScenario{
			Options: o, Entities: entities(2), Operation: Fixed(50 * time.Millisecond), Late: Fixed(0), Messages: sent(inTurn, 100, 100),
			Units: map[string]Costs{"points": UniformCost(1, 5, 0), "tokens": UniformCost(200, 1000, 0)},
		})
	}
	want := play("a", "b", "")
	for _, names := range [][3]string{{"b", "a", ""}, {"a", "b", "c"}, {"b", "c", "a"}} {
		if got := play(names[0], names[1], names[2]); !slices.Equal(got.answers, want.answers) {
			t.Errorf("%v: %d answers, %d as a and b", names, len(got.answers), len(want.answers))
		}
	}
}

func playShared(t *testing.T, s SharedScenario) *sharedRun {
	t.Helper()
	r, err := newSharedRun(&s, 1)
	ok(t, err)
	ok(t, r.play())
	return r
}

// A window that counts a named unit is as one that counts calls.
func TestOneUnit(t *testing.T) {
	play := func(unit string) *SharedResult {
		s := SharedScenario{
			Options:  drip.Options{Size: 100, RefreshRate: 50, RefreshInterval: time.Minute, Unit: unit, Concurrency: 20},
			Entities: entities(1), Operation: Fixed(50 * time.Millisecond), Late: Uniform(0, time.Second), LostTickets: 0.02, Unmeasured: true,
			Messages: sent(inTurn, 200),
		}
		if unit != "" {
			s.Units = map[string]Costs{unit: FixedCost(1)}
		}
		got := mustRunShared(t, s, 1)
		return &got
	}
	if calls, named := play(""), play("points"); named.Redeliveries != calls.Redeliveries || named.Makespan != calls.Makespan {
		t.Errorf("%v, %+v; calls %v, %+v", named.Makespan, named.Redeliveries, calls.Makespan, calls.Redeliveries)
	}
}

// A window of another unit that is far from short changes nothing.
func TestLooseUnit(t *testing.T) {
	for _, c := range []struct {
		o           drip.Options
		concurrency int
	}{
		{drip.Options{Size: 10, RefreshRate: 10}, 2},
		{drip.Options{Size: 40, RefreshRate: 10}, 1},
		{drip.Options{Size: 60, RefreshRate: 60, RefreshInterval: time.Minute}, 1},
	} {
		c.o.Concurrency = c.concurrency
		s := Scenario{
			Name: "unit", Options: c.o, Arrivals: Burst(300, 300*time.Millisecond), Operation: Exponential(50 * time.Millisecond), Travel: 20 * time.Millisecond,
			Hold: -1,
		}
		want := mustRun(t, s, 1, Admit).Results[0]
		s.Options.Windows, s.Units = []drip.Window{{Size: 1 << 30, RefreshInterval: time.Second, Unit: "points"}}, map[string]Costs{"points": FixedCost(1)}
		if got := mustRun(t, s, 1, Admit).Results[0]; got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries {
			t.Errorf("%d of %v: %v, %+v; without the window %v, %+v", c.o.Size, c.o.RefreshInterval, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
		}
	}
}

// A window of another unit that is far from short leaves a shared limit its rate, also if an operation takes all that a second brings.
func TestLooseUnitShared(t *testing.T) {
	for _, size := range []int{1, 2, 7} {
		s := SharedScenario{
			Options: within(plenty, plenty, drip.Limit{Size: size}), Entities: entities(3), Operation: Fixed(50 * time.Millisecond), Late: Fixed(0), Unmeasured: true,
			Messages: sent(shuffled, times(3, 19*size)...),
		}
		want := mustRunShared(t, s, 1)
		s.Options.Shared = map[string]drip.Limit{"app": {Size: size, Windows: []drip.Window{{Size: 3948, RefreshInterval: time.Second, Unit: "points"}}}}
		s.Units = map[string]Costs{"points": FixedCost(7)}
		if got := mustRunShared(t, s, 1); got.Makespan > want.Makespan || got.Redeliveries.Mean > want.Redeliveries.Mean {
			t.Errorf("%d a second: %v, %+v; without the window %v, %+v", size, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
		}
	}
}

// A newcomer that is cancelled at once leaves no trace. The next one gets its place.
func TestCancelledNewcomers(t *testing.T) {
	for _, c := range []struct {
		o         drip.Options
		operation time.Duration
	}{
		{drip.Options{Size: 10, RefreshRate: 10, WaitForToken: 50 * time.Millisecond}, 50 * time.Millisecond},
		{drip.Options{Size: 100, RefreshRate: 100, RefreshInterval: 10 * time.Second, WaitForToken: 50 * time.Millisecond}, 50 * time.Millisecond},
		{drip.Options{Size: 60, RefreshRate: 60, RefreshInterval: time.Minute, WaitForToken: 2 * time.Second}, 2 * time.Second},
	} {
		c.o.Concurrency = 1
		report := mustRun(t, Scenario{
			Name: "cancelled", Options: c.o, Arrivals: Burst(300, 300*time.Millisecond), Operation: Fixed(c.operation), Travel: 20 * time.Millisecond, Hold: -1,
		}, 1, Admit, doing(func(l admit, entity string, r drip.Request) error { // before each newcomer
			if r.Ticket != (drip.Ticket{}) {
				return nil
			}
			a, err := l.Admit(entity, drip.Request{})
			if err == nil && (a.Delay == 0 || a.Ticket != (drip.Ticket{})) {
				err = l.b.Cancel(context.Background(), entity, a)
			}
			return err
		}))
		want, got := report.Results[0], report.Results[1]
		tell(t, got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries, "%d in %v: %v, %.2f postponements; %v, %.2f without the cancelled ones",
			c.o.Size, c.o.RefreshInterval, got.Makespan, got.Redeliveries.Mean, want.Makespan, want.Redeliveries.Mean)
	}
}

// Tickets that are cancelled together, in any order, leave no trace. A consumer cancels them as long as its queue takes no postponed
// messages.
func TestCancelledTogether(t *testing.T) {
	for name, o := range map[string]drip.Options{
		"a window":       {Size: 10, RefreshRate: 10},
		"it gathers":     {Size: 40, RefreshRate: 2},
		"two windows":    {Size: 2, RefreshRate: 2, Windows: []drip.Window{{Size: 100, RefreshInterval: time.Minute}}},
		"a shared limit": within(50, 50, drip.Limit{Size: 10}),
		"the own line":   within(2, 2, drip.Limit{Size: 2}),
	} {
		for _, how := range []string{"forwards", "backwards", "shuffled"} {
			now := Begin.Add(begun)
			o.Concurrency, o.Clock = plenty, func() time.Time { return now }
			b, rnd := buckettest.New(t, o), rand.New(rand.NewPCG(1, 1))
			for range 5 {
				var all []drip.Admission
				for range 60 {
					all = append(all, buckettest.Admit(t, b, "a", drip.Request{}))
				}
				switch how {
				case "backwards":
					slices.Reverse(all)
				case "shuffled":
					rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				}
				for _, a := range all {
					ok(t, b.Cancel(t.Context(), "a", a))
				}
			}
			if a := buckettest.Admit(t, b, "a", drip.Request{}); a.Delay > 0 {
				t.Errorf("%s, cancelled %s: the next newcomer waits %v", name, how, a.Delay)
			}
		}
	}
}

// around is Admit with another limiter around the bucket's.
func around(wrap func(admit) Limiter) Policy {
	return Policy{Name: "around", Tickets: true, New: func(o drip.Options) (Limiter, error) {
		b, err := drip.New(o)
		return wrap(admit{b}), err
	}}
}

// doing is Admit that does something before each decision.
func doing(first func(l admit, entity string, r drip.Request) error) Policy {
	return around(func(l admit) Limiter { return before{l, first} })
}

type before struct {
	admit
	first func(l admit, entity string, r drip.Request) error
}

func (l before) Admit(entity string, r drip.Request) (drip.Admission, error) {
	if err := l.first(l.admit, entity, r); err != nil {
		return drip.Admission{}, err
	}
	return l.admit.Admit(entity, r)
}

// A few urgent messages get the next tokens of a shared limit as they get those of their entity. Nobody gains by claiming that all are urgent.
func TestUrgentForSharedTokens(t *testing.T) {
	for _, tokens := range []int{5, 20} {
		for _, n := range []int{1, 4, 20} {
			perSecond := 5 * tokens
			o := app(1<<30, 1<<30, 0)
			o.Shared["app"], o.WaitForToken = drip.Limit{Concurrency: tokens}, 200*time.Millisecond
			s := SharedScenario{
				Options: o, Entities: entities(n), Operation: Exponential(200 * time.Millisecond), Unmeasured: true,
				Messages: joined(
					sent(shuffled, times(n, 60*perSecond/n)...),
					trickle(0, n, 0.05*float64(perSecond)/float64(n), 2*time.Second, 40*time.Second, SharedMessage{Urgent: true}),
				),
			}
			got := mustRunShared(t, s, 1)
			if got.Urgent.P50 > 500*time.Millisecond || got.Urgent.P99 > 4*time.Second || got.OverLimit > 0 || got.Makespan > got.Fluid*115/100 {
				t.Errorf("%d tokens, %d entities: urgent ones wait %v; %v, at best %v; %d over the limit", tokens, n, got.Urgent, got.Makespan, got.Fluid, got.OverLimit)
			}
			s.Messages = changed(sent(shuffled, times(n, 60*perSecond/n)...), func(_ *rand.Rand, _ int, m *SharedMessage) {
				m.Urgent, m.Watched = m.Entity == 0, m.Entity == 0
			})
			if got = mustRunShared(t, s, 1); got.Watched.P99 < got.FluidWatched.P99*95/100 {
				t.Errorf("%d tokens, %d entities: the urgent one waits %v, the fair wait is %v", tokens, n, got.Watched, got.FluidWatched)
			}
		}
	}
}

// A shared limit of up to a billion counts small operations as they are: what has gathered in it is enough for all that wait.
func TestSmallWithinLargeLimit(t *testing.T) {
	for _, size := range []int{10_000_000, 1_000_000_000} {
		for _, cost := range []int{1, 7, 300} {
			now := Begin
			b := buckettest.New(t, drip.Options{
				Size: 10 * cost, Concurrency: plenty, Clock: func() time.Time { return now }, Start: Begin.Add(-24 * time.Hour),
				Shared: map[string]drip.Limit{"app": {Size: size, Windows: []drip.Window{{Size: size, RefreshRate: 5000 * cost, RefreshInterval: 24 * time.Hour}}}},
			})
			var last time.Duration
			for range 3000 {
				last = buckettest.Admit(t, b, "a", drip.Request{Cost: cost}).Delay
			}
			if last > 310*time.Second {
				t.Errorf("size %d, costs %d: the last of 3,000 waits %v", size, cost, last)
			}
		}
	}
}

// Status.Booked of a limit of tokens alone counts the operations that wait.
func TestBookedTokens(t *testing.T) {
	now := Begin
	b := buckettest.New(t, drip.Options{
		Size: 1 << 30, RefreshRate: 1 << 30, Concurrency: plenty, Clock: func() time.Time { return now },
		Shared: map[string]drip.Limit{"app": {Concurrency: 3}},
	})
	for range 100 {
		buckettest.Admit(t, b, "a", drip.Request{})
	}
	s, err := b.Inspect(t.Context(), drip.SharedID("app"))
	ok(t, err)
	if s.Booked < 90 || s.Booked > 100 {
		t.Errorf("%d are booked, want 97", s.Booked)
	}
}

// A Pause that Resume ends at once leaves the tickets that were denied a token their turns.
func TestPausedForNoTime(t *testing.T) {
	for _, pause := range []time.Duration{time.Millisecond, time.Hour} {
		report := mustRun(t, Scenario{
			Name:     "paused",
			Options:  drip.Options{Size: 40, RefreshRate: 10, Concurrency: 20, WaitForToken: 2 * time.Second},
			Arrivals: Poisson(12, 0, 25*time.Second), Operation: Exponential(2 * time.Second), Travel: 20 * time.Millisecond, Hold: -1,
		}, 1, Admit, doing(func(l admit, entity string, _ drip.Request) error {
			return errors.Join(l.b.Pause(context.Background(), entity, pause), l.b.Resume(context.Background(), entity))
		}))
		want, got := report.Results[0], report.Results[1]
		tell(t, got.Makespan > want.Makespan*11/10 || got.Redeliveries.Mean > want.Redeliveries.Mean+0.5, "%v: %v, %+v; without it %v, %+v", pause, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
	}
}

// A delay queue with a longest delay brings a message back in several hops. Messages run about when they would with one hop: one that comes
// back early takes no slot of another.
func TestHops(t *testing.T) {
	app := func(l drip.Limit) map[string]drip.Limit { return map[string]drip.Limit{"app": l} }
	for name, c := range map[string]struct {
		o         drip.Options
		entities  int
		arrivals  Arrivals
		operation Distribution
		hop       time.Duration
	}{
		"an own window": {
			drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 6 * time.Second, Concurrency: plenty}, 1,
			Poisson(1./3, 0, 75*time.Minute), Fixed(50 * time.Millisecond), 15 * time.Minute,
		},
		"a shared window": {
			drip.Options{Size: 100, RefreshRate: 100, Concurrency: plenty, Shared: app(drip.Limit{Size: 1, RefreshInterval: 5 * time.Second})}, 5,
			Poisson(60, 0, 5*time.Second), Fixed(50 * time.Millisecond), time.Minute,
		},
		"both": {
			drip.Options{Size: 2, RefreshRate: 2, RefreshInterval: time.Minute, Concurrency: plenty, Shared: app(drip.Limit{Size: 100, RefreshInterval: 5 * time.Second})}, 5,
			Burst(300, 300*time.Millisecond), Fixed(50 * time.Millisecond), 15 * time.Minute,
		},
		"shared tokens": {
			drip.Options{Size: 50, RefreshRate: 50, Concurrency: plenty, WaitForToken: 50 * time.Millisecond, Shared: app(drip.Limit{Size: 18, Concurrency: 1})}, 5,
			Poisson(20, 0, 4*time.Second), Exponential(50 * time.Millisecond), time.Second,
		},
	} {
		report := mustRun(t, Scenario{
			Name: name, Options: c.o, Entities: c.entities, Arrivals: c.arrivals, Operation: c.operation, Late: Uniform(0, min(c.hop/50, time.Second)), Hold: -1,
		}, 1, Admit, around(func(l admit) Limiter { return hopping{l, c.hop} }))
		want, got := report.Results[0], report.Results[1]
		tell(t, got.Done < got.Messages || got.Makespan > want.Makespan*102/100 || got.Wait.Max > want.Wait.Max*105/100, "%s: %v, waits %v; in one hop %v, %v", name, got.Makespan, got.Wait, want.Makespan, want.Wait)
	}
}

// hopping has a longest delay.
type hopping struct {
	admit
	longest time.Duration
}

func (l hopping) Admit(entity string, r drip.Request) (drip.Admission, error) {
	a, err := l.admit.Admit(entity, r)
	a.Delay = min(a.Delay, l.longest)
	return a, err
}

// A loose window or pin that comes and goes leaves reserved slots reserved, and so does a limit that is raised a little.
func TestChangedLimits(t *testing.T) {
	loose := drip.Window{Size: 1 << 30, RefreshRate: 1 << 30, RefreshInterval: 40 * time.Second}
	for name, change := range map[string]func(b *drip.Bucket, l *drip.Limit, n int) error{
		"window": func(_ *drip.Bucket, l *drip.Limit, n int) error {
			l.Windows = []drip.Window{loose}[:n%2]
			return nil
		},
		"pin": func(b *drip.Bucket, _ *drip.Limit, n int) error {
			return b.Pin(context.Background(), "entity-000", drip.Pin{Window: loose})
		},
		"raised": func(_ *drip.Bucket, l *drip.Limit, n int) error {
			if n > 600 {
				l.Size, l.RefreshRate = 11, 11
			}
			return nil
		},
	} {
		report := mustRun(t, Scenario{
			Name: name, Options: drip.Options{Size: 10, RefreshRate: 10, Concurrency: plenty}, Hold: -1,
			Arrivals: Mixed(Burst(600, begun), Poisson(8, 0, time.Minute)), Operation: Fixed(50 * time.Millisecond), Travel: 20 * time.Millisecond,
		}, 1, Admit, Policy{Name: name, Tickets: true, New: func(o drip.Options) (Limiter, error) {
			limit, n := drip.Limit{}, 0
			o.Limits = func(context.Context, string) (drip.Limit, error) { return limit, nil }
			return doing(func(l admit, _ string, _ drip.Request) error { n++; return change(l.b, &limit, n) }).New(o)
		}})
		want, got := report.Results[0], report.Results[1]
		tell(t, got.Makespan > want.Makespan || got.Redeliveries.Mean > want.Redeliveries.Mean+0.1 || got.Redeliveries.Max > want.Redeliveries.Max+2, "%s: %v, %+v; without it %v, %+v", name, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
	}
}

// A RefreshRate above Size is as one of Size.
func TestRateAboveSize(t *testing.T) {
	play := func(rate int) Result {
		return mustRun(t, Scenario{
			Name: "rate", Options: drip.Options{Size: 60, RefreshRate: rate, RefreshInterval: time.Minute, Concurrency: 1},
			Arrivals: Burst(600, 300*time.Millisecond), Operation: Exponential(50 * time.Millisecond), Travel: 20 * time.Millisecond, Hold: -1,
		}, 1, Admit).Results[0]
	}
	if got, want := play(600), play(60); got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries {
		t.Errorf("%v, %+v; want %v, %+v", got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
	}
}

// A shorter window that another one never lets bind changes nothing, of an entity or of a shared limit.
func TestLooseShortWindow(t *testing.T) {
	loose := []drip.Window{{Size: 1 << 30, RefreshInterval: 100 * time.Millisecond}}
	for _, seed := range []uint64{11, 15, 27} {
		s := RandomLoad(seed)
		want := mustRun(t, s, seed, Admit).Results[0]
		s.Options.Windows = loose
		if got := mustRun(t, s, seed, Admit).Results[0]; got.Redeliveries != want.Redeliveries || got.Wait != want.Wait {
			t.Errorf("%s: %+v, %v; without the window %+v, %v", s.About, got.Redeliveries, got.Wait, want.Redeliveries, want.Wait)
		}
	}
	for _, seed := range []uint64{5, 8} {
		s := RandomShared(seed)
		want := mustRunShared(t, s, seed)
		app := s.Options.Shared["app"]
		app.Windows = loose
		s.Options.Windows, s.Options.Shared = loose, map[string]drip.Limit{"app": app}
		if got := mustRunShared(t, s, seed); got.Redeliveries.Mean > want.Redeliveries.Mean+0.02 || got.Makespan > want.Makespan*102/100 {
			t.Errorf("%s: %v, %+v; without the window %v, %+v", s.About, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
		}
	}
}

// An entity whose capacity has gathered uses its tokens as if the windows limited nothing.
func TestGatheredCapacity(t *testing.T) {
	for _, c := range []struct {
		tokens, size, rate int
		operation          time.Duration
	}{{1, 200, 10, 50 * time.Millisecond}, {2, 100, 10, 100 * time.Millisecond}, {20, 400, 20, 500 * time.Millisecond}} {
		for _, hold := range []time.Duration{-1, 0} {
			play := func(size, rate int) Result {
				return mustRun(t, Scenario{
					Name:     "gathered",
					Options:  drip.Options{Size: size, RefreshRate: rate, Concurrency: c.tokens, WaitForToken: c.operation},
					Arrivals: Burst(c.size, begun), Operation: Exponential(c.operation), Late: Uniform(0, 20*time.Millisecond), Hold: hold,
				}, 1, Admit).Results[0]
			}
			want, got := play(1_000_000, 1_000_000), play(c.size, c.rate)
			tell(t, got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries, "%d tokens, hold %v: %v, %.2f postponements; without windows %v, %.2f",
				c.tokens, hold, got.Makespan, got.Redeliveries.Mean, want.Makespan, want.Redeliveries.Mean)
		}
	}
}

// If all costs and the limit are ten times as large, nothing changes.
func TestCostsTimesTen(t *testing.T) {
	for _, window := range []time.Duration{500 * time.Millisecond, 10 * time.Second} {
		play := func(cost int) *Result {
			perWindow := int(10 * window.Seconds())
			return &mustRun(t, Scenario{
				Name:     "costs",
				Options:  drip.Options{Size: 2 * perWindow * cost, RefreshRate: perWindow * cost, RefreshInterval: window, Concurrency: 1},
				Arrivals: Poisson(9, 0, time.Minute), Operation: Exponential(50 * time.Millisecond), Costs: FixedCost(cost), Late: Uniform(0, 20*time.Millisecond), Hold: -1,
			}, 1, Admit).Results[0]
		}
		want, got := play(1), play(10)
		if got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries {
			t.Errorf("%v: %v, %+v; costs of one %v, %+v", window, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
		}
	}
}

// A pause within an interval, of an entity or of a shared limit, costs no ticket its slot.
func TestPausedForAMoment(t *testing.T) {
	for seed, name := range map[uint64]string{1: "", 18: "", 16: drip.SharedID("app"), 28: drip.SharedID("app")} {
		play := func(paused bool) (last int64) {
			s := RandomShared(seed)
			s.Unmeasured = true
			r, err := newSharedRun(&s, seed)
			ok(t, err)
			var b *drip.Bucket
			o, asks := r.scenario.Options, 0
			o.Start, o.Clock = full(r.scenario.Begin), func() time.Time { return time.UnixMilli(r.now) }
			o.Limits = func(ctx context.Context, entity string) (drip.Limit, error) { // called at each decision
				if asks++; paused && asks%5 == 0 {
					ok(t, b.Pause(ctx, cmp.Or(name, entity), time.Millisecond))
				}
				return drip.Limit{}, nil
			}
			b, err = drip.New(o)
			ok(t, err)
			r.limiter = admit{b}
			ok(t, r.play())
			for i := range r.messages {
				last = max(last, r.messages[i].started-r.begin)
			}
			return last
		}
		want, got := play(false), play(true)
		interval := RandomShared(seed).Options.Shared["app"].RefreshInterval.Milliseconds()
		tell(t, got > max(want*103/100, want+interval), "seed %d: %d ms, %d without pauses", seed, got, want)
	}
}

// The days of a time zone without changes of the clocks are as intervals of 24 hours: no reserved slot is lost at midnight.
func TestDaysOfATimeZone(t *testing.T) {
	const day, noon = 24 * time.Hour, 12 * time.Hour
	interval := drip.Window{RefreshInterval: day, Align: drip.StartingAt(Begin.Add(noon))}
	calendar := drip.Window{Align: drip.Daily(time.FixedZone("", -12*60*60))}
	for name, options := range map[string]func(w drip.Window) drip.Options{
		"own": func(w drip.Window) drip.Options {
			w.Size = 20
			return drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Minute, Windows: []drip.Window{w}}
		},
		"shared": func(w drip.Window) drip.Options {
			return drip.Options{Shared: map[string]drip.Limit{"app": {Size: 50, RefreshInterval: w.RefreshInterval, Align: w.Align}}, Size: 1, RefreshRate: 1}
		},
		"both": func(w drip.Window) drip.Options {
			w.Size = 20
			app := w
			app.Size = 60
			return drip.Options{Size: 5, RefreshRate: 5, Windows: []drip.Window{w}, Shared: map[string]drip.Limit{"app": {Size: 10, Windows: []drip.Window{app}}}}
		},
	} {
		play := func(w drip.Window) SharedResult {
			o := options(w)
			o.Concurrency = plenty
			return mustRunShared(t, SharedScenario{
				Options: o, Entities: entities(5), Operation: Fixed(50 * time.Millisecond), Late: Uniform(0, time.Second), Unmeasured: true,
				Messages: joined(sentAt(10*time.Hour, shuffled, 0, times(5, 50)...), trickle(0, 5, 6/day.Seconds(), noon, 4*day, SharedMessage{})),
			}, 1)
		}
		got, want := play(calendar), play(interval)
		tell(t, got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries,
			"%s: %v, %+v; %v, %+v in intervals", name, got.Makespan, got.Redeliveries, want.Makespan, want.Redeliveries)
	}
}
