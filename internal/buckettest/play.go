package buckettest

import (
	"container/heap"
	"context"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/oktest"
)

// Call is an operation of a Load.
type Call struct {
	At      int64 // when it asks, or ends
	Entity  string
	Request drip.Request // with the ticket of the last postponement
	Plain   bool         // it asks GetDelay, which knows no more than its entity, and returns the token

	Postponements int

	runs  bool
	lease drip.Lease
}

// Load is what Play plays. Times are milliseconds since 1970.
type Load struct {
	Options drip.Options // their Clock is Play's
	Calls   []*Call
	End     int64

	// Runs returns the end of a call that runs now.
	Runs func(c *Call, now int64) (ends int64)

	// Answer gets each answer. Defaults to nil.
	Answer func(c *Call, a drip.Admission, now int64)

	// Settles returns the real costs of a call that ends now. Defaults to the costs of its Request.
	Settles func(c *Call, now int64) drip.Costs

	// Late returns how late a postponed call asks. Defaults to 0.
	Late func() int64
}

// Play asks a bucket for the calls in virtual time, until none is left or the End comes. A postponed call asks again when
// its delay is over. Calls of one instant come in any order.
func (l *Load) Play(t oktest.TB) {
	t.Helper()
	var now int64
	o := l.Options
	o.Clock = func() time.Time { return time.UnixMilli(now) }
	b, ctx := New(t, o), context.Background()
	var due queue
	add := func(c *Call, at int64) {
		c.At = at
		heap.Push(&due, c)
	}
	for _, c := range l.Calls {
		add(c, c.At)
	}
	for len(due) > 0 {
		c := heap.Pop(&due).(*Call)
		if now = max(now, c.At); now >= l.End {
			return
		}
		if c.runs && c.Plain {
			oktest.OK(t, b.ReturnToken(ctx, c.Entity))
			continue
		} else if c.runs {
			costs := c.Request.Costs
			if l.Settles != nil {
				costs = l.Settles(c, now)
			}
			oktest.OK(t, b.Settle(ctx, c.Entity, c.lease, max(1, c.Request.Cost), costs))
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
		if a.Delay > 0 {
			c.Postponements++
			c.Request.Ticket = a.Ticket
			at := now + a.Delay.Milliseconds()
			if l.Late != nil {
				at += l.Late()
			}
			add(c, at)
			continue
		}
		c.runs, c.lease = true, a.Lease
		add(c, l.Runs(c, now))
	}
}

type queue []*Call

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].At < q[j].At }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(v any)        { *q = append(*q, v.(*Call)) }

func (q *queue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
