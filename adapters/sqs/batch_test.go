package dripsqs

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/drip-go/drip/worker"
)

// free lets everything run.
type free struct{}

func (free) GetDelay(context.Context, string) (time.Duration, error) { return 0, nil }
func (free) ReturnToken(context.Context, string) error               { return nil }

// mute is an SQS with one message, which does not answer when a message is sent.
type mute struct {
	received bool
	hidden   int32  // for how many seconds the message is hidden
	over     func() // called then
}

func (s *mute) Do(r *http.Request) (*http.Response, error) {
	answer := "{}"
	time.Sleep(10 * time.Millisecond) // on the way
	switch _, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); {
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case call == "ChangeMessageVisibility":
		var in sqs.ChangeMessageVisibilityInput
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, err
		}
		s.hidden = in.VisibilityTimeout
		s.over()
	case call == "ReceiveMessage" && !s.received:
		s.received = true
		answer = `{"Messages": [{"MessageId": "1", "Body": "body", "ReceiptHandle": "receipt"}]}`
	default:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// postponesAll consumes a queue of a server, with a handler that postpones each message by an hour.
func postponesAll(t *testing.T, ctx context.Context, server sqs.HTTPClient) error {
	t.Helper()
	o := newClient("https://sqs.local").Options()
	o.HTTPClient, o.DisableMessageChecksumValidation = server, true
	limit, err := New(sqs.New(o), Options{Limiter: free{}, Entity: func(*types.Message) (string, error) { return "shop", nil }})
	if err != nil {
		t.Fatal(err)
	}
	q := Queue{URL: "https://sqs.local/orders", DeadLetters: "https://sqs.local/dead", Visibility: time.Minute}
	return limit.Consume(ctx, q, func(context.Context, *types.Message) error { return worker.Later(time.Hour, nil) })
}

// A message that SQS does not take in time is hidden instead, for as long as it is to wait.
func TestHiddenAfterASilentSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		server := &mute{over: cancel}
		err := postponesAll(t, ctx, server)
		if err != nil || server.hidden < 3500 {
			t.Errorf("Consume = %v, and the message is hidden for %d seconds, want about an hour", err, server.hidden)
		}
	})
}

// Messages that are too large for one call together are sent, and a message that SQS refuses takes no other along.
func TestBatches(t *testing.T) {
	const kib = 1024
	for name, c := range map[string]struct {
		bodies  []int // sizes
		delays  []int32
		refused int
	}{
		"small":               {bodies: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		"one alone":           {bodies: []int{1}},
		"too large in all":    {bodies: []int{900 * kib, 900 * kib, 900 * kib, 900 * kib}},
		"one too large":       {bodies: []int{1, 1, 1, 1025 * kib, 1}, refused: 1},
		"a delay too long":    {bodies: []int{1, 1, 1, 1, 1}, delays: []int32{0, 0, 901, 0, 0}, refused: 1},
		"all delays too long": {bodies: []int{1, 1}, delays: []int32{901, 901}, refused: 2},
	} {
		t.Run(name, func(t *testing.T) {
			q := opened(t, "batches", nil)
			var running, callers sync.WaitGroup
			sends := (&Limit{client: q.client}).sends(q.url, &running)
			errs := make([]error, len(c.bodies))
			for i, n := range c.bodies {
				body := strings.Repeat("x", n)
				e := types.SendMessageBatchRequestEntry{MessageBody: &body}
				if c.delays != nil {
					e.DelaySeconds = c.delays[i]
				}
				callers.Go(func() { errs[i] = sends.do(t.Context(), e) })
			}
			callers.Wait()
			running.Wait()
			refused := 0
			for i, err := range errs {
				if wrong := c.bodies[i] > 1024*kib || c.delays != nil && c.delays[i] > 900; (err != nil) != wrong {
					t.Errorf("message %d: %v", i, err)
				}
				if err != nil {
					refused++
				}
			}
			if left, err := q.Left(t.Context()); err != nil || left != len(c.bodies)-c.refused || refused != c.refused {
				t.Errorf("%d messages are in the queue (%v), %d were refused of %d", left, err, refused, len(c.bodies))
			}
		})
	}
}

// taking is an SQS with one message, which takes one copy of it.
type taking struct {
	received bool
	copy     types.SendMessageBatchRequestEntry
	over     func() // called then
}

func (s *taking) Do(r *http.Request) (*http.Response, error) {
	answer := `{"Successful": [], "Failed": []}`
	time.Sleep(10 * time.Millisecond) // on the way
	switch _, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); {
	case call == "SendMessageBatch":
		var in sqs.SendMessageBatchInput
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, err
		}
		s.copy = in.Entries[0]
		s.over()
	case call == "ReceiveMessage" && !s.received:
		s.received = true
		answer = `{"Messages": [{"MessageId": "1", "Body": "body", "ReceiptHandle": "receipt",
			"MessageAttributes": {"shop": {"DataType": "String", "StringValue": "a"}}}]}`
	case call == "ReceiveMessage":
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// A copy is the message as it came, whatever its handler has done to the message in hand.
func TestCopyAfterAHandlerThatWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		server := &taking{over: cancel}
		client := sqs.New(sqs.Options{Region: "eu-west-1", HTTPClient: server, Credentials: aws.AnonymousCredentials{}})
		limit, err := New(client, Options{Limiter: free{}, Entity: func(*types.Message) (string, error) { return "shop", nil }})
		if err != nil {
			t.Fatal(err)
		}
		err = limit.Consume(ctx, Queue{URL: "http://sqs/q", DeadLetters: "http://sqs/dead"}, func(_ context.Context, m *types.Message) error {
			m.Body = aws.String("unpacked")
			delete(m.MessageAttributes, "shop")
			return worker.Later(time.Second, nil)
		})
		c := server.copy
		if err != nil || aws.ToString(c.MessageBody) != "body" || aws.ToString(c.MessageAttributes["shop"].StringValue) != "a" {
			t.Errorf("the copy is %q with %v, %v", aws.ToString(c.MessageBody), c.MessageAttributes, err)
		}
	})
}

