package decision_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// limited is an entity or a shared limit with a ledger of its own.
type limited struct {
	id     int64
	l      decision.Limits
	s      decision.State
	leases *storage.Leases
	book   *ledger
	known  bool // something was decided
}

func newLimited(c *choices, id, now int64) *limited {
	x := &limited{id: id, leases: storage.NewLeases(nil), l: c.limits(now - c.of(0, 1, 1000, 86_400_000, now))}
	if field, window := x.l.Ready(); field != "" {
		panic(fmt.Sprint(field, window))
	}
	x.book = newLedger(x.l)
	return x
}

// adopted has the ledger take note of changed limits, once the state is counted by them.
func (x *limited) adopted() {
	counts := counts(&x.s)
	if x.s.Tokens != 0 && slices.Equal(counts, x.l.Windows) && !slices.Equal(counts, x.book.limits().Windows) {
		if x.known {
			x.book.change(x.l, x.s.Now)
		} else { // the windows of before were never counted
			closed := x.book.closed
			x.book = newLedger(x.l)
			x.book.closed = closed
		}
	}
	x.known = x.known || x.s.Tokens != 0
	x.book.tokens = x.l.Tokens
}

// crowd is several entities with limits that they share, and their users, honest or not.
type crowd struct {
	c        *choices
	t        *testing.T
	now      int64
	entities []*limited
	shared   []*limited
	messages []message
	steps    int
}

// message is an operation that was postponed, or one that runs, or has run.
type message struct {
	entity int
	within int // a bit for each of shared
	urgent bool
	cost   decision.Cost
	ticket decision.Ticket
	lease  decision.Lease
}

func (w *crowd) within(which int, weight int64) (shared []decision.Shared, books []*limited) {
	for i, x := range w.shared {
		if which&(1<<i) != 0 {
			in := storage.Within{Limits: &x.l, ID: x.id, Weight: weight}
			shared, books = append(shared, in.In(&x.s, x.leases)), append(books, x)
		}
	}
	return shared, books
}

func (w *crowd) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatalf("step %d at %d: %v", w.steps, w.now, err)
	}
}

// do applies an operation of an entity, and has each ledger take note of it.
func (w *crowd) do(m *message, op decision.Op) decision.Answer {
	w.t.Helper()
	e, a := w.entities[m.entity], decision.Answer{}
	shared, books := w.within(m.within, 1+int64(m.entity)*3)
	books = append(books, e)
	alive := make([]bool, len(books))
	for i, x := range books {
		alive[i] = x.book.alive(op.Lease.ID, max(w.now, x.s.Now))
	}
	e.l.ApplyWithin(&e.s, e.leases, shared, &op, w.now, &a)
	for i, x := range books {
		x.adopted()
		if op.Kind == decision.Admit || op.Kind == decision.GetDelay || x.s.Tokens != 0 && x.s.Now >= x.book.now {
			x.book.tick(x.s.Now)
		}
		switch op.Kind {
		case decision.Admit:
			if a.Delay == 0 && !a.Late {
				w.must(x.book.admitted(a.Lease))
			}
		case decision.GetDelay:
			if a.Delay == 0 {
				x.book.plain++
				w.must(x.book.ran(decision.Cost{1}))
			}
		case decision.ReturnToken:
			x.book.plain = max(0, x.book.plain-1)
		case decision.Settle, decision.Cancel:
			cost := op.Cost
			if op.Kind == decision.Cancel {
				cost = decision.Cost{}
			}
			if !alive[i] {
				delete(x.book.holds, op.Lease.ID)
			} else {
				x.book.ended(op.Lease.ID, cost)
			}
		}
	}
	if a.Late && (a.Ticket != (decision.Ticket{}) || a.Lease != (decision.Lease{})) {
		w.t.Fatalf("step %d: a late one got %+v", w.steps, a)
	}
	if op.Deadline > 0 && !a.Late && a.Ticket.Slot > op.Deadline {
		w.t.Fatalf("step %d: a slot at %d after the deadline %d", w.steps, a.Ticket.Slot, op.Deadline)
	}
	for _, x := range books {
		s := x.s.Copy() // as Inspect does
		x.l.Newcomer(&s, x.leases.Out(w.now), nil, w.now)
		if booked := x.l.InForce(&s, w.now).Booked(&s); booked < 0 || booked > decision.MostUnits {
			w.t.Fatalf("step %d: %d units are booked", w.steps, booked)
		}
		for _, n := range []int64{x.s.Now, x.s.Slot, x.s.LastID, x.s.Next, x.s.Head, x.s.AgainUS, x.s.Held} {
			if n > decision.Never || n < -decision.Never {
				w.t.Fatalf("step %d: a number of %+v is above 2^53", w.steps, x.s)
			}
		}
		for _, f := range x.s.Flows {
			for _, n := range []int64{f.Units, f.Later, f.Urgent, f.Fair, f.FairUrgent, f.Last, f.Until, f.End, f.Left, f.Weight} {
				if n > decision.Never || n < -decision.Never {
					w.t.Fatalf("step %d: a number of %+v is above 2^53", w.steps, f)
				}
			}
		}
	}
	return a
}

