package page

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/queues"
)

// Do is a kind of Action.
type Do string

// The kinds of actions.
const (
	Pause   Do = "pause"   // let nothing of an entity run for a time
	Resume  Do = "resume"  // end a Pause, or a closing by the provider
	Reset   Do = "reset"   // take back all tokens and tickets of an entity
	Pin     Do = "pin"     // set a limit beside the limit of the consumers
	Unpin   Do = "unpin"   // end a Pin
	Requeue Do = "requeue" // put dead letters back to be handled
)

// Action is the change that a request asks for.
type Action struct {
	Do Do // the kind

	// Entity is the entity to change, of all kinds but Requeue. If it is empty, the action changes the stored entities
	// whose names begin with Prefix. With an empty Prefix, too, it changes all stored entities.
	Entity string
	Prefix string

	// For is how long Pause lasts.
	For time.Duration

	// Pin is the limit that Pin sets, and for how long.
	Pin drip.Pin

	// Queue is the work queue of Requeue. Letters are the IDs of the dead letters to put back. Without Letters, Requeue
	// puts back the dead letters that were given up for Reason. With an empty Reason, too, it puts back all of them.
	Queue   string
	Letters []string
	Reason  string
}

// String returns the action in words: `pause "shop-1" for 10m`.
func (a Action) String() string {
	switch {
	case a.Do == Requeue && len(a.Letters) > 0:
		return fmt.Sprintf("put back %s of %q", entities.Count(len(a.Letters), "dead letter"), a.Queue)
	case a.Do == Requeue && a.Reason != "":
		return fmt.Sprintf("put back the dead letters of %q with the reason %q", a.Queue, a.Reason)
	case a.Do == Requeue:
		return fmt.Sprintf("put back all dead letters of %q", a.Queue)
	}
	which := fmt.Sprintf("%q", a.Entity)
	switch {
	case a.Entity != "":
	case a.Prefix != "":
		which = fmt.Sprintf("all entities whose names begin with %q", a.Prefix)
	default:
		which = "all entities"
	}
	switch a.Do {
	case Pause:
		return fmt.Sprintf("pause %s for %s", which, entities.Short(a.For))
	case Pin:
		return fmt.Sprintf("pin %s to %s", which, limitText(a.Pin))
	}
	return fmt.Sprintf("%s %s", a.Do, which)
}

// limitText is a pin and how long it holds.
func limitText(p drip.Pin) string {
	if p.For == 0 {
		return entities.Limit(p) + ", until it is unpinned"
	}
	return entities.Limit(p) + ", for " + entities.Short(p.For)
}

// LogValue implements slog.LogValuer.
func (a Action) LogValue() slog.Value {
	attrs := []slog.Attr{slog.String("do", string(a.Do))}
	if a.Do == Requeue {
		attrs = append(attrs, slog.String("queue", a.Queue))
		if len(a.Letters) > 0 {
			attrs = append(attrs, slog.Any("letters", a.Letters))
		} else {
			attrs = append(attrs, slog.String("reason", a.Reason))
		}
		return slog.GroupValue(attrs...)
	}
	if a.Entity != "" {
		attrs = append(attrs, slog.String("entity", a.Entity))
	} else {
		attrs = append(attrs, slog.String("prefix", a.Prefix))
	}
	switch a.Do {
	case Pause:
		attrs = append(attrs, slog.String("for", a.For.String()))
	case Pin:
		attrs = append(attrs, slog.String("limit", limitText(a.Pin)))
	}
	return slog.GroupValue(attrs...)
}

// values are the action as the query of an address. The query has the names, because a field of a form changes some
// characters, such as the ends of lines.
func (a Action) values() url.Values {
	v := url.Values{"do": {string(a.Do)}}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	set("entity", a.Entity)
	set("queue", a.Queue)
	set("reason", a.Reason)
	switch a.Do {
	case Pause:
		v.Set("for", a.For.String())
	case Pin:
		if p := a.Pin; p.Size > 0 {
			v.Set("limit", fmt.Sprintf("%d/%s", p.RefreshRate, p.RefreshInterval))
			if p.Size != p.RefreshRate {
				v.Set("burst", strconv.Itoa(p.Size))
			}
		}
		if a.Pin.Concurrency > 0 {
			v.Set("concurrency", strconv.Itoa(a.Pin.Concurrency))
		}
		if a.Pin.For > 0 {
			v.Set("for", a.Pin.For.String())
		}
		if a.Pin.Raise {
			v.Set("raise", "yes")
		}
	}
	if len(a.Letters) > 0 {
		v["letter"] = a.Letters
	}
	switch { // so that a form without a field never means everything
	case a.Do == Requeue && len(a.Letters) == 0 && a.Reason == "", a.Do != Requeue && a.Entity == "" && a.Prefix == "":
		v.Set("all", "yes")
	case a.Do != Requeue:
		set("prefix", a.Prefix)
	}
	return v
}

