// Package batch gathers operations on their way to a server, so that callers who wait at the same time share a round trip.
//
// A Lane sends a call at once as long as a sender is free. After that calls gather until a sender is back. So batching
// never delays a call, and more callers share each round trip.
//
// A group is in one batch at a time, with up to mostCalls of its waiting calls. The caller chooses the groups: the calls about
// an entity, or all calls within a shared limit.
package batch

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// mostCalls is how many calls of a group a batch takes. In a batch with all of them the first calls, whose time may
// be short, would wait for the last.
const mostCalls = 128

// The time before an Undo is sent again. It doubles with each failure.
const firstBackoff, longestBackoff = 10 * time.Millisecond, time.Second

// Call is one operation on its way.
type Call struct {
	Key    string // of the entity
	Limits decision.Limits
	Within []storage.Within
	Op     decision.Op

	Answer decision.Answer // set by the sender, as Err and Again are
	Err    error
	Again  bool // after Err the operation may be sent again: it is surely not done, or does no harm when done twice

	done                 chan struct{} // closed when Answer and Err are set; nil if no other goroutine waits for that
	sent, left, answered bool          // guarded by the lane's mu

	until   time.Time // until then an Undo is sent again; zero for a caller's operation
	backoff time.Duration
}

// calls are Calls that nobody needs any more.
var calls = sync.Pool{New: func() any { return new(Call) }}

// end returns the result of a call that nobody else needs any more.
func (c *Call) end() (decision.Answer, error) {
	a, err := c.Answer, c.Err
	calls.Put(c)
	return a, err
}

// Turn is the calls of one group in a batch, in their order.
type Turn struct {
	Calls []*Call

	group    *group
	answered bool
}

// Fail sets the error of all calls.
func (t *Turn) Fail(err error) {
	for _, c := range t.Calls {
		c.Answer, c.Err = decision.Answer{}, err
	}
}

// Lane has the calls that wait for one server. Make one with New. It is safe for concurrent use.
type Lane struct {
	send  func(batch []*Turn, answered func([]*Turn))
	turns int // the most in a batch

	senders int // the most at a time

	mu     sync.Mutex
	groups map[string]*group // those with calls that wait or are under way
	ready  []*group          // those with calls that wait and none under way
	free   int               // how many more senders may start
	empty  int               // about how many ready groups have no calls
	owed   int               // calls under way whose callers have left, and Undos
	paid   chan struct{}     // closed when owed is 0; nil until Drain waits for that
}

// group has the waiting calls of a group.
type group struct {
	name    string
	waiting []*Call
	left    int // the number of waiting calls whose callers have left

	first [1]*Call // the memory of waiting until the first calls are taken
}

// New returns a Lane of so many senders, each of which takes at most so many turns. send must set the Answer and Err of
// all calls of a batch. It must call answered once for each turn, as soon as its calls have them. A panic of send
// becomes the error of the calls.
func New(senders, turns int, send func(batch []*Turn, answered func([]*Turn))) *Lane {
	return &Lane{send: send, turns: turns, senders: senders, free: senders, groups: map[string]*group{}}
}

// Do sends an operation about the entity of key, in the group of that name, and waits for the answer or the end of ctx. It
// keeps no part of limits and within. If ctx ends before the answer comes, the Lane gives back the capacity that the operation
// has taken. If that fails, the Lane tries again for as long as a lease lasts.
func (l *Lane) Do(ctx context.Context, name, key string, limits *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	c := calls.Get().(*Call)
	*c = Call{Key: key, Limits: *limits, Within: within, Op: op}
	if ctx.Done() != nil {
		c.own() // the caller may leave before it is decided
	} else if t := l.alone(name, c); t != nil { // it will never leave, and need not be woken by somebody else
		l.deliver([]*Turn{t})
		l.mu.Lock()
		l.free++
		l.start() // calls that have come meanwhile
		l.mu.Unlock()
		return c.end()
	}
	c.done = make(chan struct{})
	g := l.enter(name, c)
	if ctx.Done() != nil {
		select {
		case <-c.done:
		case <-ctx.Done():
			if l.leave(g, c) {
				return decision.Answer{}, ctx.Err()
			}
		}
	}
	<-c.done
	return c.end()
}

// own copies what belongs to the caller.
func (c *Call) own() {
	c.Limits.Windows = slices.Clone(c.Limits.Windows)
	c.Within = slices.Clone(c.Within)
	for i := range c.Within {
		w := &c.Within[i]
		own := *w.Limits
		own.Windows = slices.Clone(own.Windows)
		w.Limits = &own
	}
}

func (l *Lane) enter(name string, c *Call) *group {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.groups[name]
	if g == nil {
		g = &group{name: name}
		g.waiting = g.first[:0]
		l.groups[name] = g
		l.ready = append(l.ready, g)
	}
	g.waiting = append(g.waiting, c)
	l.start()
	return g
}

// alone counts in a sender for a call that has nobody to share with. It is nil if there is anybody. A sender that is under way
// may be about to take the callers of its last batch, and this is the first of them.
func (l *Lane) alone(name string, c *Call) *Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.free < l.senders || len(l.ready) > 0 || l.groups[name] != nil {
		return nil
	}
	g := &group{name: name}
	l.groups[name] = g
	l.free--
	c.sent = true
	return &Turn{Calls: []*Call{c}, group: g}
}

// start requires mu held. It starts a sender if there is need and room for one.
func (l *Lane) start() {
	if len(l.ready) > 0 && l.free > 0 {
		l.free--
		go l.run()
	}
}

