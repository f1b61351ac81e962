package decision

// remembered is how long a State keeps the Line of a window that is left out, after the last decision: 31 days.
const remembered = 31 * day

// changed reports whether the windows differ from the windows of the last decision.
func (l *Limits) changed(s *State) bool {
	own := l.own(s)
	changed := len(s.Lines) < len(l.Windows) || own < int64(len(l.Windows)) && s.Pins[0].Line != own+1
	for i := range s.Lines {
		line := &s.Lines[i]
		changed = changed || i < len(l.Windows) && line.Window != l.Windows[i] || i >= len(l.Windows) && line.Window.Size != 0
	}
	return changed
}

// adopt continues with limits that have changed. The time of the change is unknown. So until now a window brings no more than
// it would with a change at any time. The promises stay, at the new rates. The next interval of a Series changes none of them.
// adopt knows a window by its place. If its unit changes, the window begins with its remaining capacity, but with no debt. A window
// that is left out keeps its Line: Window.Size is zero, Promised is the capacity that was left at the time Taken, and operations that
// run still reduce Left. A window that is added has not counted earlier operations.
func (l *Limits) adopt(s *State, now int64) {
	known, from, own := s.Tokens != 0, l.Start, l.own(s)
	turned := own == int64(len(l.Windows)) && own == int64(len(s.Lines))
	promised := s.promises()
	if known {
		from = now
	} else if s.Guess != 0 {
		from = max(from, now)
	}
	pinned := Line{FreshFrom: s.LastID, StaleFrom: s.LastID}
	if own < int64(len(l.Windows)) {
		pinned.Window = l.Windows[own]
		pinned.Left = pinned.Window.Size
		if p := &s.Pins[0]; p.Line > 0 {
			pinned = s.Lines[p.Line-1]
			pinned.Left = l.Windows[own].gain(s, pinned.Left, s.Now, now)
			s.takeLine(p.Line)
		}
	}
	usedUp := s.usedUp()
	for i := range s.Lines {
		line := &s.Lines[i]
		turned = turned && l.Windows[i].continues(&line.Window)
		if int64(i) >= own {
			if line.Window.Size != 0 {
				line.Left = line.Window.gain(s, line.Left, s.Now, now)
				line.Window, line.Spare, line.Taken, line.Promised = Window{Unit: line.Window.Unit}, 0, now, line.Left
			}
		} else if w := &l.Windows[i]; line.Window.Size > 0 && w.Unit == line.Window.Unit {
			left, used := min(line.Left, w.Size), line.Window.Size+line.Over-line.Left
			if line.Window.interval(now) > line.Window.interval(s.Now) {
				line.measure(s, usedUp, now)
			}
			if w.counts(&line.Window) {
				line.resize(s, w, now)
				used = 0
			} else if w.Series != 0 && w.Series == line.Window.Series { // one of the callers is in the next interval
				if turns := w.begun(&line.Window, s, now); turns > 0 {
					line.Left, line.Over = filled(left, turns, min(w.Rate, line.Window.Rate), line.Window.Size), 0
				}
			} else if w.Series != 0 || line.Window.Series != 0 {
				line.Left = min(line.Window.past(s, left, s.Now, now), w.past(s, left, s.Now, now))
			} else {
				line.Left = w.either(s, &line.Window, left, now)
				if w.interval(now) > w.interval(s.Now) { // the use of an interval that is over
					line.Over = 0
				}
			}
			line.carry(w, s, used, now)
		}
	}
	for i := range l.Windows {
		w := &l.Windows[i]
		if int64(i) == own {
			s.putLine(own, &pinned)
			s.Pins[0].Line = own + 1
		} else if i >= len(s.Lines) && known {
			s.Lines = append(s.Lines, Line{Window: *w, Left: w.Size, FreshFrom: s.LastID, StaleFrom: s.LastID})
		} else if i >= len(s.Lines) {
			s.Lines = append(s.Lines, Line{Window: *w, Left: w.gain(s, 0, from, now)})
		}
		line := &s.Lines[i]
		if line.Window.Unit != w.Unit { // else changing it to and fro would refill it each time
			*line = Line{Left: max(0, line.Left), FreshFrom: s.LastID, StaleFrom: s.LastID}
		} else if line.Window.Size == 0 { // the operations of the meantime may have run just now
			line.Left += w.past(s, min(line.Promised, w.Size), line.Taken, now) - line.Promised
			line.keep(s)
		}
		line.Window, line.Left = *w, min(line.Left, w.Size)
		line.clip(s)
	}
	s.Now = now
	if !turned {
		s.rebook(&promised, from-l.Windows[0].Interval)
	}
}

