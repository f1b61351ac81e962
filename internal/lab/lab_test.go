package lab

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/oktest"
)

// No provider refuses an operation that drip lets run. No message is forgotten. No policy is faster than the optimum. docs/trying.md
// has the same figures.
func TestScenarios(t *testing.T) {
	page, err := os.ReadFile("../../docs/trying.md")
	ok(t, err)
	for _, s := range Scenarios() {
		t.Run(s.Name, func(t *testing.T) {
			report := mustRun(t, s, 1, Admit)
			got, best := report.Results[0], report.Results[1]
			if got.OverLimit != 0 {
				t.Errorf("%d calls were over the limit", got.OverLimit)
			}
			if got.Done+got.Lost != got.Messages || got.Messages == 0 {
				t.Errorf("of %d messages %d were done and %d lost", got.Messages, got.Done, got.Lost)
			}
			if best.Done != best.Messages || best.Lost+best.Overtaken+best.Redeliveries.Max != 0 {
				t.Errorf("the optimum is none: %+v", best)
			}
			if undisturbed := s.Crashes+s.Duplicates+s.Lost == 0; undisturbed && got.Utilisation > 1.000001 {
				t.Errorf("%.2f %% of %s were used", 100*got.Utilisation, report.Binding)
			}
			_, row, _ := strings.Cut(string(page), "\n| "+s.Name+" | ")
			row, _, _ = strings.Cut(row, "\n")
			var mean, makespan, p99, longest float64
			var most, otherMean, otherMost, over int
			if _, err := fmt.Sscanf(row, "%f, %d | %d, %d | %f | %f | %f | %d |", &mean, &most, &otherMean, &otherMost, &makespan, &p99, &longest, &over); err != nil {
				t.Fatalf("docs/trying.md has the row %q: %v", row, err)
			}
			for figure, f := range map[string][2]float64{
				"postponements": {got.Redeliveries.Mean, mean}, "most postponements": {float64(got.Redeliveries.Max), float64(most)},
				"makespan": {ratio(got.Makespan, best.Makespan), makespan}, "p99 wait": {ratio(got.Wait.P99, best.Wait.P99), p99},
				"longest wait": {ratio(got.Wait.Max, best.Wait.Max), longest},
			} {
				if math.Abs(f[0]-f[1]) > 0.006 {
					t.Errorf("%s: %.2f, and %.2f in docs/trying.md", figure, f[0], f[1])
				}
			}
		})
	}
}

// ratio is how many times as long as b a is.
func ratio(a, b time.Duration) float64 {
	if a == b {
		return 1
	}
	return float64(a) / float64(b)
}

// The Options of the scenarios keep to their providers under other loads too: bursts and pauses of any length.
func TestOptionsNeverExceed(t *testing.T) {
	coarse, _ := Named("rate-burst") // docs/limits.md: intervals of a second leave room for calls that take up to one
	coarse.Name, coarse.Travel, coarse.Options = "in seconds", time.Second, drip.Options{Size: 36, RefreshRate: 2}
	for _, s := range append(Scenarios(), coarse) {
		if s.Entities > 1 || s.Changes != nil {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			s := adverse(s)
			for seed := range uint64(3) {
				if got := mustRun(t, s, seed, Admit).Results[0]; got.OverLimit != 0 {
					t.Errorf("seed %d: %d of %d calls were over the limit", seed, got.OverLimit, got.Messages)
				}
			}
		})
	}
}

// Options that only look right are found out.
func TestCarelessOptionsExceed(t *testing.T) {
	for name, options := range map[string]drip.Options{
		"rate-burst":        {Size: 40, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond},
		"token-bucket":      {Size: 30, RefreshRate: 1, RefreshInterval: 2 * time.Second},
		"rate-fixed-window": {Size: 60, RefreshRate: 60, RefreshInterval: time.Minute, Concurrency: 10},
		"sliding-window":    {Size: 50, RefreshRate: 1, RefreshInterval: 103 * time.Millisecond},
		"first-call-window": {Size: 200, RefreshRate: 1, RefreshInterval: 1035 * time.Millisecond},
		"concurrency-burst": {Size: 1000, RefreshRate: 1000, Concurrency: 6},
		"two-windows-costs": {Size: 198, RefreshRate: 1, RefreshInterval: 50 * time.Millisecond, Windows: []drip.Window{{Size: 1000, RefreshInterval: time.Minute}}},
	} {
		t.Run(name, func(t *testing.T) {
			s, ok := Named(name)
			if !ok {
				t.Fatal("there is no such scenario")
			}
			s = adverse(s)
			s.Options = options
			over := 0
			for seed := range uint64(10) {
				over += mustRun(t, s, seed, Admit).Results[0].OverLimit
			}
			if over == 0 {
				t.Error("no call was over the limit")
			}
		})
	}
}

