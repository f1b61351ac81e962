package main

import (
	"os"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// Each shop's messages are in the queue when publish returns.
func TestPublish(t *testing.T) {
	url := servers.OwnRabbitMQ(t).URL()
	if err := publish(t.Context(), url, "orders", 3, []string{"shop-1", "shop-2"}); err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for {
		d, ok, err := ch.Get("orders", true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		found[string(d.Body)]++
	}
	if len(found) != 2 || found["shop-1"] != 3 || found["shop-2"] != 3 {
		t.Errorf("the queue has %v", found)
	}
}
