package consumer

import (
	"context"
	"sync"
	"testing"
	"time"
)

// once postpones every entity once, by a delay of its own, and reports who comes back early.
type once struct {
	t      testing.TB
	delay  func() time.Duration
	copies bool // the broker may deliver a message again that is postponed already, which then waits for the rest

	mu   sync.Mutex
	due  map[string]time.Time
	late []time.Duration
	out  int
}

func (l *once) GetDelay(_ context.Context, entity string) (time.Duration, error) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	due, asked := l.due[entity]
	if !asked {
		d := l.delay()
		l.due[entity] = now.Add(d)
		return d, nil
	}
	if now.Before(due) {
		if l.copies {
			return due.Sub(now), nil
		}
		l.t.Errorf("message %s came back %v early", entity, due.Sub(now))
	}
	l.late = append(l.late, now.Sub(due))
	l.out++
	return 0, nil
}

// asked is the number of messages that it has postponed.
func (l *once) asked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.due)
}

func (l *once) ReturnToken(context.Context, string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out--
	return nil
}
