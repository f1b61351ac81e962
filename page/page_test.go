package page

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/hooked"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/queues"
	"github.com/drip-go/drip/queues/rabbitmq"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// limits are the limits of the entities of these tests. No interval ends while one runs.
func limits(s storage.Storage) drip.Options {
	return drip.Options{
		Size: 4, RefreshRate: 4, RefreshInterval: 10_000 * 24 * time.Hour, Concurrency: 4, Start: time.Unix(0, 0), Storage: s,
	}
}

func admit(t *testing.T, s storage.Storage, entity string, n int) {
	t.Helper()
	b := buckettest.New(t, limits(s))
	for range n {
		buckettest.Admit(t, b, entity, drip.Request{})
	}
}

func allow(*http.Request, Action) (string, bool) { return "ann", true }

type site struct {
	*Page
	log *bytes.Buffer
}

func newSite(t testing.TB, o Options) site {
	t.Helper()
	s := site{log: new(bytes.Buffer)}
	if o.Log == nil {
		o.Log = slog.New(slog.NewJSONHandler(s.log, nil))
	}
	var err error
	if s.Page, err = Handler(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (s site) get(t testing.TB, address string) (int, string) {
	t.Helper()
	return s.send(t, httptest.NewRequest("GET", "/"+address, nil))
}

func (s site) send(t testing.TB, r *http.Request) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r.WithContext(t.Context()))
	if w.Code == http.StatusSeeOther {
		return w.Code, w.Header().Get("Location")
	}
	return w.Code, w.Body.String()
}

// post sends a form as a browser does from the page itself.
func (s site) post(t *testing.T, form url.Values) (int, string) {
	t.Helper()
	return s.send(t, request(form))
}

