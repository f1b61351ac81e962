package main

import (
	"os"
	"path/filepath"
	"testing"
)

const page = `# What is a title

A short sentence. What waits is
hard to read. Is
what you read a question?

- ` + "`x`" + ` is a list item that has those who are named in it

| a cell | Nothing of it is good |

` + "```go" + `
// What is code is no sentence.
` + "```" + `
`

// Each rule finds its sentences, with their lines, and no others.
func TestMarkdown(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := markdown(file)
	if err != nil {
		t.Fatal(err)
	}
	type hit struct {
		line int
		rule string
	}
	hits := map[hit]bool{}
	for _, s := range found {
		for _, r := range rules {
			if r.finds(s.text) {
				hits[hit{s.line, r.name}] = true
			}
		}
	}
	want := []hit{{3, "opening"}, {7, "headless"}, {9, "opening"}}
	for _, h := range want {
		if !hits[h] {
			t.Errorf("line %d: nothing found by %q", h.line, h.rule)
		}
	}
	if len(hits) != len(want) {
		t.Errorf("found %v, want %v", hits, want)
	}
}
