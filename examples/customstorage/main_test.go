package main

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
)

func TestSecondRunKnowsTheFirst(t *testing.T) {
	url := "bolt://" + filepath.ToSlash(filepath.Join(t.TempDir(), "drip.db"))
	synctest.Test(t, func(t *testing.T) { // for a clock at the beginning of an interval
		for i, want := range []string{
			"runs\nruns\nruns\n",
			"runs\nruns\npostponed by 10s\n",
		} {
			var out strings.Builder
			if err := run(t.Context(), url, &out); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != want {
				t.Errorf("run %d prints:\n%s\nwant:\n%s", i+1, got, want)
			}
		}
	})
}
