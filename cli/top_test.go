package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

func TestTop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 4, RefreshRate: 2})
		if got, want := must(t, "top", url), `00:00:00  0 entities, 0 tokens in use, 0 waiting, 0 closed

BUSIEST
nothing is stored

LONGEST WAITING
nothing waits
`; got != want {
			t.Errorf("of nothing:\n%s", got)
		}
		time.Sleep(100 * time.Millisecond)
		for i, n := range []int{7, 2, 12, 1} {
			time.Sleep(time.Millisecond)
			admit(t, b, fmt.Sprint("shop-", i), n)
		}
		for range 2 {
			_, err := b.GetDelay(t.Context(), "a shop of GetDelay whose name is very long indeed")
			ok(t, err)
		}
		must(t, "pause", url, "shop-3", "90m")
		time.Sleep(time.Second)
		for args, want := range map[string]string{
			"--rows=4": `00:00:01  5 entities, 13 tokens in use, 2 waiting, 1 closed

BUSIEST             in use  decided  booked  waiting  capacity   next  why not
shop-2                 4/4   1s ago       8    2.92s       2/4   3.9s  booked
shop-0                 4/4   1s ago       3    896ms       2/4  921ms  booked
a shop of GetDela…     2/4   1s ago       0        -       4/4    now  -
shop-1                 2/4   1s ago       0        -       4/4    now  -

LONGEST WAITING     in use  decided  booked  waiting  capacity   next  why not
shop-2                 4/4   1s ago       8    2.92s       2/4   3.9s  booked
shop-0                 4/4   1s ago       3    896ms       2/4  921ms  booked
`,
			`--rows=1 --limits={"size":4,"rate":2,"concurrency":2}`: `00:00:01  5 entities, 13 tokens in use, 2 waiting, 1 closed

BUSIEST             in use  decided  booked  waiting  capacity  next  why not
shop-2                 4/2   1s ago       8    2.92s       2/4  3.9s  booked

LONGEST WAITING     in use  decided  booked  waiting  capacity  next  why not
shop-2                 4/2   1s ago       8    2.92s       2/4  3.9s  booked
`,
		} {
			if got := must(t, append([]string{"top", url}, strings.Fields(args)...)...); got != want {
				t.Errorf("drip top %s:\n%s\nwant:\n%s", args, got, want)
			} else {
				narrow(t, got)
			}
		}
	})
}

// Shared limits have a table of their own, and on a terminal lines fit 80 columns whatever the limits.
func TestTopOfSharedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{
			Size: 200, RefreshRate: 20, Windows: []drip.Window{{Size: 1000, RefreshInterval: time.Minute}, {Size: 50_000, RefreshInterval: 24 * time.Hour}},
			Shared: map[string]drip.Limit{"app": {Size: 40, RefreshRate: 20, Windows: []drip.Window{{Size: 700, RefreshInterval: time.Hour}}}, "stock": {Concurrency: 5}},
			Start:  time.Unix(0, 0).Add(-24 * time.Hour),
		})
		for i := range 3 {
			admit(t, b, fmt.Sprint("a shop with a long name ", i), 300)
		}
		must(t, "pause", url, "a shop with a long name 0", "90m")
		time.Sleep(time.Second)
		narrow(t, tryWith(t, &terminal{interactive: true}, "top", url, "--once").out)
		got := must(t, "top", url)
		if want := `00:00:01  3 entities, 5 tokens in use, 3 waiting, 1 closed
`; !strings.HasPrefix(got, want) {
			t.Errorf("it prints\n%s\nwant first\n%s", got, want)
		}
		_, shared, _ := strings.Cut(got, "SHARED LIMITS")
		if lines := strings.Split(strings.TrimSpace(shared), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[1], "app ") && !strings.HasPrefix(lines[1], "stock ") ||
			strings.Contains(got, "shared:") || !strings.Contains(shared, " 2: 695/700 ") {
			t.Errorf("it prints\n%s", got)
		}
		if !strings.Contains(got, "  now  shared limits aside") || !strings.Contains(got, "decided") { // in a pipe there is place
			t.Errorf("top does not say that it leaves out the shared limits, or the time of decisions:\n%s", got)
		}
		if got := must(t, "top", url, "--json"); strings.Count(got, `"entity": "shared:app"`) != 1 || !strings.Contains(got, `"shared_limits": [`) || !strings.Contains(got, `"entities": 3,`) {
			t.Errorf("it prints\n%s", got)
		}
	})
}

