package drip_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// asVersion makes the stored state of a key one that a version of drip before this one has stored, or after it.
func asVersion(t *testing.T, s storage.Storage, key string, change int) {
	t.Helper()
	st, rev, err := s.Get(t.Context(), key)
	ok(t, err)
	if len(st.Data) < 16 {
		t.Fatalf("nothing is stored of %q", key)
	}
	binary.BigEndian.PutUint64(st.Data, binary.BigEndian.Uint64(st.Data)+uint64(change))
	st.Data, st.Until = append(st.Data[:len(st.Data)-4], 7, 7), decision.Never // it has numbers that this version does not know
	ok(t, s.Set(t.Context(), key, st, rev))
}

// An entity, or a shared limit, with a state of an earlier version begins anew, with empty windows: operations of before may
// have used the interval. Its tokens are free.
func TestStateOfAnEarlierVersion(t *testing.T) {
	for name, first := range map[string]func(*drip.Bucket, drip.Lease) error{
		"Admit": func(*drip.Bucket, drip.Lease) error { return nil },
		"GetDelay": func(b *drip.Bucket, _ drip.Lease) error {
			_, err := b.GetDelay(context.Background(), "shop")
			return err
		},
		"ReturnToken": func(b *drip.Bucket, _ drip.Lease) error { return b.ReturnToken(context.Background(), "shop") },
		"Settle": func(b *drip.Bucket, l drip.Lease) error {
			return isNoLease(b.Settle(context.Background(), "shop", l, 1))
		},
		"Renew": func(b *drip.Bucket, l drip.Lease) error {
			_, err := b.Renew(context.Background(), "shop", l)
			return isNoLease(err)
		},
		"Reset":  func(b *drip.Bucket, _ drip.Lease) error { return b.Reset(context.Background(), "shop") },
		"Resume": func(b *drip.Bucket, _ drip.Lease) error { return b.Resume(context.Background(), "shop") },
		"Pin": func(b *drip.Bucket, _ drip.Lease) error {
			return b.Pin(context.Background(), "shop", drip.Pin{Concurrency: 9})
		},
	} {
		for _, old := range []string{"shop", drip.SharedID("app")} {
			t.Run(name+"/"+strings.TrimPrefix(old, "shared:"), func(t *testing.T) {
				s := getSet{memory.New()}
				b, now := shops(t, s, drip.Options{
					Size: 3, RefreshRate: 3, RefreshInterval: time.Hour, Concurrency: 100,
					Shared: map[string]drip.Limit{"app": {Size: 3, RefreshRate: 3, RefreshInterval: time.Hour}},
				})
				*now = now.Truncate(time.Hour).Add(10 * time.Minute)
				lease := buckettest.Admit(t, b, "shop", drip.Request{}).Lease
				if _, err := b.GetDelay(t.Context(), "shop"); err != nil {
					t.Fatal(err)
				}
				asVersion(t, s, old, -1)
				if old == "shop" {
					ok(t, first(b, lease))
				}
				status, err := b.Inspect(t.Context(), old)
				if err != nil || status.Windows[0].Capacity != 0 || old == "shop" && status.InUse != 0 {
					t.Errorf("Inspect = %+v, %v; want empty windows, and all tokens", status, err)
				}
				var tickets []drip.Ticket
				for range 2 {
					a := buckettest.Admit(t, b, "shop", drip.Request{})
					if a.Delay.Truncate(time.Second) != 50*time.Minute {
						t.Errorf("it waits %v; want the next interval", a.Delay)
					}
					tickets = append(tickets, a.Ticket)
				}
				*now = now.Add(50*time.Minute + time.Second)
				for _, ticket := range tickets {
					if a := buckettest.Admit(t, b, "shop", drip.Request{Ticket: ticket}); a.Delay != 0 {
						t.Errorf("in the next interval it waits %v", a.Delay)
					}
				}
			})
		}
	}
}

func isNoLease(err error) error {
	if errors.Is(err, drip.ErrNoLease) {
		return nil
	}
	return errors.Join(errors.New("want ErrNoLease"), err)
}

// A state of a later version is an error that says so, and stays.
func TestStateOfALaterVersion(t *testing.T) {
	for _, late := range []string{"shop", drip.SharedID("app")} {
		s := getSet{memory.New()}
		b, _ := shops(t, s, drip.Options{Size: 5, Shared: map[string]drip.Limit{"app": {Size: 5, RefreshRate: 5}}})
		buckettest.Admit(t, b, "shop", drip.Request{})
		asVersion(t, s, late, 1)
		_, before, _ := s.Get(t.Context(), late)
		_, admit := b.Admit(t.Context(), "shop", drip.Request{})
		_, inspect := b.Inspect(t.Context(), "shop")
		for _, err := range []error{admit, inspect} {
			if !errors.Is(err, storage.ErrLater) || !errors.Is(err, storage.ErrFormat) || !strings.Contains(err.Error(), "a later version of drip") {
				t.Errorf("%v, want ErrLater", err)
			} else if strings.Count(err.Error(), `"shop"`) != 1 || strings.Contains(err.Error(), storage.ErrFormat.Error()) {
				t.Errorf("it says something twice: %v", err)
			}
		}
		if _, after, _ := s.Get(t.Context(), late); after != before {
			t.Error("the state has changed")
		}
	}
}
