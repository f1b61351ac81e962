package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drip-go/drip/internal/oktest"
)

const printed = `goos: linux
BenchmarkMemory/keys=1/workers=2-2 	       1	         913.4 drip-ns	         0.5159 of-xtime
BenchmarkMemory/keys=1/workers=2-2 	       1	         100 drip-ns	         0.6 of-xtime
BenchmarkMemory/keys=1/workers=2-2 	       1	         12345 drip-ns	         0.7 of-xtime
BenchmarkHeap   	       1	1402 ns/op	       120.4 B/entity
PASS
`

func TestFill(t *testing.T) {
	m, err := read(strings.NewReader(printed))
	oktest.OK(t, err)
	for template, want := range map[string]string{
		`{{metric "Memory/keys=1/workers=2" "drip-ns" | whole}} ns`: "913 ns", // the median
		`{{metric "Memory/keys=1/workers=2" "of-xtime" | two}}`:     "0.60",
		`{{metric "Heap" "B/entity" | whole}}`:                      "120",
		`{{whole 1234567.8}} {{whole 999.4}} {{inverse 0.5 | one}}`: "1,234,568 999 2.0",
	} {
		if got, err := m.fill(template); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", template, got, err, want)
		}
	}
	if _, err := m.fill(`{{metric "Memory" "B/entity"}}`); err == nil || !strings.Contains(err.Error(), "BenchmarkMemory has not printed a figure in B/entity") {
		t.Errorf("a figure that is not there: %v", err)
	}
}

func TestReplace(t *testing.T) {
	page := filepath.Join(t.TempDir(), "speed.md")
	oktest.OK(t, os.WriteFile(page, []byte("# x\n"+begin+"old\n"+end+"\nrest\n"), 0o644))
	oktest.OK(t, replace(page, "new\n"))
	if b, _ := os.ReadFile(page); string(b) != "# x\n"+begin+"new\n"+end+"\nrest\n" {
		t.Errorf("the file is now\n%s", b)
	}
	oktest.OK(t, os.WriteFile(page, []byte("# x\n"), 0o644))
	if err := replace(page, "new\n"); err == nil {
		t.Error("there was no place for the table, and no error")
	}
}

// docs/speed.md has a place for the figures.
func TestPage(t *testing.T) {
	b, err := os.ReadFile("../../docs/speed.md")
	oktest.OK(t, err)
	_, rest, ok := strings.Cut(string(b), begin)
	if !ok || !strings.Contains(rest, end) {
		t.Error("there is none")
	}
}
