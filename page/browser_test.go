package page

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/browser"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/queues/rabbitmq"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
	_ "github.com/drip-go/drip/storage/redis"
)

func startBrowser(t *testing.T) *browser.Browser {
	t.Helper()
	b, err := browser.Start()
	if errors.Is(err, browser.ErrMissing) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

// tab is a browser's tab in a test.
type tab struct {
	*browser.Tab
	t   *testing.T
	ctx context.Context
}

func openTab(t *testing.T, b *browser.Browser, width int) tab {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	opened, err := b.Open(ctx, width, 900, width < 600)
	ok(t, err)
	return tab{opened, t, ctx}
}

func (b tab) must(err error) {
	b.t.Helper()
	if err != nil {
		text, _ := b.Text(context.WithoutCancel(b.ctx), "body")
		b.t.Fatalf("%v; the page says\n%.3000s", err, text)
	}
}

// says waits until an element's text, white space apart, contains all of these.
func (b tab) says(selector string, wants ...string) {
	b.t.Helper()
	for _, want := range wants {
		b.must(b.Wait(b.ctx, fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.innerText.replace(/\s+/g, " ").includes(%q))`, selector, want)))
	}
}

var realStorages = map[string]func(*testing.T) storage.Storage{
	"redis": func(t *testing.T) storage.Storage {
		return openStorage(t, fmt.Sprintf("%s?prefix=%d:", servers.UseRedis(t).URL(), time.Now().UnixNano()))
	},
	"postgres": func(t *testing.T) storage.Storage {
		s := openStorage(t, fmt.Sprintf("%s&timeout=1m&schema=page%%20%d", servers.UsePostgres(t).URL(), time.Now().UnixNano()))
		ok(t, s.(*postgres.Storage).CreateSchema(t.Context()))
		return s
	},
}

func openStorage(t *testing.T, url string) storage.Storage {
	t.Helper()
	s, err := storage.Open(t.Context(), url)
	ok(t, err)
	t.Cleanup(func() { s.(io.Closer).Close() })
	return s
}

// A browser shows the same as Inspect, and each action does its work: with two browsers at once, with the keyboard, and
// without JavaScript.
func TestBrowser(t *testing.T) {
	b := startBrowser(t)
	for name, open := range realStorages {
		t.Run(name, func(t *testing.T) { testBrowser(t, b, open(t)) })
	}
}

func testBrowser(t *testing.T, b *browser.Browser, s storage.Storage) {
	for i := range 60 {
		admit(t, s, fmt.Sprintf("shop-%02d", i), 1)
	}
	admit(t, s, "shop-07", 11)
	o := limits(s)
	bucket := buckettest.New(t, o)
	broker, ch, queue := deadLetters(t)
	h := newSite(t, Options{Storage: s, Limits: &o, Broker: broker, Allow: allow})
	server := httptest.NewServer(h)
	defer server.Close()
	inspect := func(name string) drip.Status {
		t.Helper()
		return buckettest.Inspect(t, bucket, name)
	}

	one, two := openTab(t, b, 1200), openTab(t, b, 390)
	one.must(one.Go(one.ctx, server.URL))
	two.must(two.Go(two.ctx, server.URL+"/?by=closed"))
	st := inspect("shop-07")
	one.says(".totals", "60 entities", "waiting")
	one.says("tbody tr:first-child", "shop-07", fmt.Sprintf("%d of %d", st.InUse, st.Concurrency), fmt.Sprint(st.Booked), fmt.Sprintf("%d of 4", st.Windows[0].Capacity))
	one.must(one.Follow(one.ctx, `nav.pages a[rel=next]`))
	one.says("caption", "51 to 60 of 60")

	// Pause, seen in the other browser without a click.
	one.must(one.Go(one.ctx, server.URL+"/entity?name=shop-07"))
	one.says("#tokens + p", "4 of 4 in use")
	one.must(one.Follow(one.ctx, `button[value=pause]`))
	one.says(".notice", "Paused for 10m.")
	one.says("dl", "Closed until", "closed, by pause or by the provider")
	if left := time.Until(inspect("shop-07").ClosedUntil); left < 9*time.Minute || left > 10*time.Minute {
		t.Errorf("it is closed for %v, want 10 minutes", left)
	}
	two.says("tbody tr:first-child", "shop-07", "in 9m")
	two.says(".totals", "1 closed")

	// Resume with the keyboard alone.
	for range 30 {
		one.must(one.Key(one.ctx, "Tab"))
		var at string
		one.must(one.Eval(one.ctx, "document.activeElement.value || ''", &at))
		if at == "resume" {
			break
		}
	}
	one.must(one.Press(one.ctx, "Enter"))
	one.says(".notice", "Open again.")
	if !inspect("shop-07").ClosedUntil.IsZero() {
		t.Error("it is closed still")
	}
	one.must(one.Follow(one.ctx, `a.button`))
	one.says("main", `reset "shop-07"`)
	one.must(one.Follow(one.ctx, `button.strong`))
	one.says(".notice", "All tokens and tickets are taken back.")
	if n := inspect("shop-07").InUse; n != 0 {
		t.Errorf("%d tokens are in use after reset", n)
	}

	// A limit that is pinned.
	one.must(one.Eval(one.ctx, `document.getElementById("limit").value = "1/1h"`, nil))
	one.must(one.Follow(one.ctx, `button[value=pin]`))
	one.says(".notice", "Pinned to 1 every 1h, until it is unpinned.")
	one.says("dl", "Pinned to 1 every 1h")
	if st := inspect("shop-07"); st.Pin == nil || st.Pin.Size != 1 {
		t.Errorf("the pin is %+v", st.Pin)
	}
	two.must(two.Go(two.ctx, server.URL+"/?by=pinned"))
	two.says("tbody tr:first-child", "shop-07", "pinned to 1 every 1h")
	one.must(one.Follow(one.ctx, `button[value=unpin]`))
	one.says(".notice", "The limits of the consumers alone hold again.")
	if st := inspect("shop-07"); st.Pin != nil {
		t.Errorf("the pin is %+v still", st.Pin)
	}

	// Many at once, without JavaScript.
	two.must(two.Scripts(two.ctx, false))
	two.must(two.Go(two.ctx, server.URL))
	two.must(two.Eval(two.ctx, `document.getElementById("prefix").value = "shop-0"`, nil))
	two.must(two.Follow(two.ctx, `form.act button[value=pause]`))
	two.says("main", "That is 10 entities of 60.")
	two.must(two.Follow(two.ctx, `button.strong`))
	two.says(".notice", "10 entities of 10 changed")
	if inspect("shop-03").ClosedUntil.IsZero() || !inspect("shop-13").ClosedUntil.IsZero() {
		t.Error("those should be closed whose names begin with shop-0")
	}

	// Dead letters.
	one.must(one.Go(one.ctx, server.URL+"/queues"))
	one.says("section", queue, "Dead letters 3")
	one.must(one.Follow(one.ctx, `a[href^="dead?"]`))
	one.says("ul.reasons", "failed: 2", "too old: 1")
	one.says("table", "no such order")
	one.must(one.Eval(one.ctx, `document.querySelector("input[type=checkbox]").click()`, nil))
	one.must(one.Follow(one.ctx, `button[value=requeue]`))
	one.says(".notice", "1 message put back.")
	servers.Await(t, ch, queue, 1)
	one.must(one.Follow(one.ctx, `p a.button`))
	one.must(one.Follow(one.ctx, `button.strong`))
	one.says(".notice", "2 messages put back.")
	servers.Await(t, ch, queue, 3)

	// All pages: nothing that the browser complains about, nothing without a name, nothing wider than a telephone.
	admit(t, s, strings.Repeat("a-very-long-name-", 20), 5)
	phone := openTab(t, b, 360)
	for _, address := range []string{"/", "/?q=very", "/entity?name=shop-07", "/entity?name=" + strings.Repeat("a-very-long-name-", 20), "/entity?name=nobody", "/queues", "/dead?queue=" + queue, "/sure?do=reset&all=yes"} {
		for _, tab := range []tab{one, phone} {
			tab.must(tab.Go(tab.ctx, server.URL+address))
			nameless, err := tab.Nameless(tab.ctx)
			tab.must(err)
			if len(nameless) > 0 {
				t.Errorf("%s: a screen reader has no name for %v", address, nameless)
			}
			var wide, width int
			tab.must(tab.Eval(tab.ctx, "document.documentElement.scrollWidth", &wide))
			tab.must(tab.Eval(tab.ctx, "document.documentElement.clientWidth", &width))
			if wide > width {
				t.Errorf("%s is %d wide on a screen of %d", address, wide, width)
			}
		}
	}
	for _, tab := range []tab{one, two, phone} {
		if p := tab.Problems(); len(p) > 0 {
			t.Errorf("the browser complains: %v", p)
		}
	}
}

// deadLetters is a broker with three of them.
func deadLetters(t *testing.T) (*rabbitmq.Broker, *amqp.Channel, string) {
	t.Helper()
	address := servers.UseRabbitMQ(t).URL()
	ch, queue := servers.Channel(t, address), fmt.Sprint("orders-", time.Now().UnixNano())
	servers.Declare(t, ch, "classic", queue, queue+".drip.dead")
	for i, reason := range []string{"failed", "too old", "failed"} {
		servers.Publish(t, ch, queue+".drip.dead", amqp.Publishing{
			MessageId: fmt.Sprint("order-", i), Headers: amqp.Table{"x-drip-reason": reason, "x-drip-error": "no such order"}, Body: []byte(`{"order": 1}`),
		})
	}
	servers.Await(t, ch, queue+".drip.dead", 3)
	b, err := rabbitmq.New(address, queue)
	ok(t, err)
	t.Cleanup(func() { b.Close() })
	return b, ch, queue
}

// An open page says that the server is gone, keeps its content, and goes on when the server is back.
func TestServerComesBack(t *testing.T) {
	b := startBrowser(t)
	own := servers.OwnRedis(t)
	s := openStorage(t, own.URL()+"?max_retries=-1")
	admit(t, s, "shop", 1)
	server := httptest.NewServer(newSite(t, Options{Storage: s}))
	defer server.Close()
	tab := openTab(t, b, 1200)
	tab.must(tab.Go(tab.ctx, server.URL))
	tab.says("tbody", "shop")
	ok(t, own.Kill())
	tab.says("#status", "No answer.")
	tab.says("tbody", "shop")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ok(t, own.Start(ctx))
	admit(t, s, "other", 1)
	tab.must(tab.Wait(tab.ctx, `document.getElementById("status").innerText === ""`))
	tab.says("tbody", "other")
}
