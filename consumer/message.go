package consumer

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/worker"
)

// Headers of a postponed message. Their size is constant except for the digits of counters, however often the message is
// postponed.
const (
	// One header has nearly everything, because each header costs the broker some microseconds: see message.note.
	headerNote = "x-drip"

	headerPrefix = "x-drip-"
	headerKept   = headerPrefix + "kept" // a table of the message's headers that the broker or drip would act on

	// On dead letters only.
	headerReason        = headerPrefix + "reason"
	headerError         = headerPrefix + "error"
	headerAge           = headerPrefix + "age-ms"
	headerPostponements = headerPrefix + "postponements" // trips because of the limit
	headerAttempts      = headerPrefix + "attempts"      // times the handler has failed
	headerExchange      = headerPrefix + "exchange"      // as the message was first published
	headerRoutingKey    = headerPrefix + "routing-key"
	headerExpiration    = headerPrefix + "expiration" // the message's own, which would expire the dead letter
	headerUserID        = headerPrefix + "user-id"    // the broker refuses the property from another user's connection
)

// message is a delivery as its publisher sent it, with its Note and its state.
type message struct {
	amqp.Delivery // without drip's headers, with the exchange, routing key, … of the first publishing
	worker.Note
	entity string          // once it is known
	given  string          // the reason for which it was given up, "" if it was not
	cause  string          // the text of its error then
	stored bool            // a copy has the ticket
	record *deliveryRecord // nil without telemetry
}

// open reads a delivery. Headers come from any user who may publish to the queue: a broken or absurd header counts as absent,
// and never stops a message. All of drip's headers count as absent in a message that came through an exchange with a name,
// and with trusted false: a message that reaches the work queue with them is a copy made by somebody. A dead letter that
// was moved back is the exception: open reads it as it was first published, if it came through the default exchange, as
// messages from delay queues do. A user who may publish to that exchange may publish to every queue.
func open(d amqp.Delivery, now time.Time, trusted bool) message {
	now = time.UnixMilli(now.UnixMilli())
	fresh := worker.Note{Due: now, First: now}
	m := message{Delivery: d, Note: fresh}
	h := d.Headers
	note, back := h[headerNote].(string)
	if !back || d.Exchange != "" {
		trusted = false // it has made no trip through drip's queues: the broker's headers are the message's own
	}
	_, dead := h[headerReason].(string)
	limited := back && deliveredTooOften(h)
	dead = back && dead || limited // a dead letter that somebody has moved back to try it again
	if trusted || dead && d.Exchange == "" {
		m.read(note, now)
	}
	if !trusted || limited {
		m.Note, m.given, m.cause = fresh, "", ""
	}
	m.Headers = amqp.Table{}
	for name, v := range h {
		switch {
		case name == headerNote || name == headerKept || dead && ofDeadLetter(name):
		case (trusted || limited) && brokerActsOn(name) || (trusted || dead) && (name == "x-delivery-count" || name == "x-acquired-count"):
			// The broker's notes about the trip through drip's queues do not belong to the message.
		default:
			m.Headers[name] = v
		}
	}
	if kept, ok := h[headerKept].(amqp.Table); ok && (trusted || dead) {
		for name, v := range kept {
			if hidden(name) {
				m.Headers[name] = v
			}
		}
	}
	if e, ok := h[headerExpiration].(string); ok && dead && m.Expiration == "" && len(e) <= longestText {
		m.Expiration = e
	}
	if len(m.Headers) == 0 {
		m.Headers = nil // as the client gives a message without headers
	}
	return m
}

// deliveredTooOften reports whether the broker has made the message a dead letter because of the due queue's delivery limit.
// Such a dead letter is a copy, without a reason.
func deliveredTooOften(h amqp.Table) bool {
	deaths, _ := h["x-death"].([]any)
	return slices.ContainsFunc(deaths, func(v any) bool {
		death, _ := v.(amqp.Table)
		queue, _ := death["queue"].(string)
		return death["reason"] == "delivery_limit" && strings.HasSuffix(queue, ".drip.due")
	})
}

