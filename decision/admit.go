package decision

// admit answers Admit and GetDelay.
func (l *Limits) admit(s *State, leases Leases, shared []Shared, op *Op, before int64, a *Answer) {
	plain := op.Kind == GetDelay
	if plain {
		op.Cost = Cost{1}
	}
	// As long as an entity knows nothing but GetDelay, its delays equal those of the library that drip replaces.
	if plain && len(shared) == 0 && len(s.Lines) == 1 && l.Windows[0].Unit == 0 && s.LastID == 0 && s.Next == 0 && s.Closed <= s.Now {
		l.classic(s, op, before, a)
	} else {
		l.decide(s, leases, shared, op, a)
	}
	if plain {
		a.Ticket = Ticket{}
	} else if a.Delay == 0 {
		l.lease(s, leases, shared, op, a)
	} else { // a ticket may come back: from now on GetDelay leaves the slots of tickets free
		s.LastID = max(s.LastID, 1)
		for i := range shared {
			shared[i].State.LastID = max(shared[i].State.LastID, 1)
		}
	}
}

// lease holds a token in all limits, under one ID.
func (l *Limits) lease(s *State, leases Leases, shared []Shared, op *Op, a *Answer) {
	// An ID is at least 1024 times the ms of its lease. So it is above the IDs of before the entity was forgotten.
	id := max(s.LastID+1, s.Now*1024)
	for i := range shared {
		id = max(id, shared[i].State.LastID+1)
	}
	a.Lease = Lease{ID: id, Begin: s.Now, End: s.Now + l.Lease, Cost: op.Cost}
	l.grant(s, leases, &a.Lease)
	for i := range shared {
		x := &shared[i]
		x.Limits.grant(x.State, x.Leases, &a.Lease)
	}
}

// grant holds a lease in one limit.
func (l *Limits) grant(s *State, leases Leases, lease *Lease) {
	leases.Hold(lease.ID, lease.End)
	s.LastID = lease.ID
	if s.Ended == 0 && s.Last == 0 {
		s.Last = lease.Begin
	}
	for i := range l.Windows {
		line := &s.Lines[i]
		line.Fresh += lease.Cost[line.Window.Unit]
	}
}

// decide answers Admit, and the GetDelay that classic does not answer. First the entity's own limit and each shared limit
// tell whether they let the operation run now. If all do, it runs. Otherwise suit finds the first slot that suits all, and
// postpone books it.
func (l *Limits) decide(s *State, leases Leases, shared []Shared, op *Op, a *Answer) {
	s.rest(leases)
	l.line(s)
	s.expireUrgent(s.Now - l.grace())
	if !op.back() && l.idle(s) && s.due() && s.Plain+leases.Out(s.Now) < l.Tokens {
		l.forget(s, MostUnits)
	}
	if op.Urgent {
		s.takeUrgent(&op.Ticket)
	}
	v := l.look(s, leases, op)
	fits := v.bound == BoundNone
	v.soon = fits || v.bound == BoundTokens
	// The ticket leaves the books of all limits before one of them looks: able compares what waits for one with the others.
	for i := range shared {
		x := &shared[i]
		x.flow = s.flow(x.Key)
		if !op.back() {
			x.ask(&op.Cost)
		}
		x.enter(&s.Flows[x.flow], op)
		if !op.back() {
			x.forget()
		}
	}
	for i := range shared {
		x := &shared[i]
		f := &s.Flows[x.flow]
		x.able = l.able(s, op, x.Limits.Grain) * 1024
		x.compare(s, shared)
		x.weigh(f)
		x.look(f, op)
		fits = fits && x.fits()
		v.soon = v.soon && (x.fits() || x.bound == BoundTokens)
	}
	if fits && (op.Deadline <= 0 || s.Now <= op.Deadline) {
		l.run(s, op, &v)
		for i := range shared {
			x := &shared[i]
			x.run(&s.Flows[x.flow], op)
		}
		return
	}
	own := s.Now + 1 // the slot by the entity's own limit
	if v.bound != BoundNone {
		own = l.when(s, op, &v)
		a.Bound = v.bound
	}
	v.line = busiest(shared, op)
	slot := l.suit(s, shared, op, &v, own, a)
	a.Delay = slot - s.Now
	asks := false
	if !op.back() {
		again := int64(Never)
		if a.Limit == 0 {
			again = min(l.unmeasured(s, leases, op, a), l.lapse(s, op, a))
		} else {
			x := &shared[a.Limit-1]
			again = min(x.Limits.unmeasured(x.State, x.Leases, op, a), x.lapse(op, a))
		}
		asks = again < a.Delay
		if asks {
			a.Delay = max(again, s.opens(shared)-s.Now)
		}
	}
	if op.Deadline > 0 && s.Now+a.Delay > op.Deadline {
		a.Late = true
		l.unbook(s, op)
	} else if !asks {
		l.postpone(s, shared, op, &v, own, slot, a)
	}
}

