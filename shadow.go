package drip

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/drip-go/drip/decision"
)

// Shadow decides as a Bucket does, counts, and lets everything run. Use it in place of the Bucket to try limits in
// production; when the limits are right, use the Bucket. An Admit takes one call of the Bucket, as without a Shadow.
//
// An operation that the Bucket postpones runs at once all the same. The Shadow asks the Bucket again when the operation
// is due, with its ticket. It then holds the token for as long as the operation really took, or is postponed again. So
// the Bucket's counts, such as the metrics of package telemetry, are the counts of the same load in queues that are
// never late.
//
// The storage then holds the entities of the shadow. Give it a storage or a prefix of its own if others already enforce
// limits there. Set the fields before the first call. Shadow is safe for concurrent use. End it with Close.
type Shadow struct {
	// Bucket decides: a *Bucket, or a *telemetry.Bucket, which also counts. Required.
	Bucket interface {
		Admit(ctx context.Context, entityID string, r Request) (Admission, error)
		Settle(ctx context.Context, entityID string, l Lease, cost int, costs ...Costs) error
		Cancel(ctx context.Context, entityID string, a Admission) error
		Renew(ctx context.Context, entityID string, l Lease) (Lease, error)
		Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error
	}

	// OnPostponed receives each answer that would have postponed an operation, the first time and again. Defaults to
	// nil.
	OnPostponed func(entityID string, a Admission)

	// Most is how many operations may be postponed at once. Operations beyond it run, and the Bucket forgets them as it
	// forgets lost messages, so it postpones less than it would. Defaults to 100,000, of some 500 bytes each.
	Most int

	mu     sync.Mutex
	last   int64
	ghosts map[*ghost]bool
	leases map[int64]*ghost   // of operations that run
	plain  map[string][]Lease // taken by GetDelay, the oldest first
	closed bool
}

// ghost is an operation that ran although the Bucket postponed it.
type ghost struct {
	entity  string
	id      int64     // of the lease that its caller has
	request Request   // with the newest ticket
	began   time.Time // for the caller

	// The Shadow's mu guards the fields below.
	timer *time.Timer
	lease Lease // of the Bucket, once the ghost has come to run
	runs  time.Time
	renew time.Duration // each such time
	over  bool          // for the caller, after it took so long
	took  time.Duration
	cost  int
	costs []Costs
}

const (
	mostGhosts   = 100_000
	ghostTimeout = 10 * time.Second
	ghostLease   = time.Minute // the Shadow's answer to Renew; its length does not matter
)

// Admit asks the Bucket, and returns an Admission that may run. Its Bound is the cause of the delay that it would have
// had, BoundNone for no delay.
func (s *Shadow) Admit(ctx context.Context, entityID string, r Request) (Admission, error) {
	a, err := s.Bucket.Admit(ctx, entityID, r)
	if err != nil || a.Delay == 0 {
		return a, err
	}
	s.postponed(entityID, a)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last--
	now := time.Now()
	r.Ticket, r.Now = a.Ticket, time.Time{}
	g := &ghost{entity: entityID, id: s.last, request: r, began: now}
	if s.ghosts == nil {
		s.ghosts, s.leases = map[*ghost]bool{}, map[int64]*ghost{}
	}
	most := s.Most
	if most == 0 {
		most = mostGhosts
	}
	if len(s.ghosts) < most && !s.closed {
		s.ghosts[g], s.leases[g.id] = true, g
		g.timer = time.AfterFunc(a.Delay, func() { s.back(g) })
	}
	l := decision.Lease{ID: g.id, Begin: now.UnixMilli(), End: now.Add(ghostLease).UnixMilli(), Cost: decision.Cost{int64(max(r.Cost, 1))}}
	return Admission{Lease: leaseOf(entityID, l, 0), Bound: a.Bound, Limit: a.Limit}, nil
}

func (s *Shadow) postponed(entityID string, a Admission) {
	if s.OnPostponed != nil {
		s.OnPostponed(entityID, a)
	}
}

// back asks again for a ghost that is due.
func (s *Shadow) back(g *ghost) {
	ctx, cancel := context.WithTimeout(context.Background(), ghostTimeout)
	defer cancel()
	a, err := s.Bucket.Admit(ctx, g.entity, g.request)
	if err == nil && a.Delay > 0 {
		s.postponed(g.entity, a)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.ghosts[g]:
		if err == nil {
			s.forsake(g.entity, a)
		}
	case err != nil: // it is lost, as a message may be
		delete(s.ghosts, g)
	case a.Delay > 0:
		g.request.Ticket = a.Ticket
		g.timer = time.AfterFunc(a.Delay, func() { s.back(g) })
	default:
		g.lease, g.runs, g.renew = a.Lease, time.Now(), a.Lease.End().Sub(a.Lease.Begin())/2
		s.await(g)
	}
}

