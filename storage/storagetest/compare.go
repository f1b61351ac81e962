package storagetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Compare plays steps random operations with random limits on a few keys of a, and on states of its own with
// [decision.Limits.Apply]. It fails t at the first answer that differs. The same seed is the same run; different seeds
// use different keys.
//
// If a is also a [storage.Storage], a part of the operations goes through Get, Apply and Set, so both ways of deciding
// continue each other's work. A part of them is within shared limits, unless a keeps keys apart.
func Compare(t testing.TB, a storage.Atomic, seed uint64, steps int) {
	t.Helper()
	g := newGame(seed)
	for step := range steps {
		e := g.player()
		if !g.classic && g.IntN(20) == 0 { // a shared limit itself
			e = g.shared[g.IntN(len(g.shared))]
		}
		op := g.op(e)
		if e.id != 0 && op.Kind < decision.Throttle {
			op.Kind = decision.Throttle + decision.Kind(g.IntN(4))
		}
		var within []storage.Within
		var shared []decision.Shared
		if e.id == 0 {
			within, shared = g.within(&op)
		}
		before, out := e.state.Copy(), e.leases.All()
		var want decision.Answer
		reference := op // Apply may change it
		e.limits.ApplyWithin(&e.state, e.leases, shared, &reference, op.Now, &want)
		way, do := "Do", a.Do
		if s, ok := a.(storage.Storage); ok && len(within) == 0 && g.IntN(8) == 0 {
			way, do = "Get, Apply and Set", plain{s}.Do
		}
		given := copyOf(e.limits, within)
		got, err := do(t.Context(), e.key, e.limits, within, op)
		if now := copyOf(e.limits, within); !reflect.DeepEqual(now, given) {
			t.Fatalf("seed %d, step %d: Do changes no limits: they were %+v and are %+v", seed, step, given, now)
		}
		if errors.Is(err, storage.ErrApart) {
			return // the rest is for one that keeps them in one place
		} else if err != nil {
			t.Fatalf("seed %d, step %d, key %q: %s of %+v within %d limits: %v", seed, step, e.key, way, op, len(within), err)
		}
		if got != want {
			t.Fatalf("seed %d, step %d, key %q: a backend answers what Limits.Apply answers\n   op: %+v\n with: %+v\n   on: %+v\n  and: leases %v\n  got: %+v by %s\n want: %+v",
				seed, step, e.key, op, *e.limits, before, out, got, way, want)
		}
		g.remember(e, &op, &want)
		g.tick()
	}
}

// copyOf is a copy of the limits of an operation, its entity's first.
func copyOf(l *decision.Limits, within []storage.Within) (all []decision.Limits) {
	all = append(all, *l)
	for _, w := range within {
		all = append(all, *w.Limits)
	}
	for i := range all {
		all[i].Windows = slices.Clone(all[i].Windows)
	}
	return all
}

// game is the random side of Compare.
type game struct {
	*rand.Rand
	seed    uint64
	limits  decision.Limits
	classic bool // nothing but GetDelay and ReturnToken
	// A backend may forget an entity from its Until on, whenever it likes. That changes no answer as long as time does
	// not step back and the limits stay: either they do, or an entity that may be forgotten is never asked for again.
	steady   bool
	now      int64
	renewed  int
	entities []*player
	shared   []*player        // limits that the entities share
	strange  []decision.Lease // of other entities
}

// player is an entity and the tokens, leases and tickets of its callers.
type player struct {
	key     string
	limits  *decision.Limits
	id      int64 // of a shared limit
	state   decision.State
	leases  *storage.Leases
	tickets []decision.Ticket
	held    []decision.Lease
}

func newGame(seed uint64) *game {
	g := &game{Rand: rand.New(rand.NewPCG(seed, 1)), seed: seed}
	g.limits.Start = 1_500_000_000_000 + g.Int64N(10_000)
	if g.IntN(4) == 0 {
		g.limits.Start = 0
	}
	g.random(&g.limits)
	g.classic, g.steady = g.IntN(4) == 0, g.IntN(2) == 0
	g.now = 1_500_000_000_000 + g.Int64N(3*g.limits.Windows[0].Interval)
	g.entities = make([]*player, 3)
	for i := range g.entities {
		g.renew(g.entities, i)
	}
	g.shared = make([]*player, 2)
	for i := range g.shared {
		g.renew(g.shared, i)
		g.shared[i].limits = &decision.Limits{}
		g.shared[i].id = int64(i + 1)
	}
	g.change()
	return g
}

