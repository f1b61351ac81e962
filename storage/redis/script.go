package redis

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"slices"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed common.lua
	commonSource string
	//go:embed state.lua
	stateSource string
	//go:embed decide.lua
	decideSource string
	//go:embed admit.lua
	admitSource string
	//go:embed op.lua
	opSource string
	//go:embed store.lua
	storeSource string
	//go:embed set.lua
	setSource string

	opScript  = newScript(commonSource + stateSource + decideSource + "if not plain then\n" + admitSource + opSource + "end\n" + storeSource)
	setScript = newScript(commonSource + setSource)
	getScript = goredis.NewScript(commonSource + "return {value, time[1], time[2]}")
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

// args begins the arguments of a call of s for a key. The others are appended.
func (s *script) args(key string) []any {
	return append(make([]any, 0, 7), "evalsha", s.hash, 1, key) // room for a single operation
}

// command makes a call of s, which is not sent yet.
func (s *script) command(args []any) *command {
	return &command{goredis.NewStringCmd(context.Background(), args...), s}
}

// NoRetry keeps go-redis from sending the command again when the connection broke before the answer came: it may have
// been run, and would take a second token. What a server refuses to run, as with MOVED, go-redis still sends on.
func (*command) NoRetry() bool { return true }

// run sends the commands in one pipeline and leaves in each what came of it. A server that does not know a script,
// because it has been started or its scripts were flushed, has not run it: it gets the command again with the source.
func run(client goredis.UniversalClient, commands []*command) {
	send(client, commands)
	var unknown []*command
	for _, c := range commands {
		if err := c.Err(); err != nil && goredis.HasErrorPrefix(err, "NOSCRIPT") {
			args := slices.Clone(c.Args())
			args[0], args[1] = "eval", c.script.source
			c.StringCmd = goredis.NewStringCmd(context.Background(), args...)
			unknown = append(unknown, c)
		}
	}
	send(client, unknown)
}

// send does not pass on the context of a caller: commands of several share the pipeline, and none of them may end it
// for the others.
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
		_, _ = p.Exec(ctx)
	}
}
