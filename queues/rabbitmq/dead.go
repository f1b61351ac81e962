package rabbitmq

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/queues"
)

// ErrUnroutable is the error of Requeue for letters that the broker could route nowhere. They are still dead letters.
var ErrUnroutable = errors.New("the queue they belong in takes them no more")

// mostLooks is how often a quorum queue may deliver a letter that is only looked at, by Dead or by a Requeue that does not pick
// it. The queue counts deliveries, and RabbitMQ 4 drops a message that it has delivered 20 times, unless the queue has another
// limit. So after mostLooks looks a copy replaces the letter, at the end of the queue, and its count begins anew.
const mostLooks = 5

// together is how many letters wait for confirmation at once, and are acknowledged without a pause. A channel of RabbitMQ sends a quorum
// queue 32 acknowledgements ahead of its answers, and drops the others if it is closed then: their letters would be in both places.
const together = 16

// Dead implements [queues.Broker]. The broker marks the letters that it has read as redelivered. A crash may leave a
// letter twice, as wherever messages move.
func (b *Broker) Dead(ctx context.Context, queue string, most int) (letters []queues.Letter, more bool, err error) {
	_, more, err = b.letters(ctx, queue, func(count int) int { return min(count, most) }, func(l *queues.Letter) bool {
		letters = append(letters, *l)
		return false
	})
	if err != nil {
		return nil, false, failed(ctx, "read the dead letters of", queue, err)
	}
	return letters, more, nil
}

// Requeue implements [queues.Broker]. The letters go to the due queue, as they are, and begin anew. They go to the work
// queue if no Consumer has declared the due queue.
func (b *Broker) Requeue(ctx context.Context, queue string, pick func(*queues.Letter) bool) (n int, err error) {
	n, _, err = b.letters(ctx, queue, func(count int) int { return count }, pick)
	if err != nil {
		err = failed(ctx, "put back dead letters of", queue, err)
	}
	return n, err
}

// letters takes dead letters in hand, as many as most returns for their number. It publishes the letters for which move
// returns true to the queue where they are handled, and removes them once the broker has confirmed them. It gives the other
// letters back, or a copy: see mostLooks. It returns how many it has removed, and whether there are more than most.
//
// It has a connection of its own: if that breaks, the broker gives back the letters in hand.
func (b *Broker) letters(ctx context.Context, queue string, most func(count int) int, move func(*queues.Letter) bool) (moved int, more bool, err error) {
	conn, err := b.dial(ctx)
	if err != nil {
		return moved, false, err
	}
	// A broken connection counts as a delivery of all letters in hand, and never comes to their copies. So there is a moment to
	// give them back.
	late, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, end) })()
	defer guard(late, conn)()
	defer conn.CloseDeadline(time.Now().Add(time.Minute))
	names := []string{deadQueue(queue), dueQueue(queue), queue}
	for _, name := range names {
		b.absent.Delete(name) // it may exist now, and its letters must not be overlooked
	}
	found, err := b.lookAt(conn, names)
	switch {
	case err != nil:
		return moved, false, err
	case found[0] == nil && found[2] == nil:
		return 0, false, ErrNoQueue
	case found[0] == nil: // nothing was ever given up
		return 0, false, nil
	}
	work := queue
	if found[1] != nil {
		work = dueQueue(queue)
	}
	ch, err := conn.Channel()
	if err != nil {
		return moved, false, err
	}
	p := &publishing{conn: conn, dead: names[0]}
	if err := p.open(); err != nil {
		return moved, false, err
	}
	defer func() { moved = p.moved }()
	n := most(found[0].Messages)
	var keep uint64    // the last tag that is given back
	var tooLarge error // of a letter that was to move
	for range n {
		if ctx.Err() != nil {
			break
		}
		d, ok, err := ch.Get(deadQueue(queue), false)
		if err != nil {
			return moved, false, err
		}
		if !ok {
			break
		}
		to, l := deadQueue(queue), letterOf(&d)
		moves := move(&l)
		switch {
		case moves:
			to = work
		case number(d.Headers["x-delivery-count"]) < mostLooks:
			keep = d.DeliveryTag
			continue
		}
		err = p.publish(late, to, moves, &d)
		if isTooLarge(err) {
			keep = d.DeliveryTag
			if moves {
				tooLarge = err
			}
			continue
		}
		if err != nil {
			return moved, false, cmp.Or(p.settle(late), err)
		}
	}
	if err := p.settle(late); err != nil {
		return moved, false, err
	}
	if keep > 0 {
		err = ch.Nack(keep, true, true)
	}
	if err == nil {
		err = ch.Close() // the broker answers when it has the other letters back
	}
	if err == nil {
		err = cmp.Or(ctx.Err(), tooLarge)
	}
	return p.moved, found[0].Messages > n, err
}

