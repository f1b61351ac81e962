package decision

// Level is the part of its windows that an entity, or a shared limit, uses. A Throttle with an Op.Level lowers it, an
// Announce bounds it, and it rises by itself. A Pin that raises begins without one. Levels are 10,000ths. The zero Level
// is no level: all of the windows.
type Level struct {
	Part      int64 // of the windows of the last decision, in 200ths; 0 if there is no level
	Changed   int64 // when Part changed last
	Lowered   int64 // the level after the last refusal that lowered it; 0 if there was none
	Refused   int64 // the time of that refusal
	Ran       int64 // the capacity of the first window's unit that operations have used since
	Announced int64 // the most that the provider has announced
	Until     int64 // the end of Announced
	Ramp      int64 // when the level began to rise from its half, after a pause
}

const (
	// Whole is the level of an entity that uses all of its windows.
	Whole = 10_000

	steps       = 200 // as many levels are told apart
	leastPart   = 4
	sameRefusal = 2000   // ms after a refusal others belong to it, and until the next interval
	longestSame = minute // but no longer
	measurable  = 5000   // ms between two refusals at least
	changeEvery = 10_000 // ms, and 20 intervals of windows that gather capacity, at most an hour: the level rises in such steps
	longPause   = minute // without an operation, or 10 intervals
	rampTime    = 10_000
	risesFor    = 3600 // seconds: any level is whole again then
)

// follows makes a Level for an operation that may lower it.
func (s *State) follows(op *Op) {
	if op.Kind == Throttle && op.Level > 0 || op.Kind == Announce && op.Level < Whole {
		if len(s.Pins) == 0 {
			s.Pins = append(s.Pins, Pinned{})
		}
		v := &s.Pins[0].Level
		if v.Part == 0 {
			v.Part = steps
		}
	}
}

// refused lowers the level after a refused operation. l are the limits without a level. The new level is a little less than the provider
// has let pass since the last refusal, for it had nothing left then, and has nothing left now.
func (l *Limits) refused(v *Level, t int64) {
	v.Ran = max(0, v.Ran-1) // it did not pass
	same := min(max(sameRefusal, l.Windows[0].Interval*steps/v.Part+1000), longestSame)
	if v.Lowered > 0 && t-v.Refused < same {
		return
	}
	level := v.risen(t)
	next := level * 8 / 10
	if v.Lowered > 0 && t-v.Refused >= measurable {
		passed := v.Ran * Whole / l.brought(t-v.Refused)
		next = min(max(passed*98/100, level/2), level*98/100)
	}
	v.Lowered, v.Refused, v.Ran = max(next, Whole/steps*leastPart), t, 0
}

// brought returns the most that the windows bring in a span, of the first one's unit.
func (l *Limits) brought(span int64) int64 {
	most := int64(MostUnits)
	for i := range l.Windows {
		w := &l.Windows[i]
		rate := min(w.Rate, w.Size)
		if n := span / w.Interval; w.Unit == l.Windows[0].Unit && n < MostUnits/rate {
			brings := n*rate + span%w.Interval*1024/w.Interval*rate/1024
			if w.Size <= w.Rate { // all of it may be left in the beginning
				brings = max(brings, w.Size)
			}
			most = min(most, brings)
		}
	}
	return max(1, most)
}

// used counts what operations have used.
func (s *State) used(n int64) {
	for i := range s.Pins {
		v := &s.Pins[i].Level
		v.Ran = max(0, min(v.Ran+n, MostUnits/2))
	}
}

// risen returns the level at a time by the refusals alone. It rises with the third power of the time: it changes little
// for minutes, and doubles in seven.
func (v *Level) risen(t int64) int64 {
	if v.Lowered == 0 {
		return Whole
	}
	seconds := min(max(0, t-v.Refused)/1000, risesFor)
	return min(Whole, v.Lowered+v.Lowered*(seconds*seconds*seconds/216_000)/343)
}

