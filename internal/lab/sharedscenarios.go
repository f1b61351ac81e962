package lab

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// order is how the messages of a backlog arrive.
type order int

const (
	shuffled order = iota
	inTurn         // one of each entity, and again
	byEntity       // one entity after the other
)

// backlog is counts[i] messages of the entity first+i, from a time on, ten in a millisecond.
func backlog(r *rand.Rand, how order, at time.Duration, first int, counts ...int) (all []SharedMessage) {
	for i, n := range counts {
		all = append(all, slices.Repeat([]SharedMessage{{Entity: first + i}}, n)...)
	}
	switch how {
	case shuffled:
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	case inTurn:
		all = all[:0]
		for k := range slices.Max(counts) {
			for i, n := range counts {
				if k < n {
					all = append(all, SharedMessage{Entity: first + i})
				}
			}
		}
	}
	for i := range all {
		all[i].At = at + time.Duration(i)*100*time.Microsecond
	}
	return all
}

// draw draws the messages of a scenario.
type draw = func(*rand.Rand) []SharedMessage

// sent draws a backlog of the entities, soon after the beginning.
func sent(how order, counts ...int) draw { return sentAt(begun, how, 0, counts...) }

func sentAt(at time.Duration, how order, first int, counts ...int) draw {
	return func(r *rand.Rand) []SharedMessage { return backlog(r, how, at, first, counts...) }
}

// trickle draws messages of the entities from first on that arrive independently of each other.
func trickle(first, n int, perSecond float64, from, to time.Duration, like SharedMessage) draw {
	return func(r *rand.Rand) (all []SharedMessage) {
		m := like // the draws of several runs may be made at the same time
		for m.Entity = first; m.Entity < first+n; m.Entity++ {
			for _, at := range Poisson(perSecond, from, to)(r) {
				m.At = at
				all = append(all, m)
			}
		}
		return all
	}
}

// joined draws one after the other.
func joined(draws ...draw) draw {
	return func(r *rand.Rand) (all []SharedMessage) {
		for _, d := range draws {
			all = append(all, d(r)...)
		}
		return all
	}
}

// changed draws messages and changes each of them.
func changed(d draw, change func(r *rand.Rand, i int, m *SharedMessage)) draw {
	return func(r *rand.Rand) []SharedMessage {
		all := d(r)
		for i := range all {
			change(r, i, &all[i])
		}
		return all
	}
}

func watched(d draw, which func(m *SharedMessage) bool) draw {
	return changed(d, func(_ *rand.Rand, _ int, m *SharedMessage) { m.Watched = which(m) })
}

func ofOthers(m *SharedMessage) bool { return m.Entity > 0 } // than the first entity

// entities is n that are alike.
func entities(n int) []SharedEntity { return make([]SharedEntity, n) }

// times is n counts.
func times(n, count int) []int { return slices.Repeat([]int{count}, n) }

// app is an entity's own limit, and one over all of them, a second.
func app(size, rate, all int) drip.Options { return within(size, rate, drip.Limit{Size: all}) }

// within is an entity's own limit, a second, and one over all of them.
func within(size, rate int, all drip.Limit) drip.Options {
	return drip.Options{Size: size, RefreshRate: rate, Concurrency: plenty, Shared: map[string]drip.Limit{"app": all}}
}

const (
	plenty = 10_000 // operations at once
	begun  = time.Millisecond
)

