package drip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/panics"
)

// shadowMark begins the ID of an entity within the limits on trial.
const shadowMark = "shadow:"

// ShadowID returns the ID under which limits on trial know an entity, "shadow:" and its name, for the methods that take
// an entity. See Options.Shadow and Limit.Shadow.
func ShadowID(entityID string) string { return shadowMark + entityID }

// try makes the Bucket of the limits on trial. It has the entities' own limit if that is on trial, and b has none then.
func (b *Bucket) try(o *Options) error {
	t := &Bucket{units: b.units, moves: b.moves, options: *o, storage: b.storage, memory: b.memory, atomic: b.atomic, history: b.history, trial: true}
	t.limits = decision.Limits{
		Windows: []decision.Window{decision.Unknown}, Tokens: decision.MostUnits,
		Guess: b.limits.Guess, Lease: b.limits.Lease, MaxLease: b.limits.MaxLease,
	}
	t.limits.Ready()
	if o.Shadow {
		t.limits, b.limits = b.limits, t.limits
	}
	err := t.share(o)
	if len(t.shared) > 0 || o.Shadow {
		b.tried = t
	}
	return err
}

// of returns the Bucket that decides about an entity or a shared limit.
func (b *Bucket) of(entityID string) *Bucket {
	if b.tried == nil {
		return b
	}
	name, shared := strings.CutPrefix(entityID, sharedMark)
	if strings.HasPrefix(entityID, shadowMark) || shared && b.options.Shared[name].Shadow {
		return b.tried
	}
	return b
}

// refused returns the ID of the limit that a provider speaks about when it refuses an operation of an entity, or announces
// a rate: the one on trial, if the entities' own is.
func (b *Bucket) refused(entityID string) string {
	if !b.options.Shadow || entityID == "" || strings.HasPrefix(entityID, shadowMark) || strings.HasPrefix(entityID, sharedMark) {
		return entityID
	}
	return ShadowID(entityID)
}

// tries reports whether some limits are on trial.
func (b *Bucket) tries() bool { return b.tried != nil }

// Shadow decides as a Bucket does, counts, and lets everything run. Use it in place of the Bucket to try limits in
// production; when the limits are right, use the Bucket. An Admit takes one call of the Bucket, as without a Shadow.
//
// An operation that the Bucket postpones runs at once all the same. The Shadow asks the Bucket again when the operation
// is due, with its ticket. It then holds the token for as long as the operation really took, or is postponed again. So
// the Bucket's counts, such as the metrics of package telemetry, are the counts of the same load in queues that are
// never late. It ignores deadlines. An operation with a cost that no window ever holds runs without a trial.
//
// If the Options of the Bucket, or some of its shared limits, have their Shadow set, the Shadow tries such limits
// alone. All others hold: it returns the Bucket's answer. An operation that may run takes one more call, about the
// limits on trial, in which the Bucket knows its entity by its ShadowID. If that call fails, the operation runs all the
// same, without a trial.
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

	// OnPostponed receives each answer that would have postponed an operation, the first time and again. Several
	// goroutines may call it at once. Defaults to nil.
	OnPostponed func(entityID string, a Admission)

	// Most is how many operations the Shadow follows at once. It follows those that the Bucket has postponed, until they
	// are over for the Bucket. With limits on trial it also follows all that run. Operations beyond it run, and the
	// Bucket forgets them as it forgets lost messages, so it postpones less than it would. Defaults to 100,000, of some
	// 500 bytes each.
	Most int

	mu     sync.Mutex
	last   int64
	ghosts map[*ghost]bool
	leases map[leaseKey]*ghost // of operations that run, by the leases that their callers have
	plain  map[string][]Lease  // taken by GetDelay, the oldest first
	swept  int                 // how many entities plain had after the last look at all
	closed bool
}

