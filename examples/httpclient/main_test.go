package main

import (
	"net/http/httptest"
	"strings"
	"testing"
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