// part returns the part that is due at a time.
func (v *Level) part(t int64) int64 {
	level := v.risen(t)
	if v.Until > t {
		level = min(level, v.Announced)
	}
	if v.Ramp > 0 && t < v.Ramp+rampTime {
		level = level * (rampTime + max(0, t-v.Ramp)) / (2 * rampTime)
	}
	return max(level*steps/Whole, leastPart)
}

// end returns the time from which there is no level.
func (v *Level) end() int64 {
	end := v.Until
	if v.Lowered > 0 {
		end = max(end, v.Refused+risesFor*1000)
	}
	if v.Ramp > 0 {
		end = max(end, v.Ramp+rampTime)
	}
	return end
}

// follow brings the level to a time. Each window keeps its remaining and its promised capacity, or its use if it counts the use of
// an interval. l are the limits without a level.
func (l *Limits) follow(s *State, v *Level, t int64) {
	first := l.Windows[0].Interval
	if s.Tokens != 0 && t-s.Now > max(longPause, min(first, longPause)*10) && v.end() > t {
		v.Ramp = t
	}
	part, every := v.part(t), int64(changeEvery)
	for i := range l.Windows {
		if w := &l.Windows[i]; w.Size > w.Rate { // a change may cost an interval
			every = max(every, min(w.Interval*20*steps/max(part, v.Part), risesFor*1000))
		}
	}
	if part > v.Part && t-v.Changed < every {
		part = v.Part
	}
	if part != v.Part {
		for i := range l.Windows {
			if i < len(s.Lines) {
				l.Windows[i].rescale(s, &s.Lines[i], v, part, t)
			}
		}
		v.Part, v.Changed = part, t
		if s.Tokens != 0 {
			s.Now = t
		}
	}
	if part == steps && v.end() <= t {
		*v = Level{}
	}
}

// rescale continues a Line of the level v with another part of its window whole.
func (whole *Window) rescale(s *State, line *Line, v *Level, part, t int64) {
	old, w := whole.at(v.Part), whole.at(part)
	if line.Window == old {
		if w.counts(&old) {
			line.resize(s, &w, t)
		} else {
			from, used := max(s.Now, min(v.end(), t)), old.Size+line.Over-line.Left // the level may have ended before
			line.Left = old.gain(s, line.Left, s.Now, from)
			// Intervals of another length begin at other times. One that would begin too early brings nothing.
			if w.Next(from)-old.begin(old.interval(from)) < whole.Interval {
				line.Left -= w.Rate
			}
			line.Left = w.gain(s, line.Left, from, t)
			line.carry(&w, s, used, t)
		}
		line.Window, line.Left, line.Promised = w, min(line.Left, w.Size), min(line.Promised, w.Size)
		line.clip(s)
	}
}

// at returns a part of a window. A window that gathers capacity gets a longer interval, which is more exact than a smaller
// rate. Any other window keeps its intervals, as the provider may count by them, and gets fewer units. A window that
// limits nothing stays, and so does one that is longer than a level lasts: an hour at a low level would cost it its day.
func (w *Window) at(part int64) Window {
	if w.Size == MostUnits || w.Interval > risesFor*1000 {
		part = steps
	}
	p := *w
	p.Size = max(1, w.Size*part/steps)
	p.Rate = min(p.Size, w.Rate)
	if w.Size > w.Rate && w.Series == 0 {
		p.Interval = min((w.Interval*steps+part-1)/part, MostTime)
		if p.Size < w.Rate {
			p.Interval = max(w.Interval, p.Interval*(p.Size*1024/w.Rate+1)/1024)
		}
	} else if w.Size*part < steps && w.Series == 0 {
		p.Interval = min(w.Interval*((steps+w.Size*part-1)/(w.Size*part)), MostTime)
	}
	return p
}

// of returns a window that has this part, w.
func (w *Window) of(part int64) Window {
	whole := *w
	whole.Size = (w.Size*steps + part - 1) / part
	if w.Size > w.Rate && w.Series == 0 {
		whole.Interval = max(1, w.Interval*part/steps)
		whole.Offset = w.Offset % whole.Interval
	} else {
		whole.Rate = whole.Size
	}
	if w.Size == MostUnits || whole.Interval > risesFor*1000 { // at has left it whole
		return *w
	}
	return whole
}
