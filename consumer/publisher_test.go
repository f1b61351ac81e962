package consumer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/dial"
)

// publisherAt makes a publisher of the test's own. publish sends a message to a queue.
func publisherAt(t *testing.T, url string, timeout time.Duration) (p *publisher, publish func(queue string, msg amqp.Publishing) error) {
	t.Helper()
	p = newPublisher(connecting(url, amqp.Config{}), timeout, quiet)
	t.Cleanup(p.close)
	return p, func(queue string, msg amqp.Publishing) error {
		msg.Headers = amqp.Table{}
		return p.publish(t.Context(), t.Context(), func() (string, amqp.Publishing, bool) { return queue, msg, true })
	}
}

func connecting(url string, c amqp.Config) func(context.Context) (*amqp.Connection, error) {
	return func(ctx context.Context) (*amqp.Connection, error) { return dial.RabbitMQ(ctx, url, c, "testing") }
}

// The publisher replaces a connection on which the broker refuses a message, unless it is a new one. Publishings that wait on
// it get their confirmation.
func TestRefusingConnectionIsReplaced(t *testing.T) {
	b := connect(t, useBroker(t))
	queue := b.queue()
	full := queue + ".full"
	_, err := b.ch.QueueDeclare(full, true, false, false, false, amqp.Table{"x-max-length": 0, "x-overflow": "reject-publish"})
	b.must(err)
	p, publish := publisherAt(t, b.url, time.Minute)
	message := amqp.Publishing{Body: make([]byte, 100)}
	if err := publish(full, message); !errors.Is(err, errRefused) {
		t.Fatalf("a full queue's error is %v", err)
	}
	first := p.up()
	if first == nil {
		t.Fatal("a new connection was given up")
	}
	first.opened = time.Now().Add(-time.Minute)
	first.add(1000, &waiting{}) // somebody who waits
	if err := publish(full, message); !errors.Is(err, errRefused) {
		t.Fatalf("a full queue's error is %v", err)
	}
	b.must(publish(queue, message))
	if p.up() == first || first.conn.IsClosed() {
		t.Errorf("the connection was not replaced, or closed under those who wait: %v", first.conn.IsClosed())
	}
	first.leave(1000)
	if !first.conn.IsClosed() {
		t.Error("it is still open, and nobody needs it")
	}
}

// A broker confirms the messages that it took before it accepted no more a moment later. A publisher whose patience has ended
// still waits for that moment: else the message would be given back, and exist twice.
func TestConfirmedAfterBlocking(t *testing.T) {
	for _, test := range []struct {
		name      string
		confirmed time.Duration // after the end of patience
		want      error
		after     time.Duration
	}{
		{"about to be confirmed", 200 * time.Millisecond, nil, 200 * time.Millisecond},
		{"not read", time.Hour, errUnconfirmed, 250 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				confirmed, done := make(chan struct{}), make(chan struct{})
				close(done)
				w := &waiting{confirmed: confirmed, acked: func() bool { return true }}
				l := &line{log: quiet, done: done}
				l.block(true)
				patience, end := context.WithCancel(t.Context())
				time.AfterFunc(time.Minute, end)
				time.AfterFunc(time.Minute+test.confirmed, func() { close(confirmed) })
				began := time.Now()
				err := l.await(t.Context(), patience, w, 10*time.Second)
				if took := time.Since(began); !errors.Is(err, test.want) || took != time.Minute+test.after {
					t.Errorf("%v after %v", err, took)
				}
			})
		})
	}
}

// The time that a broker has for a confirmation begins anew when it accepts messages again: those that it had not read come
// first.
func TestConfirmedLongAfterBlocking(t *testing.T) {
	eachPatience(t, func(t *testing.T, ctx context.Context) {
		confirmed := make(chan struct{})
		done := make(chan struct{})
		close(done)
		l := &line{log: quiet, done: done}
		time.AfterFunc(time.Second, func() { l.block(true) })
		time.AfterFunc(9*time.Second, func() { l.block(false) })
		time.AfterFunc(15*time.Second, func() { close(confirmed) })
		w := &waiting{confirmed: confirmed, acked: func() bool { return true }}
		if err := l.await(ctx, ctx, w, 10*time.Second); err != nil {
			t.Errorf("await = %v, want a confirmation", err)
		}
	})
}

// A queue that confirms nothing, while the broker confirms other messages, is silent.
func TestSilentWhileOthersAreConfirmed(t *testing.T) {
	eachPatience(t, func(t *testing.T, ctx context.Context) {
		l := &line{log: quiet, done: make(chan struct{}), last: 8}
		w := &waiting{tag: 7, confirmed: make(chan struct{})}
		if err := l.await(ctx, ctx, w, 10*time.Second); !errors.Is(err, errSilent) {
			t.Errorf("await = %v, want %v", err, errSilent)
		}
	})
}

