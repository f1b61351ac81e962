package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/internal/reading"
	"github.com/drip-go/drip/storage"
)

// Storage returns s with its calls timed, except List. The result is a [storage.Atomic] or a [storage.Lister], and has
// Close, if s is and has. It is always a [storage.Reader], by the clock of the process if s is none.
//
// New does this with its Options.Storage. Use Storage for a storage that a bucket shares with others, such as the
// limiters of package limiter. Storage returns a storage that is timed already as it is.
func Storage(s storage.Storage, p metric.MeterProvider, attributes ...attribute.KeyValue) (storage.Storage, error) {
	switch {
	case s == nil:
		return nil, errors.New("telemetry: there is no storage")
	case p == nil:
		return nil, errors.New("telemetry: there is no MeterProvider")
	case absent.Is(s):
		return nil, fmt.Errorf("telemetry: the storage is a nil %T", s)
	}
	if _, ok := s.(interface{ isTimed() }); ok {
		return s, nil
	}
	duration, err := p.Meter(scope).Float64Histogram("drip.storage.duration", metric.WithUnit("s"),
		metric.WithDescription("How long calls of the storage take."),
		metric.WithExplicitBucketBoundaries(.00001, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t := &timed{Storage: s, duration: duration, calls: map[call]labels{}}
	for _, operation := range append(operations[:], get, set, read, other) {
		for _, e := range []string{"", "conflict", "canceled", "timeout", other} {
			with := []attribute.KeyValue{keyOperation.String(operation)}
			if e != "" {
				with = append(with, keyErrorType.String(e))
			}
			t.calls[call{operation, e}] = labelled(attributes, with...)
		}
	}
	atomic, decides := s.(storage.Atomic)
	lister, lists := s.(storage.Lister)
	closer, closes := s.(io.Closer)
	d := decider{t, atomic}
	switch {
	case decides && lists && closes:
		return struct {
			decider
			storage.Lister
			io.Closer
		}{d, lister, closer}, nil
	case decides && lists:
		return struct {
			decider
			storage.Lister
		}{d, lister}, nil
	case decides && closes:
		return struct {
			decider
			io.Closer
		}{d, closer}, nil
	case decides:
		return d, nil
	case lists && closes:
		return struct {
			*timed
			storage.Lister
			io.Closer
		}{t, lister, closer}, nil
	case lists:
		return struct {
			*timed
			storage.Lister
		}{t, lister}, nil
	case closes:
		return struct {
			*timed
			io.Closer
		}{t, closer}, nil
	}
	return t, nil
}

// timed is a storage with Get, Set and Read.
type timed struct {
	storage.Storage
	duration metric.Float64Histogram
	calls    map[call]labels
}

type call struct{ operation, errorType string }

// operations are the names of the operations of a storage.Atomic, by their kinds.
var operations = [...]string{
	decision.GetDelay: "get_delay", decision.ReturnToken: "return_token", decision.Admit: "admit", decision.Settle: "settle",
	decision.Cancel: "cancel", decision.Renew: "renew", decision.Throttle: "throttle", decision.Pause: "pause",
	decision.Resume: "resume", decision.Reset: "reset", decision.Pin: "pin", decision.Unpin: "unpin", decision.Announce: "announce",
}

const get, set, read, other = "get", "set", "read", "_OTHER"

func (t *timed) isTimed() {}

// Unwrap returns the storage that is timed: drip.New asks whether it is one in memory.
func (t *timed) Unwrap() storage.Storage { return t.Storage }

func (t *timed) record(ctx context.Context, began time.Time, operation string, err error) {
	t.duration.Record(ctx, time.Since(began).Seconds(), t.calls[call{operation, errorType(err)}].record...)
}

func errorType(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, storage.ErrConflict):
		return "conflict"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	}
	return other
}

func (t *timed) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	began := time.Now()
	s, rev, err := t.Storage.Get(ctx, key)
	t.record(ctx, began, get, err)
	return s, rev, err
}

// Read implements [storage.Reader].
func (t *timed) Read(ctx context.Context, key string) (storage.Entry, error) {
	began := time.Now()
	e, err := reading.Entity(ctx, t.Storage, key)
	t.record(ctx, began, read, err)
	return e, err
}

func (t *timed) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	began := time.Now()
	err := t.Storage.Set(ctx, key, s, rev)
	t.record(ctx, began, set, err)
	return err
}

// decider is a timed storage that decides beside its data.
type decider struct {
	*timed
	atomic storage.Atomic
}

func (d decider) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	operation := other
	if op.Kind >= 0 && int(op.Kind) < len(operations) {
		operation = operations[op.Kind]
	}
	began := time.Now()
	a, err := d.atomic.Do(ctx, key, l, within, op)
	d.record(ctx, began, operation, err)
	return a, err
}
