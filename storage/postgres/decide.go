package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drip-go/drip/storage"
)

// The statements. The time is the server's in microseconds, and not that of now(), which stands still in a transaction.
const (
	micros = "floor(extract(epoch from clock_timestamp()) * 1000000)::bigint"

	// What was decided on a state that was remembered holds if the state is still that one, and if the time it was
	// decided at is not ahead of the server's, nor a second behind.
	stillThat = "key = $1 and revision = $2 and " + micros + " - $3::bigint * 1000 between 0 and 1000000"
	swapSQL   = "update drip.entity set revision = $4, state = $5, expires = $6, callers_clock = $7 where " + stillThat + " returning " + micros
	checkSQL  = "select " + micros + " from drip.entity where " + stillThat

	// Else the row is locked until the decision is stored. There is one to lock, be it empty.
	beginSQL = "begin isolation level read committed"
	limitSQL = "set local idle_in_transaction_session_timeout = " // for a process that stops in the middle
	emptySQL = "insert into drip.entity (key, revision, state, expires, callers_clock) values ($1, 0, '', 0, false) on conflict (key) do nothing"
	lockSQL  = "select revision, state, expires, callers_clock from drip.entity where key = $1 for no key update"
	clockSQL = "select " + micros
	storeSQL = "update drip.entity set revision = $2, state = $3, expires = $4, callers_clock = $5 where key = $1"
	dropSQL  = "delete from drip.entity where key = $1 and revision = 0"
)

// record is what the row of an entity holds.
type record struct {
	state        storage.State
	revision     int64 // 0: nothing is stored
	expires      int64
	callersClock bool

	shared bool // another process has changed it between the last two decisions of this one
}

// decide decides about the turns of a batch.
//
// The calculator is this process: the database only keeps what it is told, if it is told on the grounds of what it has. A
// port of the calculator into the database was three times slower than one update, and a second thing to keep true.
//
// An entity that was last changed here needs one statement, in one round trip with the others. If somebody else has
// changed it, the row is locked, read, decided about and stored, in two round trips; and so it goes on until nobody
// else has come in between.
func (s *Storage) decide(batch []*turn, answered func([]*turn)) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	// All who lock several rows do it in this order, so that they do not wait for each other in a circle.
	slices.SortFunc(batch, func(a, b *turn) int { return cmp.Compare(a.key, b.key) })
	var mine, others []*turn
	now, known := s.clock.now()
	for _, t := range batch {
		if r := s.memory.get(t.key); known && r != nil && !r.shared {
			mine = append(mine, t)
		} else {
			others = append(others, t)
		}
	}
	if len(mine) > 0 {
		done, stale := s.swap(ctx, mine, now)
		answered(done)
		others = append(others, stale...)
	}
	if len(others) > 0 {
		slices.SortFunc(others, func(a, b *turn) int { return cmp.Compare(a.key, b.key) })
		s.fail(others, s.retry(ctx, func() error { return s.lock(ctx, others) }))
		answered(others)
	}
}

// swap decides on the states that are remembered. For those that are stale nothing has changed.
func (s *Storage) swap(ctx context.Context, turns []*turn, now int64) (done, stale []*turn) {
	next := make([]*record, len(turns))
	swapped := make([]int64, len(turns)) // when, by the server's clock
	asked := s.clock.reading()
	err := s.send(ctx, s.pool, func(b *pgx.Batch) {
		for i, t := range turns {
			r := s.memory.get(t.key)
			var changed bool
			next[i], changed = s.apply(r, t.calls, now)
			var q *pgx.QueuedQuery
			if changed {
				q = b.Queue(s.sql.swap, rowKey(t.key), r.revision, now, next[i].revision, next[i].encoded(), next[i].expires, next[i].callersClock)
			} else {
				q = b.Queue(s.sql.check, rowKey(t.key), r.revision, now)
			}
			q.QueryRow(func(row pgx.Row) error {
				err := row.Scan(&swapped[i])
				if errors.Is(err, pgx.ErrNoRows) {
					return nil
				}
				return err
			})
		}
	})
	switch {
	case again(err): // others were quicker
		return nil, turns
	case err != nil:
		for _, t := range turns {
			s.memory.forget(t.key)
		}
		s.fail(turns, s.failure(err))
		return turns, nil
	}
	for i, t := range turns {
		if swapped[i] == 0 {
			stale = append(stale, t)
			continue
		}
		s.clock.heard(swapped[i], asked)
		s.memory.put(t.key, next[i])
		done = append(done, t)
	}
	return done, stale
}

