// Middleware is a RabbitMQ consume loop as many programs have one, with drip added. The handler stays as it was, and so does
// the loop, but for the line that gives a message back. All that is added stands below it.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/worker"
)

// --- What was there -------------------------------------------------------------------------------------------

type handler func(ctx context.Context, d *amqp.Delivery) error

const workers = 10

// consume hands deliveries to handle until ctx ends, and finishes the deliveries in hand.
func consume(ctx context.Context, url, queue string, handle handler) error {
	conn, err := amqp.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if err := ch.Qos(workers, 0, false); err != nil {
		return err
	}
	deliveries, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for d := range deliveries {
				err := handle(context.WithoutCancel(ctx), &d)
				if err == nil {
					err = d.Ack(false)
				} else {
					err = errors.Join(err, giveBack(&d, err)) // drip: it was d.Nack(false, !d.Redelivered): once more, then no more
				}
				if err != nil {
					log.Printf("%s: %v", d.Body, err)
				}
			}
		})
	}
	wg.Wait()
	if ctx.Err() == nil {
		return errors.New("the broker has ended the consumer")
	}
	return nil
}

// work calls the rate-limited service.
func work(_ context.Context, d *amqp.Delivery) error {
	log.Printf("%s: %s", d.Headers["shop"], d.Body)
	return nil
}

// --- What drip adds -------------------------------------------------------------------------------------------

// limited consumes as consume does, but at most ten messages a second of each shop. A message that may not run yet goes to
// a delay queue. handle never sees it, and the loop acknowledges it. It comes back when it is due.
func limited(ctx context.Context, url, queue string, handle handler) error {
	handle = twice(handle)
	bucket, err := drip.New(drip.Options{Size: 20, RefreshRate: 10})
	if err != nil {
		return err
	}
	delays, err := consumer.OpenDelayQueues(ctx, consumer.DelayQueuesOptions{URL: url, Queue: queue})
	if err != nil {
		return err
	}
	defer delays.Close()
	limit := consumer.Limit(bucket, shop, delays)
	return consume(ctx, url, queue, limit(consumer.HandlerFunc(handle)).Handle)
}

// giveBack rejects a message that fails for good. The broker delivers any other one again: perhaps drip could not postpone it,
// and a loop that drops such a message loses it.
func giveBack(d *amqp.Delivery, err error) error {
	final := consumer.IsPermanent(err)
	if !final {
		time.Sleep(time.Second) // else it comes again at once, again and again
	}
	return d.Nack(false, !final)
}

// twice gives up a message whose second delivery fails in the handler, as the loop did. drip postpones a copy, so a message that it
// postpones in between has two deliveries again.
func twice(handle handler) handler {
	return func(ctx context.Context, d *amqp.Delivery) error {
		err := handle(ctx, d)
		if refused := (*worker.ThrottledError)(nil); err != nil && d.Redelivered && !errors.As(err, &refused) {
			return consumer.Permanent(err)
		}
		return err
	}
}

// shop returns the shop whose limit a message falls under.
func shop(d *amqp.Delivery) (string, error) {
	shop, ok := d.Headers["shop"].(string)
	if !ok {
		return "", consumer.Permanent(errors.New(`there is no header "shop"`))
	}
	return shop, nil
}

// --------------------------------------------------------------------------------------------------------------

func main() {
	queue := flag.String("queue", "orders", "the `name` of the queue, which must exist")
	flag.Parse()
	url := cmp.Or(os.Getenv("DRIP_RABBITMQ_URL"), "amqp://guest:guest@127.0.0.1:5672/")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)                            // a second Ctrl-C ends at once
	if err := limited(ctx, url, *queue, work); err != nil { // drip: it was consume
		log.Fatal(err)
	}
}
