package drip

import (
	"context"
	"fmt"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// Status is what is known of an entity at one time, and what a newcomer would be told then.
type Status struct {
	Entity string
	Time   time.Time // of the storage's clock
	Known  bool      // false: it is idle, and as good as new

	// Windows are the limits and what is left of them, the first one in front.
	Windows []WindowStatus

	// InUse of Concurrency tokens are out. Leases are those of Admit, by their ends; the others were taken by GetDelay.
	Concurrency int
	InUse       int
	Leases      []LeaseStatus

	// Operation is how long operations take, on average; 0 if none was settled yet.
	Operation time.Duration

	// Booked is about how many units are promised to operations that have not run yet. The last of them is due at
	// BookedUntil.
	Booked      int
	BookedUntil time.Time

	// ClosedUntil is when Throttled or Pause end, zero if the entity is open.
	ClosedUntil time.Time

	// Delay is what Admit would tell a newcomer of one unit, and Bound what that comes from. When that is BoundClosed, Then
	// is what the rest of the delay comes from, after ClosedUntil: BoundNone if there is none.
	Delay time.Duration
	Bound Bound
	Then  Bound
}

// WindowStatus is a limit and what is left of it. Capacity below zero is owed by operations that have cost more than
// was known.
type WindowStatus struct {
	Window
	Capacity int
}

// LeaseStatus is a lease that is held.
type LeaseStatus struct {
	Age time.Duration // since it was taken
	End time.Time     // unless it is renewed or settled before
}

// Inspect tells what is known of an entity, in one round trip. Nothing is changed: what it says of a newcomer is what
// Admit says next, as long as nobody comes in between.
func (b *Bucket) Inspect(ctx context.Context, entityID string) (Status, error) {
	status, err := b.inspect(ctx, entityID)
	if err != nil {
		return Status{}, fmt.Errorf("drip: inspect %q: %w", entityID, err)
	}
	return status, nil
}

func (b *Bucket) inspect(ctx context.Context, entityID string) (Status, error) {
	l, err := b.limitsOf(ctx, entityID)
	if err != nil {
		return Status{}, err
	}
	e, err := b.read(ctx, entityID)
	if err != nil {
		return Status{}, err
	}
	now := e.Time.UnixMilli()
	if b.options.Clock != nil {
		if now, err = b.clock(time.Time{}); err != nil {
			return Status{}, err
		}
	}
	return statusOf(l, &e, now), nil
}

// read is what is stored of an entity.
func (b *Bucket) read(ctx context.Context, entityID string) (storage.Entry, error) {
	if r, ok := b.storage.(storage.Reader); ok {
		return r.Read(ctx, entityID)
	}
	stored, _, err := b.storage.Get(ctx, entityID)
	if err != nil {
		return storage.Entry{}, err
	}
	e := storage.Entry{Key: entityID, Time: time.Now()}
	e.Leases, err = storage.Decode(stored.Data, &e.State)
	e.Out = int64(len(e.Leases))
	return e, err
}

func statusOf(l *decision.Limits, e *storage.Entry, now int64) Status {
	s := &e.State
	status := Status{Entity: e.Key, Time: time.UnixMilli(now), Known: s.Print != 0, Concurrency: int(l.Tokens)}
	out := e.Out
	for _, h := range e.Leases {
		if h.End <= now {
			out--
			continue
		}
		status.Leases = append(status.Leases, LeaseStatus{Age: milliseconds(max(0, now-h.ID/1024)), End: time.UnixMilli(h.End)})
	}
	a, then := l.Newcomer(s, out, now)
	status.InUse = int(s.Plain + out)
	status.Delay, status.Bound, status.Then = milliseconds(a.Delay), Bound(a.Bound), Bound(then)
	for i, w := range l.Windows {
		status.Windows = append(status.Windows, WindowStatus{
			Window:   Window{Size: int(w.Size), RefreshRate: int(w.Rate), RefreshInterval: milliseconds(w.Interval)},
			Capacity: int(s.Lines[i].Left),
		})
	}
	if s.Ended > 0 {
		status.Operation = milliseconds(s.Held / s.Ended)
	}
	if s.Closed > now {
		status.ClosedUntil = time.UnixMilli(s.Closed)
	}
	if booked := l.Booked(s); booked > 0 && s.Slot > now {
		status.Booked, status.BookedUntil = int(booked), time.UnixMilli(s.Slot)
	}
	return status
}
