package decision

// Shared is a limit that entities share, as one decision of an entity within it finds it. Its State counts the
// operations of all of them, and its Leases are the leases of all.
//
// Its Calendar has the booked units of each grain of time. A booking is only an expectation: State counts the
// operations that run, as for an entity. Bookings count estimates. A grain has room for as many of them as it can probably
// serve. Room in the calendar goes to the entity that asks first. If there is none, an entity books at its fair share: when
// weighted max-min would serve it, by the backlogs of all entities that wait. There it displaces the tickets that were
// booked early. An operation that is back, of an entity below its share, runs before them, and they book again, behind the
// last ticket of their entity. An operation whose limit has no room for a moment, or that another limit delays for a
// moment, keeps its place. Behind the calendar tickets have slots one after the other. Their grains are booked as they come into it.
//
// An operation enters each of its limits, which takes its ticket off the books. Then each looks whether it may run. If all let it, each has
// it run. Otherwise they place it in turn, none before the slot of another, until all agree, and each books the slot.
//
// A shared limit counts costs in four ways. Its windows count units, such as calls. Parts compare the units of its windows: a
// grain brings as many parts of each unit, and the largest part of an operation counts. The calendar counts Scale parts as one,
// because its places are small. Shares are spans of time: a grain has 1<<19 ticks.
//
// Limits are ready. A decision changes State and Leases, which belong to the shared limit.
type Shared struct {
	Key    int64 // tells the limit from others of the bucket
	Weight int64 // of the entity
	Limits *Limits
	State  *State
	Leases Leases

	// The counts of the operation and of the entity. decide sets flow, decide and end able, giveBack held, and enter the rest.
	flow   int64 // the place of the entity's Flow in the limit
	able   int64 // how many 1024ths of such an operation the entity's other limits let through in a grain
	held   bool  // the lease was out in this limit, too
	part   int64 // of the cost: see Limits.part
	units  int64 // the same in the calendar
	weight int64 // of the entity, as it counts: see weights
	times  int64 // see Limits.times
	rate   int64 // what the windows and the tokens bring in a grain, in the calendar
	short  bool  // tokens are short: the windows bring more

	// The results of look. If the operation does not run, place and book read it, and place changes some of it.
	bound   Bound // why the limit does not let it run now; BoundNone if it does
	below   bool  // the entity is below its fair share
	behind  bool  // by more than this grain
	room    bool  // it and all operations due in this grain fit
	spare   bool  // it takes capacity that booked operations leave, in the windows without room
	here    bool  // a newcomer has its share of this grain, whose windows are not used up, but booked: see look
	longer  bool  // it counts in a window that is longer than a grain
	more    int64 // what shorter windows have gathered beside the gain of a grain, in the calendar
	apart   bool  // it takes nothing of a unit that others have asked for lately, and tokens are not short
	token   bool  // only a token is short, or capacity that operations in flight will probably give back: it waits for its turn
	refund  int64 // when that capacity is probably back; 0 if a window has room before
	overdue int64 // see Limits.overdue
	wait    int64 // us from one turn to the next: less than tokens take, because one that is awaited too late is idle

	// The results of place, for book.
	again    bool  // a window denies it, but it is below its share and keeps its place
	lost     bool  // booked operations have left capacity lately: others may run in it
	passes   bool  // it goes before the booked operations, since they probably do not come
	gathered int64 // the grain in which room for a large one has gathered; 0 of a small one, and if that is not known yet
	fair     int64 // the place of its fair share, in ticks; 0 if that is not known yet
	given    int64 // the slot behind the calendar, if it waits there for this limit; 0 if it does not
	last     int64 // the place behind all that wait there, in ticks
}

const (
	tick       = 1 << 19 // the parts of a grain in which shares are counted
	weights    = 16      // Weight 1 counts so much, so that a part of it can count
	mostWeight = 1 << 27 // of all together
	minute     = 60_000
	soon       = 4000 // ms that cost an operation that must wait no place: see place
)

