package drip

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/panics"
	"github.com/drip-go/drip/storage"
)

// historyMark begins the keys of histories.
const historyMark = "history:"

// Usage is how much an entity, or a shared limit, used in the last hour.
type Usage struct {
	Entity string    // the entity, or a SharedID
	From   time.Time // the beginning of the first minute, of 60

	// Units is the use in each minute, by the name of the unit; "" is calls. The last minute is the present one, so far.
	// Units that were not used are missing.
	Units map[string][60]int
}

// Used returns how much an entity, or a shared limit by its SharedID, used in the last hour. It knows what Buckets with
// Options.History let run. It takes one Get of the storage. Each process stores its counts once a minute, so the latest
// use is missing for up to two minutes. An operation counts in the minute in which it began, with its expected cost,
// and with its real cost from Settle on.
func (b *Bucket) Used(ctx context.Context, entityID string) (Usage, error) {
	now, err := b.clock(time.Time{})
	if err == nil {
		err = b.check(ctx, entityID)
	}
	var stored storage.State
	if err == nil {
		stored, _, err = b.storage.Get(ctx, historyMark+entityID)
	}
	if err != nil {
		return Usage{}, fmt.Errorf("drip: use of %q: %w", entityID, err)
	}
	from := minuteOf(now) - 59
	u := Usage{Entity: entityID, From: time.UnixMilli(from * minute), Units: map[string][60]int{}}
	for at, n := range parseHistory(stored.Data) {
		if i := at.minute - from; i >= 0 && i < 60 && n > 0 {
			minutes := u.Units[at.unit]
			minutes[i] = int(min(n, mostUsed))
			u.Units[at.unit] = minutes
		}
	}
	return u, nil
}

const (
	minute   = 60_000  // ms
	mostUsed = 1 << 53 // in a minute: more is garbage, and would overflow in sums
)

// minuteOf returns the number of a minute since 1970. OwnClock means the clock of this machine.
func minuteOf(ms int64) int64 {
	if ms == decision.OwnClock {
		ms = time.Now().UnixMilli()
	}
	return ms / minute
}

const (
	firstFlush    = 5 * time.Second // from the first count to the first flush
	flushEvery    = time.Minute
	flushTogether = 4                    // records
	flushPause    = 3 * time.Millisecond // between two records
	flushSpread   = 30 * time.Second     // all pauses together at most
	flushTimeout  = 10 * time.Second     // of one record
	flushTries    = 20                   // that lose their race
	mostFailures  = 10                   // after which the rest of a flush waits for the next one
	historyShards = 16
	mostCounted   = 100_000 // minutes of entities that wait for a flush
)

// history counts how much entities use, and adds it to their records in the storage once a minute. A record is a key of
// its own, so that the state of an entity does not change with it and every storage has it.
type history struct {
	storage storage.Storage
	now     func() int64 // in ms
	units   units
	seed    maphash.Seed
	shards  [historyShards]historyShard
	armed   atomic.Bool // a flush is due or under way
	flushed time.Time   // when the last flush began; only a flush and the arming of one use it
}

type historyShard struct {
	mu     sync.Mutex
	counts map[entityMinute]*decision.Cost
	_      [64 - 16]byte
}

type entityMinute struct {
	entity string
	minute int64
}

// newHistory returns the history of a Bucket, nil if its Options want none.
func newHistory(b *Bucket) *history {
	if !b.options.History {
		return nil
	}
	h := &history{storage: b.storage, units: b.units, seed: maphash.MakeSeed(), now: func() int64 { return time.Now().UnixMilli() }}
	if clock := b.options.Clock; clock != nil {
		h.now = func() int64 { return clock().UnixMilli() }
	}
	return h
}

// count counts what an operation took of an entity and of its shared limits, or gave back.
func (h *history) count(entityID string, within []storage.Within, op *decision.Op, a *decision.Answer) {
	var cost decision.Cost
	at := op.Lease.Begin
	switch {
	case op.Kind == decision.GetDelay && a.Delay == 0:
		cost[0], at = 1, op.Now
	case op.Kind == decision.Admit && a.Lease.ID != 0:
		cost, at = op.Cost, a.Lease.Begin
	case op.Kind == decision.Settle && a.Found:
		for unit := range cost {
			cost[unit] = op.Cost[unit] - op.Lease.Cost[unit]
		}
	case op.Kind == decision.Cancel && a.Found:
		for unit := range cost {
			cost[unit] = -op.Lease.Cost[unit]
		}
	}
	if cost == (decision.Cost{}) {
		return
	}
	c := entityMinute{entityID, minuteOf(at)}
	h.add(c, &cost)
	for i := range within {
		c.entity = within[i].Key
		h.add(c, &cost)
	}
	if !h.armed.Load() {
		h.arm()
	}
}

func (h *history) add(c entityMinute, cost *decision.Cost) {
	sh := &h.shards[maphash.String(h.seed, c.entity)%historyShards]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sum := sh.counts[c]
	if sum == nil {
		if len(sh.counts) >= mostCounted/historyShards {
			return
		}
		if sh.counts == nil {
			sh.counts = map[entityMinute]*decision.Cost{}
		}
		c.entity = strings.Clone(c.entity) // it may be a part of a message
		sum = new(decision.Cost)
		sh.counts[c] = sum
	}
	for unit := range sum {
		sum[unit] += cost[unit]
	}
}