// grace is how long a call whose context ends may take to give back the letters in hand.
const grace = 2 * time.Second

// publishing has the letters that wait for their confirmation.
type publishing struct {
	conn     *amqp.Connection
	dead     string // the queue of the letters
	ch       *amqp.Channel
	waiting  []waiting          // at most together
	returns  <-chan amqp.Return // with room for as many
	closed   <-chan *amqp.Error // gets why the broker has closed the channel
	returned map[string]int     // how many letters with this ID
	moved    int                // letters that were confirmed and removed
	largest  int                // bytes of the largest body that the broker has taken
	tooLarge error              // of the last letter that was too large
	refused  int                // the bytes of that letter's body
}

type waiting struct {
	d         *amqp.Delivery
	moves     bool // else a copy replaces it
	confirmed *amqp.DeferredConfirmation
}

// open opens the channel, also in place of one that the broker has closed.
func (p *publishing) open() (err error) {
	if p.ch, err = p.conn.Channel(); err != nil {
		return err
	}
	p.returns = p.ch.NotifyReturn(make(chan amqp.Return, together))
	p.closed = p.ch.NotifyClose(make(chan *amqp.Error, 1))
	p.returned = map[string]int{}
	return p.ch.Confirm(false)
}

// isTooLarge reports whether the broker has closed a channel because of a message above its max_message_size.
func isTooLarge(err error) bool {
	e := (*amqp.Error)(nil)
	return errors.As(err, &e) && e.Code == amqp.PreconditionFailed && strings.Contains(e.Reason, "larger than configured max size")
}

// publish publishes a letter, and waits for confirmations when as many wait as may. A letter that is larger than all before goes alone: if
// the broker closes the channel, nobody knows which of the others it has taken. publish returns an error that isTooLarge only for this
// letter, and can go on then.
func (p *publishing) publish(ctx context.Context, to string, moves bool, d *amqp.Delivery) error {
	size := len(d.Body)
	if p.tooLarge != nil && size >= p.refused {
		return p.tooLarge
	}
	alone := size > p.largest
	if alone {
		if err := p.settle(ctx); err != nil {
			return err
		}
	}
	if err := p.send(ctx, to, moves, d); err != nil {
		return err
	}
	if !alone && len(p.waiting) < together {
		return nil
	}
	err := p.settle(ctx)
	switch {
	case isTooLarge(err):
		p.tooLarge, p.refused = err, size
		return cmp.Or(p.open(), err)
	case err == nil:
		p.largest = max(p.largest, size)
	}
	return err
}

func (p *publishing) send(ctx context.Context, to string, moves bool, d *amqp.Delivery) error {
	h := amqp.Table{}
	for name, v := range d.Headers {
		if !noted(name) {
			h[name] = v
		}
	}
	// Mandatory: the broker returns a message to a queue that is gone, and then confirms it.
	c, err := p.ch.PublishWithDeferredConfirmWithContext(ctx, "", to, true, false, amqp.Publishing{
		Headers: h, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
		CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo, Expiration: d.Expiration, MessageId: d.MessageId, Timestamp: d.Timestamp,
		Type: d.Type, AppId: d.AppId, Body: d.Body,
	})
	if err == nil {
		p.waiting = append(p.waiting, waiting{d, moves, c})
	}
	return err
}