// enter takes the ticket off the books of the limit.
func (x *Shared) enter(f *Flow, op *Op) {
	c, l := &x.State.Calendars[0], x.Limits
	x.part = l.part(&op.Cost)
	x.weight = min(x.Weight, mostWeight/weights) * weights
	x.rates(l.booked(x.part))
	f.expire(x.State.Now - l.grace())
	f.End = min(f.End, x.State.Slot) // earlier after a Resume, a Reset or a change of the limits
	x.State.expireUrgent(x.State.Now - l.grace())
	if op.back() {
		part := l.part(&op.Ticket.Cost)
		if n := l.grain(op.Ticket.Slot); c.holds(n) {
			c.put(n, max(0, c.at(n)-x.booked(part)))
		}
		taken := f.take(op.Ticket.Slot, part)
		if op.Urgent {
			f.Urgent = max(0, f.Urgent-taken)
			x.State.takeUrgent(&op.Ticket)
		}
	}
}

// rates sets how many units an operation takes, and what a grain brings.
func (x *Shared) rates(units int64) {
	c, l := &x.State.Calendars[0], x.Limits
	gains, usual := l.gains(x.State), max(units, c.usual())
	x.times = l.times(x.State, gains)
	gains = min(gains*x.times, mostBooked)
	x.rate = max(1, min(gains, l.ends(x.State, x.times)*usual))
	x.short = x.rate < gains
	if x.short { // a small operation takes a token, too
		units = usual
	}
	x.units = min(units*x.times, mostBooked)
}

// gains returns what the windows bring in a grain, in units of the calendar.
func (l *Limits) gains(s *State) int64 {
	ratio := int64(1)
	for i := range l.Windows {
		ratio = max(ratio, s.Calendars[0].ratio(&s.Lines[i]))
	}
	return min(l.asked(l.PerGrain)*fully/ratio, mostBooked)
}

// ends returns about how many operations end in a grain, counted so many times each.
func (l *Limits) ends(s *State, times int64) int64 {
	return max(1, min(l.Grain*1000*times/l.pace(s), mostBooked))
}

// times returns how many times the calendar counts each operation if tokens are short. So a grain serves a whole number of units, even if
// an operation takes several grains.
func (l *Limits) times(s *State, gains int64) int64 {
	if l.ends(s, 1)*max(1, s.Calendars[0].usual()) >= gains {
		return 1
	}
	return max(1, min(l.pace(s)*8/125/l.Grain, 64*Grains)) // 64 units a grain or more
}

// windows sets what the windows tell of an operation, beside all that is due in this grain. It reports whether booked operations leave
// their capacity to newcomers.
func (x *Shared) windows(op *Op) bool {
	c, s, l, now := &x.State.Calendars[0], x.State, x.Limits, x.State.Now
	end := l.begin(c.Head+1) - 1
	x.bound, x.spare, x.room, x.apart, x.longer = BoundNone, true, true, false, false
	x.refund, x.wait, x.more = 0, l.pace(s)*3/4, 0
	leaves := !op.back() && !x.short
	due := c.at(c.Head)
	if op.back() { // what is less than a quarter of it is probably no operation: its grain was booked at the rate of then
		due = max(0, due-x.units/4)
	}
	late := false // a window is short, and its refresh comes first
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost, left := op.Cost[w.Unit], line.Left-x.passing(w, op)
		x.apart = x.apart || cost == 0 && !x.short && 1000*c.Asked[w.Unit] > c.Largest
		if cost > 0 {
			x.longer = x.longer || w.Interval > l.Grain
			if w.Size > w.Rate && w.Interval <= l.Grain {
				x.more = max(x.more, l.booked(parts(max(0, line.Left), l.Parts[w.Unit])))
			}
			if left < cost && x.bound == BoundNone {
				x.bound = BoundWindow + Bound(i)
			}
			if refund := l.refund(s, line, cost-left); refund < w.room(s, left, cost, now) {
				x.refund, x.wait = max(x.refund, refund), max(x.wait, line.spanUS(cost))
			} else if left < cost {
				late = true
			}
			all := min(MostUnits, line.Left+line.returns()+min(w.interval(end)-w.interval(now), MostUnits/w.Rate)*w.Rate)
			// As long as no lease and no ticket was given, all are callers of GetDelay, and none of them keeps a slot.
			room := s.LastID == 0 || all-x.reserved(int64(i)) >= x.expects(due, int64(i))+cost
			x.room = x.room && room
			x.spare = x.spare && (room || line.spares(cost))
			leaves = leaves && (line.spares(cost) || room && w.Interval > l.Grain)
		}
	}
	if late {
		x.refund = 0
	}
	return leaves
}

