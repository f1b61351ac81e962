package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

// Every command that README.md has for rabbitmqadmin is run: for the Python script that the broker gives away, else for
// rabbitmqadmin 2 if that is on this machine.
func TestRabbitmqadmin(t *testing.T) {
	t.Parallel()
	server := servers.OwnManagedRabbitMQ(t)
	bin := t.TempDir()
	heading, program := rabbitmqadmin(t, server, bin)
	commands := commandsOf(t, heading)
	if len(commands) != 5 {
		t.Fatalf("there are %d commands under %q: %q", len(commands), heading, commands)
	}
	show, limit, tidy, left, remove := commands[0], commands[1], commands[2], commands[3], commands[4]
	host, port, _ := strings.Cut(strings.TrimPrefix(server.ManagementURL(), "http://"), ":")
	wrapper := fmt.Sprintf("#!/bin/sh\nexec %s --host=%s --port=%s --username=guest --password=guest \"$@\"\n", program, host, port)
	ok(t, os.WriteFile(filepath.Join(bin, "rabbitmqadmin"), []byte(wrapper), 0o755))
	run := func(command string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
		cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		// The status is 1 if a command such as grep finds nothing.
		if stderr.Len() > 0 || err != nil && cmd.ProcessState.ExitCode() != 1 {
			t.Fatalf("%s\n%v\n%s%s", command, err, out, &stderr)
		}
		return string(out)
	}
	// listed awaits what a command lists: names and counts.
	listed := func(command string, want map[string]int) {
		t.Helper()
		var all []string
		for name, n := range want {
			all = append(all, fmt.Sprint(name, " ", n))
		}
		awaitLines(t, func() string {
			var text strings.Builder
			for line := range strings.Lines(run(command)) {
				fmt.Fprintln(&text, strings.Join(strings.Fields(line), " "))
			}
			return text.String()
		}, all)
	}

	ch := servers.Channel(t, server.URL())
	servers.Declare(t, ch, "quorum", append([]string{"orders"}, others...)...)
	postponed := postpone(t, server, ch)
	want := map[string]int{}
	for _, name := range queues(t, server, "/") {
		if strings.HasPrefix(name, "orders.drip.") {
			want[name] = postponed[name]
		}
	}
	want[dead] = 1
	if len(want) < 67 || len(postponed) < 2 {
		t.Fatalf("drip has declared %d queues, and messages wait in %d", len(want), len(postponed))
	}
	// In another virtual host the queues that have messages here are empty.
	for _, args := range [][]string{{"add_vhost", "other"}, {"set_permissions", "--vhost", "other", "guest", ".*", ".*", ".*"}} {
		if _, err := server.Ctl(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	busy := append(slices.Collect(maps.Keys(postponed)), dead)
	servers.Declare(t, servers.Channel(t, server.URL()+"other"), "quorum", busy...)

	listed(show, want)
	run(limit)
	if got, want := policies(t, server), []string{dead}; !slices.Equal(got, want) {
		t.Errorf("the policy is that of %q, want %q", got, want)
	}
	out, err := server.Ctl(t.Context(), "list_policies", "--no-table-headers")
	if err != nil || !strings.Contains(out, `"message-ttl":1209600000`) || !strings.Contains(out, `"max-length":100000`) {
		t.Errorf("the policies are %s, %v", out, err)
	}

	run(tidy)
	remaining := slices.Concat(busy, []string{"orders", "orders.drip.due"}, others)
	if got := queues(t, server, "/"); !slices.Equal(got, sorted(remaining)) {
		t.Fatalf("after tidy there are\n%q, want\n%q", got, sorted(remaining))
	}
	full := maps.Clone(postponed)
	full[dead] = 1
	listed(left, full)
	var kept []string
	for queue := range postponed {
		kept = append(kept, servers.Drain(t, ch, queue)...)
	}
	if !slices.Equal(sorted(kept), waiting) {
		t.Errorf("after tidy there wait %q, want %q", sorted(kept), waiting)
	}
	if got := servers.Drain(t, ch, dead); !slices.Equal(got, []string{"refused"}) {
		t.Errorf("the dead letters are %q", got)
	}
	listed(left, nil)
	run(remove)
	if got, want := queues(t, server, "/"), sorted(append(others, "orders")); !slices.Equal(got, want) {
		t.Errorf("after remove there are\n%q, want\n%q", got, want)
	}
	if got := queues(t, server, "other"); !slices.Equal(got, sorted(busy)) {
		t.Errorf("after remove there are in the other virtual host\n%q, want\n%q", got, sorted(busy))
	}
	if out, err := server.Ctl(t.Context(), "list_policies", "--no-table-headers"); err != nil || strings.TrimSpace(out) != "" {
		t.Errorf("after remove there are the policies %s, %v", out, err)
	}
}

// rabbitmqadmin returns the heading in README.md of the available rabbitmqadmin, and the program to call.
func rabbitmqadmin(t *testing.T, server *servers.RabbitMQ, dir string) (heading, program string) {
	t.Helper()
	res, err := http.Get(server.ManagementURL() + "/cli/rabbitmqadmin")
	ok(t, err)
	defer res.Body.Close()
	if res.StatusCode == http.StatusNotFound {
		path, err := exec.LookPath("rabbitmqadmin")
		if err != nil {
			t.Skip("this broker gives no rabbitmqadmin away, and there is none here")
		}
		return "rabbitmqadmin 2", "'" + path + "'"
	}
	script, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res.Status, err)
	}
	path := filepath.Join(dir, "rabbitmqadmin.py")
	ok(t, os.WriteFile(path, script, 0o644))
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") != "" { // Debian's package of RabbitMQ needs it, too
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return "rabbitmqadmin, the Python script", "python3 '" + path + "'"
}

