package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// plain decides through Get, Apply and Set, as package drip does in a backend that is not atomic. It is for one caller: a
// conflict is an error.
type plain struct{ storage.Storage }

func (p plain) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	own := part{key: key, limits: l}
	if err := own.get(ctx, p); err != nil {
		return decision.Answer{}, err
	}
	parts, shared := make([]part, len(within)), make([]decision.Shared, len(within))
	for i, w := range within {
		parts[i] = part{key: w.Key, limits: w.Limits}
		if err := parts[i].get(ctx, p); err != nil {
			return decision.Answer{}, err
		}
		shared[i] = w.In(&parts[i].state, parts[i].leases)
	}
	var a decision.Answer
	l.ApplyWithin(&own.state, own.leases, shared, &op, op.Now, &a)
	for _, part := range append(parts, own) {
		if err := part.set(ctx, p); err != nil {
			return decision.Answer{}, err
		}
	}
	return a, nil
}

// part is one key of a decision.
type part struct {
	key    string
	limits *decision.Limits
	data   []byte
	rev    storage.Revision
	state  decision.State
	leases *storage.Leases
}

func (p *part) get(ctx context.Context, s storage.Storage) error {
	stored, rev, err := s.Get(ctx, p.key)
	if err != nil {
		return err
	}
	held, err := storage.Decode(stored.Data, &p.state)
	p.data, p.rev, p.leases = stored.Data, rev, storage.NewLeases(held)
	return err
}

func (p *part) set(ctx context.Context, s storage.Storage) error {
	data := storage.Encode(&p.state, p.leases.All())
	if bytes.Equal(data, p.data) {
		return nil
	}
	err := s.Set(ctx, p.key, storage.State{Data: data, Now: p.state.Now, Until: max(p.limits.Until(&p.state), p.leases.Last())}, p.rev)
	if errors.Is(err, storage.ErrConflict) {
		err = fmt.Errorf("the revision %d that Get has just returned is refused, while nobody else calls: %w", p.rev, err)
	}
	return err
}
