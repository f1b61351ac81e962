package page

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/internal/panics"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/storage"
)

// index has the values by which the list is sorted. It reads them while somebody looks at the page, and a little
// longer.
//
// Reading takes a hundredth of the time. The index measures how long the storage takes to answer, which is more than
// the storage is busy, and rests 99 times as long. Only the first reading, or the first after a pause that was long
// enough for it, goes on faster.
type index struct {
	lister storage.Lister
	judge  *entities.Judge
	ctx    context.Context // ends with close
	cancel func()
	wg     sync.WaitGroup
	first  chan struct{} // closed when everything was read once

	mu       sync.Mutex
	rows     map[string]*row // which do not change
	version  int             // counts the changes of rows
	pass     int
	running  bool
	closed   bool
	asked    time.Time // when somebody looked last
	ended    time.Time // of the last pass; zero: there was none
	rested   time.Time // the end of the rest for the reads so far
	err      error     // of the last pass
	sortings map[string]*sorting
}

const (
	share   = 99              // times the cost it rests
	burst   = 1               // the same in the first pass
	least   = 2 * time.Second // between two passes
	kept    = time.Minute     // after the last look
	atATime = 5 * time.Millisecond
)

// row has the values by which an entity is sorted. Times are milliseconds since 1970, 0 for none.
type row struct {
	name                     string
	inUse, booked            int
	waiting, closed, decided int64
	pinned                   int64 // until when, 1<<62 if only unpin ends it
	pass                     int
}

func newIndex(l storage.Lister, j *entities.Judge) *index {
	x := &index{lister: l, judge: j, first: make(chan struct{}), rows: map[string]*row{}, sortings: map[string]*sorting{}}
	x.ctx, x.cancel = context.WithCancel(context.Background())
	return x
}

func (x *index) close() {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.cancel()
	x.wg.Wait()
}

// look starts reading in the background, and waits a little if nothing was read yet.
func (x *index) look(ctx context.Context) {
	x.mu.Lock()
	x.asked = time.Now()
	if !x.running && !x.closed {
		x.running = true
		x.wg.Go(x.run)
	}
	x.mu.Unlock()
	select {
	case <-x.first:
	case <-ctx.Done():
	case <-time.After(150 * time.Millisecond):
	}
}

// run reads until nobody looks any more.
func (x *index) run() {
	for x.wanted() {
		x.mu.Lock()
		rest := time.Until(x.rested)
		x.mu.Unlock()
		if rest > 0 {
			if !sleep.For(x.ctx, min(rest, least)) {
				return
			}
			continue
		}
		x.read()
	}
}

func (x *index) wanted() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.running = time.Since(x.asked) < kept && x.ctx.Err() == nil
	return x.running
}

func (x *index) read() {
	x.mu.Lock()
	x.pass++
	pass, factor := x.pass, time.Duration(share)
	if x.ended.IsZero() || time.Since(x.ended) > kept {
		factor = burst
	}
	x.mu.Unlock()
	var cost, due time.Duration // due: for which it has not rested
	back := time.Now()
	each := func(e storage.Entry) error {
		took := time.Since(back)
		cost, due = cost+took, due+took
		r, err := x.judge.Report(x.ctx, e)
		if err != nil {
			return err
		}
		x.note(r, pass)
		if due > atATime {
			if !sleep.For(x.ctx, factor*due) {
				return x.ctx.Err()
			}
			due = 0
		}
		back = time.Now()
		return nil
	}
	err := panics.Caught(func() error { return x.lister.List(x.ctx, each) })
	cost += time.Since(back)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err, x.rested = err, time.Now().Add(least)
	if factor == burst {
		x.rested = x.rested.Add((share - burst) * cost)
	}
	if err != nil {
		return
	}
	for name, r := range x.rows {
		if r.pass < pass {
			delete(x.rows, name)
			x.version++
		}
	}
	if x.ended.IsZero() {
		close(x.first)
	}
	x.ended = time.Now()
}

// note keeps the values of an entity that was read. pass is the pass that has read it, 0 outside of a pass.
func (x *index) note(r *entities.Report, pass int) {
	ms := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixMilli()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	pass = cmp.Or(pass, x.pass)
	if !r.Known {
		if _, ok := x.rows[r.Entity]; ok {
			delete(x.rows, r.Entity)
			x.version++
		}
		return
	}
	booked, pinned := 0, int64(0)
	if r.Pin != nil {
		if pinned = ms(r.PinnedUntil); pinned == 0 {
			pinned = 1 << 62
		}
	}
	if r.Limits {
		booked = r.Booked
	}
	x.rows[r.Entity] = &row{r.Entity, r.InUse, booked, ms(r.Waiting), ms(r.ClosedUntil), ms(r.Decided), pinned, pass}
	x.version++
}

