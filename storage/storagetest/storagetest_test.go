package storagetest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// keep is the smallest right backend: a map, and one count of revisions for all keys. It forgets nothing.
type keep struct {
	mu  sync.Mutex
	m   map[string]record
	rev storage.Revision
}

type record struct {
	state storage.State
	rev   storage.Revision
}

func newKeep() *keep { return &keep{m: map[string]record{}} }

func (k *keep) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.m[key]
	r.state.Data = append([]byte(nil), r.state.Data...)
	return r.state, r.rev, ctx.Err()
}

func (k *keep) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.m[key].rev != rev {
		return storage.ErrConflict
	}
	k.rev++
	s.Data = append([]byte(nil), s.Data...)
	k.m[key] = record{s, k.rev}
	return nil
}

// shortKeys refuses to store long keys. Get knows none of them.
type shortKeys struct{ *keep }

func (k shortKeys) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if len(key) > 1<<20 {
		return errors.New("the key is too long")
	}
	return k.keep.Set(ctx, key, s, rev)
}

func TestRightBackends(t *testing.T) {
	t.Run("map", func(t *testing.T) { Run(t, func(*testing.T) storage.Storage { return newKeep() }) })
	t.Run("memory", func(t *testing.T) { Run(t, func(*testing.T) storage.Storage { return memory.New() }) })
	t.Run("short keys", func(t *testing.T) { Run(t, func(*testing.T) storage.Storage { return shortKeys{newKeep()} }) })
}

// The plain path on a right map agrees with Apply, so what package drip does there is what backends are compared with.
func TestComparePlain(t *testing.T) {
	for seed := range uint64(200) {
		Compare(t, plain{newKeep()}, seed, 200)
	}
}
