package storage

import (
	"math"
	"slices"
)

// This file is what the classic delays cannot do. Of each window there are three ledgers, which are advanced together:
//
//	Ops   what has run. Nothing runs that does not fit here.
//	Wait  what is promised to newcomers, as if all of it had run at its slot. A newcomer is promised the next slot
//	      after it that fits all windows.
//	Late  what is promised again to tickets that were back in time and found no room, in front of all newcomers.
//
// The tickets not yet back are counted. Their cost is held back from newcomers, so a ticket that is back finds
// its room even when it is late.

// which ledger of a window.
type ledger uint8

const (
	ops ledger = iota
	wait
	late
)

// decide answers GetDelay and Admit.
func (l *Limits) decide(s *State, op *Op, now int64, a *Answer) {
	admit := op.Kind == Admit
	b := s.Booking
	cost, t := int64(1), Ticket{}
	if admit {
		cost, t = op.Cost, op.Ticket
	}
	back := t.Epoch > 0 && t.Slot <= max(now, b.Old.Last, b.New.Last) // or it was never promised
	if back {
		l.unbook(s, t, now)
	}
	due := back && t.Slot <= now
	var slot int64
	switch {
	case b == nil || !back && cost == 1 && b.quiet(now) && len(l.Windows) == 0 && !(admit && b.Samples > 0 && s.inUse() >= l.concurrency()):
		a.Delay, a.Bound = l.classic(s, now)
		slot = s.Wait.Last
	default:
		a.Bound = l.bound(s, cost, due, now)
		short := s.inUse() >= l.concurrency() || !back && now < b.Claim
		switch {
		case a.Bound == BoundNone && short:
			a.Bound = BoundTokens
		case a.Bound == BoundNone:
			l.spend(s, ops, now, cost)
		}
		if a.Bound == BoundNone {
			break
		}
		switch {
		case back && !due:
			slot = t.Slot // it came early
		case !due:
			slot = l.promise(s, wait, cost, b.units(), now)
		case a.Bound == BoundTokens:
		case t.Again == 0:
			slot = l.promise(s, late, cost, 0, now)
			t.Again = 1
		default: // it would meet others there for ever: behind all who wait there is room for sure
			slot = l.promise(s, wait, cost, b.units(), now)
		}
		if short && (due || !back) {
			slot = max(slot, add(now, l.queue(b, t, due, now)))
		}
		a.Delay = max(1, sub(slot, now))
	}
	switch {
	case a.Delay == 0 && admit:
		a.Lease = l.lease(s, cost, now)
	case a.Delay == 0:
		s.InUse++
	case admit:
		if !back {
			b.Next++
			t = Ticket{Number: b.Next}
		}
		t.Slot, t.Cost = slot, cost
		a.Ticket = b.book(t, now)
	}
}

// bound tells what keeps an operation from running now, if a token is there.
func (l *Limits) bound(s *State, cost int64, due bool, now int64) Bound {
	b := s.Booking
	if now < b.Closed {
		return BoundClosed
	}
	var booked int64
	if !due {
		booked = b.units()
	}
	for i := range l.windows() {
		switch c := l.capacity(s, ops, i, now); {
		case c < cost:
			return BoundWindow + Bound(i)
		case sub(c, booked) < cost:
			return BoundBooked
		}
	}
	return BoundNone
}

// promise books the next slot of a line that fits all windows. A line that is not ahead of now, and of when the entity
// is open again, begins with what is left then of what has run, less what is booked.
func (l *Limits) promise(s *State, line ledger, cost, booked, now int64) (slot int64) {
	b := s.Booking
	last, open := s.last(line), max(now, b.Closed)
	ahead := *last > open
	if !ahead {
		for i := range l.windows() {
			*s.ledger(line, i) = sub(l.capacity(s, ops, i, open), booked)
		}
		*last = open
	}
	slot = max(*last, add(now, 1))
	for i := range l.windows() {
		w := l.window(i)
		if missing := sub(cost, *s.ledger(line, i)); missing > 0 {
			intervals := (missing-1)/w.RefreshRate + 1
			slot = max(slot, mulTime(add(w.interval(*last), intervals), w.RefreshInterval))
		}
	}
	if ahead {
		slot = max(slot, add(*last, l.apart(b, now)))
	}
	l.spend(s, line, slot, cost)
	return slot
}

// apart is how long after each other those come who are promised the same interval, if it brings more than can run at
// once and is long enough for that. So most of them find a token.
func (l *Limits) apart(b *Booking, now int64) int64 {
	for i := range l.windows() {
		if w := l.window(i); l.concurrency() < w.RefreshRate {
			if apart := l.quarters(b, 8, now); mul(apart, w.RefreshRate) <= w.RefreshInterval {
				return apart
			}
		}
	}
	return 0
}

