package decision

// classes are the classes of entities by their backlogs. An entity of class n has from 2^(n-1) to 2^n times its weight.
// Calendar.Classes has the weight and the backlogs of each class, counted in this minute. Behind them it has the same of
// the minute before.
const classes = 22

// class returns the class of an entity.
func class(backlog, weight int64) int64 {
	n, least := int64(0), weight
	for n < classes-1 && least <= backlog*weights {
		n++
		least *= 2
	}
	return n
}

// count adds an entity to its class if sign is 1, or removes it if sign is -1. It was counted at an age: 0 is this minute, 1 the
// minute before.
func (x *Shared) count(f *Flow, age, sign int64) {
	c, at := &x.State.Calendars[0], 2*(age*classes+class(f.Backlog, f.Weight))
	c.Classes.Put(at, max(0, min(c.Classes.At(at)+sign*f.Weight, mostBooked)))
	c.Classes.Put(at+1, max(0, min(c.Classes.At(at+1)+sign*f.Backlog, mostBooked)))
}

// lately returns a place of Classes, of this minute and the minute before together.
func (c *Calendar) lately(at int64) int64 { return c.Classes.At(at) + c.Classes.At(at+2*classes) }

// weigh counts the weight of an entity with tickets out, once. If its other limits let through less than its share, only a part of its
// weight counts, because the others share the rest by theirs.
func (x *Shared) weigh(f *Flow) {
	c := &x.State.Calendars[0]
	if f.Minute > c.Minute { // grains are longer now
		f.Fair, f.FairUrgent, f.Last = (c.Head-1)*tick, 0, 0
	}
	if f.Weight > 0 && f.Minute == c.Minute {
		c.Weight -= f.Weight
		x.count(f, 0, -1)
	} else if f.Weight > 0 && f.Minute+1 == c.Minute {
		c.Before -= f.Weight
		x.count(f, 1, -1)
	}
	f.Minute, f.Weight, f.Backlog = c.Minute, 0, 0
	if f.Units+f.Later > 0 {
		f.Weight = min(x.weight, mostWeight-c.Weight, x.uses())
		c.Weight += f.Weight
		f.Backlog = x.backlog(f.Units + f.Later)
		x.count(f, 0, 1)
	}
}

// uses returns the weight with which the entity would get as much as its other limits let through, beside the others that wait.
func (x *Shared) uses() int64 {
	c, all, units := &x.State.Calendars[0], x.rate*1024, max(1, x.units)
	own := min(x.able, all/units+1) * units
	if own >= all || !x.full() { // nobody takes the rest
		return mostWeight
	}
	return max(0, c.Weight+c.Before)*min(own*1024/(all-own), 1<<20)/1024 + 1
}

// full reports whether the next grain is full.
func (x *Shared) full() bool {
	c := &x.State.Calendars[0]
	return c.at(c.Head+1) >= x.rate
}

// compare lowers able to what other shared limits let through, if all that waits for this limit waits for them, too.
func (x *Shared) compare(s *State, shared []Shared) {
	f := &s.Flows[x.flow]
	for i := range shared {
		y := &shared[i]
		g := &s.Flows[y.flow]
		if y.Key != x.Key && y.Limits.Grain <= x.Limits.Grain && (g.Units+g.Later)/max(1, y.part) >= (f.Units+f.Later)/max(1, x.part) {
			x.able = min(x.able, y.allows(x.Limits.Grain))
		}
	}
}

// allows returns how many 1024ths of such an operation the entity's share lets through in a span of at least a grain.
func (x *Shared) allows(span int64) int64 {
	if !x.full() {
		return Never
	}
	return min(x.rate*1024/max(1, x.units)*(x.weight*1024/x.waits())/1024, 1<<30) * min(span/x.Limits.Grain, 1<<22)
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
			able = min(able, units/s.Lines[i].weight(cost, 0))
		}
	}
	return able
}

