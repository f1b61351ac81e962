package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drip-go/drip/internal/lab"
)

func TestRun(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "runs.svg")
	var out strings.Builder
	if err := run([]string{"-svg", svg, "-seed", "2", "rate-steady-0.9", "long-tail"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"rate-steady-0.9: ", "\n\nlong-tail: ", " admit ", " optimum\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	drawn, err := os.ReadFile(svg)
	if err != nil || !strings.HasPrefix(string(drawn), "<svg ") || !strings.HasSuffix(string(drawn), "</svg>\n") {
		t.Errorf("drawn: %d bytes, %v", len(drawn), err)
	}
}

func TestList(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"-list"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, s := range lab.Scenarios() {
		if !strings.Contains(out.String(), s.Name+" ") {
			t.Errorf("%s is not listed", s.Name)
		}
	}
}

// The program does all that it is asked for, or nothing.
func TestArgumentsAreRefused(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"nonsense", `"nonsense"`},
		{"-shared far nonsense", `"nonsense"`},
		{"-random 3", "-shared"},
		{"-shared -random -1", "-random is -1"},
		{"-lost -1", "-lost is -1"},
		{"-lost 1 long-tail", "-lost"},
		{"-shared -svg runs.svg far", "-svg"},
		{"-lost 1 -svg runs.svg", "-svg"},
	} {
		var out strings.Builder
		if err := run(strings.Fields(c.args), &out); err == nil || !strings.Contains(err.Error(), c.want) || out.Len() > 0 {
			t.Errorf("%s: %v, want %s; printed %d bytes", c.args, err, c.want, out.Len())
		}
	}
}

// The program prints the text of docs/trying.md, for the scenarios that take little time.
func TestSummaryIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/trying.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run([]string{"-summary", "rate-steady-0.9", "token-bucket", "concurrency-burst", "long-tail"}, &out); err != nil {
		t.Fatal(err)
	}
	contains(t, page, &out)
}

// The same of docs/shared.md.
func TestSharedIsInTheDocs(t *testing.T) {
	page, err := os.ReadFile("../../docs/shared.md")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run([]string{"-shared", "shops", "shops-in-turn", "shops-by-shop", "shops-100ms", "urgent", "far", "five-at-once"}, &out); err != nil {
		t.Fatal(err)
	}
	contains(t, page, &out)
}

func contains(t *testing.T, page []byte, out *strings.Builder) {
	t.Helper()
	for line := range strings.Lines(out.String()) {
		if !strings.Contains(string(page), line) {
			t.Errorf("the page does not say\n%s", line)
		}
	}
}

func TestSharedRandom(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"-shared", "-random", "3", "-seed", "5"}, &out); err != nil || strings.Count(out.String(), "| random-") != 3 {
		t.Errorf("%v, printed\n%s", err, out.String())
	}
	if err := run([]string{"-shared", "nonsense"}, &out); err == nil {
		t.Error("there is no error of a scenario that is none")
	}
}
