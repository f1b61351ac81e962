package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/internal/limitjson"
	"github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// told is what of inspect's JSON a decision can be compared with.
type told struct {
	Delay  int64  `json:"delay_ms"`
	Bound  string `json:"bound"`
	Limit  string `json:"limit"`
	Limits string `json:"limits"`
}

func inspected(t *testing.T, args ...string) (got told) {
	t.Helper()
	ok(t, json.Unmarshal([]byte(must(t, append([]string{"inspect", "--json"}, args...)...)), &got))
	return got
}

// With the limits of the consumers, inspect tells the same about a newcomer as the next Admit, after any history.
func TestInspectAgreesWithTheNextDecision(t *testing.T) {
	for name, o := range owners {
		for seed := range *seeds {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { testInspectAgrees(t, o, seed) })
			})
		}
	}
}

func testInspectAgrees(t *testing.T, o drip.Options, seed uint64) {
	b, url := inMemory(t, o)
	u := user{bucket: b}
	all := limitjson.Limits{Size: o.Size, Rate: o.RefreshRate, Interval: duration(o.RefreshInterval), Concurrency: o.Concurrency}
	for _, w := range o.Windows {
		all.Windows = append(all.Windows, limitjson.Window{Size: w.Size, Rate: w.RefreshRate, Interval: duration(w.RefreshInterval)})
	}
	every, err := json.Marshal(all)
	ok(t, err)
	r := rand.New(rand.NewPCG(seed, 7))
	for range 150 {
		if r.IntN(3) == 0 {
			time.Sleep(time.Duration(r.Int64N(int64([]time.Duration{time.Second, time.Second, time.Hour}[r.IntN(3)]))))
		}
		ok(t, u.step(t.Context(), r))
		if r.IntN(20) == 0 {
			ok(t, b.Throttled(t.Context(), "shop", time.Duration(r.Int64N(int64(3*time.Second)))))
		}
		if r.IntN(4) > 0 {
			continue
		}
		with := inspected(t, url, "shop", "--limits", string(every))
		a := buckettest.Admit(t, b, "shop", drip.Request{})
		want := told{a.Delay.Milliseconds(), a.Bound.String(), a.Limit, "given"}
		if with != want {
			t.Fatalf("seed %d: inspect says %+v, and the decision was %+v", seed, with, want)
		}
		if a.Delay > 0 {
			u.tickets = append(u.tickets, a.Ticket)
		} else {
			u.running = append(u.running, a)
		}
	}
}

// With the shared limits of the consumers, inspect and top tell the same as the next Admit; a preset has some.
func TestLimitsOfAPresetAndShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		preset, err := provider.Named("airtable")
		ok(t, err)
		o, err := preset.Options(50 * time.Millisecond)
		ok(t, err)
		o.Shared["app"] = drip.Limit{Size: 5, RefreshRate: 5, RefreshInterval: time.Minute}
		b, url := inMemory(t, o)
		for i := range 5 {
			buckettest.Runs(t, b, fmt.Sprint("base-", i), drip.Request{})
		}
		const limits = `--limits={"preset": "airtable", "travel": "50ms", "shared": {"app": {"size": 5, "rate": 5, "interval": "1m"}}}`
		got := inspected(t, url, "base-0", limits)
		text := must(t, "inspect", url, "base-0", limits)
		const why = `the shared limit "app": window 1`
		if !strings.Contains(text, why) || strings.Contains(text, "may delay it longer") {
			t.Errorf("inspect:\n%s", text)
		}
		if own := must(t, "inspect", url, "base-0"); !strings.Contains(own, ", by its own limit\n") || !strings.Contains(own, "may delay it longer") {
			t.Errorf("inspect without the shared limits:\n%s", own)
		}
		if all := must(t, "top", url, limits); !regexp.MustCompile(`base-0 .* 1m  app: window 1\n`).MatchString(all) {
			t.Errorf("top:\n%s", all)
		}
		a := buckettest.Admit(t, b, "base-0", drip.Request{})
		if want := (told{a.Delay.Milliseconds(), a.Bound.String(), a.Limit, "given"}); got != want || got.Delay == 0 || got.Limit != "app" {
			t.Errorf("inspect says %+v, and the decision was %+v", got, want)
		}
	})
}