// until returns the time, in ticks, after which weighted max-min has given this entity some parts. In that time each other
// entity that waits gets as much for its weight, or all that it waits for if that is less. An entity with half as many tickets
// counts as if it had as many, because its other messages may just be coming.
func (x *Shared) until(part int64) int64 {
	c, backlog := &x.State.Calendars[0], min(x.backlog(part), mostBooked)
	sum, rest := int64(0), c.Weight+c.Before
	for n := range class(backlog, x.weight) - 1 {
		now, before := c.Classes.At(2*n), c.Classes.At(2*(n+classes))
		sum += min(now*backlog/x.weight, c.Classes.At(2*n+1)) + min(before*backlog/x.weight, c.Classes.At(2*(n+classes)+1))
		rest -= now + before
	}
	return min(max(backlog, sum+max(0, rest)*backlog/x.weight), 1<<32) * (tick / 1024)
}

// waits returns the weight of the entities that wait, with this one.
func (x *Shared) waits() int64 {
	c := &x.State.Calendars[0]
	return max(c.Weight+c.Before, x.weight)
}

// waiting returns about the weight of the entities that still wait some ticks from now, if each gets its share.
func (x *Shared) waiting(ticks int64) int64 {
	c, all := &x.State.Calendars[0], x.waits()
	still, time, had, least, n := all, ticks/(tick/1024)*weights, int64(0), int64(0), int64(0)
	for n < classes && had+all*least <= time {
		at := 2 * n
		still = all
		had += c.lately(at+1) * weights
		all = max(all-c.lately(at), x.weight)
		least = max(1, 2*least)
		n++
	}
	return still
}

// backlogs returns how many 1024ths of a grain the limit takes for all backlogs, at most a calendar.
func (x *Shared) backlogs() int64 {
	c, backlog := &x.State.Calendars[0], int64(0)
	for n := range int64(classes) {
		backlog += c.lately(2*n + 1)
	}
	return min(backlog, Grains*1024)
}

// step returns how long the fair share of the entity takes for the operation, in ticks, if entities of this weight wait, with this one. It
// is not much more than until weighted max-min has given the entity as much: lighter entities wait until the others are through. Half
// more, because others may still begin to wait.
func (x *Shared) step(all int64) int64 {
	units := x.units * all
	whole := units / x.weight
	step := (min(whole, 1<<32)*tick + (units-whole*x.weight)*tick/x.weight) / x.rate
	if x.backlog(x.part) > 1 { // else it is rounded down too much
		step = min(step, x.until(x.part)*3/2)
	}
	return step
}

// shares sets fair. An entity that begins to wait has its turn after all others have had one, as in weighted fair queueing (Demers,
// Keshav and Shenker, Analysis and Simulation of a Fair Queueing Algorithm, 1989). Its urgent operations do not wait for that.
func (x *Shared) shares(f *Flow, op *Op) {
	grain := x.State.Calendars[0].Head + 1
	if x.here {
		grain--
	}
	turn := x.later(max(grain, x.Limits.grain(x.State.Closed))*tick, 0)
	if x.Limits.FirstCome == 1 {
		x.fair = Never
	} else if op.Urgent {
		x.fair = x.later(max(f.FairUrgent, turn), x.until(f.Urgent))
	} else if op.back() { // displaced: behind the entity's last ticket, and a little more, because others may still begin to wait
		from := max(f.Fair, turn)
		last := max(f.Last, from)
		step := x.step(x.waiting(x.served(Never, last-from)))
		x.fair = x.later(last, step+step/6)
	} else {
		x.fair = x.later(max(f.Fair, turn-x.late(f)), x.until(f.Units+f.Later))
		if f.Fair < turn {
			x.fair = max(x.fair, x.later(turn, x.until(x.part)))
		}
	}
}

// late returns three quarters of the time, in ticks, by which the entity was served later than its share because operations of others were
// due in the same interval. That happens often if a grain has several intervals. It counts as long as the entity's tickets wait and its
// other limits let its share through. Without it an entity that sends a little less than its share loses a part of it again and again, and
// its messages wait for minutes. With all of that time every entity would be late in the end, and none would go before another.
func (x *Shared) late(f *Flow) int64 {
	l := x.Limits
	if x.short || l.Windows[l.Shortest].Interval == l.Grain || f.Weight < x.weight {
		return 0
	}
	return max(0, (x.State.Calendars[0].Head-1)*tick-f.Fair) / 4 * 3
}