// queue is how long to wait for a token. Whoever waits for one has a number and knows how many are before it: those
// that are not back yet and have a lower one, about. When n tokens are to come back first, that takes n times as long
// as operations have held theirs, divided by all tokens, but at random, so one has to be early by twice the square root
// of n. Those who were early ask again, in turn.
func (l *Limits) queue(b *Booking, t Ticket, due bool, now int64) int64 {
	n := b.tickets() + 1
	if !due {
		return l.quarters(b, 4*n-8*root(n), now)
	}
	b.Claim = min(add(max(b.Claim, now), l.quarters(b, 1, now)), add(now, l.quarters(b, n, now)))
	n = max(1, min(n, t.Number-(b.Next-n)))
	if apart := l.apart(b, now); apart > 0 {
		return mul(n, apart)
	}
	return max(l.quarters(b, 4*n-8*root(n), now), b.Claim-now)
}

// quarters is n quarters of the time it takes until a token comes back. WaitForToken stands for the first sample, and as
// long as there are few, operations under way that have taken longer than these do count too.
func (l *Limits) quarters(b *Booking, n, now int64) int64 {
	held, samples := add(b.Held, l.WaitForToken), b.Samples+1
	if b.Samples < mostSamples {
		for _, h := range b.Leases {
			if age := sub(now, h.Begin()); age > held/samples {
				held, samples = add(held, age), samples+1
			}
		}
	}
	return max(1, mul(max(1, n), held)/mul(4, mul(l.concurrency(), samples)))
}

func root(n int64) int64 { return int64(math.Sqrt(float64(n))) }

// spend moves a line to the time t and takes cost from all its ledgers.
func (l *Limits) spend(s *State, line ledger, t, cost int64) {
	for i := range l.windows() {
		*s.ledger(line, i) = sub(l.capacity(s, line, i, t), cost)
	}
	*s.last(line) = t
}

// capacity of the i-th window on a line at the time t.
func (l *Limits) capacity(s *State, line ledger, i int, t int64) int64 {
	return l.window(i).gain(Ledger{*s.last(line), *s.ledger(line, i)}, t)
}

// Capacity is what the i-th window of an entity, 0 being the first, has left at the time now; below zero is owed.
func (l *Limits) Capacity(s State, i int, now int64) int64 {
	s, now = s.Clone(), max(now, s.Ops.Last)
	if s.Booking != nil || len(l.Windows) > 0 {
		l.booking(&s)
		l.adopt(&s, now)
	}
	return l.capacity(&s, ops, i, now)
}

// lease takes a token.
func (l *Limits) lease(s *State, cost, now int64) Lease {
	b := s.Booking
	b.LastID = max(add(b.LastID, 1), mul(max(0, now), 1024)) // later than those of before the entity was forgotten
	b.hold(b.LastID, add(now, l.Lease))
	return Lease{ID: b.LastID, Begin: now, End: add(now, l.Lease), Cost: cost, Left: s.Ops.Capacity}
}

// settle gives a lease back, measures how long it was held and charges the real cost.
func (l *Limits) settle(s *State, lease *Lease, cost, now int64) bool {
	b := s.Booking
	if b == nil || !b.release(lease.ID) {
		return false
	}
	held := min(max(0, sub(now, lease.Begin)), longestHold)
	if b.Samples < mostSamples {
		b.Samples++
	} else {
		b.Held -= b.Held / mostSamples
	}
	b.Held += held
	l.charge(s, lease, cost, now)
	return true
}

const (
	mostSamples = 64 // in the average; then a new one counts for as much
	longestHold = 1 << 40
)

// charge takes cost in place of what the lease was charged. More than a window has left is owed. Less comes back as far
// as the window would have it, had the real cost been charged in the first place: what would have been above its size
// by now is lost, and further windows give it back only in the same interval.
func (l *Limits) charge(s *State, lease *Lease, cost, now int64) {
	more := sub(cost, lease.Cost)
	for i := range l.windows() {
		w, change := l.window(i), more
		if more < 0 {
			left, refreshes := lease.Left, w.refreshes(lease.Begin, now)
			if i > 0 && refreshes > 0 {
				left = w.Size
			} else if i > 0 {
				left = sub(w.Size, lease.Cost)
			}
			room := max(0, sub(w.Size, add(left, mul(refreshes, w.RefreshRate))))
			change = -min(-more, room)
		}
		p := s.ledger(ops, i)
		*p = min(w.Size, sub(*p, change))
		// What is owed delays newcomers. What comes back does not outlast a window that is full with each interval.
		if s.Wait.Last > now && (change > 0 || w.spare()) {
			p := s.ledger(wait, i)
			*p = min(w.Size, sub(*p, change))
		}
	}
}