func request(form url.Values) *http.Request {
	r := httptest.NewRequest("POST", "/do", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

func has(t *testing.T, text string, wants ...string) {
	t.Helper()
	plain := strings.Join(strings.Fields(text), " ")
	for _, want := range wants {
		if !strings.Contains(plain, want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
}

func TestListAndEntity(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop-1", 12)
	admit(t, s, "shop-2", 1)
	o := limits(s)
	h := newSite(t, Options{Storage: s, Limits: &o})
	status, text := h.get(t, "")
	has(t, text, `<strong>2</strong> entities`, `<strong>5</strong> tokens in use`, `<a href="entity?name=shop-1">shop-1</a>`, `4 of 4`, "1 to 2 of 2")
	if status != 200 || strings.Index(text, ">shop-1<") > strings.Index(text, ">shop-2<") {
		t.Errorf("%d: the longer backlog comes first:\n%s", status, text)
	}
	if _, text := h.get(t, "?by=name&q=2"); strings.Contains(text, "shop-1") || !strings.Contains(text, ">shop-2<") {
		t.Errorf("a search for 2 finds\n%s", text)
	}
	_, text = h.get(t, "?q=nowhere")
	has(t, text, "the one that is called so", `<a href="entity?name=nowhere">`)
	status, text = h.get(t, "entity?name=shop-1")
	has(t, text, "<h1>shop-1</h1>", "4 of 4 in use", "8 units", "Held for", "4, &#43;4 every 240000h", "0 left of")
	if status != 200 {
		t.Error(status)
	}
	if strings.Contains(text, "<button name") {
		t.Error("a page that only shows has buttons")
	}
	for address, want := range map[string]int{"entity": 400, "entity?name=history:x": 400, "?by=size": 400, "?page=0": 400, "?page=x": 400, "nothing": 404, "dead?queue=x": 404, "?page=99": 200} {
		if status, _ := h.get(t, address); status != want {
			t.Errorf("%s: %d, want %d", address, status, want)
		}
	}
}

// Without limits the page still shows the remaining capacity, and the holders of tokens.
// The limits are stored with the entity.
func TestWithoutLimits(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop-1", 5)
	o := limits(s)
	_, with := newSite(t, Options{Storage: s, Limits: &o}).get(t, "entity?name=shop-1")
	_, without := newSite(t, Options{Storage: s}).get(t, "entity?name=shop-1")
	clock := regexp.MustCompile(`[0-9]+(:[0-9.]+)+|[0-9.]+(ms|s|m)( ago)?|width="[0-9]+"`) // a bar is as long as a time
	if clock.ReplaceAllString(with, "") != clock.ReplaceAllString(without, "") || !strings.Contains(without, "A newcomer runs") {
		t.Errorf("with the limits:\n%s\nwithout:\n%s", with, without)
	}
	_, text := newSite(t, Options{Storage: s}).get(t, "entity?name=shop-2")
	has(t, text, "its limits are not known")
}

func TestPages(t *testing.T) {
	s := memory.New()
	for i := range 120 {
		admit(t, s, fmt.Sprintf("shop-%03d", i), 1)
	}
	h := newSite(t, Options{Storage: s})
	_, text := h.get(t, "?by=name&page=3")
	has(t, text, "101 to 120 of 120", ">shop-119<", `rel="prev"`)
	if strings.Contains(text, ">shop-099<") || strings.Contains(text, `rel="next"`) {
		t.Error("the third page begins with shop-100 and ends with shop-119")
	}
}

// A search for the beginning of reserved names, or for a key that is no entity, is a search, and a page behind the last
// one does not say that nothing is stored.
func TestListWithoutRows(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop-1", 1)
	// A limiter of package limiter, too, has a key whose bytes are no entity's.
	ok(t, s.Set(t.Context(), "readers", storage.State{Data: []byte("a limiter"), Until: math.MaxInt64}, storage.NoRevision))
	for _, h := range []site{newSite(t, Options{Storage: s}), newSite(t, Options{Storage: struct{ storage.Storage }{s}})} {
		for _, address := range []string{"?q=history:", "?q=history:shop-1", "?q=shared:", "?q=readers"} {
			status, text := h.get(t, address)
			if status != 200 {
				t.Errorf("%s: %d:\n%s", address, status, text)
			}
			has(t, text, `type="search"`)
			if strings.Contains(text, "Nothing is stored") {
				t.Errorf("%s:\n%s", address, text)
			}
		}
	}
	h := newSite(t, Options{Storage: s, Allow: allow})
	status, text := h.get(t, "entity?name=readers")
	has(t, text, "&#34;readers&#34;: the stored bytes are not the state of an entity")
	if posted, _ := h.post(t, url.Values{"do": {"pause"}, "for": {"1m"}, "entity": {"readers"}}); status != 400 || posted != 400 {
		t.Errorf("a key that is no entity: %d and %d, want 400", status, posted)
	}
	if _, text := newSite(t, Options{Storage: s}).get(t, "?page=2"); strings.Contains(text, "Nothing is stored") {
		t.Errorf("the second page of one:\n%s", text)
	}
}

// An entity that the storage forgets leaves the list, and a new one is in it soon.
func TestIndexFollows(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop-1", 1)
	h := newSite(t, Options{Storage: s})
	h.get(t, "")
	admit(t, s, "shop-2", 1)
	h.get(t, "entity?name=shop-2")
	_, text := h.get(t, "")
	has(t, text, ">shop-1<", ">shop-2<")
}

func TestActions(t *testing.T) {
	s := memory.New()
	for _, name := range []string{"eu-1", "eu-2", "us-1"} {
		admit(t, s, name, 2)
	}
	admit(t, s, "eu-2", 9) // some of which wait
	o := limits(s)
	b := buckettest.New(t, o)
	h := newSite(t, Options{Storage: s, Limits: &o, Allow: allow})
	closed := func() (names []string) {
		for _, name := range []string{"eu-1", "eu-2", "us-1"} {
			st := buckettest.Inspect(t, b, name)
			if !st.ClosedUntil.IsZero() {
				names = append(names, name)
			}
		}
		return names
	}
	for _, step := range []struct {
		form   string
		status int
		closed string
		says   string
	}{
		{"do=pause&entity=eu-1&for=10m", 303, "[eu-1]", "Paused for 10m."},
		{"do=pause&entity=eu-1&for=1m", 303, "[eu-1]", "closed for longer already"},
		{"do=pause&entity=eu-1", 400, "[eu-1]", "For how long?"},
		{"do=pause&for=10m", 400, "[eu-1]", "which entities?"},
		{"do=pause&for=10m&prefix=", 400, "[eu-1]", "which entities?"},
		{"do=pause&for=10m&prefix=eu-&all=yes", 400, "[eu-1]", "which entities?"},
		{"do=pause&for=-1m&all=yes", 400, "[eu-1]", "for how long?"},
		{"do=sing&entity=eu-1", 400, "[eu-1]", "nothing is called"},
		{"do=resume&entity=eu-1", 303, "[]", "Open again.</p>"},
		{"do=resume&entity=eu-1", 303, "[]", "it was not closed"},
		{"do=pause&entity=eu-2&for=10m", 303, "[eu-2]", "Paused for 10m."},
		{"do=resume&entity=eu-2", 303, "[]", "Open again. Messages that were postponed until "},
		{"do=pause&prefix=eu-&for=1h", 303, "[eu-1 eu-2]", "2 entities of 2 changed"},
		{"do=pause&all=yes&for=2h", 303, "[eu-1 eu-2 us-1]", "3 entities of 3 changed"},
		{"do=resume&all=yes", 303, "[]", "3 entities of 3 changed"},
		{"do=reset&entity=eu-1", 303, "[]", "All tokens and tickets are taken back."},
		{"do=unpin&entity=eu-1", 303, "[]", "nothing was pinned"},
		{"do=pin&entity=eu-1", 400, "[]", "nothing is pinned"},
		{"do=pin&entity=eu-1&limit=5", 400, "[]", "no limit such as 5/1s"},
		{"do=pin&entity=eu-1&limit=1099511627777/1s", 400, "[]", "1099511627776 at most"},
		{"do=pin&entity=eu-1&concurrency=9223372036854775807", 400, "[]", "1099511627776 at most"},
		{"do=pin&entity=eu-1&limit=5/999999h", 400, "[]", "at most"},
		{"do=pin&entity=eu-1&limit=5/1s&for=-1s", 400, "[]", "for how long?"},
		{"do=pin&entity=eu-1&concurrency=many", 400, "[]", "no number"},
		{"do=pin&limit=1/1s", 400, "[]", "which entities?"},
		{"do=pin&entity=eu-1&limit=1/1h&for=2h", 303, "[]", "Pinned to 1 every 1h, for 2h."},
		{"do=unpin&entity=eu-1", 303, "[]", "The limits of the consumers alone hold again."},
		{"do=pin&entity=eu-1&limit=1/1h&concurrency=3", 303, "[]", "to <strong>1 every 1h, 3 tokens</strong>, until it is unpinned"},
		{"do=pin&all=yes&limit=1/1h&for=1h", 303, "[]", "3 entities of 3 changed"},
		{"do=unpin&prefix=us-", 303, "[]", "1 entity of 1 changed"},
	} {
		form, err := url.ParseQuery(step.form)
		ok(t, err)
		status, text := h.post(t, form)
		if status != step.status || fmt.Sprint(closed()) != step.closed {
			t.Errorf("%s: %d, closed are %v; want %d, %s\n%s", step.form, status, closed(), step.status, step.closed, text)
		}
		if status == 303 {
			_, text = h.get(t, text)
		}
		if !strings.Contains(strings.ToLower(text), strings.ToLower(step.says)) {
			t.Errorf("%s: it does not say %q:\n%s", step.form, step.says, text)
		}
	}
	if st := buckettest.Inspect(t, b, "eu-2"); st.Pin == nil || st.Pin.Size != 1 || len(st.Windows) != 2 {
		t.Errorf("%+v, want a pin", st)
	}
	if st := buckettest.Inspect(t, b, "eu-1"); st.InUse != 0 || st.Windows[0].Capacity != 2 {
		t.Errorf("after reset %d are in use and %d left; want 0 and 2", st.InUse, st.Windows[0].Capacity)
	}
	var line struct {
		Msg, Who string
		Action   struct{ Do, Entity, For string }
		Changed  int
	}
	first, _, _ := strings.Cut(h.log.String(), "\n")
	if err := json.Unmarshal([]byte(first), &line); err != nil || line.Who != "ann" || line.Action.Do != "pause" || line.Action.Entity != "eu-1" || line.Action.For != "10m0s" || line.Changed != 1 {
		t.Errorf("the log says %s", first)
	}
}

func TestSure(t *testing.T) {
	s := memory.New()
	admit(t, s, "eu-1", 1)
	admit(t, s, "us-1", 1)
	h := newSite(t, Options{Storage: s, Allow: allow})
	_, text := h.get(t, "sure?do=pause&prefix=eu-&for=90s")
	has(t, text, "pause all entities whose names begin with &#34;eu-&#34; for 1m30s", "That is 1 entity of 2.", `method="post" action="do?do=pause&amp;for=1m30s&amp;prefix=eu-"`)
	_, text = h.get(t, "sure?do=pin&prefix=eu-&limit=2/1s&burst=9&for=1h&raise=yes&concurrency=4")
	has(t, text, "pin all entities whose names begin with &#34;eu-&#34; to 9, &#43;2 every 1s, 4 tokens, also above the limits, for 1h",
		`action="do?burst=9&amp;concurrency=4&amp;do=pin&amp;for=1h0m0s&amp;limit=2%2F1s&amp;prefix=eu-&amp;raise=yes"`)
	_, text = h.get(t, "sure?do=reset&all=yes")
	has(t, text, "reset all entities", `action="do?all=yes&amp;do=reset"`)
	if status, _ := h.get(t, "sure?do=reset"); status != 400 {
		t.Errorf("reset of nothing: %d", status)
	}
}

// A field that stands twice is an error: an action on the first value alone would be done by half, without a word.
func TestFieldTwice(t *testing.T) {
	s := memory.New()
	admit(t, s, "a", 1)
	admit(t, s, "b", 1)
	h := newSite(t, Options{Storage: s, Allow: allow})
	for _, form := range []url.Values{
		{"do": {"pause"}, "entity": {"a", "b"}, "for": {"1h"}},
		{"do": {"pause", "reset"}, "entity": {"a"}, "for": {"1h"}},
		{"do": {"pause"}, "entity": {"a"}, "for": {"1h", "2h"}},
	} {
		status, text := h.post(t, form)
		if status != 400 {
			t.Errorf("%v: %d %s", form, status, text)
		}
		if status, _ = h.get(t, "sure?"+form.Encode()); status != 400 {
			t.Errorf("sure of %v: %d", form, status)
		}
	}
	status, text := h.send(t, func() *http.Request {
		r := request(url.Values{"do": {"reset"}, "entity": {"b"}})
		r.URL.RawQuery = "entity=a"
		return r
	}())
	if status != 400 {
		t.Errorf("an entity in the address and another in the form: %d", status)
	}
	has(t, text, "entity is there twice")
}

// A request that is not allowed changes nothing.
func TestNotAllowed(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop", 2)
	before, _, _ := s.Get(t.Context(), "shop")
	form := url.Values{"do": {"reset"}, "entity": {"shop"}}
	unchanged := func(doing string) {
		t.Helper()
		if after, _, _ := s.Get(t.Context(), "shop"); !bytes.Equal(before.Data, after.Data) {
			t.Fatalf("%s has changed it", doing)
		}
	}
	h := newSite(t, Options{Storage: s})
	if status, _ := h.post(t, form); status != 403 {
		t.Errorf("a page that only shows answers %d", status)
	}
	unchanged("a page that only shows")
	asked := Action{}
	h = newSite(t, Options{Storage: s, Allow: func(r *http.Request, a Action) (string, bool) {
		asked = a
		return "eve", false
	}})
	status, text := h.post(t, form)
	if status != 403 || !strings.Contains(h.log.String(), `"who":"eve"`) || asked.Do != Reset || asked.Entity != "shop" {
		t.Errorf("%d, asked for %v, log %s", status, asked, h.log)
	}
	has(t, text, "you may not reset")
	unchanged("eve")
}

// Requests that a browser sends because another site wants it to are refused; so are methods that an address does not
// take.
func TestOtherSites(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop", 2)
	before, _, _ := s.Get(t.Context(), "shop")
	h := newSite(t, Options{Storage: s, Allow: allow})
	for name, headers := range map[string]map[string]string{
		"another site":              {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
		"another host of the site":  {"Sec-Fetch-Site": "same-site", "Origin": "https://other.example.com"},
		"an older browser":          {"Sec-Fetch-Site": "", "Origin": "https://evil.example"},
		"a sandbox":                 {"Sec-Fetch-Site": "", "Origin": "null"},
		"a browser's older version": {"Sec-Fetch-Site": "cross-site", "Origin": ""},
	} {
		r := request(url.Values{"do": {"reset"}, "entity": {"shop"}})
		for k, v := range headers {
			if r.Header.Del(k); v != "" {
				r.Header.Set(k, v)
			}
		}
		if status, _ := h.send(t, r); status != 403 {
			t.Errorf("%s: %d, want 403", name, status)
		}
	}
	for method, addresses := range map[string][]string{
		"GET": {"/do?do=reset&entity=shop"}, "HEAD": {"/do?do=reset&entity=shop"}, "PUT": {"/do", "/", "/entity?name=shop"},
		"DELETE": {"/entity?name=shop", "/do"}, "POST": {"/", "/entity?name=shop", "/sure?do=reset&entity=shop", "/style.css"},
	} {
		for _, address := range addresses {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, address, nil))
			takes := "GET, HEAD"
			if strings.HasPrefix(address, "/do") {
				takes = "POST"
			}
			if allowed := w.Header().Get("Allow"); w.Code != 405 || allowed != takes {
				t.Errorf("%s %s: %d with %q, want 405 with %q", method, address, w.Code, allowed, takes)
			}
		}
	}
	if after, _, _ := s.Get(t.Context(), "shop"); !bytes.Equal(before.Data, after.Data) {
		t.Error("it was changed")
	}
	for _, c := range []struct {
		mode, dest string
		want       int
	}{
		{"navigate", "document", 200}, // a link
		{"navigate", "iframe", 403}, {"navigate", "object", 403}, {"no-cors", "image", 403}, {"cors", "empty", 403},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", c.mode)
		r.Header.Set("Sec-Fetch-Dest", c.dest)
		if status, _ := h.send(t, r); status != c.want {
			t.Errorf("another site gets %d with %s for %s, want %d", status, c.mode, c.dest, c.want)
		}
	}
}

// The page shows an entity whose limit the options cannot tell by its stored limit. A visitor chooses the name for which the page calls
// the user's Limits and Weight. A panic of them is a limit that fails, also in the goroutines of the page, where it would end the
// process.
func TestLimitThatFails(t *testing.T) {
	names := func(_ context.Context, entity string) (drip.Limit, error) {
		return drip.Limit{Size: len(strings.Split(entity, ":")[1])}, nil
	}
	weighs := func(entity string) int { return len(strings.Split(entity, ":")[1]) }
	for name, set := range map[string]func(*drip.Options){
		"Limits fails": func(o *drip.Options) {
			o.Limits = func(context.Context, string) (drip.Limit, error) { return drip.Limit{}, errors.New("no such shop") }
		},
		"Limits panics": func(o *drip.Options) { o.Limits = names },
		"Weight panics": func(o *drip.Options) {
			o.Shared, o.Weight = map[string]drip.Limit{"app": {Size: 9}}, weighs
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := memory.New()
			admit(t, s, "shop-1", 2)
			o := limits(s)
			set(&o)
			h := newSite(t, Options{Storage: s, Limits: &o})
			for _, address := range []string{"entity?name=shop-1", "?q=shop-1", "?q=nobody", "?by=name"} {
				if status, text := h.get(t, address); status != 200 {
					t.Errorf("%s: %d\n%s", address, status, text)
				}
			}
			_, text := h.get(t, "entity?name=shop-1")
			has(t, text, "2 of 4 in use", "A newcomer runs")
			_, text = h.get(t, "?by=name")
			has(t, text, "2 of 4", ">shop-1<")
		})
	}
}

// broken is a broker that panics.
type broken struct{ letters }

func (broken) Look(context.Context, string) (queues.State, error) { panic("a broken broker") }

// A panic of the storage or of the broker is an error, also in the goroutines of the page.
func TestStorageThatPanics(t *testing.T) {
	lists, m := false, memory.New()
	admit(t, m, "broken", 2)
	s := hooked.Storage{Storage: m, First: func(_ context.Context, c hooked.Call) error {
		if c.Key == "broken" {
			panic("a broken storage")
		} else if c.Method == "List" && !lists {
			panic("a broken list")
		}
		return nil
	}}
	h := newSite(t, Options{Storage: s, Broker: broken{}, Allow: allow})
	status, text := h.get(t, "?q=broken")
	has(t, text, "panic: a broken storage")
	if status != http.StatusBadGateway {
		t.Error(status)
	}
	_, text = h.get(t, "?by=name")
	has(t, text, "The list could not be read to its end: panic: a broken list")
	_, text = h.get(t, "queues")
	has(t, text, "panic: a broken broker")
	lists = true
	h = newSite(t, Options{Storage: s, Allow: allow})
	status, text = h.post(t, url.Values{"do": {"pause"}, "for": {"1m"}, "prefix": {"bro"}})
	has(t, text, "1 of 1 entity failed", "panic: a broken storage")
	if status != http.StatusBadGateway {
		t.Error(status)
	}
}

// A server whose requests end with the program does not show an empty page as if that were an answer.
func TestRequestIsCutOff(t *testing.T) {
	for _, address := range []string{"/entity?name=shop-1", "/?q=shop-1"} {
		ctx, cancel := context.WithCancel(t.Context())
		h := newSite(t, Options{Storage: hooked.Storage{Storage: memory.New(), First: func(context.Context, hooked.Call) error {
			cancel() // the program ends while it reads
			return nil
		}}})
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", address, nil))
		if w.Code != http.StatusBadGateway {
			t.Errorf("%s: %d with %d bytes, want 502", address, w.Code, w.Body.Len())
		}
	}
}

// Shared limits are in the list, under their IDs, which no entity has, with what binds entities.
func TestSharedLimits(t *testing.T) {
	for _, given := range []string{"all", "own", "none"} {
		s, known := memory.New(), given == "all"
		o := drip.Options{Size: 9, RefreshRate: 9, Start: time.Unix(0, 0), Storage: s, Shared: map[string]drip.Limit{
			"app":      {Size: 3, RefreshRate: 3, RefreshInterval: 10_000 * 24 * time.Hour},
			"endpoint": {Concurrency: 7},
		}}
		b := buckettest.New(t, o)
		for i := range 5 {
			buckettest.Admit(t, b, fmt.Sprint("shop-", i), drip.Request{})
		}
		want := buckettest.Inspect(t, b, "shop-4")
		options := Options{Storage: s, Allow: allow}
		if given != "none" {
			limits := o
			if !known {
				limits.Shared = nil
			}
			options.Limits = &limits
		}
		h := newSite(t, options)
		status, text := h.get(t, "?by=name")
		has(t, text, ">shared:app<", ">shop-4<", "<strong>5</strong> entities", "<strong>2</strong> shared limits", "1 to 7 of 7")
		if aside := strings.Count(text, "shared limits aside"); known != (aside == 0) || !known && aside != 5 {
			t.Errorf("limits given: %s; %d entities run now with shared limits aside", given, aside)
		}
		if known && (want.Limit != "app" || !strings.Contains(text, "the shared limit &#34;app&#34;")) {
			t.Errorf("%d: shop-4 is bound by %q; the page says\n%s", status, want.Limit, text)
		}
		if _, text = h.get(t, "entity?name=shop-4"); strings.Contains(text, "within 2 shared limits") == known {
			t.Errorf("limits given: %s; the entity is\n%s", given, text)
		}
		if !known {
			has(t, text, `<a href="./?q=shared%3A">`)
			_, shared := h.get(t, "?q=shared%3A")
			has(t, shared, ">shared:app<", ">shared:endpoint<", "1 to 2 of 2")
		}
		if _, text = h.get(t, "entity?name="+url.QueryEscape(drip.SharedID("app"))); !strings.Contains(text, "<h1>shared:app</h1>") {
			t.Errorf("the shared limit is\n%s", text)
		}
		has(t, text, "<p>3 in use.")
		_, text = h.get(t, "entity?name="+url.QueryEscape(drip.SharedID("endpoint")))
		has(t, text, "No window limits it.", "<p>3 of 7 in use.")
		if status, at := h.post(t, url.Values{"do": {"pause"}, "entity": {drip.SharedID("app")}, "for": {"1h"}}); status != 303 {
			t.Error(status, at)
		}
		if st := buckettest.Inspect(t, b, drip.SharedID("app")); st.ClosedUntil.IsZero() {
			t.Errorf("the shared limit is not closed: %+v", st)
		}
		if status, at := h.post(t, url.Values{"do": {"pin"}, "entity": {drip.SharedID("app")}, "limit": {"2/1s"}}); status != 303 {
			t.Error(status, at)
		}
		if st := buckettest.Inspect(t, b, drip.SharedID("app")); st.Pin == nil || len(st.Windows) != 2 {
			t.Errorf("the shared limit is not pinned: %+v", st)
		}
		_, text = h.get(t, "sure?do=reset&all=yes")
		has(t, text, "That is 5 entities of 5.")
	}
}

// All text is legible: each pair of colours has the contrast of WCAG's level AA, 4.5 to 1.
func TestContrast(t *testing.T) {
	css, err := assets.ReadFile("assets/style.css")
	ok(t, err)
	themes := regexp.MustCompile(`(?s):root \{.*?--warn-soft.*?\}`).FindAllString(string(css), -1)
	if len(themes) != 2 {
		t.Fatalf("%d themes, want a light and a dark one", len(themes))
	}
	for i, theme := range themes {
		light := func(name string) float64 {
			m := regexp.MustCompile(`--` + name + `: #([0-9a-f]+);`).FindStringSubmatch(theme)
			if m == nil {
				t.Fatalf("there is no %s", name)
			}
			hex := m[1]
			if len(hex) == 3 {
				hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
			}
			n, err := strconv.ParseUint(hex, 16, 32)
			ok(t, err)
			part := func(c uint64) float64 {
				v := float64(c&255) / 255
				if v <= 0.04045 {
					return v / 12.92
				}
				return math.Pow((v+0.055)/1.055, 2.4)
			}
			return 0.2126*part(n>>16) + 0.7152*part(n>>8) + 0.0722*part(n) + 0.05
		}
		for _, pair := range [][2]string{{"ink", "paper"}, {"ink", "soft"}, {"quiet", "paper"}, {"quiet", "soft"}, {"link", "paper"}, {"link", "soft"}, {"closed", "soft"}, {"paper", "closed"}, {"warn", "warn-soft"}} {
			a, b := light(pair[0]), light(pair[1])
			if ratio := max(a, b) / min(a, b); ratio < 4.5 {
				t.Errorf("theme %d: %s on %s has a contrast of %.2f", i, pair[0], pair[1], ratio)
			}
		}
	}
}

// Names are text, whatever is in them.
func TestMarkup(t *testing.T) {
	s := memory.New()
	names := []string{`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `'; alert(1); '`, "a\x00b\u202ec", `../../do?do=reset`, "javascript:alert(1)"}
	for _, name := range names {
		admit(t, s, name, 5)
	}
	o := limits(s)
	h := newSite(t, Options{Storage: s, Limits: &o, Allow: allow, Broker: letters{"<script>alert(2)</script>"}})
	addresses := []string{"", "?q=" + url.QueryEscape(`<script>alert(3)`), "queues", "dead?queue=orders", "dead?queue=" + url.QueryEscape(`<script>alert(4)`),
		"sure?do=pause&for=1m&prefix=" + url.QueryEscape(`"><script>alert(5)</script>`), "?did=" + url.QueryEscape("<script>alert(6)</script>"),
		"sure?do=requeue&queue=orders&reason=" + url.QueryEscape(`"><script>alert(7)`), url.PathEscape("<script>alert(8)"), "?by=" + url.QueryEscape("<script>alert(9)")}
	for _, name := range names {
		addresses = append(addresses, "entity?name="+url.QueryEscape(name), "sure?do=reset&entity="+url.QueryEscape(name))
	}
	for _, address := range addresses {
		r := httptest.NewRequest("GET", "/"+address, nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		text := w.Body.String()
		for _, bad := range []string{"<script>alert", "<img src=x", `href="javascript:`, "\u202e", "\x00"} {
			if strings.Contains(text, bad) {
				t.Errorf("%s: there is %q in\n%s", address, bad, text)
			}
		}
		policy := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "form-action 'self'", "frame-ancestors 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy is %q", address, policy)
			}
		}
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin", "Cache-Control": "no-store"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", address, name, got, want)
			}
		}
		if strings.Contains(text, " style=") || strings.Contains(text, " onclick=") || strings.Contains(text, "<style") {
			t.Errorf("%s: it has what the policy forbids", address)
		}
	}
	if _, text := h.get(t, "?q=%E2%80%AE"); !strings.Contains(text, `contain “\u202e”`) {
		t.Errorf("the text of a search moves the text beside it:\n%s", text)
	}
}

