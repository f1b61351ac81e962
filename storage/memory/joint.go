package memory

import (
	"fmt"
	"slices"

	"github.com/drip-go/drip/decision"
)

// joint is a decision about several keys: an entity and its shared limits. Decisions reuse joints, so that a decision
// allocates nothing.
type joint struct {
	parts  []part
	locked []*shard // each once
	shared []decision.Shared
}

// part is one of the keys.
type part struct {
	shard  *shard
	hash   uint64
	key    string
	entity *entity
	known  bool
}

func (j *joint) begin(sh *shard, hash uint64, key string) {
	clear(j.parts) // keep no entity alive
	clear(j.shared)
	j.parts, j.locked, j.shared = j.parts[:0], j.locked[:0], j.shared[:0]
	j.add(sh, hash, key)
}

func (j *joint) add(sh *shard, hash uint64, key string) {
	j.parts = append(j.parts, part{shard: sh, hash: hash, key: key})
	if !slices.Contains(j.locked, sh) {
		j.locked = append(j.locked, sh)
	}
}

// lock locks the shards in their order, so that two decisions never wait for each other.
func (j *joint) lock() {
	slices.SortFunc(j.locked, func(a, b *shard) int { return a.place - b.place })
	for _, sh := range j.locked {
		sh.mu.Lock()
	}
}

func (j *joint) unlock() {
	for _, sh := range j.locked {
		sh.mu.Unlock()
	}
}

func (j *joint) find() error {
	for i := range j.parts {
		p := &j.parts[i]
		p.entity = p.shard.entity(p.hash, p.key)
		if p.known = p.entity != nil; !p.known {
			p.entity = newEntity(p.key)
		} else if p.entity.raw != nil {
			if err := p.entity.decode(); err != nil && i > 0 {
				return fmt.Errorf("%q: %w", p.key, err)
			} else if err != nil {
				return err
			}
		}
	}
	return nil
}

func (j *joint) store(i int, l *decision.Limits, op *decision.Op, now int64) {
	p := &j.parts[i]
	p.shard.store(p.hash, p.entity, l, op, now, p.known)
}
