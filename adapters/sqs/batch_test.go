package dripsqs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/worker"
)

// server is an SQS that answers a call with a text, "" for an empty answer. It gives no answer to a call that fails with errSilent.
type server func(ctx context.Context, call string, body []byte) (answer string, err error)

var errSilent = errors.New("no answer")

func (s server) Do(r *http.Request) (*http.Response, error) {
	time.Sleep(10 * time.Millisecond) // on the way
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	_, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	answer, err := s(r.Context(), call, body)
	if errors.Is(err, errSilent) {
		<-r.Context().Done()
		err = r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(cmp.Or(answer, "{}")))}, nil
}

// oneMessage is a server with one message. Other calls than receiving it get the answer of others.
func oneMessage(others server) server {
	received := false
	return func(ctx context.Context, call string, body []byte) (string, error) {
		switch {
		case call != "ReceiveMessage":
			return others(ctx, call, body)
		case received:
			return "", errSilent
		}
		received = true
		return `{"Messages": [{"MessageId": "1", "Body": "body", "ReceiptHandle": "receipt",
			"MessageAttributes": {"shop": {"DataType": "String", "StringValue": "a"}}}]}`, nil
	}
}

// consumes handles the messages of a server.
func consumes(t *testing.T, ctx context.Context, s server, handle func(context.Context, *types.Message) error) error {
	t.Helper()
	o := newClient("https://sqs.local").Options()
	o.HTTPClient, o.DisableMessageChecksumValidation = s, true
	q := Queue{URL: "https://sqs.local/orders", DeadLetters: "https://sqs.local/dead"}
	return limiting(t, sqs.New(o), &buckettest.Plain{}).Consume(ctx, q, handle)
}

// sends handles one message and reads into in what Consume sends with the first such call. SQS answers its other calls with
// the error others.
func sends(t *testing.T, call string, in any, others error, handle func(context.Context, *types.Message) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	return consumes(t, ctx, oneMessage(func(_ context.Context, got string, body []byte) (string, error) {
		if got != call {
			return "", others
		}
		defer cancel()
		return "", json.Unmarshal(body, in)
	}), handle)
}

// An outage costs a line in the log when it begins and one when it is over, also an outage of the dead letters alone.
func TestOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const outage, message = time.Minute, `{"MessageId": "1", "Body": "body", "ReceiptHandle": "receipt"}`
		o := newClient("https://sqs.local").Options()
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		o.DisableMessageChecksumValidation = true
		o.HTTPClient = server(func(_ context.Context, call string, body []byte) (string, error) {
			switch lasts := time.Since(began); {
			case call == "ReceiveMessage" && lasts > 3*outage:
				cancel()
			case call == "ReceiveMessage" && lasts > outage:
				time.Sleep(time.Second)
				return fmt.Sprintf(`{"Messages": [%s]}`, message), nil
			case lasts < outage, call == "SendMessageBatch" && bytes.Contains(body, []byte("dead")) && lasts < 2*outage:
				return "", fmt.Errorf("request after %v: %w", lasts, &net.OpError{Op: "dial", Err: errors.New("connection refused")})
			}
			return "", nil
		})
		var log bytes.Buffer
		limit, err := New(sqs.New(o), Options{
			Limiter: &buckettest.Plain{}, Entity: func(*types.Message) (string, error) { return "shop", nil }, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		ok(t, err)
		ok(t, limit.Consume(ctx, Queue{URL: "https://sqs.local/orders", DeadLetters: "https://sqs.local/dead"}, func(context.Context, *types.Message) error {
			return worker.Permanent(errors.New("of no use"))
		}))
		for _, line := range []string{
			"no messages from SQS, will try again", "messages from SQS again", "the dead letters take no messages", "the dead letters take messages again",
		} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%d lines are %q", n, line)
			}
		}
	})
}

func hourLater(context.Context, *types.Message) error { return worker.Later(time.Hour, nil) }

// A message that SQS does not take in time is hidden instead, for as long as it is to wait.
func TestHiddenAfterASilentSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var in sqs.ChangeMessageVisibilityInput
		err := sends(t, "ChangeMessageVisibility", &in, errSilent, hourLater)
		if err != nil || in.VisibilityTimeout < 3500 {
			t.Errorf("Consume = %v, and the message is hidden for %d seconds, want about an hour", err, in.VisibilityTimeout)
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

// A copy is the message as it came, whatever its handler has done to the message in hand.
func TestCopyAfterAHandlerThatWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var in sqs.SendMessageBatchInput
		err := sends(t, "SendMessageBatch", &in, nil, func(_ context.Context, m *types.Message) error {
			m.Body = aws.String("unpacked")
			delete(m.MessageAttributes, "shop")
			return worker.Later(time.Second, nil)
		})
		if err != nil || len(in.Entries) != 1 {
			t.Fatalf("Consume = %v, with the copies %v", err, in.Entries)
		}
		if c := in.Entries[0]; aws.ToString(c.MessageBody) != "body" || aws.ToString(c.MessageAttributes["shop"].StringValue) != "a" {
			t.Errorf("the copy is %q with %v", aws.ToString(c.MessageBody), c.MessageAttributes)
		}
	})
}

