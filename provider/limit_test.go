package provider

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
)

const travel = 50 * time.Millisecond

func TestLimit(t *testing.T) {
	for _, c := range []struct {
		rules []Rule
		want  drip.Limit
	}{
		{
			[]Rule{LeakyBucket(40, 2)}, // 40 - 1 - 2·0.05
			drip.Limit{Size: 38, RefreshRate: 1, RefreshInterval: 500 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{TokenBucket(20, 0.0167)},
			drip.Limit{Size: 18, RefreshRate: 1, RefreshInterval: 59881 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{LeakyBucket(100, 3)}, // 1 in 334 ms is 99.8 %, 2 in 667 ms are 99.95 %
			drip.Limit{Size: 97, RefreshRate: 2, RefreshInterval: 667 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{LeakyBucket(2, 1)}, // nothing is left of 2 - 1 - 0.05
			drip.Limit{Size: 1, RefreshRate: 1, RefreshInterval: 1050 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{SlidingWindow(100, 10*time.Second)}, // at most 9 beginnings in 10,050 ms
			drip.Limit{Size: 10, RefreshRate: 10, RefreshInterval: 1117 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{SlidingWindow(5, time.Second)},
			drip.Limit{Size: 1, RefreshRate: 1, RefreshInterval: 263 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{SlidingWindow(60, time.Minute).Burst(30)},
			drip.Limit{Size: 30, RefreshRate: 30, RefreshInterval: 60051 * time.Millisecond, Concurrency: unlimited},
		},
		{
			[]Rule{FixedWindow(60, time.Minute)},
			drip.Limit{Size: 57, RefreshRate: 57, RefreshInterval: time.Minute, Concurrency: 3},
		},
		{ // 9 calls of 200 ms keep up 41 a second
			[]Rule{FixedWindow(50, time.Second)},
			drip.Limit{Size: 41, RefreshRate: 41, RefreshInterval: time.Second, Concurrency: 9},
		},
		{
			[]Rule{FixedWindow(50, time.Second), FixedWindow(60, time.Minute)},
			drip.Limit{
				Size: 47, RefreshRate: 47, RefreshInterval: time.Second, Concurrency: 3,
				Windows: []drip.Window{{Size: 57, RefreshRate: 57, RefreshInterval: time.Minute}},
			},
		},
		{
			[]Rule{FixedWindow(60, time.Minute), FixedWindow(5000, 24*time.Hour), Concurrency(5)},
			drip.Limit{
				Size: 55, RefreshRate: 55, RefreshInterval: time.Minute, Concurrency: 5,
				Windows: []drip.Window{{Size: 4995, RefreshRate: 4995, RefreshInterval: 24 * time.Hour}},
			},
		},
		{
			[]Rule{FixedWindow(60, time.Minute), Calendar(5000, drip.Daily(nil))},
			drip.Limit{
				Size: 57, RefreshRate: 57, RefreshInterval: time.Minute, Concurrency: 3,
				Windows: []drip.Window{{Size: 4997, RefreshRate: 4997, Align: drip.Daily(nil)}},
			},
		},
		{
			[]Rule{Calendar(100, drip.Monthly(nil))},
			drip.Limit{Size: 95, RefreshRate: 95, Align: drip.Monthly(nil), Concurrency: 5},
		},
		{
			named(t, "Xero").Rules,
			drip.Limit{
				Size: 6, RefreshRate: 6, RefreshInterval: 6673 * time.Millisecond, Concurrency: 5,
				Windows: []drip.Window{{Size: 1250, RefreshRate: 1250, RefreshInterval: 8*time.Hour + 17*time.Millisecond}},
			},
		},
		{
			[]Rule{Concurrency(5), Concurrency(4)},
			drip.Limit{Size: unlimited, RefreshRate: unlimited, RefreshInterval: time.Second, Concurrency: 4},
		},
	} {
		got, err := Limit(travel, c.rules...)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%v: Limit = %v, %v, want %v", c.rules, got, err, c.want)
		}
	}
}

// By default as many calls may be in flight as keep up the rate of a FixedWindow if a call takes 200 ms.
func TestFixedWindowKeepsUp(t *testing.T) {
	for n := 2; n <= 100; n++ {
		for _, per := range []time.Duration{time.Second, 10 * time.Second} {
			l := limitOf(t, FixedWindow(n, per))
			if brings := l.Concurrency * int(per/(200*time.Millisecond)); brings < l.RefreshRate {
				t.Errorf("%d each %v: %d calls in flight make %d in the window, which has %d", n, per, l.Concurrency, brings, l.RefreshRate)
			}
		}
	}
	for n := 2; n <= 10; n++ { // however short the window, something is left of it
		if l := limitOf(t, FixedWindow(n, time.Millisecond)); l.Size < 1 {
			t.Errorf("%d each 1ms: %+v", n, l)
		}
	}
}

// limitOf is the limit that keeps the rules, with requests that travel.
func limitOf(t *testing.T, rules ...Rule) drip.Limit {
	t.Helper()
	l, err := Limit(travel, rules...)
	ok(t, err)
	return l
}

func TestLimitErrors(t *testing.T) {
	for _, c := range []struct {
		travel time.Duration
		rules  []Rule
		want   string
	}{
		{-1, nil, "travel is -1ns"},
		{2 * time.Hour, nil, "travel is 2h0m0s"},
		{0, nil, "there are no rules"},
		{0, []Rule{{}}, "provider: no limit: make it with"},
		{0, []Rule{SlidingWindow(1, time.Second)}, "provider: 1 in any 1s: the number is 1; it must be from 2"},
		{0, []Rule{LeakyBucket(1, 1)}, "a bucket of 1 that drains by 1 a second: the number is 1; it must be from 2"},
		{0, []Rule{TokenBucket(5, 0)}, "a rate must be above"},
		{0, []Rule{TokenBucket(5, -1)}, "a rate must be above"},
		{0, []Rule{TokenBucket(5, 1e10)}, "a rate must be above"},
		{0, []Rule{Calendar(5, drip.ByEntity())}, `its alignment is "entity"; it must be daily`},
		{0, []Rule{Calendar(5, drip.Alignment{})}, `provider: 5 of a calendar: its alignment is ""; it must be daily`},
		{0, []Rule{Calendar(1, drip.Daily(nil))}, "1 daily UTC: the number is 1; it must be from 2"},
		{0, []Rule{Calendar(5, drip.Daily(nil)).Of("tokens")}, "it counts calls only"},
		{0, []Rule{FixedWindow(5, 0)}, "a window must be whole milliseconds"},
		{0, []Rule{FixedWindow(5, time.Microsecond)}, "a window must be whole milliseconds"},
		{0, []Rule{FixedWindow(5, 500*24*time.Hour)}, "a window must be whole milliseconds"},
		{0, []Rule{FixedWindow(5, time.Minute), Concurrency(5)}, "nothing is left of it with 5 calls in flight"},
		{0, []Rule{SlidingWindow(10, time.Second).Burst(6)}, "a Burst is from 1 to 5, half of the window"},
		{0, []Rule{SlidingWindow(5, time.Second).Burst(5)}, "a Burst is from 1 to 2, half of the window"},
		{0, []Rule{SlidingWindow(10, time.Second).Burst(0)}, "a Burst is from 1 to 5, half of the window"},
		{0, []Rule{LeakyBucket(10, 1).Burst(2)}, "only a sliding window has a Burst"},
		{0, []Rule{Concurrency(0)}, "0 at a time: the number is 0; it must be from 1"},
	} {
		if _, err := Limit(c.travel, c.rules...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.rules, err, c.want)
		}
	}
}

// The oracles count arrivals, in milliseconds, and share nothing with the code of the rules: a log, not arithmetic.

// overWindow is the first arrival that is one too many in the window that ends with it, or in its window of the clock.
func overWindow(arrivals []int64, n int, per int64, ofTheClock bool) int {
	first := 0
	for i, at := range arrivals {
		for !ofTheClock && at-arrivals[first] >= per || ofTheClock && arrivals[first]/per < at/per {
			first++
		}
		if i-first+1 > n {
			return i
		}
	}
	return -1
}

func overBucket(arrivals []int64, capacity int, perSecond float64) int {
	level, last := 0.0, int64(0)
	for i, at := range arrivals {
		level = max(0, level-perSecond*float64(at-last)/1000) + 1
		last = at
		if level > float64(capacity)+1e-6 {
			return i
		}
	}
	return -1
}

func (r Rule) over(calls []call) int {
	arrivals := make([]int64, len(calls))
	for i, c := range calls {
		arrivals[i] = c.arrived
	}
	slices.Sort(arrivals)
	switch r.kind {
	case leakyBucket, tokenBucket:
		return overBucket(arrivals, r.n, r.perSecond)
	case fixedWindow, slidingWindow:
		return overWindow(arrivals, r.n, r.per.Milliseconds(), r.kind == fixedWindow)
	}
	var events []int64 // ends before beginnings
	for _, c := range calls {
		events = append(events, c.arrived*2+1, c.ended*2)
	}
	slices.Sort(events)
	underWay := 0
	for i, e := range events {
		underWay += int(e%2*2 - 1)
		if underWay > r.n {
			return i
		}
	}
	return -1
}

type call struct{ arrived, ended int64 }

type flight struct {
	call
	lease drip.Lease
}

// play sends all that the limit lets through, at the hardest times for it. Either all capacity gathered in idle time
// goes just before the beginning of an interval. The rest then goes as early as possible, and all calls arrive as close
// together as they may. Or all of it is left to chance.
func play(t *testing.T, l drip.Limit, span time.Duration, seed uint64) (calls []call) {
	t.Helper()
	const most = 1000
	rnd := rand.New(rand.NewPCG(seed, 7))
	classic, worst := seed%2 == 1, seed%4 < 2
	way, interval := travel.Milliseconds(), l.RefreshInterval.Milliseconds()
	begin := int64(1_767_225_600_000) + rnd.Int64N(1e8)
	now := begin
	beginning := func() int64 { return now - now%interval + interval }

	o := Options(l)
	o.Start = time.Unix(0, 0)
	o.Clock = func() time.Time { return time.UnixMilli(now) }
	o.Lease, o.MaxLease = 1e5*time.Hour, 1e5*time.Hour
	bucket := buckettest.New(t, o)
	admit := func() (runs bool, lease drip.Lease) {
		if classic {
			delay, err := bucket.GetDelay(t.Context(), "shop")
			ok(t, err)
			return delay == 0, lease
		}
		a, err := bucket.Admit(t.Context(), "shop", drip.Request{})
		if err == nil && a.Delay > 0 { // it does not come back
			err = bucket.Cancel(t.Context(), "shop", a)
		}
		ok(t, err)
		return a.Delay == 0, a.Lease
	}
	var flying []flight
	land := func() {
		flying = slices.DeleteFunc(flying, func(f flight) bool {
			if f.ended > now {
				return false
			}
			var err error
			if classic {
				err = bucket.ReturnToken(t.Context(), "shop")
			} else {
				err = bucket.Settle(t.Context(), "shop", f.lease, 1)
			}
			ok(t, err)
			return true
		})
	}
	send := func(arrived, ended int64) bool {
		runs, lease := admit()
		if runs {
			c := call{arrived, ended}
			calls, flying = append(calls, c), append(flying, flight{c, lease})
		}
		return runs
	}
	for len(calls) < most && now < begin+20*span.Milliseconds() {
		if worst {
			now = beginning() - 1
			first, until := now+way, now+2*span.Milliseconds()
			for now < until && len(calls) < most && rnd.IntN(2000) > 0 {
				land()
				for arrived := max(first, now); send(arrived, arrived+1); {
				}
				next := beginning()
				for _, f := range flying {
					next = min(next, f.ended)
				}
				now = next
			}
			now += span.Milliseconds()
			continue
		}
		land()
		together := now + rnd.Int64N(way+1)
		for range 1 + rnd.IntN(min(most, 2*l.Size)) {
			arrived := []int64{now, now + way, now + rnd.Int64N(way+1), together}[rnd.IntN(4)]
			if !send(arrived, arrived+1+[]int64{0, rnd.Int64N(20), rnd.Int64N(interval)}[rnd.IntN(3)]) {
				break
			}
		}
		now = []int64{max(now+1, beginning()-way), max(now+1, beginning()-1), beginning(), now + 1 + rnd.Int64N(2*interval), now + 1}[rnd.IntN(5)]
		if rnd.IntN(100) == 0 {
			now += rnd.Int64N(span.Milliseconds()) // idle: it is full again
		}
	}
	return calls
}

var played = [][]Rule{
	{LeakyBucket(40, 2)},
	{LeakyBucket(100, 3)},
	{LeakyBucket(2, 1)},
	{LeakyBucket(3, 30)},
	{LeakyBucket(10, 250)},
	{TokenBucket(15, 0.0083)},
	{SlidingWindow(2, time.Second)},
	{SlidingWindow(5, time.Second)},
	{SlidingWindow(29, time.Second)},
	{SlidingWindow(100, 10*time.Second)},
	{SlidingWindow(60, time.Minute).Burst(30)},
	{FixedWindow(60, time.Minute)},
	{FixedWindow(3, time.Second)},
	{FixedWindow(50, time.Second)},
	{FixedWindow(9, 100*time.Millisecond)},
	{Concurrency(3)},
	{SlidingWindow(5, time.Second), LeakyBucket(20, 1), Concurrency(2)},
	{FixedWindow(20, time.Second), SlidingWindow(300, time.Minute), Concurrency(5)},
}

// The limits never let through more than the rules allow, when requests take up to 50 ms to arrive.
func TestRulesAreKept(t *testing.T) {
	test := func(name string, rules []Rule, seeds uint64) {
		t.Run(name, func(t *testing.T) {
			l := limitOf(t, rules...)
			var windows time.Duration
			for _, r := range rules {
				windows = max(windows, r.per, time.Second)
				if r.perSecond > 0 {
					windows = max(windows, time.Duration(float64(r.n)/r.perSecond)*time.Second)
				}
			}
			made := 0
			for seed := range seeds {
				calls := play(t, l, windows, seed)
				for _, r := range rules {
					if i := r.over(calls); i >= 0 {
						t.Fatalf("seed %d: %v: call %d of %d is over the limit; %v", seed, r, i, len(calls), l)
					}
				}
				made += len(calls)
			}
			if made < 15*int(seeds) {
				t.Errorf("only %d calls were made", made)
			}
		})
	}
	for _, rules := range played {
		test(fmt.Sprint(rules), rules, 20)
	}
	for _, p := range Presets() {
		test(p.Name, p.Rules, 4)
	}
}

// The demand finds wrong limits: with a little more than the rules give it does not pass.
func TestMoreIsNotKept(t *testing.T) {
	for _, c := range []struct {
		rule Rule
		more func(l *drip.Limit)
	}{
		{LeakyBucket(40, 2), func(l *drip.Limit) { l.Size += 2 }},
		{LeakyBucket(40, 2), func(l *drip.Limit) { l.RefreshInterval -= 10 * time.Millisecond }},
		{LeakyBucket(2, 1), func(l *drip.Limit) { l.RefreshInterval = time.Second }},
		{SlidingWindow(100, 10*time.Second), func(l *drip.Limit) { l.RefreshInterval = 1116 * time.Millisecond }},
		{SlidingWindow(100, 10*time.Second), func(l *drip.Limit) { l.Size++ }},
		{SlidingWindow(5, time.Second), func(l *drip.Limit) { l.RefreshInterval = 250 * time.Millisecond }},
		{FixedWindow(20, time.Second), func(l *drip.Limit) { l.Concurrency += 2 }},
		{Concurrency(3), func(l *drip.Limit) { l.Concurrency++ }},
	} {
		l := limitOf(t, c.rule)
		was := l
		c.more(&l)
		found := false
		for seed := range uint64(200) {
			if c.rule.over(play(t, l, 30*time.Second, seed)) >= 0 {
				found = true
				break
			}
		}
		if !found {
			t.Errorf("%v: nothing is over the limit with %v either, instead of %v", c.rule, l, was)
		}
	}
}

func named(t *testing.T, name string) Preset {
	t.Helper()
	p, err := Named(name)
	ok(t, err)
	return p
}

func TestNamed(t *testing.T) {
	for _, p := range Presets() {
		for _, name := range []string{p.Name, strings.ToUpper(p.Name), strings.NewReplacer(" ", "-", ",", "").Replace(p.Name)} {
			if got := named(t, name); got.Name != p.Name {
				t.Errorf("Named(%q) is %q", name, got.Name)
			}
		}
	}
	mine := named(t, "Xero")
	mine.Rules[0], mine.Shared["app"][0] = Rule{}, Rule{}
	if other := named(t, "Xero"); other.Rules[0] == (Rule{}) || other.Shared["app"][0] == (Rule{}) {
		t.Error("a caller has changed a preset for others")
	}
	for name, want := range map[string]string{
		"":           `there is no preset ""; Presets and "drip help presets" list all`,
		"nobody":     `there is no preset "nobody"; Presets and "drip help presets" list all`,
		"slack-five": `there is no preset "slack-five"; there are "Slack, tier 2", "Slack, tier 3", "Slack, tier 4"`,
	} {
		if _, err := Named(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Named(%q): %v", name, err)
		}
	}
}

// The rules of all presets are read as they were written.
func TestRuleJSON(t *testing.T) {
	for _, p := range Presets() {
		text, err := json.Marshal(p.Rules)
		ok(t, err)
		var read []Rule
		if err := json.Unmarshal(text, &read); err != nil || !slices.Equal(read, p.Rules) {
			t.Errorf("%s: %v, %v is read as %v", p.Name, err, p.Rules, read)
		}
	}
	month := `{"kind":"calendar","size":9,"align":"monthly Europe/Berlin"}`
	var read Rule
	if err := json.Unmarshal([]byte(month), &read); err != nil || read.String() != "9 monthly Europe/Berlin" {
		t.Errorf("%s is read as %v, %v", month, read, err)
	}
	if text, err := json.Marshal(read); err != nil || string(text) != month {
		t.Errorf("%v is written as %s, %v, want %s", read, text, err, month)
	}
	for text, want := range map[string]string{
		`{"kind": "calendar", "size": 9}`:                                           `its alignment is ""`,
		`{"kind": "calendar", "size": 9, "align": "yearly"}`:                        `"yearly" is not daily`,
		`{"kind": "odd", "size": 1}`:                                                `there is no kind "odd"`,
		`{"kind": "sliding-window", "size": 1, "interval": "1s"}`:                   "the number is 1; it must be from 2",
		`{"kind": "sliding-window", "size": 9}`:                                     "a window must be",
		`{"kind": "sliding-window", "size": 9, "interval": "5"}`:                    `"5" is not a duration`,
		`{"kind": "leaky-bucket", "size": 9}`:                                       "a rate must be",
		`{"kind": "concurrency", "size": 9, "burst": 1}`:                            "only a sliding window has a Burst",
		`{"kind": "leaky-bucket", "size": 9, "per_second": 1, "interval": "1m"}`:    "a leaky-bucket has no interval",
		`{"kind": "sliding-window", "size": 9, "per_second": 1, "interval": "1m"}`:  "a sliding-window has no per_second",
		`{"kind": "fixed-window", "size": 40, "interval": "24h", "align": "daily"}`: "a fixed-window has no align",
		`{"kind": "calendar", "size": 9, "align": "daily", "interval": "24h"}`:      "a calendar has no interval",
		`{"kind": "calendar", "size": 9, "align": "2026-01-31T12:00:00Z 7"}`:        `its alignment is "2026-01-31T12:00:00Z 7"`,
	} {
		r := Concurrency(3)
		if err := json.Unmarshal([]byte(text), &r); err == nil || !strings.Contains(err.Error(), want) || r != Concurrency(3) {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
}

func TestPresets(t *testing.T) {
	names := map[string]bool{}
	for _, p := range Presets() {
		for _, travel := range []time.Duration{0, travel, time.Second, 10 * time.Second} {
			l, err := p.Limit(travel)
			if err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
			if _, err := drip.New(Options(l)); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
			o, err := p.Options(travel)
			if err != nil || len(o.Shared) != len(p.Shared) {
				t.Errorf("%s: %+v, %v", p.Name, o.Shared, err)
			}
			if _, err := drip.New(o); err != nil {
				t.Errorf("%s: %v", p.Name, err)
			}
		}
		if names[p.Name] || p.Name == "" || p.Entity == "" || p.Wait < time.Second || !strings.HasPrefix(p.Source, "https://") {
			t.Errorf("something is missing of %+v, or another one has its name", p)
		}
		names[p.Name] = true
		if _, err := time.Parse("2006-01", p.Checked); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if !slices.IsSortedFunc(p.Rules, func(a, b Rule) int {
			if a.kind == concurrency || b.kind == concurrency {
				return 0
			}
			return int(a.per - b.per)
		}) {
			t.Errorf("%s: the shortest window is not the first", p.Name)
		}
	}
}

// Any rule that is possible gives a limit that drip takes, and which keeps the inequality its proof rests on.
func FuzzLimit(f *testing.F) {
	for _, rules := range played {
		r := rules[0]
		f.Add(uint8(r.kind), r.n, r.perSecond, int64(r.per), r.burst, int64(travel))
	}
	f.Add(uint8(leakyBucket), mostUnits, float64(mostUnits), int64(0), 0, int64(time.Hour))
	f.Add(uint8(leakyBucket), mostUnits, 1001.5, int64(0), 0, int64(0))
	f.Add(uint8(slidingWindow), mostUnits, 0.0, int64(longest), 1, int64(time.Hour))
	f.Fuzz(func(t *testing.T, k uint8, n int, perSecond float64, per int64, burst int, trip int64) {
		r := Rule{kind: kind(k), n: n, perSecond: perSecond, per: time.Duration(per), burst: burst}
		l, err := Limit(time.Duration(trip), r)
		if err != nil {
			return
		}
		if _, err := drip.New(Options(l)); err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		size, rate, interval := float64(l.Size), float64(l.RefreshRate), l.RefreshInterval.Seconds()
		way := time.Duration(trip).Seconds()
		switch r.kind {
		case leakyBucket, tokenBucket:
			for _, k := range []float64{0, 1, 2, 3, 10, 1e6} {
				span := max(0, (k-1)*interval-way)
				if got, most := size+k*rate, float64(n)+perSecond*span; got > most*(1+1e-9) {
					t.Errorf("%v: %v: %g in %g s, allowed are %g", r, l, got, span, most)
				}
			}
			if l.Size < l.RefreshRate {
				t.Errorf("%v: %v", r, l)
			}
		case slidingWindow:
			beginnings := (per+trip)/int64(l.RefreshInterval) + 1
			if got := int64(l.Size) + beginnings*int64(l.RefreshRate); got > int64(n) {
				t.Errorf("%v: %v: %d", r, l, got)
			}
		case fixedWindow:
			if l.Size+l.Concurrency > n || l.RefreshRate > l.Size {
				t.Errorf("%v: %v", r, l)
			}
		}
	})
}

var ok = oktest.OK // ends the test if there is an error