// await waits until a running ghost is over, or its lease has to be renewed. It requires mu held.
func (s *Shadow) await(g *ghost) {
	wait := g.renew
	if g.over {
		wait = min(wait, time.Until(g.runs.Add(g.took)))
	}
	g.timer = time.AfterFunc(wait, func() { s.wake(g) })
}

func (s *Shadow) wake(g *ghost) {
	s.mu.Lock()
	ends := g.over && time.Since(g.runs) >= g.took
	lease := g.lease
	if ends {
		delete(s.ghosts, g)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), ghostTimeout)
	defer cancel()
	if ends {
		_ = s.Bucket.Settle(ctx, g.entity, lease, g.cost, g.costs...) // else its lease ends by itself
		return
	}
	lease, err := s.Bucket.Renew(ctx, g.entity, lease)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.ghosts[g]:
	case err != nil:
		delete(s.ghosts, g)
	default:
		g.lease = lease
		s.await(g)
	}
}

// forsake gives back an Admission that came too late.
func (s *Shadow) forsake(entityID string, a Admission) {
	if s.closed {
		return
	}
	time.AfterFunc(0, func() {
		ctx, cancel := context.WithTimeout(context.Background(), ghostTimeout)
		defer cancel()
		_ = s.Bucket.Cancel(ctx, entityID, a) // else it ends by itself
	})
}

// take removes and returns the ghost of a lease, and reports whether the lease belongs to a ghost. It requires mu held.
func (s *Shadow) take(l Lease) (g *ghost, is bool) {
	g = s.leases[l.l.ID]
	delete(s.leases, l.l.ID)
	return g, l.l.ID < 0
}

// Settle does as Bucket.Settle. For an operation that would have been postponed it reports the duration and the cost.
func (s *Shadow) Settle(ctx context.Context, entityID string, l Lease, cost int, costs ...Costs) error {
	s.mu.Lock()
	g, is := s.take(l)
	if g != nil {
		g.over, g.took, g.cost, g.costs = true, time.Since(g.began), cost, costs
		if s.ghosts[g] && g.lease != (Lease{}) && g.timer.Stop() {
			s.await(g)
		}
	}
	s.mu.Unlock()
	if is {
		return nil
	}
	return s.Bucket.Settle(ctx, entityID, l, cost, costs...)
}

// Cancel does as Bucket.Cancel.
func (s *Shadow) Cancel(ctx context.Context, entityID string, a Admission) error {
	s.mu.Lock()
	g, is := s.take(a.Lease)
	var real Admission
	if g != nil && s.ghosts[g] {
		g.timer.Stop() // if it is asking just now, it finds that it is gone
		delete(s.ghosts, g)
		if real.Lease = g.lease; g.lease == (Lease{}) {
			real.Ticket = g.request.Ticket
		}
	}
	s.mu.Unlock()
	switch {
	case !is:
		return s.Bucket.Cancel(ctx, entityID, a)
	case real == Admission{}:
		return nil
	}
	if err := s.Bucket.Cancel(ctx, entityID, real); err != nil && !errors.Is(err, ErrNoLease) {
		return err
	}
	return nil
}

// Renew does as Bucket.Renew. The lease of an operation that would have been postponed never ends.
func (s *Shadow) Renew(ctx context.Context, entityID string, l Lease) (Lease, error) {
	if l.l.ID < 0 {
		l.l.End = time.Now().Add(ghostLease).UnixMilli()
		return l, nil
	}
	return s.Bucket.Renew(ctx, entityID, l)
}

// Throttled does as Bucket.Throttled: the provider refused a running operation, so the postponed ones wait.
func (s *Shadow) Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error {
	return s.Bucket.Throttled(ctx, entityID, retryAfter)
}

// GetDelay decides as Admit does, and returns 0.
func (s *Shadow) GetDelay(ctx context.Context, entityID string) (time.Duration, error) {
	a, err := s.Admit(ctx, entityID, Request{})
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plain == nil {
		s.plain = map[string][]Lease{}
	}
	s.plain[entityID] = append(s.plain[entityID], a.Lease)
	return 0, nil
}

// ReturnToken ends the operation of the entity that GetDelay let run first.
func (s *Shadow) ReturnToken(ctx context.Context, entityID string) error {
	s.mu.Lock()
	all := s.plain[entityID]
	if len(all) == 0 {
		s.mu.Unlock()
		return nil
	}
	l := all[0]
	if s.plain[entityID] = all[1:]; len(all) == 1 {
		delete(s.plain, entityID)
	}
	s.mu.Unlock()
	if err := s.Settle(ctx, entityID, l, 1); err != nil && !errors.Is(err, ErrNoLease) {
		return fmt.Errorf("drip: return token of %q: %w", entityID, err)
	}
	return nil
}

// Waiting returns how many operations would wait now.
func (s *Shadow) Waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.ghosts {
		if g.lease == (Lease{}) {
			n++
		}
	}
	return n
}

// Close ends the background work of the Shadow. Running operations may still be settled.
func (s *Shadow) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for g := range s.ghosts {
		g.timer.Stop()
	}
	clear(s.ghosts)
	return nil
}
