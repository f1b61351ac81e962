package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/drip-go/drip/consumer"
)

// queue is the work queue, and what publishes to it.
type queue struct {
	name string
	conn *amqp.Connection
	ch   *amqp.Channel
}

func openQueue(url string) (*queue, error) {
	conn, err := amqp.Dial(url)
	if err != nil {
		return nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	ch, err := conn.Channel()
	if err == nil {
		_, err = ch.QueueDeclare("observability", true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("declare a queue: %w", err)
	}
	return &queue{"observability", conn, ch}, nil
}

func (q *queue) close() { q.conn.Close() }

// publish publishes bursts of messages until ctx ends, somewhat fewer in all than the limits of the shops allow. Each
// message begins a trace.
func (q *queue) publish(ctx context.Context, tracer trace.Tracer) error {
	for {
		shop := fmt.Sprint("shop-", 1+rand.IntN(5))
		for range rand.IntN(32) {
			if err := q.publishOne(ctx, tracer, shop); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(400 * time.Millisecond):
		}
	}
}

func (q *queue) publishOne(ctx context.Context, tracer trace.Tracer, shop string) error {
	ctx, span := tracer.Start(context.WithoutCancel(ctx), "send "+q.name, trace.WithSpanKind(trace.SpanKindProducer))
	defer span.End()
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: amqp.Table{"shop": shop}}
	if rand.IntN(50) == 0 {
		message.Type = "broken"
	}
	// From here the trace goes on in the handler, over all postponements.
	propagation.TraceContext{}.Inject(ctx, consumer.TraceHeaders(message.Headers))
	return q.ch.PublishWithContext(ctx, "", q.name, false, false, message)
}

// shop returns the shop whose limit a message falls under.
func shop(d *amqp.Delivery) (string, error) {
	shop, ok := d.Headers["shop"].(string)
	if !ok {
		return "", consumer.Permanent(errors.New(`there is no header "shop"`))
	}
	return shop, nil
}

// handle simulates a call of an API, which may succeed, fail, be refused or hang.
func handle(ctx context.Context, d *amqp.Delivery) error {
	trace.SpanFromContext(ctx).SetAttributes(attribute.String("shop.plan", "basic")) // the span of this delivery
	if d.Type == "broken" {
		return errors.New("the API answers 400 Bad Request")
	}
	answers := time.After(time.Duration(20+rand.IntN(80)) * time.Millisecond)
	switch dice := rand.IntN(100); {
	case dice < 2:
		return consumer.Throttled(2*time.Second, errors.New("the API answers 429 Too Many Requests"))
	case dice < 5:
		return errors.New("the API answers 500 Internal Server Error")
	case dice < 7:
		answers = nil // it hangs, until the lease is lost
	}
	select {
	case <-answers:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
