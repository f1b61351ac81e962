package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/examples/observability/board"
	"github.com/drip-go/drip/internal/exampletest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

var picture = flag.String("svg", "", "a `file` in which TestEveryPanelShowsData draws the panels")

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

// The example runs until everything has happened that it can show. Then each panel shows data, by Prometheus' own engine
// over the metrics that Prometheus would have read, and each label that a query names exists.
func TestEveryPanelShowsData(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	oktest.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var spans exampletest.Buffer
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, "memory:", listener, &spans) }()
	ch := servers.Channel(t, url)
	t.Cleanup(func() {
		for _, name := range []string{"observability", "observability.drip.due", "observability.drip.dead"} {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				t.Error(err)
			}
		}
	})

	recording := board.NewRecording(250 * time.Millisecond)
	every := time.NewTicker(recording.Every)
	defer every.Stop()
	var missing []string
	for n := 1; n == 1 || len(missing) > 0; n++ {
		select {
		case err := <-ended:
			t.Fatalf("the example has ended: %v; of nothing yet is: %v", err, missing)
		case now := <-every.C:
			oktest.OK(t, recording.Read(ctx, listener.Addr().String(), now))
		}
		if n%8 == 0 || n == 1 {
			missing = slices.DeleteFunc([]string{
				`drip_decisions_total{drip_outcome="run"}`, `drip_decisions_total{drip_bound="window 1"}`,
				`drip_decisions_total{drip_bound="tokens"}`, `drip_decisions_total{drip_bound="closed"}`,
				`drip_throttled_total`, `drip_leases_expired_total`, `drip_leases`,
				`drip_consumer_settlements_total{drip_outcome="handled"}`, `drip_consumer_settlements_total{drip_outcome="retried"}`,
				`drip_consumer_settlements_total{drip_outcome="throttled"}`, `drip_consumer_settlements_total{drip_reason="failed"}`,
				`drip_consumer_in_hand`, `drip_consumer_lateness_seconds_count`, `drip_storage_duration_seconds_count{drip_operation="settle"}`,
				`messaging_process_duration_seconds_count{error_type="throttled"}`, `messaging_client_operation_duration_seconds_count`,
			}, func(metric string) bool { return everAbove0(t, ctx, recording, metric) })
		}
	}
	b, err := board.Read("dashboard.json")
	oktest.OK(t, err)
	var drawings []board.Drawing
	for _, p := range b.Panels {
		lines, err := p.Lines(ctx, recording)
		if err != nil {
			t.Error(err)
		}
		if len(lines) == 0 || slices.ContainsFunc(lines, func(l board.Line) bool { return p.Type == "stat" && !l.HasData() }) || !slices.ContainsFunc(lines, board.Line.HasData) {
			t.Errorf("panel %q shows nothing", p.Title)
		}
		if unknown, err := p.UnknownLabels(recording); err != nil || len(unknown) > 0 {
			t.Errorf("panel %q asks for labels that its metrics do not have: %v %v", p.Title, unknown, err)
		}
		drawings = append(drawings, board.Drawing{Panel: p, Lines: lines})
	}
	var svg bytes.Buffer
	if err := board.Draw(&svg, "drip: examples/observability", recording, drawings); err != nil || svg.Len() > 500_000 || strings.Contains(svg.String(), "NaN") {
		t.Errorf("the picture has %d bytes: %v", svg.Len(), err)
	}
	if *picture != "" {
		oktest.OK(t, os.WriteFile(*picture, svg.Bytes(), 0o644))
	}
	cancel()
	oktest.OK(t, <-ended)
	checkTraces(t, spans.Bytes())
}

func everAbove0(t *testing.T, ctx context.Context, r *board.Recording, metric string) bool {
	t.Helper()
	p := board.Panel{Type: "timeseries", Targets: []board.Target{{Expr: "sum(" + metric + ")"}}}
	lines, err := p.Lines(ctx, r)
	oktest.OK(t, err)
	return len(lines) == 1 && slices.ContainsFunc(lines[0].Points, func(p board.Point) bool { return p.V > 0 })
}

// checkTraces looks for a message that was postponed and handled then: its publisher's span and the spans of its deliveries
// are one trace.
func checkTraces(t *testing.T, spans []byte) {
	type span struct {
		Name        string
		SpanContext struct{ TraceID, SpanID string }
		Parent      struct{ SpanID string }
		Attributes  []struct {
			Key   string
			Value struct{ Value any }
		}
	}
	senders := map[string]string{} // by trace
	outcomes := map[string][]string{}
	for decoder := json.NewDecoder(bytes.NewReader(spans)); decoder.More(); {
		var s span
		oktest.OK(t, decoder.Decode(&s))
		trace := s.SpanContext.TraceID
		if s.Name == "send observability" {
			senders[trace] = s.SpanContext.SpanID
			continue
		}
		if s.Name != "process observability" {
			t.Errorf("a span %q", s.Name)
		}
		for _, a := range s.Attributes {
			if a.Key == "drip.outcome" {
				outcomes[trace] = append(outcomes[trace], a.Value.Value.(string))
			}
		}
		if sender, ok := senders[trace]; ok && sender != s.Parent.SpanID {
			t.Errorf("a delivery's parent is %s, want its sender %s", s.Parent.SpanID, sender)
		}
	}
	postponed := 0
	for trace, all := range outcomes {
		if _, ok := senders[trace]; ok && len(all) > 1 && slices.Contains(all, "postponed") && all[len(all)-1] == "handled" {
			postponed++
		}
	}
	if postponed == 0 {
		t.Errorf("of %d traces none is that of a message that was postponed and handled then", len(outcomes))
	}
}

// Grafana can show the dashboard: each panel has a number, a place of its own and a description.
func TestDashboard(t *testing.T) {
	b, err := board.Read("dashboard.json")
	oktest.OK(t, err)
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if p.ID == 0 || ids[p.ID] || p.Title == "" || p.Description == "" || len(p.Targets) == 0 || p.Type != "stat" && p.Type != "timeseries" {
			t.Errorf("panel %d %q is not complete, or there are two", p.ID, p.Title)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.X < 0 || g.X+g.W > 24 || g.W < 1 || g.H < 1 {
			t.Errorf("panel %q is at %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Errorf("panel %q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, target := range p.Targets {
			if target.Datasource.Type != "prometheus" || target.Datasource.UID != "${datasource}" || target.RefID == "" {
				t.Errorf("panel %q asks %+v", p.Title, target.Datasource)
			}
		}
	}
	if len(b.Panels) < 15 {
		t.Errorf("there are %d panels", len(b.Panels))
	}
}
