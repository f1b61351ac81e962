package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/consumer"
)

func TestRun(t *testing.T) {
	api := newAPI("shop-1")
	server := httptest.NewServer(api)
	defer server.Close()
	var out strings.Builder
	if err := run(t.Context(), server.URL, &out); err != nil {
		t.Fatal(err)
	}
	// One is refused, or more if the machine stands still between the bucket's clock and the API's.
	if api.refused < 1 || api.calls != 20+api.refused {
		t.Errorf("%d of %d calls were refused, want at least one and 20 that were not", api.refused, api.calls)
	}
	for want, times := range map[string]int{" was refused: closed for 1s\n": api.refused, "shop-1 call 10\n": 1, "shop-2 call 10\n": 1} {
		if n := strings.Count(out.String(), want); n != times {
			t.Errorf("%q is there %d times, want %d", want, n, times)
		}
	}
	if first, second := strings.Index(out.String(), "shop-1 call 1\n"), strings.Index(out.String(), "shop-1 call 2\n"); first > second {
		t.Error("the refused call has lost its place")
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// postponer records the delays of its calls.
type postponer struct{ delays []time.Duration }

func (p *postponer) Postpone(_ context.Context, _ *amqp.Delivery, delay time.Duration) error {
	p.delays = append(p.delays, delay)
	return nil
}

func TestHandler(t *testing.T) {
	for !handles(t) && !t.Failed() { // the machine was slow: the second of refusal ends meanwhile
	}
}

// handles returns false if it took so long that it may prove nothing.
func handles(t *testing.T) bool {
	began, api := time.Now(), newAPI("shop-1")
	server := httptest.NewServer(api)
	defer server.Close()
	bucket, err := open()
	if err != nil {
		t.Fatal(err)
	}
	var postponed postponer
	shop := func(d *amqp.Delivery) (string, error) { return string(d.Body), nil }
	handle := consumer.Limit(bucket, shop, &postponed)(newHandler(bucket, server.URL)).Handle
	for _, body := range []string{"shop-1", "shop-1", "shop-2"} {
		if err := handle(t.Context(), &amqp.Delivery{Body: []byte(body)}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	if time.Since(began) > 500*time.Millisecond {
		return false
	}
	// The second of shop-1 has heard of the refusal of the first.
	if api.refused != 1 || api.calls != 2 || len(postponed.delays) != 2 {
		t.Errorf("%d of %d calls were refused, postponed by %v", api.refused, api.calls, postponed.delays)
	}
	for _, d := range postponed.delays {
		if d < 500*time.Millisecond {
			t.Errorf("postponed by %v", d)
		}
	}
	if s, err := bucket.Inspect(t.Context(), "shop-1"); err != nil || s.InUse != 0 {
		t.Errorf("Inspect = %+v, %v", s, err)
	}
	return true
}
