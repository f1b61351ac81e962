package dripamqp10_test

import (
	"context"
	"log"

	"github.com/Azure/go-amqp"

	"github.com/drip-go/drip"
	dripamqp10 "github.com/drip-go/drip/adapters/amqp10"
)

// The messages of a queue under the limit of their shops.
func Example() {
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

func handle(context.Context, *amqp.Message) error { return nil }

func run(ctx context.Context) error {
	bucket, err := drip.New(drip.Options{Size: 40, RefreshRate: 2})
	if err != nil {
		return err
	}

	limit, err := dripamqp10.New(dripamqp10.Options{
		Limiter: bucket,
		Entity:  func(m *amqp.Message) (string, error) { return string(m.GetData()), nil },
	})
	if err != nil {
		return err
	}
	return limit.Consume(ctx, dripamqp10.Queue{URL: "amqp://guest:guest@localhost/", Name: "orders"}, handle)
}