// direct is an operation on a shared limit or an entity alone.
func (w *crowd) direct(x *limited, op decision.Op) {
	var a decision.Answer
	x.l.Apply(&x.s, x.leases, &op, w.now, &a)
	x.adopted()
	if x.s.Tokens != 0 {
		x.book.tick(x.s.Now)
	}
	switch op.Kind {
	case decision.Throttle:
		x.book.throttle(op.For)
	case decision.Pause:
		x.book.close(op.For)
	case decision.Resume:
		x.book.open()
	}
}

func (w *crowd) step() {
	c := w.c
	m := message{entity: c.n(len(w.entities)), within: c.n(1 << len(w.shared)), urgent: c.n(4) == 0}
	m.cost = c.cost(&w.entities[m.entity].l)
	for unit := range m.cost {
		for _, x := range w.shared {
			m.cost[unit] = min(m.cost[unit], x.l.Most(int64(unit)))
		}
	}
	known := -1
	if n := len(w.messages); n > 0 {
		known = n - 1 - c.n(min(n, 100))
	}
	unit := w.entities[m.entity].l.Windows[0].Interval
	switch dice := c.n(24); {
	case dice < 5 || known < 0: // a newcomer
		w.admit(m)
	case dice < 11: // one comes back, in time, late, twice, or with a ticket that is not its own
		m := w.messages[known]
		if c.n(4) > 0 {
			w.messages = append(w.messages[:known], w.messages[known+1:]...)
		}
		if c.n(3) > 0 && m.ticket.Slot < w.now+20*unit {
			w.now = max(w.now, m.ticket.Slot+int64(c.n(3))*unit/4)
		}
		if c.n(16) == 0 {
			m.ticket = decision.Ticket{Slot: c.of(1, max(1, w.now-unit), w.now, w.now+unit), Number: c.of(0, 1, 5), Cost: decision.Cost{c.of(0, 1, decision.MostUnits), 0, c.of(0, 1, decision.MostUnits)}}
		}
		w.admit(m)
	case dice < 16:
		m := &w.messages[known]
		w.do(m, decision.Op{Kind: decision.Settle, Lease: m.lease, Cost: c.real(m.lease.Cost)})
	case dice == 16:
		m := &w.messages[known]
		w.do(m, decision.Op{Kind: decision.Cancel, Lease: m.lease, Ticket: m.ticket, Urgent: m.urgent})
	case dice == 17:
		w.do(&m, decision.Op{Kind: decision.GetDelay})
	case dice == 18:
		m.within = 1<<len(w.shared) - 1
		if w.entities[m.entity].book.plain > 0 {
			w.do(&m, decision.Op{Kind: decision.ReturnToken})
		}
	case dice == 19:
		x := append(w.shared, w.entities...)[c.n(len(w.shared)+len(w.entities))]
		kind := []decision.Kind{decision.Throttle, decision.Pause, decision.Resume, decision.Pin, decision.Unpin}[c.n(5)]
		pin := decision.PinnedLimit{Window: c.window(), Tokens: c.of(0, 1, 2)} // it only lowers
		w.direct(x, decision.Op{Kind: kind, For: 1 + int64(c.n(40))*unit/8, Pin: &pin})
	case dice == 20:
		w.now += c.of(1, unit, 20*unit)
	case dice == 21: // other limits hold from the next decision on
		x := append(w.shared, w.entities...)[c.n(len(w.shared)+len(w.entities))]
		x.l = c.other(x.l)
		if field, window := x.l.Ready(); field != "" {
			w.t.Fatalf("%+v: field %s of window %d is out of range", x.l, field, window)
		}
	default:
		w.now += int64(c.n(64)) * unit / 16
	}
}

// admit asks for a message, and keeps the answer's lease or ticket.
func (w *crowd) admit(m message) {
	op := decision.Op{Kind: decision.Admit, Cost: m.cost, Ticket: m.ticket, Urgent: m.urgent}
	if w.c.n(16) == 0 {
		op.Deadline = max(1, w.now+w.c.of(-1, 1, 100, 10_000))
	}
	a := w.do(&m, op)
	m.ticket, m.lease = a.Ticket, a.Lease
	w.messages = append(w.messages, m)
}

