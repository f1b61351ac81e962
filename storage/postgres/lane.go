package postgres

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/drip-go/drip/storage"
)

const (
	// maxSenders is how many batches of a lane may be under way, as far as the pool has connections.
	maxSenders = 4

	// maxBatch is how many entities are in a batch, and so for how long other processes may have to wait for one of them.
	maxBatch = 64
)

// A lane is where calls wait. As long as fewer than maxSenders batches are under way each call is sent at once; then calls
// gather until one is back. So nobody waits for company, and the more come the more share.
//
// An entity is in one batch at a time, with all its calls that wait.
type lane struct {
	decide func(batch []*turn, answered func([]*turn)) // calls answered for those whose calls have their answers

	mu       sync.Mutex
	entities map[string]*entity // those with calls that wait or are under way
	ready    []*entity          // those with calls that wait and none under way
	senders  int                // how many more may start
	spare    []*lone            // to be used again
}

// entity is where the calls for one entity wait.
type entity struct {
	key     string
	waiting []*call
	left    int // how many of the waiting have left
}

// turn is the calls of one entity in a batch.
type turn struct {
	*entity
	calls []*call

	// Of decide:
	remembered int64   // the revision that the row had when this process knew it last; 0 if it does not remember
	known      *record // what is decided on
	broken     bool    // the row holds no state
	next       *record // what the row is to hold then
	stored     float64 // when it does, by the server's clock; 0 if it does not

	// Of classic: what does it.
	text text
	args []any
}

// call is one operation on its way.
type call struct {
	limits storage.Limits
	op     storage.Op

	answer storage.Answer
	err    error

	done       chan struct{} // closed when answer and err are set; nil if the caller is who sends it
	sent, left bool          // guarded by the lane's mu
}

// do has an operation sent, and waits for the answer or the end of ctx.
func (l *lane) do(ctx context.Context, key string, limits *storage.Limits, op storage.Op) (storage.Answer, error) {
	if ctx.Done() == nil { // it will never leave, and need not be woken by somebody else
		if a := l.alone(key); a != nil {
			return l.doAlone(a, limits, op)
		}
	}
	c := &call{limits: *limits, op: op, done: make(chan struct{})}
	c.limits.Windows = slices.Clone(limits.Windows) // the caller may leave before it is decided
	l.mu.Lock()
	e := l.entities[key]
	if e == nil {
		e = &entity{key: key}
		l.entities[key] = e
		l.ready = append(l.ready, e)
	}
	e.waiting = append(e.waiting, c)
	l.start()
	l.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		if l.leave(e, c) {
			return storage.Answer{}, ctx.Err()
		}
	}
	return c.answer, c.err
}

// lone is a batch of one call, in one piece.
type lone struct {
	entity
	turn
	call
	calls [1]*call
	batch [1]*turn
}

// alone counts in a sender for an entity that nobody else asks about. It is nil if there is anybody to share with.
func (l *lane) alone(key string) *lone {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.senders == 0 || len(l.ready) > 0 || l.entities[key] != nil {
		return nil
	}
	var a *lone
	if last := len(l.spare) - 1; last >= 0 {
		a, l.spare = l.spare[last], l.spare[:last]
	} else {
		a = new(lone)
	}
	a.entity = entity{key: key}
	l.entities[key] = &a.entity
	l.senders--
	return a
}

// doAlone sends an operation itself.
func (l *lane) doAlone(a *lone, limits *storage.Limits, op storage.Op) (storage.Answer, error) {
	a.call = call{limits: *limits, op: op, sent: true}
	a.calls[0], a.batch[0] = &a.call, &a.turn
	a.turn.entity, a.turn.calls = &a.entity, a.calls[:]
	l.decide(a.batch[:], l.answered)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.senders++
	l.start() // those who have come meanwhile
	answer, err := a.answer, a.err
	if l.entities[a.key] != &a.entity { // it is not where they wait
		*a = lone{}
		l.spare = append(l.spare, a)
	}
	return answer, err
}

// start requires mu held. It starts a sender if there is need and room for one.
func (l *lane) start() {
	if len(l.ready) > 0 && l.senders > 0 {
		l.senders--
		go l.send()
	}
}

// send sends until nobody is waiting. It is a goroutine of its own because callers leave when their context ends, and
// what others share must not end with it.
func (l *lane) send() {
	for {
		// Callers who are ready to run, those of the last batch to begin with, get on this one.
		runtime.Gosched()
		batch := l.take()
		if len(batch) == 0 {
			return
		}
		l.decide(batch, l.answered)
	}
}

// take returns the next turns. If there are none, the sender is counted out.
func (l *lane) take() (batch []*turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for ; n < len(l.ready) && len(batch) < maxBatch; n++ {
		e := l.ready[n]
		if calls := e.take(); len(calls) > 0 {
			batch = append(batch, &turn{entity: e, calls: calls})
		} else {
			delete(l.entities, e.key)
		}
	}
	l.ready = slices.Delete(l.ready, 0, n)
	if len(batch) == 0 {
		l.senders++
	}
	return batch
}

// take takes the calls that wait. There may be none, if all callers have left.
func (e *entity) take() []*call {
	calls := slices.DeleteFunc(e.waiting, func(c *call) bool { return c.left })
	for _, c := range calls {
		c.sent = true
	}
	e.waiting, e.left = nil, 0
	return calls
}

// answered wakes the callers of some turns. What was taken for one who has left is given back.
func (l *lane) answered(turns []*turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range turns {
		for _, c := range t.calls {
			if op, needed := c.op.Undo(&c.answer); needed && c.left && c.err == nil {
				t.waiting = append(t.waiting, &call{limits: c.limits, op: op, done: make(chan struct{})})
			}
			if c.done != nil {
				close(c.done)
			}
		}
		if len(t.waiting) > 0 {
			l.ready = append(l.ready, t.entity)
		} else {
			delete(l.entities, t.key)
		}
	}
	l.start()
}

// leave is what a caller does whose context has ended. It is false if the answer has just come.
func (l *lane) leave(e *entity, c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-c.done:
		return false
	default:
	}
	c.left = true
	if !c.sent { // while a server hangs no sender takes them out
		if e.left++; e.left > len(e.waiting)/2 {
			e.waiting = slices.DeleteFunc(e.waiting, func(c *call) bool { return c.left })
			e.left = 0
		}
	}
	return true
}
