package cli

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/servers"
)

// served runs drip serve. It returns its address, and a function that ends it and returns its log.
func served(t *testing.T, args ...string) (at string, end func() (log string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	var log strings.Builder
	status := make(chan int)
	go func() {
		n := run(ctx, &terminal{in: strings.NewReader(""), out: write, err: &log, zone: time.UTC}, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...))
		write.Close()
		status <- n
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatalf("drip serve %v: status %d: %s", args, <-status, log.String())
	}
	_, at, _ = strings.Cut(line, "http://")
	at, _, _ = strings.Cut(at, "/")
	return "http://" + at, func() string {
		cancel()
		if n := <-status; n != statusOK {
			t.Errorf("drip serve ended with %d", n)
		}
		return log.String()
	}
}

func body(t *testing.T, r *http.Response, err error) string {
	t.Helper()
	ok(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	ok(t, err)
	return string(text)
}

func TestServe(t *testing.T) {
	address := backends["redis"](t)
	admit(t, consumers(t, address), "shop-1", 3)
	at, end := served(t, address)
	if !strings.HasPrefix(at, "http://127.0.0.1:") {
		t.Errorf("it listens at %s", at)
	}
	for begin, text := time.Now(), ""; !strings.Contains(text, ">shop-1<"); { // the list is read in the background
		r, err := http.Get(at)
		if text = body(t, r, err); time.Since(begin) > time.Minute {
			t.Fatalf("it shows\n%s", text)
		}
	}
	form := url.Values{"do": {"pause"}, "entity": {"shop-1"}, "for": {"10m"}}
	r, err := http.PostForm(at+"/do", form)
	if body(t, r, err); r.StatusCode != http.StatusForbidden {
		t.Errorf("without --write a pause is answered with %d", r.StatusCode)
	}
	for host, want := range map[string]int{"localhost:7117": 200, "127.0.0.1": 200, "[::1]:7117": 200, "evil.example": 421, "evil.example:7117": 421, "": 421} {
		q, _ := http.NewRequest("GET", at, nil)
		if q.Host = host; host == "" {
			q.Host = "localhost.evil.example"
		}
		r, err := http.DefaultClient.Do(q)
		if body(t, r, err); r.StatusCode != want {
			t.Errorf("for the host %q: %d, want %d", host, r.StatusCode, want)
		}
	}
	end()

	at, end = served(t, address, "--write", "--host", "page.example, drip.example")
	q, _ := http.NewRequest("POST", at+"/do", strings.NewReader(form.Encode()))
	q.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	q.Host = "drip.example"
	r, err = http.DefaultTransport.RoundTrip(q)
	if body(t, r, err); r.StatusCode != http.StatusSeeOther {
		t.Errorf("with --write a pause is answered with %d", r.StatusCode)
	}
	log := end()
	for _, want := range []string{"action.do=pause", "action.entity=shop-1", "action.for=10m0s", "changed=1", "remote=127.0.0.1:"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log has no %q: %s", want, log)
		}
	}
	prints(t, "\nclosed      until ", "inspect", patient, address, "shop-1")
}

// The password of a URL is neither on the page nor in the log, whatever fails.
func TestServeTellsNoPassword(t *testing.T) {
	const password = "s3cr3t-w0rd"
	own := servers.OwnRedis(t, "--requirepass", password)
	address := strings.Replace(own.URL(), "redis://", "redis://:"+password+"@", 1) + "?max_retries=-1"
	if !strings.Contains(address, password) {
		t.Fatal(address)
	}
	at, end := served(t, address, "--write", "--broker", "amqp://user:"+password+"@127.0.0.1:1/", "--queues", "orders")
	var said strings.Builder
	ask := func() {
		for _, path := range []string{"/", "/entity?name=shop", "/queues", "/dead?queue=orders"} {
			r, err := http.Get(at + path)
			said.WriteString(body(t, r, err))
		}
		r, err := http.PostForm(at+"/do", url.Values{"do": {"pause"}, "entity": {"shop"}, "for": {"1m"}})
		said.WriteString(body(t, r, err))
		r, err = http.PostForm(at+"/do", url.Values{"do": {"requeue"}, "queue": {"orders"}, "all": {"yes"}})
		said.WriteString(body(t, r, err))
	}
	ask()
	ok(t, own.Kill())
	ask()
	said.WriteString(end())
	if text := said.String(); strings.Contains(text, password) || strings.Count(text, "connection refused") < 4 {
		t.Errorf("it says\n%s", text)
	}
}
