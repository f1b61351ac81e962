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

func (p plain) Do(ctx context.Context, key string, l *decision.Limits, op decision.Op) (decision.Answer, error) {
	stored, rev, err := p.Get(ctx, key)
	if err != nil {
		return decision.Answer{}, err
	}
	var s decision.State
	held, err := storage.Decode(stored.Data, &s)
	if err != nil {
		return decision.Answer{}, err
	}
	leases := storage.NewLeases(held)
	var a decision.Answer
	l.Apply(&s, leases, &op, op.Now, &a)
	data := storage.Encode(&s, leases.All())
	if bytes.Equal(data, stored.Data) {
		return a, nil
	}
	err = p.Set(ctx, key, storage.State{Data: data, Now: s.Now, Until: max(l.Until(&s), leases.Last())}, rev)
	if errors.Is(err, storage.ErrConflict) {
		err = fmt.Errorf("the revision %d that Get has just returned is refused, while nobody else calls: %w", rev, err)
	}
	return a, err
}
