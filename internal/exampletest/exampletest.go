// Package exampletest runs the programs of examples in tests.
package exampletest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/oktest"
)

// limit bounds the run of an example, with much room for a busy machine.
const limit = 5 * time.Minute

// Buffer is a bytes.Buffer that several goroutines may write to. Read it when they have ended.
type Buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// Runs checks that a program says of so many operations that each runs, and of some that it was postponed once.
func Runs(t oktest.TB, operations int, run func(ctx context.Context, out io.Writer) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out Buffer
	oktest.OK(t, run(ctx, &out))
	if n := strings.Count(out.String(), "runs"); n != operations || !strings.Contains(out.String(), "postponements: 1") {
		t.Errorf("%d of %d ran:\n%s", n, operations, out.String())
	}
}

// HandlesOnce checks that a program handles so many messages, each once, and ends with its context. The program calls
// handled for each message.
func HandlesOnce(t oktest.TB, messages int, run func(ctx context.Context, handled func(message string)) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var mu sync.Mutex
	times := map[string]int{}
	err := run(ctx, func(message string) {
		mu.Lock()
		defer mu.Unlock()
		if times[message]++; len(times) == messages {
			cancel()
		}
	})
	if err != nil || len(times) != messages {
		t.Errorf("%d of %d messages were handled; run = %v", len(times), messages, err)
	}
	for message, n := range times {
		if n != 1 {
			t.Errorf("%s was handled %d times", message, n)
		}
	}
}
