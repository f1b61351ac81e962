package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/sleep"
)

var quiet = slog.New(slog.DiscardHandler)

// newWorker makes a worker whose messages are their entities.
func newWorker(t testing.TB, o Options[string]) *Worker[string] {
	t.Helper()
	if o.Entity == nil {
		o.Entity = func(m string) (string, error) { return m, nil }
	}
	if o.Logger == nil {
		o.Logger = quiet
	}
	w, err := New(o)
	oktest.OK(t, err)
	return w
}

func succeeds(context.Context) error { return nil }

// Each message is postponed once at most, spends nothing by it, and runs when its slot is there.
func TestDoPostponesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{Size: 5, RefreshRate: 5})})
		var mu sync.Mutex
		ran := map[int64]int{}
		var all sync.WaitGroup
		for range 40 {
			all.Go(func() {
				note := ""
				for {
					out := w.Do(t.Context(), "shop", note, func(ctx context.Context) error {
						if op := OperationOf(ctx); op.Entity != "shop" || op.Postponements > 1 || op.Attempts != 0 {
							t.Errorf("the operation is %+v", op)
						}
						mu.Lock()
						defer mu.Unlock()
						ran[time.Now().Unix()]++
						return nil
					})
					if out.Kind == Done {
						return
					}
					if out.Kind != Postponed || out.Delay <= 0 || out.Err != nil {
						t.Errorf("Do = %+v", out)
						return
					}
					note = out.Note.String()
					time.Sleep(out.Delay)
				}
			})
		}
		all.Wait()
		for second, n := range ran {
			if n > 5 {
				t.Errorf("%d ran in second %d, allowed are 5", n, second)
			}
		}
	})
}

// The outcome of each way in which an operation ends, and the token that is back after it.
func TestOutcomes(t *testing.T) {
	failure := errors.New("failure")
	for name, c := range map[string]struct {
		attempts  int
		note      Note
		run       func(context.Context) error
		kind      Kind
		least     time.Duration
		err       error
		spent     int // attempts
		postponed int
	}{
		"succeeds":                           {run: succeeds, kind: Done},
		"fails, the queue retries":           {run: func(context.Context) error { return failure }, kind: Failed, err: failure, spent: 1},
		"fails, the worker retries":          {attempts: 3, run: func(context.Context) error { return failure }, kind: Retried, least: time.Second, err: failure, spent: 1},
		"fails for the last time":            {attempts: 3, note: Note{Attempts: 2}, run: func(context.Context) error { return failure }, kind: GivenUp, err: failure, spent: 3},
		"would fail again, nobody knows why": {run: func(context.Context) error { return Permanent(nil) }, kind: GivenUp, spent: 1},
		"would fail again":                   {run: func(context.Context) error { return Permanent(failure) }, kind: GivenUp, err: failure, spent: 1},
		"is throttled":                       {attempts: 3, run: func(context.Context) error { return Throttled(time.Minute, failure) }, kind: Refused, least: time.Minute, err: failure, postponed: 1},
		"is throttled, the provider says 0":  {run: func(context.Context) error { return Throttled(0, nil) }, kind: Refused, least: time.Second, postponed: 1},
		"wants to run later":                 {attempts: 1, run: func(context.Context) error { return fmt.Errorf("busy: %w", Later(time.Hour, failure)) }, kind: Refused, least: time.Hour, err: failure, postponed: 1},
		"wants to run at once":               {run: func(context.Context) error { return Later(-1, nil) }, kind: Refused, least: time.Millisecond, postponed: 1},
		"panics":                             {attempts: 3, run: func(context.Context) error { panic("oh") }, kind: Retried, least: time.Second, spent: 1},
		"its error panics":                   {attempts: 3, run: func(context.Context) error { return broken{} }, kind: Retried, least: time.Second, spent: 1},
		"its cause panics":                   {attempts: 3, run: func(context.Context) error { return brokenCause{} }, kind: Retried, least: time.Second, spent: 1},
		"came early":                         {note: Note{Due: time.Now().Add(time.Hour)}, kind: Waiting, least: 59 * time.Minute},
		"is too old":                         {note: Note{First: time.Now().Add(-25 * time.Hour)}, kind: GivenUp, err: ErrTooOld},
	} {
		t.Run(name, func(t *testing.T) {
			bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10})
			w := newWorker(t, Options[string]{Limiter: bucket, Attempts: c.attempts, MaxAge: 24 * time.Hour})
			ran := false
			out := w.Do(t.Context(), "shop", c.note.String(), func(ctx context.Context) error {
				if ran = true; c.run == nil {
					t.Error("it runs")
				}
				return c.run(ctx)
			})
			if out.Kind != c.kind || out.Delay < c.least || out.Delay > 2*c.least || c.err != nil && !errors.Is(out.Err, c.err) {
				t.Errorf("Do = %+v", out)
			}
			if out.Note.Attempts != c.spent || out.Note.Postponements != c.postponed {
				t.Errorf("its note is %v", out.Note)
			}
			if (out.Delay > 0) != (out.Kind != Done && out.Kind != Failed && out.Kind != GivenUp) {
				t.Errorf("a delay of %v goes with %q", out.Delay, out.Kind)
			}
			if n := buckettest.Inspect(t, bucket, "shop").InUse; n != 0 {
				t.Errorf("%d tokens are out", n)
			}
			if ran != (c.run != nil) {
				t.Errorf("ran: %v", ran)
			}
		})
	}
}

type broken struct{ brokenCause }

func (broken) Error() string { panic("no text") }

type brokenCause struct{}

func (brokenCause) Error() string { return "it has no cause" }
func (brokenCause) Unwrap() error { panic("no cause") }