func (g *game) pick(values ...int64) int64 { return values[g.IntN(len(values))] }

// change makes new limits, with a number of windows of their own.
func (g *game) change() {
	g.random(&g.limits)
	for _, e := range g.shared {
		e.limits.Start, e.limits.FirstCome = g.limits.Start, g.pick(0, 0, 1)
		g.random(e.limits)
	}
}

func (g *game) random(l *decision.Limits) {
	l.Windows = nil
	for range 1 + g.pick(0, 0, 0, 1, 2) {
		w := decision.Window{
			Size:     1 + g.Int64N(g.pick(1, 5, 50)),
			Rate:     1 + g.Int64N(g.pick(1, 5, 50)),
			Interval: g.pick(1, 7, 100, 1000, 60_000, 86_400_000),
			Unit:     g.pick(0, 0, 0, g.Int64N(decision.Units)),
		}
		w.Offset = g.pick(0, 0, g.Int64N(w.Interval))
		if g.IntN(6) == 0 {
			w.Series, w.Offset = 4711, l.Start-l.Start%w.Interval+g.pick(0, 1, 2)*w.Interval
		}
		l.Windows = append(l.Windows, w)
	}
	l.Tokens, l.Guess = g.pick(l.Windows[0].Size, 1, 3, 50), g.pick(1, 10, 50, 2500)
	l.Lease, l.MaxLease = g.pick(1, 1000, 60_000), g.pick(60_000, 3_600_000)
	if field, window := l.Ready(); field != "" {
		panic(fmt.Sprintf("storagetest: limits of its own have a bad %s of window %d: %+v", field, window, *l))
	}
}

// renew puts an unknown entity in place i.
func (g *game) renew(all []*player, i int) {
	g.renewed++
	e := &player{key: fmt.Sprintf("%d-%d", g.seed, g.renewed), limits: &g.limits, leases: &storage.Leases{}}
	if all[i] != nil {
		e.limits, e.id = all[i].limits, all[i].id
	}
	all[i] = e
}

// leave renews the entities that the backend may have forgotten.
func (g *game) leave() {
	for _, all := range [][]*player{g.entities, g.shared} {
		for i, e := range all {
			if e.state.Tokens != 0 && g.now >= max(e.limits.Until(&e.state), e.leases.Last()) {
				g.renew(all, i)
			}
		}
	}
}

func (g *game) player() *player { return g.entities[g.IntN(len(g.entities))] }

// within chooses the shared limits of op. Now and then op becomes an operation on a shared limit itself.
func (g *game) within(op *decision.Op) (within []storage.Within, shared []decision.Shared) {
	if g.classic || g.IntN(3) == 0 {
		return nil, nil
	}
	for _, x := range g.shared {
		if g.IntN(3) > 0 {
			w := storage.Within{Key: x.key, Limits: x.limits, ID: x.id, Weight: g.pick(1, 1, 3, 1000)}
			within, shared = append(within, w), append(shared, w.In(&x.state, x.leases))
			for unit := range op.Cost {
				op.Cost[unit] = min(op.Cost[unit], x.limits.Most(int64(unit)))
			}
		}
	}
	op.Urgent = g.IntN(4) == 0
	if g.IntN(4) == 0 {
		op.Deadline = max(1, g.now+g.pick(-10, 1, 100, 10_000))
	}
	return within, shared
}

