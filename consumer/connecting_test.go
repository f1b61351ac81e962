package consumer

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/dial"
	"github.com/drip-go/drip/internal/sleep"
)

// givenBack notes when deliveries are given back.
type givenBack struct {
	mu    sync.Mutex
	began time.Time
	after []time.Duration
}

func (*givenBack) Ack(uint64, bool) error { return nil }

func (g *givenBack) Nack(uint64, bool, bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.after = append(g.after, time.Since(g.began))
	return nil
}

func (g *givenBack) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.after)
}

// A session whose connection consumes, while the broker answers no new one, gives back the messages that have to wait: after five
// minutes in hand, and when it stops.
func TestNoConnectionToPublish(t *testing.T) {
	for name, stops := range map[string]time.Duration{"five minutes": time.Hour, "a stop": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 128
				s := taking(t, Options{Limiter: delayed(func() time.Duration { return time.Hour })})
				s.delays.publisher.connect = func(ctx context.Context) (*amqp.Connection, error) {
					sleep.For(ctx, dial.Timeout) // as dial does
					return nil, errors.New("connect: i/o timeout")
				}
				g := &givenBack{began: time.Now()}
				_, end := s.takes(g, n, false, numberedDeliveries(n)...)
				if stops < inHand {
					time.Sleep(stops)
					s.stopWaiting()
				}
				time.Sleep(min(stops, inHand) + 30*time.Second)
				if got := g.count(); got < n {
					t.Errorf("%d of %d messages were given back", got, n)
				}
				end()
			})
		})
	}
}

// A message that waits for a limiter without an answer asks again before it expires.
func TestLimiterAnswersBeforeTheExpiration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, handled := time.Now(), make(chan time.Duration, 1)
		limiter := &free{Delays: func(string) (time.Duration, error) {
			if time.Since(began) < 16*time.Second {
				return 0, errors.New("the storage is down")
			}
			return 0, nil
		}}
		s := taking(t, Options{Limiter: limiter, Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error {
			handled <- time.Since(began)
			return nil
		})})
		buried := make(chan time.Duration, 100)
		s.delays.publisher.connect = func(context.Context) (*amqp.Connection, error) {
			buried <- time.Since(began)
			return nil, errors.New("no broker")
		}
		d := numberedDelivery(1)
		d.Expiration = "22000"
		_, end := s.takes(&givenBack{began: began}, 1, false, d)
		select {
		case <-handled:
		case at := <-buried:
			t.Errorf("a message that expires after 22 s was buried after %v", at)
		}
		end()
	})
}

// A message that other messages of its entity crowd out comes back before it expires, and before its deadline.
func TestCrowdedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for name, c := range map[string]struct {
			expiration string
			deadline   time.Duration
			least      time.Duration
			most       time.Duration
		}{
			"any time":       {"", 0, crowdedDelay, 2 * crowdedDelay},
			"its expiration": {"4000", 0, time.Second, 2 * time.Second},
			"its deadline":   {"4000", 3 * time.Second, time.Second, 1500 * time.Millisecond},
			"nearly over":    {"100", 0, leastHalf, leastHalf},
		} {
			d := numberedDelivery(1)
			d.Expiration = c.expiration
			m := open(d, now, false)
			var deadline time.Time
			if c.deadline > 0 {
				deadline = now.Add(c.deadline)
			}
			if got := crowdedFor(&m, deadline); got < c.least || got > c.most {
				t.Errorf("with %s it waits for %v, want %v to %v", name, got, c.least, c.most)
			}
		}
	})
}

// A message whose limiter ends the goroutine, as testing's FailNow does, gives its places back.
func TestLimiterEndsTheGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const handlers = 4
		ran := make(chan bool, 1)
		limiter := &free{Delays: func(entity string) (time.Duration, error) {
			if entity != "good" {
				runtime.Goexit()
			}
			return 0, nil
		}}
		s := taking(t, Options{Handlers: handlers, Prefetch: 100, Limiter: limiter, Attempts: 1, Handler: HandlerFunc(func(context.Context, *amqp.Delivery) error {
			ran <- true
			return nil
		})})
		more, end := s.takes(&givenBack{began: time.Now()}, 100, false, numberedDeliveries(handlers)...)
		time.Sleep(time.Minute)
		more <- amqp.Delivery{DeliveryTag: handlers + 1, MessageId: "good"}
		select {
		case <-ran:
		case <-time.After(time.Minute):
			t.Error("a message of another entity does not run")
		}
		s.ruined()
		end()
	})
}

// A caller whose patience has ended, as at a stop, publishes still if its turn on an open line comes soon.
func TestTurnAfterPatience(t *testing.T) {
	for _, c := range []struct {
		line bool
		held time.Duration // the turn, by another caller
		want bool
	}{{true, time.Second, true}, {true, time.Minute, false}, {false, time.Second, false}} {
		synctest.Test(t, func(t *testing.T) {
			p := newPublisher(func(context.Context) (*amqp.Connection, error) { return nil, errors.New("no broker") }, time.Second, quiet)
			if c.line {
				p.line = &line{done: make(chan struct{})}
			}
			p.turn <- struct{}{}
			time.AfterFunc(c.held, p.release)
			patience, end := context.WithCancel(t.Context())
			end()
			l, err := p.acquire(t.Context(), patience)
			if (err == nil && l != nil) != c.want {
				t.Errorf("%+v: acquire = %v", c, err)
			}
			time.Sleep(time.Hour)
		})
	}
}
