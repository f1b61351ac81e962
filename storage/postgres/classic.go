package postgres

import (
	"errors"
	"math"
	"math/bits"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/storage"
)

// What other processes change all the time would have to be read before it is decided about, which is a second round trip.
// But what most calls ask for can be said in one statement, about whatever the row holds by then: the classic rules, for an
// entity with one window and without bookings, when there is a token. The calculator decides on what is remembered, and
// the statement does the same if the row is still such that the calculator would decide so. Otherwise it does nothing, and
// the entity is decided about in the other ways. So these hold nothing that is not in [storage.Limits.Apply]; that they say
// the same is tested with random calls.
const (
	classicSQL = " where e.key = $1 and " + inTime + " and e.expires > $5 and " + plainSQL
	plainSQL   = "not e.callers_clock and e.booking is null"
	classicGot = " returning " + stillInTime + ", e.ops_last, e.ops_capacity, e.wait_last, e.wait_capacity, e.in_use, e.until, e.expires"

	// A token is taken. $6 is the number of the interval, $7 its length, $8 what it brings, $9 the size, $10 the tokens, $11
	// the start, and $12 how long after that or the run the entity is kept.
	runSQL = "update drip.entity e set revision = $4, ops_last = " + lastSQL + ", ops_capacity = " + capacitySQL + " - 1, " +
		"in_use = e.in_use + 1, until = " + never + ", expires = " + keptSQL + classicSQL + " and " + freeSQL + classicGot
	lastSQL     = "greatest($5::bigint, e.ops_last)"
	capacitySQL = "least($9::bigint, e.ops_capacity + greatest(0, $6::bigint - e.ops_last / $7::bigint) * $8::bigint)"
	keptSQL     = "greatest(e.wait_last + $7::bigint, greatest(" + lastSQL + ", $11::bigint) + $12::bigint)"
	freeSQL     = "e.ops_last >= 0 and e.in_use < $10::bigint and " + capacitySQL + " > 0"

	// The same for an entity of which nothing is remembered. If there is no row, or one that has expired, $13 is then when it
	// expires, $14 the last slot, $15 what is left, and $16 the name.
	startSQL = "insert into drip.entity as e (key, revision, expires, callers_clock, entity, " +
		"ops_last, ops_capacity, wait_last, wait_capacity, in_use, until) " +
		"select $1, $4::bigint, $13::bigint, false, $16::bytea, $5::bigint, $15::bigint, $14::bigint, 0, 1, " + never +
		" where " + inTime + " on conflict (key) do update set revision = $4, callers_clock = false, booking = null, " +
		"ops_last = " + ifNew + "$5 else " + lastSQL + " end, ops_capacity = " + ifNew + "$15 else " + capacitySQL + " - 1 end, " +
		"wait_last = " + ifNew + "$14 else e.wait_last end, wait_capacity = " + ifNew + "0 else e.wait_capacity end, " +
		"in_use = " + ifNew + "1 else e.in_use + 1 end, until = " + never + ", expires = " + ifNew + "$13 else " + keptSQL + " end " +
		"where " + inTime + " and (e.expires <= $5 or " + plainSQL + " and " + freeSQL + ")" + classicGot
	ifNew = "case when e.expires <= $5 then "

	// This interval has nothing left: a slot is promised. $6 is when it began and $7 when it ends, $8 its length, $9 what it
	// brings, $10 the tokens, $11 the start, $12 how long it takes to refill, $13 MaxHold.
	postponeSQL = "update drip.entity e set revision = $4, wait_last = " + slotSQL + ", wait_capacity = " +
		"case when e.wait_last < $6::bigint or e.wait_capacity = 0 then $9::bigint else e.wait_capacity end - 1, " +
		"until = case when e.in_use > 0 then " + never + " else " + refilledSQL + " end, " +
		"expires = greatest(" + refilledSQL + ", case when e.in_use > 0 then greatest(e.ops_last, $11::bigint) + $13::bigint end)" +
		classicSQL + " and e.ops_last >= $6 and e.ops_last < $7 and e.ops_capacity = 0 and e.in_use < $10" + classicGot
	slotSQL = "case when e.wait_capacity <> 0 or e.wait_last < $6::bigint then greatest(e.wait_last, $7::bigint) " +
		"else greatest(e.wait_last, $7::bigint) / $8::bigint * $8::bigint + $8::bigint end"
	refilledSQL = "greatest(" + slotSQL + " + $8::bigint, greatest(e.ops_last, $11::bigint) + $12::bigint)"

	// A token comes back. $6 is the length of the interval, $7 the start, $8 how long it takes to refill, $9 MaxHold.
	giveBackSQL = "update drip.entity e set revision = $4, in_use = e.in_use - 1, " +
		"until = case when e.in_use > 1 then " + never + " else " + filledSQL + " end, " +
		"expires = greatest(" + filledSQL + ", case when e.in_use > 1 then greatest(e.ops_last, $7::bigint) + $9::bigint end)" +
		classicSQL + " and e.ops_capacity >= 0 and e.in_use > 0" + classicGot
	filledSQL = "greatest(e.wait_last + $6::bigint, greatest(e.ops_last, $7::bigint) + $8::bigint)"

	never = "9223372036854775807"
)

