package decision

// Calendar is the additional part of the State of a shared limit. Grains are numbered from 1970.
type Calendar struct {
	Grain   int64  // the length of a grain, in ms
	Head    int64  // the grain of State.Now
	Front   int64  // no grain before it has room
	Last    int64  // the place of the last ticket that waits for this limit behind the calendar, in ticks
	Booked  int64  // the units booked in all grains from Head on
	Minute  int64  // the number of the minute of Weight: 60 grains. A minute in which nobody asks has none
	Weight  int64  // of the entities that wait, counted in this minute
	Before  int64  // of the entities counted in the minute before, and not since
	Largest int64  // about 64 times the average cost of the last newcomers, each by its largest unit, in 1024ths of the calendar's units: see ask
	Asked   Cost   // the same of each unit, not rounded up
	Units   Counts // booked in Head and in each grain after it
	Classes Counts // of the entities that wait
}

// Grains is the number of grains in a calendar.
const Grains = 1024

// mostBooked is the most that a place of Counts holds.
const mostBooked = 1<<24 - 1

// fully is the ratio of a window of which operations take all that is booked: see Calendar.ratio.
const fully = 1 << 20

// mostGrains is how many grains' worth an operation books at most, if the windows count several units.
const mostGrains = 128

// holds reports whether the calendar has a grain.
func (c *Calendar) holds(n int64) bool { return n >= c.Head && n < c.Head+Grains }

// at returns the units booked in a grain.
func (c *Calendar) at(n int64) int64 { return c.Units.At(n - c.Head) }

// put sets the units booked in a grain.
func (c *Calendar) put(n, units int64) {
	c.Booked += units - c.at(n)
	c.Units.Put(n-c.Head, units)
}

// ratio returns how much of the booked units operations will probably take from a window, as a part of fully. Estimates are too high or too
// low, some operations take more of one unit and others of another, and small ones are rounded up.
func (c *Calendar) ratio(line *Line) int64 {
	rest, each := c.Largest-c.Asked[line.Window.Unit], max(1, (c.Largest+1023)/1024)
	booked := fully - rest/each*1024 - rest%each*1024/each
	return max(1, booked*(4096-line.Saved)/4096)
}

// portion returns a ratio of the booked units.
func portion(booked, ratio int64) int64 { return (booked/1024*ratio + booked%1024*ratio/1024) / 1024 }

// advance brings the limit to now.
func (x *Shared) advance(now int64) {
	x.Limits.advance(x.State, x.Leases, now)
	if len(x.State.Calendars) == 0 {
		x.State.Calendars = append(x.State.Calendars, Calendar{})
	}
	c := &x.State.Calendars[0]
	head := x.Limits.grain(now)
	if c.Grain != x.Limits.Grain {
		c.Units.Clear()
		c.Classes.Clear()
		c.Grain, c.Head, c.Booked, c.Front, c.Last = x.Limits.Grain, head, 0, head, 0
		c.Minute, c.Weight, c.Before = head/60, 0, 0
	}
	if n := c.Head + Grains; c.Head < head {
		if head/60 > c.Head/60 { // an entity that does not ask for two minutes does not count, unless no entity asks
			for at := range int64(2 * classes) {
				c.Classes.Put(at+2*classes, c.Classes.At(at))
				c.Classes.Put(at, 0)
			}
			c.Before, c.Weight = c.Weight, 0
			c.Minute++
		}
		c.Booked -= c.Units.Sum(0, head-c.Head, mostBooked)
		c.Units.Drop(head - c.Head)
		c.Head = head
		x.fill(max(n, head), min(head+Grains, c.Last/tick))
	}
	c.Front = max(c.Front, head+1)
}

// fill books the grains from one to another, which the calendar has from now on, for the tickets that wait behind it. A window that is
// longer than a grain serves from its beginning, or from now on, until it is used up.
func (x *Shared) fill(n, end int64) {
	c, l := &x.State.Calendars[0], x.Limits
	if n < end {
		x.rates(0)
	}
	for n < end {
		t, serves := l.begin(n), true
		for i := range l.Windows {
			if w := &l.Windows[i]; w.Interval > l.Grain && w.interval(t) == w.interval(x.State.Now) {
				serves = serves && (n-c.Head-1)*tick < x.remains(int64(i))
			} else if w.Interval > l.Grain {
				serves = serves && (n-l.whole(w.begin(w.interval(t))))*tick < x.lasts(min(w.Rate, w.Size), int64(i))
			}
		}
		if serves {
			c.put(n, x.rate)
		}
		n++
	}
}

