package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/storage"
)

// The statements. The time is the server's, and not that of now(), which stands still in a transaction. It comes as
// seconds in a float64, which has the microseconds: that is several times quicker than numeric.
const (
	seconds = "date_part('epoch', clock_timestamp())"

	// numbers is those of storage.State.Numbers, as one column.
	numbers = "array[ops_last, ops_capacity, wait_last, wait_capacity, in_use, until] || booking"

	readSQL = "select clock, coalesce(revision, 0), case when revision is not null then " + numbers + " end, " +
		"coalesce(expires, 0), coalesce(callers_clock, false) " +
		"from (select " + seconds + " as clock) c left join drip.entity on key = $1"

	// What was decided on a state that is known here holds if the row still has that revision, and if the server's clock
	// is between the time it was decided at and the end of the interval.
	inTime = "clock_timestamp() between $2 and $3"
	// When it had to wait for a row that comes free as it was, PostgreSQL does not look again whether that is so: the
	// statement fails if it is late, by dividing by zero (22012).
	stillInTime = seconds + " / (clock_timestamp() <= $3)::int"

	checkSQL = "select " + seconds + " from drip.entity where key = $1 and " + inTime + " and revision = $4"
	swapSQL  = "update drip.entity set revision = $4, expires = $5, callers_clock = $6, ops_last = $7, ops_capacity = $8, " +
		"wait_last = $9, wait_capacity = $10, in_use = $11, until = $12, booking = $13 " +
		"where key = $1 and " + inTime + " and revision = $14 returning " + stillInTime
	// A run changes no more than this, and neither does a token that comes back.
	swapRunsSQL = "update drip.entity set revision = $4, expires = $5, ops_last = $6, ops_capacity = $7, in_use = $8, until = $9 " +
		"where key = $1 and " + inTime + " and revision = $10 returning " + stillInTime
	createSQL = "insert into drip.entity (key, revision, expires, callers_clock, " + columns + ", entity) " +
		"select $1, $4::bigint, $5::bigint, $6::boolean, $7::bigint, $8::bigint, $9::bigint, $10::bigint, $11::bigint, " +
		"$12::bigint, $13::bigint[], $14::bytea where " + inTime +
		" on conflict (key) do nothing returning " + stillInTime
	columns = "ops_last, ops_capacity, wait_last, wait_capacity, in_use, until, booking"

	// Else the row is locked until the decision is stored.
	beginSQL = "begin isolation level read committed"
	limitSQL = "set local idle_in_transaction_session_timeout = " // for a process that stops in the middle
	lockSQL  = "select revision, " + numbers + ", expires, callers_clock from drip.entity where key = $1 for no key update"
	clockSQL = "select " + seconds
	storeSQL = "update drip.entity set revision = $2, expires = $3, callers_clock = $4, ops_last = $5, ops_capacity = $6, " +
		"wait_last = $7, wait_capacity = $8, in_use = $9, until = $10, booking = $11 where key = $1"
	storeNewSQL = "insert into drip.entity (key, revision, expires, callers_clock, " + columns + ", entity) " +
		"values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
)

// longest is a time that is never reached, in milliseconds. Sums and differences of two are none too large.
const longest = math.MaxInt64 / 4

// record is what the row of an entity holds. One that is remembered does not change.
type record struct {
	state        storage.State
	revision     int64 // 0: there is no row
	expires      int64
	callersClock bool

	way  way // to decide the next time
	calm int // how often in a row nobody else has changed it between two decisions of classic
}

// way is how to decide.
type way uint8

const (
	alone   way = iota // nobody else has changed the row since it was known here: it is what is remembered
	unknown            // whatever the row holds, if the classic rules are enough
	shared             // others change it, too: read it first
	hot                // they do so all the time: lock it first
)

