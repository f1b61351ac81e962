package decision

// when returns the slot that the entity's own limit gives an operation that does not run. Then a window has room, a token is
// probably free, or its turn comes. It changes only v.turn, v.again and v.ends.
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
		// It is about the n-th in the line, and one token comes back in each pace. But tokens come back at random: about a root of n
		// paces early or late. So the slot is early by twice the root: few tokens are idle, and no operation waits for long.
		//
		// Before the first token comes back, each round of all tokens takes as long as it has taken until now. More than two
		// rounds do not count, because the next operations may be short.
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
		again := l.opens(s, op, v, s.turn(v.overdue))
		v.ends = min(again+v.again, Never)
		if v.bound == BoundTokens { // no token comes back before
			again = v.ends
			v.turn = slot <= again/1000+4*l.mean(s) // else its turn comes much later
		}
		slot = max(slot, again/1000)
	}
	return slot
}

// opens returns the time of a turn, in us. Turns behind an opening follow each other as tokens come back. Those for which a window has no
// room begin with its next interval.
func (l *Limits) opens(s *State, op *Op, v *view, turn int64) int64 {
	if s.Closed <= s.Now {
		return turn
	}
	at, number := turn, int64(Never) // of turns before it
	for i := range l.Windows {
		w := &l.Windows[i]
		from, before := max(s.Closed, w.begin(w.interval(turn/1000))), int64(0)
		if from > s.Closed { // the room of the intervals before is taken
			before = w.afterOpening(s, &s.Lines[i], op, from-1)
		}
		number = min(number, before+(turn-from*1000)/max(1, v.again))
	}
	for i := range l.Windows {
		if w := &l.Windows[i]; w.afterOpening(s, &s.Lines[i], op, turn/1000) <= number {
			at = max(at, min(w.Next(turn/1000)*1000, Never))
		}
	}
	return at
}

// afterOpening returns for how many operations like this one a window has room from the opening until a later time.
func (w *Window) afterOpening(s *State, line *Line, op *Op, to int64) int64 {
	cost, rate := line.weight(op.Cost[w.Unit], 0), min(w.Rate, w.Size)
	if cost == 0 {
		return Never / 2
	}
	n := w.interval(to) - w.interval(s.Closed)
	return (max(0, w.gain(s, line.Left, s.Now, s.Closed)) + min(n, bound/rate)*rate) / cost
}

// turn returns the time at which the denied tickets have had their turn, and the operations are no longer overdue, in us.
func (s *State) turn(overdue int64) int64 {
	return max(s.AgainUS, max(s.Now+overdue, s.Closed)*1000)
}

// book completes the ticket in a. A newcomer gets a number, and a new slot takes a promise. If the operation waits for a turn, the
// next turn comes after it.
func (l *Limits) book(s *State, op *Op, v *view, a *Answer) {
	t := &a.Ticket
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
		// An urgent one promises nothing: it takes the slot of another one, which then books again. One without a number comes
		// back without the slot.
		if !op.Urgent && !(v.bound == BoundTokens && s.unnumbered(op)) {
			l.promise(s, v.slot, op, t.Number, v.number > 0 && op.Ticket.Again < unbooked)
		}
		t.Again = 0
		if op.back() && a.Limit == 0 && s.passed() { // else urgent operations that use all of a window starve it
			t.Again = denied
		}
	} else if v.denied && !v.spare {
		t.Again = denied
		if s.Closed <= s.Now {
			l.deny(s, op)
		}
	}
	if v.turn {
		s.AgainUS = v.ends
	}
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

// promise promises the cost of an operation to a slot, which is the last one now. had is true if it had a slot before. Windows
// that have room for it and are not refreshed yet get that promise back.
func (l *Limits) promise(s *State, slot int64, op *Op, number int64, had bool) {
	t, from := &op.Ticket, l.behind(s)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if had && line.Left >= op.Cost[w.Unit] && w.gain(s, 0, t.Slot, s.Slot) == 0 {
			line.Promised = min(w.Size, line.Promised+line.weight(t.Cost[w.Unit], t.Number))
		}
		cost := line.weight(op.Cost[w.Unit], number)
		line.Promised = w.gain(s, line.Promised, from, slot) - cost
		if 2*cost >= line.Largest {
			line.Largest, line.LargestAt = max(line.Largest, cost), slot
		}
	}
	s.Slot = slot
}

// behind returns the last promised slot, or the end of the turns if more than 16 tickets that a window denied wait for theirs: newcomers do
// not pass so many. A window denies tickets if tokens come back four times as fast as it brings the usual cost.
func (l *Limits) behind(s *State) int64 {
	turns, slot := s.AgainUS-s.Now*1000, s.Slot
	if turns <= 0 {
		return slot
	}
	pace := l.pace(s)
	for i := range l.Windows {
		line := &s.Lines[i]
		if span := line.spanUS(line.usual(s)); span/4 > pace && turns/16 > span {
			slot = max(slot, s.AgainUS/1000)
		}
	}
	return slot
}

// unnumbered reports whether an operation takes no place in the line for tokens: a GetDelay beside tickets, since it asks again as a
// newcomer. If all callers use GetDelay, the more of them ask the later they come back.
func (s *State) unnumbered(op *Op) bool { return op.Kind == GetDelay && s.LastID > 0 }

// numbered reports whether a ticket has a number, and not one of before the entity was forgotten.
func (s *State) numbered(t *Ticket) bool { return t.Number > 0 && t.Number <= s.Next }

// unbook gives back the slot of a ticket. If it was the last slot, the next newcomer gets it.
func (l *Limits) unbook(s *State, op *Op) {
	if t := &op.Ticket; s.numbered(t) {
		if t.Again < unbooked && !op.Urgent {
			l.retract(s, t)
		}
		if t.Number == s.Next {
			s.Next--
			at := max(s.Now, s.Slot-l.space(s)/1000)
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

// retract takes a ticket's cost off the promises. The last promised slot moves back by the intervals whose gain nobody needs any
// more.
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
