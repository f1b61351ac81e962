package consumer

import "sync"

// workers process messages in the order they are given, each in a goroutine of its own if it can begin earlier that way. A
// worker that is done takes the next message. A queued message calls one more worker, but not while a called worker has not
// begun: that one shows that no processor is free. So each message has a goroutine while handlers block. When a thousand
// messages are due at once and their handlers don't block, a few goroutines process all, with grown stacks in the cache.
type workers struct {
	process func(*delivery)
	running *sync.WaitGroup

	mu     sync.Mutex
	queue  []*delivery // not empty: a worker is called
	called bool        // the called worker has not begun
}

func (w *workers) do(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, d)
	w.call()
}

// call calls a worker if a message is queued. It requires mu held.
func (w *workers) call() {
	if !w.called && len(w.queue) > 0 {
		w.called = true
		w.running.Go(w.work)
	}
}

func (w *workers) work() {
	w.mu.Lock()
	w.called = false
	w.mu.Unlock()
	for d := w.next(); d != nil; d = w.next() {
		w.process(d)
	}
}

func (w *workers) next() *delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 {
		return nil
	}
	d := w.queue[0]
	w.queue[0] = nil
	w.queue = w.queue[1:]
	w.call()
	return d
}