// ours reports whether a name is one of drip's headers. A publisher may use them, too, except headerNote and headerKept.
func ours(name string) bool { return name == headerNote || strings.HasPrefix(name, headerPrefix) }

// hidden reports whether a copy has this header of the message in headerKept.
func hidden(name string) bool { return brokerActsOn(name) || ours(name) }

func ofDeadLetter(name string) bool {
	return slices.Contains([]string{
		headerReason, headerError, headerAge, headerPostponements, headerAttempts, headerExchange, headerRoutingKey, headerExpiration, headerUserID,
	}, name)
}

// note returns the headerNote of a copy: a Note, the properties that drip's publishing replaces, and why the message was given up
// if it waits for the dead letters. They are words name=value, with the values escaped as in the query of a URL.
func (m *message) note() string {
	b := append(make([]byte, 0, 192), m.Note.String()...)
	text := func(name, v string) { b = append(append(b, name...), url.QueryEscape(v)...) }
	text(keyWord, m.RoutingKey)
	if m.Exchange != "" {
		text(" exchange=", m.Exchange)
	}
	if m.Expiration != "" {
		text(" expiration=", m.Expiration)
	}
	if m.UserId != "" {
		text(" user=", m.UserId)
	}
	if m.ReplyTo == directReply {
		text(" reply=", m.ReplyTo)
	}
	if m.DeliveryMode != amqp.Persistent {
		text(" mode=", strconv.Itoa(int(m.DeliveryMode)))
	}
	if m.given != "" {
		text(" given=", m.given)
		text(" cause=", m.cause)
	}
	return string(b)
}

// directReply is a property ReplyTo for which the broker closes the channel of a publisher that does not consume direct replies.
// It replaces that property of a message that is published over AMQP 0-9-1, but not over AMQP 1.0.
const directReply = "amq.rabbitmq.reply-to"

// keyWord begins the properties.
const keyWord = " key="

// read sets the fields that note wrote. A broken or absurd value counts as absent.
func (m *message) read(text string, now time.Time) {
	note, _, _ := strings.Cut(text, keyWord)
	m.Note = worker.ParseNote(note)
	if m.First.After(now) {
		m.First = now
	}
	if m.Due.IsZero() {
		m.Due = now
	}
	for word := range strings.FieldsSeq(text[len(note):]) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "key":
			setText(&m.RoutingKey, value)
		case "exchange":
			setText(&m.Exchange, value)
		case "expiration": // the broker removes it from a message that it dead-letters
			setText(&m.Expiration, value)
		case "user":
			setText(&m.UserId, value)
		case "reply":
			setText(&m.ReplyTo, value)
		case "mode":
			if mode, err := strconv.ParseUint(value, 10, 8); err == nil && mode < uint64(amqp.Persistent) {
				m.DeliveryMode = uint8(mode)
			}
		case "given":
			if reason, err := url.QueryUnescape(value); err == nil && slices.Contains(reasons, reason) {
				m.given = reason
			}
		case "cause":
			if cause, err := url.QueryUnescape(value); err == nil {
				m.cause = shorten(cause, longestError)
			}
		}
	}
}

// longestText is the most bytes that AMQP allows in a property. A dead letter with a longer one might fit in no frame, and then
// its message could never end.
const longestText = 255

// longestError is the most bytes of an error in a dead letter.
const longestError = 1000

func setText(to *string, from string) {
	if v, err := url.QueryUnescape(from); err == nil && len(v) <= longestText {
		*to = v
	}
}

// mark sets the number of a publishing in the headers of its message, in case the broker returns it.
func mark(h amqp.Table, number uint64) {
	note, _ := h[headerNote].(string)
	note, _, _ = strings.Cut(note, markWord) // of an earlier try
	h[headerNote] = note + markWord + strconv.FormatUint(number, 10)
}

