package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/drip-go/drip/internal/servers"
)

// openTerminal makes a pseudo terminal and returns its two ends.
func openTerminal(t *testing.T) (user, ours *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { user.Close() })
	var unlocked, number int32
	control(t, user, syscall.TIOCSPTLCK, unsafe.Pointer(&unlocked))
	control(t, user, syscall.TIOCGPTN, unsafe.Pointer(&number))
	ours, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { ours.Close() })
	// By default Ctrl-C throws away what the terminal has not shown yet, after the signal: perhaps the program's last words.
	var mode syscall.Termios
	control(t, ours, syscall.TCGETS, unsafe.Pointer(&mode))
	mode.Lflag |= syscall.NOFLSH
	control(t, ours, syscall.TCSETS, unsafe.Pointer(&mode))
	return user, ours
}

func control(t *testing.T, terminal *os.File, request uintptr, value unsafe.Pointer) {
	t.Helper()
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), request, uintptr(value)); errno != 0 {
		t.Skip(errno)
	}
}

// On a terminal top goes on until Ctrl-C, and leaves the screen as it was.
func TestTopOnATerminal(t *testing.T) {
	address := servers.UseRedis(t).URL()
	user, ours := openTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := program(ctx, "top", patient, address, "--every", "10ms")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = ours, ours, ours
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true} // so that Ctrl-C becomes a signal
	ok(t, cmd.Start())
	ours.Close()
	var screen bytes.Buffer
	interrupted := false
	for chunk := make([]byte, 4096); ; { // until the terminal has no program any more
		n, err := user.Read(chunk)
		screen.Write(chunk[:n])
		if !interrupted && strings.Count(screen.String(), "LONGEST WAITING") >= 3 {
			interrupted = true
			if _, err := user.Write([]byte{3}); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, screen.String())
	}
	shown, left, ended := strings.Cut(screen.String(), leave)
	if !strings.HasPrefix(shown, enter) || !ended || !strings.Contains(left, "LONGEST WAITING") || strings.Contains(left, "\x1b") {
		t.Errorf("%q", screen.String())
	}
}

// In a pipe, and into a file, it is one snapshot without anything for terminals.
func TestTopInAPipe(t *testing.T) {
	cmd := program(t.Context(), "top", patient, servers.UseRedis(t).URL())
	var errs strings.Builder
	cmd.Stderr = &errs
	pipe, err := cmd.StdoutPipe()
	ok(t, err)
	ok(t, cmd.Start())
	out, err := io.ReadAll(pipe)
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	if err != nil || strings.Count(string(out), "LONGEST WAITING") != 1 || strings.Contains(string(out), "\x1b") {
		t.Errorf("%q, %v", out, err)
	}
}
