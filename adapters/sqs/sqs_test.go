package dripsqs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
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
		Region: "local", BaseEndpoint: &url, RetryMaxAttempts: 1, HTTPClient: strict{awshttp.NewBuildableClient()},
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "test", SecretAccessKey: "test"}, nil
		}),
	})
}

// strict refuses what Amazon's SQS refuses and the server of the tests takes: more than ten attributes, a value with control
// characters, a delay above 15 minutes. It refuses all entries of the call.
type strict struct{ sqs.HTTPClient }

func (s strict) Do(r *http.Request) (*http.Response, error) {
	if r.Header.Get("X-Amz-Target") != "AmazonSQS.SendMessageBatch" {
		return s.HTTPClient.Do(r)
	}
	var in struct {
		Entries []struct {
			DelaySeconds      int
			MessageAttributes map[string]struct{ StringValue string }
		}
	}
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil {
		return nil, err
	}
	refused := false
	for _, e := range in.Entries {
		refused = refused || e.DelaySeconds > 900 || len(e.MessageAttributes) > 10
		for _, a := range e.MessageAttributes {
			refused = refused || strings.ContainsFunc(a.StringValue, func(c rune) bool { return c < ' ' && !strings.ContainsRune("\t\n\r", c) })
		}
	}
	if refused {
		return &http.Response{
			StatusCode: http.StatusBadRequest, Request: r,
			Body: io.NopCloser(strings.NewReader(`{"__type": "com.amazonaws.sqs#InvalidParameterValue", "message": "a delay or an attribute"}`)),
		}, nil
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return s.HTTPClient.Do(r)
}

func open(ctx context.Context, url, name string) (workertest.Queue, error) {
	return create(ctx, url, name, nil)
}

// create makes a queue, and its queue of dead letters, with these attributes.
func create(ctx context.Context, url, name string, attributes map[string]string) (*queue, error) {
	q := &queue{client: newClient(url)}
	for name, url := range map[string]*string{name: &q.url, name + "-dead": &q.letters} {
		out, err := q.client.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
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
	q := opened(t, "orders", nil)
	ten := map[string]types.MessageAttributeValue{}
	for _, name := range strings.Split("abcdefghij", "") {
		ten[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(name)}
	}
	nine := maps.Clone(ten)
	delete(nine, "j")
	for _, m := range []struct {
		body       string
		attributes map[string]types.MessageAttributeValue
	}{{"body", ten}, {"body", nine}, {"body", ten}, {"useless", ten}} {
		q.send(t, sqs.SendMessageInput{MessageBody: &m.body, MessageAttributes: m.attributes})
	}
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1})
	limit := limiting(t, q.client, bucket)
	ran := make(chan types.Message, 10)
	_, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters}, func(_ context.Context, m *types.Message) error {
			ran <- *m
			if len(m.MessageAttributes) == 9 || *m.Body == "useless" {
				return worker.Permanent(errors.New("of\x00no use"))
			}
			return nil
		})
	})
	for range 4 {
		if m := <-ran; *m.MessageAttributes["a"].StringValue != "a" || len(m.MessageAttributes) < 9 {
			t.Errorf("the handler gets %+v", m)
		}
	}
	end()
	got, err := q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &q.letters, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"}})
	if err != nil || len(got.Messages) != 2 {
		t.Fatalf("the dead letters are %+v (%v)", got, err)
	}
	for _, m := range got.Messages {
		reason := aws.ToString(m.MessageAttributes[reasonAttribute].StringValue)
		if len(m.MessageAttributes) != 10 || *m.Body == "body" && reason != "of?no use" {
			t.Errorf("a dead letter is %+v, %s", m, reason)
		}
	}
	for want, queue := range map[string]Queue{
		"FIFO": {URL: "https://sqs/1/orders.fifo", DeadLetters: "x"}, "DeadLetters is": {URL: "x", DeadLetters: "https://sqs/1/dead.fifo"},
		"DeadLetters": {URL: "x"}, "Visibility": {URL: "x", DeadLetters: "y", Visibility: time.Millisecond}, "at most 12h": {URL: "x", DeadLetters: "y", Visibility: 13 * time.Hour},
		"handle is nil": {URL: "x", DeadLetters: "y"}, "again and again": {URL: "x", DeadLetters: "x"},
	} {
		if err := limit.Consume(t.Context(), queue, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Consume = %v, want one that names %s", err, want)
		}
	}
}

// limiting makes a Limit whose messages are all of one shop.
func limiting(t *testing.T, client *sqs.Client, l worker.Limiter) *Limit {
	t.Helper()
	limit, err := New(client, Options{Limiter: l, Entity: func(*types.Message) (string, error) { return "shop", nil }})
	ok(t, err)
	return limit
}

