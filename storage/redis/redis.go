// Package redis keeps the entities of drip in Redis, where any number of processes share them. It works with a single
// server, Sentinel and Cluster, of Redis 5 or later.
//
// # URL
//
// "redis://user:password@host:6379/0", or "rediss:" for TLS, with the parameters of [goredis.ParseURL] and, for
// [Options], prefix and max_hold: "redis://host?prefix=shop:&max_hold=1h". Importing the package registers the
// schemes. For Sentinel and Cluster make a client and call [New].
//
// # Atomicity
//
// Storage is [storage.Atomic]. An entity is one key, and every operation on it, from GetDelay to Settle, is one call of
// a script beside it, in one round trip. Callers who wait at the same time share a pipeline, and those who wait for the
// same entity share one call of the script. Nobody waits for company: a caller is sent at once unless several pipelines
// to its server are under way.
//
// A caller whose context ends leaves at once. What was not sent yet is not decided; what was is, but a token, a lease
// or a ticket is given back as soon as the answer comes.
//
// # Lost answers
//
// A call that was sent is not sent again, as go-redis does with other commands: it might take a second token. So
// when the connection breaks before the answer, the call fails with [ErrNoAnswer], and may have been done:
//
//   - A token that GetDelay took is lost to the entity until it has run nothing for MaxHold.
//   - A lease that Admit took ends by itself, a ticket that it booked is given up some time after it was due. The
//     capacity stays used.
//   - Settle and Renew may be done again, and Cancel of a lease: the second time they find the lease as the first has
//     left it. ReturnToken may not, nor Cancel of a ticket: it might give back somebody else's.
//
// # What a key holds
//
// The value of a key is a revision and the numbers of [storage.State], eight bytes each: 64 bytes for an entity that
// knows only GetDelay, 232 for one that was admitted to, and 48 more for each further window and 16 for each lease that
// is out. The key is the prefix and the entity in braces.
//
// Every key has a time to live: until the entity would be as good as new, its leases have ended, its tickets are given
// up and it is open again. While plain tokens of GetDelay are out, that is MaxHold after its last run at least; then
// Redis forgets it, and tokens whose holders have died are back. Leases do not need MaxHold. An entity that was decided
// at a time of the caller's is kept for MaxHold after each call, for the server's clock says nothing about that time.
//
// With an eviction policy Redis may forget entities sooner, and so it does when keys are flushed or a server without
// persistence is restarted. They are new then, as full as the Start of the bucket makes them, and their leases are over.
//
// # Cluster and access
//
// In a Cluster the entities spread over all nodes, and one that does not answer keeps nobody from the others. After a
// failover the new master may lack the last decisions, which Redis replicates without waiting.
//
// A user with an access list needs "~drip:* +evalsha +eval +get +set +time", for List "+scan", and what the client needs
// to connect.
//
// # Clock
//
// Unless the caller gives a time, the server's clock decides, so the clocks of the processes do not matter. Times and
// limits must be below 2^52, and so must the time a bucket takes to fill in milliseconds, or a call fails with
// [ErrRange]: Lua has no larger exact numbers. Leases, whose numbers are made from the time, can be had until the
// year 2248.
package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/storage"
)

var (
	// ErrNoAnswer is wrapped by the error of a call that Redis did not answer: it was not reached, the connection
	// broke, or the client's read timeout passed. Unless the cause, wrapped too, is a failure to connect, the call
	// may have been done all the same.
	//
	// What Redis answers instead of doing the call is returned as go-redis makes it; see goredis.IsOOMError and its
	// kin. Nothing has changed then.
	ErrNoAnswer = errors.New("redis: no answer")

	// ErrNotState is returned when the key holds something else than a state, which was not written by this package.
	// Nothing has changed.
	ErrNotState = errors.New("redis: the key holds something else than the state of an entity")

	// ErrRange is returned when a number is too large to calculate with: see the package's Clock. Nothing has changed.
	ErrRange = errors.New("redis: a limit or a time is too large")

	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("redis: the storage is closed")
)

// Options of a Storage. The zero value is ready.
type Options struct {
	// Prefix is what all keys begin with. Storages that share a server and have different ones do not share
	// entities. Defaults to "drip:".
	Prefix string

	// MaxHold is how long a token of GetDelay may be out, as far as the storage can tell: when an entity with tokens out
	// has run nothing for so long, its holders count as dead and all its tokens are back. It should be well above the
	// longest operation. When a bucket takes longer to fill, that time takes its place. Defaults to 24 hours. The leases
	// of Admit end without it.
	MaxHold time.Duration
}