// promises returns the promises as one Ticket.
func (s *State) promises() Ticket {
	return Ticket{Slot: s.Slot, Cost: Cost{s.promised(0), s.promised(1), s.promised(2), s.promised(3)}}
}

// promised returns about how much of a unit is promised to operations that have not run yet: not more than their tickets can take, since
// another unit may have set their slots. A shared limit has a Calendar instead.
func (s *State) promised(unit int64) int64 {
	promised := int64(MostUnits)
	for i := range s.Lines {
		if w, line := &s.Lines[i].Window, &s.Lines[i]; w.Size > 0 && w.Unit == unit {
			if n := max(0, w.interval(s.Slot)-w.interval(w.since(s, s.Now))); n < MostUnits/w.Rate {
				gain := n * w.Rate
				if n == 1 && line.Promised > w.Rate { // the slot is in that interval because of space, not because no room was before
					gain = w.gain(s, line.Left, s.Now, s.Slot) - line.Left
				}
				promised = min(promised, line.Left+gain-line.Promised)
				if line.Largest > 0 {
					promised = min(promised, line.waits(s))
				}
			}
		}
	}
	if s.Slot < s.Now || promised == MostUnits || len(s.Calendars) > 0 {
		return 0
	}
	return max(0, promised)
}

// waits returns how much of a window the tickets that are out take at most.
func (line *Line) waits(s *State) int64 {
	each := max(1, line.Largest, line.usual(s))
	return min(max(0, s.Next-s.Head/16), MostUnits/each) * each
}

// rebook brings promises to s.Now. Their tickets keep their slots. Those for which the windows bring nothing until the last slot
// book again. The rest of the interval of the last slot stays, since another unit may have put the slot there: else each change would cost
// an interval. If nothing is promised, no slot after the given one counts.
func (s *State) rebook(promised *Ticket, slot int64) {
	end := slot
	for i := range s.Lines {
		w, line := &s.Lines[i].Window, &s.Lines[i]
		if cost := promised.Cost[w.Unit]; w.Size > 0 && cost > 0 {
			end = max(end, w.room(s, line.Left-cost+1, 1, s.Now))
		}
	}
	s.Slot = min(end, max(slot, promised.Slot))
	for i := range s.Lines {
		if w, line := &s.Lines[i].Window, &s.Lines[i]; w.Size > 0 { // else it is left out: see adopt
			kept := int64(0)
			if s.Slot == promised.Slot && w.interval(s.Slot) > w.interval(s.Now) {
				kept = min(line.Promised, w.Size)
			}
			line.Promised = max(min(line.Left, 0), kept, w.gain(s, line.Left-promised.Cost[w.Unit], s.Now, s.Slot))
		}
	}
	for i := range s.Flows {
		s.Flows[i].End = 0
	}
	for i := range s.Calendars { // grains may have room again
		s.Calendars[i].Front = 0
	}
}

// either is gain until now of a window that took the place of an old one at an unknown time. Between two intervals of the longer
// one begins one of the shorter, but both may be missing at the change, unless they begin together.
func (w *Window) either(s *State, old *Window, left, now int64) int64 {
	slow, short := *old, w.Interval
	if short > old.Interval {
		slow, short = *w, old.Interval
	}
	slow.Size, slow.Rate = min(w.Size, old.Size), min(w.Rate, old.Rate)
	missing, behind := int64(0), old.Offset-w.Offset
	if slow.Interval/short*short != slow.Interval || floor(behind, short)*short != behind {
		missing = slow.Rate
	}
	return max(left, slow.gain(s, left-missing, max(w.since(s, s.Now), old.since(s, s.Now)), now))
}

