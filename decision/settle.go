package decision

const (
	mostOver = 16      // times its estimate that an operation counts at most
	few      = 4       // operations after which estimates count as measured
	most     = 64      // operations in an average, of durations more if there are many tokens; a new one then takes the place of the average one
	longest  = 1 << 32 // ms that one of them counts at most
)

// giveBack releases the lease of a Settle or a Cancel. It sets Found if the entity had it, and reports whether there is
// anything to do. An op with no effect must not change the entity, not even its time.
func (s *State) giveBack(leases Leases, shared []Shared, op *Op, now int64, a *Answer) (any bool) {
	a.Found = leases.Release(op.Lease.ID, op.Lease.End, max(now, s.Now))
	any = a.Found
	for i := range shared {
		x := &shared[i]
		x.held = x.Leases.Release(op.Lease.ID, op.Lease.End, max(now, x.State.Now))
		any = any || x.held
	}
	return any || s.booked(shared, op)
}

// booked reports whether op is the Cancel of a ticket that may be on the books.
func (s *State) booked(shared []Shared, op *Op) bool {
	t := &op.Ticket
	return op.Kind == Cancel && t.Slot > 0 && (len(shared) > 0 || s.numbered(t))
}

// end charges the real cost of the lease where it was released, and takes the ticket of a Cancel off the books.
func (l *Limits) end(s *State, shared []Shared, op *Op, a *Answer) {
	booked := s.booked(shared, op)
	if op.Kind == Cancel {
		op.Cost = Cost{}
	}
	if a.Found {
		l.charge(s, op)
	}
	if booked {
		a.Found = true
		l.line(s)
		l.unbook(s, op)
		if op.Urgent {
			s.takeUrgent(&op.Ticket)
		}
	}
	waited := false // in a line
	for i := range shared {
		x := &shared[i]
		if x.held {
			x.Limits.charge(x.State, op)
		}
		if booked {
			f := &s.Flows[s.flow(x.Key)]
			x.able = Never
			x.enter(f, op)
			x.weigh(f)
			if w := &l.Windows[l.Shortest]; !waited && f.End > s.Now { // probably its place in the line
				waited = true
				f.Left += min(s.Lines[l.Shortest].weight(op.Ticket.Cost[w.Unit], 0), w.Size)
				n := min(max(0, f.Left)/min(w.Rate, w.Size), w.interval(f.End)-w.interval(s.Now))
				f.Left = min(w.Size, f.Left-n*min(w.Rate, w.Size))
				if f.Units+f.Later == 0 { // nobody is in the line
					f.End = 0
				} else if n > 0 {
					f.End = w.begin(w.interval(f.End) - n)
				}
			}
		}
	}
}

// learn measures an operation. One that takes much longer than the average and than the last one counts less: booked
// slots do not come forward when the others turn out to be short. An average below a millisecond counts as one. Of many tokens more
// operations count: in a pause of newcomers only the longest ones end, and then the shortest of the new ones.
func (l *Limits) learn(s *State, op *Op) {
	if s.Ended == 0 { // Last is when the first lease began
		s.Last = 0
	}
	times := min(max(most, 4*l.Tokens), 16*most)
	if s.Ended > times { // there were more tokens
		s.Held, s.Ended = s.Held*times/s.Ended, times
	}
	if s.Ended < times {
		s.Ended++
	} else {
		s.Held -= s.Held / times
	}
	time := min(max(0, s.Now-op.Lease.Begin), longest)
	s.Held += min(time, max(8, 8*(s.Held+l.Guess)/(min(s.Ended, most)+1), s.Last))
	s.Last = time
}

// charge replaces the estimate of a lease by its cost. The entity owes a cost above the estimate. The part of the
// estimate above the cost comes back as far as the window would still have it, had the operation cost that from the
// beginning. A Settle learns how much came back: the average of the first operations, then of about the last ones.
func (l *Limits) charge(s *State, op *Op) {
	if op.Kind == Settle {
		l.learn(s, op)
	}
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		estimate := op.Lease.Cost[w.Unit]
		back := estimate - op.Cost[w.Unit]
		if op.Lease.ID > line.FreshFrom {
			back = min(back, line.Fresh)
			line.Fresh = max(0, line.Fresh-estimate)
		} else if op.Lease.ID > line.StaleFrom {
			back = min(back, line.Stale)
			line.Stale -= max(0, back)
		} else {
			back = min(back, 0)
		}
		if op.Kind == Settle && estimate > 0 {
			if s.Ended >= most {
				line.Estimated -= line.Estimated / most
			}
			line.Estimated += estimate
			kept := estimate - back
			if w.Size > w.Rate && line.Left >= estimate { // far from short, perhaps full: under load there is room for what comes back
				kept = op.Cost[w.Unit]
			}
			over, part := int64(mostOver*4096), estimate*4096/line.Estimated // no division of a negative number
			saved := over + 4096 - (min(kept, mostOver*estimate)*256+estimate-1)/estimate*16
			line.Saved += saved*part/4096 - (line.Saved+over)*part/4096
		}
		line.Left = max(line.Left+back, -bound)
		line.Promised = min(w.Size, max(line.Promised+back, -bound))
	}
	first := l.Windows[0].Unit
	s.used(op.Cost[first] - op.Lease.Cost[first])
}

// drop leaves a window that gathers capacity nothing but the gain of an interval that begins when it opens.
func (l *Limits) drop(s *State) {
	for i := range l.Windows {
		if w, line := &l.Windows[i], &s.Lines[i]; w.Size > w.Rate {
			line.Left = min(line.Left, 0)
			line.keep(s)
		}
	}
}

// pause closes the entity for a time, and never opens it earlier than before. If all promised slots lie within that time
// they move later by as much. Otherwise the tickets with later slots keep them, and the others book again behind them.
func (l *Limits) pause(s *State, span int64) {
	from := max(s.Closed, s.Now)
	if s.Closed <= s.Now {
		s.Moved = 0
	}
	s.Closed = max(s.Closed, s.Now+span)
	for i := range s.Calendars { // grains behind it have room for what is due in it
		s.Calendars[i].Front = 0
	}
	if s.Slot <= s.Closed {
		s.Moved += s.Closed - from
		if s.Slot > s.Now {
			s.Slot += s.Closed - from
		}
	}
}

// resume opens the entity. The promised slots move earlier by the time that it would still be closed, if pause has moved them, and
// so do the turns behind the opening.
func (l *Limits) resume(s *State) {
	if s.Closed > s.Now && s.Slot > s.Now { // else the promises of then say nothing about this interval
		s.Slot = max(s.Now, s.Slot-min(s.Moved, s.Closed-s.Now))
	}
	if s.Closed > s.Now && s.AgainUS >= s.Closed*1000 { // else the turns are not behind the opening
		s.AgainUS -= (s.Closed - s.Now) * 1000
	}
	s.Closed = 0
}

// reset forgets the operations that run or wait, and a time that was ahead of the clock. Such a time brings no
// capacity.
func (l *Limits) reset(s *State, before, now int64) {
	s.Now, s.Slot, s.Plain, s.Closed, s.Moved, s.AgainUS, s.Head = now, now, 0, 0, 0, 0, s.Next*16
	s.Flows, s.Calendars = s.Flows[:0], s.Calendars[:0]
	for i := range s.Lines {
		line := &s.Lines[i]
		if before > now {
			line.Left = min(line.Left, 0)
		}
		line.Promised, line.Spare, line.Taken, line.Largest, line.LargestAt = line.Left, 0, 0, 0, 0
		if line.Window.Size == 0 { // it is left out since now
			line.Taken = now
		}
		line.keep(s)
	}
}
