// Package contenders lets a test contend from several processes, which are copies of the test's own program.
package contenders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/drip-go/drip/internal/oktest"
)

const variable = "DRIP_TEST_CONTENDER" // is set for a process of Start

// Main is for the beginning of TestMain. In a process of Start it calls contend with the process's input, reports the
// outcome, and exits. In any other process it does nothing.
func Main[T any](contend func(*T) error) {
	encoded := os.Getenv(variable)
	if encoded == "" {
		return
	}
	var told T
	err := json.Unmarshal([]byte(encoded), &told)
	if err == nil {
		err = errors.Join(contend(&told), json.NewEncoder(os.Stdout).Encode(told))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Context returns the context of a process of Start. It ends when the test calls end.
func Context() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
		cancel()
	}()
	return ctx
}

// Command is a process whose Main gets the input, not started yet. It prints its report at last.
func Command(ctx context.Context, told any) *exec.Cmd {
	encoded, err := json.Marshal(told)
	if err != nil {
		panic(err) // it is texts and numbers
	}
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+string(encoded))
	cmd.Stderr = os.Stderr
	return cmd
}

// Start starts n processes, each with the same input. end ends their Context, waits for them and returns their reports. A
// process that failed fails the test. The processes are killed at the end of the test's context.
func Start[T any](t oktest.TB, n int, told T) (end func() []T) {
	var all sync.WaitGroup
	reports := make([]T, n)
	stdin, stop, err := os.Pipe()
	oktest.OK(t, err)
	for i := range reports {
		all.Go(func() {
			cmd := Command(t.Context(), told)
			cmd.Stdin = stdin
			out, err := cmd.Output()
			if err == nil {
				err = json.Unmarshal(out, &reports[i])
			}
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
	}
	return func() []T {
		_ = stop.Close()
		all.Wait()
		_ = stdin.Close()
		return reports
	}
}
