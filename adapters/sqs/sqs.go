// Package dripsqs takes messages of an Amazon SQS queue through a rate limit of drip.
//
// A Limit sends a message that may not run yet anew with a delay, and deletes the original: only a new message can carry
// the ticket. Its receive count begins again. Delays above 15 minutes take several trips.
package dripsqs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/worker"
)

// Options configure a Limit. Limiter and Entity are required. Attempts defaults to 5.
type Options = worker.Options[*types.Message]

// Queue configures the queue that Consume consumes.
type Queue struct {
	// URL is the URL of the queue, which must be a standard queue. Required.
	URL string

	// DeadLetters is the URL of the standard queue for messages that are given up. They get the attribute drip-reason if
	// there is room for it. Required.
	DeadLetters string

	// Visibility is how long a message is hidden from other consumers, in whole seconds, at most 12 hours. Consume renews
	// it while the message is in hand. Defaults to 30 seconds.
	Visibility time.Duration

	// InHand is the most messages in hand at once, each in a goroutine of its own. Defaults to 64.
	InHand int
}

// Limit takes messages through a limit. Make one with New; it is safe for concurrent use.
//
// A message whose handler returns an error runs again, Options.Attempts times in all. worker.Throttled and worker.Later
// postpone the message. A message that is given up, as by worker.Permanent, goes to the dead letters.
type Limit struct {
	client *sqs.Client
	w      *worker.Worker[*types.Message]
	log    *slog.Logger
}

// New checks the options and makes a Limit. Its error names the field that is wrong, or says that the client is nil.
func New(client *sqs.Client, o Options) (*Limit, error) {
	if client == nil {
		return nil, errors.New("dripsqs: the client is nil")
	}
	o.Attempts = cmp.Or(o.Attempts, 5)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.ID == nil {
		o.ID = func(m *types.Message) string { return aws.ToString(m.MessageId) }
	}
	w, err := worker.New(o)
	if err != nil {
		return nil, err
	}
	return &Limit{client, w, o.Logger}, nil
}

// A postponed message has the note, and a dead letter has the reason. Both take along what SQS itself knows: the tenant in a fair
// queue, and the header that X-Ray follows.
const (
	noteAttribute   = "drip"
	reasonAttribute = "drip-reason"

	group = types.MessageSystemAttributeNameMessageGroupId
	trace = types.MessageSystemAttributeNameAWSTraceHeader
)

// givenUp begins the note of a message that is given up and that the dead letters have refused. Its reason follows.
const givenUp = "given up: "

