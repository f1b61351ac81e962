// Package redis keeps the entities of drip in Redis, where any number of processes share them. It works with a single
// server, Sentinel and Cluster, of Redis 5 or later. docs/storage/redis.md has more on permissions and the Cluster.
//
// # URL
//
// "redis://user:password@host:6379/0", or "rediss:" for TLS, with the parameters of [goredis.ParseURL] and, for
// [Options], prefix and max_hold: "redis://host?prefix=shop:&max_hold=1h". Importing the package registers the
// schemes. For Sentinel and Cluster make a client and call [New].
//
// # Atomicity
//
// Storage is [storage.Atomic]. Every operation on an entity, from GetDelay to Settle, is one call of a script, in one
// round trip, also within shared limits. Callers that wait at the same time share a pipeline, and callers that wait for
// the same entity, or within the same shared limits, share one call of the script. So do callers for other entities, once the
// storage has seen that all keys are on one server. Batching never delays a call: the storage sends it at once unless several
// pipelines to its server are under way.
//
// A process that is alone with an entity for a while decides in Go, and the script only compares and stores. When
// another process has changed the state, the script refuses, and a second one decides in Redis. After each refusal the
// process leaves the entity to that script for longer, up to 64 calls.
//
// A caller whose context ends leaves at once. If its call was not sent yet, Redis never decides it. If it was, the
// storage gives back its token, lease or ticket as soon as the answer comes.
//
// # Lost answers
//
// go-redis sends other commands again after a failure, but not these calls: a repeated call might take a second token.
// So when the connection breaks before the answer, the call fails with [ErrNoAnswer], and may have been done:
//
//   - A token that GetDelay took is lost to the entity until it has taken none for MaxHold.
//   - A lease that Admit took ends by itself. A slot that it booked stays booked, as for a lost ticket.
//   - You may repeat Settle, and Cancel of a lease. Do not repeat ReturnToken or Cancel of a ticket: it might give back another
//     operation's.
//
// # What a key holds
//
// An entity is one key, the prefix and the entity in braces, with a "%" in it as "%25" and a "}" as "%7D". Its value is
// numbers of eight bytes, 376 bytes in all. Each further window adds 152 bytes, a pin 200, each shared limit 112, each
// unit of urgent tickets 112 and each lease 16. A shared limit has a table of booked slots besides: 104 bytes, at most
// 264 for the entities that wait, and 3 for each second or interval with booked slots, up to 1,024 of them. When more
// than 512 leases are out, they move to a sorted set, whose key has ":leases" at the end. So the cost of a call hardly
// grows with the number of leases.
//
// Every key has a time to live. It ends when forgetting the entity changes no answer and its leases have ended. While
// plain tokens of GetDelay are out, it is MaxHold after the last one was taken. The entity also stays for MaxHold at
// least if the caller gives times that are a minute or more away from the server's.
//
// Redis forgets entities sooner if an eviction policy removes them, if keys are flushed, or if a server without
// persistence restarts. They are new then, as full as the Start of the bucket makes them, and their leases are over.
//
// # Cluster
//
// A decision within shared limits needs the keys of the entity and of the limits in one slot: a Prefix with braces of
// its own, such as "{drip}:", puts all keys of a Storage there, on one node. In a Cluster or a Ring a node that does
// not answer does not delay the calls to others. After a failover the new master may lack the last decisions. While a
// slot moves to another node, calls about its entities may fail with TRYAGAIN. They have done nothing.
//
// # Clock
//
// Unless the caller gives a time, the server's clock decides, so the clocks of the processes do not matter.
package redis

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/internal/address"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/internal/recall"
	"github.com/drip-go/drip/storage"
)

