package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/sqsmodel"
)

// text is written by several handlers at once.
type text struct {
	mu sync.Mutex
	strings.Builder
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.Write(b)
}

// The program runs against any endpoint. Here it is a model of SQS.
func TestRun(t *testing.T) {
	server := httptest.NewServer(sqsmodel.New())
	defer server.Close()
	defer server.CloseClientConnections()
	for name, value := range map[string]string{"ENDPOINT_URL": server.URL, "REGION": "local", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"} {
		t.Setenv("AWS_"+name, value)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out text
	if err := run(ctx, &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "runs"); n != shops*perShop || !strings.Contains(out.String(), "after 1 postponements") {
		t.Errorf("%d of %d ran:\n%s", n, shops*perShop, out.String())
	}
}
