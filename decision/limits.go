package decision

// Limits are the limits of an entity. Times are milliseconds. Set the first group of fields, then call Ready.
type Limits struct {
	Windows   []Window // at least one; all hold at once
	Tokens    int64    // the most operations in flight at once
	Guess     int64    // the duration of an operation until one was measured
	Lease     int64    // how long a lease lasts unless it is renewed
	MaxLease  int64    // and at most
	FirstCome int64    // 1 if a shared limit is FIFO over all entities; else 0
	Start     int64    // when an unknown entity began to gather capacity, empty; since 1970

	Fill     int64 // the time after which every window without debt is full; set by Ready
	Shortest int64 // the place of the window with the shortest Interval that may bind; set by Ready

	// Of a limit that entities share, set by Ready.
	Grain    int64 // the length of a grain of the calendar: a second, or the shortest interval if that is longer
	PerGrain int64 // the gain of a grain, in parts
	Parts    Cost  // how many parts one of a unit is; 0 if no window counts that unit
	Scale    int64 // the parts that count as one in the calendar
	Zero     int64 // the beginning of the first grain
}

// Window brings Rate at the beginning of each Interval, and gathers at most Size. One of the intervals begins at Offset,
// in ms since 1970.
type Window struct {
	Size, Rate, Interval int64
	Offset               int64 // below Interval, unless there is a Series
	Series               int64 // not 0: the other intervals have other lengths, as months do; their Windows have the same number
	Unit                 int64 // the unit that it counts: 0 for calls, else a named unit, below Units
}

// Units is the number of units: calls and three more.
const Units = 4

// Cost is how much an operation takes of each unit. A window does not bind an operation that takes nothing of its unit.
type Cost [Units]int64

// The largest numbers of a calculation: Lua has no integers above 2^53.
const (
	MostUnits = 1 << 40   // of a Size, a Rate and a cost
	MostTime  = MostUnits // of an Interval and other spans of time, in ms: 34 years
	LastTime  = 1 << 43   // since 1970, in ms: the year 2248
	bound     = 1 << 50   // of a debt
)

// Ready sets the fields that follow from the others. It returns the name of the first field that is out of range, and the
// place of its window.
func (l *Limits) Ready() (field string, window int) {
	for i, w := range l.Windows {
		for k, n := range [3]int64{w.Size, w.Rate, w.Interval} {
			if n < 1 || n > MostUnits {
				return [3]string{"Size", "Rate", "Interval"}[k], i
			}
		}
		if w.Series == 0 && (w.Offset < 0 || w.Offset >= w.Interval) || w.Offset < -LastTime || w.Offset > LastTime {
			return "Offset", i
		}
		if w.Unit < 0 || w.Unit >= Units {
			return "Unit", i
		}
	}
	if len(l.Windows) > 0 {
		l.derive()
		l.share()
	}
	for _, f := range [6]struct {
		name    string
		n, most int64
	}{
		{"Windows", int64(len(l.Windows)), MostUnits}, {"Tokens", l.Tokens, MostUnits}, {"Guess", l.Guess, MostTime},
		{"MaxLease", l.MaxLease, MostTime}, {"Lease", l.Lease, l.MaxLease}, {"Start", l.Start + LastTime, 2 * LastTime},
	} {
		if f.n < 1 || f.n > f.most {
			return f.name, 0
		}
	}
	return "", 0
}

// derive sets Fill and Shortest. The Windows are in their range.
func (l *Limits) derive() {
	shortest := int64(MostTime + 1)
	l.Fill, l.Shortest = 0, 0
	for i := range l.Windows {
		w := &l.Windows[i]
		longest := w.Interval
		if w.Series != 0 { // a day may follow that is two hours longer, or a month that is three days longer
			longest += w.Interval / 8
		}
		l.Fill = max(l.Fill, min((w.Size-1)/w.Rate+2, bound/longest)*longest)
		if w.Interval < shortest && !l.loose(w) {
			l.Shortest, shortest = int64(i), w.Interval
		}
	}
}

// loose reports whether a window never binds: it brings more than another one lets through in its interval.
func (l *Limits) loose(w *Window) bool {
	for i := range l.Windows {
		if o := &l.Windows[i]; o.Unit == w.Unit && o.Interval >= w.Interval && min(w.Size, w.Rate) >= o.Size+min(o.Size, o.Rate) {
			return true
		}
	}
	return false
}

// share sets the fields of a limit that entities share. In its calendar a part is one of the unit, if there is one unit. With
// several the parts are small, so that an operation takes a whole number of them of each unit, nearly.
func (l *Limits) share() {
	w := &l.Windows[l.Shortest]
	l.Grain = max(w.Interval, 1000/w.Interval*w.Interval)
	l.Zero = w.Offset - floor(w.Offset, l.Grain)*l.Grain
	n0, n1, n2, n3 := l.brings(0), l.brings(1), l.brings(2), l.brings(3)
	l.PerGrain = max(n0, n1, n2, n3)
	least, most := int64(1), int64(1<<20) // the parts of one unit, where 1 tells that there is one unit; and the units of a grain
	if min(n0, 1)+min(n1, 1)+min(n2, 1)+min(n3, 1) > 1 {
		least, most = 2, mostBooked/mostGrains
		l.PerGrain = min(l.PerGrain*1000, MostUnits/8)
	}
	l.Parts = Cost{l.each(n0, least), l.each(n1, least), l.each(n2, least), l.each(n3, least)}
	l.Scale = l.PerGrain/most + 1
}

