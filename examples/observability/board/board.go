// Package board draws the panels of a Grafana dashboard over a program's metrics, without Grafana. It reads the metrics as
// Prometheus does, and answers the queries of the panels with Prometheus' own engine.
package board

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// Board is a Grafana dashboard, with the fields that this package needs.
type Board struct {
	Title  string
	Panels []Panel
}

// Panel is a panel of a Board, of the type stat or timeseries.
type Panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []Target
	FieldConfig struct {
		Defaults struct {
			Unit     string
			Decimals int
			Custom   struct{ Stacking struct{ Mode string } }
		}
	}
}

// Target is a query and the legend of its lines.
type Target struct {
	RefID        string
	Expr         string
	LegendFormat string
	Datasource   struct{ Type, UID string }
}

// Read reads a dashboard that Grafana has exported.
func Read(file string) (Board, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Board{}, err
	}
	var b Board
	if err := json.Unmarshal(text, &b); err != nil {
		return Board{}, fmt.Errorf("%s: %w", file, err)
	}
	return b, nil
}

// Line is a result of a panel's query. A stat has one point.
type Line struct {
	Name   string
	Points []Point
}

// Point is a value, which may be NaN, at a time.
type Point struct {
	T time.Time
	V float64
}

// HasData reports whether one of the values is a number.
func (l Line) HasData() bool {
	for _, p := range l.Points {
		if !math.IsNaN(p.V) && !math.IsInf(p.V, 0) {
			return true
		}
	}
	return false
}

// rateInterval is what Grafana makes of $__rate_interval, in scrapes.
const rateInterval = 4

// Lines answers the panel's queries over all of the recording.
func (p Panel) Lines(ctx context.Context, r *Recording) ([]Line, error) {
	var lines []Line
	for _, t := range p.Targets {
		from := r.Begin()
		if p.Type == "stat" {
			from = r.End()
		}
		some, err := r.query(ctx, r.expand(t.Expr), from, t.LegendFormat)
		if err != nil {
			return nil, fmt.Errorf("panel %q: %w", p.Title, err)
		}
		lines = append(lines, some...)
	}
	return lines, nil
}

// expand sets Grafana's variables.
func (r *Recording) expand(expr string) string {
	return strings.NewReplacer(
		"$__rate_interval", fmt.Sprintf("%dms", rateInterval*r.Every.Milliseconds()),
		"$__range", fmt.Sprintf("%dms", max(1, r.End().Sub(r.Begin()).Milliseconds())),
		"$job", ".+",
	).Replace(expr)
}

// UnknownLabels returns the labels that the panel's queries select by, group by or show and that no series of their metrics
// has.
func (p Panel) UnknownLabels(r *Recording) (unknown []string, err error) {
	for _, t := range p.Targets {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.expand(t.Expr))
		if err != nil {
			return nil, err
		}
		var names, metrics []string
		for _, m := range label.FindAllStringSubmatch(t.LegendFormat, -1) {
			names = append(names, m[1])
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.AggregateExpr:
				names = append(names, n.Grouping...)
			case *parser.VectorSelector:
				metrics = append(metrics, n.Name)
				for _, m := range n.LabelMatchers {
					names = append(names, m.Name)
				}
			}
			return nil
		})
		for _, name := range names {
			known := false
			for _, s := range r.series {
				known = known || slices.Contains(metrics, s.labels.Get("__name__")) && s.labels.Has(name)
			}
			if !known {
				unknown = append(unknown, name)
			}
		}
	}
	return unknown, nil
}
