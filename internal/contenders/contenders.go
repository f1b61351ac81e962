// Package contenders lets a test contend from several processes, which are copies of the test's own program.
package contenders

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
)

const variable = "DRIP_TEST_CONTENDER" // is set for a process of Start

// TB is the part of testing.TB that Start needs.
type TB interface {
	Errorf(format string, args ...any)
	Context() context.Context
}

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

// Start starts n processes, each with the same input. wait waits for their ends and returns their reports. A process
// that failed fails the test. The processes end with the test's context.
func Start[T any](t TB, n int, told T) (wait func() []T) {
	var all sync.WaitGroup
	reports := make([]T, n)
	for i := range reports {
		all.Go(func() {
			encoded, err := json.Marshal(told)
			if err != nil {
				t.Errorf("process %d: %v", i, err)
				return
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), variable+"="+string(encoded))
			cmd.Stderr = os.Stderr
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
		all.Wait()
		return reports
	}
}
