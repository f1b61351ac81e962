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
