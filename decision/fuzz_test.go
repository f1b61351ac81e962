package decision_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// choices are the bytes of a fuzz run. After the last byte all choices are 0.
type choices struct {
	b     []byte
	units bool // windows count more than calls
}

// n chooses a number below most.
func (c *choices) n(most int) int {
	if len(c.b) == 0 {
		return 0
	}
	x := int(c.b[0])
	c.b = c.b[1:]
	if most > 256 && len(c.b) > 0 {
		x, c.b = x*256+int(c.b[0]), c.b[1:]
	}
	return x % most
}

func (c *choices) of(all ...int64) int64 { return all[c.n(len(all))] }

func (c *choices) window() decision.Window {
	w := decision.Window{
		Size:     c.of(1, 2, 3, 5, 7, 12, 40, 1000, 1<<40),
		Rate:     c.of(1, 2, 3, 5, 8, 13, 60, 1<<20),
		Interval: c.of(1, 7, 100, 1000, 1000, 5000, 60_000, 86_400_000),
	}
	w.Offset = c.of(0, 0, 1, w.Interval/3, w.Interval-1) % w.Interval
	if c.n(2) == 0 {
		w.Rate = min(w.Rate, w.Size)
	}
	if c.units {
		w.Unit = c.of(0, 1, 2, 3, 1)
	}
	return w
}

// cost is one that all windows can hold. It takes some calls, and of some units nothing.
func (c *choices) cost(l *decision.Limits) (cost decision.Cost) {
	for unit := range cost {
		most := l.Most(int64(unit))
		cost[unit] = 1 + int64(c.n(8))%most
		if c.n(16) == 0 && most < decision.MostUnits {
			cost[unit] = most
		}
		if !c.units {
			break
		}
		if unit > 0 && c.n(3) == 0 {
			cost[unit] = 0
		}
	}
	return cost
}

// real is the real cost of an operation with this estimate.
func (c *choices) real(thought decision.Cost) (cost decision.Cost) {
	for unit, n := range thought {
		if n > 0 || unit == 0 {
			cost[unit] = c.of(0, 0, 1, n/2, n, n+3, 3*n)
		}
	}
	if c.units && c.n(8) == 0 {
		cost[2] += 3 // nobody thought of that
	}
	return cost
}

func (c *choices) limits(start int64) decision.Limits {
	l := decision.Limits{Start: start}
	for range 1 + c.n(3) {
		l.Windows = append(l.Windows, c.window())
	}
	l.Tokens = c.of(1, 2, 3, 5, 40, 1<<40)
	l.Guess = c.of(1, 50, 400, 60_000)
	l.Lease = c.of(3, 300, 2000, 60_000)
	l.MaxLease = l.Lease * c.of(1, 2, 30)
	return l
}

// other are limits that differ from l a little: in a size, a rate or the tokens, or by the last window.
func (c *choices) other(l decision.Limits) decision.Limits {
	l.Windows = append([]decision.Window(nil), l.Windows...)
	w := &l.Windows[c.n(len(l.Windows))]
	switch c.n(8) {
	case 0:
		w.Size = max(1, w.Size/2)
	case 1:
		w.Size = min(decision.MostUnits, w.Size*2)
	case 2:
		w.Rate = max(1, w.Rate/2)
	case 3:
		w.Rate = min(decision.MostUnits, w.Rate*2)
	case 4:
		l.Tokens = c.of(1, 2, 3, 5, 40, 1<<40)
	case 5:
		l.Windows = l.Windows[:1+c.n(len(l.Windows))]
	case 6:
		w.Offset = c.of(0, 1, w.Interval/2, w.Interval-1) % w.Interval
	case 7:
		w.Interval = max(w.Offset+1, w.Interval*c.of(1, 2, 3)/2)
	}
	return l
}