// inspect tells of other limits at the last decision, and of shared limits, too.
func TestInspectChangedWithinShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 4, Shared: map[string]drip.Limit{"app": {Size: 50}}})
		buckettest.Admit(t, b, "shop", drip.Request{})
		text := must(t, "inspect", url, "shop", `--limits={"size":9}`)
		for _, want := range []string{"\nIt was within 1 shared limit,", "\ndrip top lists the shared limits; drip inspect URL shared:NAME shows one.\n", "\nThe last decision was made by other limits.\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("inspect:\n%swant %q", text, want)
			}
		}
	})
}

// A limit that a preset does not have is not shown: the number of tokens here, and the windows of a shared limit.
func TestUnlimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		preset, err := provider.Named("stripe, live")
		ok(t, err)
		o, err := preset.Options(50 * time.Millisecond)
		ok(t, err)
		o.Share, o.Shared = 0.5, map[string]drip.Limit{"app": {Concurrency: 9}}
		b, url := inMemory(t, o)
		admit(t, b, "shop-1", 2)
		shared := drip.SharedID("app")
		top, json := must(t, "top", url), must(t, "inspect", url, "shop-1", "--json")
		shop, app := must(t, "inspect", url, "shop-1"), must(t, "inspect", url, shared)
		if !strings.Contains(shop, "tokens      2 in use\n") || !strings.Contains(app, "tokens      2 of 4 in use\n") || strings.Contains(app, "capacity") ||
			!regexp.MustCompile(`shop-1 +2 `).MatchString(top) || !regexp.MustCompile(`app +2/4 .* -  +now`).MatchString(top) || strings.Contains(json, "concurrency") {
			t.Errorf("the shop:\n%s\nas JSON:\n%s\nthe app:\n%s\nboth:\n%s", shop, json, app, top)
		}
	})
}

// Inspect says when the interval of a calendar ends, by the stored limits and by others.
func TestInspectCalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 4, RefreshRate: 4, Windows: []drip.Window{{Size: 60, Align: drip.Monthly(nil)}}, Start: time.Unix(0, 0)})
		buckettest.Runs(t, b, "shop-1", drip.Request{})
		for limits, want := range map[string]string{
			"": "59 of 60, +60 every 744h until 2000-02-01 00:00:00.000\n",
			`--limits={"size": 4, "rate": 4, "windows": [{"size": 60, "rate": 60, "align": "monthly"}]}`: "59 of 60, +60 every 744h until 2000-02-01 00:00:00.000\n",
			`--limits={"size": 4, "rate": 4, "windows": [{"size": 70, "rate": 60, "align": "daily"}]}`:   "59 of 70, +60 every 24h\n",
		} {
			args := []string{"inspect", url, "shop-1"}
			if limits != "" {
				args = append(args, limits)
			}
			prints(t, want, args...)
		}
	})
}

