package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drip-go/drip/internal/sleep"
)

const (
	pollEvery = 20 * time.Millisecond // between two looks at whether something has happened yet
	probeTime = 2 * time.Second       // for one probe of a server that is starting
	stopTime  = 10 * time.Second      // for a server to end in good order before it is killed
	goneTime  = 5 * time.Second       // for the kernel to be done with a killed process
)

// errEnded is wrapped by the error of a start whose process ended by itself, most likely because another process took
// the port in the meantime. Such a start is worth another try with other ports.
var errEnded = errors.New("ended before it was ready")

// server is what all kinds of server have in common. One with a url and no command was started by somebody else.
type server struct {
	name    string
	url     string
	dir     string
	lock    *os.File // says that dir is in use
	command func() *exec.Cmd
	ready   func(ctx context.Context, pid int) error // must not take another process on our port for ours
	quit    syscall.Signal                           // asks it to end in good order
	after   func()                                   // runs once, at the end of Stop

	mu      sync.Mutex
	proc    *process // the last one started
	stopped bool
}

// process is a child and the moment at which it is gone and reaped.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// live holds the servers that are not stopped yet.
var live struct {
	sync.Mutex
	servers map[*server]bool
}

// closing is closed when we were interrupted: from then on nothing starts.
var closing = make(chan struct{})

var errInterrupted = errors.New("interrupted")

// prepare gives s a folder and makes it known to stopAll.
func (s *server) prepare() error {
	live.Lock()
	defer live.Unlock()
	select {
	case <-closing:
		return fmt.Errorf("%s: %w", s.name, errInterrupted)
	default:
	}
	sweepOnce()
	dir, err := os.MkdirTemp("", folderPrefix+strings.ToLower(s.name)+"-")
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	if s.lock, err = lockFolder(dir); err != nil {
		_ = os.Remove(dir)
		return fmt.Errorf("%s: %w", s.name, err)
	}
	s.dir = dir
	if live.servers == nil {
		live.servers = make(map[*server]bool)
	}
	live.servers[s] = true
	return nil
}

// launch prepares a server and starts it. After an error nothing of it is left.
func (s *server) launch(ctx context.Context) error {
	if err := s.prepare(); err != nil {
		return err
	}
	err := s.Start(ctx)
	if err != nil {
		_ = s.Stop()
	}
	return err
}

const folderPrefix = "drip-server-"

var sweepOnce = sync.OnceFunc(sweep)

// sweep removes the folders of processes that could not do it any more, as after a panic in a test. A lock tells who
// lives, and not a process id: containers may share the folder for temporary files.
func sweep() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*"))
	for _, dir := range dirs {
		if info, err := os.Stat(dir); err != nil || time.Since(info.ModTime()) < time.Minute {
			continue // it may be so new that it is not locked yet
		}
		if lock, err := lockFolder(dir); err == nil {
			_ = os.RemoveAll(dir)
			_ = lock.Close()
		}
	}
}

func stopAll() {
	live.Lock()
	all := slices.Collect(maps.Keys(live.servers))
	live.Unlock()
	_ = each(all, (*server).Stop)
}

// URL returns the address that clients of this kind of server take.
func (s *server) URL() string { return s.url }

// Start starts a server that was killed, in the same folder, with the same ports, and returns when it is ready. After
// an error it is not running.
func (s *server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.command == nil:
		return s.foreign()
	case s.stopped:
		return fmt.Errorf("%s: start after Stop", s.name)
	case s.proc != nil && s.proc.running():
		return fmt.Errorf("%s: is running already", s.name)
	}
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	defer log.Close() // the child has its own
	cmd := s.command()
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log // files, not pipes: no goroutine, and Wait waits for the child alone
	if err := spawn(cmd); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	s.proc = &process{cmd: cmd, done: make(chan struct{})}
	go func(p *process) {
		_ = p.cmd.Wait() // how it ended is of no interest: mostly by our signal
		close(p.done)
	}(s.proc)
	if err := s.wait(ctx); err != nil {
		s.kill()
		return err
	}
	return nil
}

// wait returns when the server is ready, has ended or ctx is done. It requires mu held.
func (s *server) wait(ctx context.Context) error {
	for {
		probe, cancel := context.WithTimeout(ctx, probeTime)
		err := s.ready(probe, s.proc.cmd.Process.Pid)
		cancel()
		if err == nil && s.proc.running() {
			return nil
		}
		select {
		case <-s.proc.done:
			return fmt.Errorf("%s: %w; the end of its log:\n%s", s.name, errEnded, s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready: %w (last: %v); the end of its log:\n%s", s.name, ctx.Err(), err, s.logTail())
		case <-closing:
			return fmt.Errorf("%s: %w", s.name, errInterrupted)
		case <-time.After(pollEvery):
		}
	}
}

// Kill ends the server as a crash would, with SIGKILL, and returns when it is gone. Its folder stays.
func (s *server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustRun(); err != nil {
		return err
	}
	s.kill()
	return nil
}

// kill requires mu held.
func (s *server) kill() {
	_ = s.proc.cmd.Process.Signal(sigStop) // so that no child is born while we look for children
	family := descendants(s.proc.cmd.Process.Pid)
	_ = s.proc.cmd.Process.Kill()
	for _, pid := range family {
		_ = signalPID(pid, syscall.SIGKILL)
	}
	<-s.proc.done
	awaitGone(family)
}

// Pause stops the server with SIGSTOP: its connections stay open and nobody answers, as on a host that hangs.
func (s *server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustRun(); err != nil {
		return err
	}
	// The parent first, or it has a child that we do not know.
	if err := s.proc.cmd.Process.Signal(sigStop); err != nil {
		return fmt.Errorf("%s: pause: %w", s.name, err)
	}
	pid := s.proc.cmd.Process.Pid
	if !poll(goneTime, func() bool { return state(pid) == 'T' }) {
		return fmt.Errorf("%s: pause: it does not stop", s.name)
	}
	for _, child := range descendants(pid) {
		_ = signalPID(child, sigStop)
	}
	return nil
}

// Resume ends a Pause.
func (s *server) Resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustRun(); err != nil {
		return err
	}
	return s.resume()
}

