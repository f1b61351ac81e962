package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// unreadable fails to read a shared limit, or hangs.
type unreadable struct {
	*memory.Storage
	hangs bool
}

func (s unreadable) Read(ctx context.Context, key string) (storage.Entry, error) {
	if !strings.HasPrefix(key, drip.SharedID("")) {
		return s.Storage.Read(ctx, key)
	}
	if s.hangs {
		<-ctx.Done()
		return storage.Entry{}, ctx.Err()
	}
	return storage.Entry{}, errors.New("it cannot be read")
}

const withApp = `{"size":10,"shared":{"app":{"size":1}}}`

func admitWithinApp(t *testing.T, s storage.Storage) {
	t.Helper()
	b := buckettest.New(t, drip.Options{Size: 10, Shared: map[string]drip.Limit{"app": {Size: 1}}, Storage: s})
	buckettest.Runs(t, b, "shop", drip.Request{})
}

// inspect does not tell an answer of a shared limit that it could not read.
func TestInspectWithoutItsSharedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		admitWithinApp(t, s)
		prints(t, "a newcomer runs now, by its own limit\n", "inspect", share(t, unreadable{Storage: s}), "shop", "--limits", withApp)
	})
}

// --timeout holds for the shared limits that top reads, too.
func TestTopEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		admitWithinApp(t, s)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		var out, errs strings.Builder
		status := run(ctx, &terminal{out: &out, err: &errs, zone: time.UTC}, []string{"top", share(t, unreadable{s, true}), "--timeout", "2s", "--limits", withApp})
		// The shared limit may be listed before the shop, and then is told.
		told := status == statusOK && strings.Contains(out.String(), "for which there was no time")
		if took := time.Since(begin); took > 3*time.Second || status != statusNoAnswer && !told {
			t.Errorf("with --timeout 2s top took %v, and ended with %d: %s%s", took, status, out.String(), errs.String())
		}
	})
}
