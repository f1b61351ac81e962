// Package cleanup holds a shell script, and here its test on a real broker.
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
	"github.com/drip-go/drip/internal/wheel"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// others are queues with names similar to the ones of the work queue orders.
var others = []string{"orders2", "orders2.drip.dead", "orders2.drip.v1.250ms.00", "orders_drip.dead", "orders.drip_dead"}

func TestScript(t *testing.T) {
	t.Parallel()
	server := servers.OwnRabbitMQ(t)
	ch := servers.Channel(t, server.URL())
	const waits, dead = "orders.drip.due.v1.250ms.01", "orders.drip.dead"
	var idle []string // a queue of each ring, of DelayQueues and of a Consumer in turn
	for _, layout := range wheel.Layouts {
		for ring := range layout.Rings {
			idle = append(idle, "orders.drip."+[]string{"", "due."}[ring%2]+layout.Queue(ring, 0))
		}
	}
	servers.Declare(t, ch, "quorum", slices.Concat([]string{"orders", waits, dead}, idle, others)...)
	for _, name := range []string{"orders", waits, dead} {
		servers.Publish(t, ch, name, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})
	}
	ctl := func(list string, columns ...string) []string {
		t.Helper()
		out, err := server.Ctl(t.Context(), append([]string{list, "--no-table-headers"}, columns...)...)
		ok(t, err)
		return lines(out)
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
		await(t, func() []string { return lines(must("show", "orders")) }, want)
	}
	refused := func(why, word string) {
		t.Helper()
		if out, err := script(word, "orders"); err == nil || !strings.Contains(out, why) {
			t.Errorf("%s = %v, %s; want %q", word, err, out, why)
		}
	}

	all := []string{dead + "\t1", waits + "\t1"}
	for _, name := range idle {
		all = append(all, name+"\t0")
	}
	shown(all...)
	must("limit", "orders", "14", "100000")
	if got := strings.Join(ctl("list_policies"), "\n"); !strings.Contains(got, `"message-ttl":1209600000`) || !strings.Contains(got, `"max-length":100000`) {
		t.Errorf("the policies are %s", got)
	}
	for _, line := range ctl("list_queues", "name", "policy") {
		if name, policy, _ := strings.Cut(line, "\t"); (policy != "") != (name == dead) {
			t.Errorf("the policy of %s is %q", name, policy)
		}
	}

	consumes := servers.Channel(t, server.URL())
	if _, err := consumes.Consume("orders", "", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	refused("there are consumers:\norders\t1\n", "tidy")
	ok(t, consumes.Close())
	await(t, func() []string {
		return slices.DeleteFunc(ctl("list_queues", "consumers"), func(n string) bool { return n == "0" })
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
	if got, want := ctl("list_queues", "name"), sorted(append(others, "orders")); !slices.Equal(got, want) {
		t.Errorf("after remove there are %q, want %q", got, want)
	}
	if out, err := script("explode", "orders"); err == nil || !strings.Contains(out, "cleanup.sh tidy orders") || strings.Contains(out, "set -eu") {
		t.Errorf("an unknown word = %v, %s", err, out)
	}
}

func sorted(names []string) []string { return slices.Sorted(slices.Values(names)) }

// lines returns the lines of a text, sorted.
func lines(text string) []string {
	return sorted(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }))
}

// await calls f until it returns the wanted lines. The broker's data about queues is some seconds old.
func await(t *testing.T, f func() []string, want []string) {
	t.Helper()
	var got []string
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if got = f(); slices.Equal(got, sorted(want)) {
			return
		}
	}
	t.Fatalf("there is\n%q, want\n%q", got, sorted(want))
}

var ok = oktest.OK // ends the test if there is an error
