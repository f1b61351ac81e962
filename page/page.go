// Package page is the limits page. It shows which entities wait, for which limit and until when, who holds their
// tokens, and the messages that wait in the queues. It has actions, if you allow them.
//
//	h, err := page.Handler(page.Options{Storage: storage})
//	mux.Handle("/drip/", h)
//
// mounts it in a mux. All links are relative, so a path in front of it needs no setting, but it must end with a slash.
//
// # Who may see it
//
// Everybody who can reach the handler sees the page: put your own authentication in front of it. Nobody may change
// anything unless Options.Allow says so. Other sites may link to the page. It refuses their other requests.
//
// # What it costs the storage
//
// A request reads the entities it shows, 50 at most. The order of the list is an index in this process, which the page
// makes from storage.Lister while somebody looks, in at most a hundredth of the time. So with 100,000 entities in Redis
// the order may be two minutes old. The content of the rows is current.
package page

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/queues"
	"github.com/drip-go/drip/storage"
)

// Options are the page's data sources and its permissions.
type Options struct {
	// Storage holds the entities. Required.
	//
	// Without storage.Lister there is no list, and an entity is found by its whole name.
	Storage storage.Storage

	// Limits are the options of the consumers' Bucket; their Storage does not matter here. Defaults to nil: the page
	// then uses the limits that are stored with each entity. Only Limits tells which shared limits an entity is within.
	// So without it the page does not say how long shared limits delay an entity.
	Limits *drip.Options

	// Broker has the queues to show, such as the Broker of package queues/rabbitmq. Defaults to nil: no queues.
	Broker queues.Broker

	// Allow tells whether a request may do an action, and its sender, for the log. The page calls it once for each
	// action, from several goroutines. Defaults to nil: no action is allowed, and the page shows no buttons.
	Allow func(r *http.Request, a Action) (who string, allowed bool)

	// Log gets a line for each action: the action, its sender and its outcome. Defaults to slog.Default().
	Log *slog.Logger
}

// Page is the limits page. Make it with Handler, end it with Close. It is safe for concurrent use.
type Page struct {
	o       Options
	judge   *entities.Judge
	index   *index
	views   map[string]view
	site    *http.CrossOriginProtection
	notices notices
	zone    *time.Location
}

// view answers one kind of request: GET and HEAD, or POST.
type view struct {
	method string
	show   func(p *Page, w http.ResponseWriter, r *http.Request) error
}

