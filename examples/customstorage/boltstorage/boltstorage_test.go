package boltstorage_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/examples/customstorage/boltstorage"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/traces"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestStorage(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Storage { return file(t, nil) })
}

// fast is for tests that do not lose power.
var fast = &bbolt.Options{NoSync: true, Timeout: time.Second}

func file(t *testing.T, o *bbolt.Options) *boltstorage.Storage {
	t.Helper()
	s := boltstorage.New(filepath.Join(t.TempDir(), "drip.db"), o)
	t.Cleanup(func() { s.Close() })
	return s
}

func TestTraces(t *testing.T) {
	oktest.OK(t, traces.Replay(t.Context(), file(t, fast), traces.Runs))
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
	oktest.OK(t, os.WriteFile(text, []byte(strings.Repeat("not a database\n", 10_000)), 0o600))
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
	oktest.OK(t, first.Close())
	if _, _, err := second.Get(t.Context(), "k"); err != nil {
		t.Errorf("a file that was open elsewhere: %v", err)
	}
	oktest.OK(t, second.Close())
}

func set(t *testing.T, s storage.Storage, key string, st storage.State) {
	t.Helper()
	_, rev, err := s.Get(t.Context(), key)
	if err == nil {
		err = s.Set(t.Context(), key, st, rev)
	}
	oktest.OK(t, err)
}

// A file has no connection, so the test uses the clock of testing/synctest and years pass at once.
func TestKeeps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "drip.db")
	synctest.Test(t, func(t *testing.T) {
		s := boltstorage.New(path, fast)
		defer s.Close()
		storagetest.Keeps(t, s, time.Sleep, 400*24*time.Hour)
	})
}

func TestForgetting(t *testing.T) {
	for _, c := range []struct {
		name     string
		now      time.Duration // of the decision, after the machine's clock
		kept     time.Duration
		lost     time.Duration
		untilOff int64
	}{
		{"of the machine's clock", 0, 59 * time.Second, time.Minute, 60_000},
		{"of a simulation of the past", -365 * 24 * time.Hour, 23 * time.Hour, 24 * time.Hour, 60_000},
		{"of a simulation of the future", 365 * 24 * time.Hour, 23 * time.Hour, 24 * time.Hour, 60_000},
		{"for ever", 0, 10 * 365 * 24 * time.Hour, 0, decision.Never},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "drip.db")
			synctest.Test(t, func(t *testing.T) {
				const entities = 50
				s := boltstorage.New(path, fast)
				defer s.Close()
				now := time.Now().Add(c.now).UnixMilli()
				for i := range entities {
					set(t, s, fmt.Sprint("idle", i), storage.State{Data: []byte("idle"), Now: now, Until: now + c.untilOff})
				}
				_, old, err := s.Get(t.Context(), "idle0")
				oktest.OK(t, err)
				left := func() (n int) {
					for range entities { // at eight a Set: more than every entity's turn
						set(t, s, "writer", storage.State{Now: time.Now().UnixMilli(), Until: decision.Never})
					}
					for i := range entities {
						_, rev, err := s.Get(t.Context(), fmt.Sprint("idle", i))
						oktest.OK(t, err)
						if rev != storage.NoRevision {
							n++
						}
					}
					return n
				}
				time.Sleep(c.kept)
				if n := left(); n != entities {
					t.Errorf("after %v %d of %d entities are left, want all", c.kept, n, entities)
				}
				if c.lost == 0 {
					return
				}
				time.Sleep(c.lost - c.kept)
				if n := left(); n != 0 {
					t.Errorf("after %v %d of %d entities are left, want none", c.lost, n, entities)
				}
				set(t, s, "idle0", storage.State{})
				if _, rev, _ := s.Get(t.Context(), "idle0"); rev == old {
					t.Error("an entity that came back repeats its revision")
				}
			})
		})
	}
}
