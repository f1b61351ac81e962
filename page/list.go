package page

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/internal/panics"
)

// rows is how many entities a page of the list has.
const rows = 50

type listBody struct {
	totals
	Listed bool // the storage can list
	Query  string
	By     string
	Orders []link
	Rows   []*entityBody
	Exact  bool // the one row is the entity of the search, which is not stored
	From   int
	To     int
	Of     int
	Before string // addresses of the pages before and after
	After  string
	Age    string // of the order
}

type link struct {
	Text, URL string
	Here      bool
}

// list is all entities, fifty at a time.
func (p *Page) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	b := listBody{Listed: p.index != nil, Query: q.Get("q"), By: cmp.Or(q.Get("by"), "backlog")}
	if orders[b.By] == nil {
		return badRequest("the list can be sorted by backlog, eta, use, closed, pinned and name")
	}
	page := 1
	if text := q.Get("page"); text != "" {
		var err error
		if page, err = strconv.Atoi(text); err != nil || page < 1 || page > 1<<30 {
			return badRequest("page is not the number of one")
		}
	}
	address := func(by string, page int) string {
		v := url.Values{"by": {by}}
		if b.Query != "" {
			v.Set("q", b.Query)
		}
		if page > 1 {
			v.Set("page", strconv.Itoa(page))
		}
		return "./?" + v.Encode()
	}
	var names []string
	if p.index != nil {
		p.index.look(r.Context())
		names, b.Of, b.totals = p.index.page(b.By, b.Query, (page-1)*rows, rows)
		if !b.Ended.IsZero() {
			b.Age = entities.Short(time.Since(b.Ended).Truncate(time.Second))
		}
		for _, o := range []string{"backlog", "eta", "use", "closed", "pinned", "name"} {
			b.Orders = append(b.Orders, link{strings.Replace(o, "eta", "ETA", 1), address(o, 1), o == b.By})
		}
	}
	if len(names) == 0 && page == 1 && b.Query != "" { // the index may not know it yet
		names, b.Exact = []string{b.Query}, true
	}
	reports, err := p.reports(r.Context(), names)
	if b.Exact && noEntity(err) {
		names, reports, b.Exact, err = nil, nil, false, nil
	}
	if err != nil {
		return err
	}
	for _, report := range reports {
		b.Rows = append(b.Rows, p.body(report))
	}
	if len(names) > 0 && !b.Exact {
		b.From, b.To = (page-1)*rows+1, (page-1)*rows+len(names)
	}
	if page > 1 {
		b.Before = address(b.By, page-1)
	}
	if b.To > 0 && b.To < b.Of {
		b.After = address(b.By, page+1)
	}
	return p.render(w, http.StatusOK, "list", frame{Title: "Entities", Here: "list", Notice: p.notices.of(q.Get("did"))}, b)
}

// reports reads entities, some at a time, in the order of the names.
func (p *Page) reports(ctx context.Context, names []string) ([]*entities.Report, error) {
	const together = 8
	reports, errs := make([]*entities.Report, len(names)), make([]error, together)
	var wg sync.WaitGroup
	for c := range together {
		wg.Go(func() {
			for i := c; i < len(names) && errs[c] == nil; i += together {
				errs[c] = panics.Caught(func() (err error) {
					reports[i], err = p.report(ctx, names[i])
					return err
				})
			}
		})
	}
	wg.Wait()
	return reports, cmp.Or(errs...)
}

// report reads an entity as it is now.
func (p *Page) report(ctx context.Context, name string) (*entities.Report, error) {
	e, err := entities.Read(ctx, p.o.Storage, name)
	if err != nil {
		return nil, err
	}
	report, err := p.judge.Report(ctx, e)
	if err == nil && p.index != nil {
		p.index.note(report, 0)
	}
	return report, err
}

// entityBody is an entity, as a row of the list and as a page of its own.
type entityBody struct {
	*entities.Report
	Name      string // as it may be shown
	URL       string
	Do        string // the address of the form
	Sure      string // the address of the question before a reset
	State     string // "closed", "waits" or ""
	Next      string // when a newcomer runs
	NextAt    string
	Because   string // the limit or closing that it waits for
	Bars      []bar
	Rest      string // the rest of its limits, for one line, or where the limits are not known
	ClosedU   moment
	Last      moment // the last booked slot
	DecidedAt moment
	Pinned    string // the limit that is pinned
	PinnedU   moment
	LevelText string // "48 %"; empty if it is all of the limit
	Held      []lease
	Unheld    int // leases that are not shown
	Track     *track
	Used      []use // of each unit
}

// use is the use of a unit in the last hour.
type use struct {
	entities.Use
	Begin   string
	Columns []column
	Table   []usedMinute
}

// column is a minute of the drawing, in 1000ths of it.
type column struct{ X, Y, Height int }

// usedMinute is a minute in which something was used.
type usedMinute struct {
	Clock string
	N     int
}