// world is an entity and its users, honest or not.
type world struct {
	c      *choices
	t      *testing.T
	s      decision.State
	leases *storage.Leases
	book   *ledger
	now    int64
	floor  int64              // when the backend forgot the entity: its clock runs on
	limits [2]decision.Limits // the second is given once in a while
	which  int
	counts []decision.Window // by which the state was counted last, without the pinned one
	pin    decision.PinnedLimit
	end    int64   // of the pin; 0: nothing is pinned
	pinned *ledger // what ran since the Pin, by the pinned window

	forgotten bool // by the backend
	tickets   []decision.Ticket
	old       []decision.Lease // all there ever were
	steps     int
	log       []string
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-12):] {
		w.t.Log(line)
	}
	w.t.Fatalf("limits %+v: step %d: %s", w.limits, w.steps, fmt.Sprintf(format, args...))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.fatal("%v", err)
	}
}

// do applies an operation, and compares its answer with the ledger.
func (w *world) do(op decision.Op) decision.Answer {
	w.t.Helper()
	l, a := &w.limits[w.which], decision.Answer{}
	alive := op.Lease.ID != 0 && w.book.alive(op.Lease.ID, w.now)
	l.Apply(&w.s, w.leases, &op, w.now, &a)
	w.log = append(w.log, fmt.Sprintf("%d at %d: %v: %v\n\t%v", w.steps, w.now, op, a, w.s))
	for _, n := range []int64{w.s.Now, w.s.Slot, w.s.Plain, w.s.LastID, w.s.Closed, w.s.Next, w.s.Head, w.s.AgainUS, w.s.Held} {
		if n > decision.Never || n < -decision.Never {
			w.fatal("a number of %+v is above 2^53", w.s)
		}
	}
	for _, line := range w.s.Lines {
		if max(line.Left, line.Promised, line.Spare, line.Taken) > decision.Never || min(line.Left, line.Promised) < -decision.Never {
			w.fatal("a number of %+v is above 2^53", w.s)
		}
	}
	at, ended := max(w.book.now, w.now), int64(0)
	decides := op.Kind == decision.GetDelay || op.Kind == decision.Admit || op.Kind == decision.Throttle || op.Kind == decision.Pause || op.Kind == decision.Pin
	if (decides || op.Kind == decision.Unpin || w.s.Now == at) && w.end > 0 && w.end <= at {
		ended, w.end, w.pinned = w.end, 0, nil
	}
	switch op.Kind {
	case decision.Pin, decision.Unpin:
		if a.Found != (w.end > 0) {
			w.fatal("%d found a pin: %t, it ends %d", op.Kind, a.Found, w.end)
		}
		w.end, w.pinned = 0, nil
		if op.Kind == decision.Pin {
			if w.pin, w.end = *op.Pin, decision.Never; op.For > 0 {
				w.end = at + op.For
			}
			if op.Pin.Window.Size > 0 {
				w.pinned = &ledger{now: at, tokens: 1 << 60, holds: map[int64]hold{}}
				w.pinned.change(decision.Limits{Windows: []decision.Window{op.Pin.Window}}, at)
			}
		}
	}
	given := *l
	given.Windows, given.Tokens = w.lifted(l)
	counts := counts(&w.s)
	if decides && !slices.Equal(counts, given.Windows) {
		w.fatal("counted by %v, want %v", counts, given.Windows)
	}
	if known, ok := w.s.Limits(); decides && (!ok || !slices.Equal(known.Windows, l.Windows) || known.Tokens != l.Tokens) {
		w.fatal("Limits() = %v, want %v", known, l)
	}
	if w.s.Tokens != 0 && !slices.Equal(counts, w.counts) { // counted by these limits from now on
		if w.counts == nil || w.forgotten { // other windows are all that is known
			w.book = newLedger(given)
		} else {
			if ended > 0 {
				at = max(ended, w.book.eras[len(w.book.eras)-1].from)
			}
			w.book.change(given, at)
		}
		w.counts = counts
	}
	w.forgotten = w.forgotten && w.s.Tokens == 0
	w.book.tokens = given.Tokens
	w.note(w.book, op, a, decides, alive)
	if w.pinned != nil {
		w.note(w.pinned, op, a, decides, alive)
	}
	if a.Delay > 0 && op.Kind == decision.Admit {
		w.tickets = append(w.tickets, a.Ticket)
	}
	if a.Lease.ID != 0 {
		w.old = append(w.old, a.Lease)
	}
	return a
}

