package cli

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

// full is an output on a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// An output that cannot be written is a failure, and no server that did not answer.
func TestFullDisk(t *testing.T) {
	_, url := newMemory(t)
	for _, line := range []string{"help", "version", "top URL --json", "inspect URL shop"} {
		var err strings.Builder
		if got := run(t.Context(), &terminal{out: full{}, err: &err, zone: time.UTC}, strings.Fields(strings.ReplaceAll(line, "URL", url))); got != statusFailure {
			t.Errorf("drip %s: status %d, want %d\n%s", line, got, statusFailure, &err)
		}
	}
}
