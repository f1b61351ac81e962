package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drip-go/drip/storage"
)

// A request is a call of a Limiter. The Limiter decides requests in rounds, one round at a time: a round reads the
// limiter, decides all changes, and then the requests that wait for admission, in their order. In memory a round runs
// under the lock. With a storage it is one Get and at most one Set, whatever the number of requests. A goroutine makes
// the rounds and lives as long as there is something to do: a caller whose context ends must not break off the round of
// the others.
type request struct {
	// For a change, which does not depend on the owed units.
	change func(next, now instant) (instant, error)

	// For a request for admission.
	units    float64
	estimate bool          // the units are the average cost of Do
	try      bool          // the first round admits or refuses it
	timeout  time.Duration // 0: none
	always   bool          // charge it even after its timeout
	arrived  time.Time
	place    int64         // in the queue
	patience time.Duration // until its timeout or the end of its context
	waits    bool          // a round has not admitted it

	gone     bool // its context has ended: no caller waits for the answer
	answered bool
	done     chan struct{} // closed with the answer, if that was not at once

	// The answer. Until answered is set it may come from a round that fails.
	waited  time.Duration
	charged float64 // in seconds; 0 if it is refused
	err     error
}

// A vacancy is the place of a caller that gave up and may ask again.
type vacancy struct {
	place    int64
	patience time.Duration
	since    time.Time
}

const (
	keepPlace   = time.Second           // for a caller that gave up
	holdTurn    = 10 * time.Millisecond // for a caller that gave up
	askAgain    = 100 * time.Millisecond
	storageTime = 10 * time.Second // then the storage counts as broken: callers may have no deadline

	// The wait before a round is tried again because another process was first is random, up to a bound that doubles.
	firstBackoff   = time.Millisecond
	longestBackoff = 100 * time.Millisecond
)

const never = time.Duration(math.MaxInt64)

var errRefused = errors.New("not now")

// change calls f in a round to change the limiter, or to read it.
func (l *Limiter) change(ctx context.Context, f func(next, now instant) (instant, error)) error {
	return l.submit(ctx, &request{change: f})
}

// admit waits until r is admitted or refused, or its context ends.
func (l *Limiter) admit(ctx context.Context, r *request) error {
	limit := l.Limit()
	if err := check(r.units, limit); err != nil {
		return err
	}
	if limit == Unlimited {
		return ctx.Err()
	}
	r.arrived = time.Now()
	r.patience = never
	if r.timeout > 0 {
		r.patience = r.timeout
	}
	if end, ok := ctx.Deadline(); ok {
		r.patience = min(r.patience, end.Sub(r.arrived))
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
	if !r.waits {
		l.serve()
	}
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
			// Not refused here: its turn may have come in time without a round yet.
			l.mu.Lock()
			if !r.answered { // by a round for another caller
				l.serve()
			}
			l.mu.Unlock()
		case <-ctx.Done():
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.leave(r, ctx.Err())
		}
	}
}

// enqueue puts r last. But r takes the place of a caller that gave up just now if it is as patient as that caller, and
// if later requests of another patience wait. l.mu is held here and below.
func (l *Limiter) enqueue(r *request) {
	for len(l.vacancies) > 0 && r.arrived.Sub(l.vacancies[0].since) > keepPlace {
		l.vacancies = l.vacancies[1:]
	}
	l.places++
	r.place = l.places
	i := slices.IndexFunc(l.vacancies, func(v vacancy) bool { return alike(r.patience, v.patience) })
	if i >= 0 && !r.try {
		place := l.vacancies[i].place
		copy(l.vacancies[1:], l.vacancies[:i]) // there may be thousands behind it
		l.vacancies = l.vacancies[1:]
		if l.overtaken(place, r.patience) {
			r.place = place
		}
	}
	i, _ = slices.BinarySearchFunc(l.queue, r.place, func(q *request, place int64) int { return cmp.Compare(q.place, place) })
	l.queue = slices.Insert(l.queue, i, r)
	l.tail.add(r, r.place == l.places)
	// It has to wait if the requests before it do, and there is a timer for them. In a storage others may have given
	// units back.
	for i > 0 && l.queue[i-1].gone {
		i--
	}
	r.waits = l.storage == nil && !r.try && i > 0 && l.queue[i-1].waits
}

// overtaken reports whether a request of another patience waits behind a place.
func (l *Limiter) overtaken(place int64, patience time.Duration) bool {
	if place >= l.tail.place && alike(patience, l.tail.least) && alike(patience, l.tail.most) {
		return false
	}
	for _, q := range slices.Backward(l.queue) {
		if q.place <= place {
			break
		}
		if !q.gone && !alike(q.patience, patience) {
			return true
		}
	}
	return false
}

// A tail is the requests behind a place. Their patiences are between least and most, which are alike: thousands of calls may ask again at
// once.
type tail struct {
	place       int64
	least, most time.Duration
}

// add adds r to the queue's tail, or shortens that: with last nothing is behind r.
func (t *tail) add(r *request, last bool) {
	least, most := min(t.least, r.patience), max(t.most, r.patience)
	switch {
	case r.place <= t.place:
	case alike(least, most):
		t.least, t.most = least, most
	case last:
		*t = tail{r.place - 1, r.patience, r.patience}
	default:
		t.place = r.place
	}
}

// leave takes back the request of a caller whose context has ended, and returns the caller's error. Only when half of the
// requests are gone are they removed: thousands of callers may leave at once.
func (l *Limiter) leave(r *request, err error) error {
	if r.answered {
		return r.err
	}
	r.gone = true
	if l.gone++; l.gone > (len(l.changes)+len(l.queue))/2 {
		l.tidy()
	}
	if r.change != nil {
		return err
	}
	r.waited = time.Since(r.arrived)
	if errors.Is(err, context.DeadlineExceeded) {
		l.vacate(r)
	}
	return err
}

