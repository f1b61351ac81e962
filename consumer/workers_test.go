package consumer

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Messages that take long all run at once.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		var running sync.WaitGroup
		var begun atomic.Int64
		block := make(chan struct{})
		w := workers{running: &running, process: func(*delivery) {
			begun.Add(1)
			<-block
		}}
		for range n {
			w.do(&delivery{})
		}
		synctest.Wait()
		if begun.Load() != n {
			t.Errorf("%d of %d that block have begun", begun.Load(), n)
		}
		close(block)
		running.Wait()
	})
}

// Messages begin in the order in which they are given.
func TestWorkersOrder(t *testing.T) {
	w := workers{called: true} // the test is the worker
	given := []*delivery{{}, {}, {}}
	for _, d := range given {
		w.do(d)
	}
	for i, d := range given {
		if w.next() != d {
			t.Errorf("message %d is not the next", i)
		}
	}
}

// Each message is processed once, from any goroutine and however long each takes.
func TestWorkersLoseNothing(t *testing.T) {
	const givers, each = 8, 2000
	var running, giving sync.WaitGroup
	var mu sync.Mutex
	done := map[string]int{}
	block := make(chan struct{}, 4)
	w := workers{running: &running, process: func(d *delivery) {
		if d.back {
			block <- struct{}{}
			defer func() { <-block }()
		}
		mu.Lock()
		defer mu.Unlock()
		done[d.MessageId]++
	}}
	for g := range givers {
		giving.Go(func() {
			for i := range each {
				d := &delivery{back: i%3 == 0}
				d.MessageId = fmt.Sprint(g, "/", i)
				w.do(d)
			}
		})
	}
	giving.Wait()
	running.Wait()
	for id, times := range done {
		if times != 1 {
			t.Errorf("%s was done %d times", id, times)
		}
	}
	if len(done) != givers*each {
		t.Errorf("%d of %d were done", len(done), givers*each)
	}
}
