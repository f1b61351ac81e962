package decision

// busiest returns the place of the limit that has room last for an operation, behind all that is booked. It returns -1 if all have room
// now.
func busiest(shared []Shared, op *Op) int64 {
	place, last := int64(-1), int64(0)
	for i := range shared {
		x := &shared[i]
		s, c, grain := x.State, &x.State.Calendars[0], x.Limits.Grain
		at := max(s.Closed, x.time(c.Last))
		if x.short {
			at = max(at, s.Now+min(c.Booked*1024/x.rate, bound/grain)*grain/1024)
		}
		for k := range x.Limits.Windows {
			w := &x.Limits.Windows[k]
			at = max(at, w.room(s, s.Lines[k].Left-x.expects(c.Booked, int64(k)), op.Cost[w.Unit], s.Now))
		}
		if at > max(last, s.Now) {
			place, last = int64(i), at
		}
	}
	return place
}

// lined reports whether an operation goes to the end of the line in the entity's shortest window.
func (l *Limits) lined(s *State, x *Shared, f *Flow, op *Op, v *view, slot int64, a *Answer) bool {
	w := &l.Windows[l.Shortest]
	// There is none, or it changes nothing.
	if a.Limit == 0 && f.End <= s.Now || op.Cost[w.Unit] == 0 || slot == op.Ticket.Slot {
		return false
	}
	here, within := x.Limits.grain(slot) <= x.State.Calendars[0].Head, w.interval(slot) == w.interval(s.Now)
	// It lacks only a token, takes nothing of what the others wait for, or has booked nothing.
	if x.token || v.soon && here || x.apart || op.Ticket.Again == unbooked {
		return false
	}
	if op.back() {
		// It has been in the line. It leaves its place only if the entity's windows or the line's limit delay it again, until after this
		// grain: the line may end days later. While the limit is closed it keeps its place in a line that is longer than the window takes for
		// it: the capacity that the closing has left in the limit does not wait.
		closed := x.bound == BoundClosed && 3*l.drains(s, f, op, x.part) <= 2*(f.End-s.Now)
		if x.fits() && here || v.bound <= BoundTokens && (x.fits() || x.again && x.lost || closed || within) {
			return false
		}
	} else if v.spare && v.bound == BoundNone && within || x.fits() && here && (x.spare || x.State.LastID == 0) {
		// It takes capacity that booked operations leave, and another limit holds it for a moment. If LastID is 0 no ticket was given.
		return false
	}
	// An urgent operation passes the line, unless all tickets of the line are urgent and an own window is slower than the limit.
	if op.Urgent && (f.Urgent < f.Units+f.Later || !x.slower(l, op, slot)) {
		return false
	}
	// A longer window has told the operations when to come. A line through its intervals would end days later for all.
	return !l.refreshes(s, s.Now, v.at)
}

// inLine returns the first slot from t on in a flow's line in the entity's shortest window. Operations have a line for
// each shared limit that is their busiest, or is closed, so that operations of a slow endpoint do not delay operations of a fast one. A
// line begins when a shared limit delays an operation: a limit that is not short changes no slot. If an operation that is back
// goes to the end of a line of hours, nobody uses the capacity that it leaves. So it goes no further than to the end of the
// calendar.
func (l *Limits) inLine(s *State, x *Shared, f *Flow, op *Op, v *view, t int64) int64 {
	w, end := &l.Windows[l.Shortest], f.End
	if op.back() {
		end = min(end, x.Limits.begin(x.State.Calendars[0].Head+Grains-1))
	}
	t = max(t, end)
	return w.room(s, l.ahead(s, f, op, v, t), op.Cost[w.Unit], t)
}

// ahead returns the capacity that the line has left at t. An operation that only a shared limit delays again leaves its place in the line,
// and a window that gathers keeps that capacity.
func (l *Limits) ahead(s *State, f *Flow, op *Op, v *view, t int64) int64 {
	w, line := &l.Windows[l.Shortest], &s.Lines[l.Shortest]
	left, has := f.Left, w.gain(s, line.Left, s.Now, t)
	if f.End <= 0 { // there is no line
		return has
	}
	if op.back() && v.bound <= BoundTokens && op.Ticket.Slot <= f.End && w.Size > w.Rate {
		left = min(w.Size, left+line.weight(op.Ticket.Cost[w.Unit], 0))
	}
	return min(w.gain(s, left, f.End, t), has)
}

// drains returns how long the entity's shortest window would take for the tickets of a flow, if all were like this operation.
func (l *Limits) drains(s *State, f *Flow, op *Op, part int64) int64 {
	w := &l.Windows[l.Shortest]
	cost := s.Lines[l.Shortest].weight(op.Cost[w.Unit], 0)
	units := min((f.Units+f.Later)/max(1, part), bound/(cost+1)) * cost
	return min(units/min(w.Rate, w.Size)+1, bound/w.Interval/2) * w.Interval
}
