package decision

// Limits is what an entity may do. Times are milliseconds. Set the first group of fields, then call Ready.
type Limits struct {
	Windows   []Window // at least one; all hold at once
	Tokens    int64    // the most operations in flight at once
	Guess     int64    // how long an operation takes, until that was measured
	Lease     int64    // how long a lease lasts unless it is renewed
	MaxLease  int64    // and at most
	FirstCome int64    // 1 if what comes first runs first in a shared limit, whatever its entity; else 0
	Start     int64    // when an entity that nobody knows began to gather capacity, empty; since 1970

	Print int64 // a hash of Windows, never 0; set by Ready
	Fill  int64 // the time after which every window is full that owes nothing; set by Ready

	// Of a limit that entities share, set by Ready.
	Grain    int64 // the length of a grain of the calendar: a second, or the first interval if that is longer
	PerGrain int64 // what it brings, in parts
	Parts    Cost  // how many of these one of a unit is; 0 if a grain does not bring that unit
	Scale    int64 // the parts that count as one in the calendar
}

// Window brings Rate at the beginning of each Interval of Unix time, and gathers at most Size.
type Window struct {
	Size, Rate, Interval int64
	Unit                 int64 // what it counts: calls if it is 0, else a named unit, below Units
}

// Units is how many units there are: calls and three more.
const Units = 4

// Cost is what an operation takes of each unit. A window of which it takes nothing does not bind it.
type Cost [Units]int64

// The largest numbers that a calculation takes: Lua has no integers above 2^53.
const (
	MostUnits = 1 << 40   // of a Size, a Rate and a cost
	MostTime  = MostUnits // of an Interval and other spans of time, in ms: 34 years
	LastTime  = 1 << 43   // since 1970, in ms: the year 2248
	bound     = 1 << 50   // of a debt
)

// Ready sets the fields that follow from the others. It returns the name of the first field that is out of range, and the
// place of its window.
func (l *Limits) Ready() (field string, window int) {
	l.Print, l.Fill = 5381, 0
	for i, w := range l.Windows {
		for k, n := range [3]int64{w.Size, w.Rate, w.Interval} {
			if n < 1 || n > MostUnits {
				return [3]string{"Size", "Rate", "Interval"}[k], i
			}
			l.Print = (l.Print*33 ^ n ^ n>>20) & (1<<44 - 1)
		}
		if w.Unit < 0 || w.Unit >= Units {
			return "Unit", i
		}
		l.Print = (l.Print ^ w.Unit*0x9e3779b9) & (1<<44 - 1)
		l.Fill = max(l.Fill, min((w.Size-1)/w.Rate+2, bound/w.Interval)*w.Interval)
	}
	l.Print++
	if len(l.Windows) > 0 {
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

// share sets what a limit needs that entities share. With one unit a part is one of it. With several the parts are small, so
// that what an operation takes of each unit is a whole number of them, nearly.
func (l *Limits) share() {
	first := max(1, min(l.Windows[0].Interval, MostTime))
	l.Grain, l.PerGrain, l.Parts = max(first, 1000/first*first), 0, Cost{}
	var brings Cost
	units := 0
	for _, w := range l.Windows {
		if n := l.Grain / max(1, w.Interval); n > 0 {
			if brings[w.Unit] == 0 {
				brings[w.Unit] = MostUnits
				units++
			}
			brings[w.Unit] = min(brings[w.Unit], w.Rate*min(n, 1000))
		}
	}
	for _, n := range brings {
		l.PerGrain = max(l.PerGrain, n)
	}
	if units > 1 {
		l.PerGrain = min(l.PerGrain*1000, MostUnits)
	}
	for u, n := range brings {
		if n > 0 {
			l.Parts[u] = max((l.PerGrain+n-1)/n, min(int64(units), 2)) // 1 tells that there is one unit
		}
	}
	l.Scale = l.PerGrain>>20 + 1
}

// part is the largest part that an operation takes of what a grain brings of a unit: it is fair by what it takes most of.
func (l *Limits) part(cost *Cost) int64 {
	if l.Parts[0] == 1 {
		return cost[0]
	}
	part := int64(1)
	part = max(part, parts(cost[0], l.Parts[0]), parts(cost[1], l.Parts[1]))
	part = max(part, parts(cost[2], l.Parts[2]), parts(cost[3], l.Parts[3]))
	return part
}

func parts(n, each int64) int64 { return min(n, MostUnits/max(1, each)) * each }

// grain is the number of the grain of t. Times before 1970 are in the first.
func (l *Limits) grain(t int64) int64 { return max(0, t) / l.Grain }

// Most is the largest cost in a unit that all windows can ever hold.
func (l *Limits) Most(unit int64) int64 {
	most := int64(MostUnits)
	for _, w := range l.Windows {
		if w.Unit == unit {
			most = min(most, w.Size)
		}
	}
	return most
}

// Copy returns a State that shares nothing with s.
func (s *State) Copy() State {
	c := *s
	c.Lines = append([]Line(nil), s.Lines...)
	c.Flows = append([]Flow(nil), s.Flows...)
	c.Calendars = append([]Calendar(nil), s.Calendars...)
	for i := range c.Calendars {
		c.Calendars[i].Ring.places = append([]byte(nil), s.Calendars[i].Ring.places...)
	}
	return c
}