// past is gain up to now, by a window that may not have been in force all the time. Of a Series it counts only the
// beginning and the end of the interval that it knows.
func (w *Window) past(s *State, left, from, now int64) int64 {
	if w.Series == 0 {
		return w.gain(s, left, from, now)
	}
	return min(w.Size, left+w.turns(s, from, now)*w.Rate)
}

// turns returns how many of the two times that a window of a Series knows have passed.
func (w *Window) turns(s *State, from, now int64) int64 {
	before, after := w.interval(w.since(s, from)), w.interval(now) // 0 is the interval between these times
	return max(0, min(max(after, -1), 1)-min(max(before, -1), 1))
}

const (
	day   = 86_400_000
	month = 2_629_746_000 // the average of the calendar
)

// begun returns how many intervals of a Series have begun since the last decision, of which old is the window. One of the callers may be
// in the next interval. Between the two windows are whole days, weeks or months. After a time in which the entity was closed, begun
// counts only the ends of the two.
func (w *Window) begun(old *Window, s *State, now int64) int64 {
	turns := max(w.turns(s, s.Now, now), old.turns(s, s.Now, now))
	length := (w.Interval + day/2) / day * day
	if length > 7*day {
		length = month
	}
	if length > 0 && w.since(s, s.Now) == s.Now {
		n, last := floor(w.Offset-old.Offset+length/2, length)+w.interval(now)-old.interval(s.Now), w.interval(s.Now)
		if max(last, old.interval(s.Now)) > 0 { // a caller is far behind, where the lengths of the intervals do not add up
			n = min(n, w.interval(now)-last)
		}
		turns = max(turns, n)
	}
	return turns
}

// counts reports whether a window has another Size than the old one, and both count what operations use in the same intervals.
// Windows that gather capacity do not: providers differ in how they change them.
func (w *Window) counts(old *Window) bool {
	return w.Size != old.Size && w.Size <= w.Rate && old.Size <= old.Rate && w.recurs(old)
}

// recurs reports whether two windows have the same intervals.
func (w *Window) recurs(old *Window) bool {
	return w.Series == old.Series && (w.Series != 0 || w.Interval == old.Interval && w.Offset == old.Offset)
}

// continues reports whether the windows differ at most in the interval of a Series.
func (w *Window) continues(old *Window) bool {
	return w.Size == old.Size && w.Rate == old.Rate && w.Unit == old.Unit && w.recurs(old)
}

// resize gives the window of this interval another size. The use in it stays counted, also if limits change to and fro. A window
// that owes capacity has no more of it.
func (line *Line) resize(s *State, w *Window, now int64) {
	old := line.Window
	turns, rate := w.interval(now)-w.interval(s.Now), old.Rate
	if w.Series != 0 { // one of the callers is in the next interval
		turns = w.begun(&old, s, now)
	}
	if line.Left < 0 { // nobody knows when the limit has changed
		rate = min(w.Rate, old.Rate)
	}
	if turns > 0 {
		line.Left, line.Over = filled(line.Left, turns, rate, old.Size), 0
	}
	more := w.Size - old.Size
	if line.Left < 0 {
		line.Over = max(0, line.Over-more)
	} else {
		left := line.Left - line.Over + more
		line.Left, line.Over = max(0, left), max(0, -left)
	}
	if line.Over > 0 {
		line.keep(s)
	}
}

// carry keeps in Over the use of this interval that a smaller Size does not show: resize may make it larger again in the same interval.
func (line *Line) carry(w *Window, s *State, used, now int64) {
	if w.interval(now) == w.interval(s.Now) {
		line.Over = max(line.Over, used-w.Size+min(line.Left, w.Size))
	}
}
