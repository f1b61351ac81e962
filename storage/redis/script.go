package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"slices"

	goredis "github.com/redis/go-redis/v9"
)

//go:generate go run ../../internal/luagen -decision ../../decision -o decide.lua decide.lua.tmpl

var (
	//go:embed numbers.lua
	numbersSource string
	//go:embed decide.lua
	decideSource string
	//go:embed swap.lua
	swapSource string
	//go:embed set.lua
	setSource string
	//go:embed read.lua
	readSource string

	decideScript = newScript(numbersSource + decideSource)
	swapScript   = newScript(numbersSource + swapSource)
	setScript    = newScript(numbersSource + setSource)
	readScript   = goredis.NewScript(numbersSource + readSource)
)

type script struct{ source, hash string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source, hex.EncodeToString(sum[:])}
}

// command is one call of a script.
type command struct {
	*goredis.StringCmd
	script *script
}

// command makes a call of s for the keys, which is not sent yet.
func (s *script) command(keys []string, args ...any) *command {
	all := append(make([]any, 0, 3+len(keys)+len(args)), "evalsha", s.hash, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	return &command{goredis.NewStringCmd(context.Background(), append(all, args...)...), s}
}

// NoRetry keeps go-redis from sending the command again when the connection broke before the answer came: the server
// may have run it, and a second run would take a second token. If a server refuses a command, as with MOVED, go-redis
// still sends it to the right one.
func (*command) NoRetry() bool { return true }

// run sends the commands in one pipeline and leaves in each its result. After a start or a flush of its scripts a
// server does not know a script, and does not run it. run then sends the first of these commands with the source, and
// the others again.
func run(client goredis.UniversalClient, commands []*command) {
	send(client, commands)
	for {
		commands = slices.DeleteFunc(commands, func(c *command) bool {
			err := c.Err()
			return err == nil || !goredis.HasErrorPrefix(err, "NOSCRIPT") || c.Args()[0] == "eval"
		})
		if len(commands) == 0 {
			return
		}
		for i, c := range commands {
			args := slices.Clone(c.Args())
			if i == 0 {
				args[0], args[1] = "eval", c.script.source
			}
			c.StringCmd = goredis.NewStringCmd(context.Background(), args...)
		}
		send(client, commands[:1])
		send(client, commands[1:])
	}
}

// send does not pass on the context of a caller: several callers share the pipeline, and no caller may end it for the
// others.
func send(client goredis.UniversalClient, commands []*command) {
	switch ctx := context.Background(); len(commands) {
	case 0:
	case 1:
		_ = client.Process(ctx, commands[0])
	default:
		p := client.Pipeline()
		for _, c := range commands {
			_ = p.Process(ctx, c)
		}
		exec(ctx, p)
	}
}

// exec runs a pipeline. go-redis leaves the commands without an error if the server refuses the connection; exec does not.
func exec(ctx context.Context, p goredis.Pipeliner) []goredis.Cmder {
	commands, err := p.Exec(ctx)
	if err != nil && !slices.ContainsFunc(commands, func(c goredis.Cmder) bool { return c.Err() != nil }) {
		for _, c := range commands {
			c.SetErr(err)
		}
	}
	return commands
}