// A message that goes for good gives its slot to others; it also does when it was postponed too often.
func TestGivenUpMessagesLeaveTheirSlots(t *testing.T) {
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Hour, Concurrency: 10})
	w := newWorker(t, Options[string]{Limiter: bucket, MaxPostponements: 1})
	if out := w.Do(t.Context(), "shop", "", succeeds); out.Kind != Done {
		t.Fatalf("Do = %+v", out)
	}
	out := w.Do(t.Context(), "shop", "", succeeds)
	if out.Kind != Postponed {
		t.Fatalf("Do = %+v", out)
	}
	n := out.Note
	n.Due = time.Time{}
	out = w.Do(t.Context(), "shop", n.String(), succeeds)
	if out.Kind != GivenUp || !errors.Is(out.Err, ErrTooOften) {
		t.Errorf("Do = %+v", out)
	}
	if n := buckettest.Inspect(t, bucket, "shop").Booked; n != 0 {
		t.Errorf("%d slots are booked", n)
	}
}

// The error of a message that the provider has refused too often tells why, for the dead letter.
func TestRefusedTooOften(t *testing.T) {
	w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{}), MaxPostponements: 1})
	busy := errors.New("busy")
	out := w.Do(t.Context(), "shop", "postponements=1", func(context.Context) error { return Later(time.Second, busy) })
	if out.Kind != GivenUp || !errors.Is(out.Err, ErrTooOften) || !errors.Is(out.Err, busy) {
		t.Errorf("Do = %+v", out)
	}
}

// Admit gives up the ticket of a message that it denies for its deadline. The Worker must not give it up once more, which
// frees the slot of another message.
func TestDeadlineFreesOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // at the full hour
		bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10, RefreshInterval: time.Hour})
		late := false
		w := newWorker(t, Options[string]{Limiter: bucket, Request: func(string) (r drip.Request) {
			if late {
				r.Deadline = time.Now().Add(time.Minute)
			}
			return r
		}})
		for range 10 {
			w.Do(t.Context(), "shop", "", succeeds)
		}
		var notes []Note
		for range 3 {
			out := w.Do(t.Context(), "shop", "", succeeds)
			if out.Kind != Postponed {
				t.Fatalf("Do = %+v", out)
			}
			notes = append(notes, out.Note)
		}
		late = true
		notes[0].Due = time.Time{}
		out := w.Do(t.Context(), "shop", notes[0].String(), succeeds)
		if out.Kind != GivenUp || !errors.Is(out.Err, drip.ErrDeadline) {
			t.Fatalf("Do = %+v", out)
		}
		if status := buckettest.Inspect(t, bucket, "shop"); status.Booked != 2 {
			t.Errorf("%d slots are booked by two messages", status.Booked)
		}
	})
}

// A refusal with a nil pointer as its cause, whose message cannot run before its deadline, does not end the process.
func TestDeadlineOfABrokenCause(t *testing.T) {
	w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{}), Request: func(string) drip.Request {
		return drip.Request{Deadline: time.Now().Add(time.Minute)}
	}})
	for _, refused := range []error{Later(time.Hour, (*url.Error)(nil)), Throttled(time.Hour, (*url.Error)(nil))} {
		if out := w.Do(t.Context(), "shop", "", func(context.Context) error { return refused }); out.Kind != GivenUp || !errors.Is(out.Err, drip.ErrDeadline) {
			t.Errorf("Do = %+v", out)
		}
	}
}

// A message without an entity fails, and one that the limit can never admit is given up.
func TestMessagesThatCannotRun(t *testing.T) {
	bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10})
	w := newWorker(t, Options[string]{
		Limiter: bucket,
		Entity: func(m string) (string, error) {
			switch m {
			case "fails":
				return "", errors.New("no such shop")
			case "panics":
				panic("oh")
			}
			return m, nil
		},
		Request: func(m string) drip.Request { return drip.Request{Cost: len(m)} },
	})
	for m, want := range map[string]struct {
		kind Kind
		err  error
	}{"fails": {Failed, ErrEntity}, "panics": {Failed, ErrEntity}, "": {GivenUp, ErrEntity}, "far too large": {GivenUp, drip.ErrCost}, "fine": {Done, nil}} {
		if out := w.Do(t.Context(), m, "", succeeds); out.Kind != want.kind || !errors.Is(out.Err, want.err) {
			t.Errorf("Do(%q) = %+v", m, out)
		}
	}
}

// A message whose entity cannot be determined, and whose queue returns it early, spends no attempt before it is due.
func TestEarlyWithoutItsEntity(t *testing.T) {
	for name, o := range map[string]Options[string]{
		"Entity":  {Entity: func(string) (string, error) { return "", errors.New("no answer") }},
		"Request": {Request: func(string) drip.Request { panic("oh") }},
	} {
		t.Run(name, func(t *testing.T) {
			o.Limiter, o.Attempts, o.RetryDelay = buckettest.New(t, drip.Options{Size: 1}), 5, time.Hour
			w := newWorker(t, o)
			failed := w.Do(t.Context(), "shop", "", succeeds)
			early := w.Do(t.Context(), "shop", failed.Note.String(), succeeds)
			if failed.Kind != Retried || early.Kind != Waiting || early.Note.Attempts != 1 || !early.Note.Due.Equal(failed.Note.Due) {
				t.Errorf("Do = %+v, and at once again %+v", failed, early)
			}
		})
	}
}

