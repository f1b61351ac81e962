package servers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
)

func signalPID(pid int, sig syscall.Signal) error { return syscall.Kill(pid, sig) }

// supported says why there are no private servers on this system, if so.
func supported() error { return nil }

// spawner runs functions on one thread that lives as long as the process. The kernel sends Pdeathsig when the thread
// that made the child ends, which any other thread of a Go process may do long before the process does.
var spawner = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

// spawn starts cmd so that it dies when we do, and in a process group of its own, so that the terminal's Ctrl-C does
// not reach it before us.
func spawn(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	result := make(chan error)
	spawner() <- func() { result <- cmd.Start() }
	return <-result
}

func runAs(cmd *exec.Cmd, uid, gid int) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
}

// lockFolder takes a lock that ends with the file or with this process.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// stat returns the fields of /proc/PID/stat from the third on, the state; nil if there is no such process.
func stat(pid int) []string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	// The second field is the name in parentheses, which may hold anything.
	return strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
}

// state returns 'T' for a paused process, 'Z' for one that nobody has waited for, 0 for one that is gone.
func state(pid int) byte {
	f := stat(pid)
	if len(f) == 0 {
		return 0
	}
	return f[0][0]
}

// descendants returns the children of a process, their children, and so on.
func descendants(pid int) []int {
	children := make(map[int][]int)
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if f := stat(child); len(f) > 1 {
			parent, _ := strconv.Atoi(f[1])
			children[parent] = append(children[parent], child)
		}
	}
	family := children[pid]
	for i := 0; i < len(family); i++ {
		family = append(family, children[family[i]]...)
	}
	return family
}

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	f := stat(pid)
	if len(f) < 13 {
		return 0, errors.New("no CPU time in /proc")
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	const tick = time.Second / 100 // USER_HZ, the same on every system that Go runs on
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}
