package contenders_test

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

// due is the next step of a message.
type due struct {
	at      time.Time
	process int
	ticket  drip.Ticket
	lease   drip.Lease // of a call that the provider has answered
	refused bool
}

// TestFollowInProcesses: four buckets, each with a connection of its own, work off a backlog. The provider allows half of
// the limit, always or for ten minutes. The level that all follow is in the storage: at most 1 % of the calls are refused,
// and they use at least 90 % of the allowed calls. Options.Clock gives the time.
func TestFollowInProcesses(t *testing.T) {
	const four = 4
	open := map[string]func(*testing.T) string{"Redis": func(t *testing.T) string { return servers.OwnRedis(t).URL() }}
	if os.Getenv(realVariable) != "" { // two minutes
		open["PostgreSQL"] = withSchema
	}
	for name, open := range open {
		for load, c := range map[string]struct {
			half func(time.Duration) bool
			span time.Duration
		}{
			"half":                 {func(time.Duration) bool { return true }, 30 * time.Minute},
			"half for ten minutes": {func(at time.Duration) bool { return at > 5*time.Minute && at < 15*time.Minute }, 40 * time.Minute},
		} {
			t.Run(name+"/"+load, func(t *testing.T) {
				url, begin := open(t), time.Now().Truncate(time.Millisecond)
				now := begin
				o := drip.Options{Size: 38, RefreshRate: 1, RefreshInterval: 100 * time.Millisecond, Concurrency: 1000, Follow: true,
					Clock: func() time.Time { return now }}
				var buckets []*drip.Bucket
				for range four {
					s, err := storage.Open(t.Context(), url)
					ok(t, err)
					defer s.(io.Closer).Close()
					o.Storage = s
					b := buckettest.New(t, o)
					buckets = append(buckets, b)
				}
				tokens, last, possible, passed, refused := 20.0, begin, 0.0, 0, 0
				call := func() bool { // the provider counts a call
					size, perSecond := 40.0, 10.0
					if c.half(now.Sub(begin)) {
						size, perSecond = 20, 5
					}
					possible += now.Sub(last).Seconds() * perSecond
					tokens, last = min(size, tokens+now.Sub(last).Seconds()*perSecond), now
					if tokens < 1 {
						refused++
						return false
					}
					tokens, passed = tokens-1, passed+1
					return true
				}
				var next []due // the next step of each message
				for i := range 40 {
					next = append(next, due{at: begin.Add(time.Duration(i) * time.Millisecond), process: i % four})
				}
				least, most := 1.0, 0.0 // of the level in the last ten minutes
				for now.Sub(begin) < c.span {
					first := 0
					for i := range next {
						if next[i].at.Before(next[first].at) {
							first = i
						}
					}
					d := next[first]
					now = d.at
					b := buckets[d.process]
					if d.lease != (drip.Lease{}) {
						if d.ticket = (drip.Ticket{}); d.refused {
							ok(t, b.Throttled(t.Context(), "shop", time.Second))
							d.ticket = d.lease.Ticket()
						}
						ok(t, b.Settle(t.Context(), "shop", d.lease, 1))
					}
					a, err := b.Admit(t.Context(), "shop", drip.Request{Ticket: d.ticket})
					ok(t, err)
					answer := due{at: now.Add(a.Delay), process: d.process, ticket: a.Ticket}
					if a.Delay == 0 {
						answer = due{at: now.Add(50 * time.Millisecond), process: d.process, lease: a.Lease, refused: !call()}
					}
					next[first] = answer
					if now.Sub(begin) > c.span-10*time.Minute && passed%50 == 0 {
						status := buckettest.Inspect(t, b, "shop")
						least, most = min(least, status.Level), max(most, status.Level)
					}
				}
				share, used := float64(refused)/float64(passed+refused), float64(passed)/possible
				t.Logf("refused %.2f %%, used %.1f %%, the level is %.3f to %.3f in the end", 100*share, 100*used, least, most)
				if share > 0.01 || used < 0.9 || most-least > 0.15 {
					t.Error("want at most 1 % refused, at least 90 % used, and a calm level")
				}
			})
		}
	}
}