// commandsOf are the commands under a heading of README.md.
func commandsOf(t *testing.T, heading string) (commands []string) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	ok(t, err)
	_, section, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("there is no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, block := range strings.Split(section, "```sh\n")[1:] {
		command, _, _ := strings.Cut(block, "```")
		commands = append(commands, command)
	}
	return commands
}

// postpone has a Consumer of the queue orders postpone six messages, and give up a seventh. It returns how many messages
// are in each delay queue that has some.
func postpone(t *testing.T, server *servers.RabbitMQ, ch *amqp.Channel) map[string]int {
	t.Helper()
	bucket, err := drip.New(drip.Options{})
	ok(t, err)
	for entity, pause := range map[string]time.Duration{"minutes": 18 * time.Minute, "hour": time.Hour} {
		ok(t, bucket.Pause(t.Context(), entity, pause))
	}
	for _, body := range append(waiting, "refused") {
		publish(t, ch, "orders", body)
	}
	c, err := consumer.New(consumer.Options{
		URL: server.URL(), Queue: "orders", Limiter: bucket,
		Entity: func(d *amqp.Delivery) (string, error) {
			entity, _, _ := strings.Cut(string(d.Body), " ")
			return entity, nil
		},
		Handler: consumer.HandlerFunc(func(context.Context, *amqp.Delivery) error {
			return consumer.Permanent(errors.New("refused"))
		}),
		Logger: slog.New(slog.DiscardHandler),
	})
	ok(t, err)
	ctx, end := oktest.Begin(t, 5*time.Minute, c.Run)
	for ; ; time.Sleep(time.Second) {
		found, n := map[string]int{}, 0
		for _, name := range queues(t, server, "/") {
			if !strings.HasPrefix(name, "orders.drip.") {
				continue
			}
			q, err := ch.QueueDeclarePassive(name, true, false, false, false, nil) // which counts now
			ok(t, err)
			if n += q.Messages; q.Messages > 0 {
				found[name] = q.Messages
			}
		}
		switch {
		case n > len(waiting):
			end()
			delete(found, dead)
			return found
		case ctx.Err() != nil:
			t.Fatalf("the consumer has put messages into %v", found)
		}
	}
}

var waiting = []string{"hour 1", "hour 2", "hour 3", "minutes 1", "minutes 2", "minutes 3"}

const dead = "orders.drip.dead"
