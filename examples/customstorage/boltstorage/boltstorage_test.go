package boltstorage_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/drip-go/drip/examples/customstorage/boltstorage"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestStorage(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Storage { return file(t, nil) })
}

// fast is for tests of what is stored, not of how safely.
var fast = &bbolt.Options{NoSync: true, Timeout: time.Second}

func file(t *testing.T, o *bbolt.Options) *boltstorage.Storage {
	t.Helper()
	s := boltstorage.New(filepath.Join(t.TempDir(), "drip.db"), o)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestTraces(t *testing.T) {
	if err := traces.Replay(t.Context(), file(t, fast), traces.Runs); err != nil {
		t.Error(err)
	}
}

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for url, want := range map[string]string{
		"bolt:a.db":                     "a.db",
		"bolt:b%20%231.db":              "b #1.db",
		"bolt:./c.db":                   "c.db",
		"bolt://" + dir + "/d.db":       "d.db",
		"BOLT:" + dir + "/e%3Fe.db":     "e?e.db",
		"bolt:":                         "",
		"bolt://f.db":                   "",
		"bolt:g.db?sync=no":             "",
		"bolt://localhost" + dir + "/h": "",
	} {
		s, err := storage.Open(t.Context(), url)
		if want == "" {
			if err == nil || err.Error() != "storage: open bolt: the URL looks like bolt:drip.db or bolt:///var/lib/drip.db" {
				t.Errorf("Open(%q) = %v", url, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("Open(%q) = %v", url, err)
			continue
		}
		if _, err := os.Stat(want); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Open(%q) has made the file before it is needed: %v", url, err)
		}
		if err := s.Set(t.Context(), "k", storage.State{}, storage.NoRevision); err != nil {
			t.Errorf("Set in %q = %v", url, err)
		}
		if _, err := os.Stat(want); err != nil {
			t.Errorf("after a Set in %q: %v", url, err)
		}
		s.(*boltstorage.Storage).Close()
	}
}

func TestBadFile(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := boltstorage.New(filepath.Join(dir, "missing", "drip.db"), nil).Get(t.Context(), "k"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file in a folder that does not exist: %v", err)
	}
	text := filepath.Join(dir, "drip.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("not a database\n", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := boltstorage.New(text, nil).Get(t.Context(), "k"); !errors.Is(err, berrors.ErrInvalid) {
		t.Errorf("a file that is none of bbolt: %v", err)
	}
	path := filepath.Join(dir, "drip.db")
	first, second := boltstorage.New(path, fast), boltstorage.New(path, &bbolt.Options{Timeout: time.Millisecond})
	if _, _, err := first.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := second.Get(t.Context(), "k"); !errors.Is(err, berrors.ErrTimeout) || !strings.Contains(err.Error(), "another process has "+path+" open") {
		t.Errorf("a file that is open elsewhere: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := second.Get(t.Context(), "k"); err != nil {
		t.Errorf("a file that was open elsewhere: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// The state outlives the process that stored it; the tokens that were out do not.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drip.db")
	want := storage.State{Ops: storage.Ledger{Last: 1, Capacity: 2}, Wait: storage.Ledger{Last: 3, Capacity: 4}, InUse: 5, Until: math.MaxInt64}
	s := boltstorage.New(path, fast)
	set(t, s, "k", want)
	if got, _, err := s.Get(t.Context(), "k"); got != want || err != nil {
		t.Errorf("Get = %+v, %v; want %+v", got, err, want)
	}
	s.Close()

	s = boltstorage.New(path, fast)
	defer s.Close()
	want.InUse = 0
	got, rev, err := s.Get(t.Context(), "k")
	if got != want || err != nil {
		t.Errorf("after opening the file again Get = %+v, %v; want %+v", got, err, want)
	}
	want.InUse = 1
	if err := s.Set(t.Context(), "k", want, rev); err != nil {
		t.Errorf("Set with the revision from before = %v", err)
	}
	if got, _, err := s.Get(t.Context(), "k"); got != want || err != nil {
		t.Errorf("Get = %+v, %v; want %+v", got, err, want)
	}
}

func set(t *testing.T, s storage.Storage, key string, st storage.State) {
	t.Helper()
	_, rev, err := s.Get(t.Context(), key)
	if err == nil {
		err = s.Set(t.Context(), key, st, rev)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestForgetting(t *testing.T) {
	const year = 365 * 24 * 3_600_000
	now := time.Now().UnixMilli()
	ran := func(at int64) storage.State { return storage.State{Ops: storage.Ledger{Last: at}, Until: at + 1000} }
	for _, c := range []struct {
		name          string
		idle, writer  storage.State
		wantForgotten bool
	}{
		{"idle for a minute", ran(now - 60_000), ran(now), true},
		{"ran just now", ran(now), ran(now), false},
		{"holds a token", storage.State{Ops: storage.Ledger{Last: now - 60_000}, InUse: 1, Until: math.MaxInt64}, ran(now), false},
		{"idle in a simulation of the past", ran(now - year), ran(now - year + 60_000), true},
		{"ran just now in a simulation of the past", ran(now - year), ran(now - year), false},
		{"while others simulate the future", ran(now + 3_600_000), ran(now + year), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			const entities = 200
			s := file(t, fast)
			for i := range entities {
				set(t, s, fmt.Sprint("idle", i), c.idle)
			}
			_, old, err := s.Get(t.Context(), "idle0")
			if err != nil {
				t.Fatal(err)
			}
			for range entities { // at eight a Set: more than every entity's turn
				set(t, s, "writer", c.writer)
			}
			left := 0
			for i := range entities {
				_, rev, err := s.Get(t.Context(), fmt.Sprint("idle", i))
				if err != nil {
					t.Fatal(err)
				}
				if rev != storage.NoRevision {
					left++
				}
			}
			if want := map[bool]int{true: 0, false: entities}[c.wantForgotten]; left != want {
				t.Errorf("%d of %d entities are left, want %d", left, entities, want)
			}
			if !c.wantForgotten {
				return
			}
			set(t, s, "idle0", c.idle)
			if _, rev, _ := s.Get(t.Context(), "idle0"); rev == old {
				t.Error("an entity that came back repeats its revision")
			}
		})
	}
}