// tidy removes the requests that are over.
func (l *Limiter) tidy() {
	over := func(r *request) bool { return r.answered || r.gone }
	l.changes, l.queue, l.gone = slices.DeleteFunc(l.changes, over), slices.DeleteFunc(l.queue, over), 0
	l.rest()
}

// vacate keeps the place of r for a while.
func (l *Limiter) vacate(r *request) {
	l.vacancies = append(l.vacancies, vacancy{r.place, r.patience, time.Now()})
}

// held returns how long to hold the turn of r for a less patient caller that was before it and has given up while it
// waited. The time is short enough that no units saved meanwhile are lost.
func (l *Limiter) held(r *request, now time.Time) (d time.Duration) {
	hold := min(holdTurn, l.duration/2)
	for _, v := range slices.Backward(l.vacancies) {
		left := v.since.Add(hold).Sub(now)
		if left <= 0 {
			break
		}
		if v.place < r.place && r.arrived.Before(v.since) && longer(r.patience, v.patience) {
			d = max(d, left)
		}
	}
	return d
}

// longer reports whether p is longer than q by more than a twentieth. If neither is, they are alike.
func longer(p, q time.Duration) bool { return p-p/20 > q }

func alike(p, q time.Duration) bool { return !longer(p, q) && !longer(q, p) }

// serve makes rounds until the next admission depends on time alone; in memory before it returns.
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
		for _, r := range l.answers {
			l.answer(r)
		}
		l.tidy()
		l.sleep(s, next)
		return
	}
}

// plan decides all requests by a reading of the limiter. The requests in l.answers are decided as soon as next is
// stored.
func (l *Limiter) plan(s reading) (next instant) {
	next = s.next
	clear(l.answers)
	l.answers = l.answers[:0]
	for _, r := range l.changes {
		if r.gone {
			continue
		}
		next, r.err = r.change(next, s.now)
		l.answers = append(l.answers, r)
	}
	turn := true // no request in front has to wait
	for _, r := range l.queue {
		if r.gone {
			continue
		}
		r.charged = 0
		over := l.over(next, s.now)
		deadline := r.arrived.Add(r.timeout)
		inTime := r.timeout == 0 || s.at.Add(over).Before(deadline)
		turn = turn && over <= 0 && inTime && l.held(r, s.at) == 0
		switch {
		case turn:
			next, r.err = l.take(r, next, s.now)
			r.waited = 0
			if r.waits {
				r.waited = s.at.Sub(r.arrived)
			}
		case r.try:
			r.err = errRefused
		case r.timeout > 0 && !s.at.Before(deadline):
			r.err = fmt.Errorf("%w after %v", ErrTimeout, r.timeout)
			r.waited = r.timeout
			if r.always {
				var err error
				if next, err = l.take(r, next, s.now); err != nil {
					r.err = err
				}
			}
		default:
			r.waits = true
			continue
		}
		l.answers = append(l.answers, r)
	}
	return next
}

// over returns how long the debt will last; below zero it is the time since the end of the debt.
func (l *Limiter) over(next, now instant) time.Duration {
	over := next.sub(now)
	if l.limit == Unlimited {
		over = min(0, over)
	}
	return over
}

func (l *Limiter) take(r *request, next, now instant) (instant, error) {
	if l.limit == Unlimited {
		return next, nil
	}
	seconds := r.units / l.limit
	if r.estimate {
		seconds = min(l.expected()/l.limit, mostSeconds)
	}
	next, err := l.charge(next, now, seconds)
	if err == nil {
		r.charged = seconds
	}
	return next, err
}

// answer lets the caller of r go.
func (l *Limiter) answer(r *request) {
	r.answered = true
	if r.done != nil {
		close(r.done)
	}
	switch {
	case r.gone && r.charged != 0: // no caller waited for it
		l.changes = append(l.changes, &request{
			change: func(next, now instant) (instant, error) { return l.charge(next, now, -r.charged) },
		})
		l.again = true
	case r.timeout > 0 && r.err != nil && !r.always && !r.gone:
		l.vacate(r)
	}
}

// fail answers all requests with an error of the storage.
func (l *Limiter) fail(err error) {
	for _, r := range slices.Concat(l.changes, l.queue) {
		r.err = fmt.Errorf("%w: %q: %w", ErrStorage, l.key, err)
		r.answered = true
		if r.done != nil {
			close(r.done)
		}
	}
	l.tidy()
}

// rest stops the timer when no request waits, so that the timer does not keep an unused Limiter in memory until it
// would fire.
func (l *Limiter) rest() {
	if len(l.queue) == 0 && l.timer != nil {
		l.timer.Stop()
	}
}

// sleep sets the timer for the next round.
func (l *Limiter) sleep(s reading, next instant) {
	if len(l.queue) == 0 {
		return
	}
	wake := l.over(next, s.now)
	if wake <= 0 {
		wake = l.held(l.queue[0], s.at)
	}
	if wake <= 0 { // a request that was in front has given up in this round
		l.again = true
		return
	}
	if l.storage != nil { // where others may give back
		wake = min(wake, max(wake/10, askAgain))
	}
	wake = time.Until(s.at.Add(wake))
	if l.timer != nil {
		l.timer.Reset(wake)
		return
	}
	l.timer = time.AfterFunc(wake, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.serve()
	})
}