// moment is a time, and how far it is away.
type moment struct{ Clock, Away, ISO string }

type lease struct {
	Age string
	End moment
}

// bar is the rest of a window.
type bar struct {
	Text, Left  string
	Value, Most int // in 1000ths, for drawing
}

func (p *Page) at(t, now time.Time) moment {
	if t.IsZero() {
		return moment{}
	}
	away := "in " + entities.Short(t.Sub(now))
	if !t.After(now) {
		away = entities.Short(now.Sub(t)) + " ago"
	}
	return moment{entities.Clock(t, now, p.zone), away, t.UTC().Format(time.RFC3339Nano)}
}

const mostLeases = 100

func (p *Page) body(r *entities.Report) *entityBody {
	b := &entityBody{
		Report: r, Name: entities.Visible(r.Entity), URL: "entity?" + url.Values{"name": {r.Entity}}.Encode(), Because: r.Why(),
		Do: "do?" + url.Values{"entity": {r.Entity}}.Encode(), Sure: "sure?" + Action{Do: Reset, Entity: r.Entity}.values().Encode(),
		ClosedU: p.at(r.ClosedUntil, r.Time), Last: p.at(r.Waiting, r.Time), DecidedAt: p.at(r.Decided, r.Time),
	}
	if r.Pin != nil {
		b.Pinned, b.PinnedU = entities.Limit(*r.Pin), p.at(r.PinnedUntil, r.Time)
	}
	if r.Level < 1 {
		b.LevelText = fmt.Sprintf("%.1f %%", 100*r.Level)
	}
	switch {
	case !r.ClosedUntil.IsZero():
		b.State = "closed"
	case !r.Waiting.IsZero():
		b.State = "waits"
	}
	var left []string
	if r.Limits {
		b.Next = "now"
		if r.Delay == 0 && r.Within > 0 {
			b.Because = "shared limits aside"
		}
		if r.Delay > 0 {
			next := p.at(r.Time.Add(r.Delay), r.Time)
			b.Next, b.NextAt = next.Away, next.Clock
		}
		for _, w := range r.Windows {
			if entities.Unlimited(w.Size) {
				continue
			}
			part := min(max(w.Capacity, 0), w.Size) * 1000 / max(1, w.Size)
			b.Bars = append(b.Bars, bar{entities.Capacity(w, r.Time, p.zone), entities.Units(int64(w.Capacity)), part, 1000})
			left = append(left, entities.Units(int64(w.Capacity))+" of "+strconv.Itoa(w.Size))
		}
	} else {
		for _, n := range r.Capacity {
			left = append(left, entities.Units(n))
		}
	}
	b.Rest = strings.Join(left, ", ")
	for i, l := range r.Leases {
		if i == mostLeases {
			break
		}
		b.Held = append(b.Held, lease{entities.Short(l.Age), p.at(l.End, r.Time)})
	}
	b.Unheld = r.InUse - r.Plain - len(b.Held)
	b.Track = trackOf(r)
	return b
}

// track is the time to come: how long the entity is closed, and until when slots are booked.
type track struct {
	Length         string // of all of it
	Closed, Booked int    // in 1000ths of it
}

func trackOf(r *entities.Report) *track {
	closed, booked := r.ClosedUntil.Sub(r.Time), r.Waiting.Sub(r.Time)
	furthest := max(closed, booked)
	if furthest <= 0 {
		return nil
	}
	length := furthest
	for _, l := range []time.Duration{
		10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 31 * 24 * time.Hour,
	} {
		if furthest <= l {
			length = l
			break
		}
	}
	part := func(d time.Duration) int { return int(1000 * max(0, d).Seconds() / length.Seconds()) }
	return &track{entities.Short(length), part(closed), part(booked)}
}

// used draws the use of a unit.
func (p *Page) used(u entities.Use) use {
	d := use{Use: u, Begin: u.From.In(p.zone).Format("15:04")}
	for i, n := range u.Minutes {
		if n > 0 {
			height := max(1, n*1000/u.Most)
			d.Columns = append(d.Columns, column{i, 1000 - height, height})
			d.Table = append(d.Table, usedMinute{u.From.Add(time.Duration(i) * time.Minute).In(p.zone).Format("15:04"), n})
		}
	}
	return d
}

// entity is all about one.
func (p *Page) entity(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	name := q.Get("name")
	if name == "" {
		return badRequest("which entity? Its name is missing")
	}
	report, err := p.report(r.Context(), name)
	if err != nil {
		return err
	}
	b := p.body(report)
	used, err := report.Used(r.Context(), p.o.Storage)
	if err != nil {
		return err
	}
	for _, u := range used {
		b.Used = append(b.Used, p.used(u))
	}
	return p.render(w, http.StatusOK, "entity", frame{Title: b.Name, Here: "list", Notice: p.notices.of(q.Get("did"))}, b)
}