// A call that SQS does not answer stops neither the consumer nor the renewals of a message in hand.
func TestSilentCalls(t *testing.T) {
	for _, kind := range []string{"ReceiveMessage", "ChangeMessageVisibility"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				var began time.Time
				var renewed []time.Time
				dropped := false
				messages := oneMessage(func(_ context.Context, call string, _ []byte) (string, error) {
					if call == "ChangeMessageVisibility" {
						renewed = append(renewed, time.Now())
					}
					return "", nil
				})
				err := consumes(t, ctx, func(ctx context.Context, call string, body []byte) (string, error) {
					if call == kind && !dropped {
						dropped = true
						return "", errSilent
					}
					return messages(ctx, call, body)
				}, func(context.Context, *types.Message) error {
					began = time.Now()
					time.Sleep(time.Minute)
					cancel()
					return nil
				})
				if err != nil || began.IsZero() {
					t.Fatalf("Consume = %v, and the handler began at %v", err, began)
				}
				if len(renewed) == 0 || renewed[0].Sub(began) >= 30*time.Second {
					t.Errorf("the message in hand was hidden anew at %v, its handler began at %v", renewed, began)
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

// failing fails the entries of the first call of a kind, through no fault of the caller. If it is away for a time, no call of the kind
// comes through for so long.
type failing struct {
	kind  string
	away  time.Duration
	until time.Time
	calls []string // that took effect
	over  func()   // called when the message is deleted or hidden
}

func (s *failing) answer(_ context.Context, call string, body []byte) (string, error) {
	switch first := s.until.IsZero(); {
	case call == s.kind && first && s.away == 0:
		s.until = time.Now()
		return `{"Successful": [], "Failed": [{"Id": "0", "SenderFault": false, "Code": "InternalError"}]}`, nil
	case call == s.kind && (first || time.Now().Before(s.until)):
		if first {
			s.until = time.Now().Add(s.away)
		}
		if call == "DeleteMessageBatch" {
			return "", io.ErrUnexpectedEOF
		}
		return "", &net.OpError{Op: "dial", Err: errors.New("connection refused")} // else SQS may have sent the message
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
	return "", nil
}

// A single entry of a call, or SQS as a whole, may fail for a moment. It costs no message its note or its reason, and no handled
// message runs again.
func TestEntriesThatFailForAMoment(t *testing.T) {
	const away = 6 * time.Second
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
				err := consumes(t, ctx, oneMessage(server.answer), func(context.Context, *types.Message) error { return c.result })
				if calls := strings.Join(server.calls, ", "); err != nil || calls != c.want {
					t.Errorf("Consume = %v, after the calls %q, want %q", err, calls, c.want)
				}
			})
		})
	}
}

// No message is sent anew and kept, too, because SQS is slow: here it has 40 messages and takes 7 seconds for each send.
func TestSlowSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var mu sync.Mutex
		given, sent, kept := 0, map[string]bool{}, map[string]bool{}
		err := consumes(t, ctx, func(ctx context.Context, call string, body []byte) (string, error) {
			if call == "SendMessageBatch" {
				select {
				case <-time.After(7 * time.Second):
				case <-ctx.Done():
					return "", ctx.Err()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			switch call {
			case "ChangeMessageVisibility":
				var in sqs.ChangeMessageVisibilityInput
				err := json.Unmarshal(body, &in)
				if in.VisibilityTimeout > 60 {
					kept[aws.ToString(in.ReceiptHandle)] = true
				}
				return "", err
			case "SendMessageBatch":
				var in sqs.SendMessageBatchInput
				err := json.Unmarshal(body, &in)
				for _, e := range in.Entries {
					sent[*e.MessageBody] = true
				}
				return "", err
			case "ReceiveMessage":
				var list []string
				for ; len(list) < 10 && given < 40; given++ {
					list = append(list, fmt.Sprintf(`{"MessageId": "%d", "Body": "%[1]d", "ReceiptHandle": "%[1]d"}`, given))
				}
				if len(list) == 0 {
					return "", errSilent
				}
				return `{"Messages": [` + strings.Join(list, ",") + `]}`, nil
			}
			return "", nil
		}, hourLater)
		ok(t, err)
		twice := 0
		for id := range sent {
			if kept[id] {
				twice++
			}
		}
		if twice > 0 || len(sent) == 0 {
			t.Errorf("of %d messages that were sent anew %d wait in the queue, too", len(sent), twice)
		}
	})
}

func TestNoClient(t *testing.T) {
	o := Options{Limiter: &buckettest.Plain{}, Entity: func(*types.Message) (string, error) { return "shop", nil }}
	if _, err := New(nil, o); err == nil || !strings.Contains(err.Error(), "client is nil") {
		t.Errorf("New = %v without a client", err)
	}
}