// ask counts a newcomer's cost. The averages follow the last 64 newcomers, or as many as are booked, since those still wait: at most 448,
// so that they follow costs that change, and fewer if the costs are so small that parts of them would round to nothing.
func (x *Shared) ask(cost *Cost) {
	c, l := &x.State.Calendars[0], x.Limits
	n := max(64, min(c.Booked/max(1, c.usual()), c.Largest/1024, 7*64))
	c.Largest += l.asked(l.part(cost))*1024*64/n - c.Largest/n
	c.Asked[0] += l.exact(parts(cost[0], l.Parts[0]))*64/n - c.Asked[0]/n
	c.Asked[1] += l.exact(parts(cost[1], l.Parts[1]))*64/n - c.Asked[1]/n
	c.Asked[2] += l.exact(parts(cost[2], l.Parts[2]))*64/n - c.Asked[2]/n
	c.Asked[3] += l.exact(parts(cost[3], l.Parts[3]))*64/n - c.Asked[3]/n
}

// usual returns about the average cost of the last newcomers, in units of the calendar.
func (c *Calendar) usual() int64 { return min((c.Largest+32*1024)/(64*1024), mostBooked) }

// exact converts parts to 1024ths of a unit of the calendar.
func (l *Limits) exact(part int64) int64 { return min(part*1024/l.Scale, 1<<44) }

// asked converts parts to units of the calendar, without the bound of a place, so that ratios hold for the largest operations, too.
func (l *Limits) asked(part int64) int64 { return min((part+l.Scale-1)/l.Scale, 1<<34) }

// booked converts parts to units of the calendar.
func (l *Limits) booked(part int64) int64 { return min(l.asked(part), mostBooked) }

// units converts units of the calendar to a unit of the windows.
func (l *Limits) units(booked, unit int64) int64 {
	return (booked*l.Scale + l.Parts[unit]/2) / l.Parts[unit]
}

// booked converts parts to units of the calendar: at least as many as operations like this one take.
func (x *Shared) booked(part int64) int64 {
	return min(max(x.Limits.booked(part), min(part/max(1, x.part), mostBooked)*x.units), 1<<32)
}

// backlog converts parts to 1024ths of a grain.
func (x *Shared) backlog(part int64) int64 { return x.booked(part) * 1024 / x.rate }

// expects returns how much the booked operations will probably take from a window. If tokens are short, an operation books
// several units, but takes its cost only once.
func (x *Shared) expects(booked, window int64) int64 {
	c, line := &x.State.Calendars[0], &x.State.Lines[window]
	return x.Limits.units(min(portion(booked/x.times, c.ratio(line)), 1<<32), line.Window.Unit)
}

// in returns the time in a grain at which a unit has its turn behind the booked ones. Units beyond the rate of a full grain displace
// others from its beginning on.
func (x *Shared) in(n, booked int64) int64 {
	l, after := x.Limits, int64(0)
	for i := range l.Windows {
		if w := &l.Windows[i]; w.Interval < l.Grain && l.PerGrain/l.Parts[w.Unit] > w.Rate {
			after = max(after, x.expects(booked%(x.rate+x.more), int64(i))/w.Rate*w.Interval%l.Grain)
		}
	}
	if x.short && booked >= min(l.Tokens, mostBooked)*x.units {
		after = max(after, booked%x.rate/max(1, x.units)*l.pace(x.State)/1000)
	}
	return l.begin(n) + after
}

// holds reports whether a time is in the calendar.
func (x *Shared) holds(t int64) bool { return x.State.Calendars[0].holds(x.Limits.grain(t)) }

// open returns the first grain from one on in which the windows that are longer than a grain are not booked up for an operation. A
// grain counts at most as much as most.
func (x *Shared) open(op *Op, n, most int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	open, t := n, l.begin(n)
	for i := range l.Windows {
		if w, line := &l.Windows[i], &x.State.Lines[i]; w.Interval > l.Grain && op.Cost[w.Unit] > 0 {
			from, end, brings := c.Head, l.whole(w.Next(t)), w.Size
			if k := max(0, w.interval(t)-w.interval(x.State.Now)); k == 0 || w.Size > w.Rate {
				brings = min(line.Left+line.returns()+min(k, bound/w.Rate)*w.Rate, MostUnits)
			} else {
				from = l.whole(w.begin(w.interval(t)))
			}
			if x.expects(c.Units.Sum(from-c.Head, end-c.Head, most), int64(i)) >= brings {
				open = max(open, end)
			}
		}
	}
	return open
}