// The tables have what sorting everything would have, whatever the order, and each entity once.
func TestRanking(t *testing.T) {
	waits := func(name string, until int) report {
		return report{&entities.Report{Status: drip.Status{Entity: name}, Waiting: time.Unix(int64(until), 0)}}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		k := ranking{most: 1 + r.IntN(5), order: byWaiting}
		last := map[string]int{}
		for range r.IntN(40) {
			name, n := fmt.Sprint("shop-", r.IntN(12)), r.IntN(10)
			if before, told := last[name]; told && n < before {
				n = before // an entity that sinks while it is read may leave its place empty
			}
			last[name] = n
			k.add(waits(name, n))
		}
		for i, got := range k.reports {
			above := 0
			for name, n := range last {
				if byWaiting(waits(name, n), got) < 0 {
					above++
				}
			}
			if above != i {
				t.Fatalf("%s is at %d, and %d are above it", got.Entity, i, above)
			}
		}
		if len(k.reports) != min(k.most, len(last)) {
			t.Fatalf("%d of %d are shown", len(k.reports), len(last))
		}
	}
}

// slow is a storage whose List does not end by itself.
type slow struct {
	storage.Storage
	entries []storage.Entry
}

func (s slow) List(ctx context.Context, each func(storage.Entry) error) error {
	for _, e := range s.entries {
		if err := each(e); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// Top leaves out the entities for which it has no time, and says so.
func TestTopShowsWhatThereWasTimeFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		some := []storage.Entry{{Key: "shop", Time: time.Now(), State: decision.State{Tokens: 1, Plain: 1, Now: time.Now().UnixMilli()}}}
		url := share(t, slow{entries: some})
		if got := must(t, "top", url); !strings.Contains(got, "\nThere are more, for which there was no time: see --timeout.\n") || !strings.Contains(got, "\nshop ") {
			t.Errorf("it prints\n%s", got)
		}
		prints(t, `"complete": false`, "top", url, "--json")
	})
	synctest.Test(t, func(t *testing.T) {
		if o := try(t, "top", share(t, slow{})); o.status != statusNoAnswer {
			t.Errorf("without any answer: %+v", o)
		}
	})
}

// On a terminal top leaves the screen as it was, with its last output, however it ends.
func TestTopLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		b := buckettest.New(t, drip.Options{Size: 4, RefreshRate: 2, Storage: s})
		admit(t, b, "shop-1", 1)
		gone := time.Now().Add(5 * time.Second)
		url := share(t, hooked.Storage{Storage: s, First: func(context.Context, hooked.Call) error {
			if time.Now().Before(gone) {
				return nil
			}
			return errors.New("it is gone\x1b[2J")
		}})
		ctx, interrupt := context.WithCancel(t.Context())
		var out, errs strings.Builder
		status := make(chan int)
		go func() {
			status <- run(ctx, &terminal{out: &out, err: &errs, interactive: true, zone: time.UTC}, []string{"top", url, "--every", "3s"})
		}()
		time.Sleep(4 * time.Second)
		admit(t, b, "shop-2", 2)
		time.Sleep(6 * time.Second)
		interrupt()
		if got := <-status; got != statusOK || errs.Len() > 0 {
			t.Errorf("status %d, %s", got, errs.String())
		}
		text := out.String()
		begin, end := strings.Index(text, enter), strings.Index(text, leave)
		if begin != 0 || end < 0 || strings.Count(text, enter) != 1 || strings.Count(text, leave) != 1 {
			t.Fatalf("%q", text)
		}
		screen, after := text[:end], text[end+len(leave):]
		if strings.Contains(screen, "\n") || strings.Count(screen, "\x1b[1;1H") != 4 || strings.Count(screen, "\x1b[1;1Hit is gone\\x1b[2J\x1b[K\x1b[J") != 2 {
			t.Errorf("on the screen: %q", screen)
		}
		if !strings.HasPrefix(after, "00:00:03  1 entity, 1 token in use") || !strings.HasSuffix(after, "\n") || strings.Contains(after, "\x1b") {
			t.Errorf("left behind: %q", after)
		}
	})
}

// top tells the capacity of a window that limits, also behind one that limits nothing.
func TestTopBehindNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, err := provider.Limit(0, provider.Concurrency(5))
		ok(t, err)
		b, url := inMemory(t, provider.Options(limit))
		ok(t, b.Pin(t.Context(), "shop", drip.Pin{Window: drip.Window{Size: 3, RefreshInterval: time.Hour}}))
		for range 2 {
			buckettest.Runs(t, b, "shop", drip.Request{})
		}
		prints(t, "2: 1/3", "top", url)
	})
}
