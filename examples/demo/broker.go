package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/wheel"
)

// broker is the demo's own connection to RabbitMQ: it makes the work queue, publishes, and cleans up.
type broker struct {
	url     string
	conn    *amqp.Connection
	ch      *amqp.Channel
	queue   string
	removed bool // the queues
}

// The headers of an order.
const (
	shopHeader   = "shop"
	urgentHeader = "urgent" // a bool
)

func openBroker(url, queue string) (*broker, error) {
	b := &broker{url: url, queue: queue}
	err := b.connect()
	if err == nil {
		err = b.ch.Confirm(false)
	}
	if err == nil {
		_, err = b.ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
	}
	if err != nil {
		if b.conn != nil {
			b.disconnect()
		}
		return nil, fmt.Errorf("RabbitMQ: %w", err)
	}
	return b, nil
}

func (b *broker) connect() (err error) {
	if _, err := amqp.ParseURI(b.url); err != nil {
		return errors.New("DRIP_RABBITMQ_URL is not an AMQP URL") // the cause may repeat it, with its password
	}
	b.conn, err = amqp.DialConfig(b.url, amqp.Config{Dial: amqp.DefaultDial(10 * time.Second)})
	if err != nil {
		return err
	}
	b.ch, err = b.conn.Channel()
	return err
}

func (b *broker) disconnect() { b.conn.CloseDeadline(time.Now().Add(time.Second)) }

// awaitConsumers waits until n consumers are there, so that the demo does not count the time they take to start.
func (b *broker) awaitConsumers(ctx context.Context, n int, failed <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		q, err := b.ch.QueueDeclarePassive(b.queue, true, false, false, false, nil)
		if err != nil {
			return fmt.Errorf("RabbitMQ: %w", err)
		}
		if q.Consumers >= n {
			return nil
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%d of %d consumers are there: %w", q.Consumers, n, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// publish publishes every burst at its time and waits until the broker has confirmed each message.
func (b *broker) publish(ctx context.Context, p plan, l *ledger) error {
	// A broker that takes no messages blocks the writing, which knows no context.
	defer context.AfterFunc(ctx, b.disconnect)()
	began := time.Now()
	var confirmations []*amqp.DeferredConfirmation
	for _, burst := range p.bursts {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(began.Add(burst.at))):
		}
		for n := burst.first; n < burst.after; n++ {
			l.published(n, time.Now())
			c, err := b.ch.PublishWithDeferredConfirm("", b.queue, false, false, amqp.Publishing{
				DeliveryMode: amqp.Persistent,
				MessageId:    strconv.Itoa(n),
				Headers:      amqp.Table{shopHeader: p.shops[burst.shop].name, urgentHeader: n >= p.urgent},
			})
			if err != nil {
				return err
			}
			confirmations = append(confirmations, c)
		}
	}
	for _, c := range confirmations {
		ok, err := c.WaitContext(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return errors.New("RabbitMQ has not taken a message")
		}
	}
	return nil
}

// remove deletes the work queue and drip's queues beside it. It returns the number of messages left, by queue.
func (b *broker) remove() (left map[string]int, err error) {
	names := []string{b.queue, b.queue + ".drip.due", b.queue + ".drip.dead"}
	for i, ring := range wheel.Standard.Rings {
		for n := range ring.Slots {
			names = append(names, b.queue+".drip.due."+wheel.Standard.Queue(i, n))
		}
	}
	b.removed, left = true, map[string]int{}
	// The connection has been idle since the publishing, and may be gone.
	b.disconnect()
	if err := b.connect(); err != nil {
		return left, fmt.Errorf("RabbitMQ: %w", err)
	}
	for _, name := range names {
		n, err := b.ch.QueueDelete(name, false, false, false) // one that is not there is no error
		if err != nil {
			return left, fmt.Errorf("RabbitMQ: delete queue %q: %w", name, err)
		}
		if n > 0 {
			left[name] = n
		}
	}
	return left, nil
}

// close removes the queues if remove has not.
func (b *broker) close() {
	if !b.removed {
		b.remove() // as far as it goes: this is the way out after an error
	}
	if b.conn != nil {
		b.disconnect()
	}
}