// SharedScenarios returns the shared scenarios of the package.
func SharedScenarios() []SharedScenario {
	quick := Fixed(50 * time.Millisecond)
	var all []SharedScenario
	add := func(name, about string, o drip.Options, e []SharedEntity, messages draw) *SharedScenario {
		all = append(all, SharedScenario{Name: name, About: about, Options: o, Entities: e, Messages: messages, Operation: quick})
		return &all[len(all)-1]
	}

	shops := append(times(20, 67), times(10, 66)...)
	for _, how := range []struct {
		order
		name, about string
	}{{shuffled, "shops", "at once"}, {inTurn, "shops-in-turn", "one of each shop after the other"}, {byEntity, "shops-by-shop", "shop after shop"}} {
		add(how.name, "30 shops (40, 2/s), all 50/s; 2,000 messages "+how.about, app(40, 2, 50), entities(30), sent(how.order, shops...))
	}

	ticks := within(2, 2, drip.Limit{Size: 20, RefreshRate: 10, RefreshInterval: 100 * time.Millisecond})
	add("shops-100ms", "60 shops (2, 2/s), all 10 each 100 ms; 4,000 messages shop after shop", ticks, entities(60), sent(byEntity, times(60, 67)...))

	big := func(second int) draw {
		return joined(sent(byEntity, 10_000), sentAt(10*time.Second, byEntity, 1, second), trickle(2, 20, 0.5, time.Second, 200*time.Second, SharedMessage{Watched: true}))
	}
	add("big", "all 50/s; a shop with 10,000 messages, and 20 with one each 2 s (watched)", app(100, 100, 50), entities(22), big(0))
	add("two-big", "the same, and after 10 s a shop with 5,000", app(100, 100, 50), entities(22), big(5000))
	slow := append([]SharedEntity{{}, {}}, slices.Repeat([]SharedEntity{{Limit: drip.Limit{Size: 1, RefreshRate: 1, RefreshInterval: 10 * time.Second}}}, 20)...)
	add("slow", "all 50/s; 20 shops with 40 messages that may send one each 10 s, one with 4,000, after 10 s one with 4,000 (watched)", app(100, 100, 50), slow,
		joined(sent(byEntity, append([]int{4000, 0}, times(20, 40)...)...), watched(sentAt(10*time.Second, byEntity, 1, 4000), ofOthers)))

	doubled := joined(sent(shuffled, times(50, 400)...), sentAt(time.Minute, shuffled, 50, times(50, 400)...))
	add("doubled", "all 50/s; 50 shops (2/s) with 400 messages, after a minute 50 more", app(2, 2, 50), entities(100), doubled)
	add("doubled-late", "the same, and messages come back up to 1 s late", app(2, 2, 50), entities(100), doubled).Late = Uniform(0, time.Second)
	fine := within(2, 2, drip.Limit{Size: 5, RefreshInterval: 100 * time.Millisecond})
	add("doubled-100ms", "the same, with 5 each 100 ms instead", fine, entities(100), doubled)

	zipf := make([]int, 1000)
	for i := range zipf {
		zipf[i] = max(1, 4000/(i+1))
	}
	for _, how := range []struct {
		order
		name, about string
	}{{shuffled, "zipf", "at once"}, {byEntity, "zipf-by-shop", "shop after shop"}} {
		add(how.name, "all 200/s; 1,000 shops with 4,000, 2,000, 1,333 … messages "+how.about+"; those with at most 10 are watched", app(50, 50, 200), entities(1000),
			watched(sent(how.order, zipf...), func(m *SharedMessage) bool { return zipf[m.Entity] <= 10 }))
	}

	endpoints := func(r *rand.Rand) []SharedMessage {
		m := backlog(r, shuffled, begun, 0, times(40, 200)...)
		sent := make([]int, 40)
		for i := range m {
			n := &sent[m[i].Entity]
			m[i].Within, m[i].Watched = [][]string{{"app", "slow"}, {"app", "fast"}}[*n%2], *n%2 == 1
			*n++
		}
		return m
	}
	for _, own := range []struct {
		size, rate  int
		name, about string
	}{{10, 5, "endpoints", "40 shops (10, 5/s)"}, {2, 1, "endpoints-own", "40 shops (2, 1/s)"}} {
		o := app(own.size, own.rate, 45)
		o.Shared["slow"], o.Shared["fast"] = drip.Limit{Size: 10}, drip.Limit{Size: 40}
		add(own.name, own.about+", an endpoint 10/s, another 40/s (watched), all 45/s; 100 messages for each", o, entities(40), endpoints)
	}

	weighted := entities(60)
	for i := range weighted {
		weighted[i].Weight = []int{1, 2, 4}[i/20]
	}
	add("weights", "all 50/s; 60 shops that weigh 1, 2 or 4, with 300 messages", app(10, 10, 50), weighted, sent(shuffled, times(60, 300)...))

	urgent := joined(sent(shuffled, times(25, 360)...), trickle(0, 25, 0.2, 5*time.Second, 205*time.Second, SharedMessage{Urgent: true}))
	add("urgent", "all 50/s; 25 shops (4/s) with 360 messages and an urgent one each 5 s", app(4, 4, 50), entities(25), urgent)
	add("urgent-own", "the same, all 200/s, the shop's own 2/s is short", app(2, 2, 200), entities(25), urgent)

	add("far", "all 200/s, far from short; 100 shops (40, 2/s) with 60 messages at a time", app(40, 2, 200), entities(100), sales)

	outage := add("outage", "as doubled, 1 % of tickets lost, 1 % doubled, no consumer from 100 s to 700 s", app(2, 2, 50), entities(100), doubled)
	outage.LostTickets, outage.Duplicates, outage.Outage = .01, .01, Outage{100 * time.Second, 700 * time.Second}

	five := within(20, 20, drip.Limit{Concurrency: 5})
	five.WaitForToken = 200 * time.Millisecond
	add("five-at-once", "5 at once over all, operations of 200 ms; a shop with 2,000 messages, 20 with 100 (watched)", five, entities(21),
		watched(sent(byEntity, append([]int{2000}, times(20, 100)...)...), ofOthers)).Operation = Exponential(200 * time.Millisecond)

	add("doubling", "all 50/s; 10 shops with 400 messages (watched), each 20 s as many shops more, 160 in all", app(50, 50, 50), entities(160),
		joined(watched(sent(shuffled, times(10, 400)...), func(*SharedMessage) bool { return true }),
			sentAt(20*time.Second, shuffled, 10, times(10, 400)...), sentAt(40*time.Second, shuffled, 20, times(20, 400)...),
			sentAt(60*time.Second, shuffled, 40, times(40, 400)...), sentAt(80*time.Second, shuffled, 80, times(80, 400)...)))
	return all
}