// brings returns how much of a unit a grain brings at most; 0 if no window counts the unit. A window that is longer than a
// grain may bring all of it in one.
func (l *Limits) brings(unit int64) int64 {
	counts, most := false, int64(MostUnits)
	for i := range l.Windows {
		if w := &l.Windows[i]; w.Unit == unit {
			counts = true
			if n := min(l.Grain/w.Interval, 1000); n > 0 {
				most = min(most, min(w.Rate, w.Size)*n)
			} else {
				most = min(most, w.Size)
			}
		}
	}
	if !counts {
		return 0
	}
	return most
}

// each returns how many parts one of a unit is.
func (l *Limits) each(brings, least int64) int64 {
	if brings == 0 {
		return 0
	}
	return max((l.PerGrain+brings-1)/brings, least)
}

// part returns the cost of an operation in parts: the largest of its units. So fairness goes by the unit that it uses
// most.
func (l *Limits) part(cost *Cost) int64 {
	if l.Parts[0] == 1 {
		return cost[0]
	}
	return max(1, parts(cost[0], l.Parts[0]), parts(cost[1], l.Parts[1]), parts(cost[2], l.Parts[2]), parts(cost[3], l.Parts[3]))
}

// parts converts an amount of a unit to parts.
func parts(n, each int64) int64 { return min(n, MostUnits/max(1, each)) * each }

// grain returns the number of the grain of t. Grains begin with intervals of the shortest window. Times before 1970 are in
// the first grain.
func (l *Limits) grain(t int64) int64 { return max(0, t-l.Zero) / l.Grain }

// whole returns the number of the first grain that begins at t or later.
func (l *Limits) whole(t int64) int64 { return l.grain(t + l.Grain - 1) }

// begin returns the beginning of a grain.
func (l *Limits) begin(n int64) int64 { return n*l.Grain + l.Zero }

// Most returns the largest cost in a unit that all windows can ever hold.
func (l *Limits) Most(unit int64) int64 {
	most := int64(MostUnits)
	for _, w := range l.Windows {
		if w.Unit == unit {
			most = min(most, w.Size)
		}
	}
	return most
}

// Unknown is the Window for a decision about an entity whose limits the caller does not know, and the Window of the
// Limits of its State then. It limits nothing.
var Unknown = Window{Size: MostUnits, Rate: MostUnits, Interval: 1}

// Limits returns the limits of the last decision, without a pin. With a level it returns limits of which that level is
// in force; their sizes may differ a little from the true ones. They are ready, but not complete: Lease, MaxLease,
// FirstCome and Start have no meaning. known is false if nothing was decided, or only without limits.
func (s *State) Limits() (l Limits, known bool) {
	l = Limits{Tokens: s.Tokens, Guess: s.Guess, Lease: 1, MaxLease: 1}
	var pin Pinned
	if len(s.Pins) > 0 {
		pin = s.Pins[0]
		l.Tokens = pin.Tokens
	}
	for i := range s.Lines {
		w := s.Lines[i].Window
		if w.Size == 0 || int64(i+1) == pin.Line {
			continue
		}
		if pin.Level.Part > 0 {
			w = w.of(pin.Level.Part)
		}
		if pin.Window.Interval == w.Interval && pin.Window.Unit == w.Unit {
			w, pin.Window = pin.Window, Window{}
		}
		l.Windows = append(l.Windows, w)
	}
	known = len(l.Windows) > 0 && l.Windows[0] != Unknown
	if !known {
		l.Windows, l.Tokens, l.Guess = []Window{Unknown}, MostUnits, 1
	}
	l.Ready()
	return l, known
}

// Level returns the part of the windows that is in force, at most 1.
func (s *State) Level() float64 {
	if len(s.Pins) == 0 || s.Pins[0].Level.Part == 0 {
		return 1
	}
	return float64(s.Pins[0].Level.Part) / steps
}

// InForce returns the limits together with the pin at a time: the pinned window is the last. Do not pass the result to
// Apply.
func (l *Limits) InForce(s *State, now int64) *Limits {
	if len(s.Pins) > 0 {
		l = l.copies(nil)
		l.hold(s, nil, &Op{Kind: Admit}, now)
		l.share()
	}
	return l
}

// copies returns a copy of l that may be changed, and puts one into each of shared.
func (l *Limits) copies(shared []Shared) *Limits {
	for i := range shared {
		shared[i].Limits = shared[i].Limits.copies(nil)
	}
	own := *l
	own.Windows = append([]Window(nil), l.Windows...)
	return &own
}

// Copy returns a State that shares nothing with s.
func (s *State) Copy() State {
	c := *s
	c.Lines = append([]Line(nil), s.Lines...)
	c.Pins = append([]Pinned(nil), s.Pins...)
	c.Flows = append([]Flow(nil), s.Flows...)
	c.Calendars = append([]Calendar(nil), s.Calendars...)
	for i := range c.Calendars {
		c.Calendars[i].Units.bytes = append([]byte(nil), s.Calendars[i].Units.bytes...)
		c.Calendars[i].Classes.bytes = append([]byte(nil), s.Calendars[i].Classes.bytes...)
	}
	return c
}