var ok = oktest.OK // ends the test if there is an error

func (q *queue) send(t *testing.T, in sqs.SendMessageInput) {
	t.Helper()
	in.QueueUrl = &q.url
	_, err := q.client.SendMessage(t.Context(), &in)
	ok(t, err)
}

func opened(t *testing.T, name string, attributes map[string]string) *queue {
	t.Helper()
	q, err := create(t.Context(), servers.UseSQS(t).URL(), fmt.Sprint(name, time.Now().UnixNano()), attributes)
	ok(t, err)
	return q
}

// consume handles messages, one a second, until so many have run and the queue has as many left.
func (q *queue) consume(t *testing.T, bodies []string, left int, handle func(m *types.Message) error) (postponements int) {
	t.Helper()
	for _, body := range bodies {
		q.send(t, sqs.SendMessageInput{MessageBody: &body})
	}
	limit := limiting(t, q.client, buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1}))
	var ran, postponed atomic.Int64
	ctx, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters}, func(ctx context.Context, m *types.Message) error {
			ran.Add(1)
			postponed.Add(int64(worker.OperationOf(ctx).Postponements))
			return handle(m)
		})
	})
	for n := -1; (int(ran.Load()) < len(bodies) || n != left) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		var err error
		n, err = q.Left(t.Context())
		ok(t, err)
	}
	end()
	if int(ran.Load()) != len(bodies) {
		t.Fatalf("of %d messages ran %d", len(bodies), ran.Load())
	}
	return int(postponed.Load())
}

// A message has no room for a ticket, nor a dead letter for its reason, in a queue whose messages may be no larger. It is put
// off all the same, and given up once.
func TestLargestMessage(t *testing.T) {
	q := opened(t, "large", map[string]string{"MaximumMessageSize": "1024"})
	body := strings.Repeat("x", 1024)
	q.consume(t, []string{body, body}, 0, func(*types.Message) error { return worker.Permanent(errors.New("of no use")) })
	got, err := q.client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &q.letters, MaxNumberOfMessages: 10})
	if err != nil || len(got.Messages) != 2 || *got.Messages[0].Body != body {
		t.Errorf("the dead letters are %+v (%v)", got, err)
	}
}

// Without the queue of the dead letters Consume does not begin: a message that is given up would run again and again.
func TestNoDeadLetters(t *testing.T) {
	q := opened(t, "letterless", nil)
	q.send(t, sqs.SendMessageInput{MessageBody: aws.String("body")})
	limit := limiting(t, q.client, buckettest.New(t, drip.Options{}))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	none := q.letters + "-none"
	err := limit.Consume(ctx, Queue{URL: q.url, DeadLetters: none}, func(context.Context, *types.Message) error {
		t.Error("a message runs")
		cancel()
		return nil
	})
	var missing *types.QueueDoesNotExist
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "Queue.DeadLetters") || !strings.Contains(err.Error(), none) {
		t.Errorf("Consume = %v; want the name of the missing queue", err)
	}
}

// A delay that is too long for SQS begins with its longest.
func TestLongDelay(t *testing.T) {
	q := opened(t, "long", nil)
	q.consume(t, []string{"tomorrow"}, 1, func(*types.Message) error { return worker.Later(24*time.Hour, nil) })
	if _, _, delayed, err := q.counts(t.Context()); delayed != 1 || err != nil {
		t.Errorf("%d messages wait for their delay (%v)", delayed, err)
	}
}

// A queue may delay new messages by itself. A postponed message waits no longer for that, however short its delay is.
func TestQueueWithADelayOfItsOwn(t *testing.T) {
	q := opened(t, "delaying", map[string]string{"DelaySeconds": "600"})
	for range 3 {
		q.send(t, sqs.SendMessageInput{MessageBody: aws.String("order"), DelaySeconds: 1})
	}
	limit := limiting(t, q.client, buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 50 * time.Millisecond}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var ran atomic.Int64
	err := limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters}, func(context.Context, *types.Message) error {
		n := ran.Add(1)
		if n == 6 {
			cancel()
		}
		if n <= 3 {
			return worker.Later(time.Millisecond, nil)
		}
		return nil
	})
	if err != nil || ran.Load() != 6 {
		t.Errorf("Consume = %v, with %d of 6 runs", err, ran.Load())
	}
}