// While the limiter gives no answer a message is put off soon, and spends nothing. Do does not wait in hand for a limiter until the
// context of the message ends, as some queues count that as a failure.
func TestDoInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var observed []Outcome
		w := newWorker(t, Options[string]{
			Limiter: &buckettest.Plain{Delays: func(string) (time.Duration, error) { return 0, errors.New("no answer") }},
			Observe: func(_ context.Context, _ *Message, out Outcome) { observed = append(observed, out) },
		})
		began := time.Now()
		out := w.Do(t.Context(), "shop", "", func(context.Context) error { t.Error("it runs"); return nil })
		if out.Kind != Waiting || out.Delay < outagePause || out.Note.Postponements != 0 || out.Note.Attempts != 0 || time.Since(began) > patience {
			t.Errorf("Do = %+v after %v", out, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if out := w.Do(ctx, "shop", "", succeeds); out.Kind != Waiting || ctx.Err() != nil {
			t.Errorf("Do = %+v with a context of a second: %v", out, ctx.Err())
		}
		if len(observed) != 2 || observed[0] != out {
			t.Errorf("observed was %+v", observed)
		}
	})
}

// Messages in hand have some time to end when their consumer is stopped.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hands, end := Drain(ctx)
		defer end()
		cancel()
		began := time.Now()
		<-hands.Done()
		if passed := time.Since(began); passed != DrainTime {
			t.Errorf("it has ended after %v", passed)
		}
		hands, end = Drain(t.Context())
		end()
		<-hands.Done()
	})
}

// ParseNote reads the text of String, within its bounds. Any other text is the note of a new message.
func TestNote(t *testing.T) {
	now := time.Now().Truncate(time.Millisecond)
	bucket := buckettest.New(t, drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 24 * time.Hour})
	var ticket drip.Ticket
	for range 3 {
		ticket = buckettest.Admit(t, bucket, "shop", drip.Request{}).Ticket
	}
	for _, n := range []Note{
		{First: now}, {First: now.Add(-time.Hour), Due: now.Add(time.Minute + time.Microsecond), Attempts: 3, Postponements: 7},
		{First: now, Due: now.Add(longestDelay + time.Minute), Attempts: 3}, // by the clock of another process
		{First: now.Add(-time.Hour), Due: now.Add(time.Minute), Attempts: math.MaxInt32, Postponements: math.MaxInt32, Ticket: ticket},
	} {
		text := n.String()
		if got := ParseNote(text); got.String() != text || got.Ticket != n.Ticket || !got.Due.Equal(n.Due) {
			t.Errorf("%+v is %q, read is %+v", n, text, got)
		}
		if len(text) > longestNote || strings.ContainsAny(text, "\",\n") {
			t.Errorf("a note is %q", text)
		}
	}
	for _, text := range []string{
		"", "x", "due=", "due=-1", "due=x", "ticket=x", "due=1 attempts=x", "attempts=99999999999999999999", "name=1", "\xff\xfe",
		fmt.Sprint("due=", now.Add(2*longestDelay).UnixMicro()), strings.Repeat("attempts=1 ", 1000),
	} {
		n := ParseNote(text)
		if n.Age() > time.Minute || !n.Ticket.IsZero() || !n.Due.IsZero() || n.Attempts != 0 || n.Postponements != 0 {
			t.Errorf("%q is %+v, want a new message's", text, n)
		}
	}
	if n := ParseNote(fmt.Sprint("first=", now.Add(time.Hour).UnixMilli())); n.Age() < 0 || n.First.After(time.Now()) {
		t.Errorf("a first delivery in the future is %+v", n)
	}
}

func TestNewNamesTheWrongField(t *testing.T) {
	type other struct{ *drip.Bucket } // such as the Bucket of package telemetry
	l, entity := &buckettest.Plain{}, func(string) (string, error) { return "", nil }
	for _, c := range []struct {
		o    Options[string]
		want string
	}{
		{Options[string]{Entity: entity}, "Limiter is missing"},
		{Options[string]{Entity: entity, Limiter: (*drip.Bucket)(nil)}, "Limiter is missing"},
		{Options[string]{Entity: entity, Limiter: (*other)(nil)}, "Limiter is missing"},
		{Options[string]{Limiter: l}, "Entity is missing"},
		{Options[string]{Entity: entity, Limiter: struct{ Limiter }{l}, Request: func(string) drip.Request { return drip.Request{} }}, "Request needs a Limiter that is an Admitter"},
		{Options[string]{Entity: entity, Limiter: l, Attempts: -1}, "Attempts is -1; it must not be below 0"},
		{Options[string]{Entity: entity, Limiter: l, RetryDelay: -1}, "RetryDelay is -1ns; it must not be below 0"},
		{Options[string]{Entity: entity, Limiter: l, MaxAge: -1}, "MaxAge is -1ns; it must not be below 0"},
		{Options[string]{Entity: entity, Limiter: l, MaxPostponements: -1}, "MaxPostponements is -1; it must not be below 0"},
	} {
		if _, err := New(c.o); err == nil || err.Error() != "worker: Options."+c.want {
			t.Errorf("New = %v, want %s", err, c.want)
		}
	}
}

// A lease is renewed as long as its operation runs, and the operation is told when that is no longer possible. Its result is an
// outcome like any other.
func TestLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Size: 10, Concurrency: 1, Lease: time.Minute, MaxLease: time.Hour})
		w := newWorker(t, Options[string]{Limiter: bucket})
		began := time.Now()
		out := w.Do(t.Context(), "shop", "", func(ctx context.Context) error {
			for time.Since(began) < 59*time.Minute {
				time.Sleep(time.Minute)
				other := buckettest.Admit(t, bucket, "shop", drip.Request{})
				if other.Delay == 0 {
					t.Fatalf("after %v another one runs: there is one token", time.Since(began))
				}
				oktest.OK(t, bucket.Cancel(ctx, "shop", other))
			}
			<-ctx.Done()
			if lasted := time.Since(began); lasted < time.Hour || lasted > time.Hour+time.Minute {
				t.Errorf("the operation was told after %v that its lease is lost", lasted)
			}
			return context.Cause(ctx)
		})
		if out.Kind != Failed || !errors.Is(out.Err, ErrLeaseLost) {
			t.Errorf("Do = %+v, want a failure because of ErrLeaseLost", out)
		}
		out = w.Do(t.Context(), "shop", "", func(ctx context.Context) error { <-ctx.Done(); return nil })
		if out.Kind != Done {
			t.Errorf("Do = %+v of an operation that has succeeded without its lease", out)
		}
		buckettest.Runs(t, bucket, "shop", drip.Request{}) // with the token, which is back
	})
}

