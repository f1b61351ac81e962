package consumer

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/dial"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/workertest"
)

var (
	conformance = workertest.Adapter{Name: "Consumer", Open: openQueue, Late: 100 * time.Millisecond, Again: 5 * time.Second}
	limiting    = workertest.Adapter{Name: "Limit", Open: openLoop, Late: 300 * time.Millisecond, Again: 5 * time.Second}
)

// The consumer keeps the rules of every queue's adapter.
func TestAdapter(t *testing.T) {
	workertest.Run(t, conformance, useBroker(t))
}

// Processes and servers are killed, under a Consumer and under a loop around Limit.
func TestKills(t *testing.T) {
	for _, a := range []workertest.Adapter{conformance, limiting} {
		t.Run(a.Name, func(t *testing.T) {
			workertest.Kills(t, a, func(t *testing.T) workertest.Server { return servers.OwnRabbitMQ(t) })
		})
	}
}

func BenchmarkAdapter(b *testing.B) {
	workertest.Benchmark(b, conformance, useBroker(b))
}

type conforming struct{ url, name string }

func openQueue(_ context.Context, url, name string) (workertest.Queue, error) {
	q := &conforming{url, name}
	return q, servers.WithChannel(q.url, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: "quorum"})
		return err
	})
}

func (q *conforming) Publish(ctx context.Context, messages ...workertest.Message) error {
	return servers.WithChannel(q.url, func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		var confirmations []*amqp.DeferredConfirmation
		for _, m := range messages {
			c, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", q.name, true, false, amqp.Publishing{MessageId: m.ID, Type: m.Entity, DeliveryMode: amqp.Persistent})
			if err != nil {
				return err
			}
			confirmations = append(confirmations, c)
		}
		for i, c := range confirmations {
			if stored, err := c.WaitContext(ctx); err != nil || !stored {
				return fmt.Errorf("message %s is not confirmed: %w", messages[i].ID, cmp.Or(err, errRefused))
			}
		}
		return nil
	})
}

func (q *conforming) Consume(ctx context.Context, l Limiter, handle func(context.Context, workertest.Message) error) error {
	return consume(ctx, Options{
		URL: q.url, Queue: q.name, Limiter: l, RetryDelay: 200 * time.Millisecond,
		Entity: byType,
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			return handle(ctx, workertest.Message{ID: d.MessageId, Entity: d.Type})
		}),
	})
}

// looped is a queue whose consumer is a loop around Limit, like the loop of examples/middleware.
type looped struct{ *conforming }

func openLoop(ctx context.Context, url, name string) (workertest.Queue, error) {
	q, err := openQueue(ctx, url, name)
	return looped{q.(*conforming)}, err
}

// Consume begins again when it has lost its connection.
func (q looped) Consume(ctx context.Context, l Limiter, handle func(context.Context, workertest.Message) error) error {
	h := HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
		return handle(ctx, workertest.Message{ID: d.MessageId, Entity: d.Type})
	})
	for ctx.Err() == nil {
		_ = q.loop(ctx, l, byType, h)
		sleep.For(ctx, firstBackoff)
	}
	return nil
}

// loop rejects a message after a permanent error, to the queue's dead letters if the queue has any.
func (q looped) loop(ctx context.Context, l Limiter, entity EntityFunc, h Handler) error {
	conn, err := dial.RabbitMQ(ctx, q.url, amqp.Config{}, "looping")
	if err != nil {
		return err
	}
	defer closeConnection(conn)
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Qos(50, 0, false)
	}
	if err != nil {
		return err
	}
	delays, err := OpenDelayQueues(ctx, DelayQueuesOptions{URL: q.url, Queue: q.name})
	if err != nil {
		return err
	}
	defer delays.Close()
	deliveries, err := ch.ConsumeWithContext(ctx, q.name, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	handle := Limit(l, entity, delays)(h).Handle
	var hands sync.WaitGroup
	for range 50 {
		hands.Go(func() {
			for d := range deliveries {
				// A postponement that is cut off may be there all the same: what is in hand ends in good order.
				switch err := handle(context.WithoutCancel(ctx), &d); {
				case err == nil:
					d.Ack(false)
				case IsPermanent(err):
					d.Reject(false)
				default:
					sleep.For(ctx, 100*time.Millisecond)
					d.Nack(false, true)
				}
			}
		})
	}
	hands.Wait()
	return nil
}

// ConsumeBare handles messages as they come, in order.
func (q *conforming) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	return servers.WithChannel(q.url, func(ch *amqp.Channel) error {
		if err := ch.Qos(128, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.ConsumeWithContext(ctx, q.name, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for d := range deliveries {
			if err := handle(ctx, workertest.Message{ID: d.MessageId, Entity: d.Type}); err != nil {
				return err
			}
			if err := d.Ack(false); err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
}

// Left counts the messages in the queues, except messages in hand: the handlers have those.
func (q *conforming) Left(context.Context) (n int, err error) {
	err = servers.WithChannel(q.url, func(ch *amqp.Channel) error {
		for _, name := range []string{q.name, q.name + ".drip.due"} {
			queue, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
			if err != nil {
				return err
			}
			n += queue.Messages
		}
		return nil
	})
	return n, err
}
