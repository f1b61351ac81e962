//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// fakeGo stands for Go: its first test ends in good order when it is interrupted, as that of the go command does.
const fakeGo = `#!/bin/sh
echo "$1" >>"$CALLS"
case $1 in
env) echo 1 ;;
list) echo package ;;
test)
	[ "$(grep -c test "$CALLS")" = 1 ] || exit 1
	trap 'exit 1' INT
	echo started
	while :; do sleep 1; done
	;;
run) cat ;;
esac
`

// Where a server cannot be had, its tests are skipped. CI must not pass because it tested nothing.
func TestMissingServers(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"bash", "sh", "dirname", "find", "grep", "mktemp", "rm", "sort", "tr", "uname"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Skip(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	fake := "#!/bin/sh\ncase $1 in env) echo 1;; run) cat;; test) echo tested;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	for ci, want := range map[string]bool{"": true, "1": false} {
		cmd := exec.CommandContext(t.Context(), "../test", "./consumer")
		cmd.Env = []string{"PATH=" + bin, "CI=" + ci}
		if out, err := cmd.Output(); (string(out) == "tested\n") != want || (err == nil) != want {
			t.Errorf("CI=%s: %q, %v", ci, out, err)
		}
	}
}

// A Ctrl-C ends scripts/test: it does not go on with the next module.
func TestInterrupt(t *testing.T) {
	if signal.Ignored(os.Interrupt) {
		t.Skip("interrupts are ignored here")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(fakeGo), 0o755); err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(dir, "calls")
	cmd := exec.CommandContext(t.Context(), "../test")
	cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"), "CALLS="+calls)
	for _, name := range []string{"RABBITMQ", "REDIS", "POSTGRES", "SQS"} {
		cmd.Env = append(cmd.Env, "DRIP_"+name+"_URL=is not asked")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err) // there is no bash
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "started\n" {
		t.Errorf("%q, %v", line, err)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("it was interrupted and succeeds")
	}
	called, err := os.ReadFile(calls)
	if n := strings.Count(string(called), "test\n"); err != nil || n != 1 {
		t.Errorf("%d calls of go test, want 1: %v\n%s", n, err, called)
	}
}
