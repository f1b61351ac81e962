package lab

import (
	"cmp"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// held is the part of a delivery that gives it to a consumer, which may hold it.
type held struct {
	process, of int    // the consumer, and the entity
	in          bool   // it is in hand
	token       bool   // it waits for a token
	limit       string // of this shared limit; of the entity's own if it is empty
	since       int64  // ms since 1970
	alarm       int    // the time to ask again that counts
	ask         func()
}

// hands are the messages that the consumers of a run hold.
type hands struct {
	longest int64     // ms
	seats   []int     // free, in each process
	given   int       // deliveries so far
	of      [][]*held // by process, the first held first
}

// newHands takes the fields of a scenario, and the defaults of those that are zero.
func newHands(hold time.Duration, seats, processes int) hands {
	return hands{
		longest: cmp.Or(hold, 5*time.Second).Milliseconds(), seats: slices.Repeat([]int{cmp.Or(seats, 2048)}, max(1, processes)),
		of: make([][]*held, max(1, processes)),
	}
}

// give gives a message of an entity to the next consumer. ask asks about it while it is in hand.
func (h *hands) give(m *held, entity int, ask func()) {
	m.process, m.of, m.ask = h.given%len(h.seats), entity, ask
	h.given++
}

// hold keeps a message in its consumer's hand, at the place it has there, until it asks again after a delay. It reports
// whether there is a place, and the message may wait that long.
func (h *hands) hold(m *held, events *events, now int64, a drip.Admission) bool {
	delay := a.Delay.Milliseconds()
	if !m.in {
		m.since = now
	}
	if now+delay-m.since > h.longest || !m.in && h.seats[m.process] == 0 {
		return false
	}
	if !m.in {
		m.in = true
		h.seats[m.process]--
		h.of[m.process] = append(h.of[m.process], m)
	}
	m.token, m.limit = a.Bound == drip.BoundTokens, a.Limit
	m.alarm++
	alarm := m.alarm
	events.add(now+delay, func() {
		if m.in && m.alarm == alarm {
			m.ask()
		}
	})
	return true
}

// wake lets the first messages in a consumer's hand ask that wait for a token which the operation of another one has given back: one of
// its entity, and one for each shared limit.
func (h *hands) wake(ended *held, within []string) {
	var first []*held
	for _, m := range h.of[ended.process] {
		gets := m.limit == "" && m.of == ended.of || m.limit != "" && (within == nil || slices.Contains(within, m.limit))
		if m.token && gets && !slices.ContainsFunc(first, func(o *held) bool { return o.limit == m.limit }) {
			first = append(first, m)
		}
	}
	for _, m := range first {
		m.ask()
	}
}

// letGo takes a message that starts or is postponed out of the hand it is in, if any.
func (h *hands) letGo(m *held) {
	if m.in {
		m.in = false
		h.seats[m.process]++
		i := slices.Index(h.of[m.process], m)
		h.of[m.process] = slices.Delete(h.of[m.process], i, i+1)
	}
}
