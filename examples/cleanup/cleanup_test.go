// Package cleanup holds a shell script, and here the test of it on a real broker.
package cleanup

import (
	"os"
	"slices"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestCleanup(t *testing.T) {
	server := servers.OwnRabbitMQ(t)
	conn, err := amqp.Dial(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err == nil {
		err = ch.Confirm(false)
	}
	if err != nil {
		t.Fatal(err)
	}
	const waits, dead, idle, other = "orders.drip.due.250ms.01", "orders.drip.dead", "orders.drip.due.64s.00", "orders2.drip.dead"
	for _, name := range []string{waits, dead, idle, other, "orders"} {
		if _, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{waits, dead, "orders"} {
		confirm, err := ch.PublishWithDeferredConfirm("", name, true, false, amqp.Publishing{Body: []byte("x")})
		if err != nil || !confirm.Wait() {
			t.Fatalf("publish to %s: %v", name, err)
		}
	}
	script := func(args ...string) (string, error) {
		out, err := server.Command(t.Context(), "./cleanup.sh", args...).CombinedOutput()
		return string(out), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := script(args...)
		if err != nil {
			t.Fatalf("cleanup.sh %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	// shown waits for the counts of the queues' last messages, which come every few seconds.
	shown := func(want ...string) {
		t.Helper()
		var got []string
		for range 20 {
			got = strings.Split(strings.TrimSpace(must("show", "orders")), "\n")
			slices.Sort(got)
			if slices.Equal(got, want) {
				return
			}
		}
		t.Fatalf("show = %q, want %q", got, want)
	}
	shown(dead+"\t1", waits+"\t1", idle+"\t0")
	must("tidy", "orders")
	shown(dead+"\t1", waits+"\t1")
	must("limit", "orders", "14", "100000")
	policies, err := server.Ctl(t.Context(), "list_queues", "--no-table-headers", "name", "policy")
	if err != nil || !strings.Contains(policies, dead+"\t"+dead) || strings.Contains(policies, other+"\t"+dead) {
		t.Errorf("the policies of the queues are %v\n%s", err, policies)
	}
	if out, err := script("remove", "orders"); err == nil || !strings.Contains(out, "there are messages left:\n") {
		t.Errorf("remove with messages = %v, %s", err, out)
	}
	shown(dead+"\t1", waits+"\t1")
	for _, name := range []string{waits, dead} {
		if _, err := ch.QueuePurge(name, false); err != nil {
			t.Fatal(err)
		}
	}
	shown(dead+"\t0", waits+"\t0")
	must("remove", "orders")
	if out := must("show", "orders"); out != "" {
		t.Errorf("after remove there are\n%s", out)
	}
	if _, err := ch.QueueDeclarePassive("orders", true, false, false, false, nil); err != nil {
		t.Errorf("the work queue: %v", err)
	}
	if _, err := ch.QueueDeclarePassive(other, true, false, false, false, nil); err != nil {
		t.Errorf("another work queue's dead letters: %v", err)
	}
	if out, err := script("explode", "orders"); err == nil || !strings.Contains(out, "cleanup.sh tidy orders") {
		t.Errorf("an unknown word = %v, %s", err, out)
	}
}