// leaky is a storage and a broker whose errors repeat a URL.
type leaky struct{ letters }

const secret = "s3cr3t-w0rd"

var errLeaky = errors.New("dial redis://user:" + secret + "@host:6379/0: connection refused; parse \"redis://user:1/" + secret + "@host\": invalid port")

func (leaky) Get(context.Context, string) (storage.State, storage.Revision, error) {
	return storage.State{}, 0, errLeaky
}
func (leaky) Set(context.Context, string, storage.State, storage.Revision) error { return errLeaky }
func (leaky) Read(context.Context, string) (storage.Entry, error)                { return storage.Entry{}, errLeaky }
func (leaky) List(context.Context, func(storage.Entry) error) error              { return errLeaky }
func (leaky) Look(context.Context, string) (queues.State, error)                 { return queues.State{}, errLeaky }
func (leaky) Dead(context.Context, string, int) ([]queues.Letter, bool, error) {
	return nil, false, errLeaky
}
func (leaky) Requeue(context.Context, string, func(*queues.Letter) bool) (int, error) {
	return 0, errLeaky
}

// No password is in a page, in the log or in an error, even if a backend's own error repeats it.
func TestNoPassword(t *testing.T) {
	h := newSite(t, Options{Storage: leaky{}, Broker: leaky{}, Allow: allow})
	var said strings.Builder
	for _, address := range []string{"", "?q=shop", "entity?name=shop", "queues", "dead?queue=orders", "sure?do=reset&all=yes"} {
		_, text := h.get(t, address)
		said.WriteString(text)
	}
	for _, form := range []string{"do=pause&entity=shop&for=1m", "do=reset&all=yes", "do=requeue&queue=orders&all=yes"} {
		v, _ := url.ParseQuery(form)
		status, text := h.post(t, v)
		if status != http.StatusBadGateway {
			t.Errorf("%s: %d", form, status)
		}
		said.WriteString(text)
	}
	said.WriteString(h.log.String())
	if text := said.String(); strings.Contains(text, secret) {
		t.Errorf("a password is told:\n%s", text)
	} else if !strings.Contains(text, "connection refused") {
		t.Errorf("nobody learns what is wrong:\n%s", text)
	}
}

