package lab

import (
	"cmp"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// A pause delays a backlog by its own time and little more, also if a window has gathered capacity for all messages. Messages that come back
// in the pause take turns as fast as tokens come back, or as the limits bring capacity.
func TestPauseOfABacklog(t *testing.T) {
	const pause, second = 25 * time.Second, int64(1000)
	app := drip.SharedID("app")
	gathered := drip.Limit{Size: 1000, RefreshRate: 7, RefreshInterval: 10 * time.Second}
	tokens := func(n int) drip.Limit { l := gathered; l.Concurrency = n; return l }
	for name, c := range map[string]struct {
		own, shared drip.Limit
		messages    int
		operation   int64
		more        time.Duration // than the pause
		paused      string
	}{
		"two at a time":              {own: tokens(2), messages: 51, operation: second, more: 4 * time.Second},
		"ten at a time":              {own: tokens(10), messages: 200, operation: second, more: 2 * time.Second},
		"two a second":               {own: drip.Limit{Size: 20, RefreshRate: 2, RefreshInterval: time.Second}, messages: 100, more: 2 * time.Second},
		"60 a minute":                {own: drip.Limit{Size: 60, RefreshRate: 60, RefreshInterval: time.Minute}, messages: 200},
		"within two at a time":       {own: gathered, shared: drip.Limit{Concurrency: 2}, messages: 51, operation: second, more: 4 * time.Second},
		"within four a second":       {own: gathered, shared: drip.Limit{Size: 4}, messages: 100, more: 2 * time.Second},
		"the app, two at a time":     {own: gathered, shared: drip.Limit{Concurrency: 2}, messages: 51, operation: second, more: 4 * time.Second, paused: app},
		"the app, ten at a time":     {own: gathered, shared: drip.Limit{Concurrency: 10}, messages: 200, operation: second, more: 2 * time.Second, paused: app},
		"the app, two of a gathered": {own: gathered, shared: tokens(2), messages: 51, operation: second, more: 4 * time.Second, paused: app},
		"the app, ten of a gathered": {own: gathered, shared: tokens(10), messages: 200, operation: second, more: 2 * time.Second, paused: app},
		"the app, four a second":     {own: gathered, shared: drip.Limit{Size: 4}, messages: 100, more: 2 * time.Second, paused: app},
	} {
		t.Run(name, func(t *testing.T) {
			play := func(paused bool) buckettest.Outcome {
				begin := Begin.UnixMilli()
				o := drip.Options{Size: c.own.Size, RefreshRate: c.own.RefreshRate, RefreshInterval: c.own.RefreshInterval, Concurrency: c.own.Concurrency}
				if c.shared.Size+c.shared.Concurrency > 0 {
					o.Shared = map[string]drip.Limit{"app": c.shared}
				}
				now := begin
				o.Clock = func() time.Time { return time.UnixMilli(now) }
				b := buckettest.New(t, o)
				l := buckettest.Load{
					Runs: func(_ *buckettest.Call, now int64) int64 { return now + c.operation },
					Answer: func(_ *buckettest.Call, _ drip.Admission, now int64) {
						if paused && now >= begin+2500 {
							paused = false
							ok(t, b.Pause(t.Context(), cmp.Or(c.paused, "shop"), pause))
						}
					},
				}
				for i := range c.messages {
					l.Calls = append(l.Calls, &buckettest.Call{At: begin + int64(i%20)*300, Entity: "shop"})
				}
				l.PlayOn(t, b, func(ms int64) { now = ms })
				return buckettest.OutcomeOf(l.Calls)
			}
			want, got := play(false), play(true)
			took := time.Duration(got.Last-want.Last)*time.Millisecond - pause
			tell(t, took > c.more || got.Mean > want.Mean+2, "%v more than the pause, want at most %v; %.2f postponements, %.2f without it", took, c.more, got.Mean, want.Mean)
		})
	}
}

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
