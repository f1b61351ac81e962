package drip_test

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
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
	ok(t, err)
	blocks := regexp.MustCompile("(?m)^ *```go\n").Split(text, -1)[1:]
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

// Every test that a page names is there: -run takes the beginning of a name, too.
func TestReadmeNamesTests(t *testing.T) {
	names, function := "\n", regexp.MustCompile(`(?m)^func (\w+)\(`)
	err := fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, match := range function.FindAllStringSubmatch(string(b), -1) {
				names += match[1] + "\n"
			}
		}
		return err
	})
	ok(t, err)
	for page, text := range pages(t) {
		for _, name := range regexp.MustCompile(`\b(Test|Example|Benchmark|Fuzz)[A-Z]\w*`).FindAllString(text, -1) {
			if !strings.Contains(names, "\n"+name) {
				t.Errorf("%s names %s, which is no test", page, name)
			}
		}
	}
}

// The badges name this module, its workflow and branch, and its licence.
func TestBadges(t *testing.T) {
	text := pages(t)["README.md"]
	for _, c := range []struct{ badge, file, line string }{
		{"https://pkg.go.dev/badge/github.com/drip-go/drip.svg)](https://pkg.go.dev/github.com/drip-go/drip)", "go.mod", "module github.com/drip-go/drip\n"},
		{"https://github.com/drip-go/drip/actions/workflows/ci.yml/badge.svg?branch=main)", ".github/workflows/ci.yml", "branches: [main]"},
		{"licence-MIT-blue.svg)](LICENSE)", "LICENSE", "MIT License\n"},
	} {
		file, err := os.ReadFile(c.file)
		if err != nil || !strings.Contains(text, c.badge) || !strings.Contains(string(file), c.line) {
			t.Errorf("the README's badge %s is not true of %s: %v", c.badge, c.file, err)
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
			if heading != "" && !slices.Contains(anchors(all[file]), heading) {
				t.Errorf("%s: %s has no heading %q", page, file, heading)
			}
		}
	}
}

// The README stays a first screen and a start: details are in docs.
func TestReadmeIsShort(t *testing.T) {
	if n := strings.Count(pages(t)["README.md"], "\n"); n > 150 {
		t.Errorf("%d lines; at most 150", n)
	}
}

// Every page below docs is in the index, docs/README.md.
func TestIndex(t *testing.T) {
	all := pages(t)
	for page := range all {
		name, below := strings.CutPrefix(filepath.ToSlash(page), "docs/")
		if below && name != "README.md" && !strings.Contains(all["docs/README.md"], "("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// anchors are the names that GitHub gives the headings of a page.
func anchors(text string) (names []string) {
	for _, match := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(strings.ToLower(match[1]), " ", "-")
		names = append(names, regexp.MustCompile(`[^\p{L}\p{N}_-]`).ReplaceAllString(name, ""))
	}
	return names
}

// The README's figures of the simulated scenarios are in the table of docs/trying.md. The test of examples/simulate
// compares that table with the printed results.
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
		fmt.Sprintf("In %d [simulated scenarios]", len(rows)), fmt.Sprintf("0 to %.1f times on average", math.Ceil(drip*10)/10), fmt.Sprintf("up to %.0f times", retryAfter),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README does not say %q", want)
		}
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	ok(t, err)
	return n
}

// pages are the texts for users, by their paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, root := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "docs", "examples"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".md" {
				return err
			}
			text, err := os.ReadFile(path)
			all[path] = string(text)
			return err
		})
		ok(t, err)
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
