package limiter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drip-go/drip/storage"
)

// Everything that a Limiter is asked is a request, and requests are decided in rounds, one round at a time: with what is
// known of the limiter first all changes, then those that wait to be admitted, in their order. In memory a round is a
// matter of the lock. With a storage it is one Get and at most one Set, whatever the number of requests, made by a
// goroutine that lives as long as there is something to do: a caller whose context ends must not break off the round of
// the others.
type request struct {
	// Of a change, which is made whatever is owed.
	change func(next, now instant) (instant, error)

	// Of one that waits to be admitted.
	units    float64
	estimate bool          // the units are what Do costs on average
	timeout  time.Duration // 0: none
	always   bool          // it is charged after its timeout too
	arrived  time.Time
	deadline time.Time     // its timeout's or its context's; zero: none
	patience time.Duration // until the deadline
	final    bool          // the next round admits or refuses it
	seen     time.Time     // when a round did not admit it last

	gone     bool // its context has ended: nobody waits for the answer
	kept     bool // its caller has given up: it is only his place in the queue
	answered bool
	done     chan struct{} // closed when it is answered, if that was not at once

	// The answer. Until answered is set it may be of a round that comes to nothing.
	waited  time.Duration
	charged float64 // in seconds
	err     error
}

const (
	keepPlace   = time.Second           // for him who gave up
	holdTurn    = 10 * time.Millisecond // for him who gave up
	askAgain    = 100 * time.Millisecond
	storageTime = 10 * time.Second // then the storage counts as broken: its callers may have no deadline

	// Between two tries of a round that another process came before: at random up to a bound that doubles.
	firstBackoff   = time.Millisecond
	longestBackoff = 100 * time.Millisecond
)

const never = time.Duration(math.MaxInt64)

var errRefused = errors.New("not now")

// change has f change the limiter, or read it.
func (l *Limiter) change(ctx context.Context, f func(next, now instant) (instant, error)) error {
	return l.submit(ctx, &request{change: f})
}

// admit waits until r is admitted or refused, or its context ends.
func (l *Limiter) admit(ctx context.Context, r *request) error {
	if err := check(r.units); err != nil {
		return err
	}
	if l.Limit() == Unlimited {
		return ctx.Err()
	}
	r.arrived = time.Now()
	r.patience = never
	if r.timeout > 0 {
		r.patience = r.timeout
		r.deadline = r.arrived.Add(r.timeout)
	}
	if end, ok := ctx.Deadline(); ok && end.Sub(r.arrived) < r.patience && !r.final {
		r.patience = end.Sub(r.arrived)
		r.deadline = end
	}
	return l.submit(ctx, r)
}

func (l *Limiter) submit(ctx context.Context, r *request) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	if r.change != nil {
		l.changes = append(l.changes, r)
	} else {
		l.enqueue(r)
	}
	l.serve()
	if r.answered {
		l.mu.Unlock()
		return r.err
	}
	r.done = make(chan struct{})
	l.mu.Unlock()

	var timeout <-chan time.Time
	if r.timeout > 0 {
		t := time.NewTimer(time.Until(r.arrived.Add(r.timeout)))
		defer t.Stop()
		timeout = t.C
	}
	for {
		select {
		case <-r.done:
			return r.err
		case <-timeout:
			// Not refused here: its turn may have come in time, and only not been seen yet.
			l.mu.Lock()
			r.final = true
			l.serve()
			l.mu.Unlock()
		case <-ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.leave(r, ctx.Err())
		}
	}
}

// enqueue gives r the first place that is kept for somebody as impatient, or the last. l.mu is held here and below.
func (l *Limiter) enqueue(r *request) {
	if l.places && !r.deadline.IsZero() {
		for i, q := range l.queue {
			if q.kept && r.patience/2 <= q.patience {
				l.queue[i] = r
				return
			}
		}
	}
	l.queue = append(l.queue, r)
}

