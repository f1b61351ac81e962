// Package sqsmodel is a model of Amazon SQS for tests, for want of a server: what the adapter and its example use of it.
package sqsmodel

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// New is SQS in its JSON protocol: standard queues, whole seconds, receipt handles that end with the next receipt. It refuses
// what SQS refuses. It has no queues yet.
func New() http.Handler { return &server{queues: map[string]messages{}} }

type server struct {
	mu     sync.Mutex
	queues map[string]messages // by name
	number int
}

type stored struct {
	id, body, receipt string
	attributes        json.RawMessage
	visible           time.Time
	received          int
}

type input struct {
	QueueName, QueueUrl, MessageBody, ReceiptHandle                       string
	MessageAttributes                                                     map[string]json.RawMessage
	DelaySeconds, VisibilityTimeout, WaitTimeSeconds, MaxNumberOfMessages int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in input
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil {
		refuse(w, "InvalidParameterValue", err.Error())
		return
	}
	name := in.QueueName
	if in.QueueUrl != "" {
		name = in.QueueUrl[strings.LastIndex(in.QueueUrl, "/")+1:]
	}
	_, operation, _ := strings.Cut(r.Header.Get("X-Amz-Target"), ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[name]
	if operation == "CreateQueue" {
		if q == nil {
			s.queues[name] = messages{}
		}
		answer(w, map[string]any{"QueueUrl": "http://" + r.Host + "/1/" + name})
		return
	}
	if q == nil {
		refuse(w, "QueueDoesNotExist", name)
		return
	}
	switch operation {
	case "DeleteQueue":
		delete(s.queues, name)
		answer(w, map[string]any{})
	case "SendMessage":
		if in.DelaySeconds < 0 || in.DelaySeconds > 900 || in.MessageBody == "" || len(in.MessageAttributes) > 10 {
			refuse(w, "InvalidParameterValue", "a delay, a body, or attributes")
			return
		}
		s.number++
		m := &stored{id: fmt.Sprint("id-", s.number), body: in.MessageBody, visible: time.Now().Add(time.Duration(in.DelaySeconds) * time.Second)}
		m.attributes, _ = json.Marshal(in.MessageAttributes)
		q[m.id] = m
		answer(w, map[string]any{"MessageId": m.id, "MD5OfMessageBody": digest(m.body)})
	case "ReceiveMessage":
		answer(w, map[string]any{"Messages": s.receive(r, q, in)})
	case "ChangeMessageVisibility":
		m := q.with(in.ReceiptHandle)
		if m == nil || in.VisibilityTimeout < 0 || in.VisibilityTimeout > 43_200 || time.Now().After(m.visible) {
			refuse(w, "MessageNotInflight", in.ReceiptHandle)
			return
		}
		m.visible = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
		answer(w, map[string]any{})
	case "DeleteMessage":
		if m := q.with(in.ReceiptHandle); m != nil {
			delete(q, m.id)
		}
		answer(w, map[string]any{})
	case "GetQueueAttributes": // of which one is used: all messages, hidden or not
		answer(w, map[string]any{"Attributes": map[string]string{"ApproximateNumberOfMessages": fmt.Sprint(len(q))}})
	default:
		refuse(w, "UnsupportedOperation", operation)
	}
}

// messages are a queue's, by their IDs.
type messages map[string]*stored

func (q messages) with(receipt string) *stored {
	for _, m := range q {
		if m.receipt == receipt && receipt != "" {
			return m
		}
	}
	return nil
}

// receive waits for messages. It requires mu held, which it gives up meanwhile.
func (s *server) receive(r *http.Request, q messages, in input) (got []any) {
	for began := time.Now(); ; {
		for _, m := range q {
			if len(got) == max(in.MaxNumberOfMessages, 1) {
				break
			}
			if time.Now().Before(m.visible) {
				continue
			}
			m.received++
			m.receipt = fmt.Sprint(m.id, "/", m.received)
			m.visible = time.Now().Add(time.Duration(in.VisibilityTimeout) * time.Second)
			got = append(got, map[string]any{
				"MessageId": m.id, "ReceiptHandle": m.receipt, "Body": m.body, "MD5OfBody": digest(m.body), "MessageAttributes": m.attributes,
			})
		}
		if len(got) > 0 || time.Since(began) > time.Duration(in.WaitTimeSeconds)*time.Second || r.Context().Err() != nil {
			return got
		}
		s.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		s.mu.Lock()
	}
}

func digest(body string) string {
	sum := md5.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, code, text string) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.0")
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]any{"__type": "com.amazonaws.sqs#" + code, "message": text})
}
