// Rabbitmq is the smallest consumer: it takes messages from the queue "orders" and handles them, no more often than the
// limit of each message's shop and the limit of all shops together allow.
//
//	go run ./examples/rabbitmq
//
// The queue must exist: examples/publish declares it. The body of a message is the name of its shop.
package main

import (
	"cmp"
	"context"
	"log"
	"os"
	"os/signal"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	bucket, err := drip.New(drip.Options{
		Size: 5, RefreshRate: 3, // each shop: 3 a second, 5 at once if it was idle
		Shared: map[string]drip.Limit{"app": {Size: 10}}, // all shops together: 10 a second
	})
	if err != nil {
		log.Fatal(err)
	}
	c, err := consumer.New(consumer.Options{
		URL:     cmp.Or(os.Getenv("DRIP_RABBITMQ_URL"), "amqp://guest:guest@localhost:5672/"),
		Queue:   "orders",
		Limiter: bucket,
		Entity:  func(d *amqp.Delivery) (string, error) { return string(d.Body), nil },
		Handler: consumer.HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			log.Printf("a call for %s", d.Body) // call the service here
			return nil
		}),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
