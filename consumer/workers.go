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
	idle   []chan struct{}
	closed bool
}

func (w *workers) do(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, d)
	w.call()
}

// close makes the workers end when everything is done.
func (w *workers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, turn := range w.idle {
		close(turn)
	}
	w.idle = nil
}

// call calls a worker if a message is queued: the last idle one, or a new one. It requires mu held.
func (w *workers) call() {
	if w.called || len(w.queue) == 0 {
		return
	}
	w.called = true
	if last := len(w.idle) - 1; last >= 0 {
		w.idle[last] <- struct{}{}
		w.idle = w.idle[:last]
		return
	}
	w.running.Go(w.work)
}

// work runs a worker.
func (w *workers) work() {
	turn := make(chan struct{}, 1)
	w.mu.Lock()
	w.called = false
	w.mu.Unlock()
	for d := w.next(turn); d != nil; d = w.next(turn) {
		w.process(d)
	}
}

// next returns the next message for a worker. It may wait for the worker's turn. It returns nil when everything is done.
func (w *workers) next(turn chan struct{}) *delivery {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) == 0 {
		if w.closed {
			return nil
		}
		w.idle = append(w.idle, turn)
		w.mu.Unlock()
		_, called := <-turn
		w.mu.Lock()
		if !called {
			return nil
		}
		w.called = false
	}
	d := w.queue[0]
	w.queue[0] = nil
	w.queue = w.queue[1:]
	w.call()
	return d
}