// arm starts the timer of the next flush, unless it runs. Processes that began together flush apart.
func (h *history) arm() {
	if h.armed.CompareAndSwap(false, true) {
		time.AfterFunc(max(firstFlush, flushEvery-time.Since(h.flushed))+rand.N(firstFlush), h.flush)
	}
}

// flush adds the counts to the records, some at a time. Counts that it could not add wait for the next flush.
func (h *history) flush() {
	h.flushed = time.Now()
	var (
		wg     sync.WaitGroup
		failed atomic.Int64
		places = make(chan struct{}, flushTogether)
		taken  map[string]map[entityMinute]*decision.Cost
	)
	_ = panics.Caught(func() error { taken = h.take(); return nil }) // a panic of Options.Clock: the next flush tries again
	pause := min(flushPause, flushSpread/time.Duration(max(1, len(taken))))
	for entity, sums := range taken {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if failed.Load() < mostFailures && panics.Caught(func() error { return h.write(entity, sums) }) == nil {
				return
			}
			failed.Add(1)
			for c, cost := range sums {
				h.add(c, cost)
			}
		})
		if failed.Load() < mostFailures {
			time.Sleep(pause)
		}
	}
	wg.Wait()
	h.armed.Store(false)
	if h.any() {
		h.arm()
	}
}

// take removes and returns all counts of the last hour, by their entities.
func (h *history) take() map[string]map[entityMinute]*decision.Cost {
	all, from := map[string]map[entityMinute]*decision.Cost{}, minuteOf(h.now())-59
	for i := range h.shards {
		sh := &h.shards[i]
		sh.mu.Lock()
		counts := sh.counts
		sh.counts = nil
		sh.mu.Unlock()
		for c, cost := range counts {
			if c.minute < from {
				continue
			}
			if all[c.entity] == nil {
				all[c.entity] = map[entityMinute]*decision.Cost{}
			}
			all[c.entity][c] = cost
		}
	}
	return all
}

func (h *history) any() bool {
	for i := range h.shards {
		sh := &h.shards[i]
		sh.mu.Lock()
		n := len(sh.counts)
		sh.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}

// write adds counts to the record of an entity. It replaces bytes that are no record.
func (h *history) write(entity string, counts map[entityMinute]*decision.Cost) error {
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	key := historyMark + entity
	var err error
	for range flushTries {
		stored, rev, failed := h.storage.Get(ctx, key)
		if failed != nil {
			return failed
		}
		r := parseHistory(stored.Data)
		for c, cost := range counts {
			for unit, n := range cost {
				if n != 0 {
					r[used{c.minute, h.units.name(int64(unit))}] += n
				}
			}
		}
		now := h.now()
		data, last := r.encode(minuteOf(now))
		err = h.storage.Set(ctx, key, storage.State{Data: data, Now: now, Until: (last + 60) * minute}, rev)
		switch {
		case errors.Is(err, storage.ErrConflict):
			time.Sleep(rand.N(longestBackoff))
		case err == nil:
			return nil
		default: // maybe its answer alone was lost
			if stored, _, failed := h.storage.Get(ctx, key); failed == nil && bytes.Equal(stored.Data, data) {
				return nil
			}
			return err
		}
	}
	return err
}

// record is the use of an entity, as it is stored for an hour. It may be below zero for a while: the process that let an
// operation run and the process that settles it store their counts at different times.
type record map[used]int64

type used struct {
	minute int64
	unit   string
}

type recordJSON struct {
	Version int                `json:"v"`
	From    int64              `json:"from"` // a minute
	Used    map[string][]int64 `json:"used"` // in each minute from From on, by unit
	By      int64              `json:"by"`   // random: tells a Set from others that store the same
}

const historyVersion = 1

// parseHistory reads a record. Bytes that are none are an empty one.
func parseHistory(data []byte) record {
	r, s := record{}, recordJSON{}
	if json.Unmarshal(data, &s) != nil || s.Version != historyVersion {
		return r
	}
	for unit, minutes := range s.Used {
		for i, n := range minutes {
			if n != 0 {
				r[used{s.From + int64(i), unit}] = n
			}
		}
	}
	return r
}

// encode returns the minutes within an hour of now, and the last of them. A storage whose clock is ahead has later ones.
func (r record) encode(now int64) (data []byte, last int64) {
	s := recordJSON{Version: historyVersion, From: now, Used: map[string][]int64{}, By: rand.Int64N(1 << 32)}
	last = now
	for at, n := range r {
		if n == 0 || at.minute <= now-60 || at.minute >= now+60 {
			delete(r, at)
			continue
		}
		s.From, last = min(s.From, at.minute), max(last, at.minute)
	}
	for at, n := range r {
		minutes := s.Used[at.unit]
		if i := int(at.minute - s.From); i >= len(minutes) {
			minutes = append(minutes, make([]int64, i+1-len(minutes))...)
		}
		minutes[at.minute-s.From] = n
		s.Used[at.unit] = minutes
	}
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // it is made of numbers and texts
	}
	return data, last
}
