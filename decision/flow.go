package decision

// Flow is the part of an entity's State for one shared limit. Its Units are parts. The Flows with the keys ofUrgent and
// below count the entity's urgent tickets, one Flow for each unit.
//
// A Flow counts tickets by their slots: Units until Before, Later after it. So a lost ticket counts until its half is
// over.
type Flow struct {
	Key        int64 // of the limit
	Units      int64 // of the tickets with slots until Before
	Later      int64 // of the tickets with later slots
	Before     int64
	Until      int64 // the last slot that a ticket got
	End        int64 // the last slot in the entity's own line of operations whose busiest limit is this one, or that wait until it opens
	Left       int64 // the capacity that is left in the entity's shortest window at End
	Urgent     int64 // the part of Units and Later that is urgent; in a Flow of urgent tickets, their number
	Fair       int64 // until when the entity has had its fair share, or when it has its first turn, in ticks
	FairUrgent int64 // the same, of urgent operations alone
	Last       int64 // the place of the last ticket, in ticks: displaced ones go behind it
	Minute     int64 // when Weight was counted
	Weight     int64 // its weight in the Calendar
	Backlog    int64 // its tickets in the Calendar: how many 1024ths of a grain the limit takes for them
}

// ofUrgent is the key of the Flow of urgent calls. ofUrgent-unit is the key of the Flow of a unit.
const ofUrgent = 0

// expire forgets the tickets that should have been back at a time.
func (f *Flow) expire(at int64) {
	if at > f.Before {
		f.Units, f.Later, f.Before = f.Later, 0, f.Until
		if at > f.Before {
			f.Units = 0
		}
		f.Urgent = min(f.Urgent, f.Units)
	}
}

// put counts a ticket.
func (f *Flow) put(slot, units int64) {
	if slot <= f.Before {
		f.Units += units
	} else {
		f.Later += units
	}
	f.Until = max(f.Until, slot)
}

// take removes a ticket from the count. It returns how much of it was counted: nothing of a copy.
func (f *Flow) take(slot, units int64) (taken int64) {
	if slot <= f.Before {
		taken = min(units, f.Units)
		f.Units -= taken
	} else {
		taken = min(units, f.Later)
		f.Later -= taken
	}
	return taken
}

// putUrgent counts an urgent ticket, also among the calls if it takes none.
func (s *State) putUrgent(t *Ticket) {
	for unit := range int64(Units) {
		if t.Cost[unit] > 0 || unit == 0 {
			f := &s.Flows[s.flow(ofUrgent-unit)]
			f.put(t.Slot, t.Cost[unit])
			f.Urgent++
		}
	}
}

// takeUrgent removes an urgent ticket from the count.
func (s *State) takeUrgent(t *Ticket) {
	for i := range s.Flows {
		f := &s.Flows[i]
		if f.Key <= ofUrgent {
			f.Urgent = max(0, f.Urgent-min(1, f.take(t.Slot, t.Cost[ofUrgent-f.Key])))
		}
	}
}

// expireUrgent forgets the urgent tickets that should have been back at a time.
func (s *State) expireUrgent(at int64) {
	for i := range s.Flows {
		f := &s.Flows[i]
		if f.Key <= ofUrgent {
			f.expire(at)
		}
	}
}

// passed reports whether the entity had a ticket of an urgent operation in the last minute, which may have run in the
// slot of another one.
func (s *State) passed() bool {
	u := s.urgent(0)
	return u.until > s.Now-minute
}

// urgent is what is known of the urgent tickets that take a unit.
type urgent struct {
	booked  int64 // of the unit
	tickets int64 // about how many are out
	until   int64 // the last slot that one got
}

// urgent looks up the urgent tickets that take a unit.
func (s *State) urgent(unit int64) (u urgent) {
	for i := range s.Flows {
		f := &s.Flows[i]
		if f.Key == ofUrgent-unit {
			u = urgent{booked: f.Units + f.Later, tickets: min(f.Urgent, f.Units+f.Later), until: f.Until}
		}
	}
	return u
}

// yields returns how many free tokens an operation leaves to urgent calls, if the last of these comes back within the time of an
// operation. In every fourth part of the time it leaves none, so that urgent operations do not starve the others.
func (l *Limits) yields(s *State, op *Op) int64 {
	u, mean := s.urgent(0), max(1, l.mean(s))
	if op.Urgent || u.until < s.Now || u.until-s.Now > mean || s.Now/mean%4 == 0 {
		return 0
	}
	return u.tickets
}

// passing returns the capacity of an interval that a returning ticket leaves to urgent tickets. A ticket that was denied leaves
// less: it keeps half of the interval, or its cost.
func (s *State) passing(w *Window, op *Op) int64 {
	if !op.back() || op.Urgent {
		return 0
	}
	u, rate := s.urgent(w.Unit), min(w.Rate, w.Size)
	return min(u.booked, max(0, rate-min(1, op.Ticket.Again)*max((rate+1)/2, op.Cost[w.Unit])))
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
	left := f.Left
	if op.back() && v.bound <= BoundTokens && op.Ticket.Slot <= f.End && w.Size > w.Rate {
		left = min(w.Size, left+op.Ticket.Cost[w.Unit])
	}
	return min(w.gain(s, left, f.End, t), w.gain(s, line.Left, s.Now, t))
}

// drains returns how long the entity's shortest window would take for the tickets of a flow, if all were like this operation.
func (l *Limits) drains(f *Flow, op *Op, part int64) int64 {
	w := &l.Windows[l.Shortest]
	cost := op.Cost[w.Unit]
	units := min((f.Units+f.Later)/max(1, part), bound/(cost+1)) * cost
	return min(units/min(w.Rate, w.Size)+1, bound/w.Interval/2) * w.Interval
}

// able returns about how many operations like this one the windows let through in a span from now on.
func (l *Limits) able(s *State, op *Op, span int64) int64 {
	able := int64(MostUnits)
	for i := range l.Windows {
		w := &l.Windows[i]
		if cost := op.Cost[w.Unit]; cost > 0 {
			n := w.interval(s.Now+span) - w.interval(s.Now)
			units := min(n, bound/w.Rate) * min(w.Rate, w.Size)
			if n == 0 || w.Size > w.Rate {
				units += max(0, s.Lines[i].Left)
			}
			able = min(able, units/cost)
		}
	}
	return able
}

// flow returns the place of the entity's Flow in a limit. It adds a Flow if there is none.
func (s *State) flow(key int64) int64 {
	for i := range s.Flows {
		if s.Flows[i].Key == key {
			return int64(i)
		}
	}
	s.Flows = append(s.Flows, Flow{Key: key})
	return int64(len(s.Flows)) - 1
}
