package cli

import (
	"context"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// mute lists an entity, and answers nothing else.
type mute struct{}

func (mute) Get(ctx context.Context, _ string) (storage.State, storage.Revision, error) {
	<-ctx.Done()
	return storage.State{}, storage.NoRevision, ctx.Err()
}

func (mute) Set(ctx context.Context, _ string, _ storage.State, _ storage.Revision) error {
	<-ctx.Done()
	return ctx.Err()
}

func (mute) List(_ context.Context, each func(storage.Entry) error) error {
	return each(storage.Entry{Key: "shop", Time: time.Now(), State: decision.State{Now: time.Now().UnixMilli()}})
}

// A change of all entities ends when the server does not answer, as a change of one does.
func TestTimeoutOfMany(t *testing.T) {
	storage.Register("mute", func(context.Context, *url.URL) (storage.Storage, error) { return mute{}, nil })
	for _, line := range []string{"pause mute://x shop 1m", "pause mute://x 1m --all --yes", "reset mute://x --all --yes"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		quiet := &terminal{in: strings.NewReader(""), out: io.Discard, err: io.Discard, zone: time.UTC}
		if status := run(ctx, quiet, append(strings.Fields(line), "--timeout", "50ms")); status != statusNoAnswer {
			t.Errorf("%s: status %d, want %d", line, status, statusNoAnswer)
		}
		cancel()
	}
}
