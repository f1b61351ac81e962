package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/oktest"
)

// scriptRun is scripts/servers that gives a shell command a Redis.
func scriptRun(t *testing.T, shell string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	command := exec.Command("../../../scripts/servers", "run", "redis", "--", "sh", "-c", shell)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DRIP_") {
			command.Env = append(command.Env, v)
		}
	}
	return command
}

// ended fails the test if a server still listens at a URL.
func ended(t *testing.T, url string) {
	t.Helper()
	address := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(url), "redis://"), "/0")
	if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
		c.Close()
		t.Error("the server goes on")
	}
}

// scripts/servers run gives its command a private server, also where the program is installed, and ends it.
func TestRunGivesServers(t *testing.T) {
	// The command asks the server itself, and fails.
	command := scriptRun(t, `echo "$DRIP_REDIS_URL"; redis-cli -u "$DRIP_REDIS_URL" ping; exit 7`)
	var side strings.Builder
	command.Stderr = &side
	out, err := command.Output()
	if command.ProcessState == nil || command.ProcessState.ExitCode() != 7 {
		t.Fatalf("the exit status is not the command's: %v\n%s%s", err, out, side.String())
	}
	lines := strings.Fields(string(out))
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "redis://127.0.0.1:") || lines[1] != "PONG" {
		t.Fatalf("the command had no server: %q\n%s", out, side.String())
	}
	ended(t, lines[0])
}

// A signal to scripts/servers alone, such as a supervisor's, ends the command and its server.
func TestRunEndsWithItsScript(t *testing.T) {
	folder := t.TempDir()
	command := scriptRun(t, `echo "$DRIP_REDIS_URL"; exec sleep 600`)
	command.Env = append(command.Env, "TMPDIR="+folder)
	out, err := command.StdoutPipe()
	oktest.OK(t, err)
	oktest.OK(t, command.Start())
	url, err := bufio.NewReader(out).ReadString('\n')
	oktest.OK(t, err)
	oktest.OK(t, command.Process.Signal(syscall.SIGTERM))
	_ = command.Wait() // its status is that of the signal
	ended(t, url)
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

// A Ctrl-C while scripts/servers builds its program, or fetches the SQS server, leaves nothing either.
func TestRunIsInterruptedEarly(t *testing.T) {
	if signal.Ignored(os.Interrupt) {
		t.Skip("interrupts are ignored here")
	}
	waits := "#!/bin/sh\ntest -z \"$GOTMPDIR\" || touch \"$GOTMPDIR/work\"\necho started >&2\nexec sleep 600\n"
	for program, args := range map[string]string{"go": "run redis -- true", "npm": "ensure sqs"} {
		bin, folder := t.TempDir(), t.TempDir()
		command := scriptRun(t, "")
		command.Args = append(command.Args[:1], strings.Fields(args)...)
		oktest.OK(t, os.WriteFile(filepath.Join(bin, "node"), []byte(waits), 0o755))
		oktest.OK(t, os.WriteFile(filepath.Join(bin, program), []byte(waits), 0o755))
		command.Env = append(command.Env, "TMPDIR="+folder, "GOTMPDIR=", "DRIP_RELEASES="+folder, "PATH="+bin+":"+os.Getenv("PATH"))
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		pipe, err := command.StderrPipe()
		oktest.OK(t, err)
		side := bufio.NewReader(pipe)
		oktest.OK(t, command.Start())
		for line := ""; line != "started\n" && err == nil; {
			line, err = side.ReadString('\n')
		}
		oktest.OK(t, err)
		oktest.OK(t, syscall.Kill(-command.Process.Pid, syscall.SIGINT))
		if err := command.Wait(); err == nil {
			t.Errorf("%s: it was interrupted and succeeds", program)
		}
		if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
			t.Errorf("%s: it leaves %v, %v", program, left, err)
		}
	}
}

// Where Docker has the servers, each script ends its own ones, and not those of a developer or of another script.
func TestDockerServersAreOnesOwn(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"bash", "sh", "dirname", "tr", "uname"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		oktest.OK(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	docker := "#!/bin/sh\ncase \"$*\" in *up*sqs) exit 1;; *up*|*down*) echo \"$3\" >>\"$PROJECTS\";; *port*) echo 127.0.0.1:1;; esac\n"
	oktest.OK(t, os.WriteFile(filepath.Join(bin, "docker"), []byte(docker), 0o755))
	var all []string
	for names, want := range map[string]string{"redis": "redis://127.0.0.1:1/0\n", "redis sqs": ""} { // there is no SQS
		args := append(append([]string{"around"}, strings.Fields(names)...), "--", "sh", "-c", `echo "$DRIP_REDIS_URL"`)
		command := exec.Command("../../../scripts/servers", args...)
		projects := filepath.Join(t.TempDir(), "projects")
		command.Env = []string{"PATH=" + bin, "PROJECTS=" + projects}
		if out, err := command.Output(); string(out) != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", names, out, err)
		}
		told, err := os.ReadFile(projects)
		oktest.OK(t, err)
		up, down, _ := strings.Cut(strings.TrimSpace(string(told)), "\n")
		if up == "" || up != down {
			t.Errorf("the projects are %q", told)
		}
		all = append(all, up)
	}
	if all[0] == all[1] {
		t.Errorf("two scripts have the project %q", all[0])
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"", "redis", "redis --", "-- true", "mysql -- true"} {
		if status, err := run(strings.Fields(args)); status != 2 || err == nil {
			t.Errorf("run %s: %d, %v", args, status, err)
		}
	}
}