// dropping is an SQS with one message that gives no answer to the first call of a kind.
type dropping struct {
	kind     string
	dropped  bool
	received bool
	renewed  []time.Time
}

func (s *dropping) Do(r *http.Request) (*http.Response, error) {
	answer := "{}"
	time.Sleep(10 * time.Millisecond) // on the way
	_, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	switch {
	case call == s.kind && !s.dropped:
		s.dropped = true
		<-r.Context().Done()
		return nil, r.Context().Err()
	case call == "ChangeMessageVisibility":
		s.renewed = append(s.renewed, time.Now())
	case call == "DeleteMessageBatch":
		answer = `{"Successful": [], "Failed": []}`
	case call == "ReceiveMessage" && !s.received:
		s.received = true
		answer = `{"Messages": [{"MessageId": "1", "Body": "body", "ReceiptHandle": "receipt"}]}`
	case call == "ReceiveMessage":
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// A call that SQS does not answer stops neither the consumer nor the renewals of a message in hand.
func TestSilentCalls(t *testing.T) {
	for _, kind := range []string{"ReceiveMessage", "ChangeMessageVisibility"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				server := &dropping{kind: kind}
				client := sqs.New(sqs.Options{Region: "eu-west-1", HTTPClient: server, Credentials: aws.AnonymousCredentials{}})
				limit, err := New(client, Options{Limiter: free{}, Entity: func(*types.Message) (string, error) { return "shop", nil }})
				if err != nil {
					t.Fatal(err)
				}
				var began time.Time
				err = limit.Consume(ctx, Queue{URL: "http://sqs/q", DeadLetters: "http://sqs/dead"}, func(context.Context, *types.Message) error {
					began = time.Now()
					time.Sleep(time.Minute)
					cancel()
					return nil
				})
				if err != nil || began.IsZero() {
					t.Fatalf("Consume = %v, and the handler began at %v", err, began)
				}
				if len(server.renewed) == 0 || server.renewed[0].Sub(began) >= 30*time.Second {
					t.Errorf("the message in hand was hidden anew at %v, its handler began at %v", server.renewed, began)
				}
			})
		})
	}
}

// SQS refuses a call of several entries, and is slow. The single calls that follow are only for callers that still wait: the
// others have done without.
func TestRefusedBatchOfCallersThatLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, callers sync.WaitGroup
		var mu sync.Mutex
		left := map[int]bool{}
		b := &batches[int]{running: &running, number: func(*int, *string) {}}
		b.call = func(_ context.Context, entries []int) ([]types.BatchResultErrorEntry, error) {
			mu.Lock()
			if left[entries[0]] {
				t.Errorf("a call for entry %d begins after its caller has left", entries[0])
			}
			mu.Unlock()
			time.Sleep(4 * time.Second)
			if len(entries) > 1 {
				return nil, &smithy.GenericAPIError{Code: "AWS.SimpleQueueService.BatchRequestTooLong"}
			}
			return nil, nil
		}
		for i := range 6 {
			callers.Go(func() {
				if err := b.do(t.Context(), i); err != nil {
					mu.Lock()
					left[i] = true
					mu.Unlock()
				}
			})
			synctest.Wait()
		}
		callers.Wait()
		running.Wait()
		if len(left) == 0 {
			t.Error("no caller has left")
		}
	})
}

