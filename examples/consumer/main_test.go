package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// api counts the calls it accepts. It refuses the very first.
type api struct {
	mu      sync.Mutex
	refused int
	calls   map[string]int // by body
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused == 0 {
		a.refused++
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	a.calls[string(body)]++
}

func (a *api) accepted() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.calls)
}

func TestRun(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	queue := fmt.Sprint("example.consumer.", time.Now().UnixNano())
	const messages = 100
	publish(t, url, queue, messages)

	a := &api{calls: map[string]int{}}
	server := httptest.NewServer(a)
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- run(ctx, url, queue, server.URL) }()
	deadline := time.After(5 * time.Minute)
	for a.accepted() < messages {
		select {
		case err := <-done:
			t.Fatalf("run ended early: %v", err)
		case <-deadline:
			t.Fatalf("only %d of %d messages were handled", a.accepted(), messages)
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("run = %v", err)
	}
	for body, n := range a.calls {
		if n != 1 {
			t.Errorf("%s was handled %d times", body, n)
		}
	}
}

func TestQueueMustExist(t *testing.T) {
	err := run(t.Context(), servers.UseRabbitMQ(t).URL(), "example.missing", "http://127.0.0.1/")
	if err == nil || !strings.Contains(err.Error(), `there is no queue "example.missing"; declare it first`) {
		t.Errorf("run = %v", err)
	}
}

// publish declares the queue and fills it with messages of three shops.
func publish(t *testing.T, url, queue string, messages int) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	conn, err := amqp.Dial(url)
	must(err)
	defer conn.Close()
	ch, err := conn.Channel()
	must(err)
	must(ch.Confirm(false))
	_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
	must(err)
	for i := range messages {
		confirmation, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{
			Headers: amqp.Table{"shop": fmt.Sprint("shop-", i%3)},
			Body:    fmt.Append(nil, "order ", i),
		})
		must(err)
		if i == messages-1 && !confirmation.Wait() {
			t.Fatal("the broker did not take the messages")
		}
	}
}