// The operation is told that its lease is lost when the lease ends, and no later: another one runs from then on. That is so whenever the
// limiter stops to answer, or is slow.
func TestLeaseEndsInTime(t *testing.T) {
	for name, c := range map[string]struct {
		failOpen bool
		renew    func(ctx context.Context, n int) error
		want     time.Duration
	}{
		"silent": {renew: func(ctx context.Context, _ int) error { return buckettest.NoAnswer(ctx) }, want: 3 * time.Second},
		"failing, then silent": {renew: func(ctx context.Context, n int) error {
			if n < 3 {
				return errors.New("no answer")
			}
			return buckettest.NoAnswer(ctx)
		}, want: 3 * time.Second},
		"slow":             {renew: slow(700 * time.Millisecond), want: 10 * time.Second},
		"slow, fails open": {renew: slow(700 * time.Millisecond), want: 10 * time.Second, failOpen: true},
		"less slow":        {renew: slow(300 * time.Millisecond), want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := renewing(t, c.renew)
				began := time.Now()
				newWorker(t, Options[string]{Limiter: limiter, FailOpen: c.failOpen}).Do(t.Context(), "shop", "", func(ctx context.Context) error {
					<-ctx.Done()
					if lasted := time.Since(began); lasted != c.want || context.Cause(ctx) != ErrLeaseLost {
						t.Errorf("told after %v, want %v: %v", lasted, c.want, context.Cause(ctx))
					}
					return nil
				})
			})
		})
	}
}

// renewing is a bucket with leases of three seconds, at most ten. renew gets the number of each Renew before the bucket does.
func renewing(t *testing.T, renew func(ctx context.Context, n int) error) *buckettest.Hooked {
	bucket := buckettest.New(t, drip.Options{Size: 10, Lease: 3 * time.Second, MaxLease: 10 * time.Second})
	return &buckettest.Hooked{Bucket: bucket, Before: func(ctx context.Context, method string, n int) error {
		if method == "Renew" {
			return renew(ctx, n)
		}
		return nil
	}}
}

// slow lets the caller wait for an answer.
func slow(d time.Duration) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		sleep.For(ctx, d)
		return ctx.Err()
	}
}

// A process that stood still for longer than a lease still asks for it with FailOpen: the limiter answers, so there is no outage in which
// the operation may go on.
func TestFailOpenAfterAStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := false
		k := &renewer{limiter: buckettest.New(t, drip.Options{}), log: quiet, ctx: t.Context(), entity: "shop", failOpen: true, lost: func() { lost = true }}
		k.begin(3 * time.Second)
		k.mu.Lock()
		k.end = time.Now().Add(-time.Second)
		k.mu.Unlock()
		time.Sleep(2 * time.Second)
		k.stop()
		if !lost {
			t.Error("an operation goes on without the lease that the limiter has ended")
		}
	})
}

// mute is a bucket that gives no answer to a method from its n-th call on.
func mute(b *drip.Bucket, method string, from int) *buckettest.Hooked {
	return &buckettest.Hooked{Bucket: b, Before: func(ctx context.Context, called string, n int) error {
		if called == method && n >= from {
			return buckettest.NoAnswer(ctx)
		}
		return nil
	}}
}

// With FailOpen an operation goes on when its lease ends in an outage, as others run without one then. A lease that ends while the
// limiter answers is lost.
func TestLeaseOfFailOpen(t *testing.T) {
	for name, c := range map[string]struct {
		renew func(ctx context.Context, n int) error
		lost  bool
	}{
		"it gives no answer": {renew: func(ctx context.Context, _ int) error { return buckettest.NoAnswer(ctx) }},
		"it fails at once":   {renew: func(context.Context, int) error { return errors.New("no answer") }},
		"it has lost its data": {renew: func(_ context.Context, n int) error {
			return []error{errors.New("no answer"), drip.ErrNoLease}[min(n-1, 1)]
		}},
		"it answers that the lease ended": {renew: func(context.Context, int) error { return drip.ErrNoLease }, lost: true},
		"it answers again before": {lost: true, renew: func(_ context.Context, n int) error {
			return []error{errors.New("no answer"), nil, drip.ErrNoLease}[min(n-1, 2)]
		}},
		"it extends no more": {lost: true, renew: func(_ context.Context, n int) error {
			if n > 8 { // the lease has its longest length
				return errors.New("no answer")
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limiter := renewing(t, c.renew)
				w := newWorker(t, Options[string]{Limiter: limiter, FailOpen: true})
				out := w.Do(t.Context(), "shop", "", func(ctx context.Context) error {
					sleep.For(ctx, time.Minute)
					return context.Cause(ctx)
				})
				if lost := errors.Is(out.Err, ErrLeaseLost); lost != c.lost || !lost && out.Kind != Done {
					t.Errorf("Do = %+v, want ErrLeaseLost: %v", out, c.lost)
				}
			})
		})
	}
}

