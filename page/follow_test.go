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

// The page shows the level of an entity, and what a limit on trial would postpone.
func TestLevelAndTrial(t *testing.T) {
	testTrial(t, drip.Options{Size: 20, RefreshRate: 10, Follow: true, Shared: map[string]drip.Limit{
		"app": {Size: 2, RefreshRate: 1, Shadow: true},
	}}, true, func(bool) map[string]string {
		return map[string]string{
			"entity?name=shop":        "<dt>Level</dt><dd><strong>80.0 %</strong> of the limit",
			"entity?name=shared:app":  "<dt>Booked</dt><dd>3 units, the last slot at 00:00:03",
			"entity?name=shadow:shop": "<dt>Booked</dt><dd>the last slot at 00:00:03",
		}
	})
}

// The page shows what the entities' own limit on trial would postpone.
func TestOwnTrial(t *testing.T) {
	testTrial(t, drip.Options{Size: 2, RefreshRate: 1, Shadow: true, Shared: map[string]drip.Limit{"app": {Size: 20}}}, false, func(known bool) map[string]string {
		return map[string]string{
			"entity?name=shop":        map[bool]string{true: "No window limits it.", false: "No limit of its own is stored."}[known],
			"entity?name=shadow:shop": "<dt>Booked</dt><dd>3 units, the last slot at 00:00:03",
			"entity?name=shared:app":  "15 left of 20, &#43;20 every 1s",
			"":                        `<a href="entity?name=shadow%3Ashop">shadow:shop</a>`,
		}
	})
}

// testTrial lets five operations run past a limit on trial, and has the provider refuse one. It looks at pages that know the
// limits, and at pages that do not: at each address for a text.
func testTrial(t *testing.T, o drip.Options, refused bool, texts func(known bool) map[string]string) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		o.Storage, o.Start = s, time.Unix(0, 0)
		b := buckettest.New(t, o)
		shadow := &drip.Shadow{Bucket: b}
		defer shadow.Close()
		for range 5 {
			buckettest.Runs(t, shadow, "shop", drip.Request{})
		}
		if refused {
			ok(t, b.Throttled(t.Context(), "shop", time.Second))
		}
		for name, limits := range map[string]*drip.Options{"with the limits": &o, "without": nil} {
			h := newSite(t, Options{Storage: s, Limits: limits})
			for address, want := range texts(limits != nil) {
				if status, text := h.get(t, address); status != 200 || !strings.Contains(text, want) {
					t.Errorf("%s: %s: want %q:\n%s", name, address, want, text)
				}
			}
			h.Close()
		}
	})
}
