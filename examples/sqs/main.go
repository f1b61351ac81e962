// Sqs sends twelve messages of three shops and handles them as each shop's limit allows. It makes two queues, and deletes them
// at its end. Where SQS is, and the credentials, it takes from the environment, as the AWS CLI does: AWS_REGION,
// AWS_ENDPOINT_URL for another server than Amazon's, and so on. It takes about five seconds.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/drip-go/drip"
	dripsqs "github.com/drip-go/drip/adapters/sqs"
	"github.com/drip-go/drip/worker"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

const shops, perShop = 3, 4

func run(ctx context.Context, out io.Writer) (err error) {
	environment, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	client := sqs.NewFromConfig(environment)
	name := fmt.Sprint("drip-example-", time.Now().UnixMilli())
	orders, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name})
	if err != nil {
		return err
	}
	remove := func(url *string) {
		_, removed := client.DeleteQueue(context.WithoutCancel(ctx), &sqs.DeleteQueueInput{QueueUrl: url})
		err = errors.Join(err, removed)
	}
	defer remove(orders.QueueUrl)
	dead, err := client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: aws.String(name + "-dead")})
	if err != nil {
		return err
	}
	defer remove(dead.QueueUrl)
	for n := range shops * perShop {
		_, err := client.SendMessage(ctx, &sqs.SendMessageInput{
			QueueUrl: orders.QueueUrl, MessageBody: aws.String(fmt.Sprint("order ", n/shops+1)),
			MessageAttributes: map[string]types.MessageAttributeValue{"shop": {DataType: aws.String("String"), StringValue: aws.String(fmt.Sprint("shop-", n%shops+1))}},
		})
		if err != nil {
			return err
		}
	}

	// One a second, and two at once for a shop that has been idle.
	bucket, err := drip.New(drip.Options{Size: 2, RefreshRate: 1})
	if err != nil {
		return err
	}
	limit, err := dripsqs.New(client, dripsqs.Options{
		Limiter: bucket,
		Entity:  func(m *types.Message) (string, error) { return shop(m), nil },
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var handled atomic.Int64
	return limit.Consume(ctx, dripsqs.Queue{URL: *orders.QueueUrl, DeadLetters: *dead.QueueUrl}, func(ctx context.Context, m *types.Message) error {
		fmt.Fprintf(out, "%s  %s of %s runs; postponements: %d\n", time.Now().Format("15:04:05.000"), *m.Body, shop(m), worker.OperationOf(ctx).Postponements)
		if handled.Add(1) == shops*perShop {
			stop()
		}
		return nil
	})
}

func shop(m *types.Message) string { return aws.ToString(m.MessageAttributes["shop"].StringValue) }
