package redis

import (
	"context"
	"errors"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/storage"
)

// scanned is how many keys Redis looks at for one step of List: a step blocks it for less than a millisecond.
const scanned = 1000

// mostSeen is how many entities List knows that it has told. They take up to 40 MB.
const mostSeen = 1 << 20

// List implements [storage.Lister]. It scans the keys of every master, which takes two round trips for each thousand of
// them, keys of other programs included, and gets the keys with the prefix. It leaves out values that are no state. A
// user with an access list also needs "+scan".
//
// Redis may return a key more than once, for example while it resizes its table of keys. List tells each of the first
// million entities once. It may tell the others twice.
func (s *Storage) List(ctx context.Context, each func(storage.Entry) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	var (
		mu    sync.Mutex // go-redis asks the masters concurrently
		asked bool
		ended error
		seed  = maphash.MakeSeed()
		seen  = map[uint64]bool{} // hashes of entities
	)
	one := func(e storage.Entry) error {
		mu.Lock()
		defer mu.Unlock()
		if ended == nil {
			ended = ctx.Err()
		}
		if hash := maphash.String(seed, e.Key); ended == nil && !seen[hash] {
			if len(seen) < mostSeen {
				seen[hash] = true
			}
			ended = each(e)
		}
		return ended
	}
	var forEach func(context.Context, func(context.Context, *goredis.Client) error) error
	switch c := s.client.(type) {
	case *goredis.Ring:
		forEach = c.ForEachShard
	case interface {
		ForEachMaster(context.Context, func(context.Context, *goredis.Client) error) error
	}:
		forEach = c.ForEachMaster
	default:
		return s.list(ctx, s.client, one)
	}
	err := forEach(ctx, func(ctx context.Context, c *goredis.Client) error {
		mu.Lock()
		asked = true
		mu.Unlock()
		return s.list(ctx, c, one)
	})
	if err != nil && !asked { // it could not list the masters
		return s.failure(err)
	}
	return err
}

func (s *Storage) list(ctx context.Context, client goredis.Cmdable, each func(storage.Entry) error) error {
	for cursor, more := uint64(0), true; more; more = cursor != 0 {
		var keys []string
		var err error
		keys, cursor, err = s.scan(ctx, client, cursor, literally(s.prefix)+"{*}")
		if err != nil {
			return err
		}
		if s.ring != nil { // it leaves the keys of a time when another server was down
			keys = slices.DeleteFunc(keys, func(key string) bool {
				holder, err := s.ring.GetShardClientForKey(key)
				return err == nil && holder != client
			})
		}
		if len(keys) == 0 {
			continue
		}
		now, values, err := s.getAll(ctx, client, keys)
		if err != nil {
			return err
		}
		for i, value := range values {
			entity, ours := s.entity(keys[i])
			v, err := unpack(value)
			if !ours || err != nil { // gone since, or no key of this Storage
				continue
			}
			e := storage.Entry{Key: entity, Time: now}
			if v.apart {
				if e, err = s.read(ctx, client, entity); err != nil && !errors.Is(err, ErrNotState) && !noEntity(err) {
					return err
				}
			} else {
				e.Leases, err = storage.Decode(v.Data, &e.State)
				e.Out = int64(len(e.Leases))
				byEnd(e.Leases)
			}
			if err != nil || e.State.Tokens == 0 {
				continue
			}
			if err := each(e); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Storage) scan(ctx context.Context, client goredis.Cmdable, cursor uint64, match string) ([]string, uint64, error) {
	type step struct {
		keys []string
		next uint64
	}
	found, err := ask(ctx, s, func() (st step, err error) {
		st.keys, st.next, err = client.Scan(ctx, cursor, match, scanned).Result()
		return st, err
	})
	return found.keys, found.next, err
}

// noEntity reports whether a key has no string, or another node of a Cluster has it by now.
func noEntity(err error) bool {
	return slices.ContainsFunc([]string{"WRONGTYPE", "MOVED", "ASK"}, func(prefix string) bool { return goredis.HasErrorPrefix(err, prefix) })
}

// getAll gets the values of keys and the time. In a Cluster the keys are of one server, but of several slots.
func (s *Storage) getAll(ctx context.Context, client goredis.Cmdable, keys []string) (time.Time, [][]byte, error) {
	var now *goredis.TimeCmd
	values, err := ask(ctx, s, func() ([][]byte, error) {
		p := client.Pipeline()
		now = p.Time(ctx)
		for _, key := range keys {
			p.Get(ctx, key)
		}
		commands := exec(ctx, p)
		values := make([][]byte, len(keys))
		for i, c := range commands[1:] {
			value, err := c.(*goredis.StringCmd).Bytes()
			if err != nil && !errors.Is(err, goredis.Nil) && !noEntity(err) {
				return nil, err
			}
			values[i] = value
		}
		return values, now.Err()
	})
	if err != nil {
		return time.Time{}, nil, err
	}
	return now.Val(), values, nil
}

// entity returns the entity of a key. ok is false for a key of no entity.
func (s *Storage) entity(key string) (entity string, ok bool) {
	entity, ok = strings.CutPrefix(strings.TrimSuffix(key, "}"), s.prefix+"{")
	entity = unescape.Replace(entity)
	return entity, ok && entity != "" && s.key(entity) == key
}

// literally returns a pattern that matches only the text itself.
func literally(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(text)
}
