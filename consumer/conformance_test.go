package consumer

import (
	"context"
	"os"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/workertest"
)

var conformance = workertest.Adapter{Open: openQueue, Late: 100 * time.Millisecond, Again: 5 * time.Second}

const brokerVariable = "DRIP_TEST_RABBITMQ"

// The consumer keeps the rules of every queue's adapter.
func TestAdapter(t *testing.T) {
	os.Setenv(brokerVariable, useBroker(t))
	workertest.Run(t, conformance)
}

func BenchmarkAdapter(b *testing.B) {
	os.Setenv(brokerVariable, useBroker(b))
	workertest.Benchmark(b, conformance)
}

type conforming struct{ url, name string }

func openQueue(_ context.Context, name string) (workertest.Queue, error) {
	q := &conforming{os.Getenv(brokerVariable), name}
	return q, q.with(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: "quorum"})
		return err
	})
}

func (q *conforming) with(do func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(q.url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	return do(ch)
}

func (q *conforming) Publish(ctx context.Context, messages ...workertest.Message) error {
	return q.with(func(ch *amqp.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		for _, m := range messages {
			confirmation, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", q.name, true, false, amqp.Publishing{MessageId: m.ID, Type: m.Entity, DeliveryMode: amqp.Persistent})
			if err == nil {
				_, err = confirmation.WaitContext(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (q *conforming) Consume(ctx context.Context, l Limiter, handle func(context.Context, workertest.Message) error) error {
	c, err := New(Options{
		URL: q.url, Queue: q.name, Limiter: l, RetryDelay: 200 * time.Millisecond, Logger: quiet,
		Entity: func(d *amqp.Delivery) (string, error) { return d.Type, nil },
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			return handle(ctx, workertest.Message{ID: d.MessageId, Entity: d.Type})
		}),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// ConsumeBare handles messages as they come, in order.
func (q *conforming) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	return q.with(func(ch *amqp.Channel) error {
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

// Left counts what is in the queues, messages that are in hand excepted: those are the handlers'.
func (q *conforming) Left(context.Context) (n int, err error) {
	err = q.with(func(ch *amqp.Channel) error {
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