// actionOf reads the query of an address and the fields of a form.
func actionOf(v url.Values, names func() []string) (Action, error) {
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if name != "letter" && len(v[name]) > 1 { // else an action would do half of its request
			return Action{}, badRequest("%s is there twice", entities.Visible(name))
		}
	}
	a := Action{Do: Do(v.Get("do"))}
	all := v.Get("all") == "yes"
	switch a.Do {
	case Pause, Resume, Reset, Pin, Unpin:
		a.Entity, a.Prefix = v.Get("entity"), v.Get("prefix")
		if n := given(a.Entity != "", a.Prefix != "", all); n != 1 {
			return a, badRequest("which entities? One, those whose names begin with a prefix, or all")
		}
	case Requeue:
		a.Queue, a.Reason, a.Letters = v.Get("queue"), v.Get("reason"), v["letter"]
		if !slices.Contains(names(), a.Queue) {
			return a, failure{http.StatusNotFound, fmt.Errorf("the page shows no queue %q", a.Queue)}
		}
		if n := given(len(a.Letters) > 0, a.Reason != "", all); n != 1 {
			return a, badRequest("which dead letters? Some of the list, those with one reason, or all")
		}
	default:
		return a, badRequest("nothing is called %q here", a.Do)
	}
	if a.Do == Pause {
		d, err := time.ParseDuration(strings.TrimSpace(v.Get("for")))
		if err != nil || d <= 0 {
			return a, badRequest("for how long? A duration above 0, such as 30s, 10m or 1h30m")
		}
		a.For = min(d, entities.Longest)
	}
	if a.Do == Pin {
		var err error
		if a.Pin, err = pinOf(v); err != nil {
			return a, badRequest("%w", err)
		}
	}
	return a, nil
}

// pinOf reads the fields of a pin. An empty field leaves its value unset.
func pinOf(v url.Values) (drip.Pin, error) {
	var burst, concurrency int
	var d time.Duration
	var err error
	for name, n := range map[string]*int{"burst": &burst, "concurrency": &concurrency} {
		if text := strings.TrimSpace(v.Get(name)); text != "" {
			if *n, err = strconv.Atoi(text); err != nil {
				return drip.Pin{}, fmt.Errorf("%s is no number", name)
			}
		}
	}
	if text := strings.TrimSpace(v.Get("for")); text != "" {
		if d, err = time.ParseDuration(text); err != nil || d <= 0 {
			return drip.Pin{}, errors.New("for how long? A duration above 0, such as 30s, 10m or 1h30m, or none: until it is unpinned")
		}
	}
	return entities.ParsePin(v.Get("limit"), burst, concurrency, d, v.Get("raise") == "yes")
}

func given(set ...bool) (n int) {
	for _, s := range set {
		if s {
			n++
		}
	}
	return n
}

func (p *Page) queueNames() []string {
	if p.o.Broker == nil {
		return nil
	}
	return p.o.Broker.Queues()
}

// back is where a request goes after its action.
func (a Action) back() string {
	switch {
	case a.Do == Requeue:
		return "dead?" + url.Values{"queue": {a.Queue}}.Encode()
	case a.Entity != "":
		return "entity?" + url.Values{"name": {a.Entity}}.Encode()
	}
	if a.Do == Pin || a.Do == Unpin {
		return "./?by=pinned"
	}
	return "./?by=closed"
}

var errReadOnly = failure{http.StatusForbidden, errors.New("this page only shows: nothing may be changed here")}

type sureBody struct {
	What     string
	Note     string
	Do, Back string // addresses
}

// sure asks whether an action is meant.
func (p *Page) sure(w http.ResponseWriter, r *http.Request) error {
	if p.o.Allow == nil {
		return errReadOnly
	}
	a, err := actionOf(r.URL.Query(), p.queueNames)
	if err != nil {
		return err
	}
	b := sureBody{What: a.String(), Do: "do?" + a.values().Encode(), Back: a.back()}
	if a.Do != Requeue && a.Entity == "" {
		b.Note = "These are the entities that are stored now; one that comes later is not among them."
		if p.index != nil {
			p.index.look(r.Context())
			count := "How many that is, is not known yet: the list is still being read."
			if of, all, complete := p.index.count(a.Prefix); complete {
				count = fmt.Sprintf("That is %s of %d.", entities.Count(of, "entity"), all)
			}
			b.Note = count + " " + b.Note
		}
	}
	if a.Do == Reset {
		b.Note += " All tokens are back, all tickets are forgotten, and a pause ends. If an operation is still under way there may be too many at once. Past operations stay counted."
	}
	return p.render(w, http.StatusOK, "sure", frame{Title: "Are you sure?"}, b)
}

