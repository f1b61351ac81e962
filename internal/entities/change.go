package entities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Subject is an entity that is to be changed. It is not safe for concurrent use.
type Subject struct {
	*Report // of before
	state   decision.State
	storage storage.Atomic
}

// Open reads an entity that is to be changed. Without its limits nothing of them is in the Report.
func Open(ctx context.Context, s storage.Storage, entity string) (*Subject, error) {
	atomic, ok := s.(storage.Atomic)
	if !ok {
		return nil, errors.New("this storage cannot change its entities")
	}
	e, err := Read(ctx, s, entity)
	if err != nil {
		return nil, err
	}
	r, err := ignorant().Report(ctx, e)
	if err != nil {
		return nil, err
	}
	return &Subject{r, e.State, atomic}, nil
}

// ignorant is a Judge that knows no limits.
var ignorant = sync.OnceValue(func() *Judge {
	j, err := NewJudge(nil, nil)
	if err != nil {
		panic(err) // its options are constant
	}
	return j
})

// Pause lets nothing of the entity run for the time d. It reports whether that changes anything: a closing that ends
// later stays, perhaps the provider has asked for it.
func (e *Subject) Pause(ctx context.Context, d time.Duration) (changed bool, err error) {
	if e.ClosedUntil.After(e.Time.Add(d)) {
		return false, nil
	}
	return true, e.do(ctx, decision.Pause, d)
}

// Resume ends what has closed the entity. It reports whether anything had.
func (e *Subject) Resume(ctx context.Context) (changed bool, err error) {
	if e.ClosedUntil.IsZero() {
		return false, nil
	}
	return true, e.do(ctx, decision.Resume, 0)
}

// Reset takes back all tokens and forgets all tickets. It reports whether anything is stored of the entity.
func (e *Subject) Reset(ctx context.Context) (changed bool, err error) {
	if !e.Known {
		return false, nil
	}
	return true, e.do(ctx, decision.Reset, 0)
}

// do changes the entity. It does not know the limits of its owners, and with others it would count its capacity wrongly. So
// it says that the limits are those of the last decision and that it is the time of that decision: then nothing has to be
// counted. The entity is kept for two years, or for as long as its owners say with their next decision.
//
// Of an entity that is not stored, only the closing matters: its owners cut the capacity to what they allow.
func (e *Subject) do(ctx context.Context, kind decision.Kind, d time.Duration) error {
	l := decision.Limits{
		Windows: []decision.Window{{Size: decision.MostUnits, Rate: decision.MostUnits, Interval: 1}},
		Tokens:  1, Guess: 1, Lease: 1, MaxLease: 1,
	}
	l.Ready()
	op := decision.Op{Kind: kind, Now: decision.OwnClock, For: min(int64((d+time.Millisecond-1)/time.Millisecond), decision.MostTime/2)}
	if e.Known {
		l.Print, l.Fill = e.state.Print, 2*366*24*time.Hour.Milliseconds()
		now := e.Time.UnixMilli()
		op.Now = min(e.state.Now, now) // not above: Reset puts a time right that is ahead of the clock
		op.For += max(0, now-e.state.Now)
	}
	if _, err := e.storage.Do(ctx, e.Entity, &l, nil, op); err != nil {
		return fmt.Errorf("%q: %w", e.Entity, err)
	}
	return nil
}

// Names are the stored entities whose names begin with prefix, without shared limits. An entity that is stored later is not
// among them.
func Names(ctx context.Context, s storage.Storage, prefix string) (names []string, err error) {
	lister, ok := s.(storage.Lister)
	if !ok {
		return nil, errors.New("this storage cannot list its entities")
	}
	seen := map[string]bool{} // a storage may tell twice
	err = lister.List(ctx, func(e storage.Entry) error {
		if _, shared := SharedLimit(e.Key); strings.HasPrefix(e.Key, prefix) && !shared && !seen[e.Key] {
			seen[e.Key] = true
			names = append(names, e.Key)
		}
		return nil
	})
	return names, err
}

// mostFailures is after how many ChangeAll gives up: a server that is gone is not asked about all.
const mostFailures = 100

// ChangeAll opens each of the entities and has change change it, some at a time. It goes on after an error, up to
// mostFailures, and tells how many were changed, how many failed or were left, and the first error.
func ChangeAll(ctx context.Context, s storage.Storage, names []string, change func(context.Context, *Subject) (bool, error)) (changed, failed int, err error) {
	const together = 16
	var (
		mu sync.Mutex
		wg sync.WaitGroup
		in = make(chan string)
	)
	for range min(together, len(names)) {
		wg.Go(func() {
			for name := range in {
				e, failure := Open(ctx, s, name)
				done := false
				if failure == nil {
					done, failure = change(ctx, e)
				}
				mu.Lock()
				switch {
				case failure != nil:
					failed++
					if err == nil {
						err = failure
					}
				case done:
					changed++
				}
				mu.Unlock()
			}
		})
	}
	gaveUp := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return failed >= mostFailures
	}
	left := 0
	for i, name := range names {
		if gaveUp() {
			left = len(names) - i
			break
		}
		in <- name
	}
	close(in)
	wg.Wait()
	return changed, failed + left, err
}
