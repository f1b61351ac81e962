package page

import (
	"fmt"
	"net/http/httptest"
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

// playHour lets two processes run a varying number of operations in each minute of the last hour, and waits until all are
// stored.
func playHour(t *testing.T, s storage.Storage, entity string) *drip.Bucket {
	t.Helper()
	var clock inPast
	var buckets [2]*drip.Bucket
	for i := range buckets {
		var err error
		buckets[i], err = drip.New(drip.Options{
			Size: 1000, RefreshRate: 1000, Storage: s, History: true, Clock: clock.now, Shared: map[string]drip.Limit{"app": {Size: 1000}},
		})
		ok(t, err)
	}
	want := 0
	for m := 50; m >= 0; m-- { // so far from an hour that no minute leaves it during the test
		clock.minutes.Store(int64(m))
		for i := range 1 + m*7%11 {
			a := buckettest.Runs(t, buckets[i%2], entity, drip.Request{Cost: 3})
			ok(t, buckets[1-i%2].Settle(t.Context(), entity, a.Lease, i))
			want += i
		}
	}
	for begin := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		done := true
		for _, id := range []string{entity, drip.SharedID("app")} {
			got := 0
			for _, n := range used(t, buckets[0], id) {
				got += n
			}
			done = done && got == want
			if got > want || time.Since(begin) > time.Minute {
				t.Fatalf("%s used %d, want %d", id, got, want)
			}
		}
		if done {
			return buckets[0]
		}
	}
}

// used is how much of calls was used, by the minute as the page calls it.
func used(t *testing.T, b *drip.Bucket, entity string) map[string]int {
	t.Helper()
	u, err := b.Used(t.Context(), entity)
	ok(t, err)
	minutes := map[string]int{}
	for i, n := range u.Units[""] {
		if n > 0 {
			minutes[u.From.Add(time.Duration(i)*time.Minute).Format("15:04")] = n
		}
	}
	return minutes
}

// On real storages several processes sum up exactly, List leaves the records out, and a browser draws what Used says.
func TestBrowserUsed(t *testing.T) {
	br := startBrowser(t)
	for name, open := range realStorages {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			b := playHour(t, s, "shop")
			ok(t, s.(storage.Lister).List(t.Context(), func(e storage.Entry) error {
				if e.Key != "shop" && e.Key != drip.SharedID("app") {
					t.Errorf("List tells %q", e.Key)
				}
				return nil
			}))
			server := httptest.NewServer(newSite(t, Options{Storage: s}))
			defer server.Close()
			for _, width := range []int{1200, 360} {
				tab := openTab(t, br, width)
				for _, entity := range []string{"shop", drip.SharedID("app")} {
					tab.must(tab.Go(tab.ctx, server.URL+"/entity?name="+entity))
					want, total, most := used(t, b, entity), 0, 0
					for _, n := range want {
						total, most = total+n, max(most, n)
					}
					tab.says("figure.hour", fmt.Sprintf("%d calls in the last hour", total), fmt.Sprintf("at most %d in a minute", most))
					tab.must(tab.Eval(tab.ctx, `document.querySelector("details").open = true`, nil))
					var rows []struct {
						Clock string
						N     int
						X, H  float64
					}
					tab.must(tab.Eval(tab.ctx, `(() => {
						const columns = [...document.querySelectorAll("figure.hour rect.left")];
						return [...document.querySelectorAll("details tbody tr")].map((r, i) => ({
							Clock: r.children[0].innerText, N: +r.children[1].innerText,
							X: columns[i].getBoundingClientRect().x, H: columns[i].getBoundingClientRect().height,
						}));
					})()`, &rows))
					if len(rows) != len(want) {
						t.Errorf("%s: %d minutes, want %d", entity, len(rows), len(want))
					}
					highest := 0.0
					for _, r := range rows {
						highest = max(highest, r.H)
					}
					for i, r := range rows {
						if off := r.H/highest - float64(r.N)/float64(most); want[r.Clock] != r.N || off < -0.01 || off > 0.01 {
							t.Errorf("%s at %s: %d, drawn %.1f of %.1f; want %d of %d", entity, r.Clock, r.N, r.H, highest, want[r.Clock], most)
						}
						if i > 0 && r.X <= rows[i-1].X {
							t.Errorf("%s at %s: drawn at %.1f, behind %.1f", entity, r.Clock, r.X, rows[i-1].X)
						}
					}
					nameless, err := tab.Nameless(tab.ctx)
					tab.must(err)
					var wide int
					tab.must(tab.Eval(tab.ctx, "document.documentElement.scrollWidth - document.documentElement.clientWidth", &wide))
					if p := tab.Problems(); len(p) > 0 || len(nameless) > 0 || wide > 0 {
						t.Errorf("%s: the browser complains: %v; without a name: %v; %d too wide", entity, p, nameless, wide)
					}
				}
			}
		})
	}
}
