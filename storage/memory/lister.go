package memory

import (
	"context"
	"time"

	"github.com/drip-go/drip/storage"
)

// List implements [storage.Lister]. It locks a shard for as long as it takes to copy it.
func (s *Storage) List(ctx context.Context, each func(storage.Entry) error) error {
	for i := range s.shards {
		if err := s.usable(ctx); err != nil {
			return err
		}
		for _, e := range s.shards[i].entries(s.clock()) {
			if err := each(e); err != nil {
				return err
			}
		}
	}
	return nil
}

// entries returns the entities of a shard. It leaves out bytes of Set that are no state.
func (sh *shard) entries(now time.Time) []storage.Entry {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	entries := make([]storage.Entry, 0, sh.count)
	for _, e := range sh.entities {
		for ; e != nil; e = e.another {
			if entry, err := e.entry(now); err == nil {
				entry.Leases = entry.Leases[:min(len(entry.Leases), storage.MostListed)]
				entries = append(entries, entry)
			}
		}
	}
	return entries
}
