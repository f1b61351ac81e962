package redis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

func TestList(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		prefix := fmt.Sprintf("%s[*?\\-%x:", t.Name(), rand.Uint64())
		s := newStorageWith(t, client, redis.Options{Prefix: prefix})
		want := map[string]storage.Entry{}
		for _, key := range []string{"shop", " ", "\n", "{", "}", "{}", "{}a", "}{", "a}b", "*", "\xff"} {
			want[key] = storage.Entry{}
			admit(t, s, key, &plenty)
		}
		for key := range want {
			e, err := s.Read(t.Context(), key)
			ok(t, err)
			want[key] = e
		}
		for key, value := range map[string]string{ // of other people
			prefix + "shop1": "x", prefix + "{text}": "x", prefix + "{}shop": "x", prefix + "{}": "x", "*" + prefix + "{shop}": "x", prefix + "{a}b": "x",
		} {
			ok(t, client.Set(t.Context(), key, value, time.Minute).Err())
		}
		ok(t, client.LPush(t.Context(), prefix+"{list}", "x").Err())
		seen := map[string]bool{}
		err := s.List(t.Context(), func(e storage.Entry) error {
			if w, ok := want[e.Key]; !ok || !reflect.DeepEqual(e.State, w.State) || !slices.Equal(e.Leases, w.Leases) || e.Out != w.Out {
				t.Errorf("%q is listed as %+v, want %+v", e.Key, e, w)
			}
			if off := time.Since(e.Time).Abs(); off > time.Minute {
				t.Errorf("%q was read %v from now", e.Key, off)
			}
			seen[e.Key] = true
			return nil
		})
		if err != nil || len(seen) != len(want) {
			t.Errorf("List told %d of %d entities, %v", len(seen), len(want), err)
		}

		ctx, cancel := context.WithCancel(t.Context())
		told := 0
		if err := s.List(ctx, func(storage.Entry) error { told++; cancel(); return nil }); !errors.Is(err, context.Canceled) || told != 1 {
			t.Errorf("List whose context ends = %v after %d entities, want Canceled after one", err, told)
		}
	})
}

// refusing refuses pipelines, and leaves the commands as they are. So does go-redis when it gets no connection.
type refusing struct{ hook }

var errRefused = errors.New("refused")

func (refusing) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(context.Context, []goredis.Cmder) error { return errRefused }
}

// lossy is a connection that breaks after the first answer of a pipeline.
type lossy struct{ hook }

func (lossy) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error {
		err := next(ctx, commands)
		for _, c := range commands[1:] {
			c.SetErr(io.ErrUnexpectedEOF)
		}
		return err
	}
}

// repeating is a server that returns each key twice, as SCAN may while the table of keys is resized.
type repeating struct {
	hook
	keys []string
}

func (r *repeating) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, c goredis.Cmder) error {
		err := next(ctx, c)
		if scan, ok := c.(*goredis.ScanCmd); ok {
			page, cursor := scan.Val()
			if r.keys = append(r.keys, page...); cursor == 0 {
				page = slices.Concat(r.keys, page)
			}
			scan.SetVal(page, cursor)
		}
		return err
	}
}

func TestListTellsOnce(t *testing.T) {
	client := connectShared(t)
	client.AddHook(&repeating{})
	s := newStorage(t, client)
	const entities = 1500
	getDelay(t, s, "shop", &plenty)
	state, _, err := s.Get(t.Context(), "shop")
	ok(t, err)
	for i := range entities - 1 {
		ok(t, s.Set(t.Context(), fmt.Sprint("shop", i), state, storage.NoRevision))
	}
	told := map[string]int{}
	ok(t, s.List(t.Context(), func(e storage.Entry) error { told[e.Key]++; return nil }))
	if len(told) != entities {
		t.Errorf("List told %d entities, want %d", len(told), entities)
	}
	for key, times := range told {
		if times != 1 {
			t.Fatalf("List told %s %d times", key, times)
		}
	}
}

// An entity that was not read is not missing.
func TestListThatLosesAnswers(t *testing.T) {
	o := redis.Options{Prefix: fmt.Sprintf("%s-%x:", t.Name(), rand.Uint64())}
	s := newStorageWith(t, connectShared(t), o)
	for i := range 3 {
		getDelay(t, s, fmt.Sprint("shop", i), &plenty)
	}
	for want, hook := range map[error]goredis.Hook{io.ErrUnexpectedEOF: lossy{}, errRefused: refusing{}} {
		client := connectShared(t)
		client.AddHook(hook)
		err := newStorageWith(t, client, o).List(t.Context(), func(storage.Entry) error { return nil })
		if !errors.Is(err, redis.ErrNoAnswer) || !errors.Is(err, want) {
			t.Errorf("List = %v, want ErrNoAnswer because of %v", err, want)
		}
	}
}

// A user who may not read entities gets an error, not an empty list.
func TestListWithoutRights(t *testing.T) {
	server := servers.OwnRedis(t)
	admin := connect(t, server.Addr())
	getDelay(t, newStorageWith(t, admin, redis.Options{}), "shop", &plenty)
	ok(t, admin.Do(t.Context(), "acl", "setuser", "app", "on", ">secret", "~*", "+@all", "-get").Err())
	s, err := storage.Open(t.Context(), "redis://app:secret@"+server.Addr())
	ok(t, err)
	defer s.(*redis.Storage).Close()
	if err := s.(storage.Lister).List(t.Context(), func(storage.Entry) error { return nil }); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("List = %v, want the server's error", err)
	}
}

// moving is a node of a Cluster that loses each entity between the two reads of List.
type moving struct{ hook }

func (moving) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, c goredis.Cmder) error {
		if c.Name() == "evalsha" {
			c.SetErr(movedError{})
			return movedError{}
		}
		return next(ctx, c)
	}
}

type movedError struct{}

func (movedError) Error() string { return "MOVED 1 127.0.0.1:1" }
func (movedError) RedisError()   {}

// An entity that another node has by now does not end the list. That node tells it.
func TestListWhileEntitiesMove(t *testing.T) {
	client := connectShared(t)
	o := redis.Options{Prefix: fmt.Sprintf("%s-%x:", t.Name(), rand.Uint64())}
	s := newStorageWith(t, client, o)
	for range 2 * storage.MostListed {
		admit(t, s, "many", &plenty)
	}
	for i := range 3 {
		admit(t, s, fmt.Sprint("shop", i), &plenty)
	}
	client.AddHook(&moving{})
	told := 0
	if err := s.List(t.Context(), func(storage.Entry) error { told++; return nil }); err != nil || told != 3 {
		t.Errorf("List told %d entities, %v; want the 3 that stay", told, err)
	}
}