// crowded does random operations, and then lets one caller after the other come until it runs.
func crowded(t *testing.T, b []byte) {
	c := &choices{b: b}
	c.units = c.n(2) == 0
	w := &crowd{c: c, t: t, now: 1_700_006_400_000}
	for i := range int64(3) {
		w.entities = append(w.entities, newLimited(c, 0, w.now))
		if i < 2 {
			w.shared = append(w.shared, newLimited(c, i+1, w.now))
		}
	}
	for len(c.b) > 0 {
		w.steps++
		w.step()
	}
	all := append(w.shared, w.entities...)
	for _, x := range all {
		w.direct(x, decision.Op{Kind: decision.Resume})
		w.direct(x, decision.Op{Kind: decision.Reset})
		x.book.reset(w.now)
		w.now = max(w.now, x.s.Now)
	}
	one := decision.Cost{1}
	if c.units {
		one = decision.Cost{1, 1, 1, 1}
	}
	for i := range w.entities {
		m := message{entity: i, within: 1<<len(w.shared) - 1}
		for hops := 0; ; hops++ {
			a := w.do(&m, decision.Op{Kind: decision.Admit, Cost: one, Ticket: m.ticket})
			if a.Delay == 0 {
				w.do(&m, decision.Op{Kind: decision.Settle, Lease: a.Lease, Cost: one})
				break
			}
			if hops == 100 {
				t.Fatalf("the entity %d came 100 times and did not run: %+v", i, a)
			}
			m.ticket = a.Ticket
			if w.now += a.Delay; w.now >= decision.LastTime {
				return // no clock shows that
			}
		}
	}
}

// FuzzShared checks each of several limits against a ledger of its own.
func FuzzShared(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(random(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) { crowded(t, b[:min(len(b), 1500)]) })
}

// within does an operation within a shared limit.
func (e *entity) within(all *entity, now int64, op decision.Op) (a decision.Answer) {
	in := storage.Within{Limits: &all.l, ID: 1, Weight: 1}
	e.l.ApplyWithin(&e.s, &e.leases, []decision.Shared{in.In(&all.s, &all.leases)}, &op, begin+now, &a)
	return a
}

var one = decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}

// A shared limit with room lets no operation wait for its own next interval.
func TestSharedWithRoom(t *testing.T) {
	own, all := newEntity(t, decision.Window{Size: 1, Rate: 1, Interval: 500}), newEntity(t, decision.Window{Size: 1000, Rate: 1000, Interval: 60_000})
	for i, want := range []int64{0, 400, 900} {
		if a := own.within(all, 100, one); a.Delay != want {
			t.Errorf("operation %d is delayed by %d, want %d", i, a.Delay, want)
		}
	}
}

// Entities that begin to wait together have their slots one after the other, and not all in the same second.
func TestSharedTurns(t *testing.T) {
	all := newEntity(t, perSecond(50, 50))
	book := func(operations int) (second int64) {
		own := newEntity(t, perSecond(1000, 1000))
		for range operations {
			second = (100 + own.within(all, 100, one).Delay) / 1000
		}
		return second
	}
	book(1000)
	count := map[int64]int{}
	for range 150 {
		count[book(1)]++
	}
	for second := range int64(3) {
		if n := count[second+1]; n < 48 || n > 52 {
			t.Errorf("%d of 150 entities have their slot in second %d, want 50: %v", n, second+1, count)
		}
	}
}

// When a limit is raised, newcomers use what the tickets of before leave: they do not wait behind the slots of hours.
func TestSharedRaised(t *testing.T) {
	window := func(n, interval int64) decision.Window { return decision.Window{Size: n, Rate: n, Interval: interval} }
	for name, c := range map[string]struct{ own, all, laterOwn, laterAll decision.Window }{
		"own":                          {window(1, 60_000), window(100, 1000), window(100, 1000), window(100, 1000)},
		"shared, with other intervals": {window(100, 1000), window(1, 60_000), window(100, 1000), window(10, 1000)},
		"shared, with the same":        {window(100, 1000), window(1, 1000), window(100, 1000), window(2, 1000)},
	} {
		all, entities := newEntity(t, c.all), []*entity{newEntity(t, c.own), newEntity(t, c.own)}
		all.do(100, decision.Op{Kind: decision.Pause, For: 1000})
		for range 200 {
			entities[0].within(all, 100, one)
		}
		all.change(c.laterAll)
		for i := range 40 {
			e := entities[i%2]
			e.change(c.laterOwn)
			if a := e.within(all, 100_100, one); a.Delay > 60_000 {
				t.Errorf("%s: a newcomer of entity %d waits %d ms", name, i%2, a.Delay)
			}
		}
	}
}

