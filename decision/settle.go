package decision

const (
	most    = 64      // operations in the average; a new one then takes the place of the average one
	longest = 1 << 36 // ms that one of them counts at most
)

// settle measures an operation and charges its real cost.
func (l *Limits) settle(s *State, leases Leases, lease *Lease, cost, now int64) {
	now = l.advance(s, leases, now)
	if s.Ended < most {
		s.Ended++
	} else {
		s.Held -= s.Held / most
	}
	s.Held += min(max(0, now-lease.Begin), longest)
	if lease.Cost > 0 {
		s.Saved = max(0, s.Saved-s.Saved/64+64-min(cost, 2*lease.Cost)*64/lease.Cost)
	}
	l.charge(s, lease, cost)
}

// charge takes cost in place of the estimate of a lease. What it cost more is owed. What it cost less comes back as far
// as the window would still have it, had the operation cost that from the beginning.
func (l *Limits) charge(s *State, lease *Lease, cost int64) {
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		back := lease.Cost - cost
		if lease.ID > line.FreshFrom {
			back = min(back, line.Fresh)
			line.Fresh = max(0, line.Fresh-lease.Cost)
		} else if lease.ID > line.StaleFrom {
			back = min(back, line.Stale)
			line.Stale -= max(0, back)
		} else {
			back = min(back, 0)
		}
		line.Left = max(line.Left+back, -bound)
		line.Promised = min(w.Size, max(line.Promised+back, -bound))
	}
}

// throttle closes the entity for a time. A window that gathers capacity then has nothing but the gain of an interval that
// begins when it opens.
func (l *Limits) throttle(s *State, leases Leases, now, wait int64) {
	l.pause(s, leases, now, wait)
	for i := range l.Windows {
		if w, line := &l.Windows[i], &s.Lines[i]; w.Size > w.Rate {
			line.Left = min(line.Left, 0)
			line.keep(s)
		}
	}
}

// pause closes the entity for a time, and never opens it earlier than before. What was promised comes later by as much.
func (l *Limits) pause(s *State, leases Leases, now, wait int64) {
	now = l.advance(s, leases, now)
	from := max(s.Closed, now)
	s.Closed = max(s.Closed, now+wait)
	if s.Slot > now && s.Closed > from {
		s.Slot += s.Closed - from
	}
}

// resume opens the entity. What was promised behind the closing comes earlier by as much.
func (l *Limits) resume(s *State, leases Leases, now int64) {
	now = l.advance(s, leases, now)
	if s.Closed > now {
		s.Slot = max(now, s.Slot-(s.Closed-now))
	}
	s.Closed, s.AgainUS = 0, min(s.AgainUS, now*1000)
}

// reset forgets who runs and who waits, and a time that was ahead of the clock. Such a time brings no capacity.
func (l *Limits) reset(s *State, leases Leases, now int64) {
	ahead := s.Now > now
	l.advance(s, leases, now)
	s.Now, s.Slot, s.Plain, s.Closed, s.AgainUS, s.Head = now, now, 0, 0, 0, s.Next*16
	for i := range s.Lines {
		line := &s.Lines[i]
		if ahead {
			line.Left = min(line.Left, 0)
		}
		*line = Line{Left: line.Left, Promised: line.Left, FreshFrom: s.LastID, StaleFrom: s.LastID}
	}
}
