package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// The log of a retry says the delay that the message has, as people write it, also in JSON.
func TestRetryIsLogged(t *testing.T) {
	var log bytes.Buffer
	w := newWorker(t, Options[string]{
		Limiter: buckettest.New(t, drip.Options{}), Attempts: 2, Logger: slog.New(slog.NewJSONHandler(&log, nil)),
	})
	out := w.Do(t.Context(), "shop", "", func(context.Context) error { return errors.New("failure") })
	var line struct{ Msg, Delay string }
	if err := json.Unmarshal(log.Bytes(), &line); err != nil {
		t.Fatal(err, log.String())
	}
	if d, err := time.ParseDuration(line.Delay); err != nil || d != out.Delay || out.Delay < time.Second {
		t.Errorf("the delay is %v, and the log says %q", out.Delay, line.Delay)
	}
}

// The log has the stack of a panic, also when the queue retries, or when the next attempt would be after the deadline: a queue stores an
// error's text at most.
func TestPanicIsLogged(t *testing.T) {
	for _, attempts := range []int{0, 1, 2} {
		for name, deadline := range map[string]time.Time{"no deadline": {}, "a deadline": time.Now().Add(time.Minute)} {
			var log bytes.Buffer
			w := newWorker(t, Options[string]{
				Limiter: buckettest.New(t, drip.Options{}), Attempts: attempts, RetryDelay: time.Hour, Logger: slog.New(slog.NewJSONHandler(&log, nil)),
				Request: func(string) drip.Request { return drip.Request{Deadline: deadline} },
			})
			w.Do(t.Context(), "shop", "", func(context.Context) error { panic("oh") })
			var line struct{ Entity, Error, Stack string }
			if err := json.NewDecoder(&log).Decode(&line); err != nil {
				t.Errorf("with %d attempts and %s the log has no line: %v", attempts, name, err)
			}
			if line.Entity != "shop" || line.Error != "panic: oh" || !strings.Contains(line.Stack, "TestPanicIsLogged") {
				t.Errorf("with %d attempts and %s the log is %+v", attempts, name, line)
			}
		}
	}
}

// A queue that counts attempts itself may log nothing of a message that it cancels.
func TestPermanentIsLogged(t *testing.T) {
	var log bytes.Buffer
	w := newWorker(t, Options[string]{Limiter: buckettest.New(t, drip.Options{}), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	w.Do(t.Context(), "shop", "", func(context.Context) error { return Permanent(errors.New("no such order")) })
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "no such order") {
		t.Errorf("the log is %q", got)
	}
}

// runtime.Goexit, as testing's FailNow calls it, leaves no Outcome. Nothing but the log tells of the message then.
func TestGoexitIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		options func(*Options[string], func())
		known   string
	}{
		"ID":      {func(o *Options[string], f func()) { o.ID = func(string) string { f(); return "m1" } }, `entity="" message_id=""`},
		"Entity":  {func(o *Options[string], f func()) { o.Entity = func(e string) (string, error) { f(); return e, nil } }, `entity="" message_id=m1`},
		"Request": {func(o *Options[string], f func()) { o.Request = func(string) (r drip.Request) { f(); return r } }, `entity=shop message_id=m1`},
		"Observe": {func(o *Options[string], f func()) { o.Observe = func(context.Context, *Message, Outcome) { f() } }, `entity=shop message_id=m1`},
		"run":     {func(*Options[string], func()) {}, `entity=shop message_id=m1`},
	} {
		var log bytes.Buffer
		b := buckettest.New(t, drip.Options{})
		o := Options[string]{Limiter: b, Logger: slog.New(slog.NewTextHandler(&log, nil)), ID: func(string) string { return "m1" }}
		exits := true
		exit := func() {
			if exits {
				runtime.Goexit()
			}
		}
		c.options(&o, exit)
		w := newWorker(t, o)
		run := func(context.Context) error {
			if name == "run" {
				exit()
			}
			return nil
		}
		var doing sync.WaitGroup
		doing.Go(func() { w.Do(t.Context(), "shop", "", run) })
		doing.Wait()
		if n := buckettest.Inspect(t, b, "shop").InUse; n != 0 || !strings.Contains(log.String(), `Goexit leaves a message unsettled" `+c.known) {
			t.Errorf("%s: %d tokens are out, and the log is %q", name, n, log.String())
		}
		exits = false
		log.Reset()
		w.Do(t.Context(), "shop", "", run)
		if log.Len() > 0 {
			t.Errorf("%s: of a message that is done the log says %q", name, log.String())
		}
	}
}

// A panic of Observe is logged. It does not take the outcome of an operation that has run.
func TestPanicOfObserveIsLogged(t *testing.T) {
	var log bytes.Buffer
	w := newWorker(t, Options[string]{
		Limiter: buckettest.New(t, drip.Options{}), Logger: slog.New(slog.NewJSONHandler(&log, nil)),
		Observe: func(context.Context, *Message, Outcome) { panic("oh") },
	})
	out := w.Do(t.Context(), "shop", "", func(context.Context) error { return nil })
	if out.Kind != Done || !strings.Contains(log.String(), "panic: oh") {
		t.Errorf("Do = %+v, and the log is %q", out, log.String())
	}
}

// The log promises no other try of an operation that has lost its lease and its deadline.
func TestLeaseLostAfterTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		end := time.Now().Add(2 * time.Second)
		w := newWorker(t, Options[string]{
			Limiter: mute(buckettest.New(t, drip.Options{Lease: 3 * time.Second}), "Renew", 1), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Request: func(string) drip.Request { return drip.Request{Deadline: end} },
		})
		out := w.Do(t.Context(), "shop", "", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if out.Kind != GivenUp || !errors.Is(out.Err, drip.ErrDeadline) || !strings.Contains(log.String(), "is given up") || strings.Contains(log.String(), "tried again") {
			t.Errorf("Do = %+v, and the log is %q", out, log.String())
		}
	})
}
