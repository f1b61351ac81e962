package redis_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/redis"
)

// lifelong lets 1000 run in an interval of 34 years.
func lifelong() decision.Limits { return limits(1000, 1000, 1<<40, 50) }

// asLayout has another version store a key's value: with another layout, and what that may have changed, too.
func asLayout(t *testing.T, client goredis.UniversalClient, key string, change float64) {
	t.Helper()
	b, err := client.Get(t.Context(), key).Bytes()
	ok(t, err)
	layout := math.Float64frombits(binary.LittleEndian.Uint64(b)) + change
	binary.LittleEndian.PutUint64(b, math.Float64bits(layout))
	revision := math.Float64frombits(binary.LittleEndian.Uint64(b[8:])) + 1
	binary.LittleEndian.PutUint64(b[8:], math.Float64bits(revision))
	ok(t, client.Set(t.Context(), key, append(b[:len(b)-4], 7, 7), goredis.KeepTTL).Err())
}

func TestValueOfAnEarlierVersion(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		buckettest.EarlierVersion(t, func() buckettest.Aged {
			o := redis.Options{Prefix: oneSlot(t)}
			return buckettest.Aged{
				Old: newStorageWith(t, client, o), New: newStorageWith(t, client, o),
				Age:    func(key string) { asLayout(t, client, o.Prefix+"{"+key+"}", -1) },
				Leases: func(key string) bool { return client.Exists(t.Context(), o.Prefix+"{"+key+"}:leases").Val() > 0 },
			}
		})
	})
}

// Get and Set take such a value as one that Set replaces.
func TestSetOverAnEarlierVersion(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		prefix := oneSlot(t)
		s := newStorageWith(t, client, redis.Options{Prefix: prefix})
		l := lifelong()
		for range 600 {
			admit(t, s, "shop", &l)
		}
		before, rev, err := s.Get(t.Context(), "shop")
		ok(t, err)
		asLayout(t, client, prefix+"{shop}", -3)
		st, same, err := s.Get(t.Context(), "shop")
		var state decision.State
		held, decoded := storage.Decode(st.Data, &state)
		if err != nil || decoded != nil || same == rev || st.Until != before.Until || len(st.Data) == 0 || len(held) != 0 || state.Tokens != 0 {
			t.Errorf("Get = %+v at %d, %v; %+v, %v, %v", st, same, err, state, held, decoded)
		}
		ok(t, s.Set(t.Context(), "copy", st, storage.NoRevision))
		if err := s.Set(t.Context(), "shop", before, rev); !errors.Is(err, storage.ErrConflict) {
			t.Errorf("Set at another revision = %v", err)
		}
		ok(t, s.Set(t.Context(), "shop", before, same))
		if _, n := out(t, s, "shop"); n != 600 {
			t.Errorf("%d leases after Set", n)
		}
	})
}

// A value of a later version is an error that says so, at once, and stays.
func TestValueOfALaterVersion(t *testing.T) {
	onBackends(t, func(t *testing.T, client goredis.UniversalClient) {
		prefix := oneSlot(t)
		old := newStorageWith(t, client, redis.Options{Prefix: prefix})
		s := newStorageWith(t, client, redis.Options{Prefix: prefix})
		admit(t, old, "shop", &plenty)
		asLayout(t, client, prefix+"{shop}", 1)
		value := client.Get(t.Context(), prefix+"{shop}").Val()
		within := []storage.Within{{Key: "shop", ID: 1, Weight: 1, Limits: &plenty}}
		_, own := s.Do(t.Context(), "shop", &plenty, nil, one)
		_, shared := s.Do(t.Context(), "else", &plenty, within, one)
		_, read := s.Read(t.Context(), "shop")
		_, _, get := s.Get(t.Context(), "shop")
		for _, err := range []error{own, shared, read, get} {
			if !errors.Is(err, redis.ErrNotState) || !errors.Is(err, storage.ErrLater) || !strings.HasPrefix(err.Error(), "redis: a later version of drip") ||
				strings.Contains(err.Error(), redis.ErrNotState.Error()) {
				t.Errorf("%v, want one of a later version", err)
			}
		}
		ok(t, s.List(t.Context(), func(e storage.Entry) error { t.Errorf("List tells %+v", e); return nil }))
		if now := client.Get(t.Context(), prefix+"{shop}").Val(); now != value {
			t.Error("the value has changed")
		}
		for _, change := range []float64{0.5, -100, 1e9, math.Inf(1), math.NaN()} { // not layouts
			do(t, s, fmt.Sprint(change), &plenty, one)
			asLayout(t, client, prefix+"{"+fmt.Sprint(change)+"}", change)
			if _, err := old.Do(t.Context(), fmt.Sprint(change), &plenty, nil, one); !errors.Is(err, redis.ErrNotState) || errors.Is(err, storage.ErrLater) {
				t.Errorf("%v: %v, want ErrNotState", change, err)
			}
		}
	})
}

// An operation that changes nothing leaves such a value as it is: it stays empty, and expires when it would have.
func TestValueOfAnEarlierVersionStays(t *testing.T) {
	client := connectShared(t)
	prefix := oneSlot(t)
	s := newStorageWith(t, client, redis.Options{Prefix: prefix})
	l := lifelong()
	admit(t, s, "shop", &l)
	asLayout(t, client, prefix+"{shop}", -1)
	before := client.PTTL(t.Context(), prefix+"{shop}").Val()
	lease := decision.Lease{ID: 7, Begin: 1, End: time.Now().UnixMilli() + 1000}
	do(t, s, "shop", &l, decision.Op{Kind: decision.Settle, Lease: lease, Cost: decision.Cost{1}})
	do(t, s, "shop", &l, decision.Op{Kind: decision.ReturnToken})
	if ttl := client.PTTL(t.Context(), prefix+"{shop}").Val(); ttl > before || ttl < before-time.Minute {
		t.Errorf("an operation that changes nothing changes the time to live from %v to %v", before, ttl)
	}
	if a := admit(t, s, "shop", &l); a.Delay == 0 {
		t.Errorf("it runs: %+v", a)
	}
}
