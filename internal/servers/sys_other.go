//go:build !linux

package servers

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// supported says that there are no private servers here: pausing a server, ending it with all its children, and its
// end when we are killed would be another piece of code for every system. The servers of compose.yaml run everywhere.
func supported() error {
	return fmt.Errorf("%w: private servers need Linux; eval \"$(scripts/servers ensure NAME)\" gives one in Docker", ErrMissing)
}

const sigStop, sigCont = syscall.SIGKILL, syscall.SIGKILL // never sent

func signalPID(int, syscall.Signal) error { return supported() }
func spawn(*exec.Cmd) error               { return supported() }
func runAs(*exec.Cmd, int, int)           {}
func lockFolder(string) (*os.File, error) { return nil, supported() }
func state(int) byte                      { return 0 }
func descendants(int) []int               { return nil }
func cpuTime(int) (time.Duration, error)  { return 0, supported() }