// totals are about everything the index knows. Of shared limits there is only the number.
type totals struct {
	Entities, Shared, InUse, Waiting, Closed, Pinned int
	Complete                                         bool // everything was read once
	Ended                                            time.Time
	Err                                              error // of the last reading
}

// sorting is all rows in one order.
type sorting struct {
	version int
	at      time.Time
	took    time.Duration
	again   bool // it is being made anew
	rows    []*row
	totals  totals
}

// orders are the orders of the list. All of them end with the name, so that equal rows keep their places.
var orders = map[string]func(a, b *row) int{
	"backlog": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.booked, a.booked), cmp.Compare(b.waiting, a.waiting), cmp.Compare(a.name, b.name))
	},
	"eta": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.waiting, a.waiting), cmp.Compare(b.booked, a.booked), cmp.Compare(a.name, b.name))
	},
	"use": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.inUse, a.inUse), cmp.Compare(b.decided, a.decided), cmp.Compare(a.name, b.name))
	},
	"closed": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.closed, a.closed), cmp.Compare(a.name, b.name))
	},
	"pinned": func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.pinned, a.pinned), cmp.Compare(a.name, b.name))
	},
	"name": func(a, b *row) int { return cmp.Compare(a.name, b.name) },
}

// page returns the names that contain query, in an order, at from to from+n. of is how many names contain it.
func (x *index) page(by, query string, from, n int) (names []string, of int, t totals) {
	s := x.sorted(by)
	if query == "" {
		of = len(s.rows)
		from = min(from, of)
		for _, r := range s.rows[from:min(from+n, of)] {
			names = append(names, r.name)
		}
		return names, of, s.totals
	}
	for _, r := range s.rows {
		if strings.Contains(r.name, query) {
			if of >= from && of < from+n {
				names = append(names, r.name)
			}
			of++
		}
	}
	return names, of, s.totals
}

// sorted returns the rows in an order. If it takes long to sort them, the order may be some seconds old.
func (x *index) sorted(by string) sorting {
	x.mu.Lock()
	s := x.sortings[by]
	switch {
	case s == nil, s.version != x.version && s.took < 2*time.Millisecond:
		x.mu.Unlock()
		s = x.sort(by)
		x.mu.Lock()
	case s.version != x.version && !s.again && time.Since(s.at) > 50*s.took && !x.closed:
		s.again = true
		x.wg.Go(func() { x.sort(by) })
	}
	defer x.mu.Unlock()
	with := *s
	with.totals.Complete, with.totals.Ended, with.totals.Err = !x.ended.IsZero(), x.ended, x.err
	return with
}

// sort sorts the rows, and keeps and returns the outcome.
func (x *index) sort(by string) *sorting {
	begin := time.Now()
	x.mu.Lock()
	s := &sorting{version: x.version, rows: make([]*row, 0, len(x.rows))}
	for _, r := range x.rows {
		s.rows = append(s.rows, r)
	}
	x.mu.Unlock()
	now := begin.UnixMilli()
	for i, r := range s.rows {
		if r.waiting > 0 && r.waiting <= now || r.closed > 0 && r.closed <= now || r.pinned > 0 && r.pinned <= now { // which has passed since it was read
			current := *r
			if current.waiting <= now {
				current.waiting, current.booked = 0, 0
			}
			if current.closed <= now {
				current.closed = 0
			}
			if current.pinned <= now {
				current.pinned = 0
			}
			r = &current
			s.rows[i] = r
		}
		if _, shared := entities.SharedLimit(r.name); shared {
			s.totals.Shared++
			continue
		}
		s.totals.Entities++
		s.totals.InUse += r.inUse
		if r.waiting > 0 {
			s.totals.Waiting++
		}
		if r.closed > 0 {
			s.totals.Closed++
		}
		if r.pinned > 0 {
			s.totals.Pinned++
		}
	}
	slices.SortFunc(s.rows, orders[by])
	s.at = time.Now()
	s.took = s.at.Sub(begin)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sortings[by] = s
	return s
}

// count counts the entities in the index: n whose names begin with prefix, of all. It leaves out shared limits. complete
// reports whether everything was read once.
func (x *index) count(prefix string) (n, of int, complete bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name := range x.rows {
		if _, shared := entities.SharedLimit(name); shared {
			continue
		}
		of++
		if strings.HasPrefix(name, prefix) {
			n++
		}
	}
	return n, of, !x.ended.IsZero()
}
