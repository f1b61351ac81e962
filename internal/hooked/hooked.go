// Package hooked has a storage for tests that delay, fail or watch calls.
package hooked

import (
	"context"

	"github.com/drip-go/drip/storage"
)

// Storage calls First before each call. An error of First is the error of the call. It decides nothing: it is no [storage.Atomic].
type Storage struct {
	storage.Storage
	First func(ctx context.Context, c Call) error
}

// Call is a call of a storage.
type Call struct {
	Method, Key string
	State       storage.State // of Set
}

// Get implements [storage.Storage].
func (h Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	if err := h.First(ctx, Call{"Get", key, storage.State{}}); err != nil {
		return storage.State{}, storage.NoRevision, err
	}
	return h.Storage.Get(ctx, key)
}

// Set implements [storage.Storage].
func (h Storage) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if err := h.First(ctx, Call{"Set", key, s}); err != nil {
		return err
	}
	return h.Storage.Set(ctx, key, s, rev)
}

// Read implements [storage.Reader].
func (h Storage) Read(ctx context.Context, key string) (storage.Entry, error) {
	if err := h.First(ctx, Call{Method: "Read", Key: key}); err != nil {
		return storage.Entry{}, err
	}
	return h.Storage.(storage.Reader).Read(ctx, key)
}

// List implements [storage.Lister].
func (h Storage) List(ctx context.Context, each func(storage.Entry) error) error {
	if err := h.First(ctx, Call{Method: "List"}); err != nil {
		return err
	}
	return h.Storage.(storage.Lister).List(ctx, each)
}
