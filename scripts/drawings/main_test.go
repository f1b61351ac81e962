package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/drip-go/drip/internal/oktest"
)

// The drawings in docs are the output of this source: make drawings writes them.
func TestDrawings(t *testing.T) {
	for name, draw := range drawings {
		want, err := draw()
		oktest.OK(t, err)
		got, err := os.ReadFile(filepath.Join("../../docs", name))
		oktest.OK(t, err)
		if string(got) != want {
			t.Errorf("docs/%s is not what this source draws: run make drawings", name)
		}
	}
}
