package memory

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// Entities whose keys have one hash are told apart, and forgotten one by one. Nobody finds such keys, so this is a test of
// the shard.
func TestOneHash(t *testing.T) {
	sh := &shard{entities: map[uint64]*entity{}}
	const n = 40
	for i := range n {
		e := newEntity(fmt.Sprint(i))
		e.until = int64(1 + i*7%n) // not in the order of the list
		sh.add(uint64(i%2), e)
	}
	for now := range int64(n + 1) {
		sh.forget(now)
		left := 0
		for i := range n {
			e := sh.entity(uint64(i%2), fmt.Sprint(i))
			if (e != nil) != (int64(1+i*7%n) > now) || e != nil && e.key != fmt.Sprint(i) {
				t.Fatalf("at %d the entity %d, kept until %d, is %+v", now, i, 1+i*7%n, e)
			}
			if e != nil {
				left++
			}
			if sh.entity(uint64(1-i%2), fmt.Sprint(i)) != nil {
				t.Fatalf("the entity %d is found by another hash", i)
			}
		}
		if sh.count != left {
			t.Fatalf("at %d the shard counts %d entities, want %d", now, sh.count, left)
		}
	}
	if len(sh.entities) != 0 {
		t.Errorf("%d hashes of nobody are kept", len(sh.entities))
	}
}

// A shard may get another map during a call about another shard. The race detector watches.
func TestShrinkingShard(t *testing.T) {
	s := New()
	sh := &s.shards[0]
	for i := range 8 {
		sh.add(uint64(i)*shards, newEntity(fmt.Sprint(i)))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.usable(t.Context()); err != nil {
			t.Error(err)
		}
	})
	sh.mu.Lock()
	sh.forget(1)
	sh.mu.Unlock()
	wg.Wait()
	if sh.most != 0 {
		t.Errorf("the map of %d entities did not shrink", sh.most)
	}
}

// A key may be a part of a message, which the Storage does not keep.
func TestKeysOfMessages(t *testing.T) {
	sh := &shard{entities: map[uint64]*entity{}}
	message := strings.Repeat("shop;", 1000)
	sh.add(1, newEntity(message[:4]))
	if e := sh.entity(1, "shop"); e == nil || unsafe.StringData(e.key) == unsafe.StringData(message) {
		t.Errorf("the key is a part of the message, or lost: %+v", e)
	}
}
