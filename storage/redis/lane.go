package redis

import (
	"context"
	"runtime"
	"slices"
	"sync"

	"github.com/drip-go/drip/storage"
)

const (
	// maxSenders is how many pipelines of a lane may be under way: with more than one the server works on the next
	// while the callers of the last are woken, with too many nobody shares. From 2 to 4 were as fast on loopback;
	// over a network more of them mean less waiting.
	maxSenders = 4

	// maxBatch is how many calls a pipeline takes, and so for how long one script call may hold up the server: less
	// than a millisecond.
	maxBatch = 512
)

// A lane is where the calls to one server wait. As long as fewer than maxSenders pipelines are under way each call is
// sent at once; then calls gather until one is back. So nobody waits for company, and the more come the more share.
type lane struct {
	decide func([]*call) // sends the calls and sets what came of them

	mu      sync.Mutex
	waiting []*call
	left    int // how many of the waiting have left
	senders int
	looking int // how many of them are about to take what waits
}

// call is one operation on its way.
type call struct {
	key        string
	limits, op string // as op.lua takes them
	kind       storage.Kind
	now        int64

	answer storage.Answer
	err    error

	next       *call         // of the same command
	done       chan struct{} // closed when answer and err are set
	sent, left bool          // guarded by the lane's mu
}

// do has c sent, and waits for the answer or the end of ctx.
func (l *lane) do(ctx context.Context, c *call) (storage.Answer, error) {
	l.mu.Lock()
	if ctx.Done() == nil && l.senders == 0 {
		// Nobody to share with, and it will never leave: it need not be woken by somebody else.
		l.senders++
		l.mu.Unlock()
		l.decide([]*call{c})
		l.mu.Lock()
		l.senders--
		l.start() // those who have come meanwhile
		l.mu.Unlock()
		return c.answer, c.err
	}
	c.done = make(chan struct{})
	l.waiting = append(l.waiting, c)
	l.start()
	l.mu.Unlock()
	select {
	case <-c.done:
	case <-ctx.Done():
		if l.leave(c) {
			return storage.Answer{}, ctx.Err()
		}
	}
	return c.answer, c.err
}

// start requires mu held. It starts a sender if there is need and room for one.
func (l *lane) start() {
	if len(l.waiting) > 0 && l.looking == 0 && l.senders < maxSenders {
		l.senders++
		l.looking++
		go l.send()
	}
}

// send sends until nobody is waiting. It is a goroutine of its own because callers leave when their context ends, and
// go-redis does not interrupt what is on its way.
func (l *lane) send() {
	var batch []*call
	for {
		// Callers who are ready to run, those of the last batch to begin with, get on this one. With few processors
		// that is a quarter more decisions a second; when nobody is there it costs nothing.
		runtime.Gosched()
		if batch = l.take(batch[:0]); len(batch) == 0 {
			return
		}
		l.decide(batch)
		l.answer(batch)
	}
}

// take appends the next calls to batch. If there are none, the sender is counted out.
func (l *lane) take(batch []*call) []*call {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.looking--
	n := 0
	for ; n < len(l.waiting) && len(batch) < maxBatch; n++ {
		if c := l.waiting[n]; c.left {
			l.left--
		} else {
			c.sent = true
			batch = append(batch, c)
		}
	}
	l.waiting = slices.Delete(l.waiting, 0, n)
	if len(batch) == 0 {
		l.senders--
	}
	l.start() // for those who found no room
	return batch
}

// answer wakes the callers of a batch, whose sender then looks for more. What was taken for one who has left is given
// back.
func (l *lane) answer(batch []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range batch {
		if back := c.undo(); c.left && back != nil {
			l.waiting = append(l.waiting, back)
		}
		close(c.done)
	}
	l.looking++
}

// leave is what a caller does whose context has ended. It is false if the answer has just come.
func (l *lane) leave(c *call) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-c.done:
		return false
	default:
	}
	c.left = true
	if !c.sent {
		// While a server hangs no sender takes them out.
		if l.left++; l.left > len(l.waiting)/2 {
			l.waiting = slices.DeleteFunc(l.waiting, func(c *call) bool { return c.left })
			l.left = 0
		}
	}
	return true
}

// undo makes the call that gives back what c has taken; nil if that is nothing.
func (c *call) undo() *call {
	took := storage.Op{Kind: c.kind, Now: c.now}
	op, needed := took.Undo(&c.answer)
	if !needed || c.err != nil {
		return nil
	}
	packed, err := packOp(&op)
	if err != nil { // then it would not have been answered
		return nil
	}
	return &call{key: c.key, limits: c.limits, op: packed, kind: op.Kind, done: make(chan struct{})}
}

// byEntity links the calls of each entity by next, in their order, and returns the first ones. Callers with other
// limits for the same entity are apart.
func byEntity(calls []*call) (firsts []*call) {
	if len(calls) == 1 {
		return calls
	}
	type entity struct{ key, limits string }
	last := make(map[entity]*call, len(calls))
	for _, c := range calls {
		e := entity{c.key, c.limits}
		if l := last[e]; l != nil {
			l.next = c
		} else {
			firsts = append(firsts, c)
		}
		last[e] = c
	}
	return firsts
}