// decide decides about the turns of a batch.
//
// The calculator is this process: the database only keeps what it is told, if it is told on the grounds of what it has. A
// port of all the calculator into the database was three times slower than one update, and a second thing to keep true.
//
// An entity that was last changed here needs one statement, in one round trip with the others. So does one that others
// change as well, as long as the classic rules decide and there is one call. Else it is read first, which is another
// round trip. If somebody else comes in between, its row is locked, read, decided about and stored, in two round trips; and
// so it goes on until nobody else has changed it.
func (s *Storage) decide(batch []*turn, answered func([]*turn)) {
	ctx := s.deadlines.context()
	var ways [hot + 1][]*turn
	now, known := s.clock.now()
	divide := func(t *turn, w way) {
		if w != alone && known && s.classic(t, now) {
			w = unknown
		}
		ways[w] = append(ways[w], t)
	}
	for _, t := range batch {
		w := shared
		if t.known = s.memory.get(t.key); t.known != nil {
			t.remembered = t.known.revision
			w = t.known.way
		}
		if w == alone && !known {
			w = shared
		}
		divide(t, w)
	}
	// try decides at a time, and tells for which turns that does not hold.
	try := func(by func(*deadline, []*turn, int64) (done, stale []*turn), turns []*turn, now int64) []*turn {
		if len(turns) == 0 {
			return nil
		}
		inOrder(turns)
		done, stale := by(ctx, turns, now)
		answered(done)
		return stale
	}
	stale := try(s.swap, ways[alone], now)
	if len(stale) > 0 {
		now, known = s.clock.now()
	}
	for _, t := range stale {
		divide(t, shared)
	}
	ways[shared] = append(ways[shared], try(s.decideClassic, ways[unknown], now)...)
	if turns := ways[shared]; len(turns) > 0 {
		turns, failed, now := s.read(ctx, turns)
		answered(failed)
		ways[hot] = append(ways[hot], try(s.swap, turns, now)...)
	}
	if turns := ways[hot]; len(turns) > 0 {
		inOrder(turns)
		lock := func(conn *pgxpool.Conn) error { return s.lock(ctx, conn, turns) }
		if err := s.retry(ctx, func() error { return s.inTransaction(ctx, lock) }); err != nil {
			for _, t := range turns {
				t.fail(err)
			}
		}
		answered(turns)
	}
}

// inOrder sorts turns. All who lock several rows do it in this order, so that they do not wait for each other in a circle.
// One is left: two who make the same row, of whom one has locked what the other wants next. The server ends it (40P01).
func inOrder(turns []*turn) {
	slices.SortFunc(turns, func(a, b *turn) int { return cmp.Compare(a.key, b.key) })
}

// read reads the rows, and the time in milliseconds.
func (s *Storage) read(ctx *deadline, turns []*turn) (known, failed []*turn, now int64) {
	var clock float64
	err := s.retry(ctx, func() error {
		var reading []statement
		for _, t := range turns {
			reading = append(reading, statement{s.sql.read, []any{rowKey(t.key)}, func(row pgx.Row) error {
				var state []int64
				t.known = new(record)
				err := row.Scan(&clock, &t.known.revision, &state, &t.known.expires, &t.known.callersClock)
				t.broken = !t.known.decode(state)
				return err
			}})
		}
		return s.send(ctx, reading...)
	})
	for _, t := range turns {
		switch {
		case err != nil:
			t.fail(err)
			failed = append(failed, t)
		case t.broken:
			t.fail(ErrNotState)
			failed = append(failed, t)
		default:
			known = append(known, t)
		}
	}
	micros := toMicros(clock)
	if err == nil {
		s.clock.heard(micros, true)
	}
	return known, failed, floor(micros, 1000)
}

// decode reads the state of a row, if there is one. It is false if that is none.
func (r *record) decode(state []int64) bool {
	if r.revision == 0 {
		return true
	}
	var err error
	r.state, err = storage.StateOf(state)
	return err == nil
}

// columns appends what the row is to hold.
func (r *record) columns(args []any) []any {
	return appendState(append(args, r.revision, r.expires, r.callersClock), &r.state)
}

// onlyRan tells whether r differs from what was before in no more than what a run changes.
func (r *record) onlyRan(before *record) bool {
	a, b := &r.state, &before.state
	return a.Wait == b.Wait && a.Booking == nil && b.Booking == nil && r.callersClock == before.callersClock
}

