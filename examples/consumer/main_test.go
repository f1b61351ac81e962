package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// The API refuses the very first call. Each message of three shops gets a call that it accepts.
func TestRun(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	queue := fmt.Sprint("example.consumer.", time.Now().UnixNano())
	const messages = 100
	ch := servers.Channel(t, url)
	servers.Declare(t, ch, "classic", queue)
	for i := range messages {
		servers.Publish(t, ch, queue, amqp.Publishing{Headers: amqp.Table{"shop": fmt.Sprint("shop-", i%3)}, Body: fmt.Append(nil, "order ", i)})
	}
	exampletest.HandlesOnce(t, messages, func(ctx context.Context, handled func(string)) error {
		var refused atomic.Bool
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if refused.CompareAndSwap(false, true) {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			body, _ := io.ReadAll(r.Body)
			handled(string(body))
		}))
		defer api.Close()
		return run(ctx, url, queue, api.URL)
	})
}
