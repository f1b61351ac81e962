package decision

// view is the state of an entity as an operation finds it.
type view struct {
	at      int64 // the earliest start
	bound   Bound // the cause; BoundNone: it runs
	slot    int64 // the next slot to promise
	number  int64 // the number of the ticket; 0 if it has none, or if the entity was forgotten: shared limits still have its slot
	denied  bool  // it is due, but a window or a longer closing denies it
	fresh   bool  // it has no slot, or lost its slot: it books a new one
	spare   bool  // it takes capacity that booked operations leave
	again   int64 // us from one denied ticket to the next, as far as windows tell; when adds what tokens tell
	overdue int64 // see Limits.overdue
	round   int64 // for how long all tokens have been in use, if no operation has ended
	refund  int64 // when operations in flight have probably given back enough; 0 if a window has room before or something else delays it
	turn    bool  // it asks again after the denied tickets before it: see State.turn
	ends    int64 // the end of that turn, in us
	soon    bool  // it lacks only a token, in any limit
	line    int64 // the shared limit in whose line of the entity it waits: the busiest one, or one that is closed; -1 if there is none
}

// look returns the view of an operation. It changes nothing. It has three steps:
//
//  1. the earliest start by the closing and by each window;
//  2. the slot of an operation without one, and whether a ticket has come back too early;
//  3. whether a token is free.
func (l *Limits) look(s *State, leases Leases, op *Op) (v view) {
	t, now := &op.Ticket, s.Now
	if s.numbered(t) {
		v.number = t.Number
	}
	v.at = max(now, s.Closed)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost, left := op.Cost[w.Unit], line.Left-s.passing(w, op)
		at := w.room(s, left, cost, now)
		if at > now && s.Closed <= now { // else see opens
			v.again = max(v.again, line.spanUS(cost))
		}
		if refund := l.refund(s, line, cost-left); refund < at {
			at, v.refund = refund, max(v.refund, refund)
		}
		if at > v.at {
			v.at, v.bound = at, BoundWindow+Bound(i)
		}
	}
	if v.refund < v.at { // something else takes longer
		v.refund = 0
	}
	w := &l.Windows[l.Shortest]
	v.denied = op.back() && t.Slot <= now && (v.bound > BoundNone || w.interval(v.at) > w.interval(now)) && v.refund == 0
	v.fresh = !op.back()
	if v.denied {
		// A ticket loses its slot when it is denied for the second time, or is much too late.
		//
		// It keeps the slot if it may run before the refresh of a longer window, and the next free slot comes after that refresh.
		// Else nobody would use that capacity. If it had a turn already, the booked operations leave no room for it. Then it asks
		// again behind half of them and the denied ones.
		//
		// A ticket that only a shared limit has delayed has no slot yet: it has a cost, but no number. The ticket of an operation
		// that runs again has no cost.
		late := !op.Urgent && (now-t.Slot > l.grace() || t.Again > 0 || s.passed())
		if late && t.Again < unbooked && !l.refreshes(s, now, v.at) && l.refreshes(s, v.at, s.Slot) {
			late = false
			if t.Again == denied {
				v.at = max(v.at, l.halfway(s)+max(0, s.AgainUS/1000-now))
			}
		}
		v.fresh = late || v.number == 0 && max(t.Cost[0], t.Cost[1], t.Cost[2], t.Cost[3]) > 0
	}
	if v.fresh {
		l.newSlot(s, op, &v)
	} else if v.at == now && l.early(s, op) {
		v.at, v.bound = t.Slot, BoundBooked
	}
	if v.at == now {
		out := leases.Out(now)
		if s.Plain+out+l.yields(s, op) >= l.Tokens || !op.back() && !v.spare && !op.Urgent && s.AgainUS > now*1000 {
			v.bound = BoundTokens
			if out >= l.Tokens {
				v.overdue = l.overdue(s)
				if s.Ended == 0 {
					v.round = min(max(0, now-s.LastID/1024), longest)
				}
			}
			// A newcomer that takes spare capacity has the place of a ticket that was denied or lost. So it books no capacity,
			// and asks again when its turn for a token comes.
			v.fresh = v.fresh && !v.spare
		}
	}
	if v.refund > 0 {
		v.overdue = l.overdue(s)
	}
	v.turn = !v.fresh && t.Slot <= now || v.fresh && v.refund > 0
	if s.Closed > now {
		v.bound = BoundClosed
	}
	return v
}