// counts are the windows by which a state was counted last, without the pinned one.
func counts(s *decision.State) (windows []decision.Window) {
	for i, line := range s.Lines {
		if line.Window.Size > 0 && (len(s.Pins) == 0 || s.Pins[0].Line != int64(i+1)) {
			windows = append(windows, line.Window)
		}
	}
	return windows
}

// lifted are the windows and the tokens of l with a pin that raises.
func (w *world) lifted(l *decision.Limits) (windows []decision.Window, tokens int64) {
	windows, tokens = slices.Clone(l.Windows), l.Tokens
	if w.end == 0 {
		return windows, tokens
	}
	if n := w.pin.Tokens; n > 0 && (n < tokens || w.pin.Raise == 1) {
		tokens = n
	}
	for i, p := 0, w.pin.Window; i < len(windows) && w.pin.Raise == 1; i++ {
		if x := &windows[i]; x.Interval == p.Interval && x.Unit == p.Unit {
			x.Size, x.Rate = max(x.Size, p.Size), max(x.Rate, p.Rate)
			break
		}
	}
	return windows, tokens
}

// note tells a ledger of an operation, and compares its answer.
func (w *world) note(b *ledger, op decision.Op, a decision.Answer, decides, alive bool) {
	w.t.Helper()
	if decides || w.s.Now == w.now && op.Kind != decision.Reset { // others may change nothing
		b.tick(w.now)
	}
	_, known := b.holds[op.Lease.ID]
	switch op.Kind {
	case decision.GetDelay, decision.Admit:
		switch {
		case a.Late:
		case a.Delay < 0 || a.Delay > 0 && a.Bound == decision.BoundNone:
			w.fatal("a delay of %d because of %d", a.Delay, a.Bound)
		case a.Delay > 0:
		case op.Kind == decision.GetDelay:
			b.plain++
			w.must(b.ran(decision.Cost{1}))
		default:
			w.must(b.admitted(a.Lease))
		}
	case decision.ReturnToken:
		if b == w.book && a.Found != (b.plain > 0) {
			w.fatal("ReturnToken found a token: %t, %d were out", a.Found, b.plain)
		}
		b.plain = max(0, b.plain-1)
	case decision.Settle, decision.Cancel, decision.Renew:
		if op.Ticket.Number == 0 && a.Found != alive {
			w.fatal("operation %d found the lease %d: %t, want %t", op.Kind, op.Lease.ID, a.Found, alive)
		}
		switch {
		case !known:
		case !alive: // the holder knows now
			delete(b.holds, op.Lease.ID)
		case op.Kind == decision.Settle:
			b.ended(op.Lease.ID, op.Cost)
		case op.Kind == decision.Cancel:
			b.ended(op.Lease.ID, decision.Cost{})
		default:
			h := b.holds[op.Lease.ID]
			h.lease.End = a.Lease.End
			b.holds[op.Lease.ID] = h
		}
	case decision.Throttle:
		b.throttle(op.For)
	case decision.Pause:
		b.close(op.For)
	case decision.Resume:
		b.open()
	case decision.Reset:
		b.reset(w.now)
		if w.s.Now == w.now {
			b.tick(w.now)
		}
	}
}

// able is the part of a cost that the windows can hold.
func (w *world) able(cost decision.Cost) decision.Cost {
	for unit := range cost {
		cost[unit] = min(cost[unit], w.limits[w.which].Most(int64(unit)))
	}
	cost[0] = max(1, cost[0])
	return cost
}

