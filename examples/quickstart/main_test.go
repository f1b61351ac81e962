package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const want = `shop-1 may run 5 operations at once and 3 more each second; 12 arrive.
00:00:00.400  operation  1 runs
00:00:00.400  operation  2 runs
00:00:00.400  operation  3 runs
00:00:00.400  operation  4 runs
00:00:00.400  operation  5 runs
00:00:00.400  operation  6 is postponed by 600ms
00:00:00.400  operation  7 is postponed by 600ms
00:00:00.400  operation  8 is postponed by 600ms
00:00:00.400  operation  9 is postponed by 1.6s
00:00:00.400  operation 10 is postponed by 1.6s
00:00:00.400  operation 11 is postponed by 1.6s
00:00:00.400  operation 12 is postponed by 2.6s
00:00:01.000  operation  6 runs
00:00:01.000  operation  7 runs
00:00:01.000  operation  8 runs
00:00:02.000  operation  9 runs
00:00:02.000  operation 10 runs
00:00:02.000  operation 11 runs
00:00:03.000  operation 12 runs
`

func TestRun(t *testing.T) {
	time.Local = time.UTC
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(400 * time.Millisecond) // programs begin in the middle of a second
		var out strings.Builder
		if err := run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if err := run(ctx, new(strings.Builder)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("run = %v, want DeadlineExceeded", err)
		}
	})
}
