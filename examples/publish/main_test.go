package main

import (
	"os"
	"testing"

	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestPublishFewerThanNone(t *testing.T) {
	if err := publish(t.Context(), "", "orders", -3, nil); err == nil || err.Error() != "-messages is -3; it must not be below 0" {
		t.Error(err)
	}
}

// Each shop's messages are in the queue when publish returns.
func TestPublish(t *testing.T) {
	url := servers.OwnRabbitMQ(t).URL()
	if err := publish(t.Context(), url, "orders", 3, []string{"shop-1", "shop-2"}); err != nil {
		t.Fatal(err)
	}
	ch := servers.Channel(t, url)
	found := map[string]int{}
	for _, body := range servers.Drain(t, ch, "orders") {
		found[body]++
	}
	if len(found) != 2 || found["shop-1"] != 3 || found["shop-2"] != 3 {
		t.Errorf("the queue has %v", found)
	}
}