// adverse is a scenario's limit under a load of bursts and pauses.
func adverse(s Scenario) Scenario {
	o := limitOf(&s.Options, &drip.Limit{})
	w := o.windows[len(o.windows)-1]
	perBurst := max(100, int(w.size))
	refill := time.Duration(perBurst) * milliseconds(w.interval) / time.Duration(w.rate)
	if w.size >= 1000 { // not the limit
		refill, perBurst = 10*time.Second, 20
	}
	s.Outage = Outage{}
	s.Arrivals = func(r *rand.Rand) (times []time.Duration) {
		for at := time.Duration(0); len(times) < 600; {
			at += time.Duration(r.Int64N(int64(2 * refill)))
			if r.IntN(2) == 0 { // to the edge of an interval
				at = at.Round(milliseconds(w.interval)) - time.Duration(r.Int64N(int64(100*time.Millisecond)))
			}
			for range r.IntN(perBurst) {
				times = append(times, max(0, at))
			}
		}
		return times
	}
	return s
}

func TestDeterministic(t *testing.T) {
	s := Scenario{
		Options:    drip.Options{Size: 10, RefreshRate: 3, Concurrency: 4},
		Providers:  func() []Provider { return []Provider{LeakyBucket(20, 3), Concurrency(5)} },
		Entities:   3,
		Arrivals:   Mixed(Burst(20, 0), Poisson(2, 0, time.Minute), Steady(0.5, 0, time.Minute), Day(0.001)),
		Operation:  LogNormal(300*time.Millisecond, 1),
		Costs:      UniformCost(1, 3, 1),
		Travel:     50 * time.Millisecond,
		Late:       Uniform(0, time.Second),
		Processes:  3,
		Outage:     Outage{10 * time.Second, 20 * time.Second},
		Crashes:    0.01,
		Duplicates: 0.05,
		Lost:       0.02,
	}
	results := func(seed uint64) []Result { return mustRun(t, s, seed, Admit).Results }
	first, again, other := results(7), results(7), results(8)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("the same seed gave\n%+v\nand then\n%+v", first, again)
	}
	if reflect.DeepEqual(first, other) {
		t.Error("another seed gave the same")
	}
}

// A share of failures leaves all else as it was.
func TestMessagesAreTheSameWithFailures(t *testing.T) {
	s, _ := Named("crashes-1%")
	ok(t, s.setDefaults())
	with := s.messages(3)
	s.Crashes, s.Lost, s.Duplicates = 0, 0, 0
	without := s.messages(3)
	crashes := 0
	for i := range with {
		if with[i].crashes {
			crashes++
		}
		with[i].crashes = false
	}
	if !reflect.DeepEqual(with, without) || crashes == 0 {
		t.Errorf("the messages differ, or none of the %d crashes", crashes)
	}
}

