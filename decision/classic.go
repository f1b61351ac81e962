package decision

// classic answers GetDelay as long as an entity has had no other operations and has one window, of calls. The delays
// equal the delays of npm dripping-bucket 1.2.0, number for number. Slot and Promised are its wait.last and
// wait.capacity, Now and Left its ops.
func (l *Limits) classic(s *State, op *Op, before int64, a *Answer) {
	w, line, now := &l.Windows[0], &s.Lines[0], s.Now
	if s.Plain < l.Tokens {
		if line.Left > 0 {
			l.take(s, op)
			return
		}
		a.Bound = BoundWindow
		n, last := w.interval(now), w.interval(s.Slot)
		if last < n {
			s.Slot, line.Promised = w.Next(now), w.Rate
		} else if last == n {
			s.Slot = w.Next(now)
		}
	} else {
		a.Bound = BoundTokens
		if now >= s.Slot {
			at := now + l.Guess
			from, left := s.Slot, line.Promised
			if s.Slot < before {
				from, left = now, line.Left
			}
			s.Slot, line.Promised = at, max(0, min(w.Size, w.gain(s, left, from, at)))
		}
	}
	if line.Promised == 0 {
		s.Slot, line.Promised = w.Next(s.Slot), w.Rate
	}
	line.Promised--
	a.Delay = s.Slot - now
}