// Handler returns the limits page. Its error names the wrong option.
func Handler(o Options) (*Page, error) {
	if o.Storage == nil {
		return nil, errors.New("page: Options.Storage is required")
	}
	if absent.Is(o.Storage) {
		return nil, fmt.Errorf("page: Options.Storage is a nil %T", o.Storage)
	}
	if o.Broker != nil && absent.Is(o.Broker) {
		return nil, fmt.Errorf("page: Options.Broker is a nil %T", o.Broker)
	}
	judge, err := entities.NewJudge(o.Limits, o.Storage)
	if err != nil {
		return nil, fmt.Errorf("page: Options.Limits: %w", err)
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	p := &Page{o: o, judge: judge, site: http.NewCrossOriginProtection(), zone: time.Local}
	if lister, ok := o.Storage.(storage.Lister); ok {
		p.index = newIndex(lister, judge)
	}
	p.views = map[string]view{
		"":           {http.MethodGet, (*Page).list},
		"entity":     {http.MethodGet, (*Page).entity},
		"sure":       {http.MethodGet, (*Page).sure},
		"do":         {http.MethodPost, (*Page).do},
		"style.css":  {http.MethodGet, asset("style.css", "text/css; charset=utf-8")},
		"refresh.js": {http.MethodGet, asset("refresh.js", "text/javascript; charset=utf-8")},
	}
	if o.Broker != nil {
		p.views["queues"] = view{http.MethodGet, (*Page).queues}
		p.views["dead"] = view{http.MethodGet, (*Page).dead}
	}
	return p, nil
}

// Close ends the page's work in the background. Do not use the page after it.
func (p *Page) Close() error {
	if p.index != nil {
		p.index.close()
	}
	return nil
}

const (
	lookTimeout = 5 * time.Second
	doTimeout   = 2 * time.Minute
	mostForm    = 1 << 20
)

// ServeHTTP implements http.Handler. The last part of the path selects the view.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	v, ok := p.views[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	timeout := lookTimeout
	if method == http.MethodPost {
		timeout = doTimeout
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	r = r.WithContext(ctx)
	var err error
	switch {
	case !ok:
		err = failure{http.StatusNotFound, errors.New("there is no such page")}
	case method != v.method:
		takes := v.method
		if takes == http.MethodGet {
			takes = "GET, HEAD"
		}
		h.Set("Allow", takes)
		err = failure{http.StatusMethodNotAllowed, fmt.Errorf("this address takes %s only", takes)}
	case r.Header.Get("Sec-Fetch-Site") == "cross-site" && (r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document"):
		// Another site may lead here. It may not load anything, as in a frame: looking at dead letters is work for the broker.
		err = failure{http.StatusForbidden, errors.New("this request comes from another site")}
	default:
		r.Body = http.MaxBytesReader(w, r.Body, mostForm)
		err = v.show(p, w, r)
	}
	if err == nil {
		return
	}
	status := http.StatusBadGateway // the storage's error, or the broker's
	var f failure
	if errors.As(err, &f) {
		status = f.status
	} else if noEntity(err) {
		status = http.StatusBadRequest
	}
	p.render(w, status, "error", frame{Title: http.StatusText(status)}, tell(err))
}

// failure is an error with the status of its response.
type failure struct {
	status int
	error
}

func (f failure) Unwrap() error { return f.error }

// noEntity reports whether no entity has the name of a request: it is reserved, or it is the key of something else, such
// as a limiter.Limiter.
func noEntity(err error) bool {
	return errors.Is(err, drip.ErrNoEntity) || errors.Is(err, storage.ErrFormat) && !errors.Is(err, storage.ErrLater)
}

func badRequest(format string, args ...any) error {
	return failure{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

// userinfo is where a URL has its password. The errors of drip's backends repeat no URL, but a user's own backend may.
// The password in a malformed URL may have a slash, and the error of parsing it repeats all of it.
var userinfo = regexp.MustCompile(`://\S*@`)

// tell is an error as text for everybody who sees the page.
func tell(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "There was no answer in time."
	}
	return userinfo.ReplaceAllString(err.Error(), "://…@")
}

//go:embed assets
var assets embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"short": entities.Short, "count": entities.Count, "visible": entities.Visible, "tell": tell,
}).ParseFS(assets, "assets/*.html"))

func asset(name, kind string) func(*Page, http.ResponseWriter, *http.Request) error {
	content, err := fs.ReadFile(assets, "assets/"+name)
	return func(_ *Page, w http.ResponseWriter, _ *http.Request) error {
		if err != nil {
			return err
		}
		w.Header().Set("Content-Type", kind)
		w.Header().Set("Cache-Control", "max-age=60")
		_, err := w.Write(content)
		return err
	}
}

// frame is the part that all pages share.
type frame struct {
	Title  string
	Here   string // the part of the navigation that it belongs to
	Notice string // what the last action did
	Acts   bool   // there are buttons
	Queues bool
	Zone   string
	Body   any
}

// render writes a page. name is the name of its body's template.
func (p *Page) render(w http.ResponseWriter, status int, name string, f frame, body any) error {
	f.Acts, f.Queues, f.Body = p.o.Allow != nil, p.o.Broker != nil, body
	f.Zone = time.Now().In(p.zone).Format("MST")
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name+".html", f); err != nil {
		p.o.Log.Error("the limits page cannot be shown", "page", name, "error", err)
		http.Error(w, "the page cannot be shown", http.StatusInternalServerError)
		return nil
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // after an error nobody is there to be told
	return nil
}