// step does something at random.
func (w *world) step() {
	c, l := w.c, &w.limits[w.which]
	unit := l.Windows[c.n(len(l.Windows))].Interval
	cost := c.cost(l)
	lease := decision.Lease{ID: 1 + int64(c.n(1<<16)), End: w.now + 1}
	if len(w.old) > 0 && c.n(8) > 0 {
		lease = w.old[len(w.old)-1-c.n(min(len(w.old), 20))]
	}
	var ticket decision.Ticket
	if len(w.tickets) > 0 {
		ticket = w.tickets[len(w.tickets)-1-c.n(min(len(w.tickets), 200))]
	}
	switch c.n(25) {
	case 0, 1, 2: // a newcomer
		w.do(decision.Op{Kind: decision.Admit, Cost: cost, Urgent: c.n(5) == 0})
	case 3, 4, 5: // one who comes back, or again and again
		w.do(decision.Op{Kind: decision.Admit, Cost: cost, Ticket: ticket, Urgent: c.n(5) == 0})
	case 6, 7: // one who comes back in time, or a little late
		if ticket.Slot < w.now+10*unit {
			w.now = max(w.now, ticket.Slot+int64(c.n(3))*unit/4)
		}
		w.do(decision.Op{Kind: decision.Admit, Cost: w.able(ticket.Cost), Ticket: ticket, Urgent: c.n(5) == 0, Deadline: c.of(0, 0, 0, w.now+unit)})
	case 8: // a forged ticket
		forged := decision.Ticket{
			Slot: c.of(1, max(1, w.now-unit), w.now, w.now+unit, decision.LastTime-1), Number: c.of(0, 1, w.s.Next, w.s.Next+1, decision.LastTime-1),
			Again: int64(c.n(3)), Cost: decision.Cost{c.of(0, 1, cost[0], decision.MostUnits), c.of(0, cost[1], decision.MostUnits)},
		}
		if c.n(3) == 0 {
			w.do(decision.Op{Kind: decision.Cancel, Ticket: forged, Urgent: c.n(2) == 0})
		} else {
			w.do(decision.Op{Kind: decision.Admit, Cost: cost, Ticket: forged, Urgent: c.n(4) == 0})
		}
	case 9, 10:
		w.do(decision.Op{Kind: decision.GetDelay})
	case 11:
		w.do(decision.Op{Kind: decision.ReturnToken})
	case 12, 13, 14:
		w.do(decision.Op{Kind: decision.Settle, Lease: lease, Cost: c.real(lease.Cost)})
	case 15:
		w.do(decision.Op{Kind: decision.Cancel, Lease: lease})
	case 16:
		w.do(decision.Op{Kind: decision.Cancel, Ticket: ticket})
	case 17:
		w.do(decision.Op{Kind: decision.Renew, Lease: lease})
	case 18:
		kind := []decision.Kind{decision.Throttle, decision.Pause}[c.n(2)]
		w.do(decision.Op{Kind: kind, For: 1 + int64(c.n(40))*unit/8})
	case 19:
		w.do(decision.Op{Kind: []decision.Kind{decision.Resume, decision.Resume, decision.Resume, decision.Reset}[c.n(4)]})
	case 20, 21: // time passes, up to four intervals
		w.now += int64(c.n(64)) * unit / 16
	case 22: // it steps back or ahead
		w.now += c.of(-1, -unit, -10*unit, 20*unit, 3000*unit)
		w.now = max(w.floor, min(w.now, 1<<42))
	case 23: // other limits hold, once or from now on
		w.which = 1 - w.which
		if c.n(2) == 0 {
			w.do(decision.Op{Kind: decision.Admit, Cost: w.able(cost), Ticket: ticket})
			w.which = 1 - w.which
		}
	case 24: // a limit is pinned or not
		if c.n(3) == 0 {
			w.do(decision.Op{Kind: decision.Unpin})
			break
		}
		op := decision.Op{Kind: decision.Pin, Pin: &decision.PinnedLimit{}, For: int64(c.n(40)) * unit / 4}
		if c.n(4) > 0 {
			op.Pin.Window = c.window()
			if c.n(2) == 0 {
				op.Pin.Window.Interval = unit
			}
		}
		op.Pin.Tokens, op.Pin.Raise = c.of(0, 0, 1, 2, 3, 40), int64(c.n(4)/3)
		w.do(op)
	}
	if c.n(8) == 0 { // through a backend
		data := storage.Encode(&w.s, w.leases.All())
		held, err := storage.Decode(data, &w.s)
		w.must(err)
		w.leases = storage.NewLeases(held)
	}
	if c.n(32) == 0 && w.s.Tokens != 0 && max(w.limits[w.which].Until(&w.s), w.leases.Last()) <= w.now { // it forgets
		if w.end > w.now {
			w.fatal("forgotten at %d, pinned until %d", w.now, w.end)
		}
		w.s, w.leases, w.floor = decision.State{}, storage.NewLeases(nil), w.now
		w.forgotten = true
	}
}