// look decides whether this limit lets the operation run now.
func (x *Shared) look(f *Flow, op *Op) {
	c, s, l, now := &x.State.Calendars[0], x.State, x.Limits, x.State.Now
	s.rest(x.Leases)
	due := c.at(c.Head)
	leaves := x.windows(op)
	x.token, x.overdue = false, 0
	x.passes, x.fair, x.given, x.gathered = false, 0, 0, 0 // for place
	out := x.Leases.Out(now)
	free := l.Tokens - s.Plain - out
	served := f.Fair
	if op.Urgent {
		served = f.FairUrgent
	}
	// While an operation that is below its share waits, operations of entities that have had their share of this grain wait, too.
	x.behind = served < c.Head*tick
	x.below = x.behind || served < (c.Head+1)*tick && (s.AgainUS <= now*1000 || x.short) || l.FirstCome == 1
	if x.short {
		rest := (l.begin(c.Head+1) - 1 - now) * 1024 / l.Grain // of this grain: so much of the rate and of the due units is still to come
		// Due operations do not use a second free token, or one that is free for two paces: they come late, or not at all.
		idle := free > 1 || free > 0 && now-s.LastID/1024 > l.pace(s)/500
		alone := op.back() && s.AgainUS <= now*1000 // no other one waits for a token
		room := idle || alone || min(free, mostBooked)*x.units+x.rate*rest/1024 >= due*rest/1024+x.units
		x.room, x.spare = x.room && room, x.spare && room
	}
	early := op.Ticket.Slot > now // it has no turn for a token yet, and before its grain it is like a newcomer
	first := op.back() && l.grain(op.Ticket.Slot) <= c.Head || x.hurries(f, op)
	x.spare = x.spare && !x.room && (!first || !x.below)
	// The slots of others may be up to the end of a long grain. A newcomer's share of it goes before them.
	x.here = !op.back() && x.bound == BoundNone && !x.room && !x.spare && !x.short && l.Grain > soon && s.Closed <= now && l.FirstCome == 0
	entitled := x.room || first && x.below || x.spare || x.here && x.behind
	waits := !op.back() || early && (!x.below || op.Ticket.Slot > now+soon) // for those that have their turn for a token
	if s.Closed > now {
		x.bound = BoundClosed
	} else if x.refund > 0 && entitled {
		x.token, x.overdue = !early && (op.back() || due == 0), l.overdue(s)
	} else if x.bound == BoundNone && !entitled {
		x.bound = BoundBooked
	} else if x.bound == BoundNone && (free < 1 || waits && !leaves && s.AgainUS > now*1000) {
		x.bound, x.token = BoundTokens, !early && (first && (x.below || x.room) || due == 0 || leaves)
		if out >= l.Tokens {
			x.overdue = l.overdue(s)
		}
	}
}

// hurries reports whether an urgent operation goes before others for a token: those of its entity fit into the entity's share of a grain.
func (x *Shared) hurries(f *Flow, op *Op) bool {
	return op.Urgent && x.short && x.until(f.Urgent) < tick
}

// fits reports whether the limit lets the operation run now.
func (x *Shared) fits() bool { return x.bound == BoundNone }

// passing is State.passing. A window with several intervals in a grain leaves nothing, since urgent tickets are due in all of them. A
// large operation would never run beside the urgent ones of other entities.
func (x *Shared) passing(w *Window, op *Op) int64 {
	if w.Interval < x.Limits.Grain {
		return 0
	}
	return min(x.State.passing(w, op), max(0, w.Size-op.Cost[w.Unit]))
}

