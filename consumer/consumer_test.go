package consumer

import (
	"context"
	"math/rand/v2"
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

func TestPostponedMessagesComeBackWhenDue(t *testing.T) {
	b, queue := beside(t)
	const n = 2000
	b.publish(queue, numbered(0, n)...)
	limiter := each(t, func(int) time.Duration { return rand.N(9 * time.Second) })
	var l ledger
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: limiter, Entity: byID, Handler: &l})
	eventually(t, "all messages are handled", func() bool { return l.count() == n })
	stop()
	if l.twice() != 0 || limiter.out != 0 {
		t.Errorf("%d messages were handled twice, %d tokens were not returned", l.twice(), limiter.out)
	}
	logLateness(t, limiter.late)
}