// While all tokens are out nobody knows when one is free.
func TestInspectTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 4, Concurrency: 1})
		buckettest.Admit(t, b, "shop-1", drip.Request{})
		prints(t, "next        a newcomer asks again 00:00:00.001, in 1ms", "inspect", url, "shop-1")
	})
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{
			Size: 4, RefreshRate: 2, Concurrency: 8, Windows: []drip.Window{{Size: 60, RefreshInterval: time.Minute}},
		})
		admit := func(n, cost int) (last drip.Admission) {
			for range n {
				last = buckettest.Admit(t, b, "shop-1", drip.Request{Cost: cost})
			}
			return last
		}
		time.Sleep(100 * time.Millisecond)
		done := admit(1, 1)
		time.Sleep(180 * time.Millisecond)
		ok(t, b.Settle(t.Context(), "shop-1", done.Lease, 1))
		admit(3, 1)
		time.Sleep(20 * time.Millisecond)
		admit(2, 2)
		time.Sleep(5 * time.Millisecond)
		for range 2 {
			_, err := b.GetDelay(t.Context(), "shop-2")
			ok(t, err)
		}
		const shop1 = `shop-1 at 2000-01-01 00:00:00.305 +0000, by the storage's clock
next        a newcomer runs 00:00:03.000, in 2.7s
            the rest of the capacity is booked
capacity    0 of 4, +2 every 1s
            56 of 60, +60 every 1m
tokens      3 of 8 in use
            held for 25ms, ends 00:01:00.280, in 59.98s
            held for 25ms, ends 00:01:00.280, in 59.98s
            held for 25ms, ends 00:01:00.280, in 59.98s
operations  take 180ms on average
booked      4 units, the last for 00:00:02.000, in 1.7s
decided     last at 00:00:00.300, 5ms ago
`
		for _, c := range []struct{ args, want string }{
			{"shop-1", shop1},
			{`shop-1 --limits={"size":4,"rate":2,"windows":[{"size":60,"rate":60,"interval":"1m"}],"concurrency":3}`, strings.Replace(shop1, "3 of 8", "3 of 3", 1)},
			{`shop-2 --limits={"size":3,"rate":2}`, `shop-2 at 2000-01-01 00:00:00.305 +0000, by the storage's clock
next        a newcomer runs now
capacity    2 of 3, +2 every 1s
tokens      2 of 3 in use
            2 taken by GetDelay, which stores no times
decided     last at 00:00:00.305, 0s ago

The last decision was made by other limits.
`},
			{"shop-3", `shop-3 at 2000-01-01 00:00:00.305 +0000, by the storage's clock
stored      nothing: it is idle, or has another name or prefix
tokens      0 in use

Nothing was decided, so its limits are not known. This tells them:
--limits '{"size": N, "rate": N, "interval": "1s"}'
`},
			{"shared:app", `shared:app at 2000-01-01 00:00:00.305 +0000, by the storage's clock
stored      nothing: it is idle, or has another name or prefix
tokens      0 in use

Nothing was decided, so its limits are not known. This tells them:
--limits '{"shared": {"NAME": {"size": N, "rate": N, "interval": "1s"}}}'
`},
			{`shop-3 --limits={"size":4,"rate":2}`, `shop-3 at 2000-01-01 00:00:00.305 +0000, by the storage's clock
stored      nothing: it is idle, or has another name or prefix
next        a newcomer runs now
capacity    4 of 4, +2 every 1s
tokens      0 of 4 in use
`},
			{`shop-1 --json`, `{
  "entity": "shop-1",
  "time": "2000-01-01T00:00:00.305Z",
  "known": true,
  "limits": "stored",
  "delay_ms": 2695,
  "bound": "booked",
  "windows": [
    {
      "size": 4,
      "rate": 2,
      "interval_ms": 1000,
      "capacity": 0,
      "refresh": "2000-01-01T00:00:01.000Z"
    },
    {
      "size": 60,
      "rate": 60,
      "interval_ms": 60000,
      "capacity": 56,
      "refresh": "2000-01-01T00:01:00.000Z"
    }
  ],
  "concurrency": 8,
  "in_use": 3,
  "plain": 0,
  "leases": [
    {
      "age_ms": 25,
      "end": "2000-01-01T00:01:00.280Z"
    },
    {
      "age_ms": 25,
      "end": "2000-01-01T00:01:00.280Z"
    },
    {
      "age_ms": 25,
      "end": "2000-01-01T00:01:00.280Z"
    }
  ],
  "operation_ms": 180,
  "booked": 4,
  "booked_until": "2000-01-01T00:00:02.000Z",
  "closed_until": null,
  "last_decision": "2000-01-01T00:00:00.300Z"
}
`},
		} {
			if got := must(t, append([]string{"inspect", url}, strings.Fields(c.args)...)...); got != c.want {
				t.Errorf("drip inspect %s:\n%s\nwant:\n%s", c.args, got, c.want)
			} else {
				narrow(t, got)
			}
		}
		all := `--limits={"size":4,"rate":2,"concurrency":8,"windows":[{"size":60,"rate":60,"interval":"1m"}]}`
		prints(t, `
  "concurrency": 8,
  "in_use": 2,
  "plain": 2,
  "leases": [],
  "operation_ms": 0,
  "booked": 0,
  "booked_until": null,
  "closed_until": null,
`, "inspect", url, "shop-2", "--json", all)
		// The provider refuses: the gathered capacity is gone, and comes back with the intervals after its time.
		ok(t, b.Throttled(t.Context(), "shop-4", 2500*time.Millisecond))
		want := `
next        a newcomer runs 00:00:03.000, in 2.7s
            closed, by pause or by the provider
            then the capacity of 4, +2 every 1s is used up
capacity    0 of 4, +2 every 1s
            60 of 60, +60 every 1m
tokens      0 of 8 in use
closed      until 00:00:02.806, in 2.5s
`
		if got := must(t, "inspect", url, "shop-4", all); !strings.Contains(got, want) {
			t.Errorf("throttled: got\n%s\nwant%s", got, want)
		} else {
			narrow(t, got)
		}
		prints(t, `"bound": "closed",
  "then": "window 1",
`, "inspect", url, "shop-4", "--json", all)
		prints(t, "  closed, window 1\n", "top", url, all)
		must(t, "pause", url, "shop-2", "26h")
		prints(t, `
next        a newcomer runs 2000-01-02 02:00:00.305, in 26h
            closed, by pause or by the provider
`, "inspect", url, "shop-2", all)
		prints(t, "\nclosed      until 2000-01-02 02:00:00.305, in 26h\n", "inspect", url, "shop-2")
		must(t, "resume", url, "shop-2")
		must(t, "pin", url, "shop-2", "--limit=1/10s", "--concurrency=5", "--for=2h")
		prints(t, `
next        a newcomer runs now
capacity    2 of 4, +2 every 1s
            58 of 60, +60 every 1m
            1 of 1, +1 every 10s
tokens      2 of 5 in use
            2 taken by GetDelay, which stores no times
pinned      1 every 10s, 5 tokens; until 02:00:00.305, in 2h
`, "inspect", url, "shop-2")
		prints(t, `
  "concurrency": 5,
  "pin": {
    "size": 1,
    "rate": 1,
    "interval_ms": 10000,
    "concurrency": 5,
    "raise": false,
    "until": "2000-01-01T02:00:00.305Z"
  },
`, "inspect", url, "shop-2", "--json")
		follow(t, url,
			step{"unpin URL shop-2", outcome{0, "shop-2: the limits of the consumers alone hold again; pinned was 1 every 10s, 5 tokens\n", ""}},
			step{"unpin URL shop-2", outcome{0, "shop-2: nothing was pinned\n", ""}})
		if got := must(t, "inspect", url, "shop-2"); strings.Contains(got, "pinned") || strings.Contains(got, "10s\n") {
			t.Errorf("unpinned: got\n%s", got)
		}
	})
}

