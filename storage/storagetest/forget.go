package storagetest

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// spans are so long that a backend which forgets after 10 ms, a second, a minute or a day shows it.
var spans = []time.Duration{15 * time.Millisecond, 1200 * time.Millisecond, 61 * time.Second, 25 * time.Hour, 400 * 24 * time.Hour}

// testForgetting runs the rules of forgetting. A storage without Close has no connection, so it uses the clock of this
// process: testing/synctest moves it, and nothing waits. Another storage has a clock that only waiting moves, so there
// the rules are run up to a span of 1.2 s, and up to 61 s without -short.
func testForgetting(t *testing.T, open func(*testing.T) storage.Storage, closes bool) {
	if !closes {
		t.Run("KeepsUntilUntil", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { Keeps(t, open(t), time.Sleep, spans[len(spans)-1]) })
		})
		t.Run("ForgottenKeyRepeatsNoRevision", func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { comesBack(t, open(t), time.Sleep, 40, 300) })
		})
		return
	}
	longest := spans[2]
	if testing.Short() {
		longest = spans[1]
	}
	t.Run("KeepsUntilUntil", func(t *testing.T) {
		t.Parallel()
		Keeps(t, open(t), time.Sleep, longest)
	})
	t.Run("ForgottenKeyRepeatsNoRevision", func(t *testing.T) {
		t.Parallel()
		comesBack(t, open(t), func(time.Duration) { time.Sleep(20 * time.Millisecond) }, 8, 8)
	})
}

// Keeps fails t if s forgets anything before its Until while its clock moves on for longest, at most 400 days. advance
// moves that clock on by d: it waits, or tells the server of a test that time has passed.
func Keeps(t testing.TB, s storage.Storage, advance func(d time.Duration), longest time.Duration) {
	t.Helper()
	k := &keepsTest{t: t, s: s}
	_, k.atomic = s.(storage.Atomic)
	// The test looks at each key once: a look may make a wrong backend keep it for longer.
	for _, span := range spans {
		if span <= longest {
			k.store(span)
		}
	}
	// A simulation's time stands still between two of its calls, however long these take.
	if longest > 23*time.Hour {
		for i, now := range []int64{1_500_000_000_000, 4_000_000_000_000} {
			k.set(fmt.Sprint("simulated", i), now, now+5000)
		}
	}
	var passed time.Duration
	for _, span := range spans {
		if span > longest {
			break
		}
		if span == 25*time.Hour {
			k.move(advance, 23*time.Hour-passed)
			passed = 23 * time.Hour
			k.held("simulated0", "a key of another time than the backend's is kept for a day at least")
			k.held("simulated1", "a key of another time than the backend's is kept for a day at least")
		}
		k.soon(span, func() { k.move(advance, span-passed) }, span-passed)
		passed = span
		k.check(span)
	}
	k.simulate(func() {
		if longest > 23*time.Hour {
			k.move(advance, 5*time.Minute)
		}
	})
}

// keepsTest is a call of Keeps under way.
type keepsTest struct {
	t      testing.TB
	s      storage.Storage
	atomic bool
	others int
}

// set stores a key whose bytes are to be found by held.
func (k *keepsTest) set(key string, now, until int64) {
	k.t.Helper()
	st := state(len(key))
	st.Now, st.Until = now, until
	set(k.t, k.s, key, st, storage.NoRevision)
}

// held fails unless a key is as it was set.
func (k *keepsTest) held(key, rule string) {
	k.t.Helper()
	holds(k.t, k.s, key, state(len(key)), rule)
}

// The kinds of keys that the test looks at after a span.
const (
	untilLater = "until later %v"
	untilNever = "until never %v"
	setAgain   = "set again %v"
	decided    = "decided %v"
	leased     = "leased %v"
)

// yearly are limits under which nothing is forgotten in the longest of spans.
func yearly() *decision.Limits {
	l := limits(1, 1)
	l.Windows[0].Interval, l.Lease, l.MaxLease = 10*365*24*3_600_000, 10*365*24*3_600_000, 10*365*24*3_600_000
	l.Tokens, l.Start = 2, 0
	l.Ready()
	return l
}

