package servers

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// Redis is one Redis server.
type Redis struct {
	server
	port int
}

// StartRedis starts a Redis that keeps everything in memory only, and returns when it answers. Args are options as in
// `--appendonly yes` (two arguments); with that one a Redis that was killed comes back with its keys.
func StartRedis(ctx context.Context, args ...string) (*Redis, error) {
	return again(func() (*Redis, error) { return startRedis(ctx, 0, args...) })
}

// busOffset is the distance of the port on which the nodes of a Redis Cluster talk to each other. It is Redis' default.
const busOffset = 10000

// startRedis finds a port with, for a cluster, the port at the offset bus free as well.
func startRedis(ctx context.Context, bus int, args ...string) (*Redis, error) {
	path, err := program("redis-server", "redis-server")
	if err != nil {
		return nil, err
	}
	port, err := freePort(bus)
	if err != nil {
		return nil, err
	}
	r := &Redis{
		server: server{name: "Redis", url: "redis://" + address(port) + "/0", quit: syscall.SIGTERM},
		port:   port,
	}
	r.command = func() *exec.Cmd {
		cmd := exec.Command(path, append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", r.dir, "--daemonize", "no",
			"--save", "", "--appendonly", "no",
			"--repl-diskless-sync-delay", "0", // or a replica waits 5 s for others to come
		}, args...)...)
		cmd.Env = environ()
		return cmd
	}
	r.ready = r.answers
	return r, r.launch(ctx)
}

// Addr returns host:port.
func (r *Redis) Addr() string {
	u, err := url.Parse(r.url)
	if err != nil { // it is not ours, and the client knows better
		return r.url
	}
	return u.Host
}

func (r *Redis) answers(ctx context.Context, pid int) error {
	pong, err := r.do(ctx, "PING")
	if err != nil || strings.HasPrefix(pong, "-NOAUTH") { // a password is the caller's wish, and is an answer
		return err
	}
	if pong != "+PONG" {
		return fmt.Errorf("PING: %s", pong)
	}
	info, err := r.do(ctx, "INFO server")
	if err == nil && field(info, "process_id") != strconv.Itoa(pid) {
		return fmt.Errorf("another Redis answers on port %d", r.port)
	}
	return err
}

// do sends one command, words between spaces, and returns the reply with its type's sign, or a bulk string as it is.
func (r *Redis) do(ctx context.Context, command string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address(r.port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, command+"\r\n"); err != nil {
		return "", err
	}
	reply := bufio.NewReader(conn)
	line, err := reply.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSpace(line)
	if !strings.HasPrefix(line, "$") {
		return line, nil
	}
	n, err := strconv.Atoi(line[1:])
	if err != nil || n < 0 {
		return "", fmt.Errorf("%s: reply %s", command, line)
	}
	bulk := make([]byte, n)
	_, err = io.ReadFull(reply, bulk)
	return string(bulk), err
}

// field returns the value of a "name:value" line.
func field(info, name string) string {
	for line := range strings.Lines(info) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// RedisCluster is a Redis Cluster: the masters first in Nodes, then the replicas, which replicate the masters in turn.
// A master that does not answer for a second is replaced by its replica, if it has one and most masters answer.
type RedisCluster struct {
	Nodes []*Redis
}

// StartRedisCluster starts a cluster and returns when it takes commands for all slots and its replicas are in step.
func StartRedisCluster(ctx context.Context, masters, replicasPerMaster int) (*RedisCluster, error) {
	if masters < 1 || replicasPerMaster < 0 {
		return nil, fmt.Errorf("Redis: a cluster of %d masters with %d replicas each", masters, replicasPerMaster)
	}
	nodeTimeout := "15000" // of a node that is not let run on a busy machine; it is Redis's default
	if replicasPerMaster > 0 {
		nodeTimeout = "1000"
	}
	c := &RedisCluster{Nodes: make([]*Redis, masters*(1+replicasPerMaster))}
	numbers := make([]int, len(c.Nodes))
	for i := range numbers {
		numbers[i] = i
	}
	err := each(numbers, func(i int) (err error) {
		c.Nodes[i], err = again(func() (*Redis, error) {
			return startRedis(ctx, busOffset, "--cluster-enabled", "yes", "--cluster-node-timeout", nodeTimeout,
				"--cluster-announce-ip", "127.0.0.1")
		})
		return err
	})
	if err == nil {
		err = c.form(ctx, masters)
	}
	if err != nil {
		_ = c.Stop()
		return nil, err
	}
	return c, nil
}

// Addrs returns host:port of every node.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for _, r := range c.Nodes {
		addrs = append(addrs, r.Addr())
	}
	return addrs
}

// Stop stops every node.
func (c *RedisCluster) Stop() error {
	return each(c.Nodes, func(r *Redis) error {
		if r == nil { // did not start
			return nil
		}
		return r.Stop()
	})
}

// form makes a cluster of separate nodes.
func (c *RedisCluster) form(ctx context.Context, masters int) error {
	const slots = 16384
	for i, r := range c.Nodes {
		commands := []string{
			fmt.Sprintf("CLUSTER SET-CONFIG-EPOCH %d", i+1), // or the nodes must first settle who goes before whom
		}
		if i > 0 {
			commands = append(commands, fmt.Sprintf("CLUSTER MEET 127.0.0.1 %d", c.Nodes[0].port))
		}
		if i < masters {
			first, last := i*slots/masters, (i+1)*slots/masters-1
			commands = append(commands, fmt.Sprintf("CLUSTER ADDSLOTSRANGE %d %d", first, last))
		}
		for _, command := range commands {
			if err := r.order(ctx, command); err != nil {
				return err
			}
		}
	}
	if err := c.await(ctx, "cluster_known_nodes", strconv.Itoa(len(c.Nodes))); err != nil {
		return err
	}
	for i, r := range c.Nodes[masters:] {
		id, err := c.Nodes[i%masters].do(ctx, "CLUSTER MYID")
		if err != nil {
			return fmt.Errorf("Redis: CLUSTER MYID: %w", err)
		}
		// A node that is counted may still be in the handshake and not known by its id.
		if err := until(ctx, func() error { return r.order(ctx, "CLUSTER REPLICATE "+id) }); err != nil {
			return err
		}
	}
	return c.await(ctx, "cluster_state", "ok")
}

// order sends a command that is answered with OK.
func (r *Redis) order(ctx context.Context, command string) error {
	reply, err := r.do(ctx, command)
	if err != nil {
		return fmt.Errorf("Redis: %s: %w", command, err)
	}
	if reply != "+OK" {
		return fmt.Errorf("Redis: %s: %s", command, reply)
	}
	return nil
}

// await waits until the field of CLUSTER INFO has the value on every node, and the link to the master is up on every
// replica.
func (c *RedisCluster) await(ctx context.Context, name, value string) error {
	return each(c.Nodes, func(r *Redis) error {
		return until(ctx, func() error {
			cluster, err := r.do(ctx, "CLUSTER INFO")
			if err != nil {
				return err
			}
			replication, err := r.do(ctx, "INFO replication")
			if err != nil {
				return err
			}
			if field(cluster, name) != value || field(replication, "master_link_status") == "down" {
				return fmt.Errorf("Redis: %s is not %s at %s yet:\n%s%s", name, value, r.Addr(), cluster, replication)
			}
			return nil
		})
	})
}