var (
	// ErrNoAnswer is in the error of a call that Redis did not answer: the client did not reach it, the connection
	// broke, the client's read timeout passed, or a hook of the client returned something else. The error wraps the
	// cause, too. Unless the cause is a failure to connect, the call may have been done all the same.
	//
	// If Redis answers with an error instead of doing the call, the call returns one that wraps the error of go-redis; see
	// goredis.IsOOMError and similar functions. Nothing has changed then. Only if an access list refuses SET, a lease of
	// an entity with more than 512 leases may be gone.
	ErrNoAnswer = errors.New("redis: no answer")

	// ErrNotState means that the value of the key is not a state. Nothing has changed. If a later version of drip wrote
	// the value, the error is storage.ErrLater, too. A value of an earlier version is no error: the entity begins anew,
	// with empty windows.
	ErrNotState = errors.New("redis: the key holds something else than the state of an entity")

	// ErrClosed is the error of every call after Close.
	ErrClosed = errors.New("redis: the storage is closed")

	errLater = fmt.Errorf("redis: %w%.0w", storage.ErrLater, ErrNotState) // %.0w prints nothing
)

const (
	// maxSenders is how many pipelines to a server may be under way. With more than one the server works on the next
	// while the callers of the last wake up. With too many no calls share a pipeline. A client with a smaller pool has
	// fewer.
	maxSenders = 4

	// maxTurns is the most entities in a pipeline.
	maxTurns = 512

	// maxOps is the most operations in a call of the script. It bounds the time for which a call blocks the server to
	// less than a millisecond.
	maxOps = 64

	// maxEntities is the same for operations about several entities: to read and store one takes as long as several operations.
	maxEntities = 16
)

// Options of a Storage. The zero value is ready.
type Options struct {
	// Prefix is the beginning of all keys. Storages with different prefixes on one server do not share entities. Its first
	// braces must not be empty, and its last one must be closed. Defaults to "drip:".
	Prefix string

	// MaxHold is how long an entity keeps its tokens of GetDelay without running anything. Then the holders count as dead
	// and all its tokens are back. It should be well above the longest operation. If a bucket takes longer to fill, that
	// time replaces it. At least 1ms. Defaults to 24 hours. The leases of Admit end without it.
	MaxHold time.Duration

	// Remember is the most entities that the storage remembers. Each takes about 700 bytes, up to 4 KB if it is a shared
	// limit, and about 100 bytes for each lease. A decision about a remembered entity that no other process has changed
	// takes the server less time. Defaults to 50,000. Below zero it remembers none, and neither does it with a Ring.
	Remember int
}

// Storage keeps the state of entities in Redis. Make one with New or [storage.Open]. It is safe for concurrent use.
type Storage struct {
	client  goredis.UniversalClient
	cluster cluster // the client as well, if it is one of a Cluster
	ring    *goredis.Ring
	owned   bool // the client was made here
	prefix  string
	maxHold int64 // in milliseconds
	senders int   // pipelines that may be under way
	closed  atomic.Bool
	reached atomic.Bool  // something was answered
	slots   atomic.Bool  // the server is a Cluster, although the client is not one of a Cluster
	found   atomic.Int64 // the values that calls of swap.lua found beside the first one's, also changed ones, since one was missing

	memory *recall.Memory[record]

	mu    sync.Mutex
	lanes map[string]*lane // by the address of the server in a Cluster or a Ring; otherwise only one, ""
}

// lane has the calls on their way to a server.
type lane struct {
	*batch.Lane
	storage *Storage
	clock   *recall.Clock // nil if decide.lua decides all calls, as it does while they may go to several servers
	used    time.Time     // guarded by the storage's mu
}

// laneTime is how long a lane without calls stays: its server may have left the Cluster.
const laneTime = time.Hour

// cluster is the additional methods of *goredis.ClusterClient.
type cluster interface {
	MasterForKey(ctx context.Context, key string) (*goredis.Client, error)
	ReloadState(ctx context.Context) // in the background
}

