// Run starts private servers, runs a command with their addresses in its environment, and stops them. scripts/servers
// calls it:
//
//	go run ./internal/servers/run rabbitmq redis postgres sqs -- COMMAND...
//
// Its exit status is the command's.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/drip-go/drip/internal/servers"
)

// private is a server that was started.
type private interface {
	URL() string
	Stop() error
}

// kinds are the servers there are, with the environment variables that name them.
var kinds = map[string]struct {
	variable string
	start    func(context.Context) (private, error)
}{
	"rabbitmq": {"DRIP_RABBITMQ_URL", func(ctx context.Context) (private, error) { return servers.StartRabbitMQ(ctx) }},
	"redis":    {"DRIP_REDIS_URL", func(ctx context.Context) (private, error) { return servers.StartRedis(ctx) }},
	"postgres": {"DRIP_POSTGRES_URL", func(ctx context.Context) (private, error) { return servers.StartPostgres(ctx) }},
	"sqs":      {"DRIP_SQS_URL", func(ctx context.Context) (private, error) { return servers.StartSQS(ctx) }},
}

// ownFile is the variable in which scripts/servers names the file of this program, because nobody else can remove it.
const ownFile = "DRIP_SERVERS_RUNNER"

func main() {
	if file := os.Getenv(ownFile); file != "" {
		if err := errors.Join(os.Remove(file), os.Unsetenv(ownFile)); err != nil {
			fmt.Fprintln(os.Stderr, "servers:", err)
		}
	}
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "servers:", err)
	}
	os.Exit(status)
}

func run(args []string) (status int, err error) {
	n := slices.Index(args, "--")
	if n < 1 || n == len(args)-1 {
		return 2, errors.New("usage: run NAME... -- COMMAND")
	}
	// A Ctrl-C reaches the command, too, which may end in good order; the servers end after it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	environment := os.Environ()
	starting, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for _, name := range args[:n] {
		kind, ok := kinds[name]
		if !ok {
			return 2, fmt.Errorf("there is no %q; there are rabbitmq, redis, postgres and sqs", name)
		}
		s, err := kind.start(starting)
		if err != nil {
			return 1, err
		}
		defer func() {
			if failed := s.Stop(); failed != nil && err == nil {
				status, err = max(1, status), failed
			}
		}()
		fmt.Fprintf(os.Stderr, "servers: %s: a private one, in %s\n", name, kind.variable)
		environment = append(environment, kind.variable+"="+s.URL())
	}
	command := exec.Command(args[n+1], args[n+2:]...)
	command.Env, command.Stdin, command.Stdout, command.Stderr = environment, os.Stdin, os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return 127, err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = command.Process.Signal(syscall.SIGTERM) // it may have ended
		err = <-ended
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}
