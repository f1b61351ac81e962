// Package storage holds what a drip backend implements and the algorithm it may run beside its data.
//
// A backend is a [Storage]: two methods, Get and Set, with a revision that tells whether the state changed in
// between. A backend that can decide beside its data is [Atomic] too. The decision itself is [Limits.Decide], a
// pure function that every path shares. Package storagetest checks a backend against the rules stated here.
package storage

import (
	"context"
	"errors"
	"time"
)

// Storage keeps one [State] for each key. The key is the entity: any bytes, never empty.
//
// Implementations are safe for concurrent use. They return their own errors unwrapped; the caller adds the
// operation and the entity. A constructor opens no connection: the first call does. A Storage that holds a
// connection also has Close() error.
type Storage interface {
	// Get returns the state of key and its revision. Nothing stored is no error: it returns the zero State and
	// NoRevision.
	Get(ctx context.Context, key string) (State, Revision, error)

	// Set stores s when the revision of key is still rev, NoRevision meaning that nothing is stored. Otherwise it
	// changes nothing and returns ErrConflict. After any other error the state may or may not have been stored.
	//
	// The entity may be forgotten from s.Until on, by the clock of those who decide. That may be a simulation's:
	// a backend that does not know the time of its callers forgets by the earlier of the machine's clock and the
	// s.Ops.Last it is given. Set does not keep s.
	Set(ctx context.Context, key string, s State, rev Revision) error
}

// Revision is the version of one key's state, chosen by the backend. A key that was forgotten and comes back must
// not repeat a revision that a reader may still hold.
type Revision uint64

// NoRevision is the revision of a key under which nothing is stored.
const NoRevision Revision = 0

// ErrConflict is what Set returns when the state is no longer the one that was read. Nothing was changed: read
// again and decide again.
var ErrConflict = errors.New("state has changed since it was read")

// Atomic is implemented by a backend that decides beside its data, in one round trip. A backend without it is
// used through Get, [Limits.Apply], Set, and again on ErrConflict.
//
// Its answers are those of Limits.Apply on the stored state, or for an unknown key on [Limits.New]. l is valid, is not
// changed and is not kept.
type Atomic interface {
	// Do does op. OwnClock means the backend's own clock, which processes that share the backend share too. After an
	// error op may have been done.
	Do(ctx context.Context, key string, l *Limits, op Op) (Answer, error)
}

// Timed is implemented by a backend whose own clock is not simply that of the process.
type Timed interface {
	// GetWithTime is Get, and tells the time of the backend's clock.
	GetWithTime(ctx context.Context, key string) (State, Revision, time.Time, error)
}
