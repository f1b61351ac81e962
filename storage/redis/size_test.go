package redis_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/redis"
)

// The package comment names these sizes.
func TestSizes(t *testing.T) {
	const entity, window, pin, within, lease, calendar, waiting, grain = 376, 152, 200, 112, 16, 104, 264, 3
	app := map[string]drip.Limit{"app": {Size: 3, RefreshRate: 1}}
	for name, c := range map[string]struct {
		options drip.Options
		sizes   map[string]int
	}{
		"one window": {drip.Options{}, map[string]int{"drip:{x}": entity + 3*lease}},
		"two windows": {
			drip.Options{Windows: []drip.Window{{Size: 100, RefreshInterval: time.Minute}}}, map[string]int{"drip:{x}": entity + window + 3*lease},
		},
		"a shared limit": {
			drip.Options{Shared: app}, map[string]int{"drip:{x}": entity + within + 3*lease, "drip:{shared:app}": entity + calendar + 3*lease},
		},
	} {
		server := miniredis.RunT(t)
		s, err := redis.New(connect(t, server.Addr()), redis.Options{})
		ok(t, err)
		o := c.options
		o.Size, o.RefreshRate, o.Concurrency, o.Storage = 10, 10, 3, s
		b := buckettest.New(t, o)
		check := func(name string, more int) {
			for key, want := range c.sizes {
				if value, _ := server.Get(key); len(value) != want+more {
					t.Errorf("%s: %s has %d bytes, want %d", name, key, len(value), want+more)
				}
			}
		}
		for range 3 {
			buckettest.Admit(t, b, "x", drip.Request{})
		}
		check(name, 0)
		if o.Shared != nil {
			for range decision.Grains + 100 {
				buckettest.Admit(t, b, "y", drip.Request{Within: []string{"app"}})
			}
			value, _ := server.Get("drip:{shared:app}")
			if most := entity + 3*lease + calendar + waiting + grain*decision.Grains; len(value) > most || len(value) < most-waiting {
				t.Errorf("%s: the value has %d bytes with all grains booked, want at most %d", name, len(value), most)
			}
		} else {
			ok(t, b.Pin(t.Context(), "x", drip.Pin{Concurrency: 2}))
			check(name+", pinned", pin)
		}
	}
}