// marked returns the number that mark added.
func marked(h amqp.Table) (number uint64, ok bool) {
	note, _ := h[headerNote].(string)
	_, digits, _ := strings.Cut(note, markWord)
	number, err := strconv.ParseUint(digits, 10, 64)
	return number, err == nil
}

const markWord = " tag="

// giveUp notes why the message is given up. The first reason counts: a message that waits for the dead letters may expire meanwhile.
func (m *message) giveUp(reason string, cause error) {
	if m.given != "" {
		return
	}
	m.given, m.cause = reason, ""
	if cause != nil {
		m.cause = shorten(cause.Error(), longestError)
	}
}

// postponeBy sets when the message is due. A delay below zero counts as zero.
func (m *message) postponeBy(d time.Duration) {
	roundUp := time.Microsecond - 1 // never early
	m.Due = time.UnixMicro(time.Now().Add(min(max(d, 0), longestDelay) + roundUp).UnixMicro())
}

// due returns the first millisecond since 1970 in which the message is due.
func (m *message) due() int64 { return m.Due.Add(time.Millisecond - 1).UnixMilli() }

// expires returns when the message's own expiration ends, in ms since 1970. It counts from the first delivery, because the
// broker does not tell how long the message was in its queue before.
func (m *message) expires() int64 {
	if ms, err := strconv.ParseInt(m.Expiration, 10, 64); err == nil && ms >= 0 && ms <= longestDelay.Milliseconds() {
		return m.First.UnixMilli() + ms
	}
	return math.MaxInt64
}

// shorten cuts s to at most n bytes of whole characters.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// brokerActsOn reports whether a copy must hide this header from the broker. The broker would send more copies to the queues
// in CC and BCC. It notes dead-lettering in x-death and similar headers: with them a copy grows at each trip, and older
// brokers drop it silently when it passes the same queue again.
func brokerActsOn(name string) bool {
	return name == "CC" || name == "BCC" || name == "x-death" || strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// copy returns the message to publish in place of the delivery: the same message, with its note.
func (m *message) copy() amqp.Publishing {
	msg := m.publishing()
	msg.Headers[headerNote] = m.note()
	return msg
}

// deadLetter returns the message to publish after giveUp: the same message, with the reason and its history.
func (m *message) deadLetter() amqp.Publishing {
	msg := m.publishing()
	h := msg.Headers
	anew := *m // in case it is tried again, from the due queue
	anew.Note, anew.given = worker.Note{}, ""
	h[headerNote] = anew.note()
	h[headerReason], h[headerAttempts], h[headerPostponements] = m.given, int64(m.Attempts), int64(m.Postponements)
	h[headerAge], h[headerRoutingKey] = m.Age().Milliseconds(), m.RoutingKey
	if m.Exchange != "" {
		h[headerExchange] = m.Exchange
	}
	if m.Expiration != "" {
		h[headerExpiration] = m.Expiration
	}
	if m.UserId != "" {
		h[headerUserID] = m.UserId
	}
	if m.cause != "" {
		h[headerError] = m.cause
	}
	return msg
}

// publishing returns the message without the headers that the broker would act on. The caller may add headers. It is persistent:
// the queue that it came from may be one that keeps all messages, and a classic queue loses transient ones when the broker stops.
func (m *message) publishing() amqp.Publishing {
	h, kept := make(amqp.Table, len(m.Headers)+2), amqp.Table{}
	for name, v := range m.Headers {
		switch {
		case hidden(name):
			kept[name] = v
		case name == "x-delivery-count" || name == "x-acquired-count":
			// A quorum queue's note about this delivery, which is not true of the copy.
		default:
			h[name] = v
		}
	}
	if len(kept) > 0 {
		h[headerKept] = kept
	}
	replyTo := m.ReplyTo
	if replyTo == directReply {
		replyTo = "" // the note has it
	}
	return amqp.Publishing{
		Headers:         h,
		ContentType:     m.ContentType,
		ContentEncoding: m.ContentEncoding,
		DeliveryMode:    amqp.Persistent,
		Priority:        m.Priority,
		CorrelationId:   m.CorrelationId,
		ReplyTo:         replyTo,
		MessageId:       m.MessageId,
		Timestamp:       m.Timestamp,
		Type:            m.Type,
		AppId:           m.AppId,
		Body:            m.Body,
	}
}

// ErrUnpostponable is the error of a message that can never be postponed. Its headers are nested too deep, or hold a
// value that AMQP does not know, or leave no room in a frame for the headers of a copy. A Consumer sends it to the dead
// letters. Behind Limit reject the delivery without requeueing it: see IsPermanent.
var ErrUnpostponable = errors.New("consumer: the message cannot be postponed")

// deepest is how many tables and lists a header may be nested in. Encoding and decoding copy a table once for each level
// it is nested in, so 130 kB of nested tables can take a second.
const deepest = 64

// brokersRoom returns how many bytes the broker may add to the headers of a message that it dead-letters from a queue of this
// name, twice: an entry of x-death, with its queue and its routing key, and the queue of the first and of the last death.
func brokersRoom(queue string) int { return 640 + 6*len(queue) }

// publishable returns an error if a message cannot be published to a queue, with frames of at most frame bytes, or of any
// size if frame is 0. The broker closes the connection of a client whose headers do not fit in a frame.
func publishable(msg *amqp.Publishing, queue string, frame int) error {
	n := 64
	for _, s := range []string{msg.ContentType, msg.ContentEncoding, msg.CorrelationId, msg.ReplyTo, msg.Expiration, msg.MessageId, msg.Type, msg.UserId, msg.AppId} {
		n += 1 + len(s)
	}
	headers, err := fieldSize(msg.Headers, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnpostponable, err)
	}
	if n += headers + brokersRoom(queue); frame > 0 && n > frame {
		return fmt.Errorf("%w: its headers leave no room in a frame of %d bytes", ErrUnpostponable, frame)
	}
	return nil
}