// reserved returns how much of a window that is longer than a grain the booked grains behind this one take.
func (x *Shared) reserved(window int64) int64 {
	c, l := &x.State.Calendars[0], x.Limits
	w := &l.Windows[window]
	if w.Interval <= l.Grain || w.Size > w.Rate {
		return 0
	}
	each := x.expects(x.rate*x.times, window)
	most := MostUnits / max(1, each) // grains
	gone, booked := c.Head+1-l.whole(w.begin(w.interval(x.State.Now))), c.Front-c.Head-1
	return max(0, min(w.Size-each*min(gone, most)/x.times, each*min(booked, most)/x.times))
}

// run takes capacity and a token.
func (x *Shared) run(f *Flow, op *Op) {
	c, s := &x.State.Calendars[0], x.State
	if x.spare || op.Ticket.Again == unbooked {
		for i := range x.Limits.Windows {
			line := &s.Lines[i]
			line.Taken += op.Cost[line.Window.Unit]
		}
	}
	x.Limits.take(s, op)
	step := x.step(x.waits())
	from, to := (c.Head-1)*tick, x.later((c.Head+1)*tick, 2*step) // a surplus counts as two operations at most
	f.Fair = min(x.later(max(f.Fair, from-x.late(f)), step), to)
	if op.Urgent {
		f.FairUrgent = min(x.later(max(f.FairUrgent, from), step), to)
	}
}

// forget takes all tickets for lost if they are due, a token is free, and no operation has begun for long: see Limits.idle.
func (x *Shared) forget() {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	if (x.short || s.Slot <= s.Now) && s.Plain+x.Leases.Out(s.Now) < l.Tokens && l.idle(s) {
		c.Units.Clear()
		c.Booked, c.Front, c.Last = 0, c.Head+1, 0
		s.Slot = s.Now
	}
}

// lapse is Limits.lapse for a newcomer that only booked operations delay: those due in this grain wait for tokens.
func (x *Shared) lapse(op *Op, a *Answer) int64 {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	wait := int64(Never)
	if a.Bound == BoundClosed || a.Delay < 10*minute {
		return wait
	}
	booked := min(c.Booked*1024/x.rate, bound/l.Grain) * l.Grain / 1024
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		cost := op.Cost[w.Unit]
		if w.room(s, line.Left, cost, s.Now) >= s.Now+10*minute {
			return Never
		}
		if line.Left-x.expects(c.Booked, int64(i)) < cost && (line.overestimated() || c.Booked <= c.at(c.Head)) {
			wait = min(wait, max(0, min(booked, s.Slot-s.Now))+l.uses(s, line))
		}
	}
	return wait
}

// surplus reports whether the windows have gathered enough by t for the operation and the booked units. A limit that is far from
// short delays nothing, and a window that gathers while another one or another limit is short has room for more than a grain brings. If one
// has gathered, another that does not gather has room for as much as it brings in the grain of t. keeps tells that no window is full before
// t, so that it keeps all that it gains.
func (x *Shared) surplus(op *Op, booked, t int64, keeps bool) bool {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	if x.short && !x.fits() {
		return false
	}
	n := l.grain(t)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if cost := op.Cost[w.Unit]; cost > 0 && (w.Size > w.Rate || w.Interval <= l.Grain) { // else see open
			left, due := w.gain(s, line.Left, s.Now, t), booked
			if w.Size <= w.Rate && x.more > 0 && n > c.Head {
				left, due = min(l.Grain/w.Interval, MostUnits/w.Size)*w.Size, c.at(n)
			} else if w.Size > w.Rate && keeps {
				left = line.Left + min(max(0, w.interval(t)-w.interval(w.since(s, s.Now))), MostUnits/w.Rate)*w.Rate
			}
			if left < x.expects(due, int64(i))+cost {
				return false
			}
		}
	}
	return true
}

