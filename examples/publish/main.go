// Publish declares a quorum queue and publishes messages to it, each with a shop's name as its body and in its
// header "shop": work for examples/rabbitmq, examples/consumer and examples/middleware.
//
//	go run ./examples/publish -messages 12 shop-1 shop-2
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func main() {
	queue := flag.String("queue", "orders", "the `name` of the queue")
	messages := flag.Int("messages", 12, "`number` of messages for each shop")
	flag.Parse()
	url := cmp.Or(os.Getenv("DRIP_RABBITMQ_URL"), "amqp://guest:guest@localhost:5672/")
	if err := publish(context.Background(), url, *queue, *messages, flag.Args()); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d messages are in the queue %s\n", *messages*flag.NArg(), *queue)
}

// dial waits up to half a minute for a broker that has just been started.
func dial(ctx context.Context, url string) (*amqp.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		conn, err := amqp.Dial(url)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// publish returns when the broker has confirmed each message.
func publish(ctx context.Context, url, queue string, messages int, shops []string) error {
	if messages < 0 {
		return fmt.Errorf("-messages is %d; it must not be below 0", messages)
	}
	conn, err := dial(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Confirm(false); err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
		return err
	}
	for range messages {
		for _, shop := range shops {
			confirmed, err := ch.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false,
				amqp.Publishing{Headers: amqp.Table{"shop": shop}, Body: []byte(shop), DeliveryMode: amqp.Persistent})
			if err != nil {
				return err
			}
			ok, err := confirmed.WaitContext(ctx)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("the broker refused a message for the queue %s", queue)
			}
		}
	}
	return nil
}