// A permanent failure stays one when the lease was lost meanwhile.
func TestPermanentAfterALostLease(t *testing.T) {
	for _, attempts := range []int{0, 3} {
		synctest.Test(t, func(t *testing.T) {
			bucket := buckettest.New(t, drip.Options{Size: 10, Lease: 3 * time.Second, MaxLease: time.Hour})
			w := newWorker(t, Options[string]{Limiter: mute(bucket, "Renew", 1), Attempts: attempts})
			for failure, want := range map[error]Kind{Permanent(errors.New("bad")): GivenUp, errors.New("bad"): Waiting, badIs{}: Waiting} {
				out := w.Do(t.Context(), "shop", "", func(ctx context.Context) error { <-ctx.Done(); return failure })
				if out.Kind != want {
					t.Errorf("with %d attempts Do = %+v, want %s", attempts, out, want)
				}
			}
		})
	}
}

// A limiter that gives no answer after an operation that was refused keeps the delivery for the time that settling has.
func TestRefusalOfAMuteLimiter(t *testing.T) {
	for method, from := range map[string]int{"Throttled": 1, "Admit": 2} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorker(t, Options[string]{Limiter: mute(buckettest.New(t, drip.Options{Size: 10}), method, from)})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			began := time.Now()
			out := w.Do(ctx, "shop", "", func(context.Context) error { return Throttled(time.Minute, nil) })
			if took := time.Since(began); out.Kind != Refused || out.Delay != time.Minute || took != returnTimeout {
				t.Errorf("after %v Do = %+v, want it refused after %v", took, out, returnTimeout)
			}
		})
	}
}

// A limiter that gives no answer keeps no delivery until its context ends, as some queues count that as a failure.
func TestShortTimeoutOfAMuteLimiter(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		from   int
		result error
		kind   Kind
	}{
		"before":   {method: "Admit", from: 1, kind: Waiting},
		"after":    {method: "Settle", from: 1, kind: Done},
		"throttle": {method: "Throttled", from: 1, result: Throttled(time.Minute, nil), kind: Refused},
		"book":     {method: "Admit", from: 2, result: Throttled(time.Minute, nil), kind: Refused},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorker(t, Options[string]{Limiter: mute(buckettest.New(t, drip.Options{}), c.method, c.from)})
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				out := w.Do(ctx, "shop", "", func(context.Context) error { return c.result })
				if out.Kind != c.kind || ctx.Err() != nil {
					t.Errorf("Do = %+v, want %q; the context: %v", out, c.kind, ctx.Err())
				}
			})
		})
	}
}

// An operation may give up a message that the provider refuses. The refusal still closes the limit.
func TestPermanentRefusal(t *testing.T) {
	for name, failure := range map[string]error{
		"Throttled": Permanent(Throttled(time.Minute, errors.New("429"))), "Later": Permanent(Later(time.Minute, errors.New("locked"))),
		"joined": errors.Join(Throttled(time.Minute, nil), Permanent(errors.New("bad"))),
	} {
		bucket := buckettest.New(t, drip.Options{Size: 10})
		w := newWorker(t, Options[string]{Limiter: bucket, Attempts: 3})
		if out := w.Do(t.Context(), "shop", "", func(context.Context) error { return failure }); out.Kind != GivenUp {
			t.Errorf("%s: Do = %+v, want given up", name, out)
		}
		status := buckettest.Inspect(t, bucket, "shop")
		if closed := status.ClosedUntil.After(time.Now()); closed != (name != "Later") {
			t.Errorf("%s: closed %v", name, closed)
		}
	}
}

// The end of the context explains a failure, but not one that is permanent: that message does not run again.
func TestPermanentWhenTheContextEnds(t *testing.T) {
	for _, attempts := range []int{0, 3} {
		w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{Size: 10}), Attempts: attempts})
		for failure, want := range map[error]Kind{Permanent(errors.New("bad")): GivenUp, badIs{}: map[int]Kind{0: Failed, 3: Waiting}[attempts]} {
			ctx, cancel := context.WithCancel(t.Context())
			out := w.Do(ctx, "shop", "", func(context.Context) error { cancel(); return failure })
			if out.Kind != want {
				t.Errorf("with %d attempts Do = %+v, want %s", attempts, out, want)
			}
		}
	}
}

type badIs struct{}

func (badIs) Error() string { return "bad" }
func (badIs) Is(error) bool { panic("Is") }

// The limiter charges the real cost of an operation.
func TestSetCost(t *testing.T) {
	bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10, RefreshInterval: 24 * time.Hour})
	w := newWorker(t, Options[string]{Limiter: bucket, Request: func(string) drip.Request { return drip.Request{Cost: 5} }})
	w.Do(t.Context(), "shop", "", func(ctx context.Context) error { OperationOf(ctx).SetCost(2); return nil })
	buckettest.Runs(t, bucket, "shop", drip.Request{Cost: 8}) // of 10 units 2 were spent
}

// With a cost that the limiter does not take the token comes back at once all the same.
func TestSetCostOutOfRange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Size: 10, RefreshRate: 10, RefreshInterval: time.Hour})
		w := newWorker(t, Options[string]{Limiter: bucket, Request: func(string) drip.Request { return drip.Request{Cost: 5} }})
		began := time.Now()
		w.Do(t.Context(), "shop", "", func(ctx context.Context) error { OperationOf(ctx).SetCost(math.MaxInt); return nil })
		s, err := bucket.Inspect(t.Context(), "shop")
		if took := time.Since(began); err != nil || took > time.Second || s.InUse != 0 || s.Windows[0].Capacity != 5 {
			t.Errorf("after %v %d tokens are in use, %d units are left (%v); want 0 and 5", took, s.InUse, s.Windows[0].Capacity, err)
		}
	})
}

// A limiter without tickets is used, too. Its tokens are returned, also when that fails for seconds and the context is over.
func TestPlainLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &stubborn{until: time.Now().Add(returnTimeout - 1500*time.Millisecond)}
		w := newWorker(t, Options[string]{Limiter: l})
		ctx, cancel := context.WithCancel(t.Context())
		if out := w.Do(ctx, "shop", "", func(context.Context) error { cancel(); return nil }); out.Kind != Done || l.Out.Load() != 0 {
			t.Errorf("Do = %+v, %d tokens are out", out, l.Out.Load())
		}
	})
}