// When the limit of one unit is raised, newcomers do not wait behind the slots that it has set in the windows of another unit.
func TestRaisedUnit(t *testing.T) {
	window := func(n, interval, unit int64) decision.Window {
		return decision.Window{Size: n, Rate: n, Interval: interval, Unit: unit}
	}
	for name, unit := range map[string]int64{"calls": 0, "another unit": 1} {
		e := newEntity(t, window(10, 1000, 0), window(2, 86_400_000, unit))
		for range 100 {
			e.do(100, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1, 1}})
		}
		if booked := e.l.Booked(&e.s); booked != 98 {
			t.Errorf("%s: %d calls are booked, want 98", name, booked)
		}
		e.change(window(10, 1000, 0), window(1000, 86_400_000, unit))
		if a := e.do(5000, decision.Op{Kind: decision.Admit, Cost: decision.Cost{1, 1}}); a.Delay > 10_000 {
			t.Errorf("%s: a newcomer waits %d ms", name, a.Delay)
		}
	}
}

// An operation that another limit holds for minutes takes no turn for a token.
func TestTurnsOfAnotherLimit(t *testing.T) {
	e, tokens, calls := newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(1000, 1000)), newEntity(t, decision.Window{Size: 1, Rate: 1, Interval: 60_000})
	tokens.l.Tokens, tokens.l.Guess = 1, 200
	tokens.ready()
	for range 50 {
		first, second := storage.Within{Limits: &tokens.l, ID: 1, Weight: 1}, storage.Within{Limits: &calls.l, ID: 2, Weight: 1}
		op, a := one, decision.Answer{}
		e.l.ApplyWithin(&e.s, &e.leases, []decision.Shared{first.In(&tokens.s, &tokens.leases), second.In(&calls.s, &calls.leases)}, &op, begin, &a)
	}
	if a := e.within(tokens, 0, one); a.Delay > 500 {
		t.Errorf("an operation that waits for the token alone waits %d ms", a.Delay)
	}
}

// queue is messages of one call each, of entities with the same limits, within shared limits. All begin to wait at once
// and keep the times that they are told. Operations take 50 ms.
type queue struct {
	own      decision.Limits
	shared   []decision.Limits
	entities int
	messages int
	urgent   int  // each message of this number is urgent, and the others are not within the first limit; 0: none
	lost     bool // every ticket is lost

	closed int64 // the first limit is closed for so long
	early  int64 // every other message comes back so early, and keeps its slot
}

// run returns when the last message runs, in ms, and the most postponements of a message.
func (q *queue) run(t *testing.T) (last, most int64) {
	t.Helper()
	const takes = 50
	type event struct {
		at, hops int64
		entity   int
		urgent   bool
		ticket   decision.Ticket
		lease    decision.Lease
	}
	full := func(l decision.Limits) *entity {
		e := newEntity(t, l.Windows...)
		e.l.Tokens = cmp.Or(l.Tokens, decision.MostUnits)
		return e
	}
	var entities, shared []*entity
	for range q.entities {
		entities = append(entities, full(q.own))
	}
	for _, l := range q.shared {
		shared = append(shared, full(l))
	}
	if q.closed > 0 {
		shared[0].do(0, decision.Op{Kind: decision.Pause, For: q.closed})
	}
	var events []event
	for i := range q.messages {
		events = append(events, event{at: begin, entity: i * q.entities / q.messages, urgent: q.urgent > 0 && i%q.urgent == 0})
	}
	for len(events) > 0 {
		e := events[0]
		events = events[1:]
		of := entities[e.entity]
		var within []decision.Shared
		for i, x := range shared {
			in := storage.Within{Limits: &x.l, ID: int64(i) + 1, Weight: 1}
			if q.urgent == 0 || e.urgent || i > 0 {
				within = append(within, in.In(&x.s, &x.leases))
			}
		}
		op, a := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Ticket: e.ticket, Urgent: e.urgent}, decision.Answer{}
		if e.lease.ID != 0 {
			op = decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: e.lease}
		}
		of.l.ApplyWithin(&of.s, &of.leases, within, &op, e.at, &a)
		switch {
		case op.Kind == decision.Settle:
			continue
		case a.Delay == 0:
			last, most = e.at-begin, max(most, e.hops)
			e.at, e.lease = e.at+takes, a.Lease
		case e.ticket.Slot > e.at && a.Ticket != e.ticket:
			t.Fatalf("a message comes %d ms too early and gets %+v, want %+v", e.ticket.Slot-e.at, a.Ticket, e.ticket)
		default:
			e.hops++
			if e.at += a.Delay; e.hops%2 == 1 && a.Delay > q.early {
				e.at -= q.early
			}
			if !q.lost {
				e.ticket = a.Ticket
			}
			if e.hops > 1000 {
				t.Fatalf("a message was postponed %d times", e.hops)
			}
		}
		i, _ := slices.BinarySearchFunc(events, e.at+1, func(e event, at int64) int { return cmp.Compare(e.at, at) })
		events = slices.Insert(events, i, e)
	}
	return last, most
}

