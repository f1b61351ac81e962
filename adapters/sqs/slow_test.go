package dripsqs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

// slow is an SQS with 40 messages that takes 7 seconds for each send.
type slow struct {
	mu         sync.Mutex
	given      int
	sent, kept map[string]bool
}

func (s *slow) Do(r *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(r.Body)
	answer := "{}"
	switch _, call, _ := strings.Cut(r.Header.Get("X-Amz-Target"), "."); call {
	case "ChangeMessageVisibility":
		var in sqs.ChangeMessageVisibilityInput
		json.Unmarshal(body, &in)
		if in.VisibilityTimeout > 60 {
			s.mu.Lock()
			s.kept[*in.ReceiptHandle] = true
			s.mu.Unlock()
		}
	case "SendMessageBatch":
		select {
		case <-time.After(7 * time.Second):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		var in sqs.SendMessageBatchInput
		json.Unmarshal(body, &in)
		s.mu.Lock()
		for _, e := range in.Entries {
			s.sent[*e.MessageBody] = true
		}
		s.mu.Unlock()
	case "ReceiveMessage":
		s.mu.Lock()
		var list []string
		for n := 0; n < 10 && s.given < 40; n++ {
			s.given++
			list = append(list, fmt.Sprintf(`{"MessageId": "%d", "Body": "%d", "ReceiptHandle": "%d"}`, s.given, s.given, s.given))
		}
		s.mu.Unlock()
		if len(list) == 0 {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		answer = `{"Messages": [` + strings.Join(list, ",") + `]}`
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(answer))}, nil
}

// No message is sent anew and kept, too, because SQS is slow.
func TestSlowSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		server := &slow{sent: map[string]bool{}, kept: map[string]bool{}}
		if err := postponesAll(t, ctx, server); err != nil {
			t.Fatal(err)
		}
		twice := 0
		for id := range server.sent {
			if server.kept[id] {
				twice++
			}
		}
		if twice > 0 || len(server.sent) == 0 {
			t.Errorf("of %d messages that were sent anew %d wait in the queue, too", len(server.sent), twice)
		}
	})
}
