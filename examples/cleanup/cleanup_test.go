// Package cleanup holds a shell script and a list of commands, and here the tests of both on a real broker.
package cleanup

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// others are queues with names similar to the ones of the work queue orders.
var others = []string{"orders2", "orders2.drip.dead", "orders2.drip.v1.250ms.00", "orders_drip.dead", "orders.drip_dead"}

func TestScript(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	ch := servers.Channel(t, server.URL())
	const waits, idle = "orders.drip.due.v1.250ms.01", "orders.drip.due.v1few.24s.00"
	servers.Declare(t, ch, "quorum", append([]string{"orders", waits, dead, idle}, others...)...)
	for _, name := range []string{"orders", waits, dead} {
		publish(t, ch, name, "x")
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
	shown := func(want ...string) {
		t.Helper()
		awaitLines(t, func() string { return must("show", "orders") }, want)
	}
	refused := func(why, word string) {
		t.Helper()
		if out, err := script(word, "orders"); err == nil || !strings.Contains(out, why) {
			t.Errorf("%s = %v, %s; want %q", word, err, out, why)
		}
	}

	shown(dead+"\t1", waits+"\t1", idle+"\t0")
	must("limit", "orders", "14", "100000")
	if got, want := policies(t, server), []string{dead}; !slices.Equal(got, want) {
		t.Errorf("the policy is that of %q, want %q", got, want)
	}

	consumes := servers.Channel(t, server.URL())
	if _, err := consumes.Consume("orders", "", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	refused("there are consumers:\norders\t1\n", "tidy")
	ok(t, consumes.Close())
	awaitLines(t, func() string {
		out, err := server.Ctl(t.Context(), "list_queues", "--no-table-headers", "consumers")
		ok(t, err)
		return strings.Trim(out, "0\n")
	}, nil)

	// A broker that was started just now says 0 of all quorum queues.
	ok(t, server.Kill())
	ok(t, server.Start(t.Context()))
	must("tidy", "orders")
	shown(dead+"\t1", waits+"\t1")
	refused("there are messages left:\n", "remove")

	ch = servers.Channel(t, server.URL())
	for _, name := range []string{waits, dead} {
		if got := servers.Drain(t, ch, name); !slices.Equal(got, []string{"x"}) {
			t.Errorf("in %s there is %q", name, got)
		}
	}
	must("remove", "orders")
	if got, want := queues(t, server, "/"), sorted(append(others, "orders")); !slices.Equal(got, want) {
		t.Errorf("after remove there are %q, want %q", got, want)
	}
	if out, err := script("explode", "orders"); err == nil || !strings.Contains(out, "cleanup.sh tidy orders") || strings.Contains(out, "set -eu") {
		t.Errorf("an unknown word = %v, %s", err, out)
	}
}

func publish(t *testing.T, ch *amqp.Channel, queue, body string) {
	t.Helper()
	servers.Publish(t, ch, queue, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(body)})
}

// queues are the names of all queues there are, in order.
func queues(t *testing.T, server *servers.RabbitMQ, vhost string) []string {
	t.Helper()
	out, err := server.Ctl(t.Context(), "list_queues", "--vhost", vhost, "--no-table-headers", "name")
	ok(t, err)
	return lines(out)
}

// policies are the names of all queues that a policy applies to.
func policies(t *testing.T, server *servers.RabbitMQ) (names []string) {
	t.Helper()
	out, err := server.Ctl(t.Context(), "list_queues", "--no-table-headers", "name", "policy")
	ok(t, err)
	for _, line := range lines(out) {
		if name, policy, _ := strings.Cut(line, "\t"); policy != "" {
			names = append(names, name)
		}
	}
	return names
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

// lines returns the lines of a text, sorted.
func lines(text string) []string {
	return sorted(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }))
}

// awaitLines calls f until its lines are the wanted ones. The broker's data about queues is some seconds old.
func awaitLines(t *testing.T, f func() string, want []string) {
	t.Helper()
	var got []string
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if got = lines(f()); slices.Equal(got, sorted(want)) {
			return
		}
	}
	t.Fatalf("there is\n%q, want\n%q", got, sorted(want))
}

var ok = oktest.OK // ends the test if there is an error
