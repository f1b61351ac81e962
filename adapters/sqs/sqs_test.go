package dripsqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/worker"
	"github.com/drip-go/drip/workertest"
)

var adapter = workertest.Adapter{Open: open, Late: 1500 * time.Millisecond, Again: 12 * time.Second}

func TestMain(m *testing.M) {
	workertest.Child(adapter)
	os.Exit(servers.Main(m))
}

func TestAdapter(t *testing.T) {
	workertest.Run(t, adapter, servers.UseSQS(t).URL())
}

func BenchmarkAdapter(b *testing.B) {
	workertest.Benchmark(b, adapter, servers.UseSQS(b).URL())
}

type queue struct {
	client       *sqs.Client
	url, letters string
}

func newClient(url string) *sqs.Client {
	return sqs.New(sqs.Options{
		Region: "local", BaseEndpoint: &url, RetryMaxAttempts: 1,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
}

func open(ctx context.Context, url, name string) (workertest.Queue, error) {
	q := &queue{client: newClient(url)}
	for name, url := range map[string]*string{name: &q.url, name + "-dead": &q.letters} {
		out, err := q.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name})
		if err != nil {
			return nil, err
		}
		*url = *out.QueueUrl
	}
	return q, nil
}

func (q *queue) Publish(ctx context.Context, messages ...workertest.Message) error {
	for _, m := range messages {
		body, err := json.Marshal(m)
		if err == nil {
			_, err = q.client.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String(string(body))})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func message(m *types.Message) (msg workertest.Message, err error) {
	err = json.Unmarshal([]byte(*m.Body), &msg)
	return msg, err
}

func (q *queue) Consume(ctx context.Context, l worker.Limiter, handle func(context.Context, workertest.Message) error) error {
	limit, err := New(q.client, Options{Limiter: l, RetryDelay: 200 * time.Millisecond, Entity: func(m *types.Message) (string, error) {
		msg, err := message(m)
		return msg.Entity, err
	}})
	if err != nil {
		return err
	}
	return limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters, Visibility: 5 * time.Second}, func(ctx context.Context, m *types.Message) error {
		msg, err := message(m)
		if err != nil {
			return err
		}
		return handle(ctx, msg)
	})
}

// ConsumeBare receives ten messages at a time, and handles them one after the other.
func (q *queue) ConsumeBare(ctx context.Context, handle func(context.Context, workertest.Message) error) error {
	for ctx.Err() == nil {
		got, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &q.url, MaxNumberOfMessages: 10, WaitTimeSeconds: 20, VisibilityTimeout: 30})
		if err != nil {
			continue
		}
		for i := range got.Messages {
			m, err := message(&got.Messages[i])
			if err == nil {
				err = handle(ctx, m)
			}
			if err == nil {
				_, err = q.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &q.url, ReceiptHandle: got.Messages[i].ReceiptHandle})
			}
			if err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
	return nil
}

// Left adds up what the server counts apart. The server of the tests counts exactly; Amazon's takes a minute for that.
func (q *queue) Left(ctx context.Context) (int, error) {
	visible, hidden, delayed, err := q.counts(ctx)
	return visible + hidden + delayed, err
}

func (q *queue) counts(ctx context.Context) (visible, hidden, delayed int, err error) {
	out, err := q.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{QueueUrl: &q.url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		return 0, 0, 0, err
	}
	_, err = fmt.Sscan(out.Attributes["ApproximateNumberOfMessages"]+" "+out.Attributes["ApproximateNumberOfMessagesNotVisible"]+" "+
		out.Attributes["ApproximateNumberOfMessagesDelayed"], &visible, &hidden, &delayed)
	return visible, hidden, delayed, err
}

// A message that is given up is a dead letter with its reason, its body and its attributes. One that has ten attributes, as
// many as SQS allows, is put off without its ticket.
func TestAttributes(t *testing.T) {
	opened, err := open(t.Context(), servers.UseSQS(t).URL(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	q := opened.(*queue)
	attributes := map[string]types.MessageAttributeValue{}
	for _, name := range strings.Split("abcdefghij", "") {
		attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(name)}
	}
	for i, n := range []int{10, 9, 10} {
		if i == 1 {
			delete(attributes, "j")
		} else {
			attributes["j"] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String("j")}
		}
		if len(attributes) != n {
			t.Fatal(n)
		}
		if _, err := q.client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String("body"), MessageAttributes: attributes}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String("useless"), MessageAttributes: attributes}); err != nil {
		t.Fatal(err)
	}
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1})
	limit, err := New(q.client, Options{Limiter: bucket, Entity: func(*types.Message) (string, error) { return "shop", nil }})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan types.Message, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters}, func(_ context.Context, m *types.Message) error {
			ran <- *m
			if len(m.MessageAttributes) == 9 || *m.Body == "useless" {
				return worker.Permanent(errors.New("of no use"))
			}
			return nil
		})
	}()
	for range 4 {
		if m := <-ran; *m.MessageAttributes["a"].StringValue != "a" || len(m.MessageAttributes) < 9 {
			t.Errorf("the handler gets %+v", m)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	got, err := q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &q.letters, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}})
	if err != nil || len(got.Messages) != 2 {
		t.Fatalf("the dead letters are %+v (%v)", got, err)
	}
	for _, m := range got.Messages {
		reason := aws.ToString(m.MessageAttributes[reasonAttribute].StringValue)
		if len(m.MessageAttributes) != 10 || *m.Body == "body" && reason != "of no use" {
			t.Errorf("a dead letter is %+v, %s", m, reason)
		}
	}
	for want, queue := range map[string]Queue{"FIFO": {URL: "https://sqs/1/orders.fifo", DeadLetters: "x"}, "DeadLetters": {URL: "x"}, "Visibility": {URL: "x", DeadLetters: "x", Visibility: time.Millisecond}} {
		if err := limit.Consume(t.Context(), queue, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Consume = %v, want one that names %s", err, want)
		}
	}
}