// opens returns the time at which the entity and its shared limits are open.
func (s *State) opens(shared []Shared) int64 {
	at := s.Closed
	for i := range shared {
		at = max(at, shared[i].State.Closed)
	}
	return at
}

// run takes the capacity and counts the ticket as back.
func (l *Limits) run(s *State, op *Op, v *view) {
	if v.spare || op.Ticket.Again == unbooked {
		l.overtake(s, op)
	}
	l.take(s, op)
	if !op.back() && !v.spare && !op.Urgent {
		l.promise(s, s.Slot, op, 0, false)
	}
	if waiting := s.waiting(); !op.back() && waiting > 0 { // a token was free although others wait for one: they are fewer than their numbers
		if !l.idle(s) {
			waiting = (waiting + 15) / 16
		}
		l.forget(s, waiting)
	} else if v.number > 0 { // one ticket is back, of a number near Head: Head moves on by one, and a little towards this number
		s.Head += max(128, 512+v.number*16-s.Head) / 32
	}
}

// waiting returns about how many tickets wait for tokens, times 16.
func (s *State) waiting() int64 { return max(0, s.Next*16-s.Head) }

// due reports whether all tickets wait for tokens: no slot lies ahead, and no line for a shared limit.
func (s *State) due() bool {
	last := s.Slot
	for i := range s.Flows {
		last = max(last, s.Flows[i].End)
	}
	return last <= s.Now
}

// forget takes so many tickets, times 16, for lost. If all of the entity's are due, the windows get the promises of the lost ones back.
func (l *Limits) forget(s *State, tickets int64) {
	s.Head += min(tickets, s.waiting())
	if s.due() {
		for i := range l.Windows {
			line := &s.Lines[i]
			usual := max(1, line.usual(s))
			line.Promised = max(line.Promised, min(line.Left, line.Promised+min((tickets+15)/16, bound/usual)*usual))
		}
	}
}

// idle reports whether no operation has begun for so long, though none was denied a token, that the tickets that wait for one probably do
// not come.
func (l *Limits) idle(s *State) bool {
	since := s.Now - max(s.LastID/1024, s.Closed)
	return since >= lateness && s.LastID > 1 && s.AgainUS <= s.Now*1000 && since >= l.patience(s)
}

// lateness is how late queues may be, in ms.
const lateness = 10_000

// patience is the time of 16 operations, at least as long as queues may be late.
func (l *Limits) patience(s *State) int64 { return max(lateness, l.pace(s)*16/1000) }

// overtake counts the capacity of an operation that goes before the booked ones. A window with room beside them promises
// that capacity now. In any other window the operation takes spare capacity, which measure has to know.
func (l *Limits) overtake(s *State, op *Op) {
	for i := range l.Windows {
		line := &s.Lines[i]
		if cost := op.Cost[line.Window.Unit]; line.beside(s, cost) {
			line.Promised -= line.weight(cost, 0)
		} else {
			line.Taken += cost
		}
	}
}