// runs appends what a run changes.
func (r *record) runs(args []any) []any {
	s := &r.state
	return append(args, r.revision, r.expires, s.Ops.Last, s.Ops.Capacity, s.InUse, s.Until)
}

// appendState appends the columns of a state.
func appendState(args []any, s *storage.State) []any {
	var booking []int64
	if s.Booking != nil {
		booking = s.Numbers()[6:]
	}
	return append(args, s.Ops.Last, s.Ops.Capacity, s.Wait.Last, s.Wait.Capacity, s.InUse, s.Until, booking)
}

// swap decides on the states that are known. For those that are stale nothing has changed.
func (s *Storage) swap(ctx *deadline, turns []*turn, now int64) (done, stale []*turn) {
	swapping := make([]statement, 0, len(turns))
	for _, t := range turns {
		n, changed := s.apply(t.known, t.calls, now)
		t.next, t.stored = n, 0
		if !changed && n.revision == 0 {
			t.stored = float64(now) / 1000 // there is no row, and need not be one
			continue
		}
		from, until := t.holds(now)
		args := append(make([]any, 0, 14), rowKey(t.key), from, until)
		var sql text
		switch {
		case !changed:
			sql, args = s.sql.check, append(args, n.revision)
		case t.known.revision == 0:
			sql, args = s.sql.create, append(n.columns(args), longName(t.key))
		case n.onlyRan(t.known):
			sql, args = s.sql.swapRuns, append(n.runs(args), t.known.revision)
		default:
			sql, args = s.sql.swap, append(n.columns(args), t.known.revision)
		}
		swapping = append(swapping, statement{sql, args, func(row pgx.Row) error {
			if err := row.Scan(&t.stored); !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			return nil
		}})
	}
	err := s.send(ctx, swapping...)
	switch {
	case again(err): // others were quicker, and the statements were one transaction
		return nil, turns
	case err != nil:
		s.failed(turns, err)
		return turns, nil
	}
	for _, t := range turns {
		if t.stored == 0 {
			stale = append(stale, t)
			continue
		}
		if t.remembered != 0 && t.remembered != t.known.revision {
			t.next.way = shared
		}
		s.clock.heard(toMicros(t.stored), false)
		s.remember(t, t.next)
		done = append(done, t)
	}
	return done, stale
}

// failed is for turns of which it is not known whether they are stored.
func (s *Storage) failed(turns []*turn, err error) {
	err = s.failure(err)
	for _, t := range turns {
		s.memory.forget(t.key)
		t.fail(err)
	}
}

// remember keeps what the row of an entity is known to hold.
func (s *Storage) remember(t *turn, r *record) {
	if r == nil || r.revision == 0 {
		s.memory.forget(t.key)
	} else {
		s.memory.put(t.key, r)
	}
}

// holds is from when until when a decision at now may be made: later an operation would be counted in an interval that is
// over. It is a second at most, so that what else depends on the time is no older.
func (t *turn) holds(now int64) (from, until time.Time) {
	return time.UnixMilli(now), time.UnixMicro(t.end(now)*1000 - 1)
}

// end is when an interval ends, or a second is over.
func (t *turn) end(now int64) int64 {
	until := now + 1000
	end := func(w *storage.Window) {
		if left := w.RefreshInterval - (now - floor(now, w.RefreshInterval)*w.RefreshInterval); left < until-now {
			until = now + left
		}
	}
	for _, c := range t.calls {
		if c.op.Now != storage.OwnClock || !c.op.Kind.Timed() {
			continue
		}
		end(&c.limits.Window)
		for i := range c.limits.Windows {
			end(&c.limits.Windows[i])
		}
	}
	return until
}

// inTransaction does f, which begins a transaction and commits it. If it fails there is none left.
func (s *Storage) inTransaction(ctx context.Context, f func(*pgxpool.Conn) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if err = f(conn); err != nil {
		_, _ = conn.Exec(ctx, "rollback") // if it fails, the pool closes the connection
	}
	return err
}