// fieldSize returns an upper estimate of the bytes of a header. It returns an error for a value that cannot be encoded or is
// nested too deep. depth is the nesting of v.
func fieldSize(v any, depth int) (n int, err error) {
	if depth > deepest {
		return 0, fmt.Errorf("its headers are nested more than %d deep", deepest)
	}
	n = 5 // the type, and the length if the type has one
	add := func(v any) {
		m, e := fieldSize(v, depth+1)
		n += m
		if err == nil {
			err = e
		}
	}
	switch v := v.(type) {
	case string:
		n += len(v)
	case []byte:
		n += len(v)
	case []any:
		for _, v := range v {
			add(v)
		}
	case amqp.Table:
		for name, v := range v {
			if len(name) > 255 {
				return 0, fmt.Errorf("a header has a name of %d bytes", len(name))
			}
			n += 1 + len(name)
			add(v)
		}
	case nil, bool, byte, int8, int, int16, int32, int64, uint16, uint32, float32, float64, amqp.Decimal, time.Time:
		n += 8
	default:
		return 0, fmt.Errorf("a header is a %T, which AMQP has no type for", v)
	}
	return n, err
}

// owned returns a deep copy of a header's value, because handlers may change their headers.
func owned(v any) any {
	switch v := v.(type) {
	case []byte:
		return bytes.Clone(v)
	case []any:
		c := slices.Clone(v)
		for i := range c {
			c[i] = owned(c[i])
		}
		return c
	case amqp.Table:
		c := maps.Clone(v)
		for name := range c {
			c[name] = owned(c[name])
		}
		return c
	}
	return v
}

// delivery returns the message for a user's function, with headers of its own.
func (m *message) delivery() *amqp.Delivery {
	d := m.Delivery
	d.Headers = owned(d.Headers).(amqp.Table)
	return &d
}

// handed gives a message for a handler a body of its own: the handler may change it, and copies of the message may come later.
func handed(user *amqp.Delivery) *amqp.Delivery {
	user.Body = bytes.Clone(user.Body)
	return user
}
