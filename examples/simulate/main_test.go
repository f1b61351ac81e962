package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drip-go/drip/internal/lab"
)

func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	if err := run(args, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestRun(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "runs.svg")
	out := printed(t, "-svg", svg, "-seed", "2", "rate-steady-0.9", "long-tail")
	for _, want := range []string{"rate-steady-0.9: ", "\n\nlong-tail: ", " admit ", " optimum\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	drawn, err := os.ReadFile(svg)
	if err != nil || !strings.HasPrefix(string(drawn), "<svg ") || !strings.HasSuffix(string(drawn), "</svg>\n") {
		t.Errorf("drawn: %d bytes, %v", len(drawn), err)
	}
}

func TestList(t *testing.T) {
	out := printed(t, "-list")
	for _, s := range lab.Scenarios() {
		if !strings.Contains(out, s.Name+" ") {
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

// The program prints the text of two pages, for the scenarios that take little time.
func TestTablesAreInTheDocs(t *testing.T) {
	for page, args := range map[string]string{
		"trying.md": "-summary rate-steady-0.9 token-bucket concurrency-burst long-tail",
		"shared.md": "-shared shops shops-in-turn shops-by-shop shops-100ms urgent far five-at-once",
	} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(printed(t, strings.Fields(args)...)) {
			if !strings.Contains(string(text), line) {
				t.Errorf("%s does not say\n%s", page, line)
			}
		}
	}
}

func TestSharedRandom(t *testing.T) {
	if out := printed(t, "-shared", "-random", "3", "-seed", "5"); strings.Count(out, "| random-") != 3 {
		t.Errorf("printed\n%s", out)
	}
}