// lock locks the rows, decides and stores.
func (s *Storage) lock(ctx context.Context, conn *pgxpool.Conn, turns []*turn) error {
	rows := make([]record, len(turns))
	states := make([][]int64, len(turns))
	var clock float64
	locking := []statement{command(beginSQL), command(limitSQL + fmt.Sprint(max(1, s.timeout.Milliseconds()/2)))}
	for i, t := range turns {
		r := &rows[i]
		locking = append(locking, statement{s.sql.lock, []any{rowKey(t.key)}, func(row pgx.Row) error {
			err := row.Scan(&r.revision, &states[i], &r.expires, &r.callersClock)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		}})
	}
	locking = append(locking, statement{text{sql: clockSQL}, nil, func(row pgx.Row) error { return row.Scan(&clock) }})
	err := sendBatch(ctx, conn, locking)
	if err != nil {
		return err
	}
	now := toMicros(clock)
	s.clock.heard(now, true)
	var storing []statement
	for i, t := range turns {
		r := &rows[i]
		t.next = nil
		if !r.decode(states[i]) {
			t.fail(ErrNotState)
			continue
		}
		n, changed := s.apply(r, t.calls, floor(now, 1000))
		if t.remembered != 0 && t.remembered != r.revision {
			n.way = hot
		}
		t.next = n
		switch {
		case changed && r.revision == 0:
			storing = append(storing, statement{text: s.sql.storeNew, args: append(n.columns([]any{rowKey(t.key)}), longName(t.key))})
		case changed:
			storing = append(storing, statement{text: s.sql.store, args: n.columns([]any{rowKey(t.key)})})
		}
	}
	err = sendBatch(ctx, conn, append(storing, command("commit")))
	for _, t := range turns {
		if err != nil {
			t.next = nil
		}
		s.remember(t, t.next)
	}
	return err
}

// apply does the operations on what r holds and sets their answers. It tells what the row is to hold then, and whether
// that is anything else.
func (s *Storage) apply(r *record, calls []*call, now int64) (next *record, changed bool) {
	next = &record{state: r.state.Clone(), revision: r.revision, expires: r.expires, callersClock: r.callersClock}
	stored := r.revision != 0 && now < r.expires
	known, clock := stored, r.state.Ops.Last
	for _, c := range calls {
		c.answer, c.err = storage.Answer{}, nil // it may be another try
		if !known {
			if c.op.Kind.OnKnown() {
				continue
			}
			known, next.state, next.callersClock = true, c.limits.New(), false
		}
		at := c.op.Now
		if at == storage.OwnClock {
			at = now
		}
		if c.op.Kind.Timed() {
			next.callersClock, clock = c.op.Now != storage.OwnClock, at
		}
		c.limits.Apply(&next.state, &c.op, at, &c.answer)
	}
	if !known || stored && next.callersClock == r.callersClock && next.state.Equal(r.state) {
		return next, false
	}
	next.revision = newRevision()
	next.expires = within(s.idle(&next.state, &calls[len(calls)-1].limits))
	if next.callersClock { // about which the server's clock says nothing
		next.expires = now + max(s.maxHold, next.expires-within(clock))
	}
	return next, true
}

// newRevision is one that no key has had before.
func newRevision() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// idle is when an entity is as good as new. The holders of plain tokens that are out count as dead MaxHold after the last
// run; as far as the bucket goes it is idle then if it would be with all of them given back.
func (s *Storage) idle(st *storage.State, l *storage.Limits) int64 {
	if st.InUse == 0 {
		return st.Until
	}
	free := st.Clone()
	free.InUse = 1
	l.Apply(&free, &storage.Op{Kind: storage.ReturnToken}, free.Ops.Last, new(storage.Answer))
	return max(free.Until, within(max(st.Ops.Last, l.Start))+s.maxHold)
}

// within makes a time one that can be calculated with.
func within(ms int64) int64 { return min(max(ms, -longest), longest) }

// fail sets the error of all calls.
func (t *turn) fail(err error) {
	for _, c := range t.calls {
		c.err = err
	}
}

// floor is a / b, rounded down.
func floor(a, b int64) int64 {
	if a%b < 0 {
		return a/b - 1
	}
	return a / b
}