// leave is for a caller whose context has ended, and returns what he is told.
func (l *Limiter) leave(r *request, err error) error {
	switch {
	case r.answered && (r.change != nil || r.err != nil):
		return r.err
	case r.answered:
		l.giveBack(r)
	case r.change == nil && errors.Is(err, context.DeadlineExceeded):
		l.keep(r)
	}
	r.gone = true
	r.waited = time.Since(r.arrived)
	l.tidy(time.Now())
	return err
}

// giveBack undoes an admission that nobody waited for.
func (l *Limiter) giveBack(r *request) {
	if r.charged != 0 {
		l.changes = append(l.changes, &request{
			change: func(next, now instant) (instant, error) { return l.charge(next, now, -r.charged) },
		})
		l.serve()
	}
}

// keep keeps the place of r for him if somebody much more patient has waited lately, who would be before him every time
// otherwise. Those who are alike just go in the order they come.
func (l *Limiter) keep(r *request) {
	r.kept = r.patience < l.patience/2 && time.Since(l.patientAt) < keepPlace
	l.places = l.places || r.kept
}

// tidy drops from the queue who waits no more and has no place kept.
func (l *Limiter) tidy(now time.Time) {
	l.places = false
	l.queue = slices.DeleteFunc(l.queue, func(r *request) bool {
		if r.kept && now.Before(r.deadline.Add(keepPlace)) {
			l.places = true
			return false
		}
		return r.answered || r.gone
	})
}

// serve has rounds made until only time can help; in memory before it returns.
func (l *Limiter) serve() {
	l.again = true
	if l.serving {
		return
	}
	l.serving = true
	if l.storage == nil {
		l.rounds()
		return
	}
	go func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.rounds()
	}()
}

func (l *Limiter) rounds() {
	for l.again {
		l.again = false
		l.round()
	}
	l.serving = false
}

// round decides once. With a storage it lets go of l.mu for the time that takes.
func (l *Limiter) round() {
	for backoff := firstBackoff; len(l.changes)+len(l.queue) > 0; backoff = min(2*backoff, longestBackoff) {
		s, err := l.load()
		if err != nil {
			l.fail(err)
			return
		}
		changes := len(l.changes)
		next := l.plan(s)
		if next != s.next {
			err = l.store(s, next)
		}
		if errors.Is(err, storage.ErrConflict) {
			l.mu.Unlock()
			time.Sleep(rand.N(backoff))
			l.mu.Lock()
			continue
		}
		if err != nil {
			l.fail(err)
			return
		}
		l.changes = slices.Delete(l.changes, 0, changes)
		for _, r := range l.answered {
			l.answer(r)
		}
		l.tidy(s.at)
		l.sleep(s, next)
		return
	}
}

// plan decides about all requests by what was read of the limiter: those in l.answered are, provided that next is
// stored.
func (l *Limiter) plan(s reading) (next instant) {
	next = s.next
	clear(l.answered)
	l.answered = l.answered[:0]
	for _, r := range l.changes {
		if !r.gone {
			next, r.err = r.change(next, s.now)
			l.answered = append(l.answered, r)
		}
	}
	var (
		left    time.Time // when he gave up whose turn it is, and who may come back for it
		heldFor = never   // his patience
		waiting = false   // somebody is in front
	)
	for _, r := range l.queue {
		over := l.over(next, s.now)
		switch free := s.at.Add(over); {
		case over > 0:
		case r.kept || r.late(free):
			if s.at.Before(r.deadline.Add(l.hold())) {
				heldFor = min(heldFor, r.patience)
				if left.Before(r.deadline) {
					left = r.deadline
				}
			}
		// Held back is who waited beside him and is much more patient, and who is behind such a one.
		case r.patience/2 <= heldFor || r.final && r.timeout > 0 || !waiting && !r.arrived.Before(left):
			next, r.err = l.take(r, next, s.now)
			if r.waited = 0; !r.seen.IsZero() {
				r.waited = s.at.Sub(r.arrived)
			}
			l.answered = append(l.answered, r)
			continue
		}
		if r.kept {
			continue
		}
		if !r.final {
			waiting = true
			continue
		}
		r.err = errRefused
		if r.timeout > 0 {
			r.waited = r.timeout
			r.err = fmt.Errorf("%w after %v", ErrTimeout, r.timeout)
		}
		if r.always {
			var err error
			if next, err = l.take(r, next, s.now); err != nil {
				r.err = err
			}
		}
		l.answered = append(l.answered, r)
	}
	return next
}

