package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip/internal/sleep"
)

// places bounds how many messages are with the limiter or in their handlers at once. An entity may take three times as many
// places as it leaves free. So an entity whose operations hang takes three quarters, a second one three quarters of the
// rest, and the next entity still finds a place. Make them with newPlaces.
type places struct {
	most int

	mu      sync.Mutex
	taken   int
	parties map[string]*party
	line    []*party // parties with waiters, in the order in which they are served

	// limiting counts messages that wait for an answer of the limiter. The limiter may fail for some entities and answer for
	// others, so an eighth of the places is left for the others.
	limiting atomic.Int64
}

// party is an entity that has places, or waits for one.
type party struct {
	taken   int
	moved   time.Time // when it took its first place or gave back its last
	waiters []chan struct{}
}

const (
	perFree = 3

	// stallAfter is how long an entity with places waits for one more while none of its operations ends. After that its
	// messages wait elsewhere.
	stallAfter = time.Second

	// inHand bounds the time in hand of a message that waits for a place, for the limiter or to be published. The broker
	// bounds it, too, with its consumer_timeout of 30 minutes, and then closes the whole channel.
	inHand = 5 * time.Minute
)

// errCrowded is the error of a message that should wait elsewhere.
var errCrowded = errors.New("too many messages wait in hand")

// crowdedDelay is how long such a message waits elsewhere, without the jitter.
const crowdedDelay = 5 * time.Second

// crowdedFor returns how long a message waits elsewhere. It comes back before it expires, and before its deadline if it has one.
func crowdedFor(m *message, deadline time.Time) time.Duration {
	end := time.UnixMilli(m.expires())
	if !deadline.IsZero() && deadline.Before(end) {
		end = deadline
	}
	return half(sleep.Jitter(crowdedDelay), end)
}

// half returns a delay, or half of the time until end if that is shorter, so that a message asks again before its end.
func half(delay time.Duration, end time.Time) time.Duration {
	return min(delay, max(time.Until(end)/2, leastHalf))
}

const leastHalf = 250 * time.Millisecond

func newPlaces(most int) *places { return &places{most: most, parties: map[string]*party{}} }

// enter takes a place for the entity. It returns errCrowded for a message that should wait elsewhere, or the context's
// error. After nil the caller must call leave.
func (p *places) enter(ctx context.Context, entity string) error {
	p.mu.Lock()
	who := p.parties[entity]
	if who == nil {
		who = &party{}
		p.parties[entity] = who
	}
	if len(who.waiters) == 0 && p.fits(who) {
		p.take(who)
		p.mu.Unlock()
		return nil
	}
	if len(who.waiters) == 0 {
		p.line = append(p.line, who)
	}
	turn := make(chan struct{})
	who.waiters = append(who.waiters, turn)
	p.mu.Unlock()
	err := p.wait(ctx, who, turn)
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(who.waiters, turn); i >= 0 { // else it was served meanwhile
		who.waiters = slices.Delete(who.waiters, i, i+1)
		if len(who.waiters) == 0 {
			p.line = slices.DeleteFunc(p.line, func(o *party) bool { return o == who })
		}
		p.tidy(entity, who)
		return err
	}
	return nil
}

// wait waits for the party's turn.
func (p *places) wait(ctx context.Context, who *party, turn <-chan struct{}) error {
	began := time.Now()
	for {
		p.mu.Lock()
		left := inHand - time.Since(began)
		if who.taken > 0 {
			left = min(left, stallAfter-time.Since(who.moved))
		}
		p.mu.Unlock()
		if left <= 0 {
			return errCrowded
		}
		select {
		case <-turn:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(left, stallAfter)): // the party may take its first place meanwhile
		}
	}
}

// leave gives a place of the entity back and serves the next waiters.
func (p *places) leave(entity string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who := p.parties[entity]
	who.taken--
	who.moved = time.Now()
	p.taken--
	for i := 0; i < len(p.line) && p.taken < p.most; {
		next := p.line[i]
		if !p.fits(next) {
			i++
			continue
		}
		p.take(next)
		close(next.waiters[0])
		next.waiters = next.waiters[1:]
		p.line = slices.Delete(p.line, i, i+1)
		if len(next.waiters) > 0 {
			p.line = append(p.line, next)
		}
	}
	p.tidy(entity, who)
}

// count returns how many messages have a place: limiting wait for the limiter, others do not.
func (p *places) count() (others, limiting int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limiting = int(p.limiting.Load())
	return p.taken - limiting, limiting
}

// fits, take and tidy require mu held.

// fits counts the places with the one to be taken. The first place is for any entity.
func (p *places) fits(who *party) bool {
	free := p.most - p.taken - 1
	return free >= 0 && (who.taken == 0 || who.taken/perFree < free) // who.taken+1 <= perFree*free, which may overflow
}

func (p *places) take(who *party) {
	if who.taken == 0 {
		who.moved = time.Now()
	}
	who.taken++
	p.taken++
}

func (p *places) tidy(entity string, who *party) {
	if who.taken == 0 && len(who.waiters) == 0 && p.parties[entity] == who {
		delete(p.parties, entity)
	}
}

// rooms are all places that a message needs. Nil is none.
type rooms []*places

func (r rooms) enter(ctx context.Context, entity string) error {
	for i, p := range r {
		if err := p.enter(ctx, entity); err != nil {
			r[:i].leave(entity)
			return fmt.Errorf("wait for a place: %w", err)
		}
	}
	return nil
}

func (r rooms) leave(entity string) {
	for _, p := range r {
		p.leave(entity)
	}
}

// limited adds n to the number of messages that wait for the limiter.
func (r rooms) limited(n int64) {
	for _, p := range r {
		p.limiting.Add(n)
	}
}

// crowded reports whether too many messages wait for the limiter.
func (r rooms) crowded() bool {
	return slices.ContainsFunc(r, func(p *places) bool { return p.limiting.Load() > int64(p.most-max(p.most/8, 1)) })
}