// cancel undoes an Admit.
func (l *Limits) cancel(s *State, op *Op, now int64) (found bool) {
	b := s.Booking
	if b == nil {
		return false
	}
	if b.release(op.Lease.ID) {
		l.charge(s, &op.Lease, 0, now)
		found = true
	}
	if t := op.Ticket; t.Epoch > 0 && l.unbook(s, t, now) {
		found = true
	}
	return found
}

// renew makes a lease as long as a new one.
func (l *Limits) renew(s *State, lease Lease, now int64) (Lease, bool) {
	b := s.Booking
	if b == nil || !b.release(lease.ID) {
		return Lease{}, false
	}
	lease.End = min(add(now, l.Lease), add(lease.Begin, l.MaxLease))
	b.hold(lease.ID, lease.End)
	return lease, lease.End > now
}

// throttle closes the entity until a time. Capacity beyond what each interval brings is what the provider says is not
// there: nothing is left but what an interval brings that begins then.
func (l *Limits) throttle(s *State, until, now int64) {
	b := l.booking(s)
	b.Closed = max(b.Closed, until)
	for i := range l.windows() {
		if w := l.window(i); w.spare() {
			p := s.ledger(ops, i)
			*p = min(*p, -w.dry(s.Ops.Last, b.Closed))
		}
	}
}

// spare tells that a window gathers more than an interval brings.
func (w *Window) spare() bool { return w.Size > w.RefreshRate }

// dry is what the window must lack at a time, to have nothing but what the interval brings that begins when it opens.
func (w *Window) dry(now, open int64) int64 {
	return mul(w.refreshes(now, sub(open, 1)), w.RefreshRate)
}

// reset forgets who runs and who waits.
func (l *Limits) reset(s *State, now int64) {
	b := s.Booking
	b.Leases, b.Closed, b.Old, b.New = b.Leases[:0], 0, Tickets{}, Tickets{}
	b.Late.Last = min(b.Late.Last, now)
	s.Wait.Last = min(s.Wait.Last, sub(now, l.RefreshInterval))
}

// unbook takes a ticket that is back off the books.
func (l *Limits) unbook(s *State, t Ticket, now int64) bool {
	b := s.Booking
	book := &b.New
	if t.Epoch != book.Epoch {
		book = &b.Old
	}
	if t.Epoch != book.Epoch || book.Tickets == 0 {
		return false // given up, or back before
	}
	book.Tickets--
	book.Units -= min(max(0, t.Cost), book.Units)
	if book.Tickets == 0 {
		book.Units = 0
	}
	if b.tickets() == 0 {
		s.Wait = Ledger{Last: sub(now, l.RefreshInterval)} // nothing is promised any more
	}
	return true
}

// book notes a ticket.
func (b *Booking) book(t Ticket, now int64) Ticket {
	if b.New.Tickets == 0 {
		b.New = Tickets{Epoch: max(1, now), Last: t.Slot}
	}
	t.Epoch = b.New.Epoch
	b.New.Tickets++
	b.New.Units = add(b.New.Units, t.Cost)
	b.New.Last = max(b.New.Last, t.Slot)
	return t
}

// tidy ends leases, and gives up tickets that are overdue: those of the old book together, some time after the last of
// them was due. Then the new book becomes the old one.
func (l *Limits) tidy(s *State, now int64) {
	b := s.Booking
	n := 0
	for n < len(b.Leases) && b.Leases[n].End <= now {
		n++
	}
	if n > 0 {
		b.Leases = slices.Delete(b.Leases, 0, n)
	}
	for b.Old.Tickets > 0 && now > add(b.Old.Last, l.grace()) || b.Old.Tickets == 0 && b.New.Tickets > 0 {
		b.Old, b.New = b.New, Tickets{}
	}
}

// grace is how long a ticket may be overdue before its slot is given to others: an interval and a second, for hops
// that are late by one window.
func (l *Limits) grace() int64 { return min(l.RefreshInterval, longestGrace) + 1000 }

const longestGrace = 60_000

// quiet reports whether the classic rules are all there is to say.
func (b *Booking) quiet(now int64) bool {
	return b.tickets() == 0 && b.Closed <= now && b.Claim <= now
}

func (b *Booking) tickets() int64 { return b.Old.Tickets + b.New.Tickets }
func (b *Booking) units() int64   { return add(b.Old.Units, b.New.Units) }

// hold adds a lease, in the order of their ends.
func (b *Booking) hold(id, end int64) {
	b.Leases = append(b.Leases, Held{ID: id, End: end})
	for i := len(b.Leases) - 1; i > 0 && b.Leases[i-1].End > end; i-- {
		b.Leases[i-1], b.Leases[i] = b.Leases[i], b.Leases[i-1]
	}
}

