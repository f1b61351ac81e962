package decision

// expected returns the expected cost of an operation, in 4096ths of its estimate. Some operations may cost something, also if the last
// ones were free.
func (line *Line) expected() int64 { return max(64, 4096-max(0, line.Saved)) }

// weight returns the expected cost of the operation with this number. It rounds some numbers up and others down, so that the sum of several
// is right. It rounds up for the number 0. A 64th of a unit does not count, since the average is not exact.
func (line *Line) weight(cost, number int64) int64 {
	fraction := int64(4096 - 63)
	return (cost*line.expected() + fraction - number*2531%fraction) / 4096
}

// overestimated reports whether operations take less than seven eighths of their estimates.
func (line *Line) overestimated() bool { return line.Saved > 512 }

// usual returns the average estimate of the last operations.
func (line *Line) usual(s *State) int64 { return line.Estimated / max(1, min(s.Ended, most)) }

// returns returns how much the operations in flight will probably give back to a window.
func (line *Line) returns() int64 { return min(line.Fresh, MostUnits) * max(0, line.Saved) / 4096 }

// refund returns the time at which the operations in flight have probably given back so many units of a window, or Never. Few units
// come back with the first of them, hardly before an eighth of the average duration.
func (l *Limits) refund(s *State, line *Line, units int64) int64 {
	returns := line.returns()
	if units < 1 || units > returns {
		return Never
	}
	return s.Now + 1 + l.mean(s)*max(128, units*1024/returns)/1024
}

// fades is the number of intervals in which a unit that booked operations have left is forgotten.
const fades = 4

// measure learns, at the end of an interval, how much capacity the booked operations left. Newcomers may take as much in the next
// interval, and a little less in each interval after it: which tickets come back is chance, so an interval without a lost one says
// little. As long as the window has room for the next gain, the largest of the booked operations may be waiting for it. An interval in which
// a longer window was used up tells nothing. lost is what the window has no room for.
func (line *Line) measure(s *State, usedUp, now int64) (lost int64) {
	w := &line.Window
	if w.interval(s.Slot) > w.interval(s.Now) {
		left := w.gain(s, line.Left, s.Now, w.begin(w.interval(now))-1)
		lost = max(0, line.Taken+max(0, left)-max(0, w.Size-w.Rate))
		if w.interval(max(line.LargestAt, s.Closed)) < w.interval(s.Now)-1 { // it has run, or does not come
			line.Largest = 0
		}
		if left+w.Rate <= w.Size && s.Closed <= s.Now {
			left -= max(0, min(line.Largest-1, w.gain(s, line.Left, s.Now, s.Slot)-line.Promised))
		}
		if usedUp <= w.Interval { // else no booked operation could come
			unused := max(0, line.Taken+max(0, left))
			line.Spare = max(fades*unused, max(0, line.Spare)*(fades-1)/fades)
		}
	} else {
		line.Spare, line.Largest, line.LargestAt = 0, 0, 0
	}
	line.Taken = 0
	return lost
}

// usedUp returns the interval of the longest window that has no room for an operation, or 0.
func (s *State) usedUp() int64 {
	longest := int64(0)
	for i := range s.Lines {
		if line := &s.Lines[i]; line.Left < max(1, line.usual(s)) { // one that is left out has no Interval
			longest = max(longest, line.Window.Interval)
		}
	}
	return longest
}

// spares reports whether newcomers may take so much that is promised.
func (line *Line) spares(cost int64) bool { return line.Spare > fades*(line.Taken+cost-1) }

// release gives the unused slots of a shorter window back to the windows that are not refreshed yet, because their
// operations do not come. If the last promised slot lies behind the refresh, newcomers may take as much of the capacity that
// is left. Of another unit these operations would have taken the usual amount. A window of it that gathers keeps that for a large one.
func (l *Limits) release(s *State, shorter *Line, units, now int64) {
	operations := units / max(1, shorter.usual(s))
	for i := range l.Windows {
		w, line, n := &l.Windows[i], &s.Lines[i], units
		same := w.Unit == shorter.Window.Unit
		if !same {
			n = min(operations, bound/(line.usual(s)+1)/fades) * line.usual(s)
		}
		if (same || w.Size <= w.Rate) && w.interval(now) == w.interval(s.Now) {
			if w.interval(s.Slot) == w.interval(now) {
				line.Promised = min(w.Size, line.Promised+n)
			} else {
				line.Spare = max(line.Spare, min(fades*(line.Left+line.Taken), line.Spare+fades*n))
			}
		}
	}
}

// mean returns the average duration of an operation, in ms. Guess counts as the first operation.
func (l *Limits) mean(s *State) int64 { return (s.Held + l.Guess) / (s.Ended + 1) }

// trusted is a Guess, in ms, that is not doubted: see Limits.pace.
const trusted = 200

// pace returns the average time between two returned tokens, in us. Guess counts as the first operation. Tickets cannot be
// called back from their slots. So a long Guess, which may be far too high, counts an eighth: if it is right, a ticket asks once
// more.
func (l *Limits) pace(s *State) int64 {
	guess := min(l.Guess, max(l.Guess/8, trusted))
	return max(1, (s.Held+guess)*1000/((s.Ended+1)*l.Tokens))
}

// again returns the time from one ticket that is denied a token to the next, in us. Tokens come back at random: a ticket that asks
// later leaves one idle, and many tickets ask in vain. The more tokens there are, the less does an idle one matter, and the steadier
// do tokens come back.
func (l *Limits) again(s *State) int64 {
	pace := l.pace(s)
	return max(pace*min(max(l.Tokens, 5), 10)/20, pace-pace*30/(l.Tokens+30))
}

// denials returns the time from one denied ticket to the next, in us.
func (l *Limits) denials(s *State, v *view) int64 { return max(v.again, l.space(s), l.again(s)) }

// overdue returns the least time until a ticket that is denied a token asks again, in ms. It is a quarter of the time by
// which all operations that hold a token exceed the average: the longer they run, the longer they are likely to run. Before, it is an
// eighth of the time for which no operation has begun: a few tickets need not ask as often as tokens come back. Until an operation is
// measured, it is up to all of that time, if several tickets wait for each token: one of them soon finds it. It is at most
// an eighth of a lease, because the tokens of dead holders are idle for so long.
func (l *Limits) overdue(s *State) int64 {
	age := s.Now - s.LastID/1024
	late := max((age-l.mean(s))/4, age/8-l.again(s)/500)
	if s.Ended == 0 {
		late = max(late, age/4*min(4, s.waiting()/16/l.Tokens))
	}
	return max(0, min(late, l.Lease/8))
}

// spread is the longest time, in ms, in which slots leave tokens idle: see Limits.space.
const spread = 10_000

// space returns the distance of slots in the same interval, if there is time for it, so that most of them find a token: capacity that
// has gathered may take longer. A window that is longer than spread counts as that long: its slots need not fill hours.
func (l *Limits) space(s *State) int64 {
	pace := l.pace(s)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if pace <= min(w.Interval, spread)*500/max(1, max(min(w.Rate, w.Size), line.Promised, line.Left)/max(1, line.weight(line.usual(s), 0))) {
			return 2 * pace
		}
	}
	return 0
}

// root returns the square root of n, rounded down. n is at least 1.
func root(n int64) int64 {
	x, y := n, (n+1)/2
	for y < x {
		x = y
		y = (x + n/x) / 2
	}
	return x
}
