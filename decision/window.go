package decision

// interval returns the number of the interval that t is in.
func (w *Window) interval(t int64) int64 { return floor(t-w.Offset, w.Interval) }

// floor returns t/by rounded down. internal/luagen knows it by its name: Lua rounds its remainder so.
func floor(t, by int64) int64 {
	if t < 0 {
		return -1 - (-1-t)/by
	}
	return t / by
}

// begin returns the beginning of the interval with this number.
func (w *Window) begin(n int64) int64 { return n*w.Interval + w.Offset }

// Next returns the beginning of the interval after the interval of t.
func (w *Window) Next(t int64) int64 { return w.begin(w.interval(t) + 1) }

// since returns the time from which a window gains. A window that gathers capacity gains nothing while the entity is
// closed.
func (w *Window) since(s *State, from int64) int64 {
	if w.Size > w.Rate {
		return max(from, s.Closed-1)
	}
	return from
}

// gain returns the capacity at the time to of a window that had left at from. No product exceeds Size - left + Rate.
func (w *Window) gain(s *State, left, from, to int64) int64 {
	n := w.interval(to) - w.interval(w.since(s, from))
	if n <= 0 {
		return left
	}
	return filled(left, n, w.Rate, w.Size)
}

// filled returns the capacity of a window that had left, n intervals later.
func filled(left, n, rate, size int64) int64 {
	if n > (size-left)/rate {
		return size
	}
	return left + n*rate
}

// room returns the time at which a window that has left at the time at has room for cost. A level or a pin may leave it less than
// the cost: until that changes there is none.
func (w *Window) room(s *State, left, cost, at int64) int64 {
	if left >= cost || cost == 0 {
		return at
	}
	if cost > w.Size {
		at += changeEvery
	}
	return w.begin(w.interval(w.since(s, at)) + min((cost-left-1)/w.Rate+1, LastTime/w.Interval))
}

// spanUS returns the time in which a window brings cost, in us. A window that is longer than a minute counts as one of a minute: it
// brings all at its beginning, and operations that come back together then need not wait for hours.
func (w *Window) spanUS(cost int64) int64 {
	each := min(w.Interval, minute) * 1000 / min(w.Rate, w.Size)
	return min(cost, bound/(each+1)) * each
}

// spanUS returns the time in which the window brings the expected cost of an operation, in us.
func (line *Line) spanUS(cost int64) int64 {
	span := line.Window.spanUS(cost)
	return span/4096*line.expected() + span%4096*line.expected()/4096
}

// time returns the time of an operation. It is now, but never runs backwards in a limit.
func (s *State) time(shared []Shared, now int64) int64 {
	now = max(now, s.Now)
	for i := range shared {
		now = max(now, shared[i].State.Now)
	}
	return now
}

// advance counts the windows up to the time of the operation.
func (l *Limits) advance(s *State, leases Leases, now int64) {
	if len(s.Pins) > 0 && s.Pins[0].End <= now {
		s.unpin()
	}
	if now-s.Now >= l.Fill && now >= l.Until(s) && !l.changed(s) && leases.Out(now) == 0 { // Until is no sooner than Fill
		*s = State{Lines: s.Lines[:0], Flows: s.Flows[:0], Calendars: s.Calendars[:0]} // an unknown entity, with the memory of s
	}
	if l.changed(s) {
		l.adopt(s, now)
	}
	s.Tokens, s.Guess = l.Tokens, l.Guess
	if s.Now < now {
		l.refresh(s, leases, now)
		s.Now = now
	}
}

// refresh counts the intervals that have begun between the last decision and now.
func (l *Limits) refresh(s *State, leases Leases, now int64) {
	idle := s.Closed <= s.Now && s.AgainUS > now*1000 && s.Plain+leases.Out(now) < l.Tokens && (now-s.Now)*1000 > l.again(s)
	usedUp := s.usedUp()
	for i := range l.Windows {
		if w, line := &l.Windows[i], &s.Lines[i]; w.interval(now) > w.interval(s.Now) {
			left, lost := line.Left, line.measure(s, usedUp, now)
			line.Left, line.Over = w.gain(s, left, s.Now, now), 0
			line.clip(s)
			if len(s.Calendars) == 0 && !l.loose(w) { // else its tickets are due at any time of a grain, or of a longer window
				l.release(s, line, lost, now)
			}
			usual := line.usual(s)
			idle = idle && w.gain(s, left, s.Now, w.begin(w.interval(now))-1) >= min(w.Size, max(w.Rate, usual)) && (now-s.Now)*1000 > 2*line.spanUS(usual)
		} else {
			idle = false
		}
	}
	if idle { // it was open for longer than the turn of a large operation takes, and denied tickets do not come back
		s.AgainUS = now * 1000
	}
}

