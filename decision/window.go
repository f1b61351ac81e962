package decision

// interval is the number of the interval that t is in, rounded down.
func (w *Window) interval(t int64) int64 {
	if t < 0 {
		return -1 - (-1-t)/w.Interval
	}
	return t / w.Interval
}

// next is when the interval after the one of t begins.
func (w *Window) next(t int64) int64 { return (w.interval(t) + 1) * w.Interval }

// since is the time from which a window gains. One that gathers capacity gains nothing while the entity is closed.
func (w *Window) since(s *State, from int64) int64 {
	if w.Size > w.Rate {
		return max(from, s.Closed-1)
	}
	return from
}

// gain is the capacity at the time to of a window that had left at from. No product exceeds Size - left + Rate.
func (w *Window) gain(s *State, left, from, to int64) int64 {
	if to <= from {
		return left
	}
	n := w.interval(to) - w.interval(w.since(s, from))
	if n <= 0 {
		return left
	}
	if n > (w.Size-left)/w.Rate {
		return w.Size
	}
	return left + n*w.Rate
}

// room is when a window that has left at a time has room for cost.
func (w *Window) room(s *State, left, cost, at int64) int64 {
	if left >= cost || cost == 0 {
		return at
	}
	return (w.interval(w.since(s, at)) + min((cost-left-1)/w.Rate+1, LastTime/w.Interval)) * w.Interval
}

// advance counts the windows up to now, the time of the entity, which does not run backwards. It returns that time.
func (l *Limits) advance(s *State, leases Leases, now int64) int64 {
	if s.Print != 0 {
		now = max(now, s.Now)
		if s.Print == l.Print && now >= l.Until(s) && leases.Out(now) == 0 {
			s.forget()
		}
	}
	if s.Print != l.Print {
		l.adopt(s, now)
	}
	idle := s.Now < now && s.AgainUS > now*1000 && s.Plain+leases.Out(now) < l.Tokens
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if w.interval(now) > w.interval(s.Now) {
			left := line.Left
			line.measure(w, s, now)
			line.Left = w.gain(s, left, s.Now, now)
			line.clip(w, s.LastID)
			l.release(s, w.Unit, line.Spare, now)
			idle = idle && w.gain(s, left, s.Now, w.interval(now)*w.Interval-1) >= w.Rate
		} else {
			idle = false
		}
	}
	if idle { // whoever was denied does not come back
		s.AgainUS = now * 1000
	}
	s.Now = now
	return now
}

// remembered is how long the Line of a window that is left out is kept after the last decision: 31 days.
const remembered = 31 * 86_400_000

// leftOut in Line.Spare marks a window that the limits do not have at the moment.
const leftOut = -Never

// forget makes s the State of an entity that nobody knows. It keeps the memory of Lines.
func (s *State) forget() {
	*s = State{Lines: s.Lines[:0], Flows: s.Flows[:0], Calendars: s.Calendars[:0]}
}

// adopt goes on with limits that have changed. A higher rate brings nothing for the time it was not there, and what was
// promised means nothing any more. A window is known by its place; if its unit changes it begins with what was left, but with
// no debt. One that is left out keeps its Line, where Spare is leftOut, Promised what was left at the time Taken, and Left
// takes what runs; one that is added knows nothing of what ran before.
func (l *Limits) adopt(s *State, now int64) {
	known, from := s.Print != 0, now
	if !known {
		from = l.Start
	}
	for i := range s.Lines {
		if line := &s.Lines[i]; i >= len(l.Windows) && line.Spare != leftOut {
			line.Spare, line.Taken, line.Promised = leftOut, s.Now, line.Left
		}
	}
	for i := range l.Windows {
		w := &l.Windows[i]
		if i >= len(s.Lines) && known {
			s.Lines = append(s.Lines, Line{Left: w.Size, FreshFrom: s.LastID, StaleFrom: s.LastID, Unit: w.Unit})
		} else if i >= len(s.Lines) {
			s.Lines = append(s.Lines, Line{Left: w.gain(s, 0, from, now), Unit: w.Unit})
		}
		line := &s.Lines[i]
		if line.Unit != w.Unit { // else whoever changes it to and fro has all of it each time
			*line = Line{Left: max(0, line.Left), StaleFrom: s.LastID, Unit: w.Unit}
			line.keep(s)
		}
		if line.Spare == leftOut { // what ran meanwhile may have run last
			line.Left += w.gain(s, min(line.Promised, w.Size), line.Taken, now) - line.Promised
			line.keep(s)
		}
		line.Left = min(line.Left, w.Size)
		line.Promised, line.Spare, line.Taken = line.Left, 0, 0
		line.clip(w, s.LastID)
	}
	s.Print, s.Now, s.Slot = l.Print, now, from-l.Windows[0].Interval
}

// measure learns, at the end of an interval, what those left who had booked it. Newcomers may take as much in the next one.
func (line *Line) measure(w *Window, s *State, now int64) {
	spare := int64(0)
	if w.interval(s.Slot) > w.interval(s.Now) {
		spare = max(0, line.Taken+max(0, w.gain(s, line.Left, s.Now, w.interval(now)*w.Interval-1)))
	}
	line.Spare, line.Taken = spare, 0
}

// release gives back to the windows that are not refreshed yet what others have left of a shorter one: those do not come.
func (l *Limits) release(s *State, unit, units, now int64) {
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if w.Unit == unit && w.interval(now) == w.interval(s.Now) {
			line.Promised = min(w.Size, line.Promised+units)
		}
	}
}

// clip keeps Left and all that leases may still give back within Size: capacity that a window could not hold is lost to
// an operation that cost less, too. The oldest leases lose first.
func (line *Line) clip(w *Window, last int64) {
	over := line.Left + line.Stale + line.Fresh - w.Size
	if over > line.Stale {
		line.Stale, line.StaleFrom = max(0, w.Size-line.Left), line.FreshFrom
		line.Fresh, line.FreshFrom = 0, last
	} else if over > 0 {
		line.Stale -= over
	}
}

// keep lets no lease that is out give anything back.
func (line *Line) keep(s *State) { line.Fresh, line.FreshFrom, line.Stale = 0, s.LastID, 0 }

// line brings the promised slots to now. Nothing is promised that has run.
func (l *Limits) line(s *State, now int64) {
	slot := max(now, s.Slot)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		line.Promised = min(w.gain(s, line.Promised, s.Slot, slot), w.gain(s, line.Left, now, slot))
	}
	s.Slot = slot
}

// Until is a time from which forgetting the entity changes no answer: its windows are full, nobody holds a plain token,
// and no slot lies ahead. While a lease is out the entity is not forgotten either.
func (l *Limits) Until(s *State) int64 {
	if s.Plain > 0 {
		return Never
	}
	until := max(s.Now, s.Slot, s.Closed, s.AgainUS/1000, l.Start) + l.Fill + l.grace()
	for i := range s.Lines {
		owed := -min(s.Lines[i].Left, s.Lines[i].Promised)
		if owed > 0 && i < len(l.Windows) {
			w := &l.Windows[i]
			until = max(until, s.Now+min(owed/w.Rate+1, LastTime/w.Interval)*w.Interval+l.Fill)
		}
	}
	for i := range s.Flows {
		f := &s.Flows[i]
		until = max(until, f.Until+l.Fill+l.grace())
	}
	if len(s.Lines) > len(l.Windows) {
		until += remembered
	}
	return until
}

// grace is how late a ticket may be and keep its slot: an interval and a second, for hops that are late by one interval.
func (l *Limits) grace() int64 { return min(l.Windows[0].Interval, 60_000) + 1000 }