// Consume handles messages of the queue until ctx ends, and returns nil when the messages in hand have ended. The handlers'
// context ends worker.DrainTime after ctx. It returns an error at once if a field of q is wrong, or if SQS has no queue
// q.DeadLetters. If SQS fails, Consume logs that and tries again.
func (l *Limit) Consume(ctx context.Context, q Queue, handle func(context.Context, *types.Message) error) error {
	q.Visibility, q.InHand = cmp.Or(q.Visibility, 30*time.Second), cmp.Or(q.InHand, 64)
	switch {
	case q.URL == "" || q.DeadLetters == "":
		return errors.New("dripsqs: Queue.URL or Queue.DeadLetters is missing")
	case strings.HasSuffix(q.URL, ".fifo"):
		return errors.New("dripsqs: Queue.URL is one of a FIFO queue, in which a single message can't be delayed")
	case strings.HasSuffix(q.DeadLetters, ".fifo"):
		return errors.New("dripsqs: Queue.DeadLetters is one of a FIFO queue, which takes no message without a group")
	case q.URL == q.DeadLetters:
		return errors.New("dripsqs: Queue.DeadLetters is Queue.URL: a message that is given up would run again and again")
	case q.Visibility < time.Second || q.Visibility%time.Second != 0 || q.Visibility > longestVisibility:
		return fmt.Errorf("dripsqs: Queue.Visibility is %v; it must be in whole seconds, at most %v", q.Visibility, longestVisibility)
	case q.InHand < 0:
		return fmt.Errorf("dripsqs: Queue.InHand is %d; it must be above 0, or 0 for the default", q.InHand)
	case handle == nil:
		return errors.New("dripsqs: handle is nil") // else each message would fail, and be given up
	}
	if err := l.missing(ctx, q.DeadLetters); err != nil { // a message that is given up would run again and again
		return fmt.Errorf("dripsqs: Queue.DeadLetters is %s: %w", q.DeadLetters, err)
	}
	handling, end := worker.Drain(ctx)
	defer end()
	var running sync.WaitGroup
	defer running.Wait()
	c := &consumption{
		Limit: l, q: q, handle: handle,
		copies: l.sends(q.URL, &running), letters: l.sends(q.DeadLetters, &running), done: l.deletions(q.URL, &running),
	}
	hands := make(chan struct{}, q.InHand)
	for ctx.Err() == nil {
		free := 0 // hands, at least one; SQS gives ten messages at most
		for ctx.Err() == nil && (free == 0 || free < 10 && len(hands) < cap(hands)) {
			select {
			case hands <- struct{}{}:
				free++
			case <-ctx.Done():
			}
		}
		receiving, cancel := context.WithTimeout(ctx, receiveTime+callTimeout)
		got, err := l.client.ReceiveMessage(receiving, &sqs.ReceiveMessageInput{
			QueueUrl: &q.URL, MaxNumberOfMessages: int32(max(free, 1)), WaitTimeSeconds: seconds(receiveTime),
			VisibilityTimeout: seconds(q.Visibility), MessageAttributeNames: []string{"All"},
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{group, trace},
		})
		cancel()
		var messages []types.Message
		if err == nil {
			messages = got.Messages
			if c.receiving.Works() {
				l.log.Info("messages from SQS again", "queue", q.URL)
			}
		}
		for i := range messages {
			running.Go(func() {
				defer func() { <-hands }()
				c.step(handling, &messages[i])
			})
		}
		for range free - len(messages) {
			<-hands
		}
		if err != nil && ctx.Err() == nil {
			if c.receiving.Fails(err) {
				l.log.Warn("no messages from SQS, will try again", "queue", q.URL, "error", err)
			}
			sleep.For(ctx, time.Second)
		}
	}
	return nil
}

// missing returns an error if SQS says twice that it has no such queue: it may not know a queue in the first second.
func (l *Limit) missing(ctx context.Context, queue string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for again := false; ; again = true {
		_, err := l.client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
			QueueUrl: &queue, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn},
		})
		none := (*types.QueueDoesNotExist)(nil)
		switch {
		case !errors.As(err, &none): // it may lack the permission to ask
			return nil
		case again:
			return err
		}
		if !sleep.For(ctx, time.Second) {
			return nil
		}
	}
}

// seconds returns d in whole seconds, as SQS takes it.
func seconds(d time.Duration) int32 { return int32(d / time.Second) }

// consumption is one call of Consume.
type consumption struct {
	*Limit
	q               Queue
	copies, letters *batches[types.SendMessageBatchRequestEntry]
	done            *batches[types.DeleteMessageBatchRequestEntry]
	handle          func(context.Context, *types.Message) error

	receiving, burying outage.Outage
}

// step handles a delivery and then deletes the message, postpones it or sends it to the dead letters.
func (c *consumption) step(ctx context.Context, m *types.Message) {
	stop := c.keep(context.WithoutCancel(ctx), m)
	defer stop()
	note := aws.ToString(m.MessageAttributes[noteAttribute].StringValue)
	delete(m.MessageAttributes, noteAttribute)
	why, dead := strings.CutPrefix(note, givenUp)
	delay, kept := time.Duration(0), ""
	if !dead {
		out := c.do(ctx, m, note)
		switch {
		case out.Delay > 0:
			delay, kept = wait(time.Until(out.Note.Due)), out.Note.String()
		case out.Err != nil:
			why, dead = reason(out), true
		}
	}
	ctx = context.WithoutCancel(ctx)
	if dead {
		err := c.letters.do(ctx, copyOf(m, 0, reasonAttribute, why))
		if err != nil && !errors.Is(err, errMomentary) {
			err = c.letters.do(ctx, copyOf(m, 0, "", "")) // there may be no room for the reason
		}
		if err != nil {
			if c.burying.Fails(err) {
				c.log.Warn("the dead letters take no messages", "message_id", aws.ToString(m.MessageId), "error", err)
			}
			delay, kept = buriedLate, givenUp+why // its handler must not run again
		} else if c.burying.Works() {
			c.log.Info("the dead letters take messages again")
		}
	}
	if delay > 0 {
		if err := c.copies.do(ctx, copyOf(m, min(delay, longest), noteAttribute, kept)); err != nil {
			// The message waits without its note and comes back as a new message.
			c.log.Warn("a message loses its ticket", "message_id", aws.ToString(m.MessageId), "error", err)
			stop()
			ctx, cancel := context.WithTimeout(ctx, callTimeout)
			defer cancel()
			_, err = c.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
				QueueUrl: &c.q.URL, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: seconds(min(delay, longestHidden)),
			})
			c.report(m, err)
			return
		}
	}
	c.report(m, c.done.do(ctx, types.DeleteMessageBatchRequestEntry{ReceiptHandle: m.ReceiptHandle}))
}

