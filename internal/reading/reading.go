// Package reading reads entities of any storage.
package reading

import (
	"context"
	"time"

	"github.com/drip-go/drip/storage"
)

// Entity reads an entity, in one round trip. A storage that is no storage.Reader has no clock of its own; Entity then uses
// Get, and the clock of this machine.
func Entity(ctx context.Context, s storage.Storage, key string) (storage.Entry, error) {
	if r, ok := s.(storage.Reader); ok {
		return r.Read(ctx, key)
	}
	stored, _, err := s.Get(ctx, key)
	if err != nil {
		return storage.Entry{}, err
	}
	e := storage.Entry{Key: key, Time: time.Now()}
	e.Leases, err = storage.Decode(stored.Data, &e.State)
	e.Out = int64(len(e.Leases))
	return e, err
}