// Inspect shows a level that follows the provider, and the limits that are in force with it.
func TestInspectLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 20, RefreshRate: 10, Start: time.Unix(0, 0), Follow: true})
		ok(t, b.Throttled(t.Context(), "shop", time.Second))
		time.Sleep(5 * time.Second)
		if got := must(t, "inspect", url, "shop"); !strings.Contains(got, "\nlevel       80.0 % of the limit") || !strings.Contains(got, " of 16, +10 every 1.25s\n") {
			t.Errorf("it prints\n%s", got)
		}
		prints(t, `"level": 0.8,`, "inspect", url, "shop", "--json")
		ok(t, b.Announced(t.Context(), "shop", 1, time.Minute))
		prints(t, "\nlevel       10.0 % of the limit", "inspect", url, "shop")
	})
}

// The stored limit of an entity may be one window that counts a unit.
func TestInspectOfAUnitAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 80, RefreshRate: 80, RefreshInterval: 24 * time.Hour, Unit: "tokens"})
		time.Sleep(time.Minute)
		buckettest.Runs(t, b, "shop", drip.Request{Costs: drip.Costs{"tokens": 80}})
		want := buckettest.Inspect(t, b, "shop")
		got := inspected(t, url, "shop")
		if got.Delay != want.Delay.Milliseconds() || got.Bound != want.Bound.String() {
			t.Errorf("inspect tells %v, Bucket.Inspect %v for %v:\n%s", got, want.Delay, want.Bound, must(t, "inspect", url, "shop"))
		}
		prints(t, "0 of 80", "inspect", url, "shop")
		prints(t, "0/80", "top", url)
	})
}

