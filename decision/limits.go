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
	PerGrain int64 // what it brings
	Scale    int64 // the units that count as one in the calendar
}

// Window brings Rate at the beginning of each Interval of Unix time, and gathers at most Size.
type Window struct{ Size, Rate, Interval int64 }

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

// share sets what a limit needs that entities share.
func (l *Limits) share() {
	first := max(1, min(l.Windows[0].Interval, MostTime))
	l.Grain, l.PerGrain = max(first, 1000/first*first), MostUnits
	for _, w := range l.Windows {
		if n := l.Grain / max(1, w.Interval); n > 0 {
			l.PerGrain = min(l.PerGrain, w.Rate*min(n, 1000))
		}
	}
	l.Scale = l.PerGrain>>20 + 1
}

// grain is the number of the grain of t. Times before 1970 are in the first.
func (l *Limits) grain(t int64) int64 { return max(0, t) / l.Grain }

// Most is the largest cost that all windows can ever hold.
func (l *Limits) Most() int64 {
	most := l.Windows[0].Size
	for _, w := range l.Windows {
		most = min(most, w.Size)
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
