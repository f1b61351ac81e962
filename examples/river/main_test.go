package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// text is written by several handlers at once.
type text struct {
	mu sync.Mutex
	strings.Builder
}

func (t *text) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.Builder.Write(b)
}

func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out text
	if err := run(ctx, servers.UsePostgres(t).URL(), &out); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "runs"); n != shops*perShop || !strings.Contains(out.String(), "after 1 postponements") {
		t.Errorf("%d of %d ran:\n%s", n, shops*perShop, out.String())
	}
}
