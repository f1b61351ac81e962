package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/exampletest"
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

func TestQueueMustExist(t *testing.T) {
	err := limited(t.Context(), servers.UseRabbitMQ(t).URL(), "example.missing", work)
	if err == nil || !strings.Contains(err.Error(), `there is no queue "example.missing"; declare it first`) {
		t.Errorf("limited = %v", err)
	}
}
