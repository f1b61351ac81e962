package telemetry

import (
	"errors"
	"sync"
	"time"

	"github.com/drip-go/drip"
)

// leases are the leases that a bucket has given. The storage says whether a lease is over when a caller gives it back
// or renews it. For any other lease its end decides, counted from here, because the storage's clock may be another one.
type leases struct {
	mu      sync.Mutex
	out     map[lease]held
	first   map[lease]lease // of a renewed lease: the lease as it was taken
	before  map[lease]lease // of a lease as last renewed: as it was before, which its holder may still give back
	expired int64
	most    int // with so many, add looks for leases that are over
}

type lease struct {
	entity string
	drip.Lease
}

// held is of at most 128 bytes: a map takes larger ones from the heap.
type held struct {
	began time.Time
	lasts time.Duration // from then on
	now   drip.Lease    // as last renewed
}

func (h held) over(now time.Time) bool { return now.Sub(h.began) >= h.lasts }

func lasts(l drip.Lease) time.Duration { return l.End().Sub(l.Begin()) }

func (s *leases) taken(entity string, l drip.Lease) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out == nil {
		s.out, s.first, s.before = map[lease]held{}, map[lease]lease{}, map[lease]lease{}
	}
	if len(s.out) >= s.most {
		s.expire(now)
		s.most = max(64, 2*len(s.out))
	}
	key := lease{entity, l}
	s.out[key] = held{now, lasts(l), l}
}

// given ends a lease, unless err leaves open whether it has ended.
func (s *leases) given(entity string, l drip.Lease, err error) {
	over := errors.Is(err, drip.ErrNoLease)
	if err != nil && !over {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key, h, ok := s.find(entity, l)
	if !ok {
		return // a ticket that was cancelled, or a lease that was given back or counted before
	}
	s.remove(key, h)
	if over {
		s.expired++
	}
}

func (s *leases) renewed(entity string, before, after drip.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, h, ok := s.find(entity, before)
	if !ok {
		return
	}
	s.remove(key, h)
	h.lasts, h.now = lasts(after), after
	s.out[key] = h
	latest := lease{entity, after}
	if after != key.Lease {
		s.first[latest] = key
	}
	if before != key.Lease && before != after {
		held := lease{entity, before}
		s.first[held], s.before[latest] = key, held
	}
}

func (s *leases) reset(entity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(time.Now())
	for key, h := range s.out {
		if key.entity == entity {
			s.remove(key, h)
		}
	}
}

// count returns how many leases are out, and how many have expired so far.
func (s *leases) count() (out, expired int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(time.Now())
	return int64(len(s.out)), s.expired
}

// The methods below require s.mu held.

func (s *leases) find(entity string, l drip.Lease) (lease, held, bool) {
	key := lease{entity, l}
	if first, ok := s.first[key]; ok {
		key = first
	}
	h, ok := s.out[key]
	return key, h, ok
}

func (s *leases) remove(key lease, h held) {
	latest := lease{key.entity, h.now}
	delete(s.out, key)
	delete(s.first, latest)
	if before, ok := s.before[latest]; ok {
		delete(s.first, before)
		delete(s.before, latest)
	}
}

func (s *leases) expire(now time.Time) {
	for key, h := range s.out {
		if h.over(now) {
			s.remove(key, h)
			s.expired++
		}
	}
}
