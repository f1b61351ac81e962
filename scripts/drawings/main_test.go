package main

import (
	"os"
	"path/filepath"
	"testing"
)

// The drawings in docs are the output of this source: make drawings writes them.
func TestDrawings(t *testing.T) {
	for name, draw := range drawings {
		want, err := draw()
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("docs/%s is not what this source draws: run make drawings", name)
		}
	}
}
