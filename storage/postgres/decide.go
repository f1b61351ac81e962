package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/storage"
)

// turn is the calls of one entity in a batch.
type turn struct {
	*batch.Turn
	row    []byte        // the key of the row
	long   []byte        // the entity, if the key is not the whole of it
	calls  []*batch.Call // those that have no answer yet
	known  *record       // the row as this process knew it last; nil if it is not remembered
	next   *outcome      // what becomes of it
	stored int64         // the server's time when next was stored, in microseconds; 0 if it was not
	err    error
}

// outcome is a record after some calls.
type outcome struct {
	record
	leases  leases
	changed bool
	decided int // so many of the calls have their answers
}

// decide decides the calls of a batch. An entity that is remembered takes one statement, and all statements one round trip.
// The rows of the other entities, and of those that turn out to have changed, are locked: two round trips more.
//
// All who lock several rows do it in the order of their keys, so that they do not wait for each other in a circle. One way
// is left: two who make the same row, of whom one has locked the row that the other wants next. The server ends that (40P01).
func (s *Storage) decide(waiting []*batch.Turn, answered func([]*batch.Turn)) {
	ctx, cancel := s.limited(context.Background())
	defer cancel()
	slices.SortFunc(waiting, func(a, b *batch.Turn) int { return cmp.Compare(a.Key, b.Key) })
	var turns, joint, remembered []*turn
	for _, w := range waiting {
		t := &turn{Turn: w}
		t.row, t.long = rowKey(w.Key)
		turns = append(turns, t)
		within := &turn{Turn: w}
		for _, c := range w.Calls { // who waits at the same time has no order
			if len(c.Within) > 0 {
				within.calls = append(within.calls, c)
			} else {
				t.calls = append(t.calls, c)
			}
		}
		if len(within.calls) > 0 {
			joint = append(joint, within)
		}
	}
	s.decideJoint(ctx, joint)
	now, known := s.clock.now()
	for _, t := range turns {
		t.known = s.memory.get(t.Key)
		if len(t.calls) == 0 {
			continue
		}
		if known && t.known != nil && !t.known.contested {
			t.next, t.err = s.apply(t.known, nil, t.calls, now)
		}
		if t.next != nil && t.next.decided == len(t.calls) {
			remembered = append(remembered, t)
		}
	}
	s.swap(ctx, remembered, now)
	for {
		var done []*batch.Turn
		turns = slices.DeleteFunc(turns, func(t *turn) bool {
			if len(t.calls) == 0 {
				done = append(done, t.Turn)
			}
			return len(t.calls) == 0
		})
		answered(done)
		if len(turns) == 0 {
			return
		}
		s.lock(ctx, turns)
	}
}

// swap stores what was decided on remembered rows. If a row has changed, nothing is done to it.
func (s *Storage) swap(ctx context.Context, turns []*turn, now int64) {
	if len(turns) == 0 {
		return
	}
	statements := make([]statement, len(turns))
	for i, t := range turns {
		from, until := t.holds(now)
		args := []any{t.row, from, until, t.known.revision}
		if statements[i] = (statement{s.sql.check, args, []any{&t.stored}}); t.next.changed {
			statements[i] = t.swap(s.sql, args)
		}
	}
	err := s.onConn(ctx, func(conn *pgxpool.Conn) error { return send(ctx, conn, statements...) })
	for _, t := range turns {
		switch {
		case again(err): // the statements were one transaction
		case err != nil:
			s.fail(t, s.failure(ctx, err))
		case t.stored > 0:
			s.clock.heard(t.stored, false)
			s.memory.put(t.Key, &t.next.record)
			t.calls = nil
		}
	}
}

// holds is from when until when a decision of the time now may be stored. Later an operation would be counted in an interval
// that is over. It is a second at most, so that whatever else depends on the time is no older.
func (t *turn) holds(now int64) (from, until time.Time) {
	end := now + 1000
	for _, c := range t.calls {
		if c.Op.Now != decision.OwnClock || c.Op.Kind == decision.ReturnToken {
			continue
		}
		for _, w := range c.Limits.Windows {
			end = min(end, now-now%w.Interval+w.Interval)
		}
	}
	return time.UnixMilli(now), time.UnixMicro(end*1000 - 1)
}

// The times between which a decision about a locked row may be stored.
var always = [2]time.Time{time.Unix(0, 0), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}

// lock locks the rows, decides and stores. Some calls of a turn may be left.
func (s *Storage) lock(ctx context.Context, turns []*turn) {
	err := s.purge(ctx, turns)
	if err == nil {
		err = s.retry(ctx, func() error {
			return s.onConn(ctx, func(conn *pgxpool.Conn) error { return s.decideLocked(ctx, conn, turns) })
		})
	}
	for _, t := range turns {
		if err := cmp.Or(err, t.err); err != nil {
			s.fail(t, err)
			continue
		}
		t.known, t.calls = &t.next.record, t.calls[t.next.decided:]
		s.memory.put(t.Key, t.known)
	}
}

