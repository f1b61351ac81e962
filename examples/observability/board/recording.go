package board

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// Recording holds metrics of programs, read at several times.
type Recording struct {
	Every  time.Duration // between two readings
	times  []time.Time
	series map[string]*series
}

type series struct {
	labels  labels.Labels
	samples []chunks.Sample
}

// NewRecording returns an empty Recording. Call Read at that interval.
func NewRecording(every time.Duration) *Recording {
	return &Recording{Every: every, series: map[string]*series{}}
}

// Begin returns the time of the first reading.
func (r *Recording) Begin() time.Time { return r.times[0] }

// End returns the time of the last reading.
func (r *Recording) End() time.Time { return r.times[len(r.times)-1] }

// Read reads the metrics at http://ADDRESS/metrics, with now as their time. Earlier readings must not have a later time.
func (r *Recording) Read(ctx context.Context, address string, now time.Time) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, response.Status)
	}
	if len(r.times) == 0 || now.After(r.End()) {
		r.times = append(r.times, now)
	}
	return r.add(text, response.Header.Get("Content-Type"), address, now)
}

func (r *Recording) add(text []byte, contentType, address string, now time.Time) error {
	p, err := textparse.New(text, contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", address, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, v := p.Series()
		var l labels.Labels
		p.Labels(&l)
		b := labels.NewBuilder(l)
		b.Set("job", "drip")
		b.Set("instance", address)
		l = b.Labels()
		key := l.String()
		s := r.series[key]
		if s == nil {
			s = &series{labels: l}
			r.series[key] = s
		}
		s.samples = append(s.samples, sample{now.UnixMilli(), v})
	}
}

// query evaluates expr from a time to the end of the recording.
func (r *Recording) query(ctx context.Context, expr string, from time.Time, legend string) ([]Line, error) {
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	q, err := engine.NewRangeQuery(ctx, queryable{r}, nil, expr, from, r.End(), r.Every)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	defer q.Close()
	matrix, err := q.Exec(ctx).Matrix()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var lines []Line
	for _, s := range matrix {
		line := Line{Name: named(legend, s.Metric)}
		for _, p := range s.Floats {
			line.Points = append(line.Points, Point{time.UnixMilli(p.T), p.F})
		}
		lines = append(lines, line)
	}
	slices.SortFunc(lines, func(a, b Line) int { return strings.Compare(a.Name, b.Name) })
	return lines, nil
}

var label = regexp.MustCompile(`{{(\w+)}}`)

// named returns a legend with the values of its labels.
func named(legend string, l labels.Labels) string {
	return strings.TrimSpace(label.ReplaceAllStringFunc(legend, func(s string) string { return l.Get(s[2 : len(s)-2]) }))
}

// queryable makes a recording a storage for Prometheus' engine.
type queryable struct{ *Recording }

func (q queryable) Querier(int64, int64) (storage.Querier, error) {
	return querier{storage.NoopQuerier(), q.Recording}, nil
}

type querier struct {
	storage.Querier
	r *Recording
}

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, s := range q.r.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			set.all = append(set.all, storage.NewListSeries(s.labels, s.samples))
		}
	}
	slices.SortFunc(set.all, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return set
}

type seriesSet struct {
	all []storage.Series
	at  int
}

func (s *seriesSet) Next() bool                        { s.at++; return s.at < len(s.all) }
func (s *seriesSet) At() storage.Series                { return s.all[s.at] }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

type sample struct {
	t int64
	v float64
}

func (s sample) T() int64                      { return s.t }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }
