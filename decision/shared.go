package decision

// Shared is a limit that entities share, as one decision of an entity within it finds it. Its State counts the
// operations of all of them, and its Leases are the leases of all.
//
// Its Calendar has the booked units of each grain of time. A booking is only an expectation: State counts the
// operations that run, as for an entity. Bookings count estimates, and a grain has room for as many as will cost what it
// brings. Room in the calendar goes to the entity that asks first. If there is none, an entity books at its fair share:
// when weighted max-min would serve it, by the backlogs of all entities that wait. There it displaces the tickets that
// were booked early. An operation that is back, of an entity below its share, runs before them, and they book again,
// behind the early tickets of their entity. An operation whose limit has no room for a moment, or that another limit delays
// for a moment, keeps its place. Entities that begin to wait together have their shares one after the other, so that they
// do not meet in the same grains. Behind the calendar tickets have slots one after the other, too.
//
// Limits are ready. A decision changes State and Leases, which belong to the shared limit.
type Shared struct {
	Key    int64 // tells the limit from others of the bucket
	Weight int64 // of the entity
	Limits *Limits
	State  *State
	Leases Leases

	// The view of the operation.
	flow     int64 // the place of the entity's Flow in the limit
	part     int64 // of the cost: see Limits.part
	units    int64 // the same in the calendar
	large    bool  // it takes more than a grain brings, of a window or of tokens
	slow     int64 // the grains in which tokens bring one operation; 0 if they bring more than one in a grain
	grain    int64 // what the windows bring in a grain, in the calendar
	rate     int64 // the same, with the tokens
	held     bool  // the lease was out in this limit, too
	fits     bool  // the limit lets it run now
	bound    Bound // why not
	free     int64 // the free tokens
	token    bool  // only a token is short, or capacity that operations in flight will probably give back
	wait     int64 // us from one such operation to the next
	refund   int64 // when that capacity is probably back; 0 if a window has room before
	again    bool  // a window denies it, but it is below its share and keeps its place
	overdue  int64 // see Limits.overdue
	below    bool  // the entity is below its fair share
	behind   bool  // by more than this grain
	spare    bool  // it takes capacity that booked operations leave, in the windows without room
	room     bool  // it and all operations due in this grain fit
	due      int64 // the units due in this grain
	from     int64 // from when it has its fair share, in ticks
	gathered int64 // the grain in which room for a large one has gathered; 0 if that is not known yet
	fair     int64 // the place of its fair share, in ticks
	given    int64 // the slot behind the calendar, if it waits there for this limit; 0 if it does not
	last     int64 // the place behind all that wait there, in ticks
}

const (
	tick       = 1 << 19 // the parts of a grain in which shares are counted
	mostWeight = 1 << 24 // of all together
	gathering  = 32      // the most grains that are looked at, before and behind Front, to find room for a large operation
	minute     = 60_000
	soon       = 4000 // ms that cost an operation that must wait no place: see place
)

// Calendar is the additional part of the State of a shared limit. Grains are numbered from 1970.
type Calendar struct {
	Grain   int64  // the length of a grain, in ms
	Head    int64  // the grain of State.Now
	Front   int64  // no grain before it has room
	Last    int64  // the place of the last ticket that waits for this limit behind the calendar, in ticks
	Booked  int64  // the units booked in all grains from Head on
	Minute  int64  // the minute of Weight: 60 grains
	Weight  int64  // of the entities that wait, counted in this minute
	Before  int64  // of the entities counted in the minute before, and not since
	Turn    int64  // from when the next entity that begins to wait has its fair share, in ticks
	Largest int64  // about the sum of the costs of the last 64 newcomers, each by its largest unit
	Asked   Cost   // the same of each unit
	Units   Counts // booked in Head and in each grain after it
	Classes Counts // of the entities that wait
}

// classes are the classes of entities by their backlogs. An entity of class n has from 2^(n-1) to 2^n times its weight.
// Calendar.Classes has the weight and the backlogs of each class, counted in this minute. Behind them it has the same of
// the minute before.
const classes = 22

// Grains is the number of grains in a calendar.
const Grains = 1024

// mostBooked is the most that a place of Counts holds.
const mostBooked = 1<<24 - 1

// class returns the class of an entity.
func class(backlog, weight int64) int64 {
	n, least := int64(0), weight
	for n < classes-1 && least <= backlog {
		n++
		least *= 2
	}
	return n
}

// holds reports whether the calendar has a grain.
func (c *Calendar) holds(n int64) bool { return n >= c.Head && n < c.Head+Grains }

// at returns the units booked in a grain.
func (c *Calendar) at(n int64) int64 { return c.Units.At(n - c.Head) }

// put sets the units booked in a grain.
func (c *Calendar) put(n, units int64) {
	c.Booked += units - c.at(n)
	c.Units.Put(n-c.Head, units)
}

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
	End        int64 // the last slot in the entity's own line of operations whose first limit is this one
	Left       int64 // the capacity that is left in the entity's shortest window at End
	Urgent     int64 // the part of Units and Later that is urgent
	Fair       int64 // until when the entity has had its fair share, in ticks
	FairUrgent int64 // the same, of urgent operations alone
	Again      int64 // the place of the next displaced ticket, in ticks: behind the tickets that were booked early
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

// take removes a ticket from the count.
func (f *Flow) take(slot, units int64) {
	if slot <= f.Before {
		f.Units = max(0, f.Units-units)
	} else {
		f.Later = max(0, f.Later-units)
	}
}

// putUrgent counts an urgent ticket.
func (s *State) putUrgent(t *Ticket) {
	unit := int64(0)
	for unit < Units {
		if t.Cost[unit] > 0 {
			s.Flows[s.flow(ofUrgent-unit)].put(t.Slot, t.Cost[unit])
		}
		unit++
	}
}

