package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/examples/observability/board"
)

// A panel that shows nothing is an error that names it, and so is a program that fails or serves nothing.
func TestShow(t *testing.T) {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintf(w, "# TYPE calls_total counter\ncalls_total{to=\"a\"} %d\ncalls_total{to=\"b\"} 0\n", n)
	}))
	defer server.Close()
	r := board.NewRecording(time.Second)
	for ; n <= 10; n++ {
		if err := r.Read(t.Context(), strings.TrimPrefix(server.URL, "http://"), time.Unix(int64(n), 0)); err != nil {
			t.Fatal(err)
		}
	}
	panel := func(title, kind, expr, legend string) board.Panel {
		return board.Panel{Title: title, Type: kind, Targets: []board.Target{{Expr: expr, LegendFormat: legend}}}
	}
	rate := panel("Rate", "timeseries", `sum by (to) (rate(calls_total{job=~"$job"}[$__rate_interval]))`, "to {{to}}")
	total := panel("Total", "stat", `sum(increase(calls_total[$__range]))`, "")
	var out strings.Builder
	drawings, err := show(t.Context(), &out, board.Board{Panels: []board.Panel{rate, total}}, r)
	if err != nil || len(drawings) != 2 || !strings.Contains(out.String(), "to a 1, to b 0") || !strings.Contains(out.String(), "All 2 panels show data.") {
		t.Errorf("it says %v and\n%s", err, out.String())
	}
	if last := drawings[1].Lines[0].Points; len(last) != 1 || last[0].V != 10 {
		t.Errorf("the total is %v, want one value of 10", last)
	}
	for _, wrong := range []board.Panel{
		panel("Unknown", "timeseries", `rate(call_total[$__rate_interval])`, ""),
		panel("Not a number", "stat", `sum(calls_total{to="b"}) / 0`, ""),
		panel("Broken", "stat", `sum(`, ""),
		panel("No such variable", "stat", `calls_total{to="$to"}[$span]`, ""),
	} {
		if _, err := show(t.Context(), &out, board.Board{Panels: []board.Panel{total, wrong}}, r); err == nil || !strings.Contains(err.Error(), wrong.Title) {
			t.Errorf("panel %q: %v, want an error with its name", wrong.Title, err)
		}
	}
}

func TestRunNamesWhatIsWrong(t *testing.T) {
	for want, run := range map[string]func(context.Context) error{
		"no-such-file":  func(ctx context.Context) error { return run(ctx, "no-such-file", nil, []string{"true"}, "", "") },
		"exit status 1": func(ctx context.Context) error { return run(ctx, "../dashboard.json", nil, []string{"false"}, "", "") },
		"nobody has":    func(ctx context.Context) error { return run(ctx, "../dashboard.json", nil, []string{"true"}, "", "") },
		"no-such-program": func(ctx context.Context) error {
			return run(ctx, "../dashboard.json", nil, []string{"no-such-program"}, "", "")
		},
	} {
		if err := run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want one with %q", err, want)
		}
	}
}