// early reports whether a ticket has come back too early, since others are due before. It is due in a later interval of a window
// that brings its cost more slowly than tokens come back. And the windows have no room for it beside all promises. In the last
// moment before its slot, of the length soon, it runs if it can.
func (l *Limits) early(s *State, op *Op) bool {
	later, beside, pace := false, true, l.pace(s)
	for i := range l.Windows {
		w := &l.Windows[i]
		cost := op.Cost[w.Unit]
		later = later || w.interval(op.Ticket.Slot) > w.interval(s.Now) && pace < w.spanUS(cost)
		beside = beside && s.Lines[i].beside(s, cost)
	}
	return later && !beside && !op.Urgent && op.Ticket.Slot > s.Now+soon
}

// refreshes reports whether a window that is longer than the shortest is refreshed between two times, and may be used up before.
func (l *Limits) refreshes(s *State, from, to int64) bool {
	shortest, left := &l.Windows[l.Shortest], s.Lines[l.Shortest].Left
	for i := range l.Windows {
		w, more := &l.Windows[i], s.Lines[i].Left-left // than what the shortest window has now
		if w.Interval > shortest.Interval && w.interval(to) > w.interval(from) {
			n := shortest.interval(w.Next(from)-1) - shortest.interval(s.Now)
			if more < 0 || more/shortest.Rate < n || w.Unit != shortest.Unit {
				return true
			}
		}
	}
	return false
}

// halfway returns the time by which half of the operations that may run before the refresh of a longer window have probably run.
func (l *Limits) halfway(s *State) int64 {
	w, usual, at := &l.Windows[l.Shortest], s.Lines[l.Shortest].usual(s), int64(Never)
	for i := range l.Windows {
		if longer, line := &l.Windows[i], &s.Lines[i]; longer.Interval > w.Interval {
			n := max(0, line.Left) / max(1, line.usual(s)) // operations
			at = min(at, longer.Next(s.Now), w.room(s, s.Lines[l.Shortest].Left, min(n, bound/(usual+1))*usual/2, s.Now))
		}
	}
	return at
}

// newSlot sets the next slot to promise, which is the earliest start of an operation without one. A newcomer may start before
// it in three cases. Either it takes nothing of the unit that is short, or the booked operations do not come, or they leave
// capacity: see apart, unused and spare.
func (l *Limits) newSlot(s *State, op *Op, v *view) {
	v.slot = s.Closed
	from := l.behind(s)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if cost := op.Cost[w.Unit]; op.Urgent {
			u := s.urgent(w.Unit)
			v.slot = max(v.slot, w.room(s, line.Left-u.booked, cost, s.Now))
		} else {
			v.slot = max(v.slot, w.room(s, line.Promised, cost, from))
		}
	}
	if s.Slot > s.Now && !op.Urgent && s.Lines[l.Shortest].Promised < l.Windows[l.Shortest].Size { // else nobody has a slot there
		v.slot = max(v.slot, s.Slot+l.space(s)/1000)
	}
	at := int64(Never) // when it may start before its slot
	if v.slot > v.at || s.AgainUS > s.Now*1000 {
		at = l.apart(s, op, v)
	}
	if v.slot > v.at || at == s.Now {
		// If LastID is 0, no ticket comes back. Urgent newcomers do not pass denied tickets, which may be urgent, too.
		turn := l.unused(s, op, v)
		spare := (turn < Never || l.spare(s, op, v)) && (!op.Urgent || s.AgainUS <= s.Now*1000)
		v.spare = v.at == s.Now && (s.LastID == 0 || at == s.Now || spare)
		if !v.spare {
			at = min(at, turn)
			v.spare = at-s.Now < (v.slot-s.Now)/2 // else it books its slot, which is hardly later
			v.fresh = !v.spare                    // it has a turn
			v.at, v.bound, v.refund = min(at, v.slot), BoundBooked, 0
		}
	}
}

