package postgres

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/storage"
)

// row is a row during the decisions of calls about it.
type row struct {
	name      string // the entity
	key, long []byte // see rowKey
	turn      *batch.Turn

	known  *record // the row as this process knew it last; nil if it is not remembered
	read   record  // the row as it is
	data   []byte  // the part of read.data that has not expired
	state  decision.State
	leases leases
	limits *decision.Limits // of the last call; nil if there was none
	anew   bool             // an earlier version of drip stored data
	ran    bool             // an operation took a plain token
	shared bool             // a call was about other rows, too

	next    *record // the row after the calls
	changed bool
	stored  int64 // the server's time when next was stored, in microseconds; 0 if it was not
	err     error
	slow    bool // the server ended the transaction because of this row: see tooSlow

	named []int64 // the leases that the calls name
	ends  []int64 // of these, an id and an end for each, if the row is locked

	stop   int    // the first call that needs leases deleted: all that have ended by the time ended
	ended  int64  // none if there is no such call
	own    bool   // that call is by the server's clock
	purged int64  // ended of the round before
	after  purged // what the last purge has changed
}

// call is a call with its rows: the row of its entity and the rows of the shared limits.
type call struct {
	*batch.Call
	turn *batch.Turn
	rows []*row
	left bool // it has no answer yet
}

func isSlow(r *row) bool { return r.slow }

func byName(a, b *row) int { return cmp.Compare(a.name, b.name) }

// row returns the row of an entity, with its remembered record.
func (s *Storage) row(name string) *row {
	r := &row{name: name, known: s.memory.Get(name), ended: none, purged: none}
	r.key, r.long = rowKey(name)
	return r
}

// calls returns the calls of turns with their rows.
func (s *Storage) calls(turns []*batch.Turn) (calls []*call) {
	rows := map[string]*row{}
	find := func(name string) *row {
		if rows[name] == nil {
			rows[name] = s.row(name)
		}
		return rows[name]
	}
	for _, t := range turns {
		for _, c := range t.Calls {
			about := &call{Call: c, turn: t, rows: []*row{find(c.Key)}}
			for i := range c.Within {
				about.rows = append(about.rows, find(c.Within[i].Key))
			}
			for _, r := range about.rows {
				if id := c.Op.Lease.ID; id > 0 {
					r.named = append(r.named, id)
				}
			}
			calls = append(calls, about)
		}
	}
	return calls
}

// turnsOf returns the turns of calls, which are in the order of their turns.
func turnsOf(calls []*call) (turns []*batch.Turn) {
	for _, c := range calls {
		turns = append(turns, c.turn)
	}
	return slices.Compact(turns)
}

// rowsOf returns the rows of calls, in the order of their names.
func rowsOf(calls []*call) (rows []*row) {
	for _, c := range calls {
		rows = append(rows, c.rows...)
	}
	slices.SortFunc(rows, byName)
	return slices.Compact(rows)
}

// pairs returns the ends of leases by their ids, from a list of ids and ends.
func pairs(numbers []int64) map[int64]int64 {
	ends := map[int64]int64{}
	for ; len(numbers) > 0; numbers = numbers[2:] {
		ends[numbers[0]] = numbers[1]
	}
	return ends
}

// begin reads the row. ends has the ends of the leases that the calls name; nil says that this process has not read them.
func (r *row) begin(ends map[int64]int64, now int64) {
	next := r.read
	r.next, r.data, r.state, r.limits, r.ran, r.shared, r.err = &next, r.read.data, decision.State{}, nil, false, false, nil
	r.leases = leases{out: next.out, first: next.firstEnd, soon: decision.Never, last: next.lastEnd, read: ends, changes: map[int64]change{}}
	if next.revision == 0 {
		r.leases.first = decision.Never
	} else if now >= next.expires {
		r.data = nil
		r.leases.drop(next.lastEnd) // all have ended; a lease that another process gives meanwhile stays
	}
	inline, err := storage.Decode(r.data, &r.state)
	if err != nil {
		r.err = notState(err)
	}
	if r.anew = err == nil && len(r.data) > 0 && r.state.Tokens == 0 && len(inline) == 0; r.anew {
		r.leases = leases{first: decision.Never, soon: decision.Never, read: map[int64]int64{}, changes: map[int64]change{}}
	}
	for _, h := range inline { // Set stored them; now they become rows
		if h.End > none {
			r.leases.Hold(h.ID, h.End)
		}
	}
}

