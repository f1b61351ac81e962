package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestLimited(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	queue := fmt.Sprint("example.middleware.", time.Now().UnixNano())
	const messages = 100
	publish(t, url, queue, messages)

	var mu sync.Mutex
	handled := map[string]int{} // by body
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(handled) }
	handle := func(_ context.Context, d *amqp.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		handled[string(d.Body)]++
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- limited(ctx, url, queue, handle) }()
	deadline := time.After(5 * time.Minute)
	for count() < messages {
		select {
		case err := <-done:
			t.Fatalf("limited ended early: %v", err)
		case <-deadline:
			t.Fatalf("only %d of %d messages were handled", count(), messages)
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("limited = %v", err)
	}
	for body, n := range handled {
		if n != 1 {
			t.Errorf("%s was handled %d times", body, n)
		}
	}
}

func TestQueueMustExist(t *testing.T) {
	err := limited(t.Context(), servers.UseRabbitMQ(t).URL(), "example.missing", work)
	if err == nil || !strings.Contains(err.Error(), `there is no queue "example.missing"; declare it first`) {
		t.Errorf("limited = %v", err)
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