// inspect shows the use of the last hour, of an entity and of a shared limit, in 80 columns.
func TestInspectUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		url := share(t, s)
		b := buckettest.New(t, drip.Options{
			Size: 9, RefreshRate: 6, RefreshInterval: time.Minute, Windows: []drip.Window{{Size: 10_000, RefreshInterval: time.Minute, Unit: "tokens"}},
			Shared: map[string]drip.Limit{"app": {Size: 2, RefreshInterval: time.Minute}}, History: true, Storage: s,
		})
		for i := range 8 { // of the minutes 0 to 7
			for range i {
				a := buckettest.Admit(t, b, "shop-1", drip.Request{Costs: drip.Costs{"tokens": 100}, Within: []string{}})
				if err := b.Settle(t.Context(), "shop-1", a.Lease, 1, drip.Costs{"tokens": 10 * i}); i < 7 && err != nil {
					t.Fatal(err)
				}
			}
			_, err := b.GetDelay(t.Context(), "shop-2")
			ok(t, err)
			time.Sleep(time.Minute)
		}
		time.Sleep(2 * time.Minute)
		const limits = `--limits={"size":9,"rate":6,"interval":"1m","windows":[{"size":10000,"interval":"1m","unit":"tokens"}]}`
		for args, want := range map[string]string{
			"": "used        28 calls in the last hour, 7.8 % of the limit\n" +
				"            ..................................................▂▃▄▅▆▇█...\n" +
				"            1400 tokens in the last hour\n" +
				"            ..................................................▁▁▂▃▅▆█...\n",
			limits: "            1400 tokens in the last hour, 0.2 % of the limit\n",
		} {
			text := must(t, strings.Fields("inspect "+url+" shop-1 "+args)...)
			if !strings.Contains(text, want) {
				t.Errorf("inspect %s:\n%s\nwant\n%s", args, text, want)
			}
			narrow(t, text)
		}
		prints(t, "used        8 calls in the last hour, 6.7 % of the limit\n", "inspect", url, drip.SharedID("app"))
		var got struct {
			Used []struct {
				Unit    string
				Total   int
				From    time.Time
				Minutes []int
			}
		}
		ok(t, json.Unmarshal([]byte(must(t, "inspect", url, "shop-1", "--json")), &got))
		if len(got.Used) != 2 || got.Used[0].Total != 28 || got.Used[1].Unit != "tokens" || got.Used[1].Minutes[56] != 490 || !got.Used[0].From.Equal(time.Now().Add(-59*time.Minute)) {
			t.Errorf("JSON has %+v", got.Used)
		}
		// A record whose numbers are beyond all limits is shown as well.
		record := fmt.Sprintf(`{"v":1,"from":%d,"used":{"":[1,%d]}}`, time.Now().Unix()/60-1, math.MaxInt64)
		state := storage.State{Data: []byte(record), Now: time.Now().UnixMilli(), Until: time.Now().Add(time.Hour).UnixMilli()}
		ok(t, s.Set(t.Context(), "history:garbage", state, storage.NoRevision))
		prints(t, "..▁█\n", "inspect", url, "garbage")
		if text := must(t, "inspect", url, "nobody"); strings.Contains(text, "used") {
			t.Errorf("nobody:\n%s", text)
		}
		if top := must(t, "top", url); strings.Contains(top, "history") {
			t.Errorf("top shows a history:\n%s", top)
		}
	})
}

const withApp = `{"size":10,"shared":{"app":{"size":1}}}`

// unreadable shares a storage of a shop within a shared limit, which answers if it is read.
func unreadable(t *testing.T, answer func(context.Context) error) (url string) {
	t.Helper()
	m := memory.New()
	b := buckettest.New(t, drip.Options{Size: 10, Shared: map[string]drip.Limit{"app": {Size: 1}}, Storage: m})
	buckettest.Runs(t, b, "shop", drip.Request{})
	return share(t, hooked.Storage{Storage: m, First: func(ctx context.Context, c hooked.Call) error {
		if strings.HasPrefix(c.Key, drip.SharedID("")) {
			return answer(ctx)
		}
		return nil
	}})
}

// inspect does not tell an answer of a shared limit that it could not read.
func TestInspectWithoutItsSharedLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := unreadable(t, func(context.Context) error { return errors.New("it cannot be read") })
		prints(t, "a newcomer runs now, by its own limit\n", "inspect", url, "shop", "--limits", withApp)
	})
}

// --timeout holds for the shared limits that top reads, too.
func TestTopEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := unreadable(t, func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begin := time.Now()
		var out, errs strings.Builder
		status := run(ctx, &terminal{out: &out, err: &errs, zone: time.UTC}, []string{"top", url, "--timeout", "2s", "--limits", withApp})
		// The shared limit may be listed before the shop, and then is told.
		told := status == statusOK && strings.Contains(out.String(), "for which there was no time")
		if took := time.Since(begin); took > 3*time.Second || status != statusNoAnswer && !told {
			t.Errorf("with --timeout 2s top took %v, and ended with %d: %s%s", took, status, out.String(), errs.String())
		}
	})
}
