package consumer

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/drip-go/drip/internal/servers"
	_ "github.com/drip-go/drip/storage/redis"
	"github.com/drip-go/drip/workertest"
)

// jobVariable, when set, makes this test binary a consumer process that does the job.
const jobVariable = "DRIP_TEST_JOB"

// job is a consumer process of a test.
type job struct {
	Kind                   string // see children
	RabbitMQ, Redis, Queue string
	Provider               string // that a sharer calls
}

// children are what a process does until its context ends, by the job's kind.
var children = map[string]func(context.Context, job) error{"victim": victim, "takes its time": takesItsTime, "shares": sharer}

func TestMain(m *testing.M) {
	workertest.Child(conformance, limiting)
	if config := os.Getenv(jobVariable); config != "" {
		if err := child(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most of these tests wait for a broker most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil { // -parallel on the command line is read later, and counts
		panic(err)
	}
	os.Exit(servers.Main(m))
}

// child does a job until its input ends.
func child(config string) error {
	var j job
	if err := json.Unmarshal([]byte(config), &j); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return children[j.Kind](ctx, j)
}

// process starts a process that does the job. It ends when its input is closed. Each line it prints goes to line.
func process(t *testing.T, j job, line func(string)) (cmd *exec.Cmd, input io.Closer, wait func() error) {
	t.Helper()
	config, err := json.Marshal(j)
	must(t, err)
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), jobVariable+"="+string(config))
	cmd.Stderr = os.Stderr
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