// letters is a broker with one dead letter.
type letters struct{ reason string }

func (l letters) Queues() []string { return []string{"orders"} }
func (l letters) Look(context.Context, string) (queues.State, error) {
	dead := queues.Queue{Name: "orders.drip.dead", Messages: 1}
	return queues.State{Time: time.Now(), Queue: queues.Queue{Name: "orders", Messages: 3, Consumers: 1}, Dead: &dead, Waiting: 7, Existing: 64,
		Delays: []queues.Delay{{Name: "orders.drip.due.4s.01", Messages: 7, Expires: time.Now().Add(4 * time.Second)}}}, nil
}
func (l letters) Dead(context.Context, string, int) ([]queues.Letter, bool, error) {
	return []queues.Letter{{ID: "0123456789abcdef", Reason: l.reason, Error: l.reason, MessageID: l.reason, Body: []byte(l.reason)}}, false, nil
}
func (l letters) Requeue(_ context.Context, _ string, pick func(*queues.Letter) bool) (n int, err error) {
	for _, letter := range []queues.Letter{{ID: "0123456789abcdef", Reason: "failed"}, {ID: "twin", Reason: "too old"}, {ID: "twin", Reason: "too old"}} {
		if pick(&letter) {
			n++
		}
	}
	return n, nil
}

