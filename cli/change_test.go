package cli

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// owners are the limits that consumers have, which the commands are not told.
var owners = map[string]drip.Options{
	"one window":      {Size: 5, RefreshRate: 3},
	"several windows": {Size: 5, RefreshRate: 3, Windows: []drip.Window{{Size: 40, RefreshInterval: time.Minute}, {Size: 300, RefreshRate: 20, RefreshInterval: time.Hour}}},
	"few tokens":      {Size: 20, RefreshRate: 20, Concurrency: 3, Lease: 10 * time.Second},
	"a long window":   {Size: 2, RefreshRate: 1, Windows: []drip.Window{{Size: 100, RefreshInterval: 31 * 24 * time.Hour}}},
}

// user makes random decisions about an entity, and remembers their answers.
type user struct {
	bucket   *drip.Bucket
	tickets  []drip.Ticket
	running  []drip.Admission
	plain    int
	answered []string
}

// grace is how long the tickets of owners may be overdue. Then they count as lost, and what one gets that comes back after all
// depends on when the entity was forgotten.
const grace = 2 * time.Second

func (u *user) step(ctx context.Context, r *rand.Rand) error {
	switch n := r.IntN(10); {
	case n < 5:
		var q drip.Request
		for len(u.tickets) > 0 && time.Since(u.tickets[0].Slot()) > grace {
			u.tickets = u.tickets[1:]
		}
		if len(u.tickets) > 0 && n < 3 {
			q.Ticket, u.tickets = u.tickets[0], u.tickets[1:]
		}
		a, err := u.bucket.Admit(ctx, "shop", q)
		u.answered = append(u.answered, fmt.Sprint("admit ", a.Delay, a.Bound))
		if a.Delay > 0 {
			u.tickets = append(u.tickets, a.Ticket)
		} else {
			u.running = append(u.running, a)
		}
		return err
	case n < 7:
		d, err := u.bucket.GetDelay(ctx, "shop")
		u.answered = append(u.answered, fmt.Sprint("get delay ", d))
		if d == 0 {
			u.plain++
		}
		return err
	case n < 9 && len(u.running) > 0:
		a := u.running[0]
		u.running = u.running[1:]
		err := u.bucket.Settle(ctx, "shop", a.Lease, r.IntN(3))
		u.answered = append(u.answered, fmt.Sprint("settle ", err))
		return nil // the lease may be over
	case u.plain > 0:
		u.plain--
		return u.bucket.ReturnToken(ctx, "shop")
	}
	return nil
}

// The commands know the limits from the storage, and change an entity as the library does with them. After any history,
// all later decisions are the same, and a window that gathers loses nothing.
func TestChangesKeepWhatIsKnown(t *testing.T) {
	for name, o := range owners {
		t.Run(name, func(t *testing.T) {
			for seed := range *seeds {
				synctest.Test(t, func(t *testing.T) { testChanges(t, o, seed) })
			}
		})
	}
}

