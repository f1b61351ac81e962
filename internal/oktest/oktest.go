// Package oktest ends tests.
package oktest

import (
	"context"
	"time"
)

// TB is the part of testing.TB that test helpers need, so that importing them links no package testing.
type TB interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// OK ends the test if there is an error.
func OK(t TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Begin runs f beside the test, with a context that lasts some time at most. end ends the context and waits for f, whose
// error ends the test.
func Begin(t TB, atMost time.Duration, f func(ctx context.Context) error) (ctx context.Context, end func()) {
	ctx, cancel := context.WithTimeout(t.Context(), atMost)
	ended := make(chan error, 1)
	go func() { ended <- f(ctx) }()
	return ctx, func() {
		t.Helper()
		cancel()
		OK(t, <-ended)
	}
}

// Eventually asks until is returns true. After a time it ends the test.
func Eventually(t TB, within time.Duration, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}