// place returns the first slot from t on. An operation that only a token delays has its turn for a token. An operation that keeps
// its place runs soon. Any other one books, unless another shared limit delays it until a time behind the calendar.
func (x *Shared) place(f *Flow, op *Op, t int64, another bool) int64 {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	x.again, x.lost = false, false
	if x.token { // denied operations ask one after the other for a while; the others book again
		at := s.turn(x.overdue)
		if x.refund == 0 { // no token comes back before
			at += x.wait
		}
		at = max(x.refund, at/1000)
		if x.hurries(f, op) { // before the others: urgent ones have turns of their own
			u := s.urgent(0)
			at = min(at, max(x.refund, s.Now+x.overdue, u.until)+x.wait/1000+1)
		}
		if l.grain(at) <= c.Head+max(1, x.units/x.rate) || x.behind && at < s.Now+soon {
			return max(t, at)
		}
		x.token, t = false, max(t, s.Now+x.overdue)
	}
	if t == x.given {
		return t
	}
	another = another && !x.holds(t)
	t = max(t, s.Closed)
	for i := range l.Windows {
		w, line := &l.Windows[i], &s.Lines[i]
		if w.Interval > l.Grain || op.Cost[w.Unit] > w.Size || line.Left < 0 {
			t = max(t, w.room(s, line.Left+line.returns(), op.Cost[w.Unit], s.Now))
		}
	}
	if at := x.keeps(op, t); at > 0 {
		return at
	}
	if another { // operations come at the rate of the limit, unless it is far from short, or the last slot is too late to be of the same ones
		next, all := s.Slot+min(l.Grain, bound/max(1, x.units))*x.units/x.rate, x.backlogs()
		if s.Slot >= t && s.Slot < t+(all/1024+1)*l.Grain && !x.surplus(op, 4*all*x.rate/1024, t, false) {
			return next
		}
		return t
	}
	at := x.first(f, op, t)
	if x.unused(op, at) {
		x.token, x.passes, x.given, x.fair = true, true, 0, 0
		for i := range l.Windows {
			w, line := &l.Windows[i], &s.Lines[i]
			cost := op.Cost[w.Unit]
			x.wait = max(x.wait, line.spanUS(cost))
			x.overdue = max(x.overdue, min(w.room(s, line.Left, cost, s.Now), LastTime)-s.Now)
		}
		at = max(t, s.turn(x.overdue)/1000)
	}
	return at
}

// unused reports whether the booked operations before a slot probably do not come: see Limits.abandoned. Then an operation that has
// booked nothing waits only for its turn.
func (x *Shared) unused(op *Op, slot int64) bool {
	books := op.back() && op.Ticket.Again != unbooked && x.bound != BoundTokens
	return !books && !x.short && x.Limits.abandoned(x.State, op, slot)
}

// slower reports whether a window of the entity is refreshed until t and brings less than this limit in its time.
func (x *Shared) slower(own *Limits, op *Op, t int64) bool {
	for i := range own.Windows {
		w := &own.Windows[i]
		if cost := op.Cost[w.Unit]; cost > 0 && w.interval(t) > w.interval(x.State.Now) {
			if min(min(w.Rate, w.Size)/cost, mostBooked)*x.units/x.rate < w.Interval/x.Limits.Grain {
				return true
			}
		}
	}
	return false
}

// keeps returns the slot of an operation that keeps its place or has one in this grain, or 0.
func (x *Shared) keeps(op *Op, t int64) int64 {
	c, s, l := &x.State.Calendars[0], x.State, x.Limits
	if x.fits() && !x.here && (l.grain(t) <= c.Head || op.back() && t < s.Now+soon) { // another limit delays it for a moment
		return t
	}
	if op.Ticket.Slot > s.Now { // it came early
		return max(t, op.Ticket.Slot)
	}
	if !op.back() && x.room && x.bound == BoundTokens { // behind the operations due in this grain, unless the next one is as near
		if at := max(t, s.Now+min(c.at(c.Head)/max(1, x.units, c.usual()), bound/l.pace(s))*l.pace(s)/1000); at+1000 < l.begin(c.Head+1) {
			return at
		}
	}
	// Behind the operations due in this grain. A limit that is closed may open in it: a minute is long.
	if closed := x.bound == BoundClosed; (x.room || op.back() && x.below) && (closed || x.bound >= BoundWindow) {
		at, due, again := t, c.at(c.Head), !x.room && !closed
		if !x.room { // before them
			due = 0
		}
		if again { // one after the other
			w, line := &l.Windows[x.bound-BoundWindow], &s.Lines[x.bound-BoundWindow]
			at = max(t, w.Next(s.AgainUS/1000-1))
			x.lost = !x.longer && line.spares(op.Cost[w.Unit])
		}
		for i := range l.Windows {
			w := &l.Windows[i]
			at = max(at, w.room(s, s.Lines[i].Left-x.expects(due, int64(i))-x.passing(w, op), op.Cost[w.Unit], s.Now))
		}
		if l.grain(at) <= c.Head || (x.behind || x.lost) && !x.room && at < s.Now+soon {
			x.again = again
			return at
		}
	}
	return 0
}