// op is the next operation on e. It may move the time.
func (g *game) op(e *player) decision.Op {
	l := e.limits
	if !g.steady && g.IntN(100) == 0 {
		g.leave() // by the old limits
		if g.IntN(2) == 0 && !g.classic {
			g.change()
		} else {
			g.limits.Tokens = g.pick(1, 3, 50)
		}
		g.leave() // by the new ones
	}
	op := decision.Op{Cost: g.cost(l), For: g.pick(1, 500, 30_000)}
	dice := g.IntN(100)
	switch {
	case g.classic:
		op.Kind = decision.GetDelay
		if dice < 30 {
			op.Kind = decision.ReturnToken
		}
	case dice < 5:
		op.Kind = decision.GetDelay
	case dice < 10:
		op.Kind = decision.ReturnToken
	case dice < 55:
		op.Kind = decision.Admit
		op.Ticket = g.ticket(e)
	case dice < 80:
		op.Kind = decision.Settle
		op.Lease = g.lease(e)
		switch g.IntN(4) {
		case 0:
			op.Cost = decision.Cost{}
		case 1, 2:
			op.Cost = op.Lease.Cost
		}
	case dice < 81:
		op.Kind, op.Pin = decision.Pin, &decision.PinnedLimit{Tokens: g.pick(0, 0, 1, 3), Raise: g.pick(0, 0, 1)}
		op.For = g.pick(0, 500, 30_000)
		if g.IntN(3) > 0 {
			op.Pin.Window = decision.Window{Size: 1 + g.Int64N(9), Rate: 1 + g.Int64N(9), Interval: g.pick(l.Windows[0].Interval, 100, 60_000)}
		}
	case dice < 82:
		op.Kind = decision.Unpin
	case dice < 88:
		op.Kind = decision.Renew
		op.Lease = g.lease(e)
	case dice < 94:
		op.Kind = decision.Cancel
		if g.IntN(3) > 0 {
			op.Lease = g.lease(e)
		}
		if g.IntN(3) > 0 && len(e.tickets) > 0 {
			op.Ticket = e.tickets[g.IntN(len(e.tickets))]
		}
	case dice < 96:
		op.Kind, op.Level = decision.Throttle, g.pick(0, 1)
		if g.IntN(3) == 0 {
			op.Kind, op.Level, op.For = decision.Announce, g.pick(decision.Whole, 5000, 100), g.pick(500, 30_000)
		}
	case dice < 98:
		op.Kind = decision.Pause
	case dice < 99:
		op.Kind = decision.Resume
	default:
		op.Kind = decision.Reset
	}
	op.Now = g.now
	return op
}

// cost is one that all windows can hold. It has calls, and of some units none.
func (g *game) cost(l *decision.Limits) (c decision.Cost) {
	for unit := range c {
		if most := min(l.Most(int64(unit)), 100); unit == 0 {
			c[unit] = 1 + g.Int64N(most)
		} else if g.IntN(2) == 0 {
			c[unit] = g.Int64N(most + 1)
		}
	}
	return c
}

// ticket is one of e's, mostly the first and mostly on time, or none, or a forged one.
func (g *game) ticket(e *player) (t decision.Ticket) {
	if g.IntN(30) == 0 {
		return decision.Ticket{
			Slot: max(1, g.now+g.Int64N(20_000)-10_000), Number: g.pick(0, 1, 5, decision.LastTime-1) + g.Int64N(20)/20,
			Again: g.Int64N(2), Cost: decision.Cost{g.pick(0, 1, 9, decision.MostUnits), 0, g.pick(0, 0, 7, decision.MostUnits)},
		}
	}
	n := len(e.tickets)
	if n == 0 || g.IntN(3) == 0 {
		return t
	}
	i := g.IntN(min(n, 3))
	t = e.tickets[i]
	if g.IntN(50) > 0 { // or it comes twice
		e.tickets = slices.Delete(e.tickets, i, i+1)
	}
	// A slot may be in the year 2200, which need not be in the range of a backend's clock.
	if g.now < t.Slot && t.Slot < 1<<42 && g.IntN(4) > 0 {
		g.now = t.Slot + g.pick(0, 0, 3, g.limits.Windows[0].Interval)
	}
	return t
}

// lease is one of e's, which may have ended, been renewed or been given back, or one of another entity.
func (g *game) lease(e *player) decision.Lease {
	if n := len(g.strange); n > 0 && g.IntN(20) == 0 {
		return g.strange[g.IntN(n)]
	}
	n := len(e.held)
	if n == 0 {
		return decision.Lease{}
	}
	i := g.IntN(n)
	lease := e.held[i]
	if g.IntN(10) > 0 {
		e.held = slices.Delete(e.held, i, i+1)
	}
	return lease
}

// remember keeps the token, lease or ticket of an answer.
func (g *game) remember(e *player, op *decision.Op, a *decision.Answer) {
	if a.Ticket != (decision.Ticket{}) {
		e.tickets = append(e.tickets, a.Ticket)
	}
	if a.Lease != (decision.Lease{}) {
		e.held = append(e.held, a.Lease)
		if op.Kind == decision.Admit && len(g.strange) < 50 {
			g.strange = append(g.strange, a.Lease)
		}
	}
}

// tick lets time pass.
func (g *game) tick() {
	switch g.IntN(6) {
	case 0:
		g.now += g.Int64N(3 * g.limits.Windows[0].Interval)
	case 1, 2:
		g.now += g.Int64N(g.limits.Guess + 1)
	case 3:
		if !g.steady && g.IntN(10) == 0 { // the clock steps back
			g.leave()
			g.now -= g.Int64N(2 * g.limits.Windows[0].Interval)
		}
	}
	if !g.steady {
		g.leave()
	}
}
