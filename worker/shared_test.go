package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A refusal by a shared limit closes that for all entities, and no entity.
func TestThrottledShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10, Shared: map[string]drip.Limit{"app": {Size: 10}, "search": {Size: 10}}})
		w := newWorker(t, Options[string]{Limiter: bucket})
		out := w.Do(t.Context(), "shop", "", func(context.Context) error { return ThrottledShared("app", time.Minute, nil) })
		if out.Kind != Refused || out.Delay < time.Minute || out.Note.Ticket.IsZero() || out.Note.Attempts != 0 {
			t.Fatalf("Do = %+v", out)
		}
		if other := w.Do(t.Context(), "other", "", succeeds); other.Kind != Postponed || other.Delay < 59*time.Second {
			t.Errorf("Do of another entity = %+v", other)
		}
		if status := buckettest.Inspect(t, bucket, "shop"); !status.ClosedUntil.IsZero() {
			t.Errorf("its entity is closed: %+v", status)
		}
		buckettest.Runs(t, bucket, "shop", drip.Request{Within: []string{"search"}})
		time.Sleep(out.Delay)
		if out := w.Do(t.Context(), "shop", out.Note.String(), succeeds); out.Kind != Done {
			t.Errorf("when it is over Do = %+v", out)
		}
		// A limit that there is not: the message waits alone.
		if out := w.Do(t.Context(), "shop", "", func(context.Context) error { return ThrottledShared("ap", time.Minute, nil) }); out.Kind != Refused {
			t.Errorf("Do = %+v", out)
		}
		if out := w.Do(t.Context(), "shop", "", succeeds); out.Kind != Done {
			t.Errorf("Do of the next = %+v", out)
		}
	})
}

// A message that would run only after its deadline is given up at once, whatever it waits for, and leaves its slot to others.
func TestDeadlineOfWhatIsPutOff(t *testing.T) {
	failure := errors.New("failure")
	for name, c := range map[string]struct {
		run   func(context.Context) error // nil: the limit postpones it
		spent int
		cause error
	}{
		"postponed":        {},
		"retried":          {run: func(context.Context) error { return failure }, spent: 1, cause: failure},
		"refused":          {run: func(context.Context) error { return Throttled(time.Hour, failure) }, cause: failure},
		"refused by app":   {run: func(context.Context) error { return ThrottledShared("app", time.Hour, failure) }, cause: failure},
		"later":            {run: func(context.Context) error { return Later(time.Hour, nil) }},
		"over when it ran": {run: func(context.Context) error { time.Sleep(2 * time.Minute); return failure }, spent: 1, cause: failure},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := time.Now().Add(time.Minute)
				bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Hour, Concurrency: 10, Shared: map[string]drip.Limit{"app": {Size: 10}}})
				w := newWorker(t, Options[string]{Limiter: bucket, Attempts: 3, RetryDelay: 10 * time.Minute, Request: func(string) drip.Request { return drip.Request{Deadline: end} }})
				if c.run == nil {
					w.Do(t.Context(), "shop", "", succeeds)
					c.run = func(context.Context) error { t.Error("it runs"); return nil }
				}
				out := w.Do(t.Context(), "shop", "", c.run)
				if out.Kind != GivenUp || out.Delay != 0 || !errors.Is(out.Err, drip.ErrDeadline) || !errors.Is(out.Err, c.cause) && c.cause != nil || out.Note.Attempts != c.spent {
					t.Errorf("Do = %+v", out)
				}
				for _, id := range []string{"shop", drip.SharedID("app")} {
					if status, err := bucket.Inspect(t.Context(), id); err != nil || status.Booked != 0 || status.InUse != 0 {
						t.Errorf("of %q is left %+v, %v", id, status, err)
					}
				}
			})
		})
	}
}

// A message that the provider refuses is given up at once if the limiter knows that it cannot run in time any more.
func TestRefusedPastItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Hour, Concurrency: 10})
		end := time.Now().Add(10 * time.Minute)
		w := newWorker(t, Options[string]{Limiter: bucket, Attempts: 3, Request: func(string) drip.Request { return drip.Request{Deadline: end} }})
		busy := errors.New("busy")
		out := w.Do(t.Context(), "shop", "", func(context.Context) error { return Throttled(time.Minute, busy) })
		if out.Kind != GivenUp || out.Delay != 0 || !errors.Is(out.Err, drip.ErrDeadline) || !errors.Is(out.Err, busy) {
			t.Errorf("Do = %+v", out)
		}
	})
}

// An operation that makes several calls may join their errors. Each limit that a call has met is closed, whichever comes first.
func TestJoinedRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Size: 10, Concurrency: 10, Shared: map[string]drip.Limit{"app": {Size: 10}}})
		w := newWorker(t, Options[string]{Limiter: bucket})
		out := w.Do(t.Context(), "shop", "", func(context.Context) error {
			return fmt.Errorf("three calls: %w", errors.Join(
				errors.New("failure"), Later(time.Second, nil), Throttled(time.Minute, Throttled(time.Hour, nil)), ThrottledShared("app", 2*time.Minute, nil),
			))
		})
		if out.Kind != Refused || out.Delay < 2*time.Minute || out.Delay > 3*time.Minute || out.Note.Attempts != 0 {
			t.Errorf("Do = %+v", out)
		}
		for id, want := range map[string]time.Duration{"shop": time.Minute, drip.SharedID("app"): 2 * time.Minute} {
			if closed := time.Until(buckettest.Inspect(t, bucket, id).ClosedUntil); closed < want || closed > want+time.Second {
				t.Errorf("%s is closed for %v, want %v", id, closed, want)
			}
		}
	})
}
