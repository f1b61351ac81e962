package lab

import (
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// Messages that come in a pause of their shop run as soon as its shared limit lets them. The shop's window has gathered capacity for all.
func TestNewcomersInAPause(t *testing.T) {
	now := Begin
	b := buckettest.New(t, drip.Options{
		Size: 100, RefreshRate: 1, RefreshInterval: time.Minute, Shared: map[string]drip.Limit{"app": {Size: 4}}, Clock: func() time.Time { return now },
	})
	ok(t, b.Pause(t.Context(), "shop", 7*time.Second))
	var calls []*buckettest.Call
	for i := range 40 {
		calls = append(calls,
			&buckettest.Call{At: Begin.UnixMilli() + int64(i), Entity: "other"},
			&buckettest.Call{At: Begin.UnixMilli() + int64(100*i), Entity: "shop"})
	}
	(&buckettest.Load{Calls: calls}).PlayOn(t, b, func(ms int64) { now = time.UnixMilli(ms) })
	got := buckettest.OutcomeOf(calls)
	took := time.UnixMilli(got.Last).Sub(Begin)
	tell(t, took > 20*time.Second || got.Mean > 3, "%v, want 20 s; %.2f postponements", took, got.Mean)
}
