package buckettest

import (
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/storage"
)

// Aged is what two processes store in one place, nothing yet.
type Aged struct {
	Old, New interface {
		storage.Storage
		storage.Atomic
		storage.Reader
		storage.Lister
	}
	Age    func(key string)      // makes an earlier version store the state of a key
	Leases func(key string) bool // whether leases are stored beside it
}

// EarlierVersion checks a storage with states of an earlier version of drip. An entity, or a shared limit, begins anew, with
// empty windows and all tokens.
func EarlierVersion(t oktest.TB, open func() Aged) {
	t.Helper()
	l := Ready(decision.Limits{
		Windows: []decision.Window{{Size: 2000, Rate: 2000, Interval: 1 << 40}}, Tokens: 2000, Guess: 50, Lease: 60_000, MaxLease: 3_600_000,
	})
	one := decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}, Now: decision.OwnClock}
	for kind := decision.GetDelay; kind <= decision.Announce; kind++ {
		leases := 2
		if kind == decision.Admit || kind == decision.Reset {
			leases = 1200 // more than stand in a state, and than a purge deletes
		}
		v := open()
		GetDelay(t, v.Old, "shop", l)
		var lease decision.Lease
		for range leases {
			lease = Do(t, v.Old, "shop", l, one).Lease
		}
		v.Age("shop")
		entries := 0
		oktest.OK(t, v.New.List(t.Context(), func(storage.Entry) error { entries++; return nil }))
		st, _, err := v.New.Get(t.Context(), "shop")
		if e := Read(t, v.New, "shop"); e.State.Tokens != 0 || e.Out != 0 || len(e.Leases) != 0 || entries != 0 || err != nil || len(st.Data) == 0 {
			t.Errorf("before the first decision: %+v, %d leases; List tells %d, and Get %d bytes, %v", e.State, e.Out, entries, len(st.Data), err)
		}
		op := decision.Op{Kind: kind, Cost: decision.Cost{1}, Lease: lease, For: 1, Level: 5000}
		if kind == decision.Pin {
			op.Pin = &decision.PinnedLimit{Tokens: 1500}
		}
		if a := Do(t, v.New, "shop", l, op); a.Found || a.Delay == 0 && kind == decision.Admit {
			t.Errorf("operation %d = %+v", kind, a)
		}
		for _, s := range []storage.Atomic{v.New, v.New, v.New, v.Old} { // the first knows it in the end, the other does not
			if a := Do(t, s, "shop", l, one); a.Delay <= 0 || a.Lease.ID != 0 || a.Bound == decision.BoundTokens {
				t.Errorf("after operation %d an Admit is %+v; want the next interval", kind, a)
			}
		}
		if e := Read(t, v.New, "shop"); e.Out != 0 || e.State.Plain != 0 || v.Leases("shop") {
			t.Errorf("after operation %d: %+v, %d leases; those of before are there: %v", kind, e.State, e.Out, v.Leases("shop"))
		}
	}

	// A decision of one call about several entities, within limits of which one has such a state.
	v := open()
	within := []storage.Within{{Key: "app", ID: 1, Weight: 1, Limits: l}, {Key: "other", ID: 2, Weight: 1, Limits: l}}
	first, err := v.New.Do(t.Context(), "shop", l, within, one)
	oktest.OK(t, err)
	v.Age("other")
	for i := range 3 {
		if a, err := v.New.Do(t.Context(), "shop", l, within, one); err != nil || a.Delay == 0 || i == 0 && a.Limit != 2 {
			t.Errorf("Admit = %+v, %v; want the next interval of the second limit", a, err)
		}
	}
	settle := decision.Op{Kind: decision.Settle, Now: decision.OwnClock, Cost: decision.Cost{1}, Lease: first.Lease}
	if a, err := v.New.Do(t.Context(), "shop", l, within, settle); err != nil || !a.Found {
		t.Errorf("Settle of the lease that the shop has = %+v, %v", a, err)
	}
	if n := Read(t, v.New, "other").Out; n != 0 {
		t.Errorf("%d leases in the limit that began anew", n)
	}
}