// failing is an SQS with one message that fails the entries of the first call of a kind, through no fault of the caller. If it is away
// for a time, no call of the kind comes through for so long.
type failing struct {
	kind     string
	away     time.Duration
	until    time.Time
	received bool
	calls    []string // that took effect
	over     func()   // called when the message is deleted or hidden
}

func (s *failing) err() error {
	if s.kind == "DeleteMessageBatch" {
		return io.ErrUnexpectedEOF
	}
	return &net.OpError{Op: "dial", Err: errors.New("connection refused")} // else SQS may have sent the message
}

func (s *failing) Do(r *http.Request) (*http.Response, error) {
	answer := `{"Successful": [], "Failed": []}`
	time.Sleep(10 * time.Millisecond) // on the way
	_, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	body, _ := io.ReadAll(r.Body)
	switch {
	case call == "ReceiveMessage" && !s.received:
		s.received = true
		answer = `{"Messages": [{"MessageId": "1", "Body": "body", "ReceiptHandle": "receipt"}]}`
	case call == "ReceiveMessage":
		<-r.Context().Done()
		return nil, r.Context().Err()
	case call == s.kind && s.until.IsZero():
		s.until = time.Now().Add(s.away)
		if s.away > 0 {
			return nil, s.err()
		}
		answer = `{"Successful": [], "Failed": [{"Id": "0", "SenderFault": false, "Code": "InternalError"}]}`
	case call == s.kind && time.Now().Before(s.until):
		return nil, s.err()
	case call == "SendMessageBatch" && strings.Contains(string(body), reasonAttribute):
		s.calls = append(s.calls, "a letter with its reason")
	case call == "SendMessageBatch" && strings.Contains(string(body), "attempts=1"):
		s.calls = append(s.calls, "a copy with its note")
	case call == "SendMessageBatch":
		s.calls = append(s.calls, "another message")
	case call == "DeleteMessageBatch" || call == "ChangeMessageVisibility":
		s.calls = append(s.calls, call)
		s.over()
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// A single entry of a call, or SQS as a whole, may fail for a moment. It costs no message its note or its reason, and no handled
// message runs again.
func TestEntriesThatFailForAMoment(t *testing.T) {
	const away = 6 * time.Second // the client itself tries for up to three
	for name, c := range map[string]struct {
		kind   string
		away   time.Duration
		result error
		want   string
	}{
		"delete":      {"DeleteMessageBatch", 0, nil, "DeleteMessageBatch"},
		"copy":        {"SendMessageBatch", 0, errors.New("failed"), "a copy with its note, DeleteMessageBatch"},
		"letter":      {"SendMessageBatch", 0, worker.Permanent(nil), "a letter with its reason, DeleteMessageBatch"},
		"delete away": {"DeleteMessageBatch", away, nil, "DeleteMessageBatch"},
		"copy away":   {"SendMessageBatch", away, errors.New("failed"), "a copy with its note, DeleteMessageBatch"},
		"letter away": {"SendMessageBatch", away, worker.Permanent(nil), "a letter with its reason, DeleteMessageBatch"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				server := &failing{kind: c.kind, away: c.away, over: cancel}
				client := sqs.New(sqs.Options{Region: "eu-west-1", HTTPClient: server, Credentials: aws.AnonymousCredentials{}, DisableMessageChecksumValidation: true})
				limit, err := New(client, Options{Limiter: free{}, Entity: func(*types.Message) (string, error) { return "shop", nil }})
				if err != nil {
					t.Fatal(err)
				}
				q := Queue{URL: "http://sqs/q", DeadLetters: "http://sqs/dead"}
				err = limit.Consume(ctx, q, func(context.Context, *types.Message) error { return c.result })
				if calls := strings.Join(server.calls, ", "); err != nil || calls != c.want {
					t.Errorf("Consume = %v, after the calls %q, want %q", err, calls, c.want)
				}
			})
		})
	}
}
