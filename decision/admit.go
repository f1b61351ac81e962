package decision

// admit answers Admit.
func (l *Limits) admit(s *State, leases Leases, op *Op, now int64, a *Answer) {
	t := l.advance(s, leases, now)
	l.decide(s, leases, op, t, a)
	if a.Delay > 0 {
		a.Delay += t - now
		return
	}
	s.LastID = max(s.LastID+1, t*1024) // later than the leases of before the entity was forgotten
	a.Lease = Lease{ID: s.LastID, Begin: t, End: t + l.Lease, Cost: op.Cost}
	leases.Hold(a.Lease.ID, a.Lease.End)
	for i := range l.Windows {
		s.Lines[i].Fresh += op.Cost
	}
}

// decide answers Admit, and GetDelay for an entity that more is known of.
func (l *Limits) decide(s *State, leases Leases, op *Op, now int64, a *Answer) {
	l.line(s, now)
	v := l.look(s, leases, op, now)
	if v.bound == BoundNone {
		l.run(s, op, &v, now)
	} else {
		l.book(s, op, &v, now, a)
	}
}

// view is what an operation finds.
type view struct {
	at    int64 // it starts no earlier
	bound Bound // why; BoundNone: it runs
	slot  int64 // the next slot there is to promise
	back  bool  // it carries a ticket
	fresh bool  // it has no slot, or none any more
	spare bool  // it takes what those leave who have booked
	pace  int64 // us from one token that comes back to the next
	again int64 // us from one ticket that was denied to the next
}

// look changes nothing.
func (l *Limits) look(s *State, leases Leases, op *Op, now int64) (v view) {
	t := &op.Ticket
	v.back = t.Slot > 0 && t.Number <= s.Next && op.Kind == Admit
	v.at, v.bound = now, BoundNone
	v.pace = l.pace(s)
	v.again = max(l.space(v.pace), v.pace/4)
	if s.Closed > now {
		v.at, v.bound = s.Closed, BoundClosed
	}
	for i := range l.Windows {
		w := &l.Windows[i]
		at := w.room(s, s.Lines[i].Left, op.Cost, now)
		if at > v.at {
			v.at, v.bound = at, BoundWindow+Bound(i)
		}
		if max(at, s.Closed) > now {
			each := w.Interval * 1000 / w.Rate
			v.again = max(v.again, min(op.Cost, bound/(each+1))*each)
		}
	}
	// A ticket keeps its slot until it was denied twice, or is much too late.
	v.fresh = !v.back || v.at > now && (t.Again > 0 && t.Slot <= now || now-t.Slot > l.grace())
	if v.fresh {
		v.slot = max(s.Slot, s.Closed)
		for i := range l.Windows {
			v.slot = max(v.slot, l.Windows[i].room(s, s.Lines[i].Promised, l.weight(s, op.Cost), s.Slot))
		}
		if s.Slot > now {
			v.slot = max(v.slot, s.Slot+l.space(v.pace)/1000)
		}
		if v.slot > v.at {
			v.spare = v.at == now && l.spare(s, op.Cost, now)
			if !v.spare {
				v.at, v.bound = v.slot, BoundBooked
			}
		}
	}
	if v.at == now && (s.Plain+leases.Out(now) >= l.Tokens || !v.back && s.AgainUS > now*1000) {
		v.bound = BoundTokens
	}
	if s.Closed > now {
		v.bound = BoundClosed
	}
	return v
}

// spare tells whether a newcomer of this cost takes nothing from those who have booked: each window has room beside them
// until it is refreshed, or they are expected to leave as much, or the other windows do not let them use it up.
func (l *Limits) spare(s *State, cost, now int64) bool {
	for i := range l.Windows {
		line := &s.Lines[i]
		w := &l.Windows[i]
		beside := w.interval(s.Slot) == w.interval(now) && line.Promised >= l.weight(s, cost)
		if !beside && line.Spare-line.Taken < cost && line.Left-cost < l.others(s, i, now) {
			return false
		}
	}
	return true
}