// take takes the capacity of one limit, and a token for a caller without leases.
func (l *Limits) take(s *State, op *Op) {
	for i := range s.Lines {
		line := &s.Lines[i]
		line.Left -= op.Cost[line.Window.Unit]
	}
	s.used(op.Cost[l.Windows[0].Unit])
	if op.Kind == GetDelay {
		s.Plain++
	}
}

// suit returns the first slot from own on that suits all limits. It sets the Limit and the Bound of the answer.
//
// Each limit may move the slot to where another has no room. So suit goes round until no limit moves it. Eight rounds bound the
// work: an operation whose slot still moves asks again there.
//
// If the entity's own windows delay a newcomer for longer than the shared limits do, the own limit is the cause. Then suit moves
// v.slot to the slot, so that the windows promise capacity to these newcomers once, also if their lines differ. A line that is
// long because of a shared limit is no such cause: alone the windows would take less than half of that time.
func (l *Limits) suit(s *State, shared []Shared, op *Op, v *view, own int64, a *Answer) int64 {
	w, joins := &l.Windows[l.Shortest], !op.back() && v.bound != BoundTokens
	slot, before, rounds := own, int64(0), int64(0)
	for before < slot && rounds < 8 {
		before = slot
		rounds++
		for i := range shared {
			x := &shared[i]
			f := &s.Flows[x.flow]
			at := x.place(f, op, slot, a.Limit > 0 && a.Limit != int64(i)+1)
			held := at > slot && (a.Limit == 0 || x.holds(slot)) // beyond the calendar the limits before are the cause
			if held || a.Bound == BoundNone && !x.fits() {
				a.Limit, a.Bound = int64(i)+1, x.bound
				if x.fits() { // it fits now, but not then
					a.Bound = BoundBooked
				} else if x.bound == BoundClosed {
					v.line = int64(i)
				}
			}
			slot = at
			if int64(i) == v.line && l.lined(s, x, f, op, v, slot, a) {
				at, slot = slot, l.inLine(s, x, f, op, v, slot)
				if joins && slot-s.Now > 2*(at-s.Now) && 2*l.drains(s, f, op, x.part) > slot-s.Now {
					slot = max(slot, v.slot)
					a.Limit, a.Bound, v.slot = 0, BoundBooked, slot
				}
			}
			slot = min(slot, Never/2) // rounds of a debt that takes ages
		}
	}
	if joins && v.bound != BoundNone && a.Bound > BoundTokens && w.interval(slot) == w.interval(own) {
		a.Limit, a.Bound = 0, v.bound
	}
	return slot
}

// postpone puts an operation on the books of all limits, and gives it a ticket. own is the slot that it would have without
// the shared limits.
func (l *Limits) postpone(s *State, shared []Shared, op *Op, v *view, own, slot int64, a *Answer) {
	a.Ticket = Ticket{Slot: slot, Number: v.number, Again: op.Ticket.Again, Cost: op.Cost}
	// An operation that its own windows deny books them again, also if a shared limit holds it for longer.
	if a.Limit == 0 || op.back() && v.bound >= BoundWindow && !op.Urgent {
		v.turn = v.turn && slot <= own+soon // else the shared limit holds it past its turn
		l.book(s, op, v, a)
	}
	// While a shared limit holds it for longer, the entity's others run.
	if op.Urgent && (a.Limit == 0 || slot-own <= min(10*l.Windows[l.Shortest].Interval, 10_000)) {
		s.putUrgent(&a.Ticket)
	}
	for i := range shared {
		x := &shared[i]
		f := &s.Flows[x.flow]
		if int64(i) == v.line && l.lined(s, x, f, op, v, slot, a) {
			w, line := &l.Windows[l.Shortest], &s.Lines[l.Shortest]
			end := max(slot, f.End)
			f.Left = l.ahead(s, f, op, v, end) - line.weight(op.Cost[w.Unit], 0)
			f.End = end
			if end == s.Slot {
				line.Promised = min(line.Promised, f.Left)
			}
		}
		if a.Limit > 0 || v.bound != BoundTokens || !s.unnumbered(op) { // it comes back without the slot
			x.book(f, op, &a.Ticket)
		}
	}
}

