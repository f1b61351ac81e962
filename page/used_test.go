package page

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// The page of an entity draws its last hour, also without the limits, and the list has no records of use.
func TestUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		o := drip.Options{Size: 9, RefreshRate: 1, Start: time.Unix(0, 0), Storage: s, History: true, Shared: map[string]drip.Limit{"app": {Size: 100}}}
		b := buckettest.New(t, o)
		for _, n := range []int{9, 4} {
			for range n {
				if d, err := b.GetDelay(t.Context(), "shop"); d != 0 || err != nil {
					t.Fatal(d, err)
				}
				ok(t, b.ReturnToken(t.Context(), "shop"))
			}
			time.Sleep(time.Minute)
		}
		time.Sleep(time.Minute)
		for name, limits := range map[string]*drip.Options{"given": &o, "stored": nil} {
			h := newSite(t, Options{Storage: s, Limits: limits})
			status, text := h.get(t, "entity?name=shop")
			has(t, text, `<h2 id="used">Last hour</h2>`, `aria-label="13 calls in the last hour, 0.4 % of the limit, at most 9 in a minute"`,
				`<rect class="left" x="56.1" y="0" width=".8" height="1000"/><rect class="left" x="57.1" y="556" width=".8" height="444"/></svg>`,
				`<td class="n" data-name="Used">9</td>`, `<td class="n" data-name="Used">4</td>`)
			if status != 200 || strings.Count(text, `data-name="Used"`) != 2 {
				t.Errorf("limits %s: %d\n%s", name, status, text)
			}
			if _, text := h.get(t, "entity?name=shared:app"); !strings.Contains(text, "13 calls in the last hour") {
				t.Errorf("limits %s: the shared limit is\n%s", name, text)
			}
			_, text = h.get(t, "")
			has(t, text, "<strong>1</strong> entity")
			if strings.Contains(text, "history") {
				t.Errorf("limits %s: the list has a record of use:\n%s", name, text)
			}
			if _, text := h.get(t, "entity?name=nobody"); strings.Contains(text, "Last hour") {
				t.Errorf("limits %s: nobody used\n%s", name, text)
			}
			h.Close()
		}
	})
}

// inPast is Options.Clock of a program that runs so many minutes ago.
type inPast struct{ minutes atomic.Int64 }

func (c *inPast) now() time.Time {
	return time.Now().Add(-time.Duration(c.minutes.Load()) * time.Minute)
}

// On real storages two processes sum up exactly, and List leaves the records out.
func TestUsedOnServers(t *testing.T) {
	for name, open := range realStorages {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			var clock inPast
			var buckets [2]*drip.Bucket
			for i := range buckets {
				buckets[i] = buckettest.New(t, drip.Options{
					Size: 1000, RefreshRate: 1000, Storage: s, History: true, Clock: clock.now, Shared: map[string]drip.Limit{"app": {Size: 1000}},
				})
			}
			want := 0
			for m := 50; m >= 0; m-- { // so far from an hour that no minute leaves it during the test
				clock.minutes.Store(int64(m))
				for i := range 1 + m*7%11 {
					a := buckettest.Runs(t, buckets[i%2], "shop", drip.Request{Cost: 3})
					ok(t, buckets[1-i%2].Settle(t.Context(), "shop", a.Lease, i))
					want += i
				}
			}
			for _, id := range []string{"shop", drip.SharedID("app")} {
				for begin := time.Now(); ; time.Sleep(200 * time.Millisecond) { // until all is stored: about a minute after the flush before
					got := 0
					u, err := buckets[0].Used(t.Context(), id)
					ok(t, err)
					for _, n := range u.Units[""] {
						got += n
					}
					if got == want {
						break
					}
					if got > want || time.Since(begin) > 2*time.Minute {
						t.Fatalf("%s used %d, want %d", id, got, want)
					}
				}
			}
			ok(t, s.(storage.Lister).List(t.Context(), func(e storage.Entry) error {
				if e.Key != "shop" && e.Key != drip.SharedID("app") {
					t.Errorf("List tells %q", e.Key)
				}
				return nil
			}))
		})
	}
}