func (k *keepsTest) store(span time.Duration) {
	k.t.Helper()
	now := time.Now().UnixMilli()
	k.set(fmt.Sprintf(untilLater, span), now, now+2*span.Milliseconds()+10_000)
	k.set(fmt.Sprintf(untilNever, span), now, decision.Never)
	again := fmt.Sprintf(setAgain, span)
	k.set(again, now, now+max(1000, span.Milliseconds()/2))
	st := state(len(again))
	st.Now, st.Until = now, now+2*span.Milliseconds()+10_000
	_, rev := get(k.t, k.s, again)
	err := k.s.Set(k.t.Context(), again, st, rev)
	if errors.Is(err, storage.ErrConflict) && time.Since(time.UnixMilli(now)) > time.Second { // it was forgotten after the Get
		err = k.s.Set(k.t.Context(), again, st, storage.NoRevision)
	}
	if err != nil {
		k.t.Fatalf("Set(%s) of a key that is set: %v", short(again), err)
	}
	if !k.atomic {
		return
	}
	k.do(fmt.Sprintf(decided, span), decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock})
	k.do(fmt.Sprintf(decided, span), decision.Op{Kind: decision.ReturnToken, Now: decision.OwnClock})
	k.do(fmt.Sprintf(leased, span), decision.Op{Kind: decision.Admit, Now: decision.OwnClock, Cost: decision.Cost{1}})
}

func (k *keepsTest) do(key string, op decision.Op) decision.Answer {
	k.t.Helper()
	return do(k.t, k.s, key, yearly(), op)
}

func (k *keepsTest) check(span time.Duration) {
	k.t.Helper()
	k.held(fmt.Sprintf(untilLater, span), fmt.Sprintf("a key is kept until its Until, which is later than the %v that have passed", span))
	k.held(fmt.Sprintf(untilNever, span), fmt.Sprintf("a key whose Until is Never is kept for ever; %v have passed", span))
	k.held(fmt.Sprintf(setAgain, span), fmt.Sprintf("a key is kept until the Until of its last Set, not of an earlier one; %v have passed", span))
	if !k.atomic {
		return
	}
	key := fmt.Sprintf(decided, span)
	if a := k.do(key, decision.Op{Kind: decision.GetDelay, Now: decision.OwnClock}); a.Delay == 0 {
		k.t.Fatalf("what Do stored is kept until Limits.Until: %v after the only operation of ten years GetDelay runs again", span)
	}
	key = fmt.Sprintf(leased, span)
	st, leases := decode(k.t, k.s, key)
	if st.LastID == 0 || len(leases) != 1 {
		k.t.Fatalf("what Do stored is kept while a lease is out: after %v of ten years Get returns %+v with leases %v, want one lease", span, st, leases)
	}
}

// soon looks at a key shortly before its Until. A backend that keeps keys for whole seconds has forgotten it.
func (k *keepsTest) soon(span time.Duration, move func(), d time.Duration) {
	k.t.Helper()
	const before = 700 * time.Millisecond
	key, begin := fmt.Sprintf("until soon %v", span), time.Now()
	k.set(key, begin.UnixMilli(), begin.Add(d+before).UnixMilli())
	move()
	late := time.Since(begin)
	if late >= d { // the move has waited
		late -= d
	}
	if late < before {
		k.held(key, fmt.Sprintf("a key is kept until its Until, not for whole seconds: %v of %v have passed", d, d+before))
	}
}

// move advances the clock in steps, with calls for other keys between them, because such calls make a backend look for
// keys that it may forget.
func (k *keepsTest) move(advance func(time.Duration), d time.Duration) {
	k.t.Helper()
	steps := time.Duration(1)
	if d > time.Minute {
		steps = 300
	}
	for range steps {
		advance(d / steps)
		k.another(time.Now().UnixMilli())
	}
	advance(d % steps)
}

// another stores a key that may be forgotten at once.
func (k *keepsTest) another(now int64) {
	k.t.Helper()
	k.others++
	k.set(fmt.Sprint("other", k.others), now, now+1)
	if k.atomic {
		do(k.t, k.s, fmt.Sprint("another", k.others), limits(1, 1), decision.Op{Kind: decision.Pause, Now: decision.OwnClock})
	}
}

