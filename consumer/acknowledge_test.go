package consumer

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// strict is a broker's side of a channel, as strict as a broker: a tag that is not outstanding is an error.
type strict struct {
	t           *testing.T
	mu          sync.Mutex
	outstanding map[uint64]bool
	wanted      map[uint64]bool // the deliveries that may be acknowledged by now
	frames      int
}

// newStrict is one that has sent deliveries 1 to n.
func newStrict(t *testing.T, n uint64) *strict {
	b := &strict{t: t, outstanding: map[uint64]bool{}, wanted: map[uint64]bool{}}
	for tag := range n {
		b.outstanding[tag+1] = true
	}
	return b
}

func (b *strict) Ack(tag uint64, multiple bool) error {
	runtime.Gosched() // so that others come meanwhile
	b.mu.Lock()
	defer b.mu.Unlock()
	b.frames++
	if !b.outstanding[tag] {
		b.t.Errorf("tag %d is acknowledged, which is not outstanding", tag)
	}
	for other := range b.outstanding {
		if other == tag || multiple && other < tag {
			if !b.wanted[other] {
				b.t.Errorf("delivery %d is acknowledged with tag %d, and is not over", other, tag)
			}
			delete(b.outstanding, other)
		}
	}
	return nil
}

func (b *strict) Nack(tag uint64, _, _ bool) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.outstanding[tag] {
		b.t.Errorf("tag %d is given back, which is not outstanding", tag)
	}
	delete(b.outstanding, tag)
	return nil
}

// Deliveries may end in any order: each is settled once, and none before its end.
func TestSettling(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			const n = 500
			b := newStrict(t, n)
			c := newSettling(b, rnd.IntN(20))
			var all sync.WaitGroup
			turns := make(chan struct{}, 1+rnd.IntN(16)) // that many at once, nearly in order
			for tag := range uint64(n) {
				turns <- struct{}{}
				back, delivery := rnd.IntN(20) == 0, c.received(tag+1)
				all.Go(func() {
					defer func() { <-turns }()
					for range tag % 5 {
						runtime.Gosched()
					}
					if back {
						c.giveBack(delivery)
						return
					}
					b.mu.Lock()
					b.wanted[tag+1] = true
					b.mu.Unlock()
					c.ack(delivery)
				})
			}
			all.Wait()
			if len(b.outstanding) > 0 || c.outstanding.Len() > 0 {
				t.Errorf("%d deliveries are not settled, %d are remembered", len(b.outstanding), c.outstanding.Len())
			}
		})
	}
}

// An acknowledgement waits for the acknowledgements of the next milliseconds, but for at most a part of the prefetch.
func TestSettlingGathers(t *testing.T) {
	for name, c := range map[string]struct {
		over   int           // one a millisecond
		frames int           // in which they are acknowledged
		takes  time.Duration // from the first
	}{
		"one":           {1, 1, gather},
		"a few":         {4, 1, gather},
		"enough":        {5, 1, 4 * time.Millisecond},
		"enough, twice": {10, 2, 9 * time.Millisecond},
		"more":          {7, 2, 5*time.Millisecond + gather},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newStrict(t, 0)
				s := newSettling(b, 5)
				var all sync.WaitGroup
				began := time.Now()
				for tag := range uint64(c.over) {
					b.mu.Lock()
					b.outstanding[tag+1], b.wanted[tag+1] = true, true
					b.mu.Unlock()
					delivery := s.received(tag + 1)
					all.Go(func() { s.ack(delivery) })
					synctest.Wait()
					if int(tag)+1 < c.over {
						time.Sleep(time.Millisecond)
					}
				}
				all.Wait()
				if took := time.Since(began); b.frames != c.frames || took != c.takes || len(b.outstanding) > 0 {
					t.Errorf("%d frames after %v, %d are not settled; want %d after %v", b.frames, took, len(b.outstanding), c.frames, c.takes)
				}
			})
		})
	}
}

type broken struct{ error }

func (b broken) Ack(uint64, bool) error        { return b }
func (b broken) Nack(uint64, bool, bool) error { return b }

func TestSettlingFails(t *testing.T) {
	failure := broken{errors.New("closed")}
	c := newSettling(failure, 1)
	for tag := range uint64(2) {
		if err := errors.Join(c.ack(c.received(2*tag+1)), c.giveBack(c.received(2*tag+2))); !errors.Is(err, failure) {
			t.Errorf("got %v, want the failure", err)
		}
	}
}
