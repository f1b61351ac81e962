package consumer

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// Messages that take long all run at once. Short ones begin in their order. Idle workers are called before new ones.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 100
		var running sync.WaitGroup
		var mu sync.Mutex
		var begun []uint64
		block := make(chan struct{})
		w := workers{running: &running, process: func(d *delivery) {
			mu.Lock()
			begun = append(begun, d.DeliveryTag)
			mu.Unlock()
			if d.back {
				<-block
			}
		}}
		give := func(tag uint64, blocks bool) {
			d := &delivery{back: blocks}
			d.DeliveryTag = tag
			w.do(d)
		}
		for tag := range uint64(n) {
			give(tag, true)
		}
		synctest.Wait()
		if len(begun) != n {
			t.Fatalf("%d of %d that block have begun", len(begun), n)
		}
		close(block)
		synctest.Wait()
		if len(w.idle) != n {
			t.Errorf("%d workers are idle, want %d", len(w.idle), n)
		}
		for tag := range uint64(n) {
			give(tag, false)
			synctest.Wait()
		}
		if len(w.idle) != n {
			t.Errorf("%d workers are idle after more messages, want the %d there were", len(w.idle), n)
		}
		if !slices.IsSorted(begun[n:]) || len(begun) != 2*n {
			t.Errorf("begun: %v", begun[n:])
		}
		for tag := range uint64(n) {
			give(tag, false)
		}
		w.close()
		running.Wait()
		if len(begun) != 3*n {
			t.Errorf("the workers left when %d of %d had begun", len(begun), 3*n)
		}
	})
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
	w.close()
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

// A handler that ends its goroutine, as a test's FailNow does, takes nobody along.
func TestWorkerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		var mu sync.Mutex
		done := 0
		w := workers{running: &running, process: func(d *delivery) {
			if d.back {
				runtime.Goexit()
			}
			mu.Lock()
			defer mu.Unlock()
			done++
		}}
		for i := range 100 {
			w.do(&delivery{back: i%10 == 0})
		}
		w.close()
		running.Wait()
		if done != 90 {
			t.Errorf("%d of 90 were done", done)
		}
	})
}
