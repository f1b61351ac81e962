// Package mapstorage keeps the state of drip's entities in a map: the smallest storage. It forgets nothing, so its map
// grows with each new entity.
package mapstorage

import (
	"bytes"
	"context"
	"sync"

	"github.com/drip-go/drip/storage"
)

// New returns an empty Storage.
func New() *Storage { return &Storage{rows: map[string]row{}} }

// Storage keeps states in a map. It is safe for concurrent use.
type Storage struct {
	mu   sync.Mutex
	rows map[string]row
	last storage.Revision // one count for all keys: no revision of a key comes twice
}

type row struct {
	data []byte
	rev  storage.Revision
}

// Get implements [storage.Storage].
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[key]
	return storage.State{Data: bytes.Clone(r.data)}, r.rev, ctx.Err()
}

// Set implements [storage.Storage].
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.rows[key].rev != rev {
		return storage.ErrConflict
	}
	s.last++
	s.rows[key] = row{bytes.Clone(state.Data), s.last}
	return nil
}