// A broker that confirms late stores what it confirms. The publisher soon waits for it: else each message would be published again and
// again, and each of the copies, too. When the broker is quick again, so is the publisher.
func TestSlowConfirmations(t *testing.T) {
	b, queue := beside(t)
	const timeout, most = 200 * time.Millisecond, 10
	p, url := through(t, b.url, 0)
	var slow atomic.Bool
	slow.Store(true)
	p.through(func(f frame) bool {
		if f.confirms() && slow.Load() {
			time.Sleep(3 * timeout)
		}
		return true
	})
	publisher, publish := publisherAt(t, url, timeout)
	message, late := amqp.Publishing{}, 0
	for err := publish(queue, message); err != nil; err = publish(queue, message) {
		if errors.Is(err, errSilent) { // else its connection is just being closed
			late++
		}
		if late == most {
			t.Fatalf("%d confirmations came too late", most)
		}
	}
	slow.Store(false)
	eventually(t, "the publisher is quick again", func() bool { return publish(queue, message) == nil && publisher.slow == 0 })
}

// eachPatience runs a test with a context that may end, and with one that never does, as in a loop behind Limit.
func eachPatience(t *testing.T, f func(*testing.T, context.Context)) {
	for name, of := range map[string]func(context.Context) context.Context{
		"may end": func(ctx context.Context) context.Context { return ctx }, "never ends": context.WithoutCancel,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, of(t.Context())) })
		})
	}
}

// A message that the broker returned and confirmed just before the channel closed is not stored.
func TestReturnedBeforeTheChannelCloses(t *testing.T) {
	for i := range 100 {
		l := &line{log: quiet, publish: &amqp.Channel{}, done: make(chan struct{}), returnsNoted: make(chan chan struct{}), waiting: map[uint64]*waiting{}}
		w := &waiting{tag: 7, acked: func() bool { return true }}
		l.add(w.tag, w)
		returned := amqp.Return{ReplyText: "NO_ROUTE", Headers: amqp.Table{}}
		mark(returned.Headers, w.tag)
		returns, closed := make(chan amqp.Return, 1), make(chan *amqp.Error, 1)
		returns <- returned
		closed <- &amqp.Error{Code: amqp.PreconditionFailed}
		l.read(returns, nil, closed)
		if err := l.outcome(w); !errors.Is(err, errUnroutable) {
			t.Fatalf("try %d: outcome = %v, want %v", i, err, errUnroutable)
		}
	}
}

// A broker that reads no more may stop a publisher in the middle of a large message. The publisher then ends with its connection,
// or with its patience.
func TestPublisherIsStuckWriting(t *testing.T) {
	b := connect(t, useBroker(t))
	for name, c := range map[string]struct {
		heartbeat string // in seconds
		patient   bool
	}{"the connection is lost": {"1", true}, "patience ends": {"600", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, url := through(t, b.url, 0)
			reads, stuck := make(chan struct{}), make(chan struct{})
			defer close(reads)
			var first sync.Once
			p.through(func(f frame) bool {
				const body = 3
				if !f.fromBroker && f.kind == body {
					first.Do(func() { close(stuck) })
				}
				select {
				case <-stuck: // neither side hears of the other
					<-reads
				default:
				}
				return true
			})
			patience, end := context.WithCancel(t.Context())
			defer end()
			publisher, _ := publisherAt(t, url+"?heartbeat="+c.heartbeat, time.Minute)
			ended := make(chan error, 1)
			go func() {
				ended <- publisher.publish(t.Context(), patience, func() (string, amqp.Publishing, bool) {
					return "orders", amqp.Publishing{Headers: amqp.Table{}, Body: make([]byte, 64<<20)}, true
				})
			}()
			<-stuck
			if !c.patient {
				end()
			}
			select {
			case err := <-ended:
				if err == nil {
					t.Error("a message that is not written is published")
				}
			case <-time.After(time.Minute):
				t.Error("it never ends")
			}
		})
	}
}

// A broker that accepts no messages for long keeps no message in hand for longer than inHand, also while a publishing waits for it: the
// broker's consumer_timeout would end all handlers.
func TestBlockedForLong(t *testing.T) {
	for what, publish := range map[string]func(*session, *message) error{
		"a copy":        func(s *session, m *message) error { return s.store(m) },
		"a dead letter": func(s *session, m *message) error { return s.bury(m, reasonFailed, nil) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := taking(t, Options{})
				s.delays.publisher.line = &line{done: make(chan struct{}), blocked: make(chan struct{})}
				m := open(numberedDelivery(1), time.Now(), false)
				began := time.Now()
				if err := publish(s, &m); !errors.Is(err, errBlocked) || time.Since(began) != inHand {
					t.Errorf("it is given back after %v because of: %v", time.Since(began), err)
				}
			})
		})
	}
}