// largest is what the numbers of limits may come to, so that no sum of two in a statement is too large.
const largest = 1 << 61

// calmed is how often in a row nobody else has to change a row before others are no longer expected to. These statements
// take a little more than those for what is remembered, but one of those that fails is a round trip.
const calmed = 16

// classic finds the statement for a turn that decides as the calculator does on what is remembered. It is false if there
// is none.
func (s *Storage) classic(t *turn, now int64) bool {
	c, r := t.calls[0], t.known
	l := &c.limits
	switch {
	case len(t.calls) > 1 || len(l.Windows) > 0:
		return false
	case c.op.Kind != storage.ReturnToken && (c.op.Kind != storage.GetDelay || c.op.Now != storage.OwnClock):
		return false
	case r != nil && (now >= r.expires || r.callersClock || r.state.Booking != nil):
		return false
	case r == nil && (c.op.Kind == storage.ReturnToken || now < l.Start):
		return false
	case r == nil:
		r = new(record)
	}
	n := now / l.RefreshInterval
	overflow, gained := bits.Mul64(uint64(n), uint64(l.RefreshRate))
	overflow2, full := bits.Mul64(uint64((l.Size-1)/l.RefreshRate+2), uint64(l.RefreshInterval))
	highest := max(gained, full, uint64(max(now, l.Size, l.RefreshRate, l.RefreshInterval, l.Start, -l.Start, s.maxHold)))
	if overflow+overflow2 > 0 || now < 0 || highest > largest {
		return false
	}
	t.next, _ = s.apply(r, t.calls, now)
	t.next.revision = newRevision()
	from, until := t.holds(now)
	args := append(make([]any, 0, 16), rowKey(t.key), from, until, t.next.revision, now)
	interval, refill := l.RefreshInterval, int64(full)
	tokens := l.Concurrency
	if tokens == 0 {
		tokens = l.Size
	}
	switch a := &c.answer; {
	case c.op.Kind == storage.GetDelay && a.Delay == 0:
		t.text, t.args = s.sql.run, append(args, n, interval, l.RefreshRate, l.Size, tokens, l.Start, max(refill, s.maxHold))
		if t.known == nil {
			t.text, t.args = s.sql.start, append(t.args,
				t.next.expires, t.next.state.Wait.Last, t.next.state.Ops.Capacity, longName(t.key))
		}
	case c.op.Kind == storage.GetDelay && a.Bound == storage.BoundWindow && t.known != nil:
		t.text = s.sql.postpone
		t.args = append(args, n*interval, n*interval+interval, interval, l.RefreshRate, tokens, l.Start, refill, s.maxHold)
	case c.op.Kind == storage.ReturnToken && a.Found:
		t.text, t.args = s.sql.giveBack, append(args, interval, l.Start, refill, s.maxHold)
	default:
		return false
	}
	return true
}

// decideClassic has the turns decided by the statements that classic told. For those that are stale nothing has changed.
func (s *Storage) decideClassic(ctx *deadline, turns []*turn, now int64) (done, stale []*turn) {
	deciding := make([]statement, 0, len(turns))
	for _, t := range turns {
		t.stored = 0
		deciding = append(deciding, statement{t.text, t.args, func(row pgx.Row) error {
			n := t.next
			expected, s := n.state, &n.state
			err := row.Scan(&t.stored, &s.Ops.Last, &s.Ops.Capacity, &s.Wait.Last, &s.Wait.Capacity, &s.InUse, &s.Until, &n.expires)
			if *s != expected {
				n.way = shared // somebody else has changed it
			} else if k := t.known; k != nil && k.way != alone && k.calm < calmed {
				n.way, n.calm = shared, k.calm+1
			}
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			return err
		}})
	}
	err := s.sendCommitted(ctx, deciding)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "40001" {
		s.isolated.Store(true)
	}
	switch {
	case again(err), refused != nil && refused.Code == "22003": // numeric_value_out_of_range, of what others have stored
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
		s.clock.heard(toMicros(t.stored), false)
		s.remember(t, t.next)
		if a := &t.calls[0].answer; a.Delay > 0 {
			a.Delay = max(1, t.next.state.Wait.Last-max(now, t.next.state.Ops.Last))
		}
		done = append(done, t)
	}
	return done, stale
}

// sendCommitted sends statements in one round trip that are to wait for others and decide about what these have stored.
// Sessions that begin transactions at a higher isolation level, which refuses that, begin one at read committed.
func (s *Storage) sendCommitted(ctx *deadline, statements []statement) error {
	if !s.isolated.Load() {
		return s.send(ctx, statements...)
	}
	return s.inTransaction(ctx, func(conn *pgxpool.Conn) error {
		statements := append([]statement{command(beginSQL)}, statements...)
		return sendBatch(ctx, conn, append(statements, command("commit")))
	})
}

// toMicros is a time of the server's, which it tells in seconds.
func toMicros(seconds float64) int64 { return int64(math.Round(seconds * 1e6)) }