// New returns a Storage that uses the client, whose timeouts, pool and TLS apply; its retries do not apply to
// decisions. It connects to nothing yet. Close leaves the client open. An error names the option, or says that the
// client is nil.
//
// In a Cluster an entity is one key, {entity} after the prefix. So entities spread over the nodes, and keys of your own
// with the same {entity} are on the same node. A prefix with braces of its own puts all entities on one node.
//
// A [goredis.Ring] is like a Cluster, but moves the entities of a server that is down to others. They are new there.
func New(client goredis.UniversalClient, o Options) (*Storage, error) {
	o.Prefix, o.MaxHold = cmp.Or(o.Prefix, "drip:"), cmp.Or(o.MaxHold, 24*time.Hour)
	if o.MaxHold < time.Millisecond {
		return nil, fmt.Errorf("redis: Options.MaxHold is %v; it must be at least 1ms, or 0 for the default", o.MaxHold)
	}
	if _, tag, _ := strings.Cut(o.Prefix, "{"); strings.HasPrefix(tag, "}") { // a Cluster would part the keys of an entity
		return nil, fmt.Errorf("redis: Options.Prefix is %q; its braces must not be empty", o.Prefix)
	}
	if strings.LastIndexByte(o.Prefix, '{') > strings.LastIndexByte(o.Prefix, '}') { // an entity of another prefix may begin with the rest
		return nil, fmt.Errorf("redis: Options.Prefix is %q; its last brace must be closed", o.Prefix)
	}
	if absent.Is(client) {
		return nil, errors.New("redis: the client is nil")
	}
	s := &Storage{
		client:  client,
		prefix:  o.Prefix,
		maxHold: o.MaxHold.Milliseconds(),
		lanes:   map[string]*lane{},
	}
	s.cluster, _ = client.(cluster)
	s.ring, _ = client.(*goredis.Ring)
	if o.Remember >= 0 && s.ring == nil {
		s.memory = recall.New[record](cmp.Or(o.Remember, 50_000))
	}
	pool := maxSenders
	switch c := client.(type) {
	case *goredis.Client:
		pool = c.Options().PoolSize
	case *goredis.ClusterClient:
		pool = c.Options().PoolSize
	case *goredis.Ring:
		pool = c.Options().PoolSize
	}
	s.senders = max(1, min(pool, maxSenders))
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
	var o Options
	rest, err := address.Split(u, map[string]any{"prefix": &o.Prefix, "max_hold": &o.MaxHold})
	if err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	parsed, err := goredis.ParseURL(rest)
	if err != nil {
		return nil, err // about the path or the query, where storage.Open allows no password
	}
	client := goredis.NewClient(parsed)
	s, err := New(client, o)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Close makes every later call fail with ErrClosed. Calls under way may still get an answer, unless the client was
// opened from a URL: then Close closes its connections. First it gives back the tokens and slots of callers that have
// left, for at most five seconds.
func (s *Storage) Close() error {
	if s.closed.Swap(true) || !s.owned {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	s.mu.Lock()
	lanes := slices.Collect(maps.Values(s.lanes))
	s.mu.Unlock()
	for _, l := range lanes {
		l.Drain(ctx)
	}
	return s.client.Close()
}

// Get implements [storage.Storage]. An entity with thousands of leases takes several round trips.
func (s *Storage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	none := storage.State{}
	if err := s.usable(ctx); err != nil {
		return none, storage.NoRevision, err
	}
	keys := s.keys(key)
	value, err := ask(ctx, s, func() ([]byte, error) { return s.client.Get(ctx, keys[0]).Bytes() })
	if errors.Is(err, goredis.Nil) {
		return none, storage.NoRevision, nil
	} else if err != nil {
		return none, storage.NoRevision, err
	}
	v, err := unpack(value)
	if err != nil {
		return none, storage.NoRevision, err
	}
	var state decision.State
	held, err := storage.Decode(v.Data, &state)
	if err != nil {
		return v.State, v.revision, nil // Set has stored it
	}
	// A change of a lease changes the revision: if the set changes meanwhile, the Set that follows fails.
	for more := v.apart; more; {
		list, err := ask(ctx, s, func() ([]goredis.Z, error) {
			return s.client.ZRangeWithScores(ctx, keys[1], int64(len(held)), int64(len(held))+storage.MostListed-1).Result()
		})
		if err != nil {
			return none, storage.NoRevision, err
		}
		for _, z := range list {
			id, _ := z.Member.(string)
			if len(id) != 8 {
				return none, storage.NoRevision, ErrNotState
			}
			held = append(held, storage.Held{ID: number([]byte(id), 0), End: int64(z.Score)})
		}
		more = len(list) == storage.MostListed
	}
	if len(held) > 0 {
		byEnd(held)
		v.Data = storage.Encode(&state, held)
	}
	return v.State, v.revision, nil
}

// Read implements [storage.Reader].
func (s *Storage) Read(ctx context.Context, key string) (storage.Entry, error) {
	if err := s.usable(ctx); err != nil {
		return storage.Entry{}, err
	}
	return s.read(ctx, s.client, key)
}

// read reads an entity from one server.
func (s *Storage) read(ctx context.Context, client goredis.Scripter, key string) (storage.Entry, error) {
	keys := s.keys(key)
	answer, err := ask(ctx, s, func() ([]any, error) {
		return readScript.Run(ctx, client, keys[:], storage.MostListed).Slice()
	})
	if err != nil {
		return storage.Entry{}, err
	}
	if len(answer) != 5 {
		return storage.Entry{}, fmt.Errorf("%w that is an entity", ErrNoAnswer)
	}
	value, _ := answer[0].(string)
	seconds, err1 := strconv.ParseInt(fmt.Sprint(answer[1]), 10, 64)
	micros, err2 := strconv.ParseInt(fmt.Sprint(answer[2]), 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return storage.Entry{}, fmt.Errorf("%w that is an entity: %w", ErrNoAnswer, err)
	}
	e := storage.Entry{Key: key, Time: time.Unix(seconds, 1000*micros)}
	if value == "" {
		return e, nil
	}
	v, err := unpack([]byte(value))
	if err != nil {
		return storage.Entry{}, err
	}
	if e.Leases, err = storage.Decode(v.Data, &e.State); errors.Is(err, storage.ErrLater) {
		return storage.Entry{}, errLater
	} else if err != nil {
		return storage.Entry{}, fmt.Errorf("%w%.0w", ErrNotState, err) // %.0w prints nothing: they say the same
	}
	e.Out = int64(len(e.Leases))
	if v.apart {
		list, _ := answer[3].([]any)
		e.Out, _ = answer[4].(int64)
		if e.Leases, err = heldOf(list); err != nil {
			return storage.Entry{}, err
		}
	}
	byEnd(e.Leases)
	return e, nil
}

// Set implements [storage.Storage].
func (s *Storage) Set(ctx context.Context, key string, state storage.State, rev storage.Revision) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	keep := s.maxHold
	if state.Until != decision.Never {
		keep = state.Until - state.Now
	}
	far := appendNumbers(nil, state.Now, timeToLive(keep), timeToLive(max(keep, s.maxHold)))
	var read []byte
	if rev != storage.NoRevision {
		read = binary.LittleEndian.AppendUint64(nil, uint64(rev))
	}
	before, behind := pack(&state)
	keys := s.keys(key)
	c := setScript.command(keys[:], read, before, behind, far)
	result, err := ask(ctx, s, func() (int, error) {
		run(s.client, []*command{c})
		return c.Int()
	})
	switch {
	case err != nil:
		return err
	case result < 0:
		return ErrNotState
	case result == 0:
		return storage.ErrConflict
	}
	return nil
}

// Do implements [storage.Atomic]. In a Cluster the keys of shared limits must be in the same slot as the key of the
// entity: a Prefix with braces puts all keys in one slot. Otherwise the error is storage.ErrApart.
func (s *Storage) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	if err := s.usable(ctx); err != nil {
		return decision.Answer{}, err
	}
	if len(within) > 0 && s.spread() {
		return decision.Answer{}, fmt.Errorf("redis: %w: on several servers shared limits need a Prefix with braces, such as \"{drip}:\"", storage.ErrApart)
	}
	group := key
	if len(within) > 0 { // those of one app share their calls
		group = within[0].Key
	}
	return s.lane(ctx, key).Do(ctx, group, key, l, within, op)
}

