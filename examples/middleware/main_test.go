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

	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestLimited(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	queue := fmt.Sprint("example.middleware.", time.Now().UnixNano())
	const messages = 100
	ch := servers.Channel(t, url)
	servers.Declare(t, ch, "classic", queue)
	for i := range messages {
		servers.Publish(t, ch, queue, amqp.Publishing{Headers: amqp.Table{"shop": fmt.Sprint("shop-", i%3)}, Body: fmt.Append(nil, "order ", i)})
	}
	exampletest.HandlesOnce(t, messages, func(ctx context.Context, handled func(string)) error {
		return limited(ctx, url, queue, func(_ context.Context, d *amqp.Delivery) error {
			handled(string(d.Body))
			return nil
		})
	})
}

// A message that cannot be postponed for a while stays in its queue, and is handled afterwards.
func TestPostponingFails(t *testing.T) {
	server := servers.OwnRabbitMQ(t)
	url := server.URL()
	ch := servers.Channel(t, url)
	servers.Declare(t, ch, "quorum", "work")
	ctl := func(args ...string) string {
		out, err := server.Ctl(t.Context(), args...)
		if err != nil {
			t.Fatal(out, err)
		}
		return out
	}
	const messages = 60
	var mu sync.Mutex
	seen := map[string]int{}
	_, end := oktest.Begin(t, 5*time.Minute, func(ctx context.Context) error {
		return limited(ctx, url, "work", func(_ context.Context, d *amqp.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			seen[string(d.Body)]++
			return nil
		})
	})
	oktest.Eventually(t, time.Minute, "the queue has a consumer", func() bool {
		q, err := ch.QueueDeclarePassive("work", true, false, false, false, nil)
		oktest.OK(t, err)
		return q.Consumers > 0
	})
	// The publisher's connection is lost, and it gets no other one.
	ctl("set_vhost_limits", "-p", "/", `{"max-connections": 1}`)
	for line := range strings.SplitSeq(ctl("list_connections", "pid", "client_properties"), "\n") {
		if strings.Contains(line, "drip publishing") {
			ctl("close_connection", strings.Fields(line)[0], "test")
		}
	}
	for i := range messages {
		servers.Publish(t, ch, "work", amqp.Publishing{Headers: amqp.Table{"shop": "shop"}, Body: fmt.Append(nil, "order ", i)})
	}
	time.Sleep(3 * time.Second)
	ctl("clear_vhost_limits", "-p", "/")
	oktest.Eventually(t, 2*time.Minute, "all messages are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == messages
	})
	end()
}