func TestPolicies(t *testing.T) {
	s := Scenario{
		Name:      "policies",
		About:     "1 a second, 2 at once; 12 messages",
		Options:   drip.Options{Size: 2, RefreshRate: 1},
		Arrivals:  Burst(12, 500*time.Millisecond),
		Operation: Fixed(100 * time.Millisecond),
	}
	report := mustRun(t, s, 1)
	for i, want := range []Result{
		// Two run at once, and the others a second each.
		{Policy: "admit", Redeliveries: Redeliveries{10. / 12, 1, 1}, Makespan: 9600 * time.Millisecond},
		{Policy: "classic", Redeliveries: Redeliveries{10. / 12, 1, 1}, Makespan: 9600 * time.Millisecond},
		// All come back each second, by their own second.
		{Policy: "retry-after", Redeliveries: Redeliveries{55. / 12, 10, 10}, Makespan: 10100 * time.Millisecond},
		{Policy: "optimum", Makespan: 9600 * time.Millisecond},
	} {
		got := report.Results[i]
		if got.Policy != want.Policy || got.Makespan != want.Makespan || got.Redeliveries != want.Redeliveries || got.Done != 12 {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

// scripted is a limiter that answers with one delay after the other, and then lets all messages run.
type scripted struct {
	t      *testing.T
	clock  func() time.Time
	delays []time.Duration
	bound  drip.Bound
	asked  []time.Duration // when, since Begin
}

func (l *scripted) Admit(_ string, _ drip.Request) (drip.Admission, error) {
	l.asked = append(l.asked, l.clock().Sub(Begin))
	if len(l.delays) == 0 {
		return drip.Admission{}, nil
	}
	d := l.delays[0]
	l.delays = l.delays[1:]
	return drip.Admission{Delay: d, Bound: l.bound}, nil
}

func (*scripted) Settle(string, drip.Admission, int, drip.Costs) error { return nil }

func play(t *testing.T, s Scenario, tickets bool, bound drip.Bound, delays ...time.Duration) (Result, []time.Duration) {
	t.Helper()
	l := &scripted{t: t, delays: delays, bound: bound}
	report := mustRun(t, s, 1, Policy{Name: "scripted", Tickets: tickets, New: func(o drip.Options) (Limiter, error) {
		l.clock = o.Clock
		return l, nil
	}})
	return report.Results[0], l.asked
}

func TestConsumer(t *testing.T) {
	const s = time.Second
	one := Scenario{Arrivals: Burst(1, s), Operation: Fixed(100 * time.Millisecond)}
	two := one
	two.Arrivals = Mixed(Burst(1, s), Burst(1, 2*s))
	for name, c := range map[string]struct {
		scenario func(s *Scenario)
		of       Scenario
		blind    bool       // without tickets
		bound    drip.Bound // defaults to BoundTokens
		delays   []time.Duration
		asked    []time.Duration
		trips    float64
		held     float64
		done     int
	}{
		"a newcomer makes a trip, what is back is held": {
			of: one, delays: []time.Duration{s / 2, s, s / 4},
			asked: []time.Duration{s, 3 * s / 2, 5 * s / 2, 11 * s / 4}, trips: 1, held: 2, done: 1,
		},
		"not for longer than that": {
			of: one, scenario: func(s *Scenario) { s.Hold = time.Second }, delays: []time.Duration{s / 2, s + 1e6, s},
			asked: []time.Duration{s, 3 * s / 2, 5*s/2 + 1e6, 7*s/2 + 1e6}, trips: 2, held: 1, done: 1,
		},
		"nor with all delays together": {
			of: one, scenario: func(s *Scenario) { s.Hold = 3 * time.Second / 2 }, delays: []time.Duration{s / 2, s, s},
			asked: []time.Duration{s, 3 * s / 2, 5 * s / 2, 7 * s / 2}, trips: 2, held: 1, done: 1,
		},
		"nor without tickets": {
			of: one, blind: true, delays: []time.Duration{s / 2, s / 2},
			asked: []time.Duration{s, 3 * s / 2, 2 * s}, trips: 2, done: 1,
		},
		"nor when the scenario says so": {
			of: one, scenario: func(s *Scenario) { s.Hold = -1 }, delays: []time.Duration{s / 2, s / 2},
			asked: []time.Duration{s, 3 * s / 2, 2 * s}, trips: 2, done: 1,
		},
		"what is held is asked about when an operation ends": {
			of: two, delays: []time.Duration{s / 2, 700 * time.Millisecond}, // held till 2.2 s; the other one runs from 2 to 2.1 s
			asked: []time.Duration{s, 3 * s / 2, 2 * s, 2100 * time.Millisecond}, trips: 0.5, held: 0.5, done: 2,
		},
		"but not if it waits for something else": {
			of: two, bound: drip.BoundWindow, delays: []time.Duration{s / 2, 700 * time.Millisecond},
			asked: []time.Duration{s, 3 * s / 2, 2 * s, 2200 * time.Millisecond}, trips: 0.5, held: 0.5, done: 2,
		},
		"but only of those in the same process": {
			of: two, scenario: func(s *Scenario) { s.Processes = 2 }, delays: []time.Duration{s / 2, 700 * time.Millisecond},
			// The deliveries are of the processes 0, 1 and 0, so this is the one that holds it not.
			asked: []time.Duration{s, 3 * s / 2, 2 * s, 2200 * time.Millisecond}, trips: 0.5, held: 0.5, done: 2,
		},
		"nor when it has no seat": {
			of: two, scenario: func(s *Scenario) { s.Seats = 1 }, delays: []time.Duration{s, s / 2, s, s / 4},
			// They are back at 2 and 2.5 s. The first is held until the other, which has no seat, is back again and done.
			asked: []time.Duration{s, 2 * s, 2 * s, 5 * s / 2, 11 * s / 4, 2850 * time.Millisecond}, trips: 1.5, held: 0.5, done: 2,
		},
		"late": {
			of: one, scenario: func(s *Scenario) { s.Late = Fixed(3 * time.Second) }, delays: []time.Duration{2 * s, 2 * s},
			asked: []time.Duration{s, 6 * s, 8 * s}, trips: 1, held: 1, done: 1,
		},
		"an outage": {
			of: two, scenario: func(s *Scenario) { s.Outage = Outage{2 * time.Second, time.Minute} },
			delays: []time.Duration{s / 2, s}, // held when the consumer goes
			asked:  []time.Duration{s, 3 * s / 2, 60 * s, 60 * s}, trips: 0.5, done: 2,
		},
		"a crash": {
			of: one, scenario: func(s *Scenario) { s.Crashes = 1 }, delays: []time.Duration{s / 2},
			asked: []time.Duration{s, 3 * s / 2, 11600 * time.Millisecond}, trips: 1, done: 1,
		},
		"lost": {
			of: one, scenario: func(s *Scenario) { s.Lost = 1 }, delays: []time.Duration{s / 2},
			asked: []time.Duration{s}, trips: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario := c.of
			if c.scenario != nil {
				c.scenario(&scenario)
			}
			got, asked := play(t, scenario, !c.blind, cmp.Or(c.bound, drip.BoundTokens), c.delays...)
			if !slices.Equal(asked, c.asked) {
				t.Errorf("asked at %v, want %v", asked, c.asked)
			}
			if got.Redeliveries.Mean != c.trips || got.HeldAsks != c.held || got.Done != c.done {
				t.Errorf("%v redeliveries, %v held asks, %d done; want %v, %v, %d",
					got.Redeliveries.Mean, got.HeldAsks, got.Done, c.trips, c.held, c.done)
			}
		})
	}
}

func TestDuplicates(t *testing.T) {
	s := Scenario{Arrivals: Burst(50, time.Second), Operation: Fixed(100 * time.Millisecond), Duplicates: 1, Redelivery: time.Minute}
	got, asked := play(t, s, true, drip.BoundTokens, slices.Repeat([]time.Duration{time.Second}, 50)...)
	// All are postponed and then run. Each loses one of its two acknowledgements, comes again and runs.
	if got.Done != 50 || len(asked) != 150 || got.Redeliveries.Mean != 1 {
		t.Errorf("%d done, asked %d times, %v redeliveries; want 50, 150, 1", got.Done, len(asked), got.Redeliveries.Mean)
	}
	if again := slices.Index(asked, 61*time.Second); again != 100 {
		t.Errorf("the first that comes again is number %d", again)
	}
}

func TestOvertaken(t *testing.T) {
	s := Scenario{Arrivals: Mixed(Burst(2, 0), Burst(1, 999*time.Millisecond), Burst(1, time.Second)), Operation: Fixed(0)}
	// The first comes back after both others, the second only after the message of 999 ms.
	got, _ := play(t, s, false, drip.BoundTokens, 3*time.Second, 999*time.Millisecond)
	if got.Overtaken != 1 {
		t.Errorf("%d were overtaken, want 1", got.Overtaken)
	}
}

func TestRunRefuses(t *testing.T) {
	ok := Scenario{Arrivals: Burst(1, 0), Operation: Fixed(0)}
	for want, change := range map[string]func(s *Scenario){
		"simulate: Scenario.Arrivals and Operation are required":                 func(s *Scenario) { s.Arrivals = nil },
		"simulate: Scenario.Crashes is 2; it must be from 0 to 1":                func(s *Scenario) { s.Crashes = 2 },
		"simulate: Scenario.Units have no costs of \"tokens\", which a window":   func(s *Scenario) { s.Options.Unit = "tokens" },
		"simulate: Scenario.Options have a size, rate, interval or":              func(s *Scenario) { s.Options.Size = -1 },
		"simulate: Scenario.Changes have a size, rate, interval or":              func(s *Scenario) { s.Changes = []Change{{Limit: &drip.Limit{RefreshRate: -1}}} },
		"simulate: , admit: drip: Options.MaxLease is 1ns; it must be":           func(s *Scenario) { s.Options.MaxLease = 1 },
		"simulate: Scenario.Changes[1].At is before the At of the change before": func(s *Scenario) { s.Changes = []Change{{At: 2}, {At: 1}} },
		"simulate: Scenario.Units have no costs of \"points\", which a window":   func(s *Scenario) { s.Changes = []Change{{Limit: &drip.Limit{Size: 9, Unit: "points"}}} },
		"simulate: Scenario.Changes[0].Limit.Windows are 1; they must be as":     func(s *Scenario) { s.Changes = []Change{{Limit: &drip.Limit{Windows: make([]drip.Window, 1)}}} },
	} {
		s := ok
		change(&s)
		if _, err := Run(s, 1); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
}

func TestTable(t *testing.T) {
	report := Report{
		Scenario: Scenario{Name: "name", About: "what it is about, with a title that is longer than a line of a terminal is wide"},
		Binding:  "5 at once",
		Results: []Result{
			{Policy: "admit", Messages: 100, Done: 99, GaveUp: 2_000_000, Redeliveries: Redeliveries{1.5, 2, 33}, HeldAsks: 0.25, Utilisation: 0.9996,
				Makespan: 2 * time.Hour, Wait: Wait{5 * time.Millisecond, 99*time.Second + 900*time.Millisecond, 90 * time.Minute}, Overtaken: 7, OverLimit: 1},
			{Policy: "optimum", Messages: 100, Done: 100, Utilisation: 0.5, Makespan: 1500 * time.Millisecond},
		},
	}
	var b strings.Builder
	ok(t, report.WriteTable(&b))
	const want = `name: what it is about, with a title that is longer than a line of a terminal is
wide
                             admit  optimum
  messages handled      99 of 100*      100
  postponements, mean         1.50     0.00
    99 % have at most            2        0
    most                        33        0
  asked in hand, mean         0.25     0.00
  used of 5 at once        100.0 %   50.0 %
  makespan                   2.0 h    1.5 s
  wait, mean                  5 ms        0
    99 % wait at most       99.9 s        0
    longest               90.0 min        0
  overtaken                      7        0
  calls over the limit           1        0
* admit was given up after 2000000 events: the messages that are left were
postponed again and again.
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func mustRun(t *testing.T, s Scenario, seed uint64, policies ...Policy) Report {
	t.Helper()
	report, err := Run(s, seed, policies...)
	ok(t, err)
	return report
}

var ok = oktest.OK // ends the test if there is an error

// beside plays a scenario with Admit and with the optimum.
func beside(t *testing.T, s Scenario, seed uint64) (got, best Result) {
	t.Helper()
	report := mustRun(t, s, seed, Admit)
	return report.Results[0], report.Results[1]
}

// anyNumber is a bound that is none.
var anyNumber = math.Inf(1)

// nearBest plays a scenario. No call is over the limit, and all messages run: within so many times the optimum's makespan, with
// so many postponements on average.
func nearBest(t *testing.T, s Scenario, times, postponements float64) (got, best Result) {
	t.Helper()
	got, best = beside(t, s, 1)
	took := ratio(got.Makespan, best.Makespan)
	tell(t, got.OverLimit > 0 || got.Done != got.Messages || took > times || got.Redeliveries.Mean > postponements,
		"%s: %d over the limit, %d of %d messages ran in %v, %.2f times the best, with %.2f postponements; want at most %.2f times and %.2f",
		s.Name, got.OverLimit, got.Done, got.Messages, got.Makespan, took, got.Redeliveries.Mean, times, postponements)
	return got, best
}

// tell logs a line. It is an error if what it tells is wrong.
func tell(t testing.TB, wrong bool, format string, args ...any) {
	t.Helper()
	if wrong {
		t.Errorf(format, args...)
	} else {
		t.Logf(format, args...)
	}
}

// Tickets that wait for tokens alone, and are lost, leave the capacity of a long window to newcomers.
func TestLostTicketsInALongWindow(t *testing.T) {
	for _, c := range []struct {
		size, rate, tokens, messages int
		interval, operation          time.Duration
		times                        float64 // of the best time
	}{
		{200, 10, 2, 100, time.Minute, 200 * time.Millisecond, 1.5},
		{40, 2, 2, 20, time.Minute, 200 * time.Millisecond, 2},
		{2000, 100, 10, 1000, time.Minute, time.Second, 1.2},
		{200, 200, 2, 100, time.Minute, 200 * time.Millisecond, 1.5},
		{5000, 5000, 5, 1000, 24 * time.Hour, 500 * time.Millisecond, 1.4},
		{1000, 10, 4, 500, 10 * time.Second, 500 * time.Millisecond, 1.5},
	} {
		for _, lost := range []float64{0.5, 1} {
			nearBest(t, Scenario{
				Name:     fmt.Sprintf("%d + %d in %v, %d tokens, %v of the tickets lost", c.size, c.rate, c.interval, c.tokens, lost),
				Options:  drip.Options{Size: c.size, RefreshRate: c.rate, RefreshInterval: c.interval, Concurrency: c.tokens},
				Arrivals: Burst(c.messages, begun), Operation: Exponential(c.operation), Late: Uniform(0, 200*time.Millisecond),
				Travel: travel, Processes: 2, Hold: -1, LostTickets: lost,
			}, c.times, 7)
		}
	}
}

// The same of a limit that entities share.
func TestSharedLostTicketsInALongWindow(t *testing.T) {
	for _, c := range []struct {
		size, rate, tokens, messages, entities int
		interval, operation                    time.Duration
		lost                                   float64
		most                                   time.Duration
	}{
		{200, 100, 5, 100, 1, time.Hour, 300 * time.Millisecond, 1, time.Minute},
		{20, 4, 2, 16, 1, 24 * time.Hour, 300 * time.Millisecond, 0.5, time.Minute},
		{50, 50, 5, 40, 20, 24 * time.Hour, time.Second, 0.5, 2 * time.Minute},
		{200, 200, 5, 160, 20, 24 * time.Hour, time.Second, 1, 2 * time.Minute},
		{1000, 500, 1, 500, 3, 24 * time.Hour, 100 * time.Millisecond, 1, 5 * time.Minute},
	} {
		s := SharedScenario{
			Options: drip.Options{Size: plenty, RefreshRate: plenty, Shared: map[string]drip.Limit{
				"app": {Size: c.size, RefreshRate: c.rate, RefreshInterval: c.interval, Concurrency: c.tokens},
			}},
			Entities: make([]SharedEntity, c.entities), Operation: Exponential(c.operation), Hold: -1, LostTickets: c.lost, Unmeasured: true,
			Messages: sent(inTurn, times(c.entities, (c.messages+c.entities-1)/c.entities)...),
		}
		got := mustRunShared(t, s, 1)
		tell(t, got.OverLimit > 0 || got.Done < got.Messages || got.Makespan > c.most || got.Redeliveries.Mean > 10, "%d + %d in %v, %d tokens, %v of the tickets lost: %d over the limit, %d of %d messages ran in %v, with %.2f postponements; want at most %v",
			c.size, c.rate, c.interval, c.tokens, c.lost, got.OverLimit, got.Done, got.Messages, got.Makespan, got.Redeliveries.Mean, c.most)
	}
}

// A lost ticket costs its own message a slot, not the entity.
func TestRandomLoadsWithLostTickets(t *testing.T) {
	for _, c := range []struct{ lost, p95 float64 }{{0, 1.1}, {0.01, 1.1}, {0.1, 1.12}, {0.5, 1.2}, {1, 1.2}} {
		var makespans []float64
		for seed := range uint64(300) {
			s := RandomLoad(seed)
			s.LostTickets = c.lost
			admit, optimum := beside(t, s, seed)
			if admit.Done < admit.Messages {
				t.Errorf("seed %d, %v of the tickets lost: %d of %d messages ran", seed, c.lost, admit.Done, admit.Messages)
			}
			makespans = append(makespans, float64(admit.Makespan)/float64(optimum.Makespan))
		}
		slices.Sort(makespans)
		n := len(makespans)
		tell(t, makespans[n*95/100] > c.p95, "%v of the tickets lost: makespan %.2f/%.2f/%.2f of the optimum (median, p95, most); want a p95 of %.2f at most",
			c.lost, makespans[n/2], makespans[n*95/100], makespans[n-1], c.p95)
	}
}

// Which tickets are lost is chance. Where an interval brings few operations, one without a lost ticket says nothing about the next.
func TestLostTicketsOfFew(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		for _, lost := range []float64{0.3, 0.5, 0.7} {
			nearBest(t, Scenario{
				Name: fmt.Sprintf("%d a second, %v lost", size, lost), Options: drip.Options{Size: size, RefreshRate: size, RefreshInterval: time.Second, Concurrency: 1000},
				Arrivals: Burst(300*size, 300*time.Millisecond), Operation: Fixed(50 * time.Millisecond), Travel: 20 * time.Millisecond,
				Processes: 2, Hold: -1, LostTickets: lost,
			}, 1.1, anyNumber)
		}
	}
}
