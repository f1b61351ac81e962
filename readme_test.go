package drip_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Every Go block of the README and of the other pages stands, indentation apart, in a file that the compiler sees.
func TestReadmeCodeIsCompiled(t *testing.T) {
	text := strings.Join(slices.Collect(maps.Values(pages(t))), "\n")
	var sources strings.Builder
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sources.WriteString(unindent(string(b)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(text, "```go\n")[1:]
	if len(blocks) == 0 {
		t.Fatal("there is no Go block")
	}
	for _, block := range blocks {
		code, _, ended := strings.Cut(block, "```")
		if !ended || !strings.Contains(sources.String(), unindent(code)) {
			t.Errorf("this block stands in no source file:\n%s", code)
		}
	}
}

// Every link in them that leads into the repository finds a file there, and a heading if it names one.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	all := pages(t)
	for page, text := range all {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, heading, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := page
			if target != "" {
				file = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s: %v", page, err)
			}
			if heading != "" && !strings.Contains(strings.ToLower(all[file]), "# "+strings.ReplaceAll(heading, "-", " ")+"\n") {
				t.Errorf("%s: %s has no heading %q", page, file, heading)
			}
		}
	}
}

// What the README says of the simulated scenarios is in the table of docs/trying.md, which the test of examples/simulate
// compares with what is printed.
func TestSimulatedFigures(t *testing.T) {
	all := pages(t)
	rows := regexp.MustCompile(`(?m)^\| \S+ \| ([\d.]+), \d+ \| (\d+), \d+ \|.* (\d+) \|$`).FindAllStringSubmatch(all["docs/trying.md"], -1)
	var drip, retryAfter float64
	for _, row := range rows {
		drip, retryAfter = max(drip, number(t, row[1])), max(retryAfter, number(t, row[2]))
		if row[3] != "0" {
			t.Errorf("a call is over the limit: %s", row[0])
		}
	}
	readme := strings.ReplaceAll(all["README.md"], "\n", " ")
	for _, want := range []string{
		fmt.Sprintf("In %d [simulated scenarios]", len(rows)), fmt.Sprintf("0 to %.1f times on average", drip), fmt.Sprintf("up to %.0f times", retryAfter),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README does not say %q", want)
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pages are the texts for users, by their paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("docs/*.md")
	adapters, _ := filepath.Glob("docs/adapters/*.md")
	examples, _ := filepath.Glob("examples/*/*.md")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	all := map[string]string{}
	for _, path := range append(slices.Concat(paths, adapters, examples), "README.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = string(text)
	}
	return all
}

func unindent(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimLeft(line, "\t "))
	}
	return b.String()
}
