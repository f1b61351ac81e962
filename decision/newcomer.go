package decision

// Newcomer tells what Admit would answer a newcomer of one unit now, if out leases are out. If the cause is BoundClosed,
// then is the cause of the rest of the delay, after the entity has opened. Nothing is changed but s, which is advanced.
func (l *Limits) Newcomer(s *State, out, now int64) (a Answer, then Bound) {
	op, leases := Op{Kind: Admit, Cost: 1}, counted(out)
	after := s.Copy()
	l.Apply(&after, leases, &op, now, &a)
	if a.Delay > 0 && now+a.Delay > s.Closed && s.Closed > now {
		var b Answer
		after = s.Copy()
		l.Apply(&after, leases, &op, s.Closed, &b)
		then = b.Bound
	}
	l.line(s, l.advance(s, leases, now))
	return a, then
}

// Booked is about the number of units that are promised and have not run yet. s is as Newcomer leaves it.
func (l *Limits) Booked(s *State) int64 {
	booked := int64(MostUnits)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if n := w.interval(s.Slot) - w.interval(w.since(s, s.Now)); n < MostUnits/w.Rate {
			booked = min(booked, line.Left+n*w.Rate-line.Promised)
		}
	}
	return max(0, booked)
}

// counted is leases of which only the number matters.
type counted int64

func (c counted) Out(int64) int64          { return int64(c) }
func (counted) Hold(int64, int64)          {}
func (counted) Release(*Lease, int64) bool { return false }
func (counted) Clear()                     {}