func TestQueuesAndLetters(t *testing.T) {
	h := newSite(t, Options{Storage: memory.New(), Broker: letters{"failed"}, Allow: allow})
	_, text := h.get(t, "queues")
	has(t, text, `<strong>7</strong>, the first until`, `href="dead?queue=orders"`, "1 consumer", "orders.drip.due.4s.01")
	_, text = h.get(t, "dead?queue=orders")
	has(t, text, `value="0123456789abcdef"`, "failed: <strong>1</strong>", `href="sure?do=requeue&amp;queue=orders&amp;reason=failed"`, "Put all back…")
	_, text = h.get(t, "sure?do=requeue&queue=orders&reason=failed")
	has(t, text, `action="do?do=requeue&amp;queue=orders&amp;reason=failed"`)
	for form, want := range map[string]string{
		"do=requeue&queue=orders&letter=twin":                         "1 message put back.",
		"do=requeue&queue=orders&letter=twin&letter=0123456789abcdef": "2 messages put back.",
		"do=requeue&queue=orders&letter=twin&letter=twin":             "2 messages put back.",
		"do=requeue&queue=orders&reason=too+old":                      "2 messages put back.",
		"do=requeue&queue=orders&all=yes":                             "3 messages put back.",
		"do=requeue&queue=orders":                                     "which dead letters?",
		"do=requeue&queue=orders&all=yes&reason=failed":               "which dead letters?",
		"do=requeue&queue=others&all=yes":                             "the page shows no queue",
	} {
		v, _ := url.ParseQuery(form)
		status, text := h.post(t, v)
		if status == 303 {
			_, text = h.get(t, text)
		}
		if !strings.Contains(text, want) {
			t.Errorf("%s: %d, it does not say %q:\n%s", form, status, want, text)
		}
	}
}

