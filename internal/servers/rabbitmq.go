package servers

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// RabbitMQ is one node of RabbitMQ.
//
// Kill may lose queues. RabbitMQ 3 forgets a durable queue, with the messages in it, if Kill comes before the end of
// the declaration's transaction is on disk. That is up to 2 seconds after the answer; declaring another durable queue
// writes it at once. A quorum queue whose node is killed within 3 seconds of its declaration may come up unusable.
type RabbitMQ struct {
	server
	node  string // its Erlang name, drip-…@localhost
	group string // the name that its cluster gives itself; a single node is a cluster of one
	ctl   string // the path of rabbitmqctl
	env   []string
}

// StartRabbitMQ starts a node and returns when a queue can be declared in it, after about 5 seconds. Env are environment
// variables of its own, as in RABBITMQ_FEATURE_FLAGS=quorum_queue.
func StartRabbitMQ(ctx context.Context, env ...string) (*RabbitMQ, error) {
	nodes, err := again(func() (rabbitMQCluster, error) { return startRabbitMQs(ctx, 1, env...) })
	if err != nil {
		return nil, err
	}
	return nodes[0], nil
}

// startRabbitMQs starts n nodes and returns when every one is ready and sees all others. After all were killed, a node
// that is started again may wait for the others, as RabbitMQ always does.
func startRabbitMQs(ctx context.Context, n int, env ...string) (_ rabbitMQCluster, err error) {
	// The script in PATH may be a wrapper which switches the user and drops the environment: it comes last.
	script, err := program("rabbitmq-server",
		"/usr/lib/rabbitmq/bin/rabbitmq-server", "/usr/lib/rabbitmq/lib/*/sbin/rabbitmq-server", "rabbitmq-server")
	if err != nil {
		return nil, err
	}
	names, err := startEPMD(ctx)
	if err != nil {
		return nil, err
	}
	defer names.release()

	var nodes rabbitMQCluster
	defer func() {
		if err != nil {
			_ = nodes.Stop()
		}
	}()
	for range n {
		r, err := newRabbitMQ(filepath.Dir(script), names)
		if err != nil {
			return nil, err
		}
		r.env = append(r.env, env...)
		nodes = append(nodes, r)
	}
	cookie := rand.Text()
	for _, r := range nodes {
		if err := r.configure(nodes[0], cookie); err != nil {
			return nil, err
		}
	}
	// The first alone, then the others, which join it: nodes that wait for each other from the beginning take longer.
	if err := nodes[0].Start(ctx); err != nil {
		return nil, err
	}
	if err := each(nodes[1:], func(r *RabbitMQ) error { return r.Start(ctx) }); err != nil {
		return nil, err
	}
	if n > 1 {
		err := each(nodes, func(r *RabbitMQ) error {
			return until(ctx, func() error {
				_, err := r.Ctl(ctx, "await_online_nodes", fmt.Sprint(n), "--timeout", "30")
				return err
			})
		})
		if err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

type rabbitMQCluster []*RabbitMQ

func (c rabbitMQCluster) Stop() error { return each(c, (*RabbitMQ).Stop) }

// newRabbitMQ gives a node its folder, ports and name. bin is the folder of RabbitMQ's scripts.
func newRabbitMQ(bin string, names *epmd) (*RabbitMQ, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	distPort, err := freePort()
	if err != nil {
		return nil, err
	}
	r := &RabbitMQ{
		server: server{name: "RabbitMQ", url: "amqp://guest:guest@" + address(port) + "/", quit: syscall.SIGTERM},
		node:   fmt.Sprintf("drip-%d-%d@localhost", os.Getpid(), port),
		ctl:    filepath.Join(bin, "rabbitmqctl"),
	}
	if err := r.prepare(); err != nil {
		return nil, err
	}
	names.users.Add(1)
	r.after = names.release
	r.ready = func(ctx context.Context, _ int) error { return r.declare(ctx, port) }
	r.env = environ(
		"HOME="+r.dir, // where Erlang looks for the cookie
		"ERL_CRASH_DUMP="+r.path("erl_crash.dump"),
		fmt.Sprint("ERL_EPMD_PORT=", names.port),
		"RABBITMQ_NODENAME="+r.node,
		"RABBITMQ_NODE_IP_ADDRESS=127.0.0.1",
		fmt.Sprint("RABBITMQ_NODE_PORT=", port),
		fmt.Sprint("RABBITMQ_DIST_PORT=", distPort),
		"RABBITMQ_MNESIA_BASE="+r.path("data"),
		"RABBITMQ_LOG_BASE="+r.dir,
		"RABBITMQ_LOGS=-",
		"RABBITMQ_PID_FILE="+r.path("pid"),
		"RABBITMQ_CONFIG_FILE="+r.path("rabbitmq.conf"),
		"RABBITMQ_CONF_ENV_FILE="+r.path("rabbitmq-env.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+r.path("enabled_plugins"),
		// When a node dies, the broker retries its unfinished at-least-once dead-lettering after this time, of 3
		// minutes by default. Until then no queue counts those messages.
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=+S 2:2 -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"+
			" -rabbit dead_letter_worker_publisher_confirm_timeout 10000",
		// rabbitmqctl is an Erlang node, too. Left alone it takes one of eleven ports, which several test binaries share.
		"RABBITMQ_CTL_ERL_ARGS=-start_epmd false",
		"RABBITMQ_CTL_DIST_PORT_MIN=20000",
		"RABBITMQ_CTL_DIST_PORT_MAX=29999",
		// The script then becomes the Erlang VM instead of watching over it: its process id is the VM's.
		"RUNNING_UNDER_SYSTEMD=true",
	)
	r.command = func() *exec.Cmd {
		cmd := exec.Command(filepath.Join(bin, "rabbitmq-server"))
		cmd.Env = r.env
		return cmd
	}
	return r, nil
}

// configure writes the files that the node reads; first is the node to join, or r itself.
func (r *RabbitMQ) configure(first *RabbitMQ, cookie string) error {
	r.group = first.node
	var conf strings.Builder
	fmt.Fprintf(&conf, "cluster_name = %s\n", r.group)
	fmt.Fprintf(&conf, "log.console = true\nlog.file = false\n")
	fmt.Fprintf(&conf, "disk_free_limit.absolute = 1MB\n") // a nearly full disk would block every publisher
	if r != first {
		fmt.Fprintf(&conf, "cluster_formation.peer_discovery_backend = classic_config\n")
		for i, peer := range []*RabbitMQ{first, r} {
			fmt.Fprintf(&conf, "cluster_formation.classic_config.nodes.%d = %s\n", i+1, peer.node)
		}
	}
	for name, content := range map[string]string{
		".erlang.cookie":    cookie,
		"rabbitmq.conf":     conf.String(),
		"rabbitmq-env.conf": "",
		"enabled_plugins":   "[].\n",
	} {
		if err := os.WriteFile(r.path(name), []byte(content), 0o400); err != nil { // Erlang insists on the mode
			return fmt.Errorf("RabbitMQ: %w", err)
		}
	}
	return nil
}

func (r *RabbitMQ) path(name string) string { return filepath.Join(r.dir, name) }

// declare declares a queue that goes with its connection.
func (r *RabbitMQ) declare(ctx context.Context, port int) error {
	var d net.Dialer
	raw, err := d.DialContext(ctx, "tcp", address(port))
	if err != nil {
		return err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { _ = raw.Close() })()
	conn, err := amqp.DialConfig(r.url, amqp.Config{
		Dial: func(string, string) (net.Conn, error) { return raw, nil },
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	if name := conn.Properties["cluster_name"]; name != r.group {
		return fmt.Errorf("another broker (%v) answers on port %d", name, port)
	}
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	_, err = ch.QueueDeclare("", false, true, true, false, nil)
	return err
}

// Ctl runs rabbitmqctl against the node and returns its standard output.
func (r *RabbitMQ) Ctl(ctx context.Context, args ...string) (string, error) {
	if r.ctl == "" {
		return "", r.foreign()
	}
	cmd := exec.CommandContext(ctx, r.ctl, append([]string{"--quiet"}, args...)...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = r.env, r.dir, 20*time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("RabbitMQ: rabbitmqctl %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Command is a command, in the caller's folder, that finds the node's rabbitmqctl and the node with it.
func (r *RabbitMQ) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(slices.Clone(r.env), "PATH="+filepath.Dir(r.ctl)+string(os.PathListSeparator)+os.Getenv("PATH"))
	return cmd
}

// epmd is the name server through which the nodes of a cluster find each other's ports. Left alone, Erlang starts one
// for the whole machine, which nobody ever ends.
type epmd struct {
	server
	port  int
	users atomic.Int32
}

func startEPMD(ctx context.Context) (*epmd, error) {
	path, err := program("erlang-base", "epmd", "/usr/lib/erlang/bin/epmd")
	if err != nil {
		return nil, err
	}
	return again(func() (*epmd, error) {
		e := &epmd{server: server{name: "epmd", quit: syscall.SIGTERM}}
		if e.port, err = freePort(); err != nil {
			return nil, err
		}
		if err := e.prepare(); err != nil {
			return nil, err
		}
		e.users.Add(1)
		e.command = func() *exec.Cmd {
			cmd := exec.Command(path, "-port", fmt.Sprint(e.port), "-address", "127.0.0.1")
			cmd.Env = environ()
			return cmd
		}
		e.ready = func(ctx context.Context, _ int) error {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", address(e.port))
			if err != nil {
				return err
			}
			return conn.Close()
		}
		if err := e.Start(ctx); err != nil {
			e.release()
			return nil, err
		}
		return e, nil
	})
}

// release ends the epmd when its last user is done with it.
func (e *epmd) release() {
	if e.users.Add(-1) == 0 {
		_ = e.Stop()
	}
}
