package storage

import (
	"context"
	"time"
)

// Lister is implemented by a backend that can tell which entities it holds, for tools that show them. Nothing else needs
// it: a backend without it works as well, but cannot be looked through.
type Lister interface {
	// List calls each for every entity stored, in no order and never twice at the same time, until all are told or each
	// returns an error, which List then returns. It holds up no decision, so what changes meanwhile may be told
	// before or after the change, or twice, and an entity that comes or goes may be left out.
	List(ctx context.Context, each func(Entry) error) error
}

// Entry is an entity that is stored.
type Entry struct {
	Key   string
	State State     // it is the caller's
	Time  time.Time // when it was read, by the backend's clock
}
