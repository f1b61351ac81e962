package consumer

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/servers"
	_ "github.com/drip-go/drip/storage/redis"
	"github.com/drip-go/drip/workertest"
)

type job struct {
	Kind                   string // see children
	RabbitMQ, Redis, Queue string
	Provider               string // that a sharer calls
}

// children are what a process does until its context ends, by the job's kind.
var children = map[string]func(context.Context, job) error{"victim": victim, "takes its time": takesItsTime, "shares": sharer}

func TestMain(m *testing.M) {
	workertest.Child(conformance, limiting)
	contenders.Main(func(j *job) error { return children[j.Kind](contenders.Context(), *j) })
	os.Exit(servers.Main(m))
}

// process starts a process that does the job. It ends when its input is closed. Each line it prints goes to line, the
// last one being its report.
func process(t *testing.T, j job, line func(string)) (cmd *exec.Cmd, input io.Closer, wait func() error) {
	t.Helper()
	cmd = contenders.Command(t.Context(), j)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line(lines.Text())
		}
		ended <- cmd.Wait()
	}()
	return cmd, in, func() error { return <-ended }
}
