// Package storage is the contract between drip and the places where it keeps the state of entities.
//
// A backend is a [Storage]: Get and Set, with a revision that tells whether the state changed in between. The state is
// opaque to it. A backend that can decide beside its data is [Atomic], too: it calls package decision, or runs Lua
// generated from it. Package storagetest checks a backend against the rules stated here.
//
// Programs that use a backend need only [Open], if anything.
package storage

import (
	"context"
	"errors"
	"time"

	"github.com/drip-go/drip/decision"
)

// Storage keeps one [State] for each key. The key is the entity: any bytes, never empty.
//
// Implementations are safe for concurrent use. They return their own errors unwrapped; the caller adds the operation
// and the entity. A constructor opens no connection: the first call does. A Storage that holds a connection also has
// Close() error.
type Storage interface {
	// Get returns the state of key and its revision. If nothing is stored it returns the zero State, NoRevision and no
	// error. The caller may change the State.
	Get(ctx context.Context, key string) (State, Revision, error)

	// Set stores s if the revision of key is still rev; NoRevision means that nothing is stored. Otherwise it changes
	// nothing and returns ErrConflict. After any other error the state may or may not be stored. Set does not keep
	// s.Data.
	Set(ctx context.Context, key string, s State, rev Revision) error
}

// State is the value that a backend stores under a key.
type State struct {
	// Data is opaque to the backend.
	Data []byte

	// Now is the time at which Data was decided, in milliseconds since 1970. It may be a simulation's.
	Now int64

	// Until is the time from which the backend may forget the key, on the clock of Now. It may have come: a limiter that
	// gets units back can be forgotten at once. [decision.Never] forbids forgetting, because plain tokens are out. A
	// backend may have an option that ends this after a time, as Redis and PostgreSQL have: then these tokens are back.
	// A backend that forgets by its own clock keeps the key for Until - Now after Set. If Now is not the time of that
	// clock, it keeps the key for a day at least, or as long as that option says.
	Until int64
}

// Revision is the version of one key's state, never NoRevision. The backend chooses it. A key that was forgotten and
// comes back must not repeat a revision that a reader may still hold.
type Revision uint64

// NoRevision is the revision of a key without a stored state.
const NoRevision Revision = 0

// ErrConflict is the error of Set if the state has changed since it was read. Set has changed nothing: read again and
// decide again.
var ErrConflict = errors.New("state has changed since it was read")

// Atomic is a backend that decides beside its data, as a rule in one round trip. Package drip uses any other backend
// through Get, [decision.Limits.Apply] and Set, and tries again on ErrConflict.
type Atomic interface {
	// Do does op and returns the answer of [decision.Limits.ApplyWithin]. decision.OwnClock as its Now means the
	// backend's own clock, which all processes of the backend share. l is ready. Do neither changes nor keeps it. After
	// an error op may have been done.
	//
	// within are the shared limits of the operation; nil is none. Do stores their states under their keys, and changes
	// all keys together or none. within names no key twice. The error is ErrApart if the backend keeps these keys in
	// places that cannot decide together.
	Do(ctx context.Context, key string, l *decision.Limits, within []Within, op decision.Op) (decision.Answer, error)
}

// ErrApart is the error of an Atomic for keys that it keeps apart. Nothing was decided.
var ErrApart = errors.New("the keys are kept apart")

// Within is a shared limit of an operation.
type Within struct {
	Key    string           // the key of its state
	Limits *decision.Limits // ready; not changed and not kept
	ID     int64            // its decision.Shared.Key
	Weight int64            // of the entity in it, at least 1
}

// In returns the decision.Shared of the Within, with the state stored under its Key and its leases.
func (w *Within) In(s *decision.State, leases decision.Leases) decision.Shared {
	return decision.Shared{Key: w.ID, Weight: w.Weight, Limits: w.Limits, State: s, Leases: leases}
}

// Reader is a backend that does not keep leases in State.Data, or that has a clock of its own.
type Reader interface {
	// Read returns everything stored of key, by the backend's clock. It changes nothing.
	Read(ctx context.Context, key string) (Entry, error)
}

// Lister is a backend that can list its entities. Tools use it; decisions do not need it.
type Lister interface {
	// List calls each for every stored entity, in no order, one call at a time. It ends after the last entity, or when
	// each returns an error, which List then returns. List delays no decision. If an entity changes meanwhile, List may
	// tell its state before the change, after it, or both. It may leave out an entity that comes or goes. It leaves out
	// bytes of Set that are no state of this version: drip.Options.History stores such. A backend that tells an entity
	// twice says when.
	List(ctx context.Context, each func(Entry) error) error
}

// Entry is an entity as it is stored. The caller may change it.
type Entry struct {
	Key    string         // the entity
	State  decision.State // its Tokens are 0 if nothing is stored, or by an earlier version of drip: see Decode
	Leases []Held         // the first to end first; from List at most MostListed
	Out    int64          // the number of leases
	Time   time.Time      // of the backend's clock
}

// MostListed is the number of leases that Entry.Leases holds at most.
const MostListed = 1000