// spread reports whether the keys may be on several servers.
func (s *Storage) spread() bool {
	_, tag, opened := strings.Cut(s.prefix, "{")
	return (s.cluster != nil || s.ring != nil) && !(opened && strings.IndexByte(tag, '}') > 0)
}

// lane returns the lane of an entity. In a Cluster or a Ring each server has its own, so that a server that hangs does not
// delay the calls to others.
func (s *Storage) lane(ctx context.Context, key string) *lane {
	server, client, err := "", (*goredis.Client)(nil), error(nil)
	if s.ring != nil {
		client, err = s.ring.GetShardClientForKey(s.key(key))
	} else if s.cluster != nil && s.reached.Load() { // before, the client may ask for the nodes here, for longer than ctx lives
		client, err = s.cluster.MasterForKey(ctx, s.key(key))
	}
	if client != nil && err == nil {
		server = client.Options().Addr
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lanes[server]
	if l == nil {
		maps.DeleteFunc(s.lanes, func(_ string, l *lane) bool { return time.Since(l.used) >= laneTime })
		l = &lane{storage: s}
		l.Lane = batch.New(s.senders, maxTurns, l.decide)
		if s.memory != nil && (s.cluster == nil || server != "") {
			l.clock = recall.NewClock()
		}
		s.lanes[server] = l
	}
	l.used = time.Now()
	return l
}

// again reports whether a failed operation was surely not done, and may be done later.
func again(err error) bool {
	var answer goredis.Error
	var network *net.OpError
	return !errors.Is(err, ErrClosed) && !errors.Is(err, ErrNotState) &&
		(errors.As(err, &answer) || errors.Is(err, goredis.ErrPoolTimeout) || errors.As(err, &network) && network.Op == "dial")
}

// key returns the key of an entity's state. A Cluster picks the node by the text between the first brace and the next
// closing one, so that text has no closing brace.
func (s *Storage) key(entity string) string {
	if strings.ContainsAny(entity, "%}") {
		entity = escape.Replace(entity)
	}
	return s.prefix + "{" + entity + "}"
}

// keys returns the keys of an entity: of its state and of its leases.
func (s *Storage) keys(entity string) [2]string {
	key := s.key(entity)
	return [2]string{key, key + ":leases"}
}

var (
	escape   = strings.NewReplacer("%", "%25", "}", "%7D")
	unescape = strings.NewReplacer("%25", "%", "%7D", "}")
)

// usable returns the error of a call that cannot succeed.
func (s *Storage) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}