// do takes a message through the limit.
func (c *consumption) do(ctx context.Context, m *types.Message, note string) worker.Outcome {
	users := *m // whose functions may change it, and then come copies of m
	users.MessageAttributes, users.Attributes = maps.Clone(m.MessageAttributes), maps.Clone(m.Attributes)
	for {
		out := c.w.Do(ctx, &users, note, func(ctx context.Context) error { return c.handle(ctx, &users) })
		if out.Kind != worker.Postponed || out.Delay >= early || ctx.Err() != nil {
			return out
		}
		out.Note.Postponements-- // it stays in hand
		note = out.Note.String() // with which Do waits: a copy takes longer
	}
}

func (l *Limit) report(m *types.Message, err error) {
	if err != nil {
		l.log.Warn("a message will be delivered again", "message_id", aws.ToString(m.MessageId), "error", err)
	}
}

const (
	longest       = 15 * time.Minute // that SQS delays a new message
	longestHidden = 11 * time.Hour   // a little less than longestVisibility, which counts from the receipt

	longestVisibility = 12 * time.Hour // that SQS hides a message

	receiveTime = 20 * time.Second // that SQS waits for messages
	callTimeout = 10 * time.Second // for each call of SQS besides that

	buriedLate = time.Minute // after which a message is a dead letter that the dead letters have refused
)

// early is less time than a worker holds a message that comes early.
const early = 100 * time.Millisecond

// wait returns d in whole seconds, at most early too short, and at least one: the client cannot send none, for which SQS takes the
// queue's own delay.
func wait(d time.Duration) time.Duration {
	return max(time.Second, (d - early + time.Second - 1).Truncate(time.Second))
}

// reason returns the Reason of an outcome for an attribute: not empty, and of the characters that SQS takes.
func reason(out worker.Outcome) string {
	text := strings.Map(func(c rune) rune {
		if c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0xfffe || c == 0xffff {
			return '?'
		}
		return c
	}, out.Reason())
	return cmp.Or(text, "failed")
}

// copyOf returns the message as a new one, with one attribute more if name is not empty.
func copyOf(m *types.Message, delay time.Duration, name, value string) types.SendMessageBatchRequestEntry {
	attributes := maps.Clone(m.MessageAttributes)
	if attributes == nil {
		attributes = map[string]types.MessageAttributeValue{}
	}
	if name != "" {
		attributes[name] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	c := types.SendMessageBatchRequestEntry{MessageBody: m.Body, MessageAttributes: attributes, DelaySeconds: seconds(delay)}
	if tenant, ok := m.Attributes[string(group)]; ok {
		c.MessageGroupId = &tenant
	}
	if header, ok := m.Attributes[string(trace)]; ok {
		c.MessageSystemAttributes = map[string]types.MessageSystemAttributeValue{
			string(trace): {DataType: aws.String("String"), StringValue: &header},
		}
	}
	return c
}

// keep hides a message while it is in hand, until stop is called.
func (c *consumption) keep(ctx context.Context, m *types.Message) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(c.q.Visibility / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				calling, cancel := context.WithTimeout(ctx, max(c.q.Visibility/3, time.Second)) // the last third is left for a second try
				_, err := c.client.ChangeMessageVisibility(calling, &sqs.ChangeMessageVisibilityInput{
					QueueUrl: &c.q.URL, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: seconds(c.q.Visibility),
				})
				cancel()
				if err != nil && ctx.Err() == nil {
					c.log.Warn("a message in hand may be delivered to others", "message_id", aws.ToString(m.MessageId), "error", err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return sync.OnceFunc(func() { cancel(); <-stopped })
}
