package postgres

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/storage"
)

// joint is a row while the calls of several entities are decided about it and others.
type joint struct {
	turn
	read   record
	leases []int64          // those that the calls name: an id and an end for each
	limits *decision.Limits // of the last call
	state  decision.State
	ran    bool
	clocks bool // it was decided by a caller's clock
}

// decideJoint decides the calls that are within shared limits, in one transaction of two round trips.
func (s *Storage) decideJoint(ctx context.Context, turns []*turn) {
	for len(turns) > 0 {
		rows := jointRows(turns)
		err := s.retry(ctx, func() error {
			return s.onConn(ctx, func(conn *pgxpool.Conn) error { return s.tryJoint(ctx, conn, turns, rows) })
		})
		if errors.Is(err, errPurge) {
			if err = s.purge(ctx, purged(rows)); err == nil {
				continue
			}
		}
		for _, row := range rows {
			if err == nil && row.err == nil {
				s.memory.put(row.Key, &row.next.record)
			} else {
				s.memory.put(row.Key, nil)
			}
		}
		for _, t := range turns {
			if err != nil {
				s.fail(t, err)
			}
		}
		return
	}
}

// errPurge says that leases must be deleted that have ended.
var errPurge = errors.New("leases that have ended are in the way")

// jointRows are the rows that the calls are about, in the order of their keys.
func jointRows(turns []*turn) []*joint {
	rows := map[string]*joint{}
	row := func(key string, c *batch.Call) {
		r := rows[key]
		if r == nil {
			r = &joint{turn: turn{Turn: &batch.Turn{Key: key}}}
			r.row, r.long = rowKey(key)
			rows[key] = r
		}
		r.calls = append(r.calls, c)
	}
	for _, t := range turns {
		for _, c := range t.calls {
			row(t.Key, c)
			for _, w := range c.Within {
				row(w.Key, c)
			}
		}
	}
	return slices.SortedFunc(maps.Values(rows), func(a, b *joint) int { return cmp.Compare(a.Key, b.Key) })
}

// purged are the turns of rows whose leases must be deleted first.
func purged(rows []*joint) (turns []*turn) {
	for _, r := range rows {
		if r.err == nil && r.next.leases.purge {
			turns = append(turns, &r.turn)
		}
	}
	return turns
}

// tryJoint is a transaction of decideJoint.
func (s *Storage) tryJoint(ctx context.Context, conn *pgxpool.Conn, turns []*turn, rows []*joint) error {
	var clock int64
	limit := fmt.Sprint(max(1, s.timeout.Milliseconds()/2))
	reading := []statement{{sql: beginSQL}}
	for _, r := range rows {
		r.read, r.leases = record{}, nil
		reading = append(reading, statement{s.sql.lock, []any{r.row}, r.read.fields()})
		if ids := r.turn.named(); len(ids) > 0 {
			reading = append(reading, statement{s.sql.named, []any{r.row, ids}, []any{&r.leases}})
		}
	}
	if err := send(ctx, conn, append(reading, statement{lockedSQL, []any{limit}, []any{&clock, &limit}})...); err != nil {
		return err
	}
	s.clock.heard(clock, true)
	now := clock / 1000
	byKey := map[string]*joint{}
	for _, r := range rows {
		byKey[r.Key] = r
		r.err = r.begin(now)
	}
	for _, t := range turns {
		for _, c := range t.calls {
			decideCall(byKey, t.Key, c, now)
		}
	}
	var storing []statement
	for _, r := range rows {
		if r.err != nil {
			continue
		}
		if r.next.leases.purge || r.next.leases.unknown {
			return errPurge
		}
		s.finish(r, now)
		if r.stored = clock; r.next.changed {
			r.stored = 0
			storing = append(storing, r.store(s.sql, r.read.revision))
		}
	}
	if err := send(ctx, conn, append(storing, statement{sql: commitSQL})...); err != nil {
		return err
	}
	for _, r := range rows {
		if r.err == nil && r.stored == 0 {
			return errors.New("postgres: somebody else has changed the leases of an entity, but not its row")
		}
	}
	return nil
}

// begin reads what the row holds.
func (r *joint) begin(now int64) error {
	read, data := map[int64]int64{}, r.read.data
	for n := r.leases; len(n) > 0; n = n[2:] {
		read[n[0]] = n[1]
	}
	r.next = &outcome{record: r.read, leases: leases{out: r.read.out, first: r.read.firstEnd, soon: decision.Never, last: r.read.lastEnd, read: read}}
	r.ran, r.clocks, r.limits = false, r.read.callersClock, nil
	l := &r.next.leases
	if r.read.revision == 0 {
		l.first = decision.Never
	} else if now >= r.read.expires {
		data = nil
		l.Clear()
	}
	r.state = decision.State{}
	inline, err := storage.Decode(data, &r.state)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotState, err)
	}
	for _, h := range inline { // Set stored them; now they become rows
		if h.End > none {
			l.Hold(h.ID, h.End)
		}
	}
	return nil
}

// decideCall decides one call on the rows.
func decideCall(rows map[string]*joint, key string, c *batch.Call, now int64) {
	c.Answer, c.Err = decision.Answer{}, nil // it may be another try
	at := c.Op.Now
	if at == decision.OwnClock {
		at = now
	}
	own, took := rows[key], c.Op.Kind == decision.GetDelay
	shared := make([]decision.Shared, len(c.Within))
	about := []*joint{own}
	for i := range c.Within {
		about = append(about, rows[c.Within[i].Key])
	}
	for _, r := range about {
		if r.err != nil { // a row that holds no state is no error of the others
			c.Err, c.Again = fmt.Errorf("%q: %w", r.Key, r.err), true
			return
		}
	}
	own.limits = &c.Limits
	for i := range c.Within {
		w, r := &c.Within[i], about[i+1]
		r.limits = w.Limits
		shared[i] = w.In(&r.state, &r.next.leases)
	}
	op := c.Op
	c.Limits.ApplyWithin(&own.state, &own.next.leases, shared, &op, at, &c.Answer)
	for _, r := range about {
		if c.Op.Kind != decision.ReturnToken {
			r.clocks = c.Op.Now != decision.OwnClock
		}
		r.ran = r.ran || took && c.Answer.Delay == 0
	}
}

// finish sets what becomes of a row.
func (s *Storage) finish(r *joint, now int64) {
	o, l := r.next, &r.next.leases
	o.decided, o.data, o.callersClock = len(r.calls), storage.Encode(&r.state, nil), r.clocks
	o.changed = !bytes.Equal(o.data, r.read.data) || len(l.changes) > 0 || len(o.data) > 0 && r.clocks != r.read.callersClock
	if !o.changed {
		o.record = r.read
		return
	}
	o.revision = newRevision()
	o.out, o.firstEnd, o.lastEnd = l.out, min(l.first, l.soon), l.last
	o.contested = true // others are about it, too, as a rule
	s.expire(o, &r.state, r.limits, r.ran, now)
}