// Storage keeps the state of entities in Redis. Make one with New or [storage.Open]. It is safe for concurrent use.
type Storage struct {
	client  goredis.UniversalClient
	cluster cluster // the client as well, if it is one of a Cluster
	owned   bool    // the client was made here
	prefix  string
	maxHold int64 // in milliseconds
	closed  atomic.Bool
	reached atomic.Bool // something was answered

	mu    sync.Mutex
	lanes map[string]*lane // by the address of the server in a Cluster; otherwise there is one, ""
}

// cluster is what *goredis.ClusterClient has besides.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*goredis.Client, error)
	ReloadState(ctx context.Context) // in the background
}

// New returns a Storage that uses the client, whose timeouts, pool and TLS apply; its retries do not apply to
// decisions. It connects to nothing yet. Close leaves the client open.
//
// In a Cluster an entity is one key, {entity} after the prefix, so entities spread over the nodes, and keys of your
// own with the same {entity} are on the same node. A prefix with braces of its own puts all entities on one node.
func New(client goredis.UniversalClient, o Options) (*Storage, error) {
	if o.Prefix == "" {
		o.Prefix = "drip:"
	}
	if o.MaxHold == 0 {
		o.MaxHold = 24 * time.Hour
	}
	if o.MaxHold < time.Millisecond {
		return nil, fmt.Errorf("redis: Options.MaxHold is %v; it must be at least 1ms, or 0 for the default", o.MaxHold)
	}
	s := &Storage{
		client:  client,
		prefix:  o.Prefix,
		maxHold: o.MaxHold.Milliseconds(),
		lanes:   map[string]*lane{},
	}
	s.cluster, _ = client.(cluster)
	return s, nil
}

func init() {
	storage.Register("redis", open)
	storage.Register("rediss", open)
}

func open(_ context.Context, u *url.URL) (storage.Storage, error) {
	if u.Opaque != "" {
		return nil, errors.New("redis: the URL has no // after the scheme")
	}
	rest, query := *u, u.Query()
	o := Options{Prefix: query.Get("prefix")}
	if hold := query.Get("max_hold"); hold != "" {
		d, err := time.ParseDuration(hold)
		if err != nil {
			return nil, errors.New("redis: max_hold is not a duration such as 1h")
		}
		o.MaxHold = d
	}
	query.Del("prefix")
	query.Del("max_hold")
	rest.RawQuery = query.Encode()
	parsed, err := goredis.ParseURL(rest.String())
	if err != nil {
		return nil, err // about the path or the query: storage.Open has seen to it that no password is there
	}
	s, err := New(goredis.NewClient(parsed), o)
	if err != nil {
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Close makes every later call fail with ErrClosed. Calls under way may still be answered, unless the client was
// opened from a URL: then its connections are closed.
func (s *Storage) Close() error {
	if s.closed.Swap(true) || !s.owned {
		return nil
	}
	return s.client.Close()
}

// Get implements [storage.Storage].
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	if err := s.usable(ctx); err != nil {
		return storage.State{}, storage.NoRevision, err
	}
	value, err := within(ctx, func() ([]byte, error) { return s.client.Get(ctx, s.key(key)).Bytes() })
	switch {
	case errors.Is(err, goredis.Nil):
		return storage.State{}, storage.NoRevision, nil
	case err != nil:
		return storage.State{}, storage.NoRevision, s.failure(err)
	}
	return unpack(value)
}

// GetWithTime implements [storage.Timed].
func (s *Storage) GetWithTime(ctx context.Context, key string) (storage.State, storage.Revision, time.Time, error) {
	fail := func(err error) (storage.State, storage.Revision, time.Time, error) {
		return storage.State{}, storage.NoRevision, time.Time{}, err
	}
	if err := s.usable(ctx); err != nil {
		return fail(err)
	}
	answer, err := within(ctx, func() ([]any, error) { return getScript.Run(ctx, s.client, []string{s.key(key)}).Slice() })
	if err != nil {
		return fail(s.failure(err))
	}
	var numbers [2]int64
	for i := range numbers {
		text, _ := answer[1+i].(string)
		if numbers[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return fail(err)
		}
	}
	now := time.Unix(numbers[0], 1000*numbers[1])
	value, known := answer[0].(string)
	if !known {
		return storage.State{}, storage.NoRevision, now, nil
	}
	state, rev, err := unpack([]byte(value))
	return state, rev, now, err
}

// Set implements [storage.Storage]. The time of a state is a caller's.
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var read []byte
	if rev != storage.NoRevision {
		read = binary.BigEndian.AppendUint64(nil, uint64(rev))
	}
	keep := s.maxHold
	if state.Until < limit && state.Ops.Last > -limit {
		keep = max(keep, state.Until-state.Ops.Last)
	}
	c := setScript.command(append(setScript.args(s.key(key)), read, packState(state), keep))
	answer, err := within(ctx, func() (string, error) {
		run(s.client, []*command{c})
		return c.Result()
	})
	switch {
	case err != nil:
		return s.failure(err)
	case answer == "0":
		return storage.ErrConflict
	}
	return nil
}

