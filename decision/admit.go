package decision

// admit answers Admit and GetDelay.
func (l *Limits) admit(s *State, leases Leases, shared []Shared, op *Op, before int64, a *Answer) {
	plain := op.Kind == GetDelay
	if plain {
		op.Cost = Cost{1}
	}
	if plain && len(shared) == 0 && len(s.Lines) == 1 && l.Windows[0].Unit == 0 && s.LastID == 0 && s.Next == 0 && s.Closed <= s.Now {
		l.classic(s, op, before, a)
	} else {
		l.decide(s, leases, shared, op, a)
	}
	if plain {
		a.Ticket = Ticket{}
	} else if a.Delay == 0 {
		l.lease(s, leases, shared, op, a)
	} else { // a ticket that may come back
		s.LastID = max(s.LastID, 1)
		for i := range shared {
			x := &shared[i]
			x.State.LastID = max(x.State.LastID, 1)
		}
	}
}

// lease holds a token in all limits, under one ID.
func (l *Limits) lease(s *State, leases Leases, shared []Shared, op *Op, a *Answer) {
	id := max(s.LastID+1, s.Now*1024) // later than the leases of before the entity was forgotten
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

// decide answers Admit, and the GetDelay that classic does not answer.
func (l *Limits) decide(s *State, leases Leases, shared []Shared, op *Op, a *Answer) {
	s.rest(leases)
	l.line(s)
	s.expireUrgent(s.Now - l.grace())
	if op.Urgent {
		s.takeUrgent(&op.Ticket)
	}
	v := l.look(s, leases, op)
	fits := v.bound == BoundNone
	v.soon = fits
	for i := range shared {
		x := &shared[i]
		x.flow = s.flow(x.Key)
		f := &s.Flows[x.flow]
		if !op.back() {
			x.ask(&op.Cost)
		}
		x.enter(f, op)
	}
	for i := range shared {
		x := &shared[i]
		f := &s.Flows[x.flow]
		x.able = l.able(s, op, x.Limits.Grain) * 1024
		for k := range shared {
			y := &shared[k]
			g := &s.Flows[y.flow] // all that waits for x waits for y, too
			if k != i && y.Limits.Grain <= x.Limits.Grain && (g.Units+g.Later)/max(1, y.part) >= (f.Units+f.Later)/max(1, x.part) {
				x.able = min(x.able, y.allows(x.Limits.Grain))
			}
		}
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
	own := s.Now + 1
	if v.bound != BoundNone {
		own = l.when(s, op, &v)
		a.Bound = v.bound
	}
	v.line = busiest(shared, op)
	slot := l.suit(s, shared, op, &v, own, a)
	a.Delay = slot - s.Now
	asks := false
	if !op.back() {
		wait := l.unmeasured(s, leases, op, a)
		if a.Limit > 0 {
			x := &shared[a.Limit-1]
			wait = x.Limits.unmeasured(x.State, x.Leases, op, a)
		}
		asks = a.Delay > far && a.Delay/4 > wait
		if asks {
			a.Delay = max(wait, min(a.Delay/4, asksAgain))
		}
	}
	if op.Deadline > 0 && s.Now+a.Delay > op.Deadline {
		a.Late = true
		l.unbook(s, op)
	} else if !asks {
		l.postpone(s, shared, op, &v, own, slot, a)
	}
}

// suit returns the first slot from own on that suits all limits. It sets the Limit and the Bound of the answer. If the entity's own windows
// delay a newcomer for longer than the shared limits do, the own limit is the cause, and suit moves v.slot to the slot. So its windows
// promise capacity to these newcomers once, also if their lines differ. A line that is long because of a shared limit is no such
// cause: alone the windows would take less than half of the time for it.
func (l *Limits) suit(s *State, shared []Shared, op *Op, v *view, own int64, a *Answer) int64 {
	w, joins := &l.Windows[l.Shortest], !op.back() && v.bound != BoundTokens
	slot, before, rounds := own, int64(0), int64(0)
	for before < slot && rounds < 8 {
		before = slot
		rounds++
		for i := range shared {
			x := &shared[i]
			at := x.place(&s.Flows[x.flow], op, slot, a.Limit > 0 && a.Limit != int64(i)+1)
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
			f := &s.Flows[x.flow]
			if int64(i) == v.line && l.lined(s, x, f, op, v, slot, a) {
				at, slot = slot, l.inLine(s, x, f, op, v, slot)
				if joins && slot-s.Now > 2*(at-s.Now) && 2*l.drains(f, op, x.part) > slot-s.Now {
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

// postpone puts an operation on the books of all limits, and gives it a ticket. Without the shared limits it would have the slot own.
func (l *Limits) postpone(s *State, shared []Shared, op *Op, v *view, own, slot int64, a *Answer) {
	// An operation that its own windows deny books them again, also if a shared limit holds it for longer.
	if denied := op.back() && v.bound >= BoundWindow && !op.Urgent; denied || a.Limit == 0 {
		l.book(s, op, v, a)
	} else {
		a.Ticket = Ticket{Slot: slot, Number: v.number, Again: op.Ticket.Again, Cost: op.Cost}
	}
	// While a shared limit holds it for longer, the entity's others run.
	if op.Urgent && (a.Limit == 0 || slot-own <= min(10*l.Windows[l.Shortest].Interval, 10_000)) {
		s.putUrgent(&a.Ticket)
	}
	for i := range shared {
		x := &shared[i]
		f := &s.Flows[x.flow]
		if int64(i) == v.line && l.lined(s, x, f, op, v, slot, a) {
			end := max(slot, f.End)
			f.Left = l.ahead(s, f, op, v, end) - op.Cost[l.Windows[l.Shortest].Unit]
			f.End = end
			if line := &s.Lines[l.Shortest]; end == s.Slot {
				line.Promised = min(line.Promised, f.Left)
			}
		}
		if a.Limit > 0 || v.bound != BoundTokens || !s.unnumbered(op) { // it comes back without the slot
			x.book(f, op, &a.Ticket)
		}
	}
}

// A slot more than far ms ahead depends on the first measured operations: estimates of their cost and their duration are often
// several times too high. Without them a message gets no slot. It asks again, when a quarter of that time or asksAgain is over, or
// later if they will not be known then.
const (
	far       = minute
	asksAgain = 20_000 // ms
)

// unmeasured returns how long it will probably take until operations have ended that tell the cost, or the duration if tokens are
// short, or Never if that does not matter. The longer they run, the longer they are likely to run. As long as none has ended, it
// grows with each time, since perhaps nobody settles them. Operations that are due in this grain of a shared limit may just begin.
func (l *Limits) unmeasured(s *State, leases Leases, op *Op, a *Answer) int64 {
	out := leases.Out(s.Now)
	for i := range s.Calendars {
		c := &s.Calendars[i]
		out += c.at(c.Head)
	}
	if s.Ended >= few || s.Closed > s.Now || out == 0 || max(op.Cost[0], op.Cost[1], op.Cost[2], op.Cost[3]) < 2 && a.Bound != BoundTokens {
		return Never
	}
	since := s.LastID / 1024
	if s.Ended == 0 && s.Last == 0 { // none has begun
		since = s.Now
	} else if s.Ended == 0 {
		since = 2*s.Last - s.Now
	}
	return max(l.mean(s), s.Now-since) + 1
}

// lined reports whether an operation goes to the end of the line in the entity's shortest window. An operation that is
// back has been in the line: it leaves its place only if the entity's windows or the line's limit delay it again, until after
// this grain: the line may end days later. While the limit is closed it keeps its place in a line that is longer than the window takes for
// it: what the closing has left in the limit does not wait. A newcomer that lacks only a token does not wait for the line, and an
// urgent operation passes it, unless all tickets of the line are urgent and an own window is slower than the limit. Behind the refresh of a
// longer window there is no line, because that window has told the operations when to come: a line through its intervals would end days
// later for all.
func (l *Limits) lined(s *State, x *Shared, f *Flow, op *Op, v *view, slot int64, a *Answer) bool {
	w, here := &l.Windows[l.Shortest], x.Limits.grain(slot) <= x.State.Calendars[0].Head
	exists := (a.Limit > 0 || f.End > s.Now) && op.Cost[w.Unit] > 0
	closed := x.bound == BoundClosed && 3*l.drains(f, op, x.part) <= 2*(f.End-s.Now)
	keeps := op.back() && (x.fits() && here || v.bound <= BoundTokens && (x.fits() || closed || w.interval(slot) == w.interval(s.Now)))
	passes := op.Urgent && (f.Urgent < f.Units+f.Later || !x.slower(l, op, slot))
	return exists && !keeps && !passes && !x.apart && !(v.soon && here) && !x.token && slot != op.Ticket.Slot && !l.refreshes(s, s.Now, v.at)
}

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
	soon    bool  // it lacks only a token, in any limit
	line    int64 // the shared limit in whose line of the entity it waits: the busiest one, or one that is closed; -1 if there is none
}

// look returns the view of an operation. It first finds the earliest start by the closing and by each window, then the slot
// of an operation without one, and then whether a token is free. It changes nothing.
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
		if max(at, s.Closed) > now {
			v.again = max(v.again, line.spanUS(w, cost))
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
		// A ticket loses its slot when it is denied for the second time, or is much too late. It keeps the slot if it may run before
		// the refresh of a longer window, and the next free slot comes after that refresh: that capacity would be left. If it had a
		// turn already, the booked operations leave no room for it: it asks again behind half of them and the denied ones. A ticket
		// that only a shared limit has delayed has no slot yet. The ticket of an operation that runs again has no cost.
		late := !op.Urgent && (now-t.Slot > l.grace() || t.Again > 0 || s.passed())
		if late && !l.refreshes(s, now, v.at) && l.refreshes(s, v.at, s.Slot) {
			late = false
			if t.Again == denied {
				v.at = max(v.at, l.halfway(s)+max(0, s.AgainUS/1000-now))
			}
		}
		v.fresh = late || v.number == 0 && max(t.Cost[0], t.Cost[1], t.Cost[2], t.Cost[3]) > 0
	}
	if v.fresh {
		l.newSlot(s, op, &v)
	} else if v.at == now && l.early(s, op, l.pace(s)) {
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
			// A newcomer that takes spare capacity has the place of a ticket that was denied or lost: it books no capacity,
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

// early reports whether a ticket has come back too early: it is due in a later interval of a window that brings its cost more slowly than
// tokens come back, and the windows have no room for it beside all promises. Others are due before. Just before its slot it runs if it can.
func (l *Limits) early(s *State, op *Op, pace int64) bool {
	later, beside := false, true
	for i := range l.Windows {
		w := &l.Windows[i]
		cost := op.Cost[w.Unit]
		later = later || w.interval(op.Ticket.Slot) > w.interval(s.Now) && pace < w.spanUS(cost)
		beside = beside && s.Lines[i].beside(w, s, cost)
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
		longer, line := &l.Windows[i], &s.Lines[i]
		if longer.Interval > w.Interval {
			n := max(0, line.Left) / max(1, line.usual(s)) // operations
			at = min(at, longer.Next(s.Now), w.room(s, s.Lines[l.Shortest].Left, min(n, bound/(usual+1))*usual/2, s.Now))
		}
	}
	return at
}

// newSlot sets the next slot to promise, which is the earliest start of an operation without one. A newcomer starts before it
// with spare capacity.
func (l *Limits) newSlot(s *State, op *Op, v *view) {
	v.slot = s.Closed
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if cost := op.Cost[w.Unit]; op.Urgent {
			u := s.urgent(w.Unit)
			v.slot = max(v.slot, w.room(s, line.Left-u.booked, cost, s.Now))
		} else {
			v.slot = max(v.slot, w.room(s, line.Promised, cost, s.Slot))
		}
	}
	if s.Slot > s.Now && !op.Urgent && s.Lines[l.Shortest].Promised < l.Windows[l.Shortest].Size { // else nobody has a slot there
		v.slot = max(v.slot, s.Slot+l.space(s, l.pace(s))/1000)
	}
	at := int64(Never)
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
			v.spare = at-s.Now < (v.slot-s.Now)/2
			v.fresh = !v.spare // it has a turn
			v.at, v.bound, v.refund = min(at, v.slot), BoundBooked, 0
		}
	}
}

// apart returns the time at which the windows have room for an operation that takes nothing of some unit, behind the booked operations
// for which that unit has room before. For any other operation it returns Never, and so it does if one of its own windows may be the
// reason for the last slot, because until then it brings no more than all tickets can take.
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

// unused returns the time of the next turn of a denied ticket, if the slot of a newcomer is at least 300 intervals ahead, but the
// booked operations have left all of the capacity lately. Then they probably do not come, and newcomers wait only for each other. Else it
// returns Never.
func (l *Limits) unused(s *State, op *Op, v *view) int64 {
	if shortest := &l.Windows[l.Shortest]; v.slot-s.Now < max(10*minute, 300*shortest.Interval) || v.at > shortest.Next(s.Now) {
		return Never // or a longer window is used up, and no operation could come
	}
	for i := range l.Windows {
		w, line, all := &l.Windows[i], &s.Lines[i], int64(1)
		if int64(i) == l.Shortest {
			all = min(w.Rate, w.Size)
		}
		if op.Cost[w.Unit] > 0 && line.Spare < fades*all {
			return Never
		}
		v.again = max(v.again, line.spanUS(w, op.Cost[w.Unit]))
	}
	return max(v.at, s.turn(0)/1000)
}

// spare reports whether a newcomer of this cost takes nothing from the booked operations: each window has room beside
// them until its refresh, or they are expected to leave as much. Denied tickets that have not had their turn do come: what is
// left is theirs first, as far as the window brings less until then.
func (l *Limits) spare(s *State, op *Op, v *view) bool {
	turns := max(0, min(s.AgainUS-s.Now*1000, bound))
	tickets := min(turns/max(1, l.denials(s, v)), s.Next-s.Head/16) // denied ones
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost := op.Cost[w.Unit]
		each := line.weight(cost, 0)
		short := tickets - turns/max(1, w.spanUS(each)) // so many that the window does not serve until then
		if !line.beside(w, s, cost) && (!line.spares(cost) || line.Left-cost < min(short, bound/each)*each) {
			return false
		}
	}
	return true
}

// beside reports whether a window has room for cost beside the booked operations until its refresh.
func (line *Line) beside(w *Window, s *State, cost int64) bool {
	return cost == 0 || w.interval(s.Slot) == w.interval(s.Now) && line.Promised >= line.weight(cost, 0)
}

// run takes capacity.
func (l *Limits) run(s *State, op *Op, v *view) {
	if v.spare || op.Ticket.Again == unbooked {
		l.overtake(s, op)
	}
	l.take(s, op)
	if !op.back() && !v.spare && !op.Urgent {
		l.promise(s, s.Slot, op, 0, false)
	}
	if !op.back() { // a token was free although others wait for one: they are fewer than their numbers
		s.Head += max(0, s.Next*16-s.Head+15) / 16
	} else if v.number > 0 {
		s.Head += max(128, 512+v.number*16-s.Head) / 32
	}
}

// overtake counts the capacity of a newcomer that goes before the booked operations. The windows have room for it beside them, or they
// leave it.
func (l *Limits) overtake(s *State, op *Op) {
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if cost := op.Cost[w.Unit]; line.beside(w, s, cost) {
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

// when returns the slot of an operation that does not run. It changes only v.turn and v.again.
func (l *Limits) when(s *State, op *Op, v *view) int64 {
	t, slot, pace := &op.Ticket, max(v.at, s.Now+1), l.pace(s)
	v.again = l.denials(s, v)
	if v.bound == BoundTokens && op.Urgent { // urgent tickets have turns of their own, one after the other
		v.turn = false
		u, each := s.urgent(0), v.again/1000+1
		all := min(1+u.tickets, bound/max(1, v.again)) * v.again / 1000
		return max(slot, min(s.Now+v.overdue+all, max(s.Now+v.overdue, u.until)+each))
	}
	if v.bound == BoundTokens && (op.back() || v.fresh) {
		// Tokens come back at random. So the slot is early by twice the root: few operations find an idle token, and
		// none waits for long. Before the first one comes back, each round takes as long as it has taken. More than two rounds do not
		// count, because the next operations may be short.
		number := v.number
		if !op.back() {
			number = s.Next + 1
		}
		n := max(1, number-s.Head/16)
		slot = max(slot, s.Now+min(max(0, n-2*root(n)), bound/pace)*pace/1000)
		slot = max(slot, s.Now+min(max(0, n-l.Tokens)*1024/l.Tokens, 2*1024)*v.round/1024)
		if s.unnumbered(op) { // it has no number when it asks again, and until AgainUS no token is for it
			slot = max(slot, s.Now+max(l.mean(s), max(0, s.AgainUS/1000-s.Now)/4))
		}
	}
	if t.Slot > s.Now {
		slot = max(slot, t.Slot)
	} else if v.turn {
		again := s.turn(v.overdue)
		if v.bound == BoundTokens { // no token comes back before
			again = min(again+v.again, Never)
			v.turn = slot <= again/1000+4*l.mean(s) // else its turn comes much later
		}
		slot = max(slot, l.opens(s, op, v, again))
	}
	return slot
}

// opens returns the time of a turn, in ms. A window's room at the opening is for the first turns: later ones would leave it unused.
func (l *Limits) opens(s *State, op *Op, v *view, turn int64) int64 {
	number, at := (turn-s.Closed*1000)/max(1, v.again), s.Closed
	if s.Closed <= s.Now || number >= l.Tokens {
		return turn / 1000
	}
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if cost := op.Cost[w.Unit]; cost > 0 && max(0, w.gain(s, line.Left, s.Now, s.Closed))/cost <= number {
			at = max(at, s.Closed+number*line.spanUS(w, cost)/1000)
		}
	}
	return at
}

// turn returns the time at which the denied tickets have had their turn, and the operations are no longer overdue, in us.
func (s *State) turn(overdue int64) int64 {
	return max(s.AgainUS, max(s.Now+overdue, s.Closed)*1000)
}

// book gives a ticket for the slot in a.
func (l *Limits) book(s *State, op *Op, v *view, a *Answer) {
	t, now := op.Ticket, s.Now
	t.Number = v.number
	if v.spare {
		t.Again = unbooked
	}
	if !op.back() || t.Number == 0 && v.denied {
		if !s.unnumbered(op) {
			s.Next++
		}
		t.Number = s.Next
		if op.back() && !v.fresh { // it has no slot in the line; newcomers come after it
			l.promise(s, s.Slot, op, t.Number, false)
		}
	}
	if v.fresh {
		// An urgent one takes the slot of another one, and that one books again. One without a number comes back without the slot.
		if !op.Urgent && !(v.bound == BoundTokens && s.unnumbered(op)) {
			l.promise(s, v.slot, op, t.Number, v.number > 0 && op.Ticket.Again < unbooked)
		}
		t.Again = 0
		if op.back() && a.Limit == 0 && s.passed() { // else urgent operations that use all of a window starve it
			t.Again = denied
		}
	} else if v.denied && !v.spare {
		t.Again = denied
		if s.Closed <= now {
			l.deny(s, op)
		}
	}
	if v.turn {
		s.AgainUS = min(s.turn(v.overdue)+v.again, Never)
	}
	t.Slot, t.Cost = now+a.Delay, op.Cost
	a.Ticket = t
}

// deny learns that windows deny an operation that is due: newcomers took too much capacity.
func (l *Limits) deny(s *State, op *Op) {
	for i := range l.Windows {
		line := &s.Lines[i]
		if cost := op.Cost[line.Window.Unit]; line.Left < cost {
			line.Spare, line.Taken = max(line.Spare-fades*cost, -bound), max(line.Taken-cost, -bound)
		}
	}
}

// promise takes a slot. An operation that had one leaves it to the windows that have room for it, if they are not refreshed yet.
func (l *Limits) promise(s *State, slot int64, op *Op, number int64, had bool) {
	t := &op.Ticket
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if had && line.Left >= op.Cost[w.Unit] && w.gain(s, 0, t.Slot, s.Slot) == 0 {
			line.yield(w, t)
		}
		cost := line.weight(op.Cost[w.Unit], number)
		line.Promised = w.gain(s, line.Promised, s.Slot, slot) - cost
		if 2*cost >= line.Largest {
			line.Largest, line.LargestAt = max(line.Largest, cost), slot
		}
	}
	s.Slot = slot
}

// yield takes a ticket's cost off the promises of a window.
func (line *Line) yield(w *Window, t *Ticket) {
	line.Promised = min(w.Size, line.Promised+line.weight(t.Cost[w.Unit], t.Number))
}

// unnumbered reports whether an operation takes no place in the line for tokens: a GetDelay beside tickets, since it asks again as a
// newcomer. If all callers use GetDelay, the more of them ask the later they come back.
func (s *State) unnumbered(op *Op) bool { return op.Kind == GetDelay && s.LastID > 0 }

// numbered reports whether a ticket has a number, and not one of before the entity was forgotten.
func (s *State) numbered(t *Ticket) bool { return t.Number > 0 && t.Number <= s.Next }

// unbook gives back a slot that is in the line. The last one is the next newcomer's.
func (l *Limits) unbook(s *State, op *Op) {
	if t := &op.Ticket; s.numbered(t) {
		if t.Again < unbooked && !op.Urgent {
			l.retract(s, t)
		}
		if t.Number == s.Next {
			s.Next--
			at := max(s.Now, s.Slot-l.space(s, l.pace(s))/1000)
			for i := range l.Windows {
				if w := &l.Windows[i]; w.interval(at) < w.interval(s.Slot) {
					at = s.Slot
				}
			}
			s.Slot = at
		} else {
			s.Head += 16
		}
		s.Head = min(s.Next*16, s.Head)
	}
}

// retract takes a ticket's cost off the promises. The last promised slot moves back by the intervals whose gain is no longer promised.
func (l *Limits) retract(s *State, t *Ticket) {
	slot := s.Now
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		line.Promised += min(line.weight(t.Cost[w.Unit], t.Number), w.Size)
		last := w.interval(s.Slot)
		if n := max(0, line.Promised) / min(w.Rate, w.Size); n < last-w.interval(w.since(s, s.Now)) {
			slot = max(slot, w.begin(last-n))
		}
	}
	if w := &l.Windows[l.Shortest]; w.interval(slot) == w.interval(s.Slot) {
		slot = s.Slot
	}
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		n := max(0, w.interval(s.Slot)-w.interval(w.since(s, slot)))
		back := n * min(w.Rate, w.Size)
		if n == 1 && slot == s.Now && line.Promised > w.Rate { // see promised
			back = w.gain(s, line.Left, s.Now, s.Slot) - line.Left
		}
		line.Promised = min(w.Size, line.Promised-back)
	}
	s.Slot = slot
}

// expected returns the expected cost of an operation, in 4096ths of its estimate. Some operations may cost something, also if the last
// ones were free.
func (line *Line) expected() int64 { return max(64, 4096-max(0, line.Saved)) }

// weight returns the expected cost of the operation with this number. It rounds some numbers up and others down, so that the sum of several
// is right. It rounds up for the number 0. A 64th of a unit does not count, since the average is not exact.
func (line *Line) weight(cost, number int64) int64 {
	fraction := int64(4096 - 63)
	return (cost*line.expected() + fraction - number*2531%fraction) / 4096
}

// returns returns how much the operations in flight will probably give back to a window.
func (line *Line) returns() int64 { return min(line.Fresh, MostUnits) * max(0, line.Saved) / 4096 }

// refund returns the time at which the operations in flight have probably given back so many units of a window, or Never. Few units
// come back with the first of them, hardly before an eighth of the average duration.
func (l *Limits) refund(s *State, line *Line, units int64) int64 {
	returns := line.returns()
	if units < 1 || units > returns {
		return Never
	}
	return s.Now + 1 + l.mean(s)*max(128, units*1024/returns)/1024
}

// mean returns the average duration of an operation, in ms. Guess counts as the first operation.
func (l *Limits) mean(s *State) int64 { return (s.Held + l.Guess) / (s.Ended + 1) }

// trusted is a Guess, in ms, that is not doubted: see Limits.pace.
const trusted = 200

// pace returns the average time between two returned tokens, in us. Guess counts as the first operation. Tickets cannot be
// called back from their slots. So a long Guess, which may be far too high, counts an eighth: if it is right, a ticket asks once
// more.
func (l *Limits) pace(s *State) int64 {
	guess := min(l.Guess, max(l.Guess/8, trusted))
	return max(1, (s.Held+guess)*1000/((s.Ended+1)*l.Tokens))
}

// again returns the time from one ticket that is denied a token to the next, in us. Tokens come back at random: a ticket that asks
// later leaves one idle, and many tickets ask in vain. The more tokens there are, the less does an idle one matter.
func (l *Limits) again(pace int64) int64 { return pace * min(max(l.Tokens, 5), 10) / 20 }

// denials returns the time from one denied ticket to the next, in us.
func (l *Limits) denials(s *State, v *view) int64 {
	pace := l.pace(s)
	return max(v.again, l.space(s, pace), l.again(pace))
}

// overdue returns the least time until a ticket that is denied a token asks again, in ms. It is a quarter of the time by
// which all operations that hold a token exceed the average: the longer they run, the longer they are likely to run. It
// is at most an eighth of a lease, because the tokens of dead holders are idle for so long.
func (l *Limits) overdue(s *State) int64 {
	return max(0, min((s.Now-s.LastID/1024-l.mean(s))/4, l.Lease/8))
}

// spread is the longest time, in ms, in which slots leave tokens idle: see Limits.space.
const spread = 10_000

// space returns the distance of slots in the same interval, if there is time for it, so that most of them find a token: capacity that
// has gathered may take longer. A window that is longer than spread counts as that long: its slots need not fill hours.
func (l *Limits) space(s *State, pace int64) int64 {
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if pace <= min(w.Interval, spread)*500/max(1, max(min(w.Rate, w.Size), line.Promised, line.Left)/max(1, line.weight(line.usual(s), 0))) {
			return 2 * pace
		}
	}
	return 0
}

// root returns the square root of n, rounded down. n is at least 1.
func root(n int64) int64 {
	x, y := n, (n+1)/2
	for y < x {
		x = y
		y = (x + n/x) / 2
	}
	return x
}