// stubborn is a limiter without tickets that fails to return a token for some time.
type stubborn struct {
	buckettest.Plain
	until time.Time
}

func (l *stubborn) ReturnToken(ctx context.Context, entity string) error {
	if time.Now().Before(l.until) {
		return errors.New("connection refused")
	}
	return l.Plain.ReturnToken(ctx, entity)
}

// A message that has come back and may never run is postponed again. Do does not hold it.
func TestPlainLimiterThatSaysNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(t, Options[string]{Limiter: &never{}})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		out := w.Do(ctx, "shop", Note{Postponements: 1}.String(), succeeds)
		if took := time.Since(began); out.Kind != Postponed || out.Delay != longestDelay || took > time.Second {
			t.Errorf("Do = %+v after %v", out, took)
		}
	})
}

// never is a limiter that takes a moment to say that nothing ever runs.
type never struct{ stubborn }

func (*never) GetDelay(context.Context, string) (time.Duration, error) {
	time.Sleep(time.Millisecond)
	return math.MaxInt64, nil
}

// Between two attempts there is never less than RetryDelay, then twice as much each time up to an hour, and the random
// part only adds.
func TestRetryDelay(t *testing.T) {
	check := func(base time.Duration, failures int) {
		t.Helper()
		d, longest := retryDelay(base, failures), max(base, longestRetry)
		if d < base || d > longest || failures <= 1 && d != base {
			t.Fatalf("retryDelay(%v, %d) = %v", base, failures, d)
		}
		if failures < math.MaxInt {
			want := longest
			if d <= longest/2 {
				want = 2 * d
			}
			if next := retryDelay(base, failures+1); failures >= 1 && next != want {
				t.Fatalf("retryDelay(%v, %d) = %v, then %v; want %v", base, failures, d, next, want)
			}
		}
		if j := sleep.Jitter(d); j < d || j-d > d/4 {
			t.Fatalf("sleep.Jitter(%v) = %v", d, j)
		}
	}
	bases := []time.Duration{1, 2, 3, time.Millisecond, time.Second, longestRetry - 1, longestRetry, longestRetry + 1, math.MaxInt64 - 1, math.MaxInt64}
	counts := []int{0, 1, 2, 3, 12, 13, 31, 32, 33, 41, 42, 43, 62, 63, 64, 65, math.MaxInt32, math.MaxInt - 1, math.MaxInt}
	for range 300 {
		bases = append(bases, time.Duration(1+rand.Int64N(1<<(1+rand.IntN(62)))))
		counts = append(counts, 1+rand.IntN(1<<(1+rand.IntN(62))))
	}
	for _, base := range bases {
		for _, failures := range counts {
			check(base, failures)
		}
	}
}

// An outage of an hour is asked about now and then. It is logged when it begins, when its cause changes and when it is over, with how
// many have run without a limit meanwhile; also one in which the limiter answers for others.
func TestOutageIsLoggedOnce(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const waiting, inHand = 10, 5 * time.Minute
			began := time.Now()
			var log bytes.Buffer
			text := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.MessageKey || a.Key == "unlimited" {
					return a
				}
				return slog.Attr{}
			}})
			var tries, unlimited atomic.Int64
			w := newWorker(t, Options[string]{FailOpen: failOpen, Logger: slog.New(text), Limiter: &buckettest.Plain{Delays: func(entity string) (time.Duration, error) {
				if entity == "fine" || time.Since(began) > time.Hour {
					return 0, nil
				}
				tries.Add(1)
				cause := "no answer"
				if time.Since(began) > time.Hour/2 {
					cause = "no password"
				}
				return 0, fmt.Errorf("admit %q: %w", entity, errors.New(cause))
			}}})
			ask := func(entity string) {
				m, err := w.Open(entity, Note{})
				if err != nil {
					t.Error(err)
				}
				asked := time.Now()
				_, err = w.Admit(t.Context(), m, func(d time.Duration) bool { return time.Since(asked) < inHand && sleep.For(t.Context(), d) })
				answered := entity == "fine" || time.Since(began) > time.Hour
				if err != nil && !answered && !failOpen {
					return // it has waited in hand for long enough, and asks again when it is back
				}
				if err != nil || m.unlimited == answered || !answered && !failOpen {
					t.Errorf("Admit = %v for %s after %v", err, entity, time.Since(began))
				}
				if m.unlimited {
					unlimited.Add(1)
				}
			}
			var all sync.WaitGroup
			for i := range waiting + 1 {
				entity, until := fmt.Sprint("shop", i), time.Hour
				if i == waiting {
					entity, until = "fine", 2*time.Hour
				}
				all.Go(func() {
					for time.Since(began) < until {
						ask(entity)
						time.Sleep(7 * time.Second)
					}
				})
			}
			all.Wait()
			if most := waiting * (10*int(time.Hour/inHand) + int(time.Hour/longestBackoff)); !failOpen && tries.Load() > int64(most) {
				t.Errorf("%d messages asked %d times in an hour, want at most %d", waiting, tries.Load(), most)
			}
			line := "no answer from the limiter, messages wait"
			if failOpen {
				line = "no answer from the limiter, messages run without a limit"
			}
			want := fmt.Sprintf("msg=%q\nmsg=%q\nmsg=\"the limiter answers again\" unlimited=%d\n", line, line, unlimited.Load())
			if log.String() != want {
				t.Errorf("logged was %s, want %s", &log, want)
			}
		})
	}
}