func testChanges(t *testing.T, o drip.Options, seed uint64) {
	ctx := t.Context()
	var users [2]user
	var stores [2]*memory.Storage
	for i := range users {
		stores[i] = memory.New()
		o.Storage = stores[i]
		b := buckettest.New(t, o)
		users[i].bucket = b
	}
	url := share(t, struct{ *memory.Storage }{stores[0]}) // a storage that outlives the process, as for the command
	r := rand.New(rand.NewPCG(seed, 0))
	for range 250 {
		if r.IntN(8) == 0 {
			wait := time.Duration(r.Int64N(int64([]time.Duration{time.Second, time.Minute, time.Hour}[r.IntN(3)])))
			time.Sleep(wait)
		}
		if r.IntN(12) == 0 {
			var err error
			switch d := time.Duration(1 + r.Int64N(int64(5*time.Second))); r.IntN(5) {
			case 0, 1:
				if strings.Contains(must(t, "pause", url, "shop", d.String()), "nothing was changed") {
					continue
				}
				err = users[1].bucket.Pause(ctx, "shop", d)
			case 2:
				must(t, "reset", url, "shop", "--yes")
				err = users[1].bucket.Reset(ctx, "shop")
			case 3:
				must(t, "pin", url, "shop", "--limit=2/3s", "--burst=4", "--concurrency=6", "--for", d.String(), fmt.Sprintf("--raise=%t", d%2 == 0))
				err = users[1].bucket.Pin(ctx, "shop", drip.Pin{
					Window: drip.Window{Size: 4, RefreshRate: 2, RefreshInterval: 3 * time.Second}, Concurrency: 6, For: d, Raise: d%2 == 0,
				})
			case 4:
				must(t, "unpin", url, "shop")
				err = users[1].bucket.Unpin(ctx, "shop")
			}
			ok(t, err)
			got, _, _ := stores[0].Get(ctx, "shop")
			want, _, _ := stores[1].Get(ctx, "shop")
			if got.Until < want.Until {
				t.Fatalf("seed %d: it will be forgotten at %d, before %d", seed, got.Until, want.Until)
			}
			continue
		}
		state := r.Uint64()
		for i := range users {
			ok(t, users[i].step(ctx, rand.New(rand.NewPCG(state, 1))))
		}
		a, b := users[0].answered, users[1].answered
		if n := len(a); n > 0 && a[n-1] != b[n-1] {
			t.Fatalf("seed %d: after the commands the answer is %q, after the library's own methods %q", seed, a[n-1], b[n-1])
		}
	}
}

// Resume opens an entity, whatever has closed it, as its owners would.
func TestResumeOpens(t *testing.T) {
	for name, o := range owners {
		for _, closed := range []string{"paused", "throttled"} {
			t.Run(name+", "+closed, func(t *testing.T) {
				for seed := range *seeds {
					synctest.Test(t, func(t *testing.T) { testResume(t, o, closed, seed) })
				}
			})
		}
	}
}

func testResume(t *testing.T, o drip.Options, closed string, seed uint64) {
	b, url := inMemory(t, o)
	u, r := user{bucket: b}, rand.New(rand.NewPCG(seed, 0))
	steps := func() {
		for range r.IntN(50) {
			time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
			ok(t, u.step(t.Context(), r))
		}
	}
	steps()
	shut := b.Throttled
	if closed == "paused" {
		shut = b.Pause
	}
	ok(t, shut(t.Context(), "shop", 24*time.Hour))
	steps()
	before := buckettest.Inspect(t, b, "shop")
	if got := must(t, "resume", url, "shop"); !strings.HasPrefix(got, "shop: open again; it had been closed until ") {
		t.Errorf("seed %d: got %s", seed, got)
	}
	after := buckettest.Inspect(t, b, "shop")
	if !after.ClosedUntil.IsZero() {
		t.Errorf("seed %d: closed until %v, want open", seed, after.ClosedUntil)
	}
	for _, status := range []*drip.Status{&before, &after} { // its promised slots come earlier
		status.ClosedUntil, status.BookedUntil, status.Booked = time.Time{}, time.Time{}, 0
		status.Delay, status.Bound, status.Then = 0, drip.BoundNone, drip.BoundNone
	}
	if !reflect.DeepEqual(after, before) {
		t.Errorf("seed %d: got %+v, want %+v", seed, after, before)
	}
	// With the next interval of all windows there is room again, and all that came before is over.
	time.Sleep(32 * 24 * time.Hour)
	must(t, "reset", url, "shop", "--yes")
	buckettest.Runs(t, b, "shop", drip.Request{})
}

func TestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 2, RefreshRate: 1})
		admit(t, b, "shop-1", 3)
		follow(t, url, []step{
			{"resume URL shop-2", outcome{0, "shop-2: it was not closed\nNothing was stored of this entity: it was idle, or has another name or prefix.\n", ""}},
			{"reset URL shop-2", outcome{0, "shop-2: nothing is stored of it: it is idle, or has another name or prefix\n", ""}},
			{"unpin URL shop-2", outcome{0, "shop-2: nothing was pinned\nNothing was stored of this entity: it was idle, or has another name or prefix.\n", ""}},
			{"pause URL shop-2 1m", outcome{0, "shop-2: closed until 00:01:00.000\nNothing was stored of this entity: it was idle, or has another name or prefix.\n", ""}},
			{"pause URL shop-1 10m", outcome{0, "shop-1: closed until 00:10:00.000\n", ""}},
			{"pause URL shop-1 5m", outcome{0, "shop-1: closed until 00:10:00.000 already, which is later; nothing was changed\n", ""}},
			{"pause URL shop-1 5m --json", outcome{0, `{
  "entity": "shop-1",
  "known": true,
  "changed": false,
  "closed_until": "2000-01-01T00:10:00.000Z",
  "pinned_until": null
}
`, ""}},
			{"resume URL shop-1", outcome{0, "shop-1: open again; it had been closed until 00:10:00.000\nMessages that were postponed until then come back then.\n", ""}},
			{"pause URL shop-1 1000000h", outcome{0, "shop-1: closed until 2034-11-03 19:53:47.776\n", ""}},
			{"pause URL shop-1 2000000h", outcome{0, "shop-1: closed until 2034-11-03 19:53:47.776\n", ""}},
			{"resume URL shop-1", outcome{0, "shop-1: open again; it had been closed until 2034-11-03 19:53:47.776\nMessages that were postponed until then come back then.\n", ""}},
			{"pin URL shop-1 --limit 5/1s --for 1000000h", outcome{0, "shop-1: pinned to 5 every 1s until 2034-11-03 19:53:47.776\n", ""}},
			{"unpin URL shop-1", outcome{0, "shop-1: the limits of the consumers alone hold again; pinned was 5 every 1s\n", ""}},
			{"reset URL shop-1", outcome{2, "", "drip reset: it takes back 2 tokens and all tickets of shop-1; nobody is here to confirm that, so it needs --yes\n"}},
			{"reset URL shop-1 --yes", outcome{0, "shop-1: 2 tokens and all tickets taken back; past operations stay counted\n", ""}},
		}...)
	})
}

// Messages that asked during a pause come back at its old end.
func TestResumeOfPostponed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 2, RefreshRate: 1, Shared: map[string]drip.Limit{"app": {Size: 10}}})
		follow(t, url, step{"pause URL shop-1 10m", outcome{0, "shop-1: closed until 00:10:00.000\nNothing was stored of this entity: it was idle, or has another name or prefix.\n", ""}})
		admit(t, b, "shop-1", 1)
		follow(t, url, []step{
			{"resume URL shop-1", outcome{0, "shop-1: open again; it had been closed until 00:10:00.000\nMessages that were postponed until then come back then.\n", ""}},
			{"pause URL shared:app 10m", outcome{0, "shared:app: closed until 00:10:00.000\n", ""}},
		}...)
		admit(t, b, "shop-2", 1)
		follow(t, url, step{"resume URL shared:app", outcome{0, "shared:app: open again; it had been closed until 00:10:00.000\nMessages that were postponed until then come back then.\n", ""}})
	})
}

func TestResetAsks(t *testing.T) {
	b, url := inMemory(t, drip.Options{})
	for answer, want := range map[string]outcome{
		"y\n":   {0, "shop-1: 1 token and all tickets taken back; past operations stay counted\n", ""},
		"Yes\n": {0, "shop-1: 1 token and all tickets taken back; past operations stay counted\n", ""},
		"n\n":   {4, "", "drip reset: no: nothing was changed\n"},
		"\n":    {4, "", "drip reset: no: nothing was changed\n"},
		"":      {4, "", "drip reset: no: nothing was changed\n"},
	} {
		ok(t, b.Reset(t.Context(), "shop-1"))
		admit(t, b, "shop-1", 1)
		got := tryWith(t, &terminal{in: strings.NewReader(answer), asked: true}, "reset", url, "shop-1")
		question, rest, asked := strings.Cut(got.err, "[y/N] ")
		if !asked || !strings.HasPrefix(question, "Take back 1 token and all tickets of shop-1?") {
			t.Errorf("it asks %q", got.err)
		}
		if got.err = rest; got != want {
			t.Errorf("answered %q: %+v, want %+v", answer, got, want)
		}
	}
}

func TestChangeMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{})
		for _, name := range []string{"eu-1", "eu-2", "us-1", "e"} {
			admit(t, b, name, 1)
		}
		ok(t, b.Pause(t.Context(), "eu-2", time.Hour))
		follow(t, url, []step{
			{"pause URL eu- 10m --prefix", outcome{2, "", "drip pause: it would pause 2 entities; nobody is here to confirm that, so it needs --yes\n"}},
			{"pause URL eu- 10m --prefix --yes", outcome{0, "1 entity paused for 10m, 1 needed no change\n", ""}},
			{"pause URL 10m --all --prefix", outcome{2, "", "drip pause: --all and --prefix exclude each other\n"}},
			{"pause URL 2h --all --yes --json", outcome{0, "{\n  \"entities\": 4,\n  \"changed\": 4,\n  \"failed\": 0\n}\n", ""}},
			{"resume URL u --prefix --yes", outcome{0, "1 entity opened\n", ""}},
			{"resume URL --all --yes", outcome{0, "3 entities opened, 1 needed no change\n", ""}},
			{"reset URL eu-1 --prefix --yes", outcome{0, "1 entity reset; past operations stay counted\n", ""}},
			{"reset URL none --prefix --yes", outcome{0, "0 entities reset; past operations stay counted\n", ""}},
		}...)
	})
}

// A storage of a user's own is reached by its scheme. Get and Set are enough.
func TestStorageOfOnesOwn(t *testing.T) {
	own := struct{ storage.Storage }{memory.New()}
	url := share(t, own)
	b := buckettest.New(t, drip.Options{Size: 5, Storage: own})
	buckettest.Admit(t, b, "shop", drip.Request{})
	must(t, "pause", url, "shop", "1h")
	must(t, "pin", url, "shop", "--limit=2/1s")
	for _, want := range []string{"4 of 5, +5 every 1s", "1 of 5 in use", "pinned      2 every 1s; until drip unpin", "closed      until"} {
		prints(t, want, "inspect", url, "shop")
	}
}

// mute lists an entity, and answers nothing else.
type mute struct{}

func (mute) Get(ctx context.Context, _ string) (storage.State, storage.Revision, error) {
	<-ctx.Done()
	return storage.State{}, storage.NoRevision, ctx.Err()
}

func (mute) Set(ctx context.Context, _ string, _ storage.State, _ storage.Revision) error {
	<-ctx.Done()
	return ctx.Err()
}

func (mute) List(_ context.Context, each func(storage.Entry) error) error {
	return each(storage.Entry{Key: "shop", Time: time.Now(), State: decision.State{Now: time.Now().UnixMilli()}})
}

// A change of all entities ends when the server does not answer, as a change of one does.
func TestTimeoutOfMany(t *testing.T) {
	storage.Register("mute", func(context.Context, *url.URL) (storage.Storage, error) { return mute{}, nil })
	for _, line := range []string{"pause mute://x shop 1m", "pause mute://x 1m --all --yes", "reset mute://x --all --yes"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		quiet := &terminal{in: strings.NewReader(""), out: io.Discard, err: io.Discard, zone: time.UTC}
		if status := run(ctx, quiet, append(strings.Fields(line), "--timeout", "50ms")); status != statusNoAnswer {
			t.Errorf("%s: status %d, want %d", line, status, statusNoAnswer)
		}
		cancel()
	}
}
