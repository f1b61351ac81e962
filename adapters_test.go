package drip_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clients are the queues' clients, by the adapter that may link them.
var clients = map[string]string{
	"river":     "github.com/riverqueue/",
	"jetstream": "github.com/nats-io/",
	"asynq":     "github.com/hibiken/",
	"sqs":       "github.com/aws/",
	"amqp10":    "github.com/Azure/",
	"consumer":  "github.com/rabbitmq/",
}

// A user of one adapter links its queue's client and no other's, nor package consumer, nor a suite of tests.
func TestAdaptersLinkNoOtherQueue(t *testing.T) {
	modules, err := filepath.Glob("adapters/*/go.mod")
	if err != nil || len(modules) != len(clients)-1 {
		t.Fatalf("there are %d adapters (%v), want %d", len(modules), err, len(clients)-1)
	}
	for _, module := range modules {
		dir := filepath.Dir(module)
		name := filepath.Base(dir)
		cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		links := strings.Fields(string(out))
		own := false
		for _, path := range links {
			own = own || strings.HasPrefix(path, clients[name])
			for other, client := range clients {
				if other != name && strings.HasPrefix(path, client) {
					t.Errorf("a user of adapters/%s links %s", name, path)
				}
			}
			if path == "testing" || strings.HasPrefix(path, "github.com/drip-go/drip/") && strings.HasSuffix(path, "/consumer") {
				t.Errorf("a user of adapters/%s links %s", name, path)
			}
		}
		if !own {
			t.Errorf("adapters/%s does not link its own client: is %s the right one?", name, clients[name])
		}
	}
}
