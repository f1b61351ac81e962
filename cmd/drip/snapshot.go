package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip"
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

// snapshot is what is stored of an entity at one time. It is a Storage of that entity alone, of which a Bucket can be
// asked what it makes of it.
type snapshot struct {
	state storage.State
	known bool
	time  time.Time
}

// take reads an entity, in one round trip.
func take(ctx context.Context, s storage.Storage, entity string) (snapshot, error) {
	var (
		snap snapshot
		rev  storage.Revision
		err  error
	)
	if timed, ok := s.(storage.Timed); ok {
		snap.state, rev, snap.time, err = timed.GetWithTime(ctx, entity)
	} else {
		snap.state, rev, err = s.Get(ctx, entity)
		snap.time = time.Now()
	}
	snap.known = rev != storage.NoRevision
	return snap, err
}

func (s snapshot) GetWithTime(context.Context, string) (storage.State, storage.Revision, time.Time, error) {
	rev := storage.NoRevision
	if s.known {
		rev = 1
	}
	return s.state.Clone(), rev, s.time, nil
}

func (s snapshot) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	state, rev, _, err := s.GetWithTime(ctx, key)
	return state, rev, err
}

func (s snapshot) Set(context.Context, string, storage.State, storage.Revision) error {
	return errors.New("a snapshot does not change")
}

// status is what drip makes of the snapshot under these limits.
func (s snapshot) status(ctx context.Context, l *limits, entity string) (drip.Status, error) {
	b, err := l.bucket(s)
	if err != nil {
		return drip.Status{}, err
	}
	return b.Inspect(ctx, entity)
}

// limits are the windows that the last decision went by, or nil: they are stored only with what Admit, Pause and
// Throttled leave. Everything else is not, such as how many tokens there are: here there are plenty.
func (s snapshot) limits() *limits {
	b := s.state.Booking
	if b == nil {
		return nil
	}
	var l limits
	first := windowOf(b.Window)
	l.Size, l.Rate, l.Interval, l.Concurrency = first.Size, first.Rate, first.Interval, plenty
	for _, f := range b.Further {
		l.Windows = append(l.Windows, windowOf(f.Window))
	}
	return &l
}

const plenty = 1 << 30

func windowOf(w storage.Window) window {
	return window{int(w.Size), int(w.RefreshRate), duration(storage.Milliseconds(w.RefreshInterval))}
}

// facts are what a snapshot says without any limits.
type facts struct {
	lastRun     time.Time // zero: never
	capacity    []int64   // of each window, when it ran last
	plain       int       // tokens without a lease
	leases      []lease
	operation   time.Duration
	tickets     int
	booked      int       // units
	bookedUntil time.Time // when the last ticket is due
	promised    time.Time // the last slot given to anybody, if it is to come
	closedUntil time.Time // zero: open
}

type lease struct {
	age time.Duration
	end time.Time
}

func (f facts) inUse() int { return f.plain + len(f.leases) }

// waiting is until when those that were postponed are put off; zero if nobody is.
func (f facts) waiting() time.Time {
	if f.promised.After(f.bookedUntil) {
		return f.promised
	}
	return f.bookedUntil
}

func (s snapshot) facts() (f facts) {
	if !s.known {
		return f
	}
	now := s.time.UnixMilli()
	if s.state.Ops.Last > 0 {
		f.lastRun = time.UnixMilli(s.state.Ops.Last)
	}
	f.capacity = []int64{s.state.Ops.Capacity}
	f.plain = int(s.state.InUse)
	last := s.state.Wait.Last
	if b := s.state.Booking; b != nil {
		for _, w := range b.Further {
			f.capacity = append(f.capacity, w.Ops)
		}
		for _, h := range b.Leases {
			if h.End > now {
				age := storage.Milliseconds(max(0, now-h.Begin()))
				f.leases = append(f.leases, lease{age, time.UnixMilli(h.End)})
			}
		}
		if b.Samples > 0 {
			f.operation = storage.Milliseconds(b.Held / b.Samples)
		}
		if n := b.Old.Tickets + b.New.Tickets; n > 0 && now < s.state.Until {
			f.tickets = int(n)
			f.booked = int(b.Old.Units + b.New.Units)
			f.bookedUntil = time.UnixMilli(max(b.Old.Last, b.New.Last))
		}
		if b.Closed > now {
			f.closedUntil = time.UnixMilli(b.Closed)
		}
		last = max(last, b.Late.Last)
	}
	if last > now {
		f.promised = time.UnixMilli(last)
	}
	slices.SortStableFunc(f.leases, func(a, b lease) int { return cmp.Compare(b.age, a.age) })
	return f
}
