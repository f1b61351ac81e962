package main

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
)

// All 12 messages run, and no second has more than five calls.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		if err := run(context.Background(), "memory:", &out); err != nil {
			t.Fatal(err)
		}
		calls := map[string]int{}
		for line := range strings.Lines(out.String()) {
			if strings.HasSuffix(line, " runs\n") {
				calls[line[:len("15:04:05")]]++
				calls["all"]++
			}
		}
		if calls["all"] != 12 {
			t.Errorf("%d calls, want 12:\n%s", calls["all"], out.String())
		}
		for second, n := range calls {
			if second != "all" && n > 5 {
				t.Errorf("%d calls in the second %s", n, second)
			}
		}
	})
}
