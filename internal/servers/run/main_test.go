package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// scripts/servers run gives its command a private server, also where the program is installed, and ends it.
func TestRunGivesServers(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	script, err := filepath.Abs("../../../scripts/servers")
	if err != nil {
		t.Fatal(err)
	}
	// The command asks the server itself, and fails.
	command := exec.Command(script, "run", "redis", "--", "sh", "-c", `echo "$DRIP_REDIS_URL"; redis-cli -u "$DRIP_REDIS_URL" ping; exit 7`)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DRIP_") {
			command.Env = append(command.Env, v)
		}
	}
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
	address := strings.TrimSuffix(strings.TrimPrefix(lines[0], "redis://"), "/0")
	if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
		c.Close()
		t.Error("the server goes on after the command")
	}
}

// A signal to scripts/servers alone, such as a supervisor's, ends the command and its server.
func TestRunEndsWithItsScript(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	folder := t.TempDir()
	command := exec.Command("../../../scripts/servers", "run", "redis", "--", "sh", "-c", `echo "$DRIP_REDIS_URL"; exec sleep 600`)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "DRIP_") {
			command.Env = append(command.Env, v)
		}
	}
	command.Env = append(command.Env, "TMPDIR="+folder)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // its status is that of the signal
	address := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(url), "redis://"), "/0")
	if c, err := net.DialTimeout("tcp", address, 5*time.Second); err == nil {
		c.Close()
		t.Error("the server goes on after the script")
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"", "redis", "redis --", "-- true", "mysql -- true"} {
		if status, err := run(strings.Fields(args)); status != 2 || err == nil {
			t.Errorf("run %s: %d, %v", args, status, err)
		}
	}
}