// A slot is far if it comes more than far ms after the first operations. Such a slot depends on the cost and the duration of operations,
// and estimates of them are often several times too high. So before the first operations are measured, a message gets no far slot, but
// asks again. Slots of the next interval are not far, nor are those of the next few operations, for up to a minute. If only durations
// matter, it is a minute.
const far = 20_000

// unmeasured returns the time after which a message with a far slot asks again, or Never if it books the slot. The first operations have
// probably ended by then. The longer they run, the longer they are likely to run. As long as none has ended, the time grows, since
// perhaps nobody settles them. Operations that are due in this grain of a shared limit may just begin. If none has begun since the opening,
// booked ones begin as soon as the windows have room.
func (l *Limits) unmeasured(s *State, leases Leases, op *Op, a *Answer) int64 {
	if s.Ended >= few {
		return Never
	}
	out := leases.Out(s.Now)           // operations that run, or may begin soon
	first := max(s.Now, s.Closed)      // when they run, or begin
	span, scarce := int64(0), int64(0) // of the window that takes longest for it: that time, and the cost there
	for i := range l.Windows {
		w := &l.Windows[i]
		cost := op.Cost[w.Unit]
		if each := w.spanUS(cost); each > span {
			span, scarce = each, cost
		}
		if out == 0 {
			first = max(first, w.room(s, s.Lines[i].Left, cost, s.Now))
		}
	}
	for i := range s.Calendars {
		c := &s.Calendars[i]
		out += c.at(c.Head)
	}
	if s.Slot > s.Now && s.LastID/1024 <= s.Closed { // none has begun since the opening
		out++
	}
	delay, most := s.Now+a.Delay-first, int64(minute)
	if scarce > 1 { // else a call costs one, and estimates say only how long it takes
		most = min(most, max(far, l.grace(), few*span/1000))
	}
	if delay <= most || out == 0 || scarce < 2 && a.Bound != BoundTokens {
		return Never
	}
	since := s.LastID / 1024
	if s.Ended == 0 && s.Last == 0 { // none has begun
		since = s.Now
	} else if s.Ended == 0 {
		since = 2*s.Last - s.Now
	}
	wait := max(l.mean(s), s.Now-since) + 1
	if delay/4 <= wait { // it would ask several times
		return Never
	}
	return first - s.Now + max(wait, min(delay/2, far))
}

// lapse returns how long the booked operations will probably take to use up a window, if they come. It returns Never unless only their
// promises delay a newcomer, by ten minutes or more. Such a newcomer books no slot, which may be in the next day: tickets that wait for
// tokens may be lost, and operations that cost less than their estimates leave room.
func (l *Limits) lapse(s *State, op *Op, a *Answer) int64 {
	wait := int64(Never)
	if a.Bound != BoundBooked || a.Delay < 10*minute {
		return wait
	}
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost := op.Cost[w.Unit]
		if w.room(s, line.Left, cost, s.Now) >= s.Now+10*minute {
			return Never
		}
		if line.Promised < cost && (line.overestimated() || s.due()) {
			wait = min(wait, max(0, s.Slot-s.Now)+l.uses(s, line))
		}
	}
	return wait
}

// uses returns how long operations that wait for tokens will probably take for what a window has left, if they come.
func (l *Limits) uses(s *State, line *Line) int64 {
	pace := l.pace(s)
	return min(max(0, line.Left)/max(1, line.usual(s)), bound/pace)*pace/1000 + l.patience(s)
}
