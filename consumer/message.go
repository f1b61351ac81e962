package consumer

import (
	"math"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
)

// What travels with a postponed message. All of it is of constant size, however often it is postponed.
const (
	headerPrefix        = "x-drip-"
	headerDue           = headerPrefix + "due"           // ms since 1970
	headerFirst         = headerPrefix + "first"         // when it was first postponed, ms since 1970
	headerPostponements = headerPrefix + "postponements" // trips because of the limit
	headerAttempts      = headerPrefix + "attempts"      // times the handler has failed
	headerTicket        = headerPrefix + "ticket"        // the booked slot, of Admit
	headerExchange      = headerPrefix + "exchange"      // as the message was first published
	headerRoutingKey    = headerPrefix + "routing-key"
	headerExpiration    = headerPrefix + "expiration" // the message's own: ours is the time in the delay queue
	headerUserID        = headerPrefix + "user-id"    // the broker refuses the property from another user's connection
	headerKept          = headerPrefix + "kept"       // a table of the message's headers that the broker would act on
	headerTag           = headerPrefix + "tag"        // tells which publishing a return is about

	// Only on dead letters.
	headerReason = headerPrefix + "reason"
	headerError  = headerPrefix + "error"
	headerAge    = headerPrefix + "age-ms"
)

// message is a delivery as its publisher sent it, and what became of it since.
type message struct {
	amqp.Delivery // without our headers, with the exchange, routing key, … of the first publishing
	travel
	visit *visit // its record, nil when nobody wants one
}

// travel is what our headers say.
type travel struct {
	due, first              int64 // ms since 1970
	postponements, attempts int64
	ticket                  drip.Ticket
}

// open reads a delivery. Headers come from whoever may publish to the queue: what is broken or absurd counts as
// absent, and never stops a message. With trusted false all of ours do: a message that reaches the work queue
// with them is somebody's copy.
func open(d amqp.Delivery, now time.Time, trusted bool) message {
	ms := now.UnixMilli()
	m := message{Delivery: d, travel: travel{due: ms, first: ms}}
	h := d.Headers
	if _, back := h[headerDue]; !back {
		trusted = false // it has made no trip of ours: what the broker noted is the message's
	}
	if trusted {
		if v, ok := h[headerDue].(int64); ok && v < ms+longestDelay.Milliseconds() {
			m.due = max(v, 0)
		}
		if v, ok := h[headerFirst].(int64); ok && v > 0 && v < ms {
			m.first = v
		}
		m.postponements = count(h[headerPostponements])
		m.attempts = count(h[headerAttempts])
		m.ticket = ticketOf(h)
		if v, ok := h[headerExchange].(string); ok {
			m.Exchange = v
		}
		if v, ok := h[headerRoutingKey].(string); ok {
			m.RoutingKey = v
		}
		// The broker takes the expiration off what it dead-letters.
		if v, ok := h[headerExpiration].(string); ok {
			m.Expiration = v
		}
		if v, ok := h[headerUserID].(string); ok {
			m.UserId = v
		}
	}
	m.Headers = amqp.Table{}
	for name, v := range h {
		// What the broker noted about the trip through the delay queue is not the message's.
		if !strings.HasPrefix(name, headerPrefix) && !(trusted && brokerActsOn(name)) {
			m.Headers[name] = v
		}
	}
	if kept, ok := h[headerKept].(amqp.Table); ok && trusted {
		for name, v := range kept {
			if brokerActsOn(name) {
				m.Headers[name] = v
			}
		}
	}
	if len(m.Headers) == 0 {
		m.Headers = nil // as the client gives a message without headers
	}
	return m
}

// ticketOf is the ticket in the headers; a broken one is none.
func ticketOf(h amqp.Table) drip.Ticket {
	v, _ := h[headerTicket].(string)
	t, _ := drip.ParseTicket(v)
	return t
}

// operation is what the handler may know.
func (m *message) operation(entity string) *Operation {
	op := &Operation{Entity: entity, Attempts: int(m.attempts), Postponements: int(m.postponements), Age: m.age()}
	op.cost.Store(-1)
	return op
}

// postponeBy sets when the message is due. A delay below zero counts as zero.
func (m *message) postponeBy(d time.Duration) {
	roundUp := time.Millisecond - 1 // never early
	m.due = time.Now().Add(min(max(d, 0), longestDelay) + roundUp).UnixMilli()
}

// age is the time since the message was first postponed.
func (m *message) age() time.Duration {
	return time.Duration(time.Now().UnixMilli()-m.first) * time.Millisecond
}

// shorten cuts s to at most n bytes of whole characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

func count(v any) int64 {
	n, ok := v.(int64)
	if !ok || n < 0 || n > math.MaxInt32 {
		return 0
	}
	return n
}

// brokerActsOn tells the headers that a copy must not show the broker. It would send more copies to the queues
// in CC and BCC. And it notes dead-lettering in x-death and its kin: with them a copy grows at each trip, and older
// brokers drop it silently when it passes the same queue again.
func brokerActsOn(name string) bool {
	switch name {
	case "CC", "BCC", "x-death":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// copy is the message to publish in place of the delivery: the same, with what we must know when it is back.
func (m *message) copy() amqp.Publishing {
	h, kept := make(amqp.Table, len(m.Headers)+11), amqp.Table{}
	for name, v := range m.Headers {
		switch {
		case brokerActsOn(name):
			kept[name] = v
		case name == "x-delivery-count" || name == "x-acquired-count":
			// A quorum queue's note about this delivery. The copy is not that one.
		default:
			h[name] = v
		}
	}
	if len(kept) > 0 {
		h[headerKept] = kept
	}
	// Each header costs the broker some microseconds: what open takes for granted is left out.
	h[headerDue], h[headerFirst] = m.due, m.first
	h[headerRoutingKey] = m.RoutingKey
	if m.postponements > 0 {
		h[headerPostponements] = m.postponements
	}
	if m.attempts > 0 {
		h[headerAttempts] = m.attempts
	}
	if m.Exchange != "" {
		h[headerExchange] = m.Exchange
	}
	if !m.ticket.IsZero() {
		h[headerTicket] = m.ticket.String()
	}
	if m.Expiration != "" {
		h[headerExpiration] = m.Expiration
	}
	if m.UserId != "" {
		h[headerUserID] = m.UserId
	}
	return amqp.Publishing{
		Headers:         h,
		ContentType:     m.ContentType,
		ContentEncoding: m.ContentEncoding,
		DeliveryMode:    m.DeliveryMode,
		Priority:        m.Priority,
		CorrelationId:   m.CorrelationId,
		ReplyTo:         m.ReplyTo,
		MessageId:       m.MessageId,
		Timestamp:       m.Timestamp,
		Type:            m.Type,
		AppId:           m.AppId,
		Body:            m.Body,
	}
}

// size is about how many bytes the header frame of a publishing takes, from above.
func size(msg *amqp.Publishing) int {
	n := 64
	for _, s := range []string{msg.ContentType, msg.ContentEncoding, msg.CorrelationId, msg.ReplyTo, msg.Expiration, msg.MessageId, msg.Type, msg.UserId, msg.AppId} {
		n += 1 + len(s)
	}
	return n + fieldSize(msg.Headers)
}

func fieldSize(v any) int {
	n := 5 // the type, and the length of what has one
	switch v := v.(type) {
	case string:
		n += len(v)
	case []byte:
		n += len(v)
	case []any:
		for _, v := range v {
			n += fieldSize(v)
		}
	case amqp.Table:
		for name, v := range v {
			n += 1 + len(name) + fieldSize(v)
		}
	default:
		n += 8
	}
	return n
}
