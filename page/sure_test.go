package page

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// slowList lists slowly, as a server with very many entities does.
type slowList struct{ *memory.Storage }

func (s slowList) List(ctx context.Context, each func(storage.Entry) error) error {
	time.Sleep(time.Minute)
	return s.Storage.List(ctx, each)
}

// The question before an action on all entities tells no number while the list is still being read.
func TestSureBeforeTheListIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		admit(t, s, "eu-1", 1)
		admit(t, s, "us-1", 1)
		h := newSite(t, Options{Storage: slowList{s}, Allow: allow})
		if _, text := h.get(t, "sure?do=pause&all=yes&for=10m"); strings.Contains(text, "That is 0 entities of 0.") {
			t.Error("the question tells of none, although two are stored and will be paused")
		}
		time.Sleep(2 * time.Minute)
		_, text := h.get(t, "sure?do=pause&all=yes&for=10m")
		has(t, text, "That is 2 entities of 2.")
		time.Sleep(5 * time.Minute) // nobody looks any more
		h.Close()
	})
}
