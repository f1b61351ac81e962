package storage

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/drip-go/drip/internal/address"
)

// OpenFunc makes a Storage from a URL of its registered scheme. It connects to nothing yet.
type OpenFunc func(ctx context.Context, u *url.URL) (Storage, error)

var (
	openersMu sync.RWMutex
	openers   = map[string]OpenFunc{}
)

// Register makes a backend available to [Open] under a URL scheme, in any case. Backends call it from init. It
// panics when the scheme is empty or taken, or open is nil: that is a mistake in the program, not in its input.
//
// Register is for programs that choose their backend by configuration. A program can use any value that implements
// Storage without it.
func Register(scheme string, open OpenFunc) {
	scheme = strings.ToLower(scheme)
	openersMu.Lock()
	defer openersMu.Unlock()
	switch {
	case scheme == "":
		panic("storage: Register with an empty scheme")
	case open == nil:
		panic("storage: Register of " + scheme + " with a nil OpenFunc")
	case openers[scheme] != nil:
		panic("storage: Register called twice for " + scheme)
	}
	openers[scheme] = open
}

// Open makes the Storage that a URL names: "memory:", "redis://localhost:6379/0". The backend's package must be
// imported. No error repeats the URL, which may hold a password.
func Open(ctx context.Context, rawURL string) (Storage, error) {
	u, err := address.Parse(rawURL)
	if err == nil {
		if _, query := url.ParseQuery(u.RawQuery); query != nil { // else a part such as the prefix would be left out
			err = address.ErrMalformed
		}
	}
	if err != nil {
		return nil, fmt.Errorf("storage: open: %w", err)
	}
	openersMu.RLock()
	open, known := openers[u.Scheme], slices.Sorted(maps.Keys(openers))
	openersMu.RUnlock()
	switch {
	case u.Scheme == "":
		return nil, fmt.Errorf("storage: open: the URL has no scheme (there are: %s)", strings.Join(known, ", "))
	case open == nil:
		return nil, fmt.Errorf("storage: open: unknown scheme %q (forgotten import? there are: %s)", u.Scheme, strings.Join(known, ", "))
	}
	s, err := open(ctx, u)
	if err != nil {
		return nil, fmt.Errorf("storage: open %s: %w", u.Scheme, err)
	}
	return s, nil
}
