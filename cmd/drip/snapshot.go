package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/postgres"
	_ "github.com/drip-go/drip/storage/redis"
)

// open opens the storage of a URL argument. close is to be called in the end.
func open(ctx context.Context, arg string) (s storage.Storage, close func(), err error) {
	url, err := address(arg)
	if err != nil {
		return nil, nil, err
	}
	if strings.HasPrefix(strings.ToLower(url), "memory:") {
		return nil, nil, usagef("memory: is in the process that uses it; nobody else can look into it")
	}
	s, err = storage.Open(ctx, url)
	if err != nil {
		return nil, nil, usageError{err}
	}
	return s, func() {
		if c, ok := s.(io.Closer); ok {
			_ = c.Close() // nothing is under way
		}
	}, nil
}

// read reads an entity, in one round trip.
func read(ctx context.Context, s storage.Storage, entity string) (storage.Entry, error) {
	r, ok := s.(storage.Reader)
	if !ok {
		return storage.Entry{}, errors.New("this storage cannot show its entities")
	}
	e, err := r.Read(ctx, entity)
	if err != nil {
		return e, fmt.Errorf("%q: %w", entity, err)
	}
	return e, nil
}

// judge says what drip makes of entities that were read. It is the storage of its own Bucket, with one of them at a time.
type judge struct {
	storage.Storage // nil: Inspect only reads
	entry           storage.Entry
	bucket          *drip.Bucket
	limits          bool // they are known
}

// newJudge returns a judge by these limits. If they are nil, what needs limits is left out of its reports.
func newJudge(l *limits) (*judge, error) {
	j := &judge{limits: l != nil}
	if l == nil {
		l = &limits{Size: 1, Rate: 1, Interval: duration(366 * 24 * time.Hour)} // by which nothing is forgotten soon
	}
	var err error
	j.bucket, err = l.bucket(j)
	return j, err
}

// Read implements storage.Reader. The Bucket gets a copy, as it is the caller's.
func (j *judge) Read(context.Context, string) (storage.Entry, error) {
	e := j.entry
	e.State = e.State.Copy()
	return e, nil
}

func (j *judge) report(ctx context.Context, e storage.Entry) (*report, error) {
	j.entry = e
	s, err := j.bucket.Inspect(ctx, e.Key)
	r := &report{Status: s, limits: j.limits, plain: int(e.State.Plain)}
	if !s.Known {
		return r, err
	}
	r.decided = time.UnixMilli(e.State.Now)
	if last := time.UnixMilli(e.State.Slot); last.After(s.Time) {
		r.waiting = last
	}
	for _, line := range e.State.Lines {
		r.capacity = append(r.capacity, line.Left)
	}
	r.changed = j.limits && e.State.Print != printOf(s.Windows)
	return r, err
}

// printOf is the mark of windows in the state of the entities that are decided by them.
func printOf(windows []drip.WindowStatus) int64 {
	var l decision.Limits
	for _, w := range windows {
		l.Windows = append(l.Windows, decision.Window{
			Size: int64(w.Size), Rate: int64(w.RefreshRate), Interval: w.RefreshInterval.Milliseconds(),
		})
	}
	l.Ready() // Print does not depend on what is missing
	return l.Print
}

// report is what is said of an entity. Without limits the Status has no meaning in what depends on them: Windows, Delay,
// Bound, Then, Booked and Concurrency.
type report struct {
	drip.Status
	limits  bool // they are known
	changed bool // the last decision was made by other ones

	plain    int       // tokens without a lease
	decided  time.Time // the time of the last decision; zero: never
	waiting  time.Time // the last slot that is promised; zero if it has passed
	capacity []int64   // of each window, after the last decision
}
