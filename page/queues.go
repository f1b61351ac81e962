package page

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/internal/panics"
	"github.com/drip-go/drip/queues"
)

type queueBody struct {
	queues.State
	Name   string
	Dead   string // the address of its dead letters; empty if it has no queue of them
	Next   moment
	Delays []delayBody
	Err    string
}

type delayBody struct {
	Name     string
	Messages int
	Leaves   moment
}

func (p *Page) queues(w http.ResponseWriter, r *http.Request) error {
	names := p.o.Broker.Queues()
	bodies := make([]queueBody, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() {
			var s queues.State
			err := panics.Caught(func() (err error) {
				s, err = p.o.Broker.Look(r.Context(), name)
				return err
			})
			b := queueBody{State: s, Name: entities.Visible(name)}
			if err != nil {
				b.Err = tell(err)
			}
			if s.Dead != nil {
				b.Dead = "dead?" + url.Values{"queue": {name}}.Encode()
			}
			for _, d := range s.Delays {
				b.Delays = append(b.Delays, delayBody{entities.Visible(d.Name), d.Messages, p.at(d.Expires, s.Time)})
			}
			if len(b.Delays) > 0 {
				b.Next = b.Delays[0].Leaves
			}
			bodies[i] = b
		})
	}
	wg.Wait()
	return p.render(w, http.StatusOK, "queues", frame{Title: "Queues", Here: "queues"}, bodies)
}

const mostLetters = 100

type deadBody struct {
	Name    string
	Do      string // the address of the form
	Sure    string // the address of the question about all
	Letters []letterBody
	More    bool
	Reasons []reasonBody
}

type letterBody struct {
	queues.Letter
	Title string // by which a reader tells it from the others
	Text  string // of its body
	Age   string
}

type reasonBody struct {
	Reason string
	Count  int
	Sure   string // the address of the question; empty without a reason
}

// dead is the first dead letters of a work queue.
func (p *Page) dead(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	queue := q.Get("queue")
	if !slices.Contains(p.o.Broker.Queues(), queue) {
		return failure{http.StatusNotFound, fmt.Errorf("the page shows no queue %q", queue)}
	}
	sure := func(a Action) string { return "sure?" + a.values().Encode() }
	b := deadBody{
		Name: entities.Visible(queue), Do: "do?" + url.Values{"queue": {queue}}.Encode(), Sure: sure(Action{Do: Requeue, Queue: queue}),
	}
	letters, more, err := p.o.Broker.Dead(r.Context(), queue, mostLetters)
	if err != nil {
		return err
	}
	b.More = more
	reasons := map[string]int{}
	for _, l := range letters {
		reasons[l.Reason]++
		title := l.ID
		if l.MessageID != "" {
			title = entities.Visible(l.MessageID)
		}
		text := entities.Visible(string(l.Body))
		if l.Size > len(l.Body) {
			text += fmt.Sprintf("… (%d bytes)", l.Size)
		}
		b.Letters = append(b.Letters, letterBody{l, title, text, entities.Short(l.Age.Truncate(time.Millisecond))})
	}
	for reason, n := range reasons {
		which := reasonBody{Reason: reason, Count: n}
		if reason != "" {
			which.Sure = sure(Action{Do: Requeue, Queue: queue, Reason: reason})
		}
		b.Reasons = append(b.Reasons, which)
	}
	slices.SortFunc(b.Reasons, func(a, b reasonBody) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Reason, b.Reason))
	})
	return p.render(w, http.StatusOK, "dead", frame{Title: "Dead letters of " + b.Name, Here: "queues", Notice: p.notices.of(q.Get("did"))}, b)
}
