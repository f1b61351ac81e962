package memory

import (
	"context"
	"time"

	"github.com/drip-go/drip/storage"
)

// List implements [storage.Lister]. It locks a shard for as long as it takes to copy it.
func (s *Storage) List(ctx context.Context, each func(storage.Entry) error) error {
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, e := range s.shards[i].entries(time.UnixMilli(s.now())) {
			if err := each(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (sh *shard) entries(now time.Time) []storage.Entry {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	entries := make([]storage.Entry, 0, len(sh.entities))
	for key, e := range sh.entities {
		entries = append(entries, storage.Entry{Key: key, State: e.State.Clone(), Time: now})
	}
	return entries
}