// release removes a lease.
func (b *Booking) release(id int64) bool {
	for i := range b.Leases {
		if b.Leases[i].ID == id {
			b.Leases = slices.Delete(b.Leases, i, i+1)
			return true
		}
	}
	return false
}

// forget makes s new, in the memory it has.
func (l *Limits) forget(s *State) {
	b := s.Booking
	*s = l.New()
	if b != nil {
		*b = Booking{Window: l.Window, Further: b.Further[:0], Leases: b.Leases[:0]}
		s.Booking = b
	}
}

// until is State.Until: a time by which s has refilled, a new entity would be just as full, and no slot given and no
// lease lies ahead.
func (l *Limits) until(s *State) int64 {
	if s.InUse > 0 {
		return math.MaxInt64
	}
	from := max(s.Ops.Last, l.Start)
	until := add(s.Wait.Last, l.RefreshInterval)
	for i := range l.windows() {
		w := l.window(i)
		missing := max(w.Size, sub(w.Size, *s.ledger(ops, i)))
		until = max(until, add(from, mul(add((missing-1)/w.RefreshRate, 2), w.RefreshInterval)))
	}
	if b := s.Booking; b != nil {
		until = max(until, add(b.Late.Last, l.RefreshInterval), b.Closed, b.Claim)
		if n := len(b.Leases); n > 0 {
			until = max(until, b.Leases[n-1].End)
		}
		if b.tickets() > 0 {
			until = max(until, add(max(b.Old.Last, b.New.Last), l.grace()+1))
		}
	}
	return until
}

// booking is what s has for Admit, as wide as the limits.
func (l *Limits) booking(s *State) *Booking {
	if s.Booking == nil {
		s.Booking = &Booking{Window: l.Window}
	}
	b := s.Booking
	for len(b.Further) > len(l.Windows) {
		b.Further = b.Further[:len(b.Further)-1]
	}
	for i := len(b.Further); i < len(l.Windows); i++ {
		f := Further{Window: l.Windows[i]}
		if s.Ops.Last > l.Start { // a window that was added: of what ran before nothing is known
			f.Ops, f.Wait, f.Late = f.Window.Size, f.Window.Size, f.Window.Size
		}
		b.Further = append(b.Further, f)
	}
	return b
}

// adopt counts what has run up to now by the limits of before, if they have changed since: a higher rate brings
// nothing for the time it was not there.
func (l *Limits) adopt(s *State, now int64) {
	b := s.Booking
	changed := b.Window != l.Window
	for i := range b.Further {
		changed = changed || b.Further[i].Window != l.Windows[i]
	}
	if !changed {
		return
	}
	for i := range l.windows() {
		before, w := &b.Window, l.window(i)
		if i > 0 {
			before = &b.Further[i-1].Window
		}
		p := s.ledger(ops, i)
		*p = before.gain(Ledger{s.Ops.Last, *p}, now)
		if *p <= 0 && now < b.Closed && before.spare() && w.spare() {
			if dry := before.dry(now, b.Closed); *p <= -dry { // throttled: by the new limit, then
				*p = sub(add(*p, dry), w.dry(now, b.Closed))
			}
		}
		*p = min(*p, w.Size)
		*before = *w
	}
	s.Ops.Last = now
}

func (l *Limits) windows() int { return 1 + len(l.Windows) }

// window is the i-th one.
func (l *Limits) window(i int) *Window {
	if i == 0 {
		return &l.Window
	}
	return &l.Windows[i-1]
}

func (l *Limits) concurrency() int64 {
	if l.Concurrency == 0 {
		return l.Size
	}
	return l.Concurrency
}

// inUse is how many tokens are out.
func (s *State) inUse() int64 {
	if s.Booking == nil {
		return s.InUse
	}
	return s.InUse + int64(len(s.Booking.Leases))
}

// last is the time of a line.
func (s *State) last(line ledger) *int64 {
	switch line {
	case ops:
		return &s.Ops.Last
	case wait:
		return &s.Wait.Last
	}
	return &s.Booking.Late.Last
}

// ledger is the capacity of a line's i-th window at that time.
func (s *State) ledger(line ledger, i int) *int64 {
	if i > 0 {
		f := &s.Booking.Further[i-1]
		switch line {
		case ops:
			return &f.Ops
		case wait:
			return &f.Wait
		}
		return &f.Late
	}
	switch line {
	case ops:
		return &s.Ops.Capacity
	case wait:
		return &s.Wait.Capacity
	}
	return &s.Booking.Late.Capacity
}

// mulTime is the beginning of the n-th interval.
func mulTime(n, interval int64) int64 {
	if n < 0 {
		return -mul(-n, interval)
	}
	return mul(n, interval)
}