// resume requires mu held.
func (s *server) resume() error {
	for _, child := range descendants(s.proc.cmd.Process.Pid) {
		_ = signalPID(child, sigCont)
	}
	if err := s.proc.cmd.Process.Signal(sigCont); err != nil {
		return fmt.Errorf("%s: resume: %w", s.name, err)
	}
	return nil
}

// Stop ends the server in good order, or kills it if that takes too long, and removes its folder. A server that was
// killed or paused can be stopped, and one that is stopped already. Afterwards it cannot be started again.
func (s *server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dir == "" {
		return s.foreign()
	}
	if s.stopped {
		return nil
	}
	s.stopped = true
	if s.proc != nil && s.proc.running() {
		family := descendants(s.proc.cmd.Process.Pid)
		_ = s.proc.cmd.Process.Signal(s.quit)
		_ = s.resume()
		select {
		case <-s.proc.done:
			awaitGone(family)
		case <-time.After(stopTime):
			s.kill()
		}
	}
	live.Lock()
	delete(live.servers, s)
	live.Unlock()
	if s.after != nil {
		s.after()
	}
	defer s.lock.Close()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// CPU returns the user and system time that the server's process has used since it was started last.
func (s *server) CPU() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mustRun(); err != nil {
		return 0, err
	}
	d, err := cpuTime(s.proc.cmd.Process.Pid)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.name, err)
	}
	return d, nil
}

func (s *server) foreign() error {
	return fmt.Errorf("%s: not started here, so neither is it stopped here", s.name)
}

// mustRun requires mu held.
func (s *server) mustRun() error {
	if s.command == nil {
		return s.foreign()
	}
	if s.proc == nil || !s.proc.running() {
		return fmt.Errorf("%s: is not running", s.name)
	}
	return nil
}

func (s *server) logFile() string { return filepath.Join(s.dir, "log.txt") }

func (s *server) logTail() string {
	log, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(log[max(0, len(log)-2000):])
}

// awaitGone waits until the processes are gone, which after a kill they soon are: a folder is not removed under them.
func awaitGone(pids []int) {
	poll(goneTime, func() bool {
		return !slices.ContainsFunc(pids, func(pid int) bool {
			s := state(pid)
			return s != 0 && s != 'Z' // a zombie is its new parent's business
		})
	})
}

// poll returns true as soon as done does, false if it does not within the limit.
func poll(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); !done(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// until calls f until it returns nil. When ctx is done first, it returns what f had last to say.
func until(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if !sleep.For(ctx, pollEvery) {
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		}
	}
}

func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", url, res.Status)
	}
	body, err := io.ReadAll(res.Body)
	return string(body), err
}

// each calls f with every element, all at once, and joins the errors.
func each[T any](all []T, f func(T) error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { errs[i] = f(all[i]) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// again calls start until it succeeds, fails for good, or has lost its ports three times.
func again[T any](start func() (T, error)) (v T, err error) {
	for range 3 {
		if v, err = start(); !errors.Is(err, errEnded) {
			break
		}
	}
	return v, err
}

var ports struct {
	sync.Mutex
	mine []net.Listener // one abstract socket for each port of this process
}

// freePort returns a port of 127.0.0.1 that nobody listens on, neither at it nor at the given distances above it. It
// lies below the range from which systems give ports to outgoing connections, and belongs to this process until its end, also
// while its server is stopped: an abstract socket tells other processes.
func freePort(also ...int) (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range 1000 {
		port := 10000 + rand.IntN(10000)
		if !isFree(port) || slices.ContainsFunc(also, func(d int) bool { return !isFree(port + d) }) {
			continue
		}
		mine, err := net.Listen("unix", fmt.Sprint("@drip-port-", port))
		if err != nil { // it is taken
			continue
		}
		ports.mine = append(ports.mine, mine)
		return port, nil
	}
	return 0, errors.New("no free port from 10000 to 19999")
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func isFree(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// environ is our environment without what would turn a server away from its own folder and ports.
func environ(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool {
		return slices.ContainsFunc([]string{"RABBITMQ_", "ERL_", "PG", "CONF_ENV_FILE", "NOTIFY_SOCKET"}, func(prefix string) bool {
			return strings.HasPrefix(e, prefix)
		})
	})
	return append(append(env, "LC_ALL=C.UTF-8"), more...)
}

// program returns the first of a server's candidates that exists: a pattern if it holds a slash, else a name for PATH.
func program(install string, candidates ...string) (string, error) {
	if err := supported(); err != nil {
		return "", err
	}
	for _, c := range candidates {
		if !strings.Contains(c, "/") {
			if path, err := exec.LookPath(c); err == nil {
				return path, nil
			}
			continue
		}
		if found, _ := filepath.Glob(c); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", fmt.Errorf("%s %w: apt-get install %s", filepath.Base(candidates[0]), ErrMissing, install)
}
