package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
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
	t.Parallel()
	b := connect(t, useBroker(t))
	queue := b.queue()
	const n = 2000
	var messages []amqp.Publishing
	for i := range n {
		messages = append(messages, amqp.Publishing{MessageId: fmt.Sprint(i), Body: []byte("x"), DeliveryMode: amqp.Persistent})
	}
	b.publish(queue, messages...)
	l := &once{t: t, due: map[string]time.Time{}, delay: func() time.Duration { return time.Duration(rand.Int64N(9e9)) }}
	var mu sync.Mutex
	handled := map[string]int{}
	stop := running(t, Options{URL: b.url, Queue: queue, Limiter: l, Entity: byID, Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		handled[d.MessageId]++
		return nil
	})})
	eventually(t, "all messages are handled", func() bool { mu.Lock(); defer mu.Unlock(); return len(handled) == n })
	stop()
	for id, times := range handled {
		if times != 1 {
			t.Errorf("message %s was handled %d times", id, times)
		}
	}
	if l.out != 0 {
		t.Errorf("%d tokens were not returned", l.out)
	}
	logLateness(t, l.late)
}