// serves returns how many units a grain serves. Tokens serve whole operations, in some grains more than in others. Operations that
// wait for a unit leave as much to an operation that takes nothing of it.
func (x *Shared) serves(n int64) int64 {
	if x.apart {
		return 2 * x.rate
	}
	if x.times == 1 {
		return x.rate
	}
	each := max(1, x.units)
	return ((n%Grains+1)*x.rate/each - n%Grains*x.rate/each) * each
}

// seek returns the first grain from t on that has room, or one behind the calendar.
func (x *Shared) seek(op *Op, t int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	n := max(l.grain(t), c.Head+1)
	first := n <= c.Front && !x.apart
	if first && !(op.back() && x.fits() && x.longer && x.open(op, n, x.rate) == n) { // else it leaves room in the interval of a longer window
		n = c.Front
	}
	end, at, closed := c.Head+Grains, int64(0), int64(0)
	gathers := !x.longer && (len(l.Windows) > 1 || l.grain(t) > c.Head) // else the operations use at once what one window has gathered
	booked := c.Booked - c.Units.Sum(n-c.Head, Grains, mostBooked)
	for n < end && n != at {
		at = n
		booked += c.at(n)
		full := c.at(n) >= x.serves(n)
		if full && !x.apart && n >= closed && x.surplus(op, booked, l.begin(n), gathers && booked-c.at(n) >= x.rate*(n-c.Head-1)) {
			closed = x.open(op, n, mostBooked)
			full = closed > n
		}
		if full {
			n++
		} else {
			n = x.open(op, n, x.rate)
			booked += c.Units.Sum(at+1-c.Head, n-c.Head, mostBooked)
		}
	}
	if first {
		c.Front = min(n, end)
	}
	if x.units > x.rate && x.gathered == 0 { // it takes more than a grain brings: the next grains, or some of them and what is left
		x.gathered = min(c.Front+(x.units-1)/x.rate, end)
		for i := range l.Windows {
			if op.Cost[l.Windows[i].Unit] > 0 && c.Front == c.Head+1 {
				x.gathered -= x.remains(int64(i)) / tick
			}
		}
	}
	return max(n, x.gathered)
}

// later returns the place, in ticks, by which the limit has served for a span of ticks from another place on, if it serves
// as early as its windows allow. It leaves out the time in which a window that is longer than a grain is used up.
func (x *Shared) later(from, span int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	at, t := from+span, l.begin(min(from/tick, l.grain(LastTime)))
	for i := range l.Windows {
		w := &l.Windows[i]
		if w.Interval > l.Grain {
			n, each := w.interval(t), max(1, x.lasts(min(w.Rate, w.Size), int64(i)))
			free := x.remains(int64(i)) - x.served(w.Interval, from-(c.Head+1)*tick) // from there until the window is used up
			if n > w.interval(x.State.Now) {
				free = max(free, each-x.served(w.Interval, from-l.whole(w.begin(n))*tick))
			}
			if rest := span - max(0, free); rest >= 0 {
				at = max(at, l.whole(w.begin(n+1+min(rest/each, LastTime/w.Interval)))*tick+rest%each)
			}
		}
	}
	return min(at, Never)
}

// remains returns how long the capacity of a window lasts behind this grain, in ticks.
func (x *Shared) remains(window int64) int64 {
	c, line := &x.State.Calendars[0], &x.State.Lines[window]
	return x.lasts(line.Left+line.returns()-x.expects(c.at(c.Head), window), window)
}

// served returns for how long about the limit serves at most in a span, by the windows with shorter intervals. In the rest of the time
// these are used up.
func (x *Shared) served(interval, span int64) int64 {
	l, most := x.Limits, span
	for i := range l.Windows {
		w := &l.Windows[i]
		if w.Interval > l.Grain && w.Interval < interval && span > 0 {
			each, intervals := x.lasts(min(w.Rate, w.Size), int64(i)), span/(w.Interval/l.Grain*tick)+1
			most = min(most, each*min(intervals, bound/max(1, each)))
		}
	}
	return most
}

// lasts returns how long a capacity of a window lasts, in ticks.
func (x *Shared) lasts(capacity, window int64) int64 {
	n := max(1, 1024/max(1, x.expects(x.rate*x.times, window))) // grains: one may take less than a unit
	lasts := min(max(0, capacity), 1<<42/n) * 1024 * n / max(1, x.expects(x.rate*x.times*n, window))
	return min(min(lasts, 1<<32)*x.times, 1<<32) * (tick / 1024)
}

// time returns the time of a place in ticks. The units before it fill the grain.
func (x *Shared) time(place int64) int64 {
	return x.in(min(place/tick, x.Limits.grain(LastTime)), x.rate+place%tick/(tick/1024)*x.rate/1024)
}
