package postgres

import (
	"context"
	"math"

	"github.com/drip-go/drip/decision"
)

// none as the end of a lease means that there is no lease.
const none = -1 << 53

// change is the change of one lease: it ended at was and ends at ends. Either may be none.
type change struct{ was, ends int64 }

// leases are the known leases of an entity during the decisions of its calls. It implements [decision.Leases]. The cost
// of a decision does not depend on the number of leases: the row of the entity has their number and a time before which
// none ends, and the calls name the leases that they release.
type leases struct {
	out     int64            // the number of leases
	first   int64            // no lease that has a row ends earlier
	soon    int64            // no lease that has changed ends earlier
	last    int64            // no lease ends later
	read    map[int64]int64  // the ends of the leases that the calls name; nil if they were not read
	changes map[int64]change // by ID; not nil

	unknown bool // the answer would need rows that were not read
	purge   bool // the answer would need the rows deleted that have ended by the time ended
	ended   int64
}

// Out implements [decision.Leases].
func (l *leases) Out(now int64) int64 {
	if now >= l.soon {
		l.soon = decision.Never
		for id, c := range l.changes {
			if c.ends > now {
				l.soon = min(l.soon, c.ends)
			} else if c.ends != none {
				l.remove(id, c)
			}
		}
	}
	if now >= l.first {
		l.drop(now)
	}
	return l.out
}

// Hold implements [decision.Leases].
func (l *leases) Hold(id, end int64) {
	c, changed := l.changes[id]
	if !changed {
		c.was = none
	}
	l.changes[id] = change{c.was, end}
	l.out++
	l.soon, l.last = min(l.soon, end), max(l.last, end)
}

func (l *leases) remove(id int64, c change) {
	if c.was == none {
		delete(l.changes, id) // it never had a row
	} else {
		l.changes[id] = change{c.was, none}
	}
	if l.out--; l.out == 0 {
		l.first, l.soon, l.last = decision.Never, decision.Never, 0
	}
}

// Release implements [decision.Leases]. If the lease was not read, Release expects it to be there with the end that its
// holder knows; the statement checks that.
func (l *leases) Release(id, end, now int64) bool {
	c := change{none, none}
	if changed, ok := l.changes[id]; ok {
		c = changed
	} else if till, ok := l.read[id]; ok {
		c = change{till, till}
	} else if l.read == nil && l.out > 0 && id > 0 {
		l.unknown = l.unknown || end <= now // it may have been renewed
		c = change{end, end}
	}
	if c.ends == none {
		return false
	}
	l.remove(id, c)
	return c.ends > now
}

// Clear implements [decision.Leases].
func (l *leases) Clear() { l.Out(math.MaxInt64) } // all have ended by then

// drop has the rows deleted of leases that have ended by a time, before the decision.
func (l *leases) drop(ended int64) {
	if l.out > 0 && !l.purge {
		l.purge, l.ended = true, ended
	}
}

// arrays returns the changes as the values of a statement: the leases that must be there, their ends and whether they
// go; and the new leases and their ends.
func (l *leases) arrays() []any {
	known, was, goes, held, ends := []int64{}, []int64{}, []bool{}, []int64{}, []int64{} // nil would be null
	for id, c := range l.changes {
		if c.was != none {
			known, was, goes = append(known, id), append(was, c.was), append(goes, c.ends == none)
		}
		if c.ends != none {
			held, ends = append(held, id), append(ends, c.ends)
		}
	}
	return []any{known, was, goes, held, ends}
}

// purgeAtOnce is the most leases that one transaction deletes, so that it holds the row for a few milliseconds only.
const purgeAtOnce = 1000

// purge deletes the leases that calls need deleted.
func (s *Storage) purge(ctx context.Context, rows []*row) error {
	for _, r := range rows {
		for more := r.ended > none; more; {
			var before record
			if err := s.send(ctx, statement{sql: beginSQL}, statement{s.sql.lock, []any{r.key}, before.fields(), r},
				s.purgeStatement(r, r.ended), statement{sql: commitSQL}); err != nil {
				return err
			}
			r.read.revision = before.revision
			r.applyPurge()
			more = r.after.count == purgeAtOnce
		}
		r.purged, r.ended = r.ended, none
	}
	return nil
}

// purged is the result of a purge: the number of leases that it deleted, and the new columns of the row.
type purged struct{ count, revision, out, firstEnd int64 }

// purgeStatement returns the statement that deletes leases of a locked row: those with an end up to a time, and for calls by
// the server's clock up to now.
func (s *Storage) purgeStatement(r *row, ended int64) statement {
	r.after = purged{}
	to := []any{&r.after.count, &r.after.revision, &r.after.out, &r.after.firstEnd}
	return statement{s.sql.purge, []any{r.key, ended, purgeAtOnce, newRevision(), int64(decision.Never), r.own}, to, r}
}

// applyPurge changes the row as it was read by the last purge.
func (r *row) applyPurge() {
	p := &r.after
	if p.revision == 0 { // there is no row, or was no purge
		return
	}
	if r.known != nil && r.known.revision == r.read.revision {
		r.known = &record{revision: p.revision} // no other process has changed the row
	}
	r.read.revision, r.read.out, r.read.firstEnd = p.revision, p.out, p.firstEnd
}