// do does what a request asks for, if it may.
func (p *Page) do(w http.ResponseWriter, r *http.Request) error {
	if p.o.Allow == nil {
		return errReadOnly
	}
	if err := p.site.Check(r); err != nil {
		p.o.Log.WarnContext(r.Context(), "limits page: refused a request from another site", "origin", r.Header.Get("Origin"), "remote", r.RemoteAddr)
		return failure{http.StatusForbidden, errors.New("this request comes from another site")}
	}
	if err := r.ParseForm(); err != nil {
		return badRequest("the form cannot be read")
	}
	a, err := actionOf(r.Form, p.queueNames)
	if err != nil {
		return err
	}
	who, allowed := p.o.Allow(r, a)
	log := p.o.Log.With("action", a, "who", who, "remote", r.RemoteAddr)
	if !allowed {
		log.WarnContext(r.Context(), "limits page: refused")
		return failure{http.StatusForbidden, errors.New("you may not " + a.String())}
	}
	// An action runs to its end, even if nobody waits for it any more.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), doTimeout)
	defer cancel()
	said, changed, err := p.act(ctx, a)
	log = log.With("changed", changed)
	if err != nil {
		log.ErrorContext(ctx, "limits page: failed", "error", tell(err))
		return fmt.Errorf("%s: %w", a, err)
	}
	log.InfoContext(ctx, "limits page: done")
	// The target is relative to the address that the browser knows. http.Redirect does not know it if a prefix was
	// stripped.
	w.Header().Set("Location", a.back()+"&did="+p.notices.put(said))
	w.WriteHeader(http.StatusSeeOther)
	return nil
}

// act does an action. It returns the outcome in words, and how many entities or messages it has changed.
func (p *Page) act(ctx context.Context, a Action) (said string, changed int, err error) {
	if a.Do == Requeue {
		picked := map[string]int{} // several that are alike have one ID
		for _, id := range a.Letters {
			picked[id]++
		}
		n, err := p.o.Broker.Requeue(ctx, a.Queue, func(l *queues.Letter) bool {
			switch {
			case len(a.Letters) > 0:
				was := picked[l.ID] > 0
				if was {
					picked[l.ID]--
				}
				return was
			case a.Reason != "":
				return l.Reason == a.Reason
			}
			return true
		})
		return entities.Count(n, "message") + " put back.", n, err
	}
	change := func(ctx context.Context, e *entities.Subject) (bool, error) {
		switch a.Do {
		case Pause:
			return e.Pause(ctx, a.For)
		case Resume:
			return e.Resume(ctx)
		case Pin:
			return e.Pin(ctx, a.Pin)
		case Unpin:
			return e.Unpin(ctx)
		}
		return e.Reset(ctx)
	}
	if a.Entity != "" {
		e, err := entities.Open(ctx, p.o.Storage, a.Entity)
		if err != nil {
			return "", 0, err
		}
		done, err := change(ctx, e)
		switch {
		case err != nil:
			return "", 0, err
		case !done:
			return "Nothing was changed: " + map[Do]string{
				Pause: "it is closed for longer already.", Resume: "it was not closed.", Reset: "nothing is stored of it.", Unpin: "nothing was pinned.",
			}[a.Do], 0, nil
		}
		open := "Open again."
		if e.Postponed() {
			open += " Messages that were postponed until " + entities.Clock(e.ClosedUntil, e.Time, p.zone) + " come back then."
		}
		return map[Do]string{
			Pause: "Paused for " + entities.Short(a.For) + ".", Resume: open, Reset: "All tokens and tickets are taken back.",
			Pin: "Pinned to " + limitText(a.Pin) + ".", Unpin: "The limits of the consumers alone hold again.",
		}[a.Do], 1, nil
	}
	names, err := entities.Names(ctx, p.o.Storage, a.Prefix)
	if err != nil {
		return "", 0, err
	}
	changed, failed, err := entities.ChangeAll(ctx, p.o.Storage, names, doTimeout, change)
	if err != nil {
		return "", changed, fmt.Errorf("%d of %s failed, the first: %w", failed, entities.Count(len(names), "entity"), err)
	}
	return fmt.Sprintf("%s of %d changed: %s.", entities.Count(changed, "entity"), len(names), a), changed, nil
}

// notices are the outcomes of actions, for the page that follows. The address names one by a random text, so that
// nobody else can make the page say something.
type notices struct {
	mu   sync.Mutex
	said map[string]string
	keys []string // the oldest first
}

const mostNotices = 100

func (n *notices) put(text string) (key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said == nil {
		n.said = map[string]string{}
	}
	key = rand.Text()
	n.said[key] = text
	if n.keys = append(n.keys, key); len(n.keys) > mostNotices {
		delete(n.said, n.keys[0])
		n.keys = n.keys[1:]
	}
	return key
}

// of is the text of a key, empty if there is none.
func (n *notices) of(key string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.said[key]
}