// A message that is back keeps its place in the entity's line: what delays it for seconds does not put it behind the
// messages of the next hours.
func TestSharedKeepsPlace(t *testing.T) {
	window := func(n, interval int64) decision.Limits {
		return decision.Limits{Windows: []decision.Window{{Size: n, Rate: n, Interval: interval}}}
	}
	const hour = 3_600_000
	alone := window(1000, 1000)
	alone.Tokens = 1
	for name, q := range map[string]queue{
		"another shared limit": {own: window(1000, 1000), shared: []decision.Limits{window(48, hour), window(2, 2500)}},
		"a token":              {own: alone, shared: []decision.Limits{window(48, hour)}},
		"the shared limit":     {own: window(48, hour), shared: []decision.Limits{window(1, 1000)}},
	} {
		q.entities, q.messages = 1, 200
		if last, _ := q.run(t); last > 5*hour {
			t.Errorf("%s: 200 messages at 48 an hour take %d hours, want at most 5", name, last/hour)
		}
	}
}

// Entities wait for a slow limit as for a fast one: they count although they ask only once in hours.
func TestSharedSlow(t *testing.T) {
	for _, interval := range []int64{1000, 60_000, 3_600_000, 86_400_000} {
		fast := decision.Limits{Windows: []decision.Window{{Size: 1000, Rate: 1000, Interval: 1000}}}
		slow := decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: interval}}}
		q := queue{own: fast, shared: []decision.Limits{slow}, entities: 50, messages: 800}
		if _, most := q.run(t); most > 8 {
			t.Errorf("one each %d ms: a message was postponed %d times, want at most 8", interval, most)
		}
	}
}

// The order of the windows decides nothing.
func TestSharedOrderOfWindows(t *testing.T) {
	second, minute := decision.Window{Size: 10, Rate: 10, Interval: 1000}, decision.Window{Size: 540, Rate: 540, Interval: 60_000}
	play := func(own, shared []decision.Window) (last, most int64) {
		q := queue{own: decision.Limits{Windows: own}, shared: []decision.Limits{{Windows: shared}}, entities: 20, messages: 2000}
		return q.run(t)
	}
	unlimited := []decision.Window{{Size: 1000, Rate: 1000, Interval: 1000}}
	last, most := play(unlimited, []decision.Window{second, minute})
	if l, m := play(unlimited, []decision.Window{minute, second}); l != last || m != most {
		t.Errorf("a shared limit with the minute first: %d ms and %d postponements, want %d and %d", l, m, last, most)
	}
	all := []decision.Window{{Size: 100, Rate: 100, Interval: 1000}}
	last, most = play([]decision.Window{second, minute}, all)
	if l, m := play([]decision.Window{minute, second}, all); l != last || m != most {
		t.Errorf("entities with the minute first: %d ms and %d postponements, want %d and %d", l, m, last, most)
	}
}

// A message that its entity's window denies has the next slot there, whatever the shared limit says.
func TestSharedDeniedByOwnWindow(t *testing.T) {
	for _, interval := range []int64{2000, 5000, 8333} {
		own := decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: interval}}}
		all := decision.Limits{Windows: []decision.Window{{Size: 50, Rate: 5, Interval: 1000}}}
		q := queue{own: own, shared: []decision.Limits{all}, entities: 50, messages: 2000}
		if _, most := q.run(t); most > 10 {
			t.Errorf("one each %d ms: a message was postponed %d times, want at most 10", interval, most)
		}
	}
}

// Messages that wait for the next day come back at the rate of the faster limit.
func TestSharedDays(t *testing.T) {
	own := decision.Limits{Windows: []decision.Window{{Size: 1000, Rate: 1000, Interval: 1000}}}
	day := decision.Limits{Windows: []decision.Window{{Size: 600, Rate: 600, Interval: 86_400_000}}}
	for _, interval := range []int64{100, 1000} {
		fast := decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: interval}}}
		for _, shared := range [][]decision.Limits{{day, fast}, {fast, day}} {
			q := queue{own: own, shared: shared, entities: 1, messages: 1500}
			if last, most := q.run(t); most > 5 || last > 3*86_400_000 {
				t.Errorf("one each %d ms: a message was postponed %d times, and the last one ran after %d ms", interval, most, last)
			}
		}
	}
}

