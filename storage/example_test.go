package storage_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/memory" // registers memory
	"github.com/drip-go/drip/storage/storagetest"
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

// A storage of one's own has two methods. Package storagetest checks it.
func ExampleStorage() {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := New() // Get and Set over a map
	bucket, err := drip.New(drip.Options{Size: 1, RefreshRate: 1, Storage: s, Clock: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
		fmt.Println(a.Delay, err)
	}
	_, rev, err := s.Get(ctx, "shop-1")
	fmt.Println(rev != storage.NoRevision, err)
	// Output:
	// 0s <nil>
	// 1s <nil>
	// true <nil>
}

func TestStorage(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storage.Storage { return New() })
}

// A program whose configuration names the storage. Its blank imports are the backends that it knows.
func ExampleOpen() {
	ctx := context.Background()
	s, err := storage.Open(ctx, "memory:") // redis://host:6379/0?prefix=orders: with package storage/redis
	if err != nil {
		fmt.Println(err)
		return
	}
	if c, ok := s.(interface{ Close() error }); ok {
		defer c.Close()
	}
	_, err = drip.New(drip.Options{Size: 40, RefreshRate: 2, Storage: s})
	fmt.Println(err)
	// Output: <nil>
}

// A backend makes itself known in its init.
func ExampleRegister() {
	storage.Register("map", func(_ context.Context, u *url.URL) (storage.Storage, error) {
		return New(), nil
	})
}

// A tool lists the stored entities.
func ExampleLister() {
	ctx := context.Background()
	s, err := storage.Open(ctx, "memory:")
	if err != nil {
		log.Fatal(err)
	}
	if l, ok := s.(storage.Lister); ok {
		err = l.List(ctx, func(e storage.Entry) error {
			fmt.Println(e.Key, e.Out, "leases are out")
			return nil
		})
	}
	if err != nil {
		log.Fatal(err)
	}
}