// clip keeps Left and all that leases may still give back within Size: capacity that a window could not hold is lost to
// an operation that cost less, too. The oldest leases lose first.
func (line *Line) clip(s *State) {
	over := line.Left + line.Stale + line.Fresh - line.Window.Size
	if over > line.Stale {
		line.Stale, line.StaleFrom = line.Window.Size-line.Left, line.FreshFrom
		line.Fresh, line.FreshFrom = 0, s.LastID
	} else if over > 0 {
		line.Stale -= over
	}
}

// keep stops all leases that are out from giving capacity back.
func (line *Line) keep(s *State) { line.Fresh, line.FreshFrom, line.Stale = 0, s.LastID, 0 }

// rest stops leases that have ended from giving capacity back, as soon as no other one is out.
func (s *State) rest(leases Leases) {
	if leases.Out(s.Now) == 0 {
		for i := range s.Lines {
			s.Lines[i].keep(s)
		}
	}
}

// line brings the promised slots to now. Capacity that has run is no longer promised.
func (l *Limits) line(s *State) {
	slot := max(s.Now, s.Slot)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		line.Promised = min(w.gain(s, line.Promised, s.Slot, slot), w.gain(s, line.Left+line.returns(), s.Now, slot))
	}
	s.Slot = slot
}

// Until returns a time from which forgetting the entity changes no answer: its windows are full, no plain token is out,
// no slot lies ahead, and there is no pin. Only the steps in which a Level rises end early, and the averages are lost. So an entity is
// known for a day longer if its tickets waited and its operations take much less than their estimates. No duration is worth that: one that
// is too long leaves tokens idle. While a lease is out, do not forget the entity either.
func (l *Limits) Until(s *State) int64 {
	if s.Plain > 0 {
		return Never
	}
	from := s.Now
	lines := len(s.Lines)
	for i := range s.Pins { // until then the windows may be slower
		p := &s.Pins[i]
		from = max(from, p.End, p.Level.end())
		if p.Line > 0 {
			lines--
		}
	}
	waiting := int64(0)
	if n := s.Next - s.Head/16; n > 0 { // tickets that wait for tokens
		pace := l.pace(s)
		waiting = min(n, bound/pace) * pace / 1000
	}
	until := max(from+waiting, s.Slot, s.Closed, s.AgainUS/1000, l.Start) + l.Fill + l.grace()
	low := false // operations take less than half of their estimates
	for i := range s.Lines {
		low = low || s.Lines[i].expected() < 2048
		if owed := -min(s.Lines[i].Left, s.Lines[i].Promised); owed > 0 && i < len(l.Windows) {
			w := &l.Windows[i]
			until = max(until, from+min(owed/w.Rate+1, LastTime/w.Interval)*w.Interval+l.Fill)
		}
	}
	for i := range s.Flows {
		until = max(until, s.Flows[i].Until+l.Fill+l.grace())
	}
	if lines > len(l.Windows) {
		until += remembered
	} else if low && (s.Next > 0 || len(s.Calendars) > 0) { // tickets have waited: the next burst is booked by what is known
		until += day
	}
	return min(until, Never)
}

// Holds returns until when, by the clock of its storage, a decision of op that was made for the time now may be stored. Later
// the operation would count in another interval, be late, have no pin, or have a lease that is nearly over. That is a second
// at most, so that all other effects of the time are no older. A backend needs it if it only estimates its server's clock.
func (l *Limits) Holds(s *State, op *Op, now int64) int64 {
	until := now + 1000
	if op.Now != OwnClock || op.Kind == ReturnToken {
		return until
	}
	if op.Kind == Admit || op.Kind == Renew {
		until = min(until, now+l.Lease/10)
	}
	if op.Deadline >= now {
		until = min(until, op.Deadline+1)
	}
	if len(s.Pins) > 0 {
		if end := s.Pins[0].End; end > now { // it may have raised the limits
			until = min(until, end)
		}
		for i := range s.Lines {
			if w := &s.Lines[i].Window; w.Size > 0 { // it may be no window of the Limits
				until = min(until, w.Next(now))
			}
		}
	}
	for i := range l.Windows {
		until = min(until, l.Windows[i].Next(now))
	}
	return until
}

// grace returns how late a ticket may be and keep its slot: an interval, at most a minute, and a second, for hops that
// are late by one interval.
func (l *Limits) grace() int64 { return min(l.Windows[l.Shortest].Interval, minute) + 1000 }
