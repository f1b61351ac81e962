package board

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// A panel shows what Prometheus would answer. One that shows nothing has no data, or an error that names it.
func TestLines(t *testing.T) {
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprintf(w, "# TYPE calls_total counter\ncalls_total{to=\"a\"} %d\ncalls_total{to=\"b\"} 0\n", n)
	}))
	defer server.Close()
	r := NewRecording(time.Second)
	for ; n <= 10; n++ {
		if err := r.Read(t.Context(), strings.TrimPrefix(server.URL, "http://"), time.Unix(int64(n), 0)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ kind, expr, want string }{
		{"timeseries", `sum by (to) (rate(calls_total{job=~"$job"}[$__rate_interval]))`, "to a 1, to b 0, "},
		{"stat", `sum(increase(calls_total[$__range]))`, "to 10, "},
		{"timeseries", `rate(call_total[$__rate_interval])`, ""},
		{"stat", `sum(calls_total{to="b"}) / 0`, ""},
		{"stat", `sum(`, `panel "calls"`},
		{"stat", `calls_total{to="$to"}[$span]`, `panel "calls"`},
	} {
		got := ""
		lines, err := Panel{Title: "calls", Type: c.kind, Targets: []Target{{Expr: c.expr, LegendFormat: "to {{to}}"}}}.Lines(t.Context(), r)
		for _, l := range lines {
			if l.HasData() {
				got += fmt.Sprintf("%s %v, ", l.Name, l.Points[len(l.Points)-1].V)
			}
		}
		if err != nil && strings.Contains(err.Error(), c.want) {
			got = c.want
		}
		if got != c.want || (err != nil) != strings.HasPrefix(c.want, "panel") {
			t.Errorf("%s shows %q, %v; want %q", c.expr, got, err, c.want)
		}
	}
}