// A message that waits in hand for a slot that is near is not postponed.
func TestWaitInHand(t *testing.T) {
	q := opened(t, "near", nil)
	q.send(t, sqs.SendMessageInput{MessageBody: aws.String("order")})
	asked := 0
	limit, err := New(q.client, Options{
		Limiter: &buckettest.Plain{Delays: func(string) (time.Duration, error) {
			if asked++; asked < 5 {
				return 20 * time.Millisecond, nil
			}
			return 0, nil
		}},
		Entity: func(*types.Message) (string, error) { return "shop", nil }, MaxPostponements: 1,
	})
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	postponements := -1
	err = limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters}, func(ctx context.Context, _ *types.Message) error {
		postponements = worker.OperationOf(ctx).Postponements
		cancel()
		return nil
	})
	if err != nil || postponements != 0 {
		t.Errorf("Consume = %v, the message has run after %d postponements (-1: it has not)", err, postponements)
	}
}

// A queue's redrive policy does not count postponements: it takes no message away that was received once since.
func TestRedrivePolicy(t *testing.T) {
	q := opened(t, "redriven", nil)
	policy := fmt.Sprintf(`{"maxReceiveCount": 1, "deadLetterTargetArn": %q}`, q.arn(t, q.letters))
	_, err := q.client.SetQueueAttributes(t.Context(), &sqs.SetQueueAttributesInput{QueueUrl: &q.url, Attributes: map[string]string{"RedrivePolicy": policy}})
	ok(t, err)
	if n := q.consume(t, []string{"1", "2", "3", "4"}, 0, func(*types.Message) error { return nil }); n < 2 { // "2" may wait in hand
		t.Errorf("the messages were postponed %d times", n)
	}
}

func (q *queue) arn(t *testing.T, url string) string {
	t.Helper()
	out, err := q.client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
	ok(t, err)
	return out.Attributes["QueueArn"]
}

// A copy takes along the message group and the trace header. The server of the tests forgets both.
func TestSystemAttributes(t *testing.T) {
	c := copyOf(&types.Message{Body: aws.String("body"), Attributes: map[string]string{"MessageGroupId": "tenant", "AWSTraceHeader": "Root=1"}}, 0, "", "")
	if header := c.MessageSystemAttributes["AWSTraceHeader"]; aws.ToString(c.MessageGroupId) != "tenant" || aws.ToString(header.StringValue) != "Root=1" {
		t.Errorf("the copy is %+v", c)
	}
}

// The reason of a dead letter is a text that SQS takes.
func TestReason(t *testing.T) {
	for _, text := range []string{"", "\x00\x1b[31mred\x1b[0m", "a\xff", strings.Repeat("ü", 700) + "x", "\ufffe"} {
		got := reason(worker.Outcome{Err: errors.New(text)})
		bad := strings.ContainsFunc(got, func(c rune) bool { return c == utf8.RuneError || c < ' ' || c == 0xfffe })
		if got == "" || len(got) > 1000 || bad {
			t.Errorf("the reason of %q is %q", text, got)
		}
	}
}

// A message that is given up runs once, also if the dead letters refuse it. It waits in its queue, and becomes a dead letter with its
// reason when they take it.
func TestRefusingDeadLetters(t *testing.T) {
	q := opened(t, "refused", nil)
	set := func(attribute, value string) {
		t.Helper()
		_, err := q.client.SetQueueAttributes(t.Context(), &sqs.SetQueueAttributesInput{QueueUrl: &q.letters, Attributes: map[string]string{attribute: value}})
		ok(t, err)
	}
	set("MaximumMessageSize", "1024")
	q.send(t, sqs.SendMessageInput{MessageBody: aws.String(strings.Repeat("x", 2000))})
	limit := limiting(t, q.client, buckettest.New(t, drip.Options{}))
	var ran atomic.Int64
	ctx, end := oktest.Begin(t, time.Minute, func(ctx context.Context) error {
		return limit.Consume(ctx, Queue{URL: q.url, DeadLetters: q.letters}, func(context.Context, *types.Message) error {
			ran.Add(1)
			return worker.Permanent(errors.New("of no use"))
		})
	})
	for delayed := 0; delayed == 0 && ran.Load() < 2 && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		var err error
		_, _, delayed, err = q.counts(t.Context())
		ok(t, err)
	}
	set("MaximumMessageSize", "4096")
	due := types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(givenUp + "of old")} // which is due now
	q.send(t, sqs.SendMessageInput{MessageBody: aws.String("old"), MessageAttributes: map[string]types.MessageAttributeValue{noteAttribute: due}})
	got, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &q.letters, WaitTimeSeconds: 20, MessageAttributeNames: []string{"All"}})
	end()
	ok(t, err)
	if n := ran.Load(); n != 1 {
		t.Errorf("the message that was given up ran %d times", n)
	}
	if len(got.Messages) != 1 || *got.Messages[0].Body != "old" || len(got.Messages[0].MessageAttributes) != 1 ||
		aws.ToString(got.Messages[0].MessageAttributes[reasonAttribute].StringValue) != "of old" {
		t.Errorf("the dead letters are %+v", got.Messages)
	}
}
