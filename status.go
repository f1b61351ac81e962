package drip

import (
	"context"
	"fmt"
	"math"
	"time"

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

	// Tickets are booked and not yet back, for Booked units in all. The last of them is due at BookedUntil.
	Tickets     int
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
	if entityID == "" {
		return Status{}, ErrNoEntity
	}
	l := b.limits
	if b.options.Limits != nil {
		var err error
		if l, err = b.limitsOf(ctx, entityID); err != nil {
			return Status{}, err
		}
	}
	s, rev, now, err := b.read(ctx, entityID)
	if err != nil {
		return Status{}, err
	}
	if b.options.Clock != nil {
		now = b.options.Clock().UnixMilli()
	}
	return statusOf(entityID, &l, s, rev != storage.NoRevision, now), nil
}

func statusOf(entityID string, l *storage.Limits, s storage.State, known bool, now int64) Status {
	if !known {
		s = l.New()
	}
	// What the next decision will find: leases that have ended are gone, and so are tickets that were given up.
	next := s.Clone()
	var a storage.Answer
	l.Apply(&next, &storage.Op{Kind: storage.Admit, Cost: 1}, now, &a)
	status := Status{
		Entity: entityID, Time: time.UnixMilli(now), Known: known,
		Concurrency: int(l.Concurrency), InUse: int(s.InUse),
		Delay: storage.Milliseconds(a.Delay), Bound: Bound(a.Bound),
	}
	if status.Concurrency == 0 {
		status.Concurrency = int(l.Size)
	}
	for i, w := range append([]storage.Window{l.Window}, l.Windows...) {
		status.Windows = append(status.Windows, WindowStatus{
			Window: Window{
				Size: int(w.Size), RefreshRate: int(w.RefreshRate), RefreshInterval: storage.Milliseconds(w.RefreshInterval),
			},
			Capacity: int(l.Capacity(s, i, now)),
		})
	}
	booking := s.Booking
	if booking == nil {
		return status
	}
	for _, h := range booking.Leases {
		if h.End > now {
			status.InUse++
			status.Leases = append(status.Leases, LeaseStatus{Age: storage.Milliseconds(max(0, now-h.Begin())), End: time.UnixMilli(h.End)})
		}
	}
	if booking.Samples > 0 {
		status.Operation = storage.Milliseconds(booking.Held / booking.Samples)
	}
	if booking.Closed > now {
		status.ClosedUntil = time.UnixMilli(booking.Closed)
		if a.Delay > booking.Closed-now {
			status.Then = opening(l, s, now)
		}
	}
	booked, newcomer := next.Booking, int64(0)
	if a.Delay > 0 {
		newcomer = 1
	}
	if n := booked.Old.Tickets + booked.New.Tickets - newcomer; n > 0 {
		status.Tickets, status.Booked = int(n), int(booked.Old.Units+booked.New.Units-newcomer)
		status.BookedUntil = time.UnixMilli(max(booking.Old.Last, booking.New.Last))
	}
	return status
}

// opening is what keeps a newcomer from running when the entity opens, if those who are booked have not come back by then
// and those who run have not ended.
func opening(l *storage.Limits, s storage.State, now int64) Bound {
	s = s.Clone()
	b, open := s.Booking, s.Booking.Closed
	var a storage.Answer
	l.Apply(&s, &storage.Op{Kind: storage.Resume}, now, &a)
	s.Until = math.MaxInt64
	b.Old.Last, b.New.Last = max(b.Old.Last, open), max(b.New.Last, open)
	for i := range b.Leases {
		b.Leases[i].End = max(b.Leases[i].End, open+1)
	}
	l.Apply(&s, &storage.Op{Kind: storage.Admit, Cost: 1}, open, &a)
	switch {
	case a.Delay > 0:
		return Bound(a.Bound)
	case now < b.Claim: // those who were denied a token ask again first
		return BoundTokens
	}
	return BoundBooked // others without a ticket were told to come later than that
}
