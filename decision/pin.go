package decision

// PinnedLimit is a limit that applies in addition to the Limits of Apply. With Raise it raises them where they are
// lower.
type PinnedLimit struct {
	Window Window // counted from the Pin on; Size 0 means no window. Raise raises the window with the same Interval and Unit
	Tokens int64  // 0 if none are pinned
	Raise  int64  // 1 or 0
}

// Pinned is the PinnedLimit of an entity and its Level, of which it has one or both.
type Pinned struct {
	Limit  PinnedLimit // as it was given to Pin
	End    int64       // Never if only Unpin ends it, 0 if there is no PinnedLimit
	Line   int64       // the place of the Line of Limit.Window in Lines, plus 1; 0 if it has none yet
	Window Window      // the original of the window that Raise has raised; zero if there is none
	Tokens int64       // the original Limits.Tokens
	Level  Level
}

// repin does a Pin or an Unpin. Call it before the windows are counted. It reports whether there was a pin, also if that has
// ended.
func (s *State) repin(op *Op, now int64, a *Answer) (unpinned bool) {
	t := max(now, s.Now)
	a.Found = len(s.Pins) > 0 && s.Pins[0].End > t
	unpinned = len(s.Pins) > 0 && s.Pins[0].End > 0
	s.unpin()
	if op.Kind == Pin {
		if len(s.Pins) == 0 {
			s.Pins = append(s.Pins, Pinned{})
		}
		p := &s.Pins[0]
		p.Limit, p.End = *op.Pin, Never
		if op.For > 0 {
			p.End = t + op.For
		}
		if op.Pin.Raise == 1 { // the operator knows better than the refusals so far
			p.Level = Level{}
		}
	}
	return unpinned
}

// unpin forgets the pin with its Line. The promises stay, at the rates without it. The Level stays, unless it is a part of raised windows.
func (s *State) unpin() {
	if len(s.Pins) > 0 {
		p := &s.Pins[0]
		if p.Line > 0 {
			promised := s.promises()
			s.takeLine(p.Line)
			s.rebook(&promised, min(s.Slot, s.Now))
		}
		if p.Limit.Raise == 1 {
			p.Level = Level{}
		}
		*p = Pinned{Tokens: p.Tokens, Level: p.Level}
		if p.Level.Part == 0 {
			s.Pins = s.Pins[:0]
		}
	}
}

// pinned reports whether the entity or a shared limit may have a pin or a level.
func (s *State) pinned(shared []Shared) bool {
	any := len(s.Pins) > 0
	for i := range shared {
		any = any || len(shared[i].State.Pins) > 0
	}
	return any
}

// hold turns l and the limits in shared into the limits in force, at the time of the operation.
func (l *Limits) hold(s *State, shared []Shared, op *Op, now int64) {
	t := s.time(shared, now)
	l.pin(s, op, t)
	for i := range shared {
		x := &shared[i]
		x.Limits.pin(x.State, op, t)
		x.Limits.share()
	}
}

// pin turns l into the limits in force at a time: the pinned window is the last one, and the level applies to all
// others. If the operation always changes the entity, pin brings the level to the time.
func (l *Limits) pin(s *State, op *Op, now int64) {
	if len(s.Pins) > 0 {
		p := &s.Pins[0]
		pinned := p.End > now
		p.Tokens = l.Tokens
		if pinned { // else Window is still the original of the stored window
			p.Window = Window{}
			if p.Limit.Tokens > 0 && (p.Limit.Raise == 1 || p.Limit.Tokens < l.Tokens) {
				l.Tokens = p.Limit.Tokens
			}
			for i := range l.Windows {
				if w := &l.Windows[i]; p.Limit.Raise == 1 && w.like(&p.Limit.Window) && p.Window.Size == 0 {
					p.Window = *w
					w.Size, w.Rate = max(w.Size, p.Limit.Window.Size), max(w.Rate, p.Limit.Window.Rate)
				}
			}
		}
		if p.Level.Part > 0 {
			if op.Kind == Announce {
				p.Level.Announced, p.Level.Until = op.Level, now+op.For
			} else if op.Kind == Throttle && op.Level > 0 {
				l.refused(&p.Level, now)
			}
			if op.changes() || op.Kind == Announce {
				l.follow(s, &p.Level, now)
			}
		}
		if p.Level.Part > 0 { // follow may have ended it
			for i := range l.Windows {
				l.Windows[i] = l.Windows[i].at(p.Level.Part)
			}
		}
		if pinned && p.Limit.Window.Size > 0 {
			l.Windows = append(l.Windows, p.Limit.Window)
		}
		l.derive()
	}
}

// like reports whether two windows have the same unit and the same interval. Days have 23 to 25 hours, and months 28 to 31 days.
func (w *Window) like(pinned *Window) bool {
	differ := max(w.Interval-pinned.Interval, pinned.Interval-w.Interval)
	return w.Unit == pinned.Unit && (differ == 0 || w.Series != 0 && differ <= pinned.Interval/8)
}

// own returns the number of windows without the pinned one.
func (l *Limits) own(s *State) int64 {
	n := int64(len(l.Windows))
	if len(s.Pins) > 0 && s.Pins[0].Limit.Window.Size > 0 {
		n--
	}
	return n
}

// takeLine removes the Line at place-1.
func (s *State) takeLine(place int64) {
	for place < int64(len(s.Lines)) {
		s.Lines[place-1] = s.Lines[place]
		place++
	}
	s.Lines = s.Lines[:len(s.Lines)-1]
}

// putLine makes a Line the one with this place. Those behind it move up.
func (s *State) putLine(place int64, line *Line) {
	at := int64(len(s.Lines))
	s.Lines = append(s.Lines, *line)
	for at > place {
		s.Lines[at] = s.Lines[at-1]
		at--
	}
	s.Lines[place] = *line
}
