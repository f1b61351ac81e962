package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

// text is written by several handlers at once.
type text struct {
	mu sync.Mutex
	strings.Builder
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.Write(b)
}

func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out text
	if err := run(ctx, "", &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "runs"); n != messages || !strings.Contains(out.String(), "after 1 postponements") {
		t.Errorf("%d messages ran:\n%s", n, out.String())
	}
}