// decideLocked is a transaction of lock. It sets next, or err, of all turns.
func (s *Storage) decideLocked(ctx context.Context, conn *pgxpool.Conn, turns []*turn) error {
	rows, named := make([]record, len(turns)), make([][]int64, len(turns))
	var clock int64
	reading := []statement{{sql: beginSQL}}
	for i, t := range turns {
		reading = append(reading, statement{s.sql.lock, []any{t.row}, rows[i].fields()})
		if ids := t.named(); len(ids) > 0 {
			reading = append(reading, statement{s.sql.named, []any{t.row, ids}, []any{&named[i]}})
		}
	}
	limit := fmt.Sprint(max(1, s.timeout.Milliseconds()/2))
	if err := send(ctx, conn, append(reading, statement{lockedSQL, []any{limit}, []any{&clock, &limit}})...); err != nil {
		return err
	}
	s.clock.heard(clock, true)
	var storing []statement
	for i, t := range turns {
		r, read := &rows[i], map[int64]int64{}
		for n := named[i]; len(n) > 0; n = n[2:] {
			read[n[0]] = n[1]
		}
		if t.next, t.err = s.apply(r, read, t.calls, clock/1000); t.err != nil {
			continue
		}
		t.next.contested = t.known != nil && t.known.revision != r.revision
		if t.stored = clock; t.next.changed {
			t.stored = 0
			storing = append(storing, t.store(s.sql, r.revision))
		}
	}
	err := send(ctx, conn, append(storing, statement{sql: commitSQL})...)
	for _, t := range turns {
		if err == nil && t.err == nil && t.stored == 0 {
			t.err = errors.New("postgres: somebody else has changed the leases of an entity, but not its row")
		}
	}
	return err
}

// named are the leases that the calls name.
func (t *turn) named() (ids []int64) {
	for _, c := range t.calls {
		if c.Op.Lease.ID > 0 {
			ids = append(ids, c.Op.Lease.ID)
		}
	}
	return ids
}

// store is the statement that stores next in a row that is locked, or makes the row.
func (t *turn) store(sql *sql, revision int64) statement {
	if revision != 0 {
		return t.swap(sql, []any{t.row, always[0], always[1], revision})
	}
	return statement{sql.create, append(t.next.values(t.row, t.long), t.next.leases.arrays()[3:]...), []any{&t.stored}}
}

// swap is the statement that stores next. args are the key, the times between which it may be stored, and the revision that
// the row has then.
func (t *turn) swap(sql *sql, args []any) statement {
	swap := statement{sql.swap, t.next.values(args...), []any{&t.stored}}
	if len(t.next.leases.changes) > 0 {
		swap.sql, swap.args = sql.swapLeases, append(swap.args, t.next.leases.arrays()...)
	}
	return swap
}

// apply decides calls on the record r by the server's time now, and sets their answers. read has the leases that they name;
// nil means that these were not read. It stops before a call whose answer needs other leases.
func (s *Storage) apply(r *record, read map[int64]int64, calls []*batch.Call, now int64) (*outcome, error) {
	o := &outcome{record: *r, leases: leases{out: r.out, first: r.firstEnd, soon: decision.Never, last: r.lastEnd, read: read}}
	l, data := &o.leases, r.data
	if r.revision == 0 {
		l.first = decision.Never
	} else if now >= r.expires {
		data = nil
		l.Clear()
	}
	var state decision.State
	inline, err := storage.Decode(data, &state)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotState, err)
	}
	for _, h := range inline { // Set stored them; now they become rows
		if h.End > none {
			l.Hold(h.ID, h.End)
		}
	}
	ran := false
	for i, c := range calls {
		c.Answer, c.Err = decision.Answer{}, nil // it may be another try
		at := c.Op.Now
		if at == decision.OwnClock {
			at = now
		}
		c.Limits.Apply(&state, l, &c.Op, at, &c.Answer)
		if i > 0 && (l.unknown || l.purge) {
			return s.apply(r, read, calls[:i], now)
		} else if l.unknown || l.purge {
			return o, nil
		}
		if c.Op.Kind != decision.ReturnToken {
			o.callersClock = c.Op.Now != decision.OwnClock
		}
		ran = ran || c.Op.Kind == decision.GetDelay && c.Answer.Delay == 0
	}
	o.decided, o.data = len(calls), storage.Encode(&state, nil)
	o.changed = !bytes.Equal(o.data, data) || len(l.changes) > 0 ||
		len(o.data) > 0 && o.callersClock != r.callersClock
	if !o.changed {
		o.record = *r
		return o, nil
	}
	o.revision = newRevision()
	o.out, o.firstEnd, o.lastEnd = l.out, min(l.first, l.soon), l.last
	s.expire(o, &state, &calls[len(calls)-1].Limits, ran, now)
	return o, nil
}
