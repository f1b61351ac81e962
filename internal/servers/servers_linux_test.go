package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/oktest"
)

func TestMain(m *testing.M) {
	// This binary is also the program that some tests start and then end from outside.
	if os.Getenv("DRIP_SERVERS_TEST_STARTER") != "" {
		os.Exit(Main(starter{}))
	}
	os.Exit(Main(m))
}

// starter is a program that starts a Redis, says which, and never ends.
type starter struct{}

func (starter) Run() int {
	r, err := StartRedis(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("%d %q\n", r.proc.cmd.Process.Pid, r.dir)
	select {}
}

// start runs a starter and returns it with the process id and the folder of its Redis.
func (starter) start(t *testing.T) (cmd *exec.Cmd, pid int, dir string) {
	t.Helper()
	OwnRedis(t) // skips the test where there is none
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DRIP_SERVERS_TEST_STARTER=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	if _, err := fmt.Sscanf(line, "%d %q", &pid, &dir); err != nil {
		t.Fatalf("starter printed %q", line)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if isGone(pid) {
		t.Errorf("process %d is not running", pid)
	}
	return cmd, pid, dir
}

func isGone(pid int) bool {
	s := state(pid)
	return s == 0 || s == 'Z'
}

// checkStopped stops a server and looks for leftovers.
func checkStopped(t *testing.T, s *server) {
	t.Helper()
	pids := append(descendants(s.proc.cmd.Process.Pid), s.proc.cmd.Process.Pid)
	must(t, s.Stop())
	for _, pid := range pids {
		if !isGone(pid) {
			t.Errorf("%s: process %d is still there after Stop", s.name, pid)
		}
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: after Stop the folder %s: %v", s.name, s.dir, err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("%s: second Stop = %v", s.name, err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Errorf("%s: Start after Stop succeeds", s.name)
	}
}

// checkPause pauses a server, looks whether ask hangs, and resumes it.
func checkPause(t *testing.T, s *server, ask func(context.Context) error) {
	t.Helper()
	must(t, s.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := ask(ctx); err == nil {
		t.Errorf("%s: answers while paused", s.name)
	}
	if ctx.Err() == nil {
		t.Errorf("%s: refuses while paused, should hang", s.name)
	}
	must(t, s.Resume())
	ctx, cancel = context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := until(ctx, func() error { return ask(ctx) }); err != nil {
		t.Errorf("%s: after Resume: %v", s.name, err)
	}
}

func TestForeign(t *testing.T) {
	r := &Redis{server: server{name: "Redis", url: "redis://:secret@example.org:7000/3"}}
	if got, want := r.Addr(), "example.org:7000"; got != want {
		t.Errorf("Addr = %q, want %q", got, want)
	}
	q := &RabbitMQ{server: server{name: "RabbitMQ", url: "amqp://example.org"}}
	_, ctlErr := q.Ctl(t.Context(), "stop")
	_, cpuErr := q.CPU()
	for i, err := range []error{
		r.Start(t.Context()), r.Kill(), r.Pause(), r.Resume(), r.Stop(), ctlErr, cpuErr,
	} {
		if err == nil {
			t.Errorf("call %d on a server of somebody else succeeds", i)
		}
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	r := OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	other := OwnRedis(t)
	if r.Addr() == other.Addr() || r.dir == other.dir {
		t.Errorf("two servers at %s in %s", r.Addr(), r.dir)
	}
	must(t, r.order(t.Context(), "SET key value"))
	must(t, r.Kill())
	if _, err := r.do(t.Context(), "PING"); err == nil {
		t.Error("a killed Redis answers")
	}
	must(t, r.Start(t.Context()))
	if got, err := r.do(t.Context(), "GET key"); got != "value" || err != nil {
		t.Errorf("GET = %q, %v, want value", got, err)
	}
	if got, _ := other.do(t.Context(), "GET key"); got == "value" {
		t.Error("two servers share their keys")
	}
	checkPause(t, &r.server, func(ctx context.Context) error {
		_, err := r.do(ctx, "PING")
		return err
	})
	must(t, other.Pause())
	checkStopped(t, &other.server) // paused
	must(t, r.Kill())
	checkStopped(t, &r.server) // killed
}

// A port that is taken between the search for it and the server's start costs another try, and a server of somebody
// else on it is not mistaken for ours.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	first := OwnRedis(t)
	tries := 0
	second, err := again(func() (*Redis, error) {
		tries++
		r, err := startRedis(t.Context(), 0)
		if err == nil && tries == 1 {
			// As if it had been started on the port of the first.
			must(t, r.Kill())
			r.port = first.port
			r.command = func() *exec.Cmd { return first.command() }
			err = r.Start(t.Context())
			_ = r.Stop()
		}
		return r, err
	})
	must(t, err)
	defer second.Stop()
	if tries != 2 {
		t.Errorf("%d tries, want 2", tries)
	}
}

func TestStarterKilled(t *testing.T) {
	t.Parallel()
	cmd, pid, dir := starter{}.start(t)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	oktest.Eventually(t, 2*time.Minute, "end of the orphan", func() bool { return isGone(pid) })

	alive := OwnRedis(t)
	for _, d := range []string{dir, alive.dir} {
		must(t, os.Chtimes(d, time.Time{}, time.Now().Add(-time.Hour)))
	}
	sweep()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder of the dead: %v", err)
	}
	if _, err := os.Stat(alive.dir); err != nil {
		t.Errorf("folder of the living: %v", err)
	}
}

func TestStarterInterrupted(t *testing.T) {
	t.Parallel()
	cmd, pid, dir := starter{}.start(t)
	must(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != 130 {
		t.Errorf("exit code %d, want 130", got)
	}
	if !isGone(pid) {
		t.Errorf("process %d is still running", pid)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s: %v", dir, err)
	}
}

func TestMissing(t *testing.T) {
	_, err := program("some-package", "no-such-program", "/no/such/*/program")
	if !errors.Is(err, ErrMissing) {
		t.Errorf("got %v, want ErrMissing", err)
	}
	if got, want := fmt.Sprint(err), "no-such-program not found: apt-get install some-package"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}

	for ci, want := range map[string]string{"": "skip", "true": "fatal"} {
		t.Setenv("CI", ci)
		var tb fakeTB
		require(&tb, err)
		if tb.got != want {
			t.Errorf("CI=%q: got %q, want %q", ci, tb.got, want)
		}
	}
}

// A variable that names a dead server fails the tests with its name, and skips none.
func TestDeadServer(t *testing.T) {
	p, err := freePort(0)
	must(t, err)
	t.Setenv("CI", "")
	t.Setenv("DRIP_NO_URL", fmt.Sprintf("redis://:secret@127.0.0.1:%d/0", p))
	use := shared("DRIP_NO_URL", func(url string) string { return url }, func(context.Context) (string, error) { return "", ErrMissing })
	var tb fakeTB
	use(&tb)
	if want := fmt.Sprintf("DRIP_NO_URL names 127.0.0.1:%d, but no server is there: ", p); tb.got != "fatal" || !strings.HasPrefix(tb.text, want) || strings.Contains(tb.text, "secret") {
		t.Errorf("got %q, %q, want fatal, %q", tb.got, tb.text, want)
	}
}

type fakeTB struct {
	TB
	got, text string
}

func (f *fakeTB) Helper() {}
func (f *fakeTB) Skipf(format string, args ...any) {
	f.got, f.text = "skip", fmt.Sprintf(format, args...)
}
func (f *fakeTB) Fatalf(format string, args ...any) {
	f.got, f.text = "fatal", fmt.Sprintf(format, args...)
}

func TestFreePort(t *testing.T) {
	seen := make(map[int]bool)
	for range 50 {
		p, err := freePort(busOffset)
		must(t, err)
		if seen[p] || !isFree(p) || !isFree(p+busOffset) {
			t.Errorf("port %d is not free or came twice", p)
		}
		if l, err := net.Listen("unix", fmt.Sprint("@drip-port-", p)); err == nil {
			l.Close()
			t.Errorf("another process may take port %d", p)
		}
		seen[p] = true
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	if port := l.Addr().(*net.TCPAddr).Port; isFree(port) {
		t.Errorf("port %d counts as free, and somebody listens on it", port)
	}
}

// The terminal's Ctrl-C goes to a process group.
func TestOwnProcessGroup(t *testing.T) {
	r := OwnRedis(t)
	ours, err := syscall.Getpgid(0)
	must(t, err)
	theirs, err := syscall.Getpgid(r.proc.cmd.Process.Pid)
	must(t, err)
	if ours == theirs {
		t.Error("the server is in our process group")
	}
}