// first returns the first slot from t on that has room, or the slot of the entity's fair share if that is earlier.
func (x *Shared) first(f *Flow, op *Op, t int64) int64 {
	c := &x.State.Calendars[0]
	n := x.Limits.grain(t)
	if x.here && n > c.Head { // its other limits delay it until a later grain
		x.here, x.fair = false, 0
	}
	if x.fair == 0 {
		x.shares(f, op)
	}
	if c.holds(n) {
		if (x.fits() || x.bound >= BoundWindow && n > c.Head) && x.surplus(op, c.Booked, t, false) && x.open(op, n, x.rate) == n {
			return t
		}
		n = x.seek(op, t)
	}
	if c.holds(n) {
		at, fair, last := x.Limits.grain(t), min(n, x.fair/tick), max(x.fair, f.Last)/tick
		for at < n && last < at && c.at(at) >= 3*x.rate { // it was moved there, as others were, and not behind its entity's last ticket
			at++
		}
		at = max(at, fair)
		return max(t, x.in(at, c.at(at)))
	}
	x.last = x.later(n*tick, 0)
	if c.Last >= x.last {
		x.last = x.later(c.Last, (x.units*tick+x.rate-1)/x.rate)
	} else if !x.holds(t) { // it waits for another limit
		return t
	}
	x.given = max(t, x.time(min(x.last, x.fair)))
	return x.given
}

// book puts a ticket on the books.
func (x *Shared) book(f *Flow, op *Op, t *Ticket) {
	c, s := &x.State.Calendars[0], x.State
	if at := min(s.turn(x.overdue)+x.wait, Never); x.token && t.Slot <= at/1000+soon { // else another limit holds it past its turn
		s.AgainUS = at
	}
	leftover := op.Ticket.Again == unbooked || x.again && x.lost // it waits for what booked operations leave: nobody took its slot
	if op.back() && !leftover && x.below && x.bound >= BoundWindow && x.refund == 0 && op.Ticket.Slot <= s.Now {
		x.Limits.deny(s, op)
	}
	if x.again { // half of the capacity is for the operations that are due
		line := &s.Lines[x.bound-BoundWindow]
		s.AgainUS = min(s.turn(0)+2*line.spanUS(op.Cost[line.Window.Unit]), Never)
	}
	n := x.Limits.grain(t.Slot)
	if x.given > 0 && x.last <= x.fair {
		c.Last = x.last
	}
	if c.holds(n) {
		c.put(n, min(c.at(n)+x.units, mostBooked))
	}
	if n == x.gathered { // the grains before it have no room any more
		c.Front = max(c.Front, n)
	}
	begins := !op.back() && f.Units+f.Later == 0 // the entity begins to wait: nothing before is late
	if begins {
		f.Fair = max(f.Fair, (c.Head-1)*tick)
	}
	if x.fair > 0 && !op.Urgent {
		last := x.fair
		if n < last/tick { // booked early
			last = n * tick
		} else if begins { // its first turn
			f.Fair = last
		}
		f.Last = max(f.Last, last)
	}
	if x.passes {
		t.Again = unbooked
	}
	f.put(t.Slot, x.part)
	if op.Urgent {
		f.Urgent += x.part
		if n <= c.Head+1 {
			s.putUrgent(t)
		}
	}
	s.Slot = max(s.Slot, t.Slot)
	x.weigh(f)
}