// While a shared limit is closed, messages have slots one after the other from its opening on.
func TestSharedPaused(t *testing.T) {
	own, all := newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(10, 10))
	all.do(100, decision.Op{Kind: decision.Pause, For: 300_000})
	count := map[int64]int{}
	for range 500 {
		count[own.within(all, 100, one).Delay/1000]++
	}
	for second, n := range count {
		if n > 22 { // twice the gain at most: others may still come
			t.Errorf("%d of 500 messages come back in second %d, at 10 a second", n, second)
		}
	}
}

// A shared limit of a minute is closed for two seconds. As far as this minute has room, newcomers run when it opens, not in
// the next minute.
func TestSharedClosedInAMinute(t *testing.T) {
	own, all := newEntity(t, perSecond(1000, 1000)), newEntity(t, decision.Window{Size: 60, Rate: 60, Interval: 60_000})
	all.do(10_000, decision.Op{Kind: decision.Throttle, For: 2000})
	soon := 0
	for range 100 {
		if a := own.within(all, 10_000, one); a.Delay == 2000 {
			soon++
		} else if a.Delay < 50_000 {
			t.Errorf("a newcomer waits %d, want 2000 or until the next minute", a.Delay)
		}
	}
	if soon != 60 {
		t.Errorf("%d newcomers come when it opens, want 60", soon)
	}
}

// Tickets that come back in a pause of a shared limit run in the capacity that the pause has left, before those that are due later.
func TestSharedDueInAPause(t *testing.T) {
	const minute = int64(60_000)
	inAMinute := decision.Window{Size: 60, Rate: 60, Interval: minute}
	for name, c := range map[string]struct {
		windows   []decision.Window
		own, last int64 // of an entity in a second, and by when all have run
	}{
		"a minute":              {[]decision.Window{inAMinute}, 1000, 120_000},
		"a minute, and few own": {[]decision.Window{inAMinute}, 2, 130_000},
		"a second and a minute": {[]decision.Window{perSecond(2, 2), inAMinute}, 1000, 149_000},
		"the same, and few own": {[]decision.Window{perSecond(2, 2), inAMinute}, 2, 149_000},
		"a second":              {[]decision.Window{perSecond(2, 2)}, 1000, 109_000},
	} {
		for firstCome := range int64(2) {
			all, first := newEntity(t, c.windows...), minute-begin%minute
			all.l.FirstCome = firstCome
			var owns []*entity
			for range 6 {
				owns = append(owns, newEntity(t, perSecond(c.own, c.own)))
			}
			type message struct {
				of     int
				ticket decision.Ticket
			}
			due, ran, last := map[int64][]message{}, 0, int64(0)
			for i := range 180 {
				due[0] = append(due[0], message{of: i % len(owns)})
			}
			for now := int64(0); now <= 10*minute; now++ {
				if now == 50_000 {
					all.do(first+now, decision.Op{Kind: decision.Pause, For: 20_000})
				}
				for _, m := range due[now] {
					op := one
					op.Ticket = m.ticket
					if a := owns[m.of].within(all, first+now, op); a.Delay > 0 {
						due[now+a.Delay] = append(due[now+a.Delay], message{m.of, a.Ticket})
					} else {
						ran++
						last = now
					}
				}
			}
			if ran < 180 || last > c.last {
				t.Errorf("%s, first come %d: %d of 180 ran, the last after %d ms; want all after %d", name, firstCome, ran, last, c.last)
			}
		}
	}
}

// An entity's fair share begins anew when the grains become longer.
func TestSharedLongerGrains(t *testing.T) {
	own, all := newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(10, 10))
	for _, interval := range []int64{1000, 5000} {
		all.change(decision.Window{Size: 10, Rate: 10, Interval: interval})
		for range 30 {
			own.within(all, 100, one)
		}
		head := all.s.Calendars[0].Head
		for name, fair := range map[string]int64{"Fair": own.s.Flows[0].Fair, "Last": own.s.Flows[0].Last} {
			if grain := fair >> 19; grain > head+100 {
				t.Errorf("intervals of %d ms: %s is grain %d, now is %d", interval, name, grain, head)
			}
		}
	}
}

// A backlog behind the calendar counts from now on when the grains become longer.
func TestSharedLongerGrainsBehindCalendar(t *testing.T) {
	const backlog = 1200
	own, all := newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(1, 1))
	all.l.FirstCome = 1
	for _, interval := range []int64{1000, 5000} {
		all.change(decision.Window{Size: 1, Rate: 1, Interval: interval})
		var a decision.Answer
		for range backlog {
			a = own.within(all, 100, one)
		}
		if a.Delay > 2*backlog*interval {
			t.Errorf("intervals of %d ms: the last of %d messages waits %d ms", interval, backlog, a.Delay)
		}
	}
}

