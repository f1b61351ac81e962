package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/internal/oteltest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
	"github.com/drip-go/drip/storage/storagetest"
)

// A storage that is timed keeps all rules of one that is not.
func TestStorageConforms(t *testing.T) {
	for name, open := range map[string]func() storage.Storage{
		"atomic": func() storage.Storage { return memory.New() },
		"plain":  func() storage.Storage { return struct{ storage.Storage }{memory.New()} },
	} {
		t.Run(name, func(t *testing.T) {
			storagetest.Run(t, func(t *testing.T) storage.Storage { return timedStorage(t, open(), &oteltest.Meters{}) })
		})
	}
}

func timedStorage(t *testing.T, s storage.Storage, meters *oteltest.Meters) storage.Storage {
	timed, err := Storage(s, meters, attribute.String("api", "orders"))
	ok(t, err)
	return timed
}

// It can do what the storage can, and nothing else but Read.
func TestStorageCanDoTheSame(t *testing.T) {
	type (
		plain  struct{ storage.Storage }
		atomic struct{ storage.Atomic }
		lister struct{ storage.Lister }
		closer struct{ io.Closer }
	)
	m := memory.New()
	p, a, l, c := plain{m}, atomic{m}, lister{m}, closer{io.NopCloser(nil)}
	for i, s := range []storage.Storage{
		p,
		struct {
			plain
			closer
		}{p, c},
		struct {
			plain
			lister
		}{p, l},
		struct {
			plain
			lister
			closer
		}{p, l, c},
		struct {
			plain
			atomic
		}{p, a},
		struct {
			plain
			atomic
			closer
		}{p, a, c},
		m,
		struct {
			plain
			atomic
			lister
			closer
		}{p, a, l, c},
	} {
		timed := timedStorage(t, s, &oteltest.Meters{})
		can := func(s storage.Storage) string {
			_, decides := s.(storage.Atomic)
			_, lists := s.(storage.Lister)
			_, closes := s.(io.Closer)
			return fmt.Sprint(decides, lists, closes)
		}
		if got, want := can(timed), can(s); got != want {
			t.Errorf("storage %d: Atomic, Lister and Close are %s, want %s", i, got, want)
		}
		if _, ok := timed.(storage.Reader); !ok {
			t.Errorf("storage %d: it is no Reader, want one", i)
		}
		if again := timedStorage(t, timed, &oteltest.Meters{}); again != timed {
			t.Errorf("storage %d: timed twice, want once", i)
		}
	}
}

type slow struct{ *memory.Storage }

func (s slow) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	time.Sleep(2 * time.Millisecond)
	return s.Storage.Do(ctx, key, l, within, op)
}

// A decision within shared limits is one call of a storage that decides, timed or not.
func TestSharedLimitsAreOneCall(t *testing.T) {
	var m oteltest.Meters
	b := newBucket(t, drip.Options{Shared: map[string]drip.Limit{"app": {Size: 5}, "orders": {Size: 5}}, Start: time.Unix(0, 0), Storage: slow{memory.New()}}, &m)
	a := buckettest.Runs(t, b, "shop", drip.Request{})
	ok(t, b.Settle(t.Context(), "shop", a.Lease, 1))
	for operation, want := range map[string]int{"admit": 1, "settle": 1, "get": 0, "set": 0, "read": 0} {
		called := attribute.String("drip.operation", operation)
		if n, took := m.Count("drip.storage.duration", called), m.Sum("drip.storage.duration", called); n != want || took < .002*float64(want) {
			t.Errorf("%d calls of %s took %v s, want %d of 2 ms", n, operation, took, want)
		}
	}
}

// closing is a storage that says when it is closed.
type closing struct {
	storage.Storage
	err error
}

func (c closing) Close() error { return c.err }

func TestStorageIsClosed(t *testing.T) {
	want := errors.New("closed")
	timed := timedStorage(t, closing{memory.New(), want}, &oteltest.Meters{})
	if got := timed.(io.Closer).Close(); got != want {
		t.Errorf("Close() = %v, want the storage's %v", got, want)
	}
}

// Read tells what the storage tells, or, of one with Get and Set alone, what Get does and the process's time.
func TestStorageReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		b := buckettest.New(t, drip.Options{Storage: m})
		buckettest.Admit(t, b, "shop", drip.Request{})
		want, err := m.Read(t.Context(), "shop")
		ok(t, err)
		for name, s := range map[string]storage.Storage{"Reader": m, "plain": struct{ storage.Storage }{m}} {
			got, err := timedStorage(t, s, &oteltest.Meters{}).(storage.Reader).Read(t.Context(), "shop")
			if err != nil || !got.Time.Equal(want.Time) {
				t.Errorf("%s: at %v, %v; want %v, no error", name, got.Time, err, want.Time)
			}
			if got.Time = want.Time; !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, want %+v", name, got, want)
			}
		}
	})
}

