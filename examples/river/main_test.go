package main

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func TestRun(t *testing.T) {
	url := servers.UsePostgres(t).URL()
	exampletest.Runs(t, shops*perShop, func(ctx context.Context, out io.Writer) error { return run(ctx, url, out) })
}