// Urgent messages that wait for a shared limit do not stop the entity's others in its own windows.
func TestSharedUrgentWaits(t *testing.T) {
	own := decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 100}}}
	fast := decision.Limits{Windows: []decision.Window{{Size: 5, Rate: 5, Interval: 1000}}}
	slow := decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 60_000}}}
	q := queue{own: own, shared: []decision.Limits{slow, fast}, entities: 1, messages: 100, urgent: 10}
	if _, most := q.run(t); most > 3 {
		t.Errorf("a message was postponed %d times, want at most 3", most)
	}
	ten := decision.Limits{Windows: []decision.Window{perSecond(10, 10)}}
	q = queue{own: ten, shared: []decision.Limits{ten, fast}, entities: 1, messages: 200, urgent: 4, closed: 3_600_000}
	if _, most := q.run(t); most > 2 {
		t.Errorf("a limit is closed to the urgent messages for an hour: a message was postponed %d times, want at most twice", most)
	}
}

// A message that comes back before its slot keeps it, unless there is room already.
func TestSharedTooEarly(t *testing.T) {
	own, all := decision.Limits{Windows: []decision.Window{perSecond(1000, 1000)}}, decision.Limits{Windows: []decision.Window{perSecond(10, 10)}}
	for _, early := range []int64{1, 300, 1500, 30_000} {
		q := queue{own: own, shared: []decision.Limits{all}, entities: 5, messages: 500, early: early}
		if last, _ := q.run(t); last > 51_000 {
			t.Errorf("%d ms too early: the last message ran after %d ms, want at most 51,000", early, last)
		}
	}
}

// Without tickets the messages of many entities use a shared limit that has a long window, too.
func TestSharedTicketsLost(t *testing.T) {
	fast := decision.Limits{Windows: []decision.Window{{Size: 1000, Rate: 1000, Interval: 1000}}}
	slow := decision.Limits{Windows: []decision.Window{{Size: 2, Rate: 2, Interval: 1000}, {Size: 3600, Rate: 3600, Interval: 3_600_000}}}
	q := queue{own: fast, shared: []decision.Limits{slow}, entities: 50, messages: 50, lost: true}
	if last, most := q.run(t); last > 60_000 {
		t.Errorf("50 messages at 2 a second take %d ms, want at most a minute; one was postponed %d times", last, most)
	}
}

// A large operation that its own limit delays holds up no other entity, as long as the shared limit has room for both.
func TestSharedLargeElsewhere(t *testing.T) {
	gathers := decision.Window{Size: 1000, Rate: 2, Interval: 1000}
	for name, windows := range map[string][]decision.Window{
		"calls":                {gathers},
		"a unit of a day":      {gathers, {Size: 1000, Rate: 1000, Interval: 86_400_000, Unit: 1}},
		"a scarce unit":        {gathers, {Size: 10, Rate: 10, Interval: 1000, Unit: 1}},
		"a unit without limit": {{Size: decision.MostUnits, Rate: decision.MostUnits, Interval: 1000, Unit: 1}, gathers},
	} {
		all := newEntity(t, windows...)
		all.l.FirstCome = 1
		for _, e := range []struct {
			own    decision.Window
			cost   decision.Cost
			delays []int64
		}{
			{decision.Window{Size: 10, Rate: 10, Interval: 20_000}, decision.Cost{10}, []int64{0, 20_000}},
			{decision.Window{Size: 3, Rate: 3, Interval: 2000}, decision.Cost{1, 2}, []int64{0, 0, 0, 2000}},
		} {
			own := newEntity(t, e.own)
			for i, want := range e.delays {
				if a := own.within(all, 0, decision.Op{Kind: decision.Admit, Cost: e.cost}); a.Delay != want || a.Limit != 0 {
					t.Errorf("%s: operation %d of cost %v is delayed by %d because of limit %d, want %d", name, i, e.cost, a.Delay, a.Limit, want)
				}
			}
		}
	}
}

