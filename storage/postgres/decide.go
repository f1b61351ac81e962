package postgres

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
)

// decide decides the calls of a batch. A remembered row takes one statement, and all statements take one round trip. All
// other rows are locked, which takes two round trips more: rows that this process does not remember, rows that others have
// changed, and the rows of calls within shared limits.
func (s *Storage) decide(waiting []*batch.Turn, answered func([]*batch.Turn)) {
	ctx, cancel := s.limited(context.Background())
	defer cancel()
	var remembered []*row
	var others []*batch.Turn
	now, known := s.clock.Now()
	for _, t := range waiting {
		if r := s.row(t.Calls[0].Key); known && s.remember(r, t, now) {
			remembered = append(remembered, r)
		} else {
			others = append(others, t)
		}
	}
	done, changed := s.swap(ctx, remembered, now)
	answered(done)
	s.lock(ctx, s.calls(append(others, changed...)), answered)
}

// remember decides the calls of a turn on the row as this process knows it. It returns false if it needs to read more, or the
// server's time: a Throttle and its span begin then, and now may be a little earlier.
func (s *Storage) remember(r *row, t *batch.Turn, now int64) bool {
	locks := func(c *batch.Call) bool { return len(c.Within) > 0 || c.Op.For > 0 && c.Op.Now == decision.OwnClock }
	if r.known == nil || r.known.contested || slices.ContainsFunc(t.Calls, locks) {
		return false
	}
	r.turn, r.read = t, *r.known
	r.begin(nil, now)
	for _, c := range t.Calls {
		(&call{Call: c, rows: []*row{r}}).decide(now)
	}
	s.finish(r, now)
	return r.err == nil && !r.anew && !r.leases.unknown && !r.leases.purge
}

// swap stores the decisions about remembered rows, except of rows that others have changed: the calls of these turns
// have no answer yet.
func (s *Storage) swap(ctx context.Context, rows []*row, now int64) (done, changed []*batch.Turn) {
	if len(rows) == 0 {
		return nil, nil
	}
	slices.SortFunc(rows, byName)
	statements := make([]statement, len(rows))
	for i, r := range rows {
		until := int64(decision.Never)
		for _, c := range r.turn.Calls {
			until = min(until, c.Limits.Holds(&r.state, &c.Op, now))
		}
		args := []any{r.key, time.UnixMilli(now), time.UnixMicro(until*1000 - 1), r.known.revision}
		if statements[i] = (statement{s.sql.check, args, []any{&r.stored}, r}); r.changed {
			statements[i] = r.swap(s.sql, args)
		}
	}
	err := s.onConn(ctx, func(conn *pgxpool.Conn) error { return send(ctx, conn, statements...) })
	slow := slices.ContainsFunc(rows, isSlow)
	for _, r := range rows {
		switch {
		case err != nil && !answered(err, momentary...) && slow == r.slow:
			s.memory.Put(r.name, nil)
			for _, c := range r.turn.Calls {
				fail(c, s.failure(ctx, err))
			}
			done = append(done, r.turn)
		case err == nil && r.stored > 0: // after an error nothing is stored: the statements are one transaction
			s.clock.Heard(r.stored, false)
			s.memory.Put(r.name, r.next)
			done = append(done, r.turn)
		default:
			changed = append(changed, r.turn)
		}
	}
	return done, changed
}

// lock decides calls about locked rows. If a call needs leases deleted first, lock decides it in the next round, with the later
// calls about the same rows. If a timeout of the server ends the transaction because of one row, the calls about other rows
// have the next round.
//
// All processes lock rows in the order of their names, so that they do not wait for each other in a circle. One way is left:
// two processes make the same row, and one of them has locked the row that the other wants next. The server ends that (40P01).
func (s *Storage) lock(ctx context.Context, calls []*call, answered func([]*batch.Turn)) {
	for turns := turnsOf(calls); len(calls) > 0; turns = turnsOf(calls) {
		rows := rowsOf(calls)
		err := s.purge(ctx, rows)
		if err == nil {
			err = s.retry(ctx, func() error {
				return s.onConn(ctx, func(conn *pgxpool.Conn) error { return s.decideLocked(ctx, conn, rows, calls) })
			})
		}
		for _, r := range rows {
			r.known = nil
			if err == nil && r.err == nil && r.next.revision != 0 {
				r.known = r.next
			}
			s.memory.Put(r.name, r.known)
		}
		slow := slices.ContainsFunc(rows, isSlow)
		calls = slices.DeleteFunc(calls, func(c *call) bool {
			failed := err != nil && (!slow || slices.ContainsFunc(c.rows, isSlow))
			if failed {
				fail(c.Call, err)
			}
			return failed || err == nil && !c.left
		})
		left := turnsOf(calls)
		answered(slices.DeleteFunc(turns, func(t *batch.Turn) bool { return slices.Contains(left, t) }))
	}
}

// decideLocked is a transaction of lock.
func (s *Storage) decideLocked(ctx context.Context, conn *pgxpool.Conn, rows []*row, calls []*call) error {
	var clock int64
	reading := []statement{{sql: beginSQL}}
	for _, r := range rows {
		r.read, r.ends, r.stop, r.ended, r.after = record{}, nil, len(calls), none, purged{} // it may be another try or round
		reading = append(reading, statement{s.sql.lock, []any{r.key}, r.read.fields(), r})
	}
	limit := fmt.Sprint(min(max(1, s.timeout.Milliseconds()/2), math.MaxInt32))
	reading = append(reading, statement{sql: lockedSQL, args: []any{limit}, to: []any{&clock, &limit}})
	for _, r := range rows {
		if r.purged > none { // leases that have ended since that purge must not make another one necessary
			reading = append(reading, s.purgeStatement(r, r.purged))
		}
		if len(r.named) > 0 {
			reading = append(reading, statement{s.sql.named, []any{r.key, r.named}, []any{&r.ends}, r})
		}
	}
	if err := send(ctx, conn, reading...); err != nil {
		return err
	}
	s.clock.Heard(clock, true)
	now := clock / 1000
	for _, r := range rows {
		r.applyPurge()
	}
	for stuck := true; stuck; {
		for _, r := range rows {
			r.begin(pairs(r.ends), now)
		}
		stuck = decideAll(calls, now)
	}
	var storing []statement
	for _, r := range rows {
		s.finish(r, now)
		if r.stored = clock; r.changed {
			r.stored = 0
			storing = append(storing, r.store(s.sql)...)
		}
	}
	if err := send(ctx, conn, append(storing, statement{sql: commitSQL})...); err != nil {
		return err
	}
	for _, c := range calls {
		for _, r := range c.rows {
			if r.stored == 0 {
				r.err = errors.New("postgres: somebody else has changed the leases of an entity, but not its row")
			}
			if r.err != nil && !c.left {
				err := r.err
				if r != c.rows[0] { // the caller knows the entity
					err = fmt.Errorf("%q: %w", r.name, err)
				}
				fail(c.Call, err)
			}
		}
	}
	return nil
}

// decideAll decides the calls, except calls about a row from its stop on. It returns true if a row got a stop meanwhile:
// then the caller must begin the rows again.
func decideAll(calls []*call, now int64) (stuck bool) {
	for i := 0; i < len(calls) && !stuck; i++ {
		c := calls[i]
		if c.left = slices.ContainsFunc(c.rows, func(r *row) bool { return i >= r.stop }); c.left {
			continue
		}
		c.decide(now)
		for _, r := range c.rows {
			if r.leases.purge {
				r.stop, r.ended, r.own, stuck = i, r.leases.ended, c.Op.Now == decision.OwnClock, true
			}
		}
	}
	return stuck
}
