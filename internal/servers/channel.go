package servers

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/oktest"
)

// Channel opens a channel of a broker, with confirmations, on a connection of its own. Both end with the test.
func Channel(t TB, url string) *amqp.Channel {
	t.Helper()
	conn, err := amqp.Dial(url)
	must(t, err)
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }) // the broker may be gone
	ch, err := conn.Channel()
	must(t, err)
	must(t, ch.Confirm(false))
	return ch
}

// Declare declares durable queues of this kind, "classic" or "quorum".
func Declare(t TB, ch *amqp.Channel, kind string, queues ...string) {
	t.Helper()
	for _, name := range queues {
		_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: kind})
		must(t, err)
	}
}

// Publish sends messages to a queue and waits until the broker has them all.
func Publish(t TB, ch *amqp.Channel, queue string, messages ...amqp.Publishing) {
	t.Helper()
	var last *amqp.DeferredConfirmation
	for _, m := range messages {
		var err error
		last, err = ch.PublishWithDeferredConfirm("", queue, true, false, m)
		must(t, err)
	}
	if last != nil && !last.Wait() {
		t.Fatalf("the broker did not confirm a message")
	}
}

// Drain takes all messages out of a queue, and returns their bodies.
func Drain(t TB, ch *amqp.Channel, queue string) (bodies []string) {
	t.Helper()
	for {
		d, ok, err := ch.Get(queue, true)
		must(t, err)
		if !ok {
			return bodies
		}
		bodies = append(bodies, string(d.Body))
	}
}

// Await waits until a queue has so many messages ready: a quorum queue's number is late.
func Await(t TB, ch *amqp.Channel, queue string, want int) {
	t.Helper()
	oktest.Eventually(t, 30*time.Second, fmt.Sprintf("%d messages in %s", want, queue), func() bool {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		must(t, err)
		return q.Messages == want
	})
}

// WithChannel calls do with a channel of a broker, on a connection that ends with the call.
func WithChannel(url string, do func(*amqp.Channel) error) error {
	conn, err := amqp.Dial(url)
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