// Do implements [storage.Atomic].
func (s *Storage) Do(ctx context.Context, key string, l *storage.Limits, op storage.Op) (storage.Answer, error) {
	if err := s.usable(ctx); err != nil {
		return storage.Answer{}, err
	}
	limits, err := packLimits(l)
	if err != nil {
		return storage.Answer{}, err
	}
	packed, err := packOp(&op)
	if err != nil {
		return storage.Answer{}, err
	}
	c := &call{key: s.key(key), limits: limits, op: packed, kind: op.Kind, now: op.Now}
	return s.lane(ctx, c.key).do(ctx, c)
}

// lane returns the lane of a key. In a Cluster each server has its own, so that one which hangs keeps nobody from the
// others.
func (s *Storage) lane(ctx context.Context, key string) *lane {
	server := ""
	// Before the first answer the client may not know the Cluster, and would ask here, for longer than ctx lives.
	if s.cluster != nil && s.reached.Load() {
		if master, err := s.cluster.MasterForKey(ctx, key); err == nil {
			server = master.Options().Addr
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[server]
	if l == nil {
		l = &lane{decide: s.decide}
		s.lanes[server] = l
	}
	return l
}

// decide sends the calls, those of one entity as one command, and sets what came of them.
func (s *Storage) decide(calls []*call) {
	firsts := byEntity(calls)
	commands := make([]*command, len(firsts))
	for i, first := range firsts {
		args := append(opScript.args(first.key), first.limits, s.maxHold)
		for c := first; c != nil; c = c.next {
			args = append(args, c.op)
		}
		commands[i] = opScript.command(args)
	}
	run(s.client, commands)
	for i, first := range firsts {
		answers, err := commands[i].Result()
		if err != nil {
			err = s.failure(err)
		} else if !s.reached.Load() {
			s.reached.Store(true)
		}
		for c := first; c != nil; c = c.next {
			if c.err = err; err == nil {
				c.answer, answers = take(answers, c.kind)
			}
		}
	}
}

// key names the key of an entity. A Cluster picks the node by what is between the first brace and the one that closes
// it, or by the whole key when that is nothing: so an entity with such a brace in it is not cut there.
func (s *Storage) key(entity string) string {
	if strings.Contains(entity, "}") {
		return s.prefix + "{}" + entity
	}
	return s.prefix + "{" + entity + "}"
}

// usable is the error of a call that need not be tried.
func (s *Storage) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// failure makes an error of go-redis one that this package documents.
func (s *Storage) failure(err error) error {
	var answer goredis.Error
	switch {
	case errors.Is(err, goredis.ErrClosed) && s.closed.Load():
		return ErrClosed
	case !errors.As(err, &answer):
		if s.cluster != nil { // else it looks for the new master within the next minute
			s.cluster.ReloadState(context.Background())
		}
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case goredis.HasErrorPrefix(err, "DRIPRANGE"):
		return ErrRange
	case goredis.HasErrorPrefix(err, "DRIPSTATE"):
		return ErrNotState
	case strings.Contains(err.Error(), "WRONGTYPE"): // before Redis 7 it is not in front
		return fmt.Errorf("%w: %w", ErrNotState, err)
	}
	return err
}

// within returns what f returns, or the error of ctx as soon as that ends: go-redis does not interrupt what is on its
// way. Then f goes on, and its outcome is lost.
func within[T any](ctx context.Context, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		return f()
	}
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		value, err := f()
		done <- outcome{value, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
