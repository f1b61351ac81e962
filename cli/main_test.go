package cli

import (
	"context"
	"errors"
	"flag"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// asProgram makes the test binary the program itself.
const asProgram = "DRIP_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		Main()
	}
	goredis.SetLogger(silent{}) // as Main does
	os.Exit(servers.Main(m))
}

var seeds = flag.Uint64("seeds", 15, "how many random histories there are of each kind")

// shared are the storages that the tests name in URLs, such as test:shops.
var shared sync.Map

func init() {
	storage.Register("test", func(_ context.Context, u *url.URL) (storage.Storage, error) {
		s, ok := shared.Load(u.Opaque)
		if !ok {
			return nil, errors.New("no such storage")
		}
		return s.(storage.Storage), nil
	})
}

// share makes a storage have the URL that is returned.
func share(t *testing.T, s storage.Storage) string {
	t.Helper()
	name := strings.ReplaceAll(t.Name(), "/", "-")
	shared.Store(name, s)
	t.Cleanup(func() { shared.Delete(name) })
	return "test:" + name
}

// inMemory is a bucket over a new storage, and its URL.
func inMemory(t *testing.T, o drip.Options) (*drip.Bucket, string) {
	t.Helper()
	o.Storage = memory.New()
	return buckettest.New(t, o), share(t, o.Storage)
}

// program is a command line for a process of its own.
func program(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1", "TERM=xterm")
	return cmd
}

type outcome struct {
	status   int
	out, err string
}

// try runs a command line in this process, without a terminal.
func try(t *testing.T, args ...string) outcome {
	t.Helper()
	return tryWith(t, &terminal{in: strings.NewReader("")}, args...)
}

func tryWith(t *testing.T, with *terminal, args ...string) outcome {
	t.Helper()
	var out, err strings.Builder
	with.out, with.err, with.zone = &out, &err, time.UTC
	status := run(t.Context(), with, args)
	return outcome{status, out.String(), err.String()}
}

// must is the output of a command line that does its work.
func must(t *testing.T, args ...string) string {
	t.Helper()
	o := try(t, args...)
	if o.status != statusOK || o.err != "" {
		t.Fatalf("drip %s: status %d\n%s", strings.Join(args, " "), o.status, o.err)
	}
	return o.out
}

// prints fails the test unless a command line does its work and prints this.
func prints(t *testing.T, want string, args ...string) {
	t.Helper()
	if got := must(t, args...); !strings.Contains(got, want) {
		t.Errorf("drip %s:\n%s\nwant %s", strings.Join(args, " "), got, want)
	}
}

// step is a command line, in which URL stands for the storage's, and its outcome.
type step struct {
	args string
	outcome
}

// follow tries one step after the other.
func follow(t *testing.T, url string, steps ...step) {
	t.Helper()
	for _, s := range steps {
		if got := try(t, strings.Fields(strings.ReplaceAll(s.args, "URL", url))...); got != s.outcome {
			t.Errorf("drip %s:\n%+v\nwant\n%+v", s.args, got, s.outcome)
		}
	}
}

func write(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	ok(t, os.WriteFile(name, []byte(text), 0o666))
	return name
}

var ok = oktest.OK // ends the test if there is an error