// failure turns an error of go-redis into one that this package documents.
func (s *Storage) failure(err error) error {
	var answer goredis.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, goredis.ErrClosed) && s.closed.Load():
		return ErrClosed
	case !errors.As(err, &answer):
		if s.cluster != nil { // else it looks for the new master within the next minute
			s.cluster.ReloadState(context.Background())
		}
		return fmt.Errorf("%w: %w", ErrNoAnswer, err)
	case goredis.HasErrorPrefix(err, "DRIPSTATE"):
		return fmt.Errorf("%w: %q", ErrNotState, strings.TrimPrefix(err.Error(), "DRIPSTATE "))
	case goredis.HasErrorPrefix(err, "DRIPLATER"):
		return fmt.Errorf("%w: %q", errLater, strings.TrimPrefix(err.Error(), "DRIPLATER "))
	case strings.Contains(err.Error(), "WRONGTYPE"): // before Redis 7 it is not in front
		return fmt.Errorf("%w: %w", ErrNotState, err)
	}
	return fmt.Errorf("redis: %w", err)
}

// ask returns the results of f, or the error of ctx as soon as ctx ends, because go-redis does not interrupt a call
// under way. Then f goes on, and its outcome is lost.
func ask[T any](ctx context.Context, s *Storage, f func() (T, error)) (T, error) {
	if ctx.Done() == nil {
		value, err := f()
		return value, s.failure(err)
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
		return o.value, s.failure(o.err)
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
