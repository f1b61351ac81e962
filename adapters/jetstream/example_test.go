package dripjetstream_test

import (
	"context"
	"log"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/drip-go/drip"
	dripjetstream "github.com/drip-go/drip/adapters/jetstream"
)

// The messages of a consumer under the limit of their shops.
func Example() {
	if err := run(context.Background()); err != nil {
		log.Print(err)
	}
}

func handle(context.Context, jetstream.Msg) error { return nil }

func run(ctx context.Context) error {
	bucket, err := drip.New(drip.Options{Size: 40, RefreshRate: 2})
	if err != nil {
		return err
	}
	nc, err := nats.Connect(nats.DefaultURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{
		Durable: "sync", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, MaxAckPending: -1,
	})
	if err != nil {
		return err
	}

	limit, err := dripjetstream.New(js, dripjetstream.Options{
		Limiter: bucket,
		Entity:  func(m jetstream.Msg) (string, error) { return m.Headers().Get("shop"), nil },
	})
	if err != nil {
		return err
	}
	return limit.Consume(ctx, consumer, 100, handle)
}
