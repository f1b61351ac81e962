package page

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
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