func sales(r *rand.Rand) (m []SharedMessage) {
	for i := range 100 {
		m = append(m, backlog(r, byEntity, time.Duration(r.IntN(300_000))*time.Millisecond, i, 60)...)
	}
	return m
}

// RandomShared returns a scenario that the seed determines: 2 to 200 entities, 1,000 to 4,000 messages in any order, and
// one to three shared limits of which one is short.
func RandomShared(seed uint64) SharedScenario {
	r := rand.New(rand.NewPCG(seed, 78))
	pick := func(from ...float64) float64 { return from[r.IntN(len(from))] }
	n, rate := int(pick(2, 5, 20, 50, 200)), pick(5, 20, 50, 100)
	interval := time.Duration(pick(100, 500, 1000, 1000, 1000, 5000)) * time.Millisecond
	perInterval := max(1, int(rate*interval.Seconds()))
	rate = float64(perInterval) / interval.Seconds()
	own := max(1, int(rate/float64(n)*pick(1.2, 2, 5, 20)))
	o := drip.Options{
		Size: own * int(pick(1, 2, 20)), RefreshRate: own, Concurrency: plenty,
		Shared: map[string]drip.Limit{"app": {Size: int(float64(perInterval) * pick(1, 1, 2)), RefreshRate: perInterval, RefreshInterval: interval}},
	}
	within := [][]string{nil}
	if r.IntN(3) == 0 {
		o.Shared["slow"], o.Shared["fast"] = drip.Limit{Size: max(1, int(rate/4))}, drip.Limit{Size: max(1, int(rate*0.8))}
		within = [][]string{{"app", "slow"}, {"app", "fast"}, {"app", "fast"}}
	}
	e := entities(n)
	if r.IntN(3) == 0 {
		for i := range e {
			e[i].Weight = 1 + r.IntN(4)
		}
	}
	how, late, urgent := order(r.IntN(3)), pick(0, 0, 0.3), pick(0, 0.05)
	total, skewed := 1000+r.IntN(3000), r.IntN(2) == 0
	s := SharedScenario{
		Name:      fmt.Sprintf("random-%d", seed),
		About:     fmt.Sprintf("%d entities (%d, %d/s), all %d each %v, %d limits, about %d messages", n, o.Size, own, perInterval, interval, len(o.Shared), total),
		Options:   o,
		Entities:  e,
		Operation: []Distribution{Fixed(50 * time.Millisecond), Exponential(200 * time.Millisecond)}[r.IntN(2)],
		Messages: func(r *rand.Rand) (m []SharedMessage) {
			counts := make([]int, n)
			for i := range counts {
				counts[i] = 1 + total/n
				if skewed {
					counts[i] = 1 + total/(i+1)/5
				}
			}
			newcomers := int(late * float64(n))
			m = backlog(r, how, begun, 0, counts[:n-newcomers]...)
			if newcomers > 0 {
				m = append(m, backlog(r, how, 10*time.Second, n-newcomers, counts[n-newcomers:]...)...)
			}
			for i := range m {
				m[i].Within = within[r.IntN(len(within))]
				if m[i].Urgent = r.Float64() < urgent; m[i].Urgent {
					m[i].At += time.Duration(r.Float64() * float64(total) / rate * float64(time.Second))
				}
			}
			return m
		},
	}
	if r.IntN(3) == 0 {
		s.Late = Uniform(0, time.Second)
	}
	if r.IntN(3) == 0 {
		s.LostTickets, s.Duplicates = 0.01, 0.01
	}
	return s
}