// run sends until nobody is waiting. It is a goroutine of its own because callers leave when their context ends, and a
// batch that others share must not end with it.
func (l *Lane) run() {
	for {
		// Callers that are ready to run join this batch. The callers of the last batch are the first of them.
		runtime.Gosched()
		batch := l.take()
		if len(batch) == 0 {
			return
		}
		l.deliver(batch)
	}
}

// deliver sends a batch. It sees to it that every turn is answered once, whatever send does.
func (l *Lane) deliver(batch []*Turn) {
	defer func() {
		if p := recover(); p != nil {
			for _, t := range batch {
				if !t.answered {
					t.Fail(fmt.Errorf("a panic while it was sent: %v", p))
					l.answered([]*Turn{t})
				}
			}
		}
	}()
	l.send(batch, l.answered)
}

// take returns the next turns. If there are none, the sender is counted out.
func (l *Lane) take() (batch []*Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for ; n < len(l.ready) && len(batch) < l.turns; n++ {
		g := l.ready[n]
		if calls := g.take(); len(calls) > 0 {
			batch = append(batch, &Turn{Calls: calls, group: g})
		} else {
			delete(l.groups, g.name)
		}
	}
	l.ready, l.empty = slices.Delete(l.ready, 0, n), max(0, l.empty-n)
	if len(batch) == 0 {
		l.free++
	}
	return batch
}

// take takes calls that wait. There may be none, if all callers have left.
func (g *group) take() []*Call {
	calls := slices.DeleteFunc(g.waiting, func(c *Call) bool { return c.left })
	g.waiting, g.left = nil, 0
	if len(calls) > mostCalls {
		calls, g.waiting = fair(calls)
	}
	for _, c := range calls {
		c.sent = true
	}
	return calls
}

// fair takes mostCalls calls of as many entities as there are: the first of each, then the second, and so on. So the callers of
// an entity wait for no backlog of another one in their group. The calls of an entity stay in their order.
func fair(calls []*Call) (taken, rest []*Call) {
	before, places := map[string]int{}, make([]int, len(calls)) // in the line of the entity
	var at [mostCalls]int                                       // the calls of a place
	for i, c := range calls {
		places[i] = before[c.Key]
		before[c.Key]++
		if places[i] < mostCalls {
			at[places[i]]++
		}
	}
	last, room := 0, mostCalls
	for at[last] <= room && last < mostCalls-1 {
		room -= at[last]
		last++
	}
	for i, c := range calls {
		if places[i] < last || places[i] == last && room > 0 {
			if places[i] == last {
				room--
			}
			taken = append(taken, c)
		} else {
			rest = append(rest, c)
		}
	}
	return taken, rest
}

// answered wakes the callers of some turns, which come back to mu at once.
func (l *Lane) answered(turns []*Turn) {
	for _, t := range turns {
		t.answered = true
	}
	l.finish(turns)
	for _, t := range turns {
		for _, c := range t.Calls {
			if c.done != nil {
				close(c.done)
			}
		}
	}
}

// finish makes room for the next calls of some groups. It gives back the capacity taken for a caller that has left.
func (l *Lane) finish(turns []*Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range turns {
		g := t.group
		for _, c := range t.Calls {
			if c.left || !c.until.IsZero() {
				l.owed--
			}
			if op, needed := c.Op.Undo(&c.Answer); needed && c.left && c.Err == nil {
				l.owed++
				lease := time.Duration(c.Limits.Lease) * time.Millisecond
				g.waiting = append(g.waiting, &Call{Key: c.Key, Limits: c.Limits, Within: c.Within, Op: op, until: time.Now().Add(lease), backoff: firstBackoff})
			}
			if c.Err != nil && c.Again && time.Now().Before(c.until) {
				l.owed++
				next := &Call{Key: c.Key, Limits: c.Limits, Within: c.Within, Op: c.Op, until: c.until, backoff: min(2*c.backoff, longestBackoff)}
				time.AfterFunc(c.backoff, func() { l.enter(g.name, next) })
			}
			c.answered = true
		}
		if len(g.waiting) > 0 {
			l.ready = append(l.ready, g)
		} else {
			delete(l.groups, g.name)
		}
	}
	if l.owed == 0 && l.paid != nil {
		close(l.paid)
		l.paid = nil
	}
	l.start()
}

// Drain waits until the Lane has given back all capacity that calls of callers that have left took, or until ctx ends.
func (l *Lane) Drain(ctx context.Context) {
	l.mu.Lock()
	if l.owed > 0 && l.paid == nil {
		l.paid = make(chan struct{})
	}
	paid := l.paid
	l.mu.Unlock()
	if paid != nil {
		select {
		case <-paid:
		case <-ctx.Done():
		}
	}
}

// leave counts out a caller whose context has ended. It is false if the answer has just come.
func (l *Lane) leave(g *group, c *Call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.answered {
		return false
	}
	c.left = true
	if c.sent {
		l.owed++
		return true
	}
	if g.left++; g.left > len(g.waiting)/2 { // while a server hangs no sender takes them out
		g.waiting = slices.DeleteFunc(g.waiting, func(c *Call) bool { return c.left })
		if g.left = 0; len(g.waiting) == 0 {
			l.empty++
		}
	}
	if l.empty > len(l.ready)/2 {
		l.ready = slices.DeleteFunc(l.ready, func(g *group) bool {
			if len(g.waiting) == 0 {
				delete(l.groups, g.name)
			}
			return len(g.waiting) == 0
		})
		l.empty = 0
	}
	return true
}

// Waiting is the number of groups with calls that are not sent yet, for tests.
func (l *Lane) Waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.ready)
}
