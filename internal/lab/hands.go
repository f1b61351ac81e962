package lab

import (
	"cmp"
	"slices"
	"time"

	"github.com/drip-go/drip"
)

// hand is where one consumer holds the messages of one entity.
type hand struct{ process, entity int }

// held is the part of a delivery that gives it to a consumer, which may hold it.
type held struct {
	hand
	in    bool  // it is in hand
	token bool  // it waits for a token
	since int64 // ms since 1970
	alarm int   // the time to ask again that counts
	ask   func()
}

// hands are the messages that the consumers of a run hold.
type hands struct {
	longest int64            // ms
	seats   []int            // free, in each process
	given   int              // deliveries so far
	of      map[hand][]*held // the first held first
}

// newHands takes the fields of a scenario, and the defaults of those that are zero.
func newHands(hold time.Duration, seats, processes int) hands {
	return hands{
		longest: cmp.Or(hold, 5*time.Second).Milliseconds(), seats: slices.Repeat([]int{cmp.Or(seats, 2048)}, max(1, processes)),
		of: map[hand][]*held{},
	}
}

// give gives a message of an entity to the next consumer. ask asks about it while it is in hand.
func (h *hands) give(m *held, entity int, ask func()) {
	m.hand, m.ask = hand{h.given % len(h.seats), entity}, ask
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
		h.of[m.hand] = append(h.of[m.hand], m)
	}
	m.token = a.Bound == drip.BoundTokens
	m.alarm++
	alarm := m.alarm
	events.add(now+delay, func() {
		if m.in && m.alarm == alarm {
			m.ask()
		}
	})
	return true
}

// wake lets the first message in a hand that waits for a token ask.
func (h *hands) wake(at hand) {
	if i := slices.IndexFunc(h.of[at], func(m *held) bool { return m.token }); i >= 0 {
		h.of[at][i].ask()
	}
}

// letGo takes a message that starts or is postponed out of the hand it is in, if any.
func (h *hands) letGo(m *held) {
	if m.in {
		m.in = false
		h.seats[m.process]++
		i := slices.Index(h.of[m.hand], m)
		h.of[m.hand] = slices.Delete(h.of[m.hand], i, i+1)
	}
}
