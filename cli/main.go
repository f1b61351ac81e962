// Package cli is the command drip. It looks into the storages and queues of drip, and tries limits before you use them.
//
//	drip inspect URL ENTITY         show why an entity waits, and until when
//	drip top URL                    show the busiest and the longest-waiting entities
//	drip serve URL                  serve a page with all of it, for browsers
//	drip pause URL ENTITY DURATION  let nothing of an entity run; drip resume ends it
//	drip reset URL ENTITY           take back all tokens and tickets of an entity
//	drip pin URL ENTITY             set a limit besides the consumers'; drip unpin ends it
//	drip simulate FILE              play limits and a load in virtual time
//	drip queues AMQP-URL QUEUE      show the delay queues of a work queue
//	drip dead list AMQP-URL QUEUE   its dead letters; drip dead requeue puts them back
//
// "drip help" says more.
//
// To use the command with a storage of your own, build a program that imports the storage, which registers its scheme:
//
//	package main
//
//	import (
//		"github.com/drip-go/drip/cli"
//
//		_ "example.com/yours/storage"
//	)
//
//	func main() { cli.Main() }
//
// The storage needs Get and Set only. For top and lists of entities it must be a storage.Lister.
package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/storage/postgres"
	"github.com/drip-go/drip/storage/redis"
)

// Exit statuses. They are in the help and in docs/cli.md, too.
const (
	statusOK          = 0
	statusFailure     = 1
	statusUsage       = 2
	statusNoAnswer    = 3
	statusNo          = 4
	statusInterrupted = 130
)

// terminal has the input and the outputs of the commands.
type terminal struct {
	in          io.Reader
	out, err    io.Writer
	interactive bool // somebody reads out, and it can be written over
	asked       bool // somebody can answer
	zone        *time.Location
}

// Main runs the command of this process's arguments, and ends the process with its exit status. A second interrupt
// always ends it.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends what does not end by the first
	goredis.SetLogger(silent{})  // its errors are returned as well
	os.Exit(run(ctx, &terminal{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		interactive: isTerminal(os.Stdout) && os.Getenv("TERM") != "dumb",
		asked:       isTerminal(os.Stdin) && isTerminal(os.Stderr),
		zone:        time.Local,
	}, os.Args[1:]))
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// isTerminal reports whether f is a terminal, or another character device except the null device.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}

// run runs one command line and returns the exit status.
func run(ctx context.Context, t *terminal, args []string) int {
	err := dispatch(ctx, t, args)
	switch {
	case err == nil:
		return statusOK
	case ctx.Err() != nil:
		return statusInterrupted
	}
	fmt.Fprintln(t.err, forTerminal(err, args))
	var network net.Error
	var refused *pgconn.PgError
	switch {
	case errors.As(err, new(usageError)), errors.Is(err, drip.ErrNoEntity):
		return statusUsage
	case errors.Is(err, errNo):
		return statusNo
	case errors.As(err, &refused), // which is an answer, also to who connects
		errors.As(err, new(*fs.PathError)): // of this machine, although its errno is a net.Error
		return statusFailure
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrNoAnswer), errors.Is(err, postgres.ErrNoAnswer),
		errors.As(err, &network):
		return statusNoAnswer
	}
	return statusFailure
}

func dispatch(ctx context.Context, t *terminal, args []string) error {
	if len(args) == 0 {
		return usagef("%s", overview())
	}
	name := args[0]
	switch name {
	case "-h", "-help", "--help":
		name = "help"
	case "-version", "--version":
		name = "version"
	}
	for _, d := range directory() {
		if d.name != name {
			continue
		}
		c := d.make()
		positional, err := parse(d, c, args[1:])
		if errors.Is(err, flag.ErrHelp) {
			_, err = io.WriteString(t.out, d.manual())
			return err
		}
		if err == nil {
			err = c.run(ctx, t, positional)
		}
		if err != nil {
			return fmt.Errorf("drip %s: %w", name, err)
		}
		return nil
	}
	if topics[name] != nil {
		return usagef("drip: there is no command %q; drip help %s describes them", name, name)
	}
	return usagef("drip: there is no command %q; drip help lists those there are", name)
}

// usageError is that the command line, or a file that it names, makes no sense.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errNo is in the error of a command that has done its work, and whose answer is no.
var errNo = errors.New("no")

const credentials = "Are the user and the password in the URL right? In them @ and / have to be escaped: %40, %2F"

// forTerminal returns an error in words for the terminal. Its text may come from a server: no password, and nothing that a terminal acts on.
func forTerminal(err error, args []string) string {
	text := strings.ReplaceAll(withoutSecrets(message(err), args), "\t", "  ") // pgx indents lines
	return entities.Visible(text, '\n')
}

// message is the text of an error, with a line about what to do where that is known.
func message(err error) string {
	text := err.Error()
	if name, rest, ok := strings.Cut(text, ": drip: "); ok { // the library says drip as well
		text = name + ": " + rest
	}
	text = strings.Replace(text, "forgotten import? ", "", 1) // a program may forget one, the user of a command cannot
	for _, hint := range []struct{ sign, advice string }{
		{"NOAUTH", "The user and the password are part of the URL: redis://user:password@host"},
		{"WRONGPASS", credentials},
		{"username or password not allowed", credentials},
		{"password authentication failed", credentials},
		{"unknown scheme", "drip help urls says how they look"},
		{"malformed URL", "drip help urls says how they look"},
		{"the URL has no scheme", "drip help urls says how they look"},
		{"--listen: listen tcp: address ", "It takes an address and a port, such as 127.0.0.1:7117"},
		{"MOVED ", "This is a node of a Redis Cluster, which a URL cannot name"},
		{"no access to this vhost", "The virtual host is the path of the URL: amqp://host/name"},
		{context.DeadlineExceeded.Error(), "There was no answer in time: --timeout sets how long that is"},
		{redis.ErrNotState.Error(), "Is the prefix right? It is a parameter of the URL: redis://host?prefix=drip:"},
		{postgres.ErrNoSchema.Error(), "Is the schema right? It is a parameter of the URL: postgres://host/database?schema=drip"},
		{": unknown field ", "drip help limits and drip help simulate describe the fields"},
		{"connection refused", "Nothing listens at that address"},
	} {
		if strings.Contains(text, hint.sign) {
			return text + "\n" + hint.advice + "."
		}
	}
	return text
}
