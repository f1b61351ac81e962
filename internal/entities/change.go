package entities

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/panics"
	"github.com/drip-go/drip/storage"
)

// Subject is an entity that is to be changed. It is not safe for concurrent use.
type Subject struct {
	*Report // of before
	bucket  *drip.Bucket
}

// Postponed reports whether operations were postponed until the end of the closing or later: no Resume brings their messages back
// earlier.
func (e *Subject) Postponed() bool {
	return !e.ClosedUntil.IsZero() && !e.Waiting.Before(e.ClosedUntil)
}

// Open reads an entity, or a shared limit by its ID, to change it. Its limits are the stored ones.
func Open(ctx context.Context, s storage.Storage, entity string) (*Subject, error) {
	e, err := Read(ctx, s, entity)
	if err != nil {
		return nil, err
	}
	r, err := ignorant().Report(ctx, e)
	if err != nil {
		return nil, err
	}
	limit := limitOf(&e)
	stored := func(context.Context, string) (drip.Limit, error) { return limit, nil }
	o := drip.Options{
		Storage: s, Limits: stored, SharedLimits: stored, // without a Start: in memory nobody knows what ran before
		Shared: map[string]drip.Limit{"\x00": {Windows: units}}, // for their numbers: no change is within it
	}
	if name, ok := SharedLimit(entity); ok {
		o.Shared[name] = drip.Limit{Concurrency: 1}
	}
	b, err := drip.New(o)
	return &Subject{r, b}, err
}

// limitOf is the limit of the last decision, without the pin. If it is not known, it is a limit that limits nothing.
// Then only an addition to it matters, such as a closing, and the owners cut the capacity to their limit.
//
// A window of a calendar is the one of the entry's time, as the owners have it: its days count as equally long.
func limitOf(e *storage.Entry) (limit drip.Limit) {
	l, _ := e.State.Limits()
	for _, w := range l.Windows {
		if w.Series != 0 {
			w.Offset = w.Next(e.Time.UnixMilli()) - w.Interval
		}
		limit.Windows = append(limit.Windows, window(w))
	}
	first := limit.Windows[0]
	limit.Size, limit.RefreshRate, limit.RefreshInterval, limit.Align, limit.Unit = first.Size, first.RefreshRate, first.RefreshInterval, first.Align, first.Unit
	limit.Windows, limit.Concurrency = limit.Windows[1:], int(l.Tokens)
	limit.WaitForToken = time.Duration(l.Guess) * time.Millisecond
	return limit
}

func window(w decision.Window) drip.Window {
	t := drip.Window{Size: int(w.Size), RefreshRate: int(w.Rate), RefreshInterval: time.Duration(w.Interval) * time.Millisecond}
	if w.Offset != 0 {
		t.Align = drip.StartingAt(time.UnixMilli(w.Offset))
	}
	if w.Series != 0 {
		// A number that no Bucket has stored changes nothing.
		_ = t.Align.UnmarshalText(fmt.Appendf(nil, "%s %d", time.UnixMilli(w.Offset).UTC().Format(time.RFC3339Nano), w.Series))
	}
	if w.Unit > 0 {
		t.Unit = units[w.Unit-1].Unit
	}
	return t
}

// units names all units that a Bucket may have, in the order of their numbers: the storage does not hold the owners' names.
var units = []drip.Window{
	{Size: 1, RefreshInterval: time.Second, Unit: "unit 1"}, {Size: 1, RefreshInterval: time.Second, Unit: "unit 2"},
	{Size: 1, RefreshInterval: time.Second, Unit: "unit 3"},
}

// numbered is an Options.Shared with all units: a Bucket numbers the units of its Options, and Limits may then return them. No
// operation is within it.
var numbered = map[string]drip.Limit{"units": {Windows: units, Shadow: true}}

// ignorant is a Judge that is given no limits.
var ignorant = sync.OnceValue(func() *Judge {
	j, err := NewJudge(nil, nil)
	if err != nil {
		panic(err) // its options are constant
	}
	return j
})

// Longest is the longest time that a closing or a pin holds. A Bucket cuts longer ones.
const Longest = decision.MostTime * time.Millisecond

// Pause lets nothing of the entity run for the time d. It reports whether that changes anything. A closing that ends
// later stays, because the provider may have asked for it.
func (e *Subject) Pause(ctx context.Context, d time.Duration) (changed bool, err error) {
	if e.ClosedUntil.After(e.Time.Add(d)) {
		return false, nil
	}
	return true, e.bucket.Pause(ctx, e.Entity, d)
}

// Resume opens the entity. It reports whether the entity was closed.
func (e *Subject) Resume(ctx context.Context) (changed bool, err error) {
	if e.ClosedUntil.IsZero() {
		return false, nil
	}
	return true, e.bucket.Resume(ctx, e.Entity)
}

// Reset takes back all tokens and forgets all tickets. It reports whether anything is stored of the entity.
func (e *Subject) Reset(ctx context.Context) (changed bool, err error) {
	if !e.Known {
		return false, nil
	}
	return true, e.bucket.Reset(ctx, e.Entity)
}

// Pin sets p as the pin of the entity, in place of an earlier one. It always changes something.
func (e *Subject) Pin(ctx context.Context, p drip.Pin) (changed bool, err error) {
	return true, e.bucket.Pin(ctx, e.Entity, p)
}

// Unpin ends the pin of the entity. It reports whether there was one.
func (e *Subject) Unpin(ctx context.Context) (changed bool, err error) {
	if e.Status.Pin == nil {
		return false, nil
	}
	return true, e.bucket.Unpin(ctx, e.Entity)
}

// Names returns the stored entities whose names begin with prefix, without shared limits. It misses entities that are
// stored later.
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

// mostFailures is after how many errors ChangeAll gives up, so that it does not ask a server that is gone about all.
const mostFailures = 100

// ChangeAll opens each of the entities and calls change with it, both within the timeout, some entities at a time. It goes on
// after an error, up to mostFailures. It returns how many were changed, how many failed or were left, and the first error.
func ChangeAll(ctx context.Context, s storage.Storage, names []string, timeout time.Duration, change func(context.Context, *Subject) (bool, error)) (changed, failed int, err error) {
	const together = 16
	var (
		mu sync.Mutex
		wg sync.WaitGroup
		in = make(chan string)
	)
	for range min(together, len(names)) {
		wg.Go(func() {
			for name := range in {
				done := false
				failure := panics.Caught(func() error {
					ctx, cancel := context.WithTimeout(ctx, timeout)
					defer cancel()
					e, err := Open(ctx, s, name)
					if err == nil {
						done, err = change(ctx, e)
					}
					return err
				})
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