// The real cost in units is charged; a name that the limiter does not know leaves the estimate, and the token comes back.
func TestSetCosts(t *testing.T) {
	bucket := buckettest.New(t, drip.Options{
		Size: 10, RefreshRate: 10, RefreshInterval: 24 * time.Hour, Concurrency: 1,
		Windows: []drip.Window{{Size: 1000, RefreshInterval: 24 * time.Hour, Unit: "tokens"}},
	})
	w := newWorker(t, Options[string]{Limiter: bucket, Logger: slog.New(slog.DiscardHandler), Request: func(string) drip.Request {
		return drip.Request{Costs: drip.Costs{"tokens": 300}}
	}})
	for i, costs := range []drip.Costs{{"tokens": 120}, {"points": 7}} {
		out := w.Do(t.Context(), "shop", "", func(ctx context.Context) error { OperationOf(ctx).SetCosts(costs); return nil })
		status, err := bucket.Inspect(t.Context(), "shop")
		if err != nil || out.Kind != Done || status.InUse != 0 || status.Windows[1].Capacity != []int{880, 580}[i] {
			t.Errorf("after %v: %v, %+v, %v", costs, out, status, err)
		}
	}
	w = newWorker(t, Options[string]{Limiter: bucket, Request: func(string) drip.Request { return drip.Request{Costs: drip.Costs{"points": 1}} }})
	if out := w.Do(t.Context(), "shop", "", nil); !errors.Is(out.Err, drip.ErrUnit) || !IsPermanent(out.Err) {
		t.Errorf("a unit that no window counts: %+v", out)
	}
}

// A message names its entity. A name that no entity has costs no more than this message.
func TestReservedEntities(t *testing.T) {
	w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{Shared: map[string]drip.Limit{"app": {Size: 1}}})})
	for _, entity := range []string{"history:shop", drip.SharedID("app"), drip.SharedID("other")} {
		if out := w.Do(t.Context(), entity, "", nil); out.Kind != GivenUp || !IsPermanent(out.Err) {
			t.Errorf("%q: %+v", entity, out)
		}
	}
}

// The error of an Outcome has a text that every queue stores, and is still what the operation returned.
func TestErrorIsStorable(t *testing.T) {
	garbled := errors.New("\xff of \x00 no use")
	for name, err := range map[string]error{
		"failed": garbled, "permanent": Permanent(garbled), "throttled": Throttled(time.Second, garbled), "later": Later(time.Second, garbled),
		"broken": Later(time.Second, broken{}), "panic": garbled,
	} {
		w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{})})
		out := w.Do(t.Context(), "shop", "", func(context.Context) error {
			if name == "panic" {
				panic(err)
			}
			return err
		})
		if name != "broken" && name != "panic" && !errors.Is(out.Err, garbled) {
			t.Errorf("%s: %+v", name, out)
		}
		if text := out.Err.Error(); !utf8.ValidString(text) || strings.Contains(text, "\x00") {
			t.Errorf("%s: the text is %q", name, text)
		}
	}
}

// A reason is short and valid, whatever the error is.
func TestReason(t *testing.T) {
	for want, err := range map[string]error{
		"": nil, "closed": errors.New("closed"), "a?b": errors.New("a\xff\xfeb"), strings.Repeat("ü", 500): errors.New(strings.Repeat("ü", 1<<20)),
		"a" + strings.Repeat("ü", 499) + "?": errors.New("a" + strings.Repeat("ü", 1<<20)),
	} {
		if got := (Outcome{Err: err}).Reason(); got != want || len(got) > 1000 {
			t.Errorf("%d bytes: %q, want %q", len(got), got, want)
		}
	}
}

// The operation is told that its lease is lost when the lease ends, also by a limiter that keeps it waiting for an answer. The
// clock of the storage may be another one than the process's: the length of a lease counts, not the time at which it ends.
func TestLeaseByAnotherClock(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			bucket := buckettest.New(t, drip.Options{
				Size: 10, Concurrency: 1, Lease: 3 * time.Second, MaxLease: time.Hour,
				Clock: func() time.Time { return time.Now().Add(ahead) },
			})
			w := newWorker(t, Options[string]{Limiter: mute(bucket, "Renew", 1)})
			began := time.Now()
			out := w.Do(t.Context(), "shop", "", func(ctx context.Context) error {
				sleep.For(ctx, time.Minute)
				return context.Cause(ctx)
			})
			if lasted := time.Since(began); lasted != 3*time.Second || !errors.Is(out.Err, ErrLeaseLost) {
				t.Errorf("a clock ahead by %v: after %v Do = %+v, want ErrLeaseLost after 3s", ahead, lasted, out)
			}

			w = newWorker(t, Options[string]{Limiter: &buckettest.Hooked{Bucket: bucket, Before: func(_ context.Context, method string, n int) error {
				if method == "Renew" && n%2 == 1 {
					return errors.New("no answer")
				}
				return nil
			}}})
			w.Do(t.Context(), "shop", "", func(ctx context.Context) error {
				time.Sleep(time.Minute)
				if ctx.Err() != nil {
					t.Errorf("a clock ahead by %v: %v, although each second renewal succeeds", ahead, context.Cause(ctx))
				}
				return nil
			})
		})
	}
}

// A refusal takes nothing more of a limiter that can neither close an entity nor book: a second operation would be counted for it.
func TestRefusalWithAPlainLimiter(t *testing.T) {
	taken := 0
	limiter := &buckettest.Plain{Delays: func(string) (time.Duration, error) { taken++; return 0, nil }}
	w := newWorker(t, Options[string]{Limiter: limiter})
	out := w.Do(t.Context(), "shop", "", func(context.Context) error { return Throttled(time.Minute, nil) })
	if out.Kind != Refused || out.Delay != time.Minute || taken != 1 || limiter.Out.Load() != 0 {
		t.Errorf("Do = %+v; %d tokens were taken, want 1, and %d are out", out, taken, limiter.Out.Load())
	}
}

