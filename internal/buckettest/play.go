package buckettest

import (
	"cmp"
	"container/heap"
	"context"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/oktest"
)

// Call is an operation of a Load. Times are milliseconds since 1970.
type Call struct {
	At        int64 // when it asks, or ends
	Entity    string
	Request   drip.Request // with the ticket of the last postponement
	Real      int          // what it costs in the end, in calls; 0: as in its Request
	Plain     bool         // it asks GetDelay, which knows no more than its entity, and returns the token
	Forgetful bool         // it loses its tickets
	Leaves    bool         // it does not come back when it is postponed

	Came, Ran     int64 // when it asked for the first time, and when it ran; 0 until then
	Postponements int

	lease       drip.Lease
	rank, order int // of the calls of one instant; rank is 1 if it runs and will end
}

// Load is what Play plays.
type Load struct {
	Options drip.Options // their Clock is Play's
	Calls   []*Call
	End     int64 // defaults to the end of all calls

	// Runs returns the end of a call that runs now. Defaults to now.
	Runs func(c *Call, now int64) (ends int64)

	// Answer gets each answer. Defaults to nil.
	Answer func(c *Call, a drip.Admission, now int64)

	// Settles returns the real costs of a call that ends now. Defaults to the costs of its Request.
	Settles func(c *Call, now int64) drip.Costs

	// Late returns how late a postponed call asks. Defaults to 0.
	Late func() int64
}

// Play asks a bucket for the calls in virtual time, until none is left or the End comes. A postponed call asks again when
// its delay is over. Of the calls of one instant those that end come first, then the others in the order in which they were planned.
func (l *Load) Play(t oktest.TB) {
	t.Helper()
	var now int64
	o := l.Options
	o.Clock = func() time.Time { return time.UnixMilli(now) }
	l.PlayOn(t, New(t, o), func(ms int64) { now = ms })
}

// PlayOn is Play with a bucket that is there. set sets its clock.
func (l *Load) PlayOn(t oktest.TB, b *drip.Bucket, set func(now int64)) {
	t.Helper()
	var due queue
	var now int64
	ctx, order := context.Background(), 0
	add := func(c *Call, at int64) {
		order++
		c.At, c.order = at, order
		heap.Push(&due, c)
	}
	for _, c := range l.Calls {
		add(c, c.At)
	}
	for n := 0; len(due) > 0; n++ {
		c := heap.Pop(&due).(*Call)
		if now = max(now, c.At); l.End > 0 && now >= l.End {
			return
		}
		if n > 1000*len(l.Calls) {
			t.Fatalf("the calls ask again and again")
		}
		set(now)
		if c.rank > 0 && c.Plain {
			oktest.OK(t, b.ReturnToken(ctx, c.Entity))
			continue
		} else if c.rank > 0 {
			costs := c.Request.Costs
			if l.Settles != nil {
				costs = l.Settles(c, now)
			}
			oktest.OK(t, b.Settle(ctx, c.Entity, c.lease, cmp.Or(c.Real, c.Request.Cost, 1), costs))
			continue
		}
		var a drip.Admission
		var err error
		if c.Plain {
			a.Delay, err = b.GetDelay(ctx, c.Entity)
		} else {
			a, err = b.Admit(ctx, c.Entity, c.Request)
		}
		oktest.OK(t, err)
		if l.Answer != nil {
			l.Answer(c, a, now)
		}
		c.Came = cmp.Or(c.Came, now)
		switch {
		case a.Delay == 0:
			c.rank, c.lease, c.Ran = 1, a.Lease, now
			ends := now
			if l.Runs != nil {
				ends = l.Runs(c, now)
			}
			add(c, ends)
		case !c.Leaves:
			c.Postponements++
			if !c.Forgetful {
				c.Request.Ticket = a.Ticket
			}
			at := now + a.Delay.Milliseconds()
			if l.Late != nil {
				at += l.Late()
			}
			add(c, at)
		}
	}
}

// Outcome is what became of some calls.
type Outcome struct {
	Ran           int
	Last          int64         // when the last one ran
	Wait, Longest time.Duration // the mean of those that ran, and the longest: 292 years if one did not run
	Mean          float64       // postponements of a call
	Most          int           // the most postponements
}

// OutcomeOf sums up calls that were played.
func OutcomeOf(calls []*Call) (o Outcome) {
	hops := 0
	for _, c := range calls {
		hops += c.Postponements
		o.Most = max(o.Most, c.Postponements)
		if c.Ran == 0 {
			o.Longest = 1<<63 - 1
			continue
		}
		wait := time.Duration(c.Ran-c.Came) * time.Millisecond
		o.Ran++
		o.Last, o.Wait, o.Longest = max(o.Last, c.Ran), o.Wait+wait, max(o.Longest, wait)
	}
	o.Wait /= time.Duration(max(1, o.Ran))
	o.Mean = float64(hops) / float64(len(calls))
	return o
}

type queue []*Call

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(v any)   { *q = append(*q, v.(*Call)) }

func (q queue) Less(i, j int) bool {
	a, b := q[i], q[j]
	switch {
	case a.At != b.At:
		return a.At < b.At
	case a.rank != b.rank:
		return a.rank > b.rank
	}
	return a.order < b.order
}

func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