// lock locks the rows, decides and stores.
func (s *Storage) lock(ctx context.Context, turns []*turn) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // after an error it is still in the transaction, so the pool closes it
	rows := make([]record, len(turns))
	states := make([][]byte, len(turns))
	var now int64
	asked := s.clock.reading()
	err = s.send(ctx, conn, func(b *pgx.Batch) {
		b.Queue(beginSQL)
		b.Queue(limitSQL + fmt.Sprint(s.timeout.Milliseconds()))
		for i, t := range turns {
			b.Queue(s.sql.empty, rowKey(t.key))
			r := &rows[i]
			b.Queue(s.sql.lock, rowKey(t.key)).QueryRow(func(row pgx.Row) error {
				return row.Scan(&r.revision, &states[i], &r.expires, &r.callersClock)
			})
		}
		b.Queue(clockSQL).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	})
	if err != nil {
		return err
	}
	s.clock.heard(now, asked)
	next := make([]*record, len(turns))
	err = s.send(ctx, conn, func(b *pgx.Batch) {
		for i, t := range turns {
			r := &rows[i]
			if r.revision != 0 {
				if err := r.state.UnmarshalBinary(states[i]); err != nil {
					s.fail([]*turn{t}, ErrNotState)
					continue
				}
			}
			n, changed := s.apply(r, t.calls, now/1000)
			switch {
			case changed:
				b.Queue(s.sql.store, rowKey(t.key), n.revision, n.encoded(), n.expires, n.callersClock)
			case r.revision == 0:
				b.Queue(s.sql.drop, rowKey(t.key))
			}
			before := s.memory.get(t.key)
			n.shared = before != nil && before.revision != r.revision
			next[i] = n
		}
		b.Queue("commit")
	})
	for i, t := range turns {
		if err == nil && next[i] != nil && next[i].revision != 0 {
			s.memory.put(t.key, next[i])
		} else {
			s.memory.forget(t.key)
		}
	}
	return err
}

// apply does the operations on what r holds and sets their answers. It tells what the row is to hold then, and whether
// that is anything else.
func (s *Storage) apply(r *record, calls []*call, now int64) (next *record, changed bool) {
	next = &record{state: r.state.Clone(), revision: r.revision, expires: r.expires, callersClock: r.callersClock}
	stored := r.revision != 0 && now < r.expires
	known := stored
	for _, c := range calls {
		c.answer = storage.Answer{} // it may be another try
		if !known {
			if c.op.Kind.OnKnown() {
				continue
			}
			known, next.state, next.callersClock = true, c.limits.New(), false
		}
		if c.op.Kind.Timed() {
			next.callersClock = c.op.Now != storage.OwnClock
		}
		at := c.op.Now
		if at == storage.OwnClock {
			at = now
		}
		c.limits.Apply(&next.state, &c.op, at, &c.answer)
	}
	if !known || stored && next.callersClock == r.callersClock && next.state.Equal(r.state) {
		return next, false
	}
	next.revision = newRevision()
	next.expires = s.expires(next, &calls[len(calls)-1].limits, now)
	return next, true
}

// newRevision is one that no key has had before.
func newRevision() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// expires is when an entity may be forgotten. Tokens whose holders may have died are kept for MaxHold after the last run.
// So is, after each call, a state at times of a caller's, about which the server's clock says nothing.
func (s *Storage) expires(r *record, l *storage.Limits, now int64) int64 {
	const longest = math.MaxInt64 / 4 // so that sums of two are none too large
	refill := int64(longest)
	if intervals := (l.Size-1)/l.RefreshRate + 2; intervals < longest/l.RefreshInterval {
		refill = intervals * l.RefreshInterval
	}
	keep := max(s.maxHold, refill)
	st := &r.state
	switch {
	case r.callersClock && st.InUse == 0 && st.Until < longest && st.Ops.Last > -longest:
		return now + max(keep, min(longest, st.Until-st.Ops.Last))
	case r.callersClock:
		return now + keep
	case st.InUse > 0:
		return min(longest, max(st.Ops.Last, l.Start)) + keep
	}
	return st.Until
}

func (r *record) encoded() []byte {
	b, _ := r.state.MarshalBinary() // it returns no error
	return b
}

// fail sets the error of all calls of some turns, if there is one.
func (s *Storage) fail(turns []*turn, err error) {
	for _, t := range turns {
		for _, c := range t.calls {
			if err != nil {
				c.err = err
			}
		}
	}
}

// memory is what is known of rows. It is bounded, for which it forgets some.
type memory struct {
	mu      sync.Mutex
	records map[string]*record
	most    int
}

func (m *memory) get(key string) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.records[key]
}

func (m *memory) put(key string, r *record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.records[key]; !known && len(m.records) >= m.most {
		for any := range m.records {
			delete(m.records, any)
			break
		}
	}
	m.records[key] = r
}

func (m *memory) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.records, key)
}

// clock is the server's as far as it is known here: what it must have shown at the least. So it is behind by up to a
// round trip, and never ahead unless the server's was set back since it was last heard of.
type clock struct {
	started time.Time // all readings are since then, so setting the clock of this machine changes nothing

	mu     sync.Mutex
	known  bool
	behind int64 // what the server's shows less what this one reads, in microseconds
}

// reading is what the clock of this process reads, in microseconds.
func (c *clock) reading() int64 { return time.Since(c.started).Microseconds() }

// now is in milliseconds.
func (c *clock) now() (ms int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return floor(c.reading()+c.behind, 1000), c.known
}

// heard takes in that the server's clock has shown a time after that reading.
func (c *clock) heard(micros, asked int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	least, most := micros-c.reading()-1, micros-asked+1
	if !c.known || least > c.behind || most < c.behind {
		c.known, c.behind = true, least
	}
}

func floor(a, b int64) int64 {
	if a < 0 {
		return (a+1)/b - 1
	}
	return a / b
}