// A ticket outlives the state of an entity that has been idle. Its slot in a shared limit stays its own.
func TestSharedTicketOfForgotten(t *testing.T) {
	for _, kind := range []decision.Kind{decision.Admit, decision.Cancel} {
		all := newEntity(t, decision.Window{Size: 3, Rate: 3, Interval: 3_600_000})
		busy, forgotten, other := newEntity(t, perSecond(1, 1)), newEntity(t, perSecond(1, 1)), newEntity(t, perSecond(1, 1))
		var tickets []decision.Ticket
		for range 3 {
			tickets = append(tickets, busy.within(all, 0, one).Ticket)
		}
		for _, ticket := range tickets[1:] { // the others run, or are given up
			if a := forgotten.within(all, 600_000, decision.Op{Kind: kind, Cost: one.Cost, Ticket: ticket}); a.Delay > 1000 {
				t.Errorf("kind %d: the message of %+v is delayed by %d ms for %d", kind, ticket, a.Delay, a.Bound)
			}
		}
		if kind == decision.Admit {
			continue
		}
		if booked := all.l.Booked(&all.s); booked != 0 {
			t.Errorf("after Cancel %d calls are booked", booked)
		}
		if a := other.within(all, 700_000, one); a.Delay != 0 {
			t.Errorf("after Cancel another entity is delayed by %d ms for %d", a.Delay, a.Bound)
		}
	}
}

// A ticket that comes before its slot takes no token that operations wait for: else an entity with tickets of late slots goes before all.
func TestSharedEarlyToken(t *testing.T) {
	all, first, second := newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(1000, 1000)), newEntity(t, perSecond(1000, 1000))
	all.l.Tokens = 1
	lease := first.within(all, 0, one).Lease
	waits := one
	waits.Ticket = first.within(all, 1, one).Ticket
	waits.Ticket = first.within(all, waits.Ticket.Slot-begin, waits).Ticket // the token is still out
	now := waits.Ticket.Slot - begin
	first.within(all, now-1, decision.Op{Kind: decision.Settle, Lease: lease, Cost: one.Cost})
	early := one
	early.Ticket = decision.Ticket{Slot: begin + now + 60_000, Number: 1, Cost: one.Cost}
	if a := second.within(all, now-1, early); a.Delay != 60_001 || a.Bound != decision.BoundTokens {
		t.Errorf("a ticket that is early is delayed by %d ms for %d, want to its slot because of tokens", a.Delay, a.Bound)
	}
	if a := first.within(all, now, waits); a.Delay != 0 {
		t.Errorf("the operation that waits for the token is delayed by %d ms for %d", a.Delay, a.Bound)
	}
}

// Behind the calendar of a limit that is FIFO nobody waits for another entity's own limit.
func TestSharedFirstComeBehindCalendar(t *testing.T) {
	all := newEntity(t, perSecond(20, 20))
	all.l.FirstCome = 1
	long, short := newEntity(t, decision.Window{Size: 1, Rate: 1, Interval: 60_000}), newEntity(t, decision.Window{Size: 1, Rate: 1, Interval: 60_000})
	for range 100 {
		long.within(all, 0, one)
	}
	for i := range int64(30) {
		if a := short.within(all, 0, one); a.Delay > i*60_000 || a.Limit != 0 {
			t.Errorf("message %d waits %d ms because of limit %d, want at most %d because of its own", i, a.Delay, a.Limit, i*60_000)
		}
	}
}

// Without tickets an entity uses its own limit when the shared limit holds up its messages for seconds: they take what the lost bookings leave.
func TestSharedTicketsLostForAMoment(t *testing.T) {
	for _, c := range []struct {
		size, interval, shared int64 // of the entity, and of the shared limit in a second
		messages               int
		most                   int64
	}{
		{60, 60_000, 2, 300, 340_000}, {3, 10_000, 1, 60, 210_000}, {3, 5000, 2, 90, 160_000},
	} {
		own := decision.Limits{Windows: []decision.Window{{Size: c.size, Rate: c.size, Interval: c.interval}}}
		q := queue{own: own, shared: []decision.Limits{{Windows: []decision.Window{perSecond(c.shared, c.shared)}}}, entities: 1, messages: c.messages, lost: true}
		if last, _ := q.run(t); last > c.most {
			t.Errorf("%d in %d ms and %d a second: %d messages take %d ms, want at most %d", c.size, c.interval, c.shared, c.messages, last, c.most)
		}
	}
}

// A newcomer does not ask again while a limit is closed, also if tickets that wait for tokens have booked the rest of the day, here or in
// another limit.
func TestSharedClosedForNewcomers(t *testing.T) {
	for _, own := range []bool{false, true} {
		shop, app := newEntity(t, perSecond(100, 100)), newEntity(t, perSecond(100, 100))
		short := app
		if own {
			short = shop
		}
		short.change(decision.Window{Size: 5, Rate: 5, Interval: 86_400_000})
		short.l.Tokens = 2
		for range 5 {
			shop.within(app, 0, one)
		}
		app.do(5000, decision.Op{Kind: decision.Pause, For: 3_600_000})
		if a := shop.within(app, 5001, one); a.Delay < 3_599_999 {
			t.Errorf("the day is the entity's: %v; a newcomer of a limit that is closed for an hour gets %+v", own, a)
		}
	}
}
