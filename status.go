package drip

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/reading"
	"github.com/drip-go/drip/storage"
)

// Status is the state of an entity at one time, and the answer that Admit would give a newcomer then.
type Status struct {
	Entity string    // the entity, or a SharedID
	Time   time.Time // of Options.Clock, or of the storage's clock

	// Known is false if nothing is stored: the entity is idle, and full if it could gather since Options.Start. It is also
	// false until the first decision about a state of an earlier version of drip: then the entity is empty.
	Known bool

	// Windows are the windows in force and their remaining capacity. The window of RefreshRate is the first, the window
	// of a Pin the last. A Size of 1<<40 is any number: a shared limit of Concurrency alone has such a window.
	Windows []WindowStatus

	// InUse is the number of tokens in use, and Concurrency of all tokens: 1<<40 means any number. Leases are the tokens
	// that Admit gave, by their ends; GetDelay gave the others.
	Concurrency int
	InUse       int
	Leases      []LeaseStatus

	// Operation is the average duration of operations; 0 if none was settled yet.
	Operation time.Duration

	// Booked is about how much of the first window is promised to operations that have not run yet. The last of them is
	// due at BookedUntil. If a window of another unit is scarcer, Booked is an upper bound.
	Booked      int
	BookedUntil time.Time

	// ClosedUntil is the end of Throttled or Pause, zero if the entity is open.
	ClosedUntil time.Time

	// Pin is the pin that Bucket.Pin has set, nil if there is none. PinnedUntil is its end, zero if only Unpin ends it.
	Pin         *Pin
	PinnedUntil time.Time

	// Level is the part of its limit that the entity uses, above 0 and at most 1. It is 1 unless some process has set
	// Options.Follow.
	Level float64

	// Delay is the delay that Admit would give a newcomer of one call, and one of each other unit, within all shared
	// limits. Bound is its cause, and Limit the name of the shared limit that Bound belongs to, "" for the entity's own.
	// Then is for a closed entity or shared limit: the cause of the delay that remains after the opening, in the same
	// limit, or BoundNone if none remains.
	Delay time.Duration
	Bound Bound
	Then  Bound
	Limit string
}

// WindowStatus is a window and its remaining capacity. A Capacity below zero is owed: operations have cost more than
// expected. Intervals that follow a calendar have the RefreshInterval of the present one.
type WindowStatus struct {
	Window
	Capacity int       // units that are left
	Refresh  time.Time // the end of the interval
}

// LeaseStatus is a lease that is out.
type LeaseStatus struct {
	Age time.Duration // since it was taken
	End time.Time     // unless it is renewed or settled before
}

// Inspect returns the Status of an entity, or of a shared limit by its SharedID, in one round trip and one more for
// each shared limit. It changes nothing: Admit gives the next newcomer the answer of the Status, unless another call
// comes in between. Of a shared limit it is the answer to a newcomer that no other limit delays.
func (b *Bucket) Inspect(ctx context.Context, entityID string) (Status, error) {
	status, err := b.inspect(ctx, entityID)
	if err != nil {
		return Status{}, fmt.Errorf("drip: inspect %q: %w", entityID, err)
	}
	return status, nil
}

func (b *Bucket) inspect(ctx context.Context, entityID string) (Status, error) {
	b = b.of(entityID)
	if err := b.check(ctx, entityID); err != nil {
		return Status{}, err
	}
	e, err := reading.Entity(ctx, b.storage, entityID)
	if err != nil {
		return Status{}, err
	}
	now := e.Time.UnixMilli()
	if b.options.Clock != nil {
		if now, err = b.clock(time.Time{}); err != nil {
			return Status{}, err
		}
	}
	l, err := b.limitsOf(ctx, entityID, now)
	if err != nil {
		return Status{}, err
	}
	shared, at, err := b.sharedNow(ctx, &e, now)
	if err != nil {
		return Status{}, err
	}
	status, limit := statusOf(l, b.units, &e, shared, now, at)
	if limit > 0 {
		status.Limit = b.shared[limit-1].name
	}
	return status, nil
}

// sharedNow reads the shared limits of an entity, one after the other. at is the time of the next decision: the latest one of all
// limits.
func (b *Bucket) sharedNow(ctx context.Context, e *storage.Entry, now int64) (shared []decision.Shared, at int64, err error) {
	at = max(now, e.State.Now)
	if strings.HasPrefix(e.Key, sharedMark) {
		return nil, at, nil
	}
	within, err := b.within(ctx, e.Key, b.all, now)
	if err != nil {
		return nil, at, err
	}
	entries := make([]storage.Entry, len(within))
	for i := range within {
		if entries[i], err = reading.Entity(ctx, b.storage, within[i].Key); err != nil {
			return nil, at, fmt.Errorf("%q: %w", within[i].Key, err)
		}
		at = max(at, entries[i].State.Now)
	}
	for i := range within {
		shared = append(shared, within[i].In(&entries[i].State, decision.Counted(outAt(&entries[i], at))))
	}
	return shared, at, nil
}

// outAt returns how many leases of an entry are out at a time: a storage keeps leases that have ended until the next
// decision. The time of an entity does not run backwards.
func outAt(e *storage.Entry, now int64) int64 {
	return e.Out - int64(len(e.Leases)) + int64(len(heldAt(e, now)))
}

// heldAt returns the listed leases of an entry that are out at a time.
func heldAt(e *storage.Entry, now int64) (held []storage.Held) {
	for _, h := range e.Leases {
		if h.End > max(now, e.State.Now) {
			held = append(held, h)
		}
	}
	return held
}

// statusOf returns a Status without its Limit, and the number of the shared limit that binds.
func statusOf(l *decision.Limits, units units, e *storage.Entry, shared []decision.Shared, now, at int64) (status Status, limit int64) {
	s := &e.State
	status = Status{Entity: e.Key, Time: time.UnixMilli(now), Known: s.Tokens != 0}
	out := outAt(e, at)
	for _, h := range heldAt(e, at) {
		status.Leases = append(status.Leases, LeaseStatus{Age: milliseconds(max(0, now-h.ID/1024)), End: time.UnixMilli(h.End)})
	}
	status.Pin, status.PinnedUntil = pinOf(s, units, now)
	a, then := l.Newcomer(s, out, shared, now)
	l = l.InForce(s, now)
	status.Level = s.Level()
	status.Concurrency = int(l.Tokens)
	status.InUse = int(s.Plain + out)
	status.Delay, status.Bound, status.Then = milliseconds(a.Delay), Bound(a.Bound), Bound(then)
	for i, w := range l.Windows {
		status.Windows = append(status.Windows, WindowStatus{
			Window:   windowOf(w, units),
			Capacity: int(s.Lines[i].Left),
			Refresh:  time.UnixMilli(w.Next(now)),
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
	return status, a.Limit
}
