package entities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

// The use is a part of the window that brings the least in an hour. Of a window of a day it is a part of the whole window.
func TestUsed(t *testing.T) {
	for want, o := range map[string]drip.Options{
		"6 calls in the last hour, 100 % of the limit": {Size: 9, RefreshRate: 9, RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 6, RefreshInterval: 24 * time.Hour}}},
		"6 calls in the last hour, 10 % of the limit":  {Size: 9, RefreshRate: 1, RefreshInterval: time.Minute},
		"6 calls in the last hour, 0.5 % of the limit": {Size: 9, RefreshRate: 20, RefreshInterval: time.Minute},
		"6 calls in the last hour":                     {Size: 9, Unit: "points"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New()
			o.Storage, o.History = s, true
			b := buckettest.New(t, o)
			for range 6 {
				buckettest.Runs(t, b, "shop", drip.Request{})
			}
			time.Sleep(15 * time.Second)
			j, err := NewJudge(&o, s)
			ok(t, err)
			e, err := Read(t.Context(), s, "shop")
			ok(t, err)
			r, err := j.Report(t.Context(), e)
			ok(t, err)
			used, err := r.Used(t.Context(), s)
			if err != nil || len(used) != 1 || used[0].Text != want {
				t.Errorf("%+v, %v; want %q", used, err, want)
			}
		})
	}
}