// play does random operations, and then lets one caller after the other come until it runs.
func play(t *testing.T, b []byte) {
	c := &choices{b: b}
	c.units = c.n(2) == 0
	w := &world{c: c, t: t, leases: storage.NewLeases(nil)}
	w.now = c.of(1_700_006_400_000, 1_700_006_400_001, 0, 12_345_678)
	w.limits[0] = c.limits(w.now - c.of(0, 1, 1000, 86_400_000, w.now))
	w.limits[1] = c.other(w.limits[0])
	for i := range w.limits {
		if field, window := w.limits[i].Ready(); field != "" {
			t.Fatalf("%+v: field %s of window %d is out of range", w.limits[i], field, window)
		}
	}
	w.book = newLedger(w.limits[0])
	for len(c.b) > 0 {
		w.steps++
		w.step()
	}
	w.do(decision.Op{Kind: decision.Resume})
	for w.book.plain > 0 {
		w.do(decision.Op{Kind: decision.ReturnToken})
	}
	w.now = max(w.now, w.book.now, w.leases.Last())
	one := decision.Cost{1}
	if c.units {
		one = decision.Cost{1, 1, 1, 1}
	}
	callers := [3]struct {
		name string
		kind decision.Kind
	}{{"with its ticket", decision.Admit}, {"without a ticket", decision.Admit}, {"by GetDelay", decision.GetDelay}}
	first := int(w.now % 3)
	for i := range callers {
		caller := callers[(first+i)%3]
		op := decision.Op{Kind: caller.kind, Cost: one}
		for hops := 0; ; hops++ {
			a := w.do(op)
			if a.Delay == 0 {
				break
			}
			l := &w.limits[w.which]
			if int64(hops) == 100+2*l.Fill/l.Windows[l.Shortest].Interval { // a lost booking may have been for all that a window gathers
				w.fatal("a caller %s came %d times and did not run: %+v", caller.name, hops, a)
			}
			if caller.name == "with its ticket" {
				op.Ticket = a.Ticket
			}
			w.now += a.Delay
			if hops > 50 { // unused bookings are measured when an interval ends
				for _, window := range w.limits[w.which].Windows {
					w.now = max(w.now, w.now+window.Interval/4-a.Delay)
				}
			}
			if w.now >= decision.LastTime {
				return // no clock shows that
			}
		}
		for _, id := range slices.Sorted(maps.Keys(w.book.holds)) {
			w.do(decision.Op{Kind: decision.Settle, Lease: w.book.holds[id].lease, Cost: one})
		}
		for w.book.plain > 0 {
			w.do(decision.Op{Kind: decision.ReturnToken})
		}
	}
}

// FuzzLimit checks the hard limit against a ledger of the operations that really ran, and that nothing stops an entity.
func FuzzLimit(f *testing.F) {
	f.Add([]byte("drip"))
	for seed := range uint64(50) {
		f.Add(random(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) { play(t, b[:min(len(b), 1200)]) })
}

func random(seed uint64) []byte {
	rnd := rand.New(rand.NewPCG(seed, 11))
	b := make([]byte, 40+rnd.IntN(2000))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

var entities = flag.Int("entities", 3000, "how many entities TestLimit drives")

// The checks of FuzzLimit and FuzzShared with fixed seeds.
func TestLimit(t *testing.T)  { fixedSeeds(t, play) }
func TestShared(t *testing.T) { fixedSeeds(t, crowded) }

func fixedSeeds(t *testing.T, play func(*testing.T, []byte)) {
	for seed := range uint64(*entities) {
		if play(t, random(seed)); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
