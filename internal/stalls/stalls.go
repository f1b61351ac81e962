// Package stalls tells tests of real servers when the machine was too slow for them.
package stalls

import (
	"context"
	"sync"
	"time"
)

// Stalls are the times when the machine was late: a goroutine that sleeps for 5 ms woke up more than 10 ms later than it should.
// The tested code is not to blame for being late then. It is safe for concurrent use.
type Stalls struct {
	mu   sync.Mutex
	all  []stall
	last time.Time // when the goroutine woke up
}

type stall struct{ from, to time.Time }

const (
	tick   = 5 * time.Millisecond
	enough = 10 * time.Millisecond
)

// Watch notes the stalls until ctx ends.
func Watch(ctx context.Context) *Stalls {
	s := &Stalls{last: time.Now()}
	go func() {
		for ctx.Err() == nil {
			time.Sleep(tick)
			s.woke(time.Now())
		}
	}()
	return s
}

func (s *Stalls) woke(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if due := s.last.Add(tick); now.Sub(due) > enough {
		s.all = append(s.all, stall{due, now})
	}
	s.last = now
}

// Between returns for how long the machine stalled between two times.
func (s *Stalls) Between(from, to time.Time) (d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	if due := s.last.Add(tick); time.Since(due) > enough { // the goroutine has not woken up yet
		all = append(all, stall{due, time.Now()})
	}
	for _, one := range all {
		if one.from.Before(from) {
			one.from = from
		}
		if one.to.After(to) {
			one.to = to
		}
		d += max(0, one.to.Sub(one.from))
	}
	return d
}
