package storage_test

import (
	"context"
	"fmt"
	"log"
	"net/url"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/memory" // registers memory
)

// table is a storage of one's own: two methods over anything that can compare a revision and write.
type table struct {
	mu   sync.Mutex
	rows map[string]row
	last storage.Revision
}

type row struct {
	state storage.State
	rev   storage.Revision
}

func (s *table) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.rows[key]
	r.state.Data = append([]byte(nil), r.state.Data...)
	if r.rev == storage.NoRevision {
		r.state = storage.State{}
	}
	return r.state, r.rev, ctx.Err()
}

func (s *table) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.rows[key].rev != rev {
		return storage.ErrConflict
	}
	s.last++ // one that no key has had
	state.Data = append([]byte(nil), state.Data...)
	if s.rows == nil {
		s.rows = map[string]row{}
	}
	s.rows[key] = row{state, s.last}
	return nil
}

// A storage of one's own has two methods. Package storagetest checks it.
func ExampleStorage() {
	ctx := context.Background()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	s := &table{} // Get and Set over a map
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
	storage.Register("table", func(_ context.Context, u *url.URL) (storage.Storage, error) {
		return &table{}, nil
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