// ghost is an operation that runs although it may be postponed by the limits on trial.
type ghost struct {
	key     leaseKey // of the caller's lease
	entity  string
	request Request   // with the newest ticket
	began   time.Time // for the caller
	plain   bool      // from GetDelay: nobody renews its lease

	// The Shadow's mu guards the fields below.
	until time.Time // when the caller's lease ends
	timer *time.Timer
	lease Lease // of the Bucket, once the ghost has come to run
	runs  time.Time
	renew time.Duration // each such time
	over  bool          // for the caller, after it took so long
	took  time.Duration
	cost  int
	costs []Costs
}

// leaseKey tells a lease from others, also after it was renewed.
type leaseKey struct {
	entity string
	id     int64 // below 0 if the ghost alone has the lease
}

func keyOf(l Lease) leaseKey { return leaseKey{l.entity, l.l.ID} }

const (
	mostGhosts   = 100_000
	ghostTimeout = 10 * time.Second
	ghostLease   = time.Minute // the Shadow's answer to Renew; its length does not matter
)

// Admit asks the Bucket, and returns an Admission that may run. Its Bound is the cause of the delay that it would have
// had, BoundNone for no delay.
func (s *Shadow) Admit(ctx context.Context, entityID string, r Request) (Admission, error) {
	return s.admit(ctx, entityID, r, false)
}

func (s *Shadow) admit(ctx context.Context, entityID string, r Request, plain bool) (Admission, error) {
	if s.Bucket == nil {
		return Admission{}, errors.New("drip: Shadow.Bucket is nil")
	}
	if b, ok := s.Bucket.(interface{ tries() bool }); ok && b.tries() {
		if strings.HasPrefix(entityID, shadowMark) { // the Bucket would ask the limits on trial alone
			return Admission{}, fmt.Errorf("drip: admit %q: %w", entityID, errTrial)
		}
		a, err := s.Bucket.Admit(ctx, entityID, r)
		if err == nil && a.Delay == 0 {
			s.try(ctx, entityID, r, &a, plain)
		}
		return a, err
	}
	r.Deadline = time.Time{}
	a, err := s.Bucket.Admit(ctx, entityID, r)
	never := errors.Is(err, ErrCost) && !r.negative()
	if err != nil && !never || err == nil && a.Delay == 0 {
		return a, err
	}
	s.mu.Lock()
	s.last--
	id := s.last
	s.mu.Unlock()
	now := time.Now()
	l := decision.Lease{ID: id, Begin: now.UnixMilli(), End: now.Add(ghostLease).UnixMilli(), Cost: decision.Cost{int64(max(r.Cost, 1))}}
	real := leaseOf(entityID, l, 0)
	if never {
		return Admission{Lease: real}, nil
	}
	s.haunt(&ghost{entity: entityID, request: r, began: now, plain: plain}, a, real)
	return Admission{Lease: real, Bound: a.Bound, Limit: a.Limit}, nil
}

func (r *Request) negative() bool {
	for _, n := range r.Costs {
		if n < 0 {
			return true
		}
	}
	return r.Cost < 0
}

// try asks the limits on trial about an operation that may run with the lease in a. It sets the Bound and Limit of a.
func (s *Shadow) try(ctx context.Context, entityID string, r Request, a *Admission, plain bool) {
	s.mu.Lock()
	room := s.room()
	s.mu.Unlock()
	if !room {
		return
	}
	r.Ticket, r.Deadline = Ticket{}, time.Time{}
	g := &ghost{entity: ShadowID(entityID), request: r, began: time.Now(), plain: plain}
	tried, err := s.Bucket.Admit(ctx, g.entity, r)
	if err == nil {
		s.haunt(g, tried, a.Lease)
		a.Bound, a.Limit = tried.Bound, tried.Limit
	}
}