// decide decides a call by the server's time now. It does nothing if a row holds no state.
func (c *call) decide(now int64) {
	c.Answer, c.Err = decision.Answer{}, nil // it may be another try
	if slices.ContainsFunc(c.rows, func(r *row) bool { return r.err != nil }) {
		return
	}
	at, own := c.Op.Now, c.rows[0]
	if at == decision.OwnClock {
		at = now
	}
	own.limits = &c.Limits
	shared := make([]decision.Shared, len(c.Within))
	for i := range c.Within {
		w, r := &c.Within[i], c.rows[i+1]
		r.limits = w.Limits
		shared[i] = w.In(&r.state, &r.leases)
	}
	c.Limits.ApplyWithin(&own.state, &own.leases, shared, &c.Op, at, &c.Answer)
	for _, r := range c.rows {
		if c.Op.Kind != decision.ReturnToken {
			r.next.callersClock = c.Op.Now != decision.OwnClock
		}
		r.ran = r.ran || c.Op.Kind == decision.GetDelay && c.Answer.Delay == 0
		r.shared = r.shared || len(c.Within) > 0
	}
}

// near is how far a caller's time may be from the server's clock to be by that clock, in milliseconds.
const near = 60_000

// finish sets next and changed.
func (s *Storage) finish(r *row, now int64) {
	next, l := r.next, &r.leases
	decided := r.limits != nil && r.err == nil && (!r.anew || r.state.Tokens != 0) // else it is still not known
	if decided {
		next.data = storage.Encode(&r.state, nil)
	}
	r.changed = decided && (!bytes.Equal(next.data, r.data) || len(l.changes) > 0 || len(next.data) > 0 && next.callersClock != r.read.callersClock)
	if !r.changed {
		*next = r.read
		return
	}
	next.contested = r.shared || r.known != nil && r.known.revision != r.read.revision
	next.revision = newRevision()
	next.out, next.firstEnd, next.lastEnd = l.out, min(l.first, l.soon), l.last

	returned := r.state // as if the plain tokens were back
	returned.Plain = 0
	next.decidedAt, next.until = r.state.Now, max(r.limits.Until(&r.state), l.last)
	keep := max(r.limits.Until(&returned), l.last) - r.state.Now
	far := next.callersClock && max(r.state.Now-now, now-r.state.Now) > near // the server's clock says nothing about that time
	if far || r.state.Plain > 0 && r.ran {
		keep = max(keep, s.maxHold)
	}
	if next.expires = now + keep; r.state.Plain > 0 && !r.ran {
		next.expires = max(next.expires, r.read.expires)
	}
}

// store returns the statements that store next in a locked row, or make the row.
func (r *row) store(sql *sql) []statement {
	if r.read.revision != 0 {
		swap := r.swap(sql, []any{r.key, "-infinity", "infinity", r.read.revision})
		if r.anew {
			return []statement{{sql: sql.clear, args: []any{r.key}, row: r}, swap}
		}
		return []statement{swap}
	}
	return []statement{{sql.create, append(r.next.values(r.key, r.long), r.leases.arrays()[3:]...), []any{&r.stored}, r}}
}

// swap returns the statement that stores next. args are the key, the times between which it may be stored, and the
// revision that the row must have.
func (r *row) swap(sql *sql, args []any) statement {
	swap := statement{sql.swap, r.next.values(args...), []any{&r.stored}, r}
	if len(r.leases.changes) > 0 {
		swap.sql, swap.args = sql.swapLeases, append(swap.args, r.leases.arrays()...)
	}
	return swap
}