// apart is for an operation that takes nothing of some unit, while the booked operations wait for that unit. It returns the time at
// which the windows have room for it behind those of them for which the unit has room before. For any other operation it returns
// Never. It also returns Never if a window of its own units may be the reason for the last slot. Until then that window brings
// no more than all tickets can take.
func (l *Limits) apart(s *State, op *Op, v *view) int64 {
	due, at := int64(MostUnits), v.at // operations
	for i := range l.Windows {
		if w, line := &l.Windows[i], &s.Lines[i]; op.Cost[w.Unit] == 0 {
			each := line.usual(s)
			if each == 0 { // none of them has run yet
				each = line.Largest
			}
			if each > 0 {
				due = min(due, max(0, w.gain(s, line.Left, s.Now, v.at))/each)
			}
		}
	}
	if due == MostUnits || op.Urgent {
		return Never
	}
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost, usual, n := op.Cost[w.Unit], max(1, line.usual(s)), w.interval(s.Slot)-w.interval(s.Now)
		if cost > 0 && line.Left-cost+min(n, bound/w.Rate)*w.Rate < line.waits(s) {
			return Never
		}
		at = max(at, w.room(s, line.Left-min(s.promised(w.Unit), min(due, bound/usual)*usual), cost, s.Now))
	}
	return at
}

// unused returns the time of the next turn, if the booked operations before the slot of a newcomer probably do not come: see
// abandoned. Else it returns Never. Turns begin when a window that is used up has room.
func (l *Limits) unused(s *State, op *Op, v *view) int64 {
	if !l.abandoned(s, op, v.slot) {
		return Never
	}
	for i := range l.Windows {
		line := &s.Lines[i]
		v.again = max(v.again, line.spanUS(op.Cost[line.Window.Unit]))
	}
	v.overdue = v.at - s.Now
	return s.turn(v.overdue) / 1000
}

// abandoned reports whether a slot is at least 300 intervals ahead, but the booked operations have left all of the capacity lately. Then
// they probably do not come, and newcomers wait only for each other. Windows that are longer than the shortest one of their unit, and
// would tell it later, are not asked.
func (l *Limits) abandoned(s *State, op *Op, slot int64) bool {
	shortest := &l.Windows[l.Shortest]
	abandoned := slot-s.Now >= max(10*minute, 300*shortest.Interval)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost, longer := op.Cost[w.Unit], w.Unit == shortest.Unit && w.Interval > shortest.Interval
		abandoned = abandoned && (cost == 0 || longer || line.Spare >= fades*max(min(w.Rate, w.Size), line.usual(s), cost))
	}
	return abandoned
}

// spare reports whether a newcomer of this cost takes nothing from the booked operations. That is so if each window has room
// beside them until its refresh, or if they are expected to leave as much. Denied tickets that have not had their turn do
// come. The remaining capacity is theirs first, as far as the window brings less until their turn.
func (l *Limits) spare(s *State, op *Op, v *view) bool {
	turns := max(0, min(s.AgainUS-s.Now*1000, bound))
	tickets := min(turns/max(1, l.denials(s, v)), s.Next-s.Head/16) // denied ones
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost := op.Cost[w.Unit]
		each := line.weight(cost, 0)
		short := tickets - turns/max(1, w.spanUS(each)) // so many that the window does not serve until then
		if !line.beside(s, cost) && (!line.spares(cost) || line.Left-cost < min(short, bound/each)*each) {
			return false
		}
	}
	return true
}

// beside reports whether the window has room for cost beside the booked operations until its refresh.
func (line *Line) beside(s *State, cost int64) bool {
	w := &line.Window
	return cost == 0 || w.interval(s.Slot) == w.interval(s.Now) && line.Promised >= line.weight(cost, 0)
}
