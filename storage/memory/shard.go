package memory

import (
	"maps"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

func newEntity(key string) *entity {
	e := &entity{key: key}
	e.state.Lines = e.first[:0]
	return e
}

// entry returns the storage.Entry of an entity, with all its leases.
func (e *entity) entry(now time.Time) (storage.Entry, error) {
	if e.raw != nil {
		if err := e.decode(); err != nil {
			return storage.Entry{}, err
		}
	}
	leases := e.leases.All()
	return storage.Entry{
		Key: e.key, State: e.state.Copy(), Leases: leases, Out: int64(len(leases)), Time: now,
	}, nil
}

// The methods of a shard require sh.mu held.

// entity returns the entity of key, nil if there is none.
func (sh *shard) entity(hash uint64, key string) *entity {
	e := sh.entities[hash]
	for e != nil && e.key != key {
		e = e.another
	}
	return e
}

func (sh *shard) add(hash uint64, e *entity) {
	e.key = strings.Clone(e.key) // it may be a part of a message
	e.another = sh.entities[hash]
	sh.entities[hash] = e
	sh.count++
	sh.most = max(sh.most, sh.count)
}

// store keeps an entity after op, when the storage's clock is at now. known reports whether the entity was there
// before.
func (sh *shard) store(hash uint64, e *entity, l *decision.Limits, op *decision.Op, now int64, known bool) {
	theirs := op.Now
	if e.other && e.state.Now != now { // ReturnToken and Renew by the storage's clock leave its time as it is
		theirs = e.state.Now
	}
	e.keep(now, theirs, max(l.Until(&e.state), e.leases.Last()))
	sh.changed(e)
	if e.state.Tokens == 0 {
		e.until = now // it is an unknown entity
	} else if !known {
		sh.add(hash, e)
	}
}

// changed gives an entity its next revision.
func (sh *shard) changed(e *entity) {
	sh.revision++
	e.revision = sh.revision
}

// forget drops the expired entities.
func (sh *shard) forget(now int64) {
	for hash, e := range sh.entities {
		for at := &e; *at != nil; {
			if (*at).until <= now {
				*at = (*at).another
				sh.count--
			} else {
				at = &(*at).another
			}
		}
		if e == nil {
			delete(sh.entities, hash)
		} else {
			sh.entities[hash] = e
		}
	}
	if sh.count < sh.most/4 {
		kept := make(map[uint64]*entity, len(sh.entities))
		maps.Copy(kept, sh.entities)
		sh.entities, sh.most = kept, sh.count
	}
}
