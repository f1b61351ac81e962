package main

import (
	"context"
	"io"
	"testing"

	"github.com/drip-go/drip/internal/exampletest"
)

func TestRun(t *testing.T) {
	exampletest.Runs(t, messages, func(ctx context.Context, out io.Writer) error { return run(ctx, "", out) })
}
