package consumer

import "sync"

// workers process messages in the order they are given, each in a goroutine of its own as far as that lets one begin
// earlier. Who is done takes the next. Another is called for it, but none while one that was called has not begun: that
// one shows that no processor is free. So there is a goroutine for each message while handlers wait for others; and of a
// thousand messages that are due at once, whose handlers don't, a few do all, with their stacks grown and in the cache.
type workers struct {
	process func(*delivery)
	running *sync.WaitGroup

	mu     sync.Mutex
	queue  []*delivery // not empty: somebody is called
	called bool        // who was called has not begun
	idle   []chan struct{}
	closed bool
}

func (w *workers) do(d *delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, d)
	w.call()
}

// close has the workers end when everything is done.
func (w *workers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, turn := range w.idle {
		close(turn)
	}
	w.idle = nil
}

// call calls a worker, if there is something to do, of those who are idle the last. It requires mu held.
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

// work is a worker.
func (w *workers) work() {
	turn := make(chan struct{}, 1)
	w.mu.Lock()
	w.called = false
	w.mu.Unlock()
	for d := w.next(turn); d != nil; d = w.next(turn) {
		w.process(d)
	}
}

// next is what a worker has to do next, for which it may have to wait for its turn. It is nil when everything is done.
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