// simulate lets the time of a simulation pass, of which there are years in an instant. wait lets some of the backend's pass.
func (k *keepsTest) simulate(wait func()) {
	k.t.Helper()
	begin, passed := int64(1_600_000_000_000), int64(0)
	for _, span := range spans {
		key := fmt.Sprint("simulated for ", span)
		k.set(key, begin, begin+2*span.Milliseconds())
		k.set(key+" or for ever", begin, decision.Never)
		if k.atomic {
			k.do(key+", decided", decision.Op{Kind: decision.GetDelay, Now: begin})
			k.do(key+", decided", decision.Op{Kind: decision.ReturnToken, Now: begin})
		}
	}
	// ReturnToken has no time, so it comes by the backend's clock. The entity is in the simulation still.
	daily, past := limits(1, 1), time.Now().UnixMilli()-365*24*3_600_000
	daily.Windows[0].Interval, daily.Start = 24*3_600_000, 0
	daily.Ready()
	past -= past % daily.Windows[0].Interval
	returned := func(op decision.Op) (a decision.Answer) {
		k.t.Helper()
		if !k.atomic {
			return decision.Answer{Delay: 1}
		}
		return do(k.t, k.s, "returned", daily, op)
	}
	returned(decision.Op{Kind: decision.GetDelay, Now: past})
	returned(decision.Op{Kind: decision.ReturnToken, Now: decision.OwnClock})
	wait()
	if a := returned(decision.Op{Kind: decision.GetDelay, Now: past + 3_600_000}); a.Delay == 0 {
		k.t.Fatal("ReturnToken by the backend's clock ends no simulation: an hour after the only operation of a day GetDelay runs again")
	}
	for _, span := range spans {
		steps := int64(1)
		if span > time.Second {
			steps = 300
		}
		for i := range steps {
			k.another(begin + passed + (span.Milliseconds()-passed)*(i+1)/steps)
		}
		passed = span.Milliseconds()
		key, rule := fmt.Sprint("simulated for ", span), fmt.Sprintf("a key is kept until its Until, by the time of the simulation that set it; %v have passed there", span)
		k.held(key, rule)
		k.held(key+" or for ever", rule)
		if k.atomic {
			if a := k.do(key+", decided", decision.Op{Kind: decision.GetDelay, Now: begin + passed}); a.Delay == 0 {
				k.t.Fatalf("%s: GetDelay runs again after the only operation of ten years", rule)
			}
		}
	}
}

// comesBack lets a key be forgotten and come back. The backend decides whether and when it forgets the key.
func comesBack(t *testing.T, s storage.Storage, advance func(time.Duration), rounds, steps int) {
	const rule = "a key that was forgotten and comes back repeats no revision that a reader may hold"
	k := &keepsTest{t: t, s: s}
	_, k.atomic = s.(storage.Atomic)
	seen := map[storage.Revision]bool{}
	simulated := int64(1_500_000_000_000)
	for round := range rounds {
		now := time.Now().UnixMilli()
		if round%2 == 0 {
			now = simulated
		}
		_, rev := get(t, s, "k")
		set(t, s, "k", storage.State{Data: []byte{1}, Now: now, Until: now + 1}, rev)
		_, held := get(t, s, "k")
		if held == storage.NoRevision { // it is forgotten already
			continue
		}
		if held == rev {
			t.Fatalf("each Set gives a new revision, also for the same bytes: in round %d revision %d stays", round, rev)
		}
		if seen[held] {
			t.Fatalf("%s: in round %d revision %d comes back", rule, round, held)
		}
		seen[held] = true
		for range steps {
			advance(time.Hour)
			simulated += 3_600_000
			if round%2 == 0 {
				k.another(simulated)
			} else {
				k.another(time.Now().UnixMilli())
			}
		}
		_, rev = get(t, s, "k")
		if rev != storage.NoRevision && rev != held {
			t.Fatalf("%s: it was %d and is %d without a Set", rule, held, rev)
		}
	}
}