// An operation that goes on after the end of its context still has its token.
func TestLeaseAfterTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Concurrency: 1, Lease: 2 * time.Second})
		w := newWorker(t, Options[string]{Limiter: bucket})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w.Do(ctx, "shop", "", func(context.Context) error {
			for range 10 {
				time.Sleep(time.Second)
				if s, err := bucket.Inspect(t.Context(), "shop"); err != nil || s.InUse != 1 {
					t.Fatalf("%d tokens are out while the operation runs, %v", s.InUse, err)
				}
			}
			return nil
		})
		if s, err := bucket.Inspect(t.Context(), "shop"); err != nil || s.InUse != 0 {
			t.Errorf("%d tokens are out after it, %v", s.InUse, err)
		}
	})
}

// A panic of the user's Limits is no answer of the limiter. It does not end the process, which would get the message again.
func TestPanicOfLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := buckettest.New(t, drip.Options{Limits: func(_ context.Context, entity string) (drip.Limit, error) { panic("no plan for " + entity) }})
		w := newWorker(t, Options[string]{Limiter: bucket, Attempts: 3})
		out := w.Do(t.Context(), "shop", "", func(context.Context) error { t.Error("it runs"); return nil })
		if out.Kind != Waiting || out.Delay <= 0 || out.Err == nil || !strings.Contains(out.Err.Error(), "no plan for shop") {
			t.Errorf("Do = %+v", out)
		}
	})
}

// It ends the process in no call of the limiter after Admit either. The lease of the operation ends by itself.
func TestPanicOfLimitsAfterAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		takes  time.Duration // by the operation, whose lease has two seconds
		result error
		kind   Kind
	}{
		"it succeeds":          {kind: Done},
		"it fails":             {result: errors.New("failure"), kind: Retried},
		"it is throttled":      {result: Throttled(time.Minute, nil), kind: Refused},
		"its lease is renewed": {takes: time.Second, kind: Done},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var broken atomic.Bool
				bucket := buckettest.New(t, drip.Options{Concurrency: 1, Lease: 2 * time.Second, Limits: func(context.Context, string) (drip.Limit, error) {
					if broken.Load() {
						panic("no plan")
					}
					return drip.Limit{Size: 5}, nil
				}})
				w := newWorker(t, Options[string]{Limiter: bucket, Attempts: 3})
				out := w.Do(t.Context(), "shop", "", func(context.Context) error {
					broken.Store(true)
					time.Sleep(c.takes)
					return c.result
				})
				if out.Kind != c.kind || !errors.Is(out.Err, c.result) {
					t.Errorf("Do = %+v", out)
				}
				broken.Store(false)
				time.Sleep(3 * time.Second)
				if s, err := bucket.Inspect(t.Context(), "shop"); err != nil || s.InUse != 0 {
					t.Errorf("%d tokens are out, %v", s.InUse, err)
				}
			})
		})
	}
}

// A limiter that answers again before the deadline of a message costs it nothing, and neither does a process that stops: another one may
// run it at once.
func TestDeadlineAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := time.Now().Add(6 * time.Second)
		request := func(string) drip.Request { return drip.Request{Deadline: end} }
		back := time.Now().Add(3 * time.Second)
		away := func(context.Context, string, int) error {
			if time.Now().Before(back) {
				return errors.New("no answer")
			}
			return nil
		}
		w := newWorker(t, Options[string]{Limiter: &buckettest.Hooked{Bucket: buckettest.New(t, drip.Options{}), Before: away}, Request: request})
		out, asked := Outcome{Kind: Waiting}, 0
		for ; out.Kind == Waiting; asked++ {
			time.Sleep(out.Delay)
			out = w.Do(t.Context(), "shop", out.Note.String(), succeeds)
		}
		if out.Kind != Done || asked > 5 {
			t.Errorf("%v before its deadline, after %d calls: %+v", time.Until(end), asked, out)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		end := time.Now().Add(40 * time.Second)
		request := func(string) drip.Request { return drip.Request{Deadline: end} }
		w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{}), Attempts: 5, RetryDelay: time.Minute, Request: request})
		ctx, cancel := context.WithCancel(t.Context())
		if out := w.Do(ctx, "shop", "", func(ctx context.Context) error { cancel(); return ctx.Err() }); out.Kind != Waiting {
			t.Errorf("%v before its deadline: %+v", time.Until(end), out)
		}
	})
}

// A message whose deadline passes in an outage is given up: it neither runs without a limit nor waits for the end of the outage.
func TestDeadlineInAnOutage(t *testing.T) {
	for _, failOpen := range []bool{false, true} {
		t.Run(fmt.Sprint("FailOpen ", failOpen), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := time.Now().Add(time.Minute)
				request := func(string) drip.Request { return drip.Request{Deadline: end} }
				away := func(context.Context, string, int) error { return errors.New("no answer") }
				limiter := &buckettest.Hooked{Bucket: buckettest.New(t, drip.Options{}), Before: away}
				w := newWorker(t, Options[string]{Limiter: limiter, Request: request, FailOpen: failOpen})
				m, err := w.Open("shop", Note{})
				if err != nil {
					t.Fatal(err)
				}
				if failOpen {
					time.Sleep(time.Minute + time.Nanosecond)
				}
				_, err = w.Admit(t.Context(), m, func(d time.Duration) bool { return time.Since(end) < time.Hour && sleep.For(t.Context(), d) })
				if late := time.Since(end); !errors.Is(err, drip.ErrDeadline) || late > 2*longestBackoff {
					t.Errorf("Admit = %v, %v after the deadline", err, late)
				}
			})
		})
	}
}