// others is the most that the other windows let run before the next refresh of a window.
func (l *Limits) others(s *State, which int, now int64) int64 {
	most, until := int64(MostUnits), l.Windows[which].next(now)-1
	for i := range l.Windows {
		w := &l.Windows[i]
		n := w.interval(until) - w.interval(now)
		if i != which && n < MostUnits/w.Rate {
			most = min(most, s.Lines[i].Left+n*w.Rate)
		}
	}
	return most
}

// run takes capacity.
func (l *Limits) run(s *State, op *Op, v *view, now int64) {
	for i := range s.Lines {
		line := &s.Lines[i]
		line.Left -= op.Cost
		if v.spare && i < len(l.Windows) {
			line.Taken += op.Cost
		}
	}
	if !v.back && !v.spare {
		l.promise(s, now, op.Cost)
	}
	if !v.back { // a token was free although others wait for one: they are fewer than their numbers say
		s.Head += max(0, s.Next*16-s.Head+15) / 16
	} else if op.Ticket.Number > 0 {
		s.Head += max(128, 512+op.Ticket.Number*16-s.Head) / 32
	}
}

// book gives a ticket.
func (l *Limits) book(s *State, op *Op, v *view, now int64, a *Answer) {
	t := op.Ticket
	if !v.back {
		s.Next++
		t.Number = s.Next
	}
	slot := max(v.at, now+1)
	if v.fresh {
		l.promise(s, v.slot, op.Cost)
		t.Again = 0
	} else if t.Slot > now {
		slot = max(v.at, t.Slot)
	} else {
		if v.at > now {
			t.Again = 1
			for i := range l.Windows {
				line := &s.Lines[i]
				if line.Left < op.Cost && s.Closed <= now { // newcomers took too much
					line.Spare, line.Taken = max(line.Spare-op.Cost, -bound), max(line.Taken-op.Cost, -bound)
				}
			}
		}
		again := max(s.AgainUS, max(now, s.Closed)*1000)
		s.AgainUS = min(again+v.again, Never)
		if v.bound == BoundTokens { // none comes back before
			again = s.AgainUS
		}
		slot = max(slot, again/1000)
	}
	if v.bound == BoundTokens {
		// Tokens come back at random: early by twice the root, so that few find one idle and none waits for long.
		n := max(1, t.Number-s.Head/16)
		slot = max(slot, now+min(max(0, n-2*root(n)), bound/v.pace)*v.pace/1000)
	}
	t.Slot, t.Cost = slot, op.Cost
	a.Delay, a.Bound, a.Ticket = slot-now, v.bound, t
}

// promise takes a slot.
func (l *Limits) promise(s *State, slot, cost int64) {
	for i := range l.Windows {
		line := &s.Lines[i]
		line.Promised = l.Windows[i].gain(s, line.Promised, s.Slot, slot) - l.weight(s, cost)
	}
	s.Slot = slot
}

// unbook gives a slot back.
func (l *Limits) unbook(s *State, leases Leases, t *Ticket, now int64) {
	l.line(s, l.advance(s, leases, now))
	for i := range l.Windows {
		line := &s.Lines[i]
		line.Promised = min(l.Windows[i].Size, line.Promised+l.weight(s, t.Cost))
	}
	s.Head = min(s.Next*16, s.Head+16)
}

// weight is what an operation is expected to cost.
func (l *Limits) weight(s *State, cost int64) int64 {
	return max(1, cost-cost*s.Saved/4096)
}

// pace is how long it takes until one of the tokens comes back, in us. Guess counts as the first operation.
func (l *Limits) pace(s *State) int64 {
	return max(1, (s.Held+l.Guess)*1000/((s.Ended+1)*l.Tokens))
}

// space is the distance of slots in the same interval, if there is time for it: so most of them find a token.
func (l *Limits) space(pace int64) int64 {
	for i := range l.Windows {
		if w := &l.Windows[i]; pace <= w.Interval*500/w.Rate {
			return 2 * pace
		}
	}
	return 0
}

// root is the square root of n, rounded down.
func root(n int64) int64 {
	x := max(1, n)
	y := (x + 1) / 2
	for y < x {
		x = y
		y = (x + n/x) / 2
	}
	return x
}
