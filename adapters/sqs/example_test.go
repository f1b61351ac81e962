package dripsqs_test

import (
	"context"
	"log"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/drip-go/drip"
	dripsqs "github.com/drip-go/drip/adapters/sqs"
)

// The messages of a queue under the limit of their shops.
func Example() {
	// Package config of the SDK reads the credentials, too.
	if err := run(context.Background(), sqs.New(sqs.Options{Region: "eu-central-1"})); err != nil {
		log.Print(err)
	}
}

func handle(context.Context, *types.Message) error { return nil }

func run(ctx context.Context, client *sqs.Client) error {
	bucket, err := drip.New(drip.Options{Size: 40, RefreshRate: 2})
	if err != nil {
		return err
	}
	const orders = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"

	limit, err := dripsqs.New(client, dripsqs.Options{
		Limiter: bucket,
		Entity: func(m *types.Message) (string, error) {
			return aws.ToString(m.MessageAttributes["shop"].StringValue), nil
		},
	})
	if err != nil {
		return err
	}
	return limit.Consume(ctx, dripsqs.Queue{URL: orders, DeadLetters: orders + "-dead"}, handle)
}