// takeUrgent removes an urgent ticket from the count.
func (s *State) takeUrgent(t *Ticket) {
	for i := range s.Flows {
		f := &s.Flows[i]
		if f.Key <= ofUrgent {
			f.take(t.Slot, t.Cost[ofUrgent-f.Key])
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
func (s *State) passed(now int64) bool {
	for i := range s.Flows {
		f := &s.Flows[i]
		if f.Key <= ofUrgent && f.Until > now-minute {
			return true
		}
	}
	return false
}

// urgent returns how much of a unit the urgent tickets have booked, without the tickets that should have been back at a
// time.
func (s *State) urgent(unit, at int64) int64 {
	for i := range s.Flows {
		f := &s.Flows[i]
		if f.Key == ofUrgent-unit {
			if at > f.Until {
				return 0
			}
			if at > f.Before {
				return f.Later
			}
			return f.Units + f.Later
		}
	}
	return 0
}

// inLine returns the first slot from t on in a flow's line in the entity's shortest window. Operations have a line for
// each shared limit that is their first, so that operations of a slow endpoint do not delay operations of a fast one. A
// line begins when a shared limit delays an operation: a limit that is not short changes no slot. If an operation that is back
// goes to the end of a line of hours, nobody uses the capacity that it leaves. So it goes no further than to the end of the
// calendar.
func (l *Limits) inLine(s *State, x *Shared, f *Flow, cost, t, now int64, back bool) int64 {
	if cost == 0 {
		return t
	}
	end := f.End
	if back {
		end = min(end, x.Limits.begin(x.State.Calendars[0].Head+Grains-1))
	}
	t = max(t, end)
	return l.Windows[l.Shortest].room(s, l.ahead(s, f, t, now), cost, t)
}

// ahead returns the capacity that the line has left at t.
func (l *Limits) ahead(s *State, f *Flow, t, now int64) int64 {
	w, line := &l.Windows[l.Shortest], &s.Lines[l.Shortest]
	return min(w.gain(s, f.Left, f.End, t), w.gain(s, line.Left, now, t))
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

// advance brings the limit to now.
func (x *Shared) advance(now int64) {
	x.Limits.advance(x.State, x.Leases, now)
	if len(x.State.Calendars) == 0 {
		x.State.Calendars = append(x.State.Calendars, Calendar{})
	}
	c := &x.State.Calendars[0]
	head := x.Limits.grain(now)
	if c.Grain != x.Limits.Grain || head-c.Head >= Grains {
		c.Units.Clear()
		c.Classes.Clear()
		c.Grain, c.Head, c.Booked, c.Front, c.Turn = x.Limits.Grain, head, 0, head, 0
	}
	if c.Head < head {
		c.Booked -= c.Units.Sum(0, head-c.Head, mostBooked)
		c.Units.Drop(head - c.Head)
		c.Head = head
	}
	if m := head / 60; m != c.Minute {
		if c.Minute+1 < m { // an entity that does not ask for two minutes does not count
			c.Weight = 0
			c.Classes.Clear()
		}
		at := int64(0)
		for at < 2*classes {
			c.Classes.Put(at+2*classes, c.Classes.At(at))
			c.Classes.Put(at, 0)
			at++
		}
		c.Before, c.Weight, c.Minute = c.Weight, 0, m
	}
	c.Front = max(c.Front, head+1)
}

// count adds to the class of an entity that was counted at an age: 0 is this minute, 1 the minute before.
func (x *Shared) count(f *Flow, age, weight, backlog int64) {
	c, at := &x.State.Calendars[0], 2*(age*classes+class(f.Backlog, f.Weight))
	c.Classes.Put(at, max(0, min(c.Classes.At(at)+weight, mostBooked)))
	c.Classes.Put(at+1, max(0, min(c.Classes.At(at+1)+backlog, mostBooked)))
}

// weigh counts the weight of an entity with tickets out, once.
func (x *Shared) weigh(f *Flow) {
	c := &x.State.Calendars[0]
	if f.Minute > c.Minute { // grains are longer now
		f.Fair, f.FairUrgent, f.Again, f.Weight = 0, 0, 0, 0
	}
	if f.Weight > 0 && f.Minute == c.Minute {
		c.Weight -= f.Weight
		x.count(f, 0, -f.Weight, -f.Backlog)
	} else if f.Weight > 0 && f.Minute+1 == c.Minute {
		c.Before -= f.Weight
		x.count(f, 1, -f.Weight, -f.Backlog)
	}
	f.Minute, f.Weight, f.Backlog = c.Minute, 0, 0
	if f.Units+f.Later > 0 {
		f.Weight = min(x.Weight, mostWeight-c.Weight)
		c.Weight += f.Weight
		f.Backlog = x.backlog(f.Units + f.Later)
		x.count(f, 0, f.Weight, f.Backlog)
	}
}

// booked converts parts to units of the calendar: at least as many as operations like this one take.
func (x *Shared) booked(part int64) int64 {
	return min(max(x.Limits.booked(part), min(part/max(1, x.part), mostBooked)*x.units), 1<<32)
}

// backlog converts parts to 1024ths of a grain.
func (x *Shared) backlog(part int64) int64 { return x.booked(part) * 1024 / x.rate }

// until returns how long it takes, in ticks, until each entity that waits has had its share, or all that it waits for. Its
// share is as much for its weight as some parts are for this one. Then weighted max-min gives this entity these parts. An entity with half as
// many tickets counts as if it had as many, because its other messages may just be coming.
func (x *Shared) until(part int64) int64 {
	c, backlog := &x.State.Calendars[0], min(x.backlog(part), mostBooked)
	lower, sum, rest, n := 2*(class(backlog, x.Weight)-1), int64(0), c.Weight+c.Before, int64(0)
	for n < lower {
		now, before := c.Classes.At(n), c.Classes.At(n+2*classes)
		sum += min(now*backlog/x.Weight, c.Classes.At(n+1)) + min(before*backlog/x.Weight, c.Classes.At(n+1+2*classes))
		rest -= now + before
		n += 2
	}
	return min(max(backlog, sum+max(0, rest)*backlog/x.Weight), 1<<32) * (tick / 1024)
}

// waiting returns about the weight of the entities that still wait some ticks from now, if each gets its share.
func (x *Shared) waiting(ticks int64) int64 {
	c := &x.State.Calendars[0]
	all := max(c.Weight+c.Before, x.Weight)
	still, time, had, least, n := all, ticks/(tick/1024), int64(0), int64(0), int64(0)
	for n < classes && had+all*least <= time {
		at := 2 * n
		still = all
		had += c.Classes.At(at+1) + c.Classes.At(at+1+2*classes)
		all = max(all-c.Classes.At(at)-c.Classes.At(at+2*classes), x.Weight)
		least = max(1, 2*least)
		n++
	}
	return still
}

// asked converts parts to units of the calendar, at most a grain.
func (l *Limits) asked(part int64) int64 { return min(l.booked(part), 1<<20) }

// booked converts parts to units of the calendar.
func (l *Limits) booked(part int64) int64 { return min((part+l.Scale-1)/l.Scale, mostBooked) }

// units converts units of the calendar to a unit of the windows, at most.
func (l *Limits) units(booked, unit int64) int64 { return booked * l.Scale / l.Parts[unit] }

// share returns how long the fair share of the entity takes for the operation, in ticks.
func (x *Shared) share() int64 {
	c := &x.State.Calendars[0]
	return x.among(max(c.Weight+c.Before, x.Weight))
}

// among is share if entities of this weight wait, with this one.
func (x *Shared) among(all int64) int64 {
	units := x.units * all
	whole := units / x.Weight
	return (min(whole, 1<<32)*tick + (units-whole*x.Weight)*tick/x.Weight) / x.rate
}

// ask counts a newcomer's cost.
func (x *Shared) ask(cost *Cost) {
	c, l := &x.State.Calendars[0], x.Limits
	c.Largest += l.asked(l.part(cost)) - c.Largest/64
	c.Asked[0] += l.asked(parts(cost[0], l.Parts[0])) - c.Asked[0]/64
	c.Asked[1] += l.asked(parts(cost[1], l.Parts[1])) - c.Asked[1]/64
	c.Asked[2] += l.asked(parts(cost[2], l.Parts[2])) - c.Asked[2]/64
	c.Asked[3] += l.asked(parts(cost[3], l.Parts[3])) - c.Asked[3]/64
}

// ratio returns how much of the booked units operations will probably take from a window, in 1024ths. Estimates are too high or too
// low, and some operations take more of one unit and others of another.
func (c *Calendar) ratio(line *Line) int64 {
	booked := (c.Asked[line.Window.Unit] + 1) * 1024 / (c.Largest + 1)
	return max(1, booked*(4096-line.Saved)/4096)
}

// expects returns how much the booked operations will probably take from a window.
func (x *Shared) expects(booked, window int64) int64 {
	c, line := &x.State.Calendars[0], &x.State.Lines[window]
	return x.Limits.units(min(booked*c.ratio(line)/1024, 1<<33), line.Window.Unit)
}

// enter takes the ticket off the books of the limit.
func (x *Shared) enter(f *Flow, op *Op, back bool, now int64) {
	c, l := &x.State.Calendars[0], x.Limits
	ratio := int64(1)
	for i := range l.Windows {
		ratio = max(ratio, c.ratio(&x.State.Lines[i]))
	}
	x.grain = min(l.PerGrain/l.Scale*1024/ratio, mostBooked)
	x.part, x.given, x.last = l.part(&op.Cost), 0, 0
	x.units = l.booked(x.part) // tokens are counted as operations of this size if they are short
	pace := l.pace(x.State)
	x.slow = min(pace/1000/l.Grain, Grains)
	x.rate = max(1, min(x.grain, min(max(1, l.Grain*1000/pace), mostBooked)*x.units))
	x.units = min(x.units*max(1, x.slow), mostBooked)
	x.large, x.gathered = x.units > x.rate, 0
	f.expire(now - l.grace())
	if back {
		part := l.part(&op.Ticket.Cost)
		if n := l.grain(op.Ticket.Slot); c.holds(n) {
			c.put(n, max(0, c.at(n)-x.booked(part)))
		}
		f.take(op.Ticket.Slot, part)
		if op.Urgent {
			f.Urgent = max(0, f.Urgent-part)
		}
	}
	x.weigh(f)
}

// look decides whether this limit lets the operation run now.
func (x *Shared) look(f *Flow, op *Op, back bool, now int64) {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	end, due := l.begin(c.Head+1)-1, c.at(c.Head)
	x.fits, x.bound, x.spare, x.fair, x.room, x.due = true, BoundNone, true, 0, true, due
	x.token, x.wait, x.refund, x.overdue = false, l.pace(s), 0, 0
	late := false // a window is short, and its refresh comes first
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost := op.Cost[w.Unit]
		if cost > 0 {
			if line.Left < cost && x.bound == BoundNone {
				x.bound = BoundWindow + Bound(i)
			}
			if refund := l.refund(s, line, cost-line.Left, now); refund < w.room(s, line.Left, cost, now) {
				x.refund, x.wait = max(x.refund, refund), max(x.wait, w.spanUS(line.weight(cost)))
			} else if line.Left < cost {
				late = true
			}
			all := min(MostUnits, line.Left+line.returns()+min(w.interval(end)-w.interval(now), MostUnits/w.Rate)*w.Rate)
			room := all-x.reserved(int64(i), now) >= x.expects(due, int64(i))+cost
			x.room = x.room && room
			x.spare = x.spare && (room || line.Spare-line.Taken >= cost)
		}
	}
	out := x.Leases.Out(now)
	x.free = l.Tokens - s.Plain - out
	served := f.Fair
	if op.Urgent {
		served = f.FairUrgent
	}
	x.below, x.behind = served < (c.Head+1)*tick || l.FirstCome == 1, served < c.Head*tick
	if x.rate < x.grain { // tokens are short
		rest := x.rate * ((end - now) * 1024 / c.Grain) / 1024
		// A second free token, or one that is free for two paces, is not used by those that are due: they come late, or
		// not at all.
		idle := x.free > 1 || x.free > 0 && now-s.LastID/1024 > l.pace(s)/500
		room := idle || min(x.free, mostBooked)*x.units+rest >= due+x.units
		x.room, x.spare = x.room && room, x.spare && room
	}
	x.spare = x.spare && !x.room && (!back || !x.below)
	entitled := x.room || back && x.below || x.spare
	if late {
		x.refund = 0
	}
	if s.Closed > now {
		x.bound = BoundClosed
	} else if x.refund > 0 && entitled {
		x.token, x.overdue = back || due == 0, l.overdue(s, now)
	} else if x.bound == BoundNone && !entitled {
		x.bound = BoundBooked
	} else if x.bound == BoundNone && (x.free < 1 || !back && s.AgainUS > now*1000) {
		x.bound, x.token = BoundTokens, back && x.below || due == 0
		if out >= l.Tokens {
			x.overdue = l.overdue(s, now)
		}
	}
	x.fits = x.bound == BoundNone
}

// reserved returns how much of a window that is longer than a grain the booked grains behind this one take.
func (x *Shared) reserved(window, now int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	w := &l.Windows[window]
	if w.Interval <= c.Grain || w.Size > w.Rate {
		return 0
	}
	each := x.expects(x.rate, window)
	most := MostUnits / max(1, each) // grains
	gone, booked := c.Head+1-l.whole(w.begin(w.interval(now))), c.Front-c.Head-1
	return max(0, min(w.Size-each*min(gone, most), each*min(booked, most)))
}

// gather returns the first grain from Front on by which the capacity that is not booked is enough for a large operation.
func (x *Shared) gather(op *Op, now int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	n, free := max(c.Head, c.Front-gathering), int64(0)
	if n == c.Head {
		free = min(x.free, mostBooked) * x.units
		for i := range l.Windows {
			w := &l.Windows[i]
			if op.Cost[w.Unit] > 0 {
				left := w.gain(x.State, x.State.Lines[i].Left, now, l.begin(n+1)-1)
				free = min(free, l.booked(parts(max(0, left), l.Parts[w.Unit]))*1024/c.ratio(&x.State.Lines[i]))
			}
		}
		free -= c.at(n)
	}
	last := min(c.Front+gathering, c.Head+Grains-1)
	for n < last && (n < c.Front || free < x.units) {
		n++
		free = max(0, free) + x.rate - c.at(n)
	}
	return min(n+max(0, x.units-free+x.rate-1)/x.rate, c.Head+Grains)
}

// run takes capacity and a token.
func (x *Shared) run(f *Flow, op *Op) {
	c, s := &x.State.Calendars[0], x.State
	for i := range s.Lines {
		line := &s.Lines[i]
		cost := op.Cost[line.Window.Unit]
		line.Left -= cost
		if x.spare && i < len(x.Limits.Windows) {
			line.Taken += cost
		}
	}
	if op.Kind == GetDelay {
		s.Plain++
	}
	step := x.share()
	from, to := (c.Head-1)*tick, x.later((c.Head+1)*tick, 2*step) // a surplus counts as two operations at most
	f.Fair = min(x.later(max(f.Fair, from), step), to)
	if op.Urgent {
		f.FairUrgent = min(x.later(max(f.FairUrgent, from), step), to)
	}
}

// in returns the time in a grain at which the next unit has its turn. Units beyond the rate of a full grain displace others from
// its beginning on.
func (x *Shared) in(n int64) int64 {
	c, w := &x.State.Calendars[0], &x.Limits.Windows[x.Limits.Shortest]
	at := x.Limits.begin(n)
	if c.holds(n) && x.Limits.PerGrain/x.Limits.Parts[w.Unit] > w.Rate {
		at += x.expects(c.at(n)%x.rate, x.Limits.Shortest) / w.Rate * w.Interval % c.Grain
	} else if c.holds(n) && x.rate < x.grain && c.at(n) >= min(x.Limits.Tokens, mostBooked)*x.units {
		at += c.at(n) % x.rate / max(1, x.units) * x.Limits.pace(x.State) / 1000
	}
	return at
}

// later returns the place, in ticks, by which the limit has served for a span of ticks from another place on, if it serves
// as early as its windows allow. It leaves out the time in which a window that is longer than a grain is used up.
func (x *Shared) later(from, span int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	at, t := from+span, x.begin(from)
	for i := range l.Windows {
		w := &l.Windows[i]
		if w.Interval > c.Grain {
			n, each := w.interval(t), max(1, x.lasts(min(w.Rate, w.Size), int64(i)))
			k, free := n-w.interval(x.State.Now), int64(0) // k intervals ahead; from there until the window is used up
			if k <= 0 || w.Size > w.Rate {
				free = x.remains(int64(i)) - x.served(w, from, (c.Head+1)*tick)
			}
			if k > 0 {
				free = max(free, each-x.served(w, from, l.whole(w.begin(n))*tick))
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

// served returns for how long the limit serves at most from a place to another, in an interval of a window. In the rest of
// the time shorter windows are used up. since is the beginning of the interval, or now.
func (x *Shared) served(window *Window, to, since int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	span, t := to-since, x.begin(since)
	for i := range l.Windows {
		w := &l.Windows[i]
		if w.Interval > c.Grain && w.Interval < window.Interval {
			n, each := w.interval(x.begin(to)), x.lasts(min(w.Rate, w.Size), int64(i))
			k, most := n-w.interval(t), each
			if since == (c.Head+1)*tick {
				most = x.remains(int64(i))
			}
			if k > 0 {
				most += min(k-1, bound/max(1, each))*each + min(each, to-l.whole(w.begin(n))*tick)
			}
			span = min(span, most)
		}
	}
	return span
}

// lasts returns how long a capacity of a window lasts, in ticks.
func (x *Shared) lasts(capacity, window int64) int64 {
	return min(max(0, capacity)*1024/max(1, x.expects(x.rate, window)), 1<<32) * (tick / 1024)
}

// time returns the time of a place in ticks.
func (x *Shared) time(place int64) int64 {
	return x.begin(place) + place%tick/(tick/1024)*x.Limits.Grain/1024
}

// begin returns the time at which the grain of a place in ticks begins.
func (x *Shared) begin(place int64) int64 {
	return x.Limits.begin(min(place/tick, x.Limits.grain(LastTime)))
}

// open returns the first grain from one on in which the windows that are longer than a grain are not booked up.
func (x *Shared) open(n int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	open, t := n, l.begin(n)
	for i := range l.Windows {
		if w, line := &l.Windows[i], &x.State.Lines[i]; w.Interval > c.Grain {
			from, end, brings := c.Head, l.whole(w.Next(t)), min(w.Rate, w.Size)
			if k := w.interval(t) - w.interval(x.State.Now); k <= 0 {
				brings = line.Left + line.returns()
			} else if w.Size > w.Rate {
				brings = min(line.Left+line.returns()+min(k, bound/w.Rate)*w.Rate, MostUnits)
			} else {
				from = l.whole(w.begin(w.interval(t)))
			}
			if x.expects(c.Units.Sum(from-c.Head, end-c.Head, x.rate), int64(i)) >= brings {
				open = max(open, end)
			}
		}
	}
	return open
}

// seek returns the first grain from t on that has room, or one behind the calendar.
func (x *Shared) seek(op *Op, t, now int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	n := max(l.grain(t), c.Head+1)
	if c.Front > c.Head+1 && x.in(n)+l.Windows[l.Shortest].Interval <= t { // another limit holds it past its turn in this grain
		n++
	}
	first := n <= c.Front
	if first {
		n = c.Front
	}
	end, at := c.Head+Grains, int64(0)
	for n < end && n != at {
		at = n
		if c.at(n) >= x.rate {
			n++
		} else {
			n = x.open(n)
		}
	}
	if first {
		c.Front = min(n, end)
	}
	if x.large {
		if x.gathered == 0 {
			x.gathered = x.gather(op, now)
		}
		n = max(n, x.gathered)
	}
	return n
}

// surplus reports whether the capacity that has gathered at t is enough for the operation and for all tickets. A limit that
// is far from short delays nothing.
func (x *Shared) surplus(op *Op, t, now int64) bool {
	c, l := &x.State.Calendars[0], x.Limits
	if !x.fits {
		return false
	}
	for i := range l.Windows {
		w := &l.Windows[i]
		if cost := op.Cost[w.Unit]; cost > 0 && w.gain(x.State, x.State.Lines[i].Left, now, t) < x.expects(c.Booked, int64(i))+cost {
			return false
		}
	}
	return true
}

// holds reports whether a time is in the calendar.
func (x *Shared) holds(t int64) bool { return x.State.Calendars[0].holds(x.Limits.grain(t)) }

// place returns the first slot from t on.
func (x *Shared) place(f *Flow, op *Op, back bool, t, now int64) int64 {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	x.again = false
	if x.token { // denied operations ask one after the other for a while; the others book again
		at := s.turn(now, x.overdue)
		if x.refund == 0 { // no token comes back before
			at += x.wait
		}
		at = max(x.refund, at/1000)
		if l.grain(at) <= c.Head+1+x.slow || x.behind && at < now+soon {
			return max(t, at)
		}
		x.token, t = false, max(t, now+x.overdue)
	}
	if t == x.given {
		return t
	}
	other := !x.holds(t) // something else holds it until a time behind the calendar
	t = max(t, s.Closed)
	for i := range l.Windows {
		if w := &l.Windows[i]; w.Interval > c.Grain {
			line := &s.Lines[i]
			t = max(t, w.room(s, line.Left+line.returns(), op.Cost[w.Unit], now))
		}
	}
	if x.fits && (l.grain(t) <= c.Head || back && t < now+soon) { // another limit delays it for a moment
		return t
	}
	if back && op.Ticket.Slot > now && x.holds(op.Ticket.Slot) { // it came early, and keeps its slot
		return max(t, op.Ticket.Slot)
	}
	if !back && x.room && x.bound == BoundTokens { // behind the operations due in this grain, unless the next one is as near
		if at := max(t, now+min(x.due/max(1, x.units), bound/l.pace(s))*l.pace(s)/1000); at+1000 < l.begin(c.Head+1) {
			return at
		}
	}
	// Behind the operations due in this grain. A limit that is closed may open in it: a minute is long.
	if x.room && x.bound == BoundClosed || (x.room || back && x.below) && x.bound >= BoundWindow {
		at, due := t, x.due
		if !x.room { // before them, one after the other
			at, due = max(t, l.Windows[x.bound-BoundWindow].Next(s.AgainUS/1000-1)), 0
		}
		for i := range l.Windows {
			w := &l.Windows[i]
			at = max(at, w.room(s, s.Lines[i].Left-x.expects(due, int64(i)), op.Cost[w.Unit], now))
		}
		if l.grain(at) <= c.Head || x.behind && !x.room && at < now+soon {
			x.again = !x.room
			return at
		}
	}
	if other { // operations come at the rate of the limit
		if next := s.Slot + min(c.Grain, bound/max(1, x.units))*x.units/x.rate; s.Slot >= t && s.Slot < t+c.Grain*Grains {
			return next
		}
		return t
	}
	surplus, n := x.holds(t) && x.surplus(op, t, now), l.grain(t)
	if !surplus && x.holds(t) {
		n = x.seek(op, t, now)
	}
	if x.fair == 0 {
		x.shares(f, op, back)
	}
	if surplus {
		return t
	}
	if c.holds(n) {
		at, fair := l.grain(t), min(n, x.fair/tick)
		for at < n && fair < at && c.at(at) >= 3*x.rate { // others were moved there, too
			at++
		}
		return max(t, x.in(max(at, fair)))
	}
	x.last = x.later(n*tick, 0)
	if c.Last >= x.last {
		x.last = x.later(c.Last, (x.units*tick+x.rate-1)/x.rate)
	}
	x.given = max(t, x.time(min(x.last, x.fair)))
	return x.given
}

// shares sets from and fair.
func (x *Shared) shares(f *Flow, op *Op, back bool) {
	c := &x.State.Calendars[0]
	ahead, turn := f.Units+f.Later, x.later(max(c.Head+1, x.Limits.grain(x.State.Closed))*tick, 0)
	x.from = f.Fair
	if op.Urgent {
		ahead, x.from = f.Urgent, f.FairUrgent
	}
	if x.from < turn {
		if f.Units+f.Later == 0 { // entities that begin to wait together have their turns one after the other
			turn = min(max(c.Turn, turn), turn+x.share())
		}
		x.from = turn
	}
	x.fair = x.later(x.from, x.until(ahead))
	if back && !op.Urgent { // displaced: behind the entity's early tickets, one after the other
		x.fair = f.Again
		if x.fair <= x.from { // about there
			x.fair = x.later(x.from, x.until(ahead/2))
		}
	}
	if x.Limits.FirstCome == 1 {
		x.fair = Never
	}
}

// book puts a ticket on the books.
func (x *Shared) book(f *Flow, op *Op, back bool, t *Ticket, now int64) {
	c, s := &x.State.Calendars[0], x.State
	if x.token {
		s.AgainUS = min(s.turn(now, x.overdue)+x.wait, Never)
	}
	if back && x.below && x.bound >= BoundWindow && x.refund == 0 && op.Ticket.Slot <= now {
		x.Limits.deny(s, op)
	}
	if x.again { // half of the capacity is for the operations that are due
		w, line := &x.Limits.Windows[x.bound-BoundWindow], &s.Lines[x.bound-BoundWindow]
		s.AgainUS = min(s.turn(now, 0)+2*w.spanUS(line.weight(op.Cost[w.Unit])), Never)
	}
	n := x.Limits.grain(t.Slot)
	if t.Slot == x.given && x.last <= x.fair {
		c.Last = x.last
	}
	if c.holds(n) {
		c.put(n, min(c.at(n)+x.units, mostBooked))
	}
	if x.large && n == x.gathered { // the grains before it have no room any more
		c.Front = max(c.Front, n)
	}
	if x.fair > 0 && !op.Urgent {
		if n < x.fair/tick {
			f.Again = max(f.Again, n*tick)
		} else if back { // a little more, because others may still begin to wait
			step := x.among(x.waiting(x.fair - x.from))
			f.Again = x.later(x.fair, step+step/6)
		} else if f.Units+f.Later == 0 && f.Fair < x.from {
			f.Fair = x.from
			c.Turn = min(max(c.Turn, x.from)+x.units*tick/x.rate, Never)
		}
	}
	f.put(t.Slot, x.part)
	if op.Urgent {
		f.Urgent += x.part
	}
	s.Slot = max(s.Slot, t.Slot)
	x.weigh(f)
}
