// Amqp10 publishes twelve messages of three shops and handles them as each shop's limit allows, over AMQP 1.0, in a RabbitMQ
// 4.3 or later: the one that the environment variable DRIP_RABBITMQ_URL names, or amqp://guest:guest@localhost:5672/. It takes
// about three seconds.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	dripamqp10 "github.com/drip-go/drip/adapters/amqp10"
	"github.com/drip-go/drip/worker"
)

func main() {
	if err := run(context.Background(), cmp.Or(os.Getenv("DRIP_RABBITMQ_URL"), "amqp://guest:guest@localhost:5672/"), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

const (
	queue          = "drip-example"
	shops, perShop = 3, 4
)

func run(ctx context.Context, url string, out io.Writer) error {
	if err := publish(ctx, url); err != nil {
		return err
	}

	// One a second, and two at once for a shop that has been idle.
	bucket, err := drip.New(drip.Options{Size: 2, RefreshRate: 1})
	if err != nil {
		return err
	}
	limit, err := dripamqp10.New(dripamqp10.Options{
		Limiter: bucket,
		Entity: func(m *amqp.Message) (string, error) {
			shop, _ := m.ApplicationProperties["shop"].(string)
			return shop, nil
		},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	return limit.Consume(ctx, dripamqp10.Queue{URL: url, Name: queue}, func(ctx context.Context, m *amqp.Message) error {
		fmt.Fprintf(out, "%s  %s of %s runs; postponements: %d\n", time.Now().Format("15:04:05.000"), m.GetData(), m.ApplicationProperties["shop"], worker.OperationOf(ctx).Postponements)
		if handled.Add(1) == shops*perShop {
			stop()
		}
		return nil
	})
}

// publish declares the queue, for which the client of AMQP 1.0 has no call, and publishes as AMQP 0-9-1: RabbitMQ translates.
func publish(ctx context.Context, url string) error {
	conn, err := amqp091.Dial(url)
	if err != nil {
		return err
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}); err != nil {
		return err
	}
	for n := range shops * perShop {
		err := ch.PublishWithContext(ctx, "", queue, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, Body: fmt.Append(nil, "order ", n/shops+1), Headers: amqp091.Table{"shop": fmt.Sprint("shop-", n%shops+1)},
		})
		if err != nil {
			return err
		}
	}
	return nil
}