// failing is a storage of Get and Set alone, whose Get fails with err.
func failing(err func() error) storage.Storage {
	return struct{ storage.Storage }{hooked.Storage{Storage: memory.New(), First: func(_ context.Context, c hooked.Call) error {
		if c.Method == "Get" {
			return err()
		}
		return nil
	}}}
}

// The metric times every call once, under its name and its outcome.
func TestStorageDuration(t *testing.T) {
	var meters oteltest.Meters
	timed := timedStorage(t, memory.New(), &meters)
	limits := buckettest.Ready(decision.Limits{Windows: []decision.Window{{Size: 1, Rate: 1, Interval: 1000}}, Tokens: 1, Guess: 1, Lease: 1000, MaxLease: 1000})
	for kind := decision.GetDelay; kind <= decision.Announce+1; kind++ { // one that there is not, too
		for range 2 {
			_, err := timed.(storage.Atomic).Do(t.Context(), "shop", limits, nil, decision.Op{Kind: kind, Now: 1, Cost: decision.Cost{1}, For: 1, Pin: new(decision.PinnedLimit)})
			ok(t, err)
		}
	}
	for _, operation := range []string{"get_delay", "return_token", "admit", "settle", "cancel", "renew", "throttle", "pause", "resume", "reset", "pin", "unpin", "announce", "_OTHER"} {
		if n := meters.Count("drip.storage.duration", keyOperation.String(operation), attribute.String("api", "orders")); n != 2 {
			t.Errorf("%s was timed %d times, want 2", operation, n)
		}
	}
	var fails error
	timed = timedStorage(t, failing(func() error { return fails }), &meters)
	for want, err := range map[string]error{
		"canceled": fmt.Errorf("get: %w", context.Canceled), "timeout": context.DeadlineExceeded, "_OTHER": errors.New("down"),
	} {
		fails = err
		if _, _, got := timed.Get(t.Context(), "shop"); got != err {
			t.Errorf("the error became %v", got)
		}
		if _, got := timed.(storage.Reader).Read(t.Context(), "shop"); got != err {
			t.Errorf("the error became %v", got)
		}
		for _, operation := range []string{"get", "read"} {
			if n := meters.Count("drip.storage.duration", keyOperation.String(operation), keyErrorType.String(want)); n != 1 {
				t.Errorf("%s with %v was timed %d times as %s, want once", operation, err, n, want)
			}
		}
	}
	if err := timed.Set(t.Context(), "shop", storage.State{}, 7); err != storage.ErrConflict {
		t.Errorf("the error became %v", err)
	}
	if n := meters.Count("drip.storage.duration", keyOperation.String("set"), keyErrorType.String("conflict")); n != 1 {
		t.Errorf("a conflict was timed %d times, want once", n)
	}
	if total := meters.Sum("drip.storage.duration"); total <= 0 || total > 60 {
		t.Errorf("all calls took %v s", total)
	}
}

// The calls of a history are measured, also if they fail.
func TestHistoryIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var meters oteltest.Meters
		var down atomic.Bool
		s := failing(func() error {
			if down.Load() {
				return errors.New("down")
			}
			return nil
		})
		b := newBucket(t, drip.Options{History: true, Storage: s, Start: time.Unix(0, 0)}, &meters)
		counts := func(operation, e string) int {
			with := []attribute.KeyValue{keyOperation.String(operation)}
			if e != "" {
				with = append(with, keyErrorType.String(e))
			}
			synctest.Wait()
			return meters.Count("drip.storage.duration", with...)
		}
		_, err := b.GetDelay(t.Context(), "shop")
		ok(t, err)
		gets, sets := counts("get", ""), counts("set", "")
		down.Store(true)
		time.Sleep(time.Minute)
		if n := counts("get", "_OTHER"); n != 1 {
			t.Errorf("%d Gets that failed were timed, want 1", n)
		}
		down.Store(false)
		time.Sleep(2 * time.Minute)
		if got, set := counts("get", "")-gets, counts("set", "")-sets; got != 2 || set != 1 {
			t.Errorf("%d Gets and %d Sets were timed, want 2 and 1", got, set)
		}
		if u, err := b.Used(t.Context(), "shop"); err != nil || len(u.Units[""]) != 60 {
			t.Errorf("%+v, %v", u, err)
		}
	})
}

// A memory storage has forgotten the operations before, also if it is timed already.
func TestStartOfATimedMemory(t *testing.T) {
	o := drip.Options{Size: 5, RefreshRate: 5, RefreshInterval: 24 * time.Hour, Storage: timedStorage(t, memory.New(), &oteltest.Meters{})}
	plain, err := drip.New(o)
	ok(t, err)
	for name, b := range map[string]buckettest.Admitter{"telemetry.New": newBucket(t, o, &oteltest.Meters{}), "drip.New": plain} {
		if a := buckettest.Admit(t, b, name, drip.Request{}); a.Delay == 0 {
			t.Errorf("%s: a new entity of a memory storage starts full; want it to gain its first capacity with the next interval", name)
		}
	}
}