// haunt keeps the ghost of an operation that runs with a lease, after the answer that it got.
func (s *Shadow) haunt(g *ghost, a Admission, l Lease) {
	if a.Delay > 0 {
		s.postponed(l.entity, a)
	}
	r := &g.request
	r.Ticket, r.Now = a.Ticket, time.Time{}
	r.Costs, r.Within = maps.Clone(r.Costs), slices.Clone(r.Within) // the caller may change its own
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.room() {
		if a.Delay == 0 {
			s.forsake(g.entity, a)
		}
		return
	}
	if s.ghosts == nil {
		s.ghosts, s.leases = map[*ghost]bool{}, map[leaseKey]*ghost{}
	}
	g.key, g.until = keyOf(l), l.End()
	s.ghosts[g], s.leases[g.key] = true, g
	if a.Delay > 0 {
		g.timer = time.AfterFunc(a.Delay, func() { s.back(g) })
	} else {
		s.run(g, a)
	}
}

// room reports whether one more ghost may be kept. It requires mu held.
func (s *Shadow) room() bool {
	return !s.closed && len(s.ghosts) < cmp.Or(s.Most, mostGhosts)
}

// forget ends a ghost. It requires mu held.
func (s *Shadow) forget(g *ghost) {
	delete(s.ghosts, g)
	delete(s.leases, g.key)
}

