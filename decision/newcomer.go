package decision

// Newcomer returns the answer of Admit to a newcomer of one call and one of each other unit now, if out leases are out. Of
// a limit that entities share, it is the answer to an unknown entity that no other limit delays. If the entity is closed, or the
// limit of the answer, then is the cause of the rest of the delay after the opening. Newcomer advances s and changes
// nothing else. The Leases in shared only need to count.
func (l *Limits) Newcomer(s *State, out int64, shared []Shared, now int64) (a Answer, then Bound) {
	leases := counted(out)
	own, free := s, l
	if len(s.Calendars) > 0 {
		own, free = &State{}, &Limits{Windows: []Window{Unknown}, Tokens: MostUnits}
		free.derive()
		shared = []Shared{{Key: 1, Weight: 1, Limits: l, State: s, Leases: leases}}
	}
	a = free.newcomer(own, leases, shared, now)
	closed := s.Closed
	if a.Bound == BoundClosed && a.Limit > 0 {
		closed = shared[a.Limit-1].State.Closed
	}
	if closed > now && now+a.Delay > closed {
		then = free.newcomer(own, leases, shared, closed).Bound
	}
	if own != s {
		a.Limit = 0
	}
	l = l.InForce(s, now)
	l.advance(s, leases, max(now, s.Now))
	s.rest(leases)
	l.line(s)
	return a, then
}

func (l *Limits) newcomer(s *State, leases Leases, shared []Shared, now int64) (a Answer) {
	op, after := Op{Kind: Admit, Cost: Cost{1, 1, 1, 1}}, s.Copy()
	copies := make([]Shared, len(shared))
	for i, x := range shared {
		state := x.State.Copy()
		x.State, x.Leases = &state, counted(x.Leases.Out(now))
		copies[i] = x
	}
	l.ApplyWithin(&after, leases, copies, &op, now, &a)
	return a
}

// Counted returns Leases that only count.
func Counted(out int64) Leases { return counted(out) }

// Booked returns about how much of the first window's unit is promised to operations that have not run yet. l are the
// limits in force, s is as Newcomer leaves it.
func (l *Limits) Booked(s *State) int64 {
	if len(s.Calendars) > 0 {
		c, unit := &s.Calendars[0], l.Windows[0].Unit
		booked := c.Booked / l.times(s, l.gains(s))
		if l.PerGrain == MostUnits { // only tokens are short: the operations
			return booked
		}
		return l.units(min(portion(booked, c.ratio(&s.Lines[0])), 1<<32), unit)
	}
	return s.promised(l.Windows[0].Unit)
}

// counted is Leases that only count.
type counted int64

func (c counted) Out(int64) int64                { return int64(c) }
func (counted) Hold(int64, int64)                {}
func (counted) Release(int64, int64, int64) bool { return false }
func (counted) Clear()                           {}