// The handler works at any path, with the path stripped or not.
func TestMounted(t *testing.T) {
	s := memory.New()
	admit(t, s, "shop", 1)
	h := newSite(t, Options{Storage: s, Allow: allow})
	mux := http.NewServeMux()
	mux.Handle("/ops/drip/", h)
	mux.Handle("/other/", http.StripPrefix("/other", h))
	server := httptest.NewServer(mux)
	defer server.Close()
	for _, at := range []string{"/ops/drip/", "/other/"} {
		for _, address := range []string{"", "entity?name=shop", "style.css", "refresh.js"} {
			r, err := http.Get(server.URL + at + address)
			if err != nil || r.StatusCode != 200 {
				t.Error(at, address, r.StatusCode, err)
			}
			r.Body.Close()
		}
		r, err := http.PostForm(server.URL+at+"do", url.Values{"do": {"pause"}, "entity": {"shop"}, "for": {"1m"}})
		if err != nil || r.StatusCode != 200 || r.Request.URL.Path != at+"entity" {
			t.Error(at, r.Request.URL, r.StatusCode, err)
		}
		r.Body.Close()
	}
}

func TestOptions(t *testing.T) {
	for want, o := range map[string]Options{
		"Options.Storage is required":              {},
		"Options.Storage is a nil *memory.Storage": {Storage: (*memory.Storage)(nil)},
		"Options.Broker is a nil *rabbitmq.Broker": {Storage: memory.New(), Broker: (*rabbitmq.Broker)(nil)},
		"Options.Limits":                           {Storage: memory.New(), Limits: &drip.Options{Size: -1}},
	} {
		if _, err := Handler(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Each kind of order is a total one, so that pages neither repeat nor leave out.
func TestOrders(t *testing.T) {
	a, b := row{name: "a"}, row{name: "b"}
	for by, order := range orders {
		if order(&a, &b) >= 0 || order(&b, &a) <= 0 || order(&a, &a) != 0 {
			t.Errorf("%s does not end with the name", by)
		}
	}
}

// Times that have passed since the entity was read do not count.
func TestPassed(t *testing.T) {
	x := &index{rows: map[string]*row{"a": {name: "a", booked: 1, waiting: 1, closed: 1, pinned: 1}}, sortings: map[string]*sorting{}}
	if s := x.sort("name"); *s.rows[0] != (row{name: "a"}) || s.totals != (totals{Entities: 1}) {
		t.Errorf("%+v, %+v", *s.rows[0], s.totals)
	}
}

var ok = oktest.OK // ends the test if there is an error
