package drip_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every Go block of the README and of docs stands, indentation apart, in a file that the compiler sees.
func TestReadmeCodeIsCompiled(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatal(pages, err)
	}
	var text strings.Builder
	for _, page := range append(pages, "README.md") {
		b, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(b)
	}
	var sources strings.Builder
	err = fs.WalkDir(os.DirFS("."), ".", func(path string, d fs.DirEntry, err error) error {
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
	blocks := strings.Split(text.String(), "```go\n")[1:]
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

func unindent(code string) string {
	var b strings.Builder
	for line := range strings.Lines(code) {
		b.WriteString(strings.TrimLeft(line, "\t "))
	}
	return b.String()
}
