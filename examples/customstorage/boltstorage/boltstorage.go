// Package boltstorage keeps the state of drip's entities in a bbolt file: a storage that needs no server and
// outlives the process. It is also what a backend of your own looks like.
//
// # URL
//
// "bolt:drip.db" and "bolt:///var/lib/drip.db" name the file. The first call that needs it opens it, and makes it
// if there is none.
//
// # Atomicity
//
// bbolt runs one writing transaction at a time, so Set compares the revision and stores the state in one. Set
// returns after the state is on the disk. The file belongs to one process; another one gets an error.
//
// # Expiry
//
// Each Set looks at the next few entities and forgets those whose time is over.
//
// # Clock
//
// Only forgetting needs the time, and takes the machine's. Storage keeps a decision of another time, as in a
// simulation, for a day at least.
package boltstorage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/drip-go/drip/storage"
)

func init() { storage.Register("bolt", open) }

func open(_ context.Context, u *url.URL) (storage.Storage, error) {
	path, err := url.PathUnescape(u.Opaque)
	if path == "" {
		path = u.Path
	}
	if err != nil || path == "" || u.Host != "" || u.RawQuery != "" {
		return nil, errors.New("the URL looks like bolt:drip.db or bolt:///var/lib/drip.db")
	}
	return New(path, nil), nil
}

// Storage is a [storage.Storage] in a file. Make one with New. It is safe for concurrent use.
type Storage struct {
	path    string
	options *bbolt.Options

	mu     sync.Mutex
	db     *bbolt.DB // nil before the first call and after Close
	closed bool

	next []byte // where the sweep goes on; used in writing transactions only, so by one at a time
}

// New returns a Storage in the file at path. Nil options are bbolt's defaults, with a timeout of a second for a file that
// another process has open.
func New(path string, options *bbolt.Options) *Storage {
	if options == nil {
		options = &bbolt.Options{Timeout: time.Second}
	}
	return &Storage{path: path, options: options}
}

// Get implements [storage.Storage].
func (s *Storage) Get(ctx context.Context, key string) (state storage.State, rev storage.Revision, err error) {
	db, err := s.open(ctx)
	if err != nil {
		return storage.State{}, storage.NoRevision, err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		rev, _, state.Data, err = decode(tx.Bucket(entities).Get(hash(key)))
		state.Data = bytes.Clone(state.Data) // it is gone with the transaction
		return err
	})
	return state, rev, err
}

// Set implements [storage.Storage].
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	db, err := s.open(ctx)
	if err != nil {
		return err
	}
	// Not Batch: it makes many callers faster and each of them slower.
	return db.Update(func(tx *bbolt.Tx) error {
		if err := ctx.Err(); err != nil {
			return err // the turn to write took long to come
		}
		b, k := tx.Bucket(entities), hash(key)
		current, _, _, err := decode(b.Get(k))
		if err != nil {
			return err
		}
		if current != rev {
			return storage.ErrConflict
		}
		// One count for all keys, kept in the file: a key that was forgotten repeats no revision.
		next, err := b.NextSequence()
		if err != nil {
			return err
		}
		now := time.Now().UnixMilli()
		if err := b.Put(k, encode(next, forgetAt(now, state), state.Data)); err != nil {
			return err
		}
		return s.sweep(b, now)
	})
}

// forgetAt returns when the machine's clock, which is at now, reaches State.Until.
func forgetAt(now int64, state storage.State) int64 {
	span := state.Until - state.Now
	if off := now - state.Now; off < -60_000 || off > 60_000 { // Now is not of this clock
		span = max(span, 24*3_600_000)
	}
	return now + span
}

// Close closes the file. Later calls fail.
func (s *Storage) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.db == nil {
		return nil
	}
	db := s.db
	s.db = nil
	return db.Close()
}

func (s *Storage) open(ctx context.Context) (*bbolt.DB, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case s.closed:
		return nil, berrors.ErrDatabaseNotOpen
	case s.db != nil:
		return s.db, nil
	}
	db, err := bbolt.Open(s.path, 0o600, s.options)
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, fmt.Errorf("another process has %s open: %w", s.path, err)
	}
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(entities)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	s.db = db
	return db, nil
}

var entities = []byte("entities")

// hash makes the key of an entity: bbolt takes no key above 32 KiB. No two strings with one SHA-256 are known.
func hash(key string) []byte {
	sum := sha256.Sum256([]byte(key))
	return sum[:]
}

// encode makes a value: the revision and the time to forget it in eight bytes each, then the data.
func encode(rev uint64, forget int64, data []byte) []byte {
	value := binary.BigEndian.AppendUint64(nil, rev)
	value = binary.BigEndian.AppendUint64(value, uint64(forget))
	return append(value, data...)
}

// decode reads a value. bbolt returns nil for a missing key.
func decode(value []byte) (rev storage.Revision, forget int64, data []byte, err error) {
	if value == nil {
		return storage.NoRevision, 0, nil, nil
	}
	if len(value) < 16 {
		return storage.NoRevision, 0, nil, errors.New("a stored value is too short")
	}
	return storage.Revision(binary.BigEndian.Uint64(value)), int64(binary.BigEndian.Uint64(value[8:])), value[16:], nil
}

// sweepStep is how many entities a Set looks at. It stores at most one, so any number above that keeps up.
const sweepStep = 8

// sweep looks at the next few entities and forgets the expired ones.
func (s *Storage) sweep(b *bbolt.Bucket, now int64) error {
	var idle [][]byte
	c := b.Cursor()
	k, v := c.Seek(s.next)
	for range sweepStep {
		if k == nil {
			break // the end; the next one begins anew
		}
		if _, forget, _, err := decode(v); err == nil && forget <= now {
			idle = append(idle, k)
		}
		k, v = c.Next()
	}
	s.next = bytes.Clone(k)  // k itself is gone with the transaction
	for _, k := range idle { // not while the cursor moves, which deleting disturbs
		if err := b.Delete(k); err != nil {
			return err
		}
	}
	return nil
}