// settle waits for the confirmations and removes the confirmed letters. A copy replaces a letter that was not taken and has used up
// most of its deliveries.
func (p *publishing) settle(ctx context.Context) error {
	var failed error
	var again []*amqp.Delivery
	for _, w := range p.waiting {
		ok, err := w.confirmed.WaitContext(ctx)
		switch {
		case err != nil:
			return err
		case ok && !p.isReturned(w.d):
			if err := w.d.Ack(false); err != nil {
				return err
			}
			if w.moves {
				p.moved++
			}
			continue
		case ok:
			failed = ErrUnroutable
		default:
			failed = errors.New("the broker refuses them")
		}
		if w.moves && number(w.d.Headers["x-delivery-count"]) >= mostLooks {
			again = append(again, w.d)
		}
	}
	p.waiting = p.waiting[:0]
	if p.ch.IsClosed() {
		if cause := <-p.closed; cause != nil {
			failed = cause
		}
		return failed
	}
	for _, d := range again {
		if err := p.send(ctx, p.dead, false, d); err != nil {
			return err
		}
	}
	if len(again) > 0 {
		if err := p.settle(ctx); err != nil {
			return err
		}
	}
	return failed
}

// isReturned reports whether the broker returned a letter that it confirmed: the client reads the return before the
// confirmation.
func (p *publishing) isReturned(d *amqp.Delivery) bool {
	for len(p.returns) > 0 {
		if r, ok := <-p.returns; ok {
			p.returned[idOf(r.MessageId, r.Headers, r.Body)]++
		}
	}
	id := idOf(d.MessageId, d.Headers, d.Body)
	if p.returned[id] == 0 {
		return false
	}
	p.returned[id]--
	return true
}

// noted reports whether a copy of a letter goes without this header: a quorum queue adds it to a delivery, or the broker would send the
// copy to the queues that it names, too, which have the message already.
func noted(name string) bool {
	return name == "x-delivery-count" || name == "x-acquired-count" || name == "CC" || name == "BCC"
}

// idOf returns the identity of a letter's content, without the headers that a copy does not have.
func idOf(messageID string, headers amqp.Table, body []byte) string {
	own := amqp.Table{}
	for name, v := range headers {
		if !noted(name) {
			own[name] = inUTC(v)
		}
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %#v ", messageID, own) // fmt sorts the keys of maps, and %#v quotes texts
	h.Write(body)
	return fmt.Sprintf("%.8x", h.Sum(nil))
}

// inUTC returns a header's value with its times in UTC: the client has them in the time zone of its process.
func inUTC(v any) any {
	switch v := v.(type) {
	case time.Time:
		return v.UTC()
	case []any:
		all := slices.Clone(v)
		for i := range all {
			all[i] = inUTC(all[i])
		}
		return all
	case amqp.Table:
		all := maps.Clone(v)
		for name := range all {
			all[name] = inUTC(all[name])
		}
		return all
	}
	return v
}

// longestAge is in ms. Any user who may publish to the queue may write another age.
const longestAge = int64(math.MaxInt64 / time.Millisecond)

func letterOf(d *amqp.Delivery) queues.Letter {
	text := func(name string) string {
		s, _ := d.Headers[name].(string)
		return s
	}
	return queues.Letter{
		ID: idOf(d.MessageId, d.Headers, d.Body), MessageID: d.MessageId,
		Reason: cmp.Or(text("x-drip-reason"), text("x-first-death-reason")), Error: text("x-drip-error"),
		Attempts: int(number(d.Headers["x-drip-attempts"])), Postponements: int(number(d.Headers["x-drip-postponements"])),
		Age:      time.Duration(min(max(number(d.Headers["x-drip-age-ms"]), 0), longestAge)) * time.Millisecond,
		Exchange: text("x-drip-exchange"), RoutingKey: text("x-drip-routing-key"),
		Size: len(d.Body), Body: bytes.Clone(d.Body[:min(len(d.Body), queues.MostBody)]),
	}
}

// number returns an integer of any AMQP type, 0 for any other value.
func number(v any) int64 {
	switch n := reflect.ValueOf(v); {
	case n.CanInt():
		return n.Int()
	case n.CanUint():
		return int64(n.Uint())
	}
	return 0
}