// take charges r.
func (l *Limiter) take(r *request, next, now instant) (instant, error) {
	units := r.units
	if r.estimate {
		units = l.expected()
	}
	r.charged = units / l.limit
	return l.charge(next, now, r.charged)
}

// answer lets the caller of r go.
func (l *Limiter) answer(r *request) {
	r.answered = true
	if r.done != nil {
		close(r.done)
	}
	switch {
	case r.change != nil:
	case r.gone:
		if r.err == nil {
			l.giveBack(r)
		}
	case r.err == nil:
		// If he took the turn of somebody who is about to come back, that one gets his.
		i := slices.Index(l.queue, r)
		j := slices.IndexFunc(l.queue, func(q *request) bool { return !q.answered || q.kept })
		if 0 <= j && j < i {
			l.queue[i], l.queue[j] = l.queue[j], r
		}
	case r.timeout > 0:
		l.keep(r)
	}
}

// fail answers all requests with an error of the storage.
func (l *Limiter) fail(err error) {
	for _, r := range slices.Concat(l.changes, l.queue) {
		if !r.gone && !r.answered {
			r.err = fmt.Errorf("%w: %w", ErrStorage, err)
			r.answered = true
			if r.done != nil {
				close(r.done)
			}
		}
	}
	l.changes, l.queue = nil, nil
}

// sleep sets the timer for the next round, if time brings one about, and notes who waits.
func (l *Limiter) sleep(s reading, next instant) {
	wake, most := never, time.Duration(0)
	over := l.over(next, s.now)
	free := s.at.Add(over)
	for _, r := range l.queue {
		late := r.kept || r.late(free)
		switch {
		case over > 0 && !late:
			wake = over
		case over <= 0 && late:
			if turn := r.deadline.Add(l.hold()).Sub(s.at); turn > 0 {
				wake = min(wake, turn)
			}
		}
		if r.kept {
			continue
		}
		r.seen = s.at
		most = max(most, r.patience)
		if l.storage != nil { // where others may give back
			wake = min(wake, max(over/10, askAgain))
		}
	}
	if most > l.patience/2 || s.at.Sub(l.patientAt) > keepPlace {
		l.patience, l.patientAt = most, s.at
	}
	switch {
	case l.timer == nil && wake != never:
		l.timer = time.AfterFunc(time.Until(s.at.Add(wake)), func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.serve()
		})
	case wake != never:
		l.timer.Reset(time.Until(s.at.Add(wake)))
	case l.timer != nil:
		l.timer.Stop()
	}
}

// over returns for how long something is owed yet; less than zero: since when nothing is.
func (l *Limiter) over(next, now instant) time.Duration {
	if l.limit == Unlimited {
		return min(0, next.sub(now))
	}
	return next.sub(now)
}

// hold is for how long a turn is held for somebody: not so long that what is saved meanwhile is lost.
func (l *Limiter) hold() time.Duration { return min(holdTurn, l.duration/2) }

// turn returns since when it is the turn of r, if nothing is owed since free: what was owed before may have been given back.
func (r *request) turn(free time.Time) time.Time {
	if free.Before(r.seen) {
		return r.seen
	}
	return free
}

// late reports whether that turn is too late.
func (r *request) late(free time.Time) bool {
	return !r.deadline.IsZero() && !r.turn(free).Before(r.deadline)
}