// run keeps the lease of a ghost that runs. It requires mu held.
func (s *Shadow) run(g *ghost, a Admission) {
	g.lease, g.runs, g.renew = a.Lease, time.Now(), a.Lease.End().Sub(a.Lease.Begin())/2
	if g.plain {
		g.renew *= 2
	}
	s.await(g)
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
	var a Admission
	err := panics.Caught(func() (err error) {
		if a, err = s.Bucket.Admit(ctx, g.entity, g.request); err == nil && a.Delay > 0 {
			s.postponed(g.key.entity, a)
		}
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.ghosts[g]:
		if err == nil {
			s.forsake(g.entity, a)
		}
	case err != nil: // it is lost, as a message may be
		s.forget(g)
	case a.Delay > 0:
		g.request.Ticket = a.Ticket
		g.timer = time.AfterFunc(a.Delay, func() { s.back(g) })
	default:
		s.run(g, a)
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
	lost := !g.over && (g.plain || time.Since(g.runs) > 2*g.renew && time.Now().After(g.until)) // nobody renews the caller's lease
	lease := g.lease
	if ends || lost {
		s.forget(g)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), ghostTimeout)
	defer cancel()
	err := panics.Caught(func() (err error) {
		switch {
		case ends:
			return s.Bucket.Settle(ctx, g.entity, lease, g.cost, g.costs...) // else its lease ends by itself
		case !lost:
			lease, err = s.Bucket.Renew(ctx, g.entity, lease)
		}
		return err
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.ghosts[g]:
	case err != nil: // its caller has never settled it, or not for long
		s.forget(g)
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
		_ = panics.Caught(func() error { return s.Bucket.Cancel(ctx, entityID, a) }) // else it ends by itself
	})
}

// take removes and returns the ghost of a lease, and reports whether the ghost alone has the lease. It requires mu held.
func (s *Shadow) take(l Lease) (g *ghost, alone bool) {
	g = s.leases[keyOf(l)]
	delete(s.leases, keyOf(l))
	return g, l.l.ID < 0
}

// Settle does as Bucket.Settle. For an operation that would have been postponed it reports the duration and the cost,
// and a second call returns nil.
func (s *Shadow) Settle(ctx context.Context, entityID string, l Lease, cost int, costs ...Costs) error {
	end := time.Now()
	var err error
	other := l.entity != entityID // an error of the Bucket
	if l.l.ID >= 0 || other {
		err = s.Bucket.Settle(ctx, entityID, l, cost, costs...)
	} else if cost < 0 || cost > decision.MostUnits {
		err = fmt.Errorf("drip: settle %q: %w", entityID, ErrCost)
	} else if b, ok := s.Bucket.(interface {
		charge(*Lease, int, []Costs) (decision.Cost, error)
	}); ok {
		if _, err = b.charge(&l, cost, costs); err != nil {
			err = fmt.Errorf("drip: settle %q: %w", entityID, err)
		}
	}
	if other || errors.Is(err, ErrCost) || errors.Is(err, ErrUnit) { // the lease is still out
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g, _ := s.take(l); g != nil {
		g.over, g.took, g.cost = true, end.Sub(g.began), cost
		for _, c := range costs {
			g.costs = append(g.costs, maps.Clone(c))
		}
		if s.ghosts[g] && g.lease != (Lease{}) && g.timer.Stop() {
			s.await(g)
		}
	}
	return err
}

// Cancel does as Bucket.Cancel.
func (s *Shadow) Cancel(ctx context.Context, entityID string, a Admission) error {
	if a.Lease.entity != entityID { // an error of the Bucket, unless it is a ticket
		return s.Bucket.Cancel(ctx, entityID, a)
	}
	s.mu.Lock()
	g, alone := s.take(a.Lease)
	var real Admission
	if g != nil && s.ghosts[g] {
		g.timer.Stop() // if it is asking just now, it finds that it is gone
		s.forget(g)
		if real.Lease = g.lease; g.lease == (Lease{}) {
			real.Ticket = g.request.Ticket
		}
	}
	s.mu.Unlock()
	var errs [2]error
	if !alone {
		errs[0] = s.Bucket.Cancel(ctx, entityID, a)
	}
	if real != (Admission{}) {
		if err := s.Bucket.Cancel(ctx, g.entity, real); !errors.Is(err, ErrNoLease) {
			errs[1] = err
		}
	}
	return errors.Join(errs[:]...)
}

// Renew does as Bucket.Renew. The lease of an operation that would have been postponed never ends.
func (s *Shadow) Renew(ctx context.Context, entityID string, l Lease) (Lease, error) {
	var err error
	if l.l.ID < 0 && l.entity == entityID {
		l.l.End = time.Now().Add(ghostLease).UnixMilli()
	} else if l, err = s.Bucket.Renew(ctx, entityID, l); err != nil {
		return l, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g := s.leases[keyOf(l)]; g != nil {
		g.until = l.End()
	}
	return l, nil
}

// Throttled does as Bucket.Throttled: the provider refused a running operation, so the postponed ones wait.
func (s *Shadow) Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error {
	return s.Bucket.Throttled(ctx, entityID, retryAfter)
}

// GetDelay decides as Admit does, and returns 0 unless limits that are not on trial postpone the operation. Its token
// is a lease that nobody renews: after Options.Lease it counts as given back. Where operations take longer, use Admit
// and Renew.
func (s *Shadow) GetDelay(ctx context.Context, entityID string) (time.Duration, error) {
	a, err := s.admit(ctx, entityID, Request{}, true)
	if err != nil || a.Delay > 0 {
		return a.Delay, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plain == nil {
		s.plain = map[string][]Lease{}
	}
	if len(s.plain) > 2*s.swept+1000 {
		maps.DeleteFunc(s.plain, func(id string, _ []Lease) bool { return len(s.plainOf(id)) == 0 })
		s.swept = len(s.plain)
	}
	s.plain[entityID] = append(s.plainOf(entityID), a.Lease)
	return 0, nil
}

// plainOf returns the leases of an entity's operations of GetDelay that have not ended, the oldest first.
func (s *Shadow) plainOf(entityID string) []Lease {
	now := time.Now()
	return slices.DeleteFunc(s.plain[entityID], func(l Lease) bool { return l.End().Before(now) })
}

// ReturnToken ends the operation of the entity that GetDelay let run first.
func (s *Shadow) ReturnToken(ctx context.Context, entityID string) error {
	s.mu.Lock()
	all := s.plainOf(entityID)
	if len(all) < 2 {
		delete(s.plain, entityID)
	} else {
		s.plain[entityID] = all[1:]
	}
	s.mu.Unlock()
	if len(all) == 0 {
		return nil
	}
	l := all[0]
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

// Close ends the background work of the Shadow. Running operations may still be settled; with limits on trial their
// leases on trial end by themselves. A later Admit asks the Bucket and lets the operation run, but the Shadow does not
// follow it.
func (s *Shadow) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for g := range s.ghosts {
		g.timer.Stop()
	}
	clear(s.ghosts)
	clear(s.leases)
	return nil
}
