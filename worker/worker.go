// Package worker takes messages of any queue through a rate limit: it admits, runs, renews the lease and settles.
//
// A [Worker] does not depend on any queue. For each delivery the queue's code calls [Worker.Do], which runs the
// message's operation or returns how long to postpone it. One short text must travel with the message, its [Note]. The
// queue's code stores it in a header or in metadata, and hands it back with the next delivery. The packages below
// adapters do that for River, JetStream, asynq, SQS and AMQP 1.0, package consumer for RabbitMQ.
//
// An operation returns nil when it is done and an error to be tried again. Three errors say more: [Throttled] or
// [ThrottledShared] when the provider has refused it, [Later] to postpone this message alone, and [Permanent] when it
// would fail again. They may be wrapped or joined: each limit is closed, the longest time counts, and Permanent counts
// before all.
//
// Queue code that does more between the steps of Do calls them itself: [Worker.Open], [Worker.Admit], and then
// [Worker.Run] or [Worker.Postpone]. After an error of Open or Admit comes [Worker.Fail] or [Worker.GiveUp]. If nobody
// stores the Note of the Outcome, [Worker.Abandon] gives up its slot.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/absent"
	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/internal/sleep"
)

// Options configure a Worker. M is the queue's type of a message. Several goroutines call the functions at once.
type Options[M any] struct {
	// Limiter decides when a message may run: a *drip.Bucket. Required.
	Limiter Limiter

	// Entity returns the entity whose limit a message falls under. If it returns an error, the message spends an
	// attempt. If it returns "", the Worker gives the message up. Required.
	Entity func(M) (string, error)

	// Request returns further facts about a message for the limiter: its cost, the shared limits that it is Within,
	// whether it is Urgent, its Deadline. The Worker gives up a message that cannot run before its Deadline, at once, with
	// drip.ErrDeadline. The Worker calls Request for each delivery, so a Deadline must come from the message, not from the
	// time of the call. The Worker sets the ticket. It needs a Limiter that is an Admitter. Defaults to nil: each message
	// costs one call and is within all shared limits.
	Request func(M) drip.Request

	// ID names a message in the log. Defaults to nil: it has no name.
	ID func(M) string

	// FailOpen runs messages without a limit while the limiter gives no answer, and lets operations go on whose lease ends
	// then. Defaults to false: messages wait, and the context of such an operation ends.
	FailOpen bool

	// Attempts is how often in all the Worker runs a message whose operation fails, before it gives the message up.
	// Defaults to 0: the queue retries failures.
	Attempts int

	// RetryDelay is the time before the second attempt. It doubles with each further attempt, up to an hour unless
	// RetryDelay is longer itself. The Worker adds up to a quarter at random. Throttled waits at least this long. Defaults
	// to one second.
	RetryDelay time.Duration

	// MaxPostponements is how often the Worker may postpone a message before it gives the message up with ErrTooOften.
	// Postponements by the limit count, and those after Throttled or Later. Defaults to 0: there is no maximum.
	MaxPostponements int

	// MaxAge is how long after its first delivery a message is given up instead of run. Defaults to 0: at any age.
	MaxAge time.Duration

	// Observe gets the outcome of each delivery, for metrics. It must not block. Defaults to nil.
	Observe func(ctx context.Context, m *Message, out Outcome)

	// Logger logs outages of the limiter, lost leases, permanent errors and panics, and each failed attempt if Attempts is
	// above 0. Defaults to slog.Default().
	Logger *slog.Logger
}

// Worker takes messages through a limit. Make one with New; it is safe for concurrent use.
type Worker[M any] struct {
	o       Options[M]
	limiter careful
	books   bool // the limiter is an Admitter

	outage    outage.Outage
	unlimited atomic.Int64 // how many messages have run without a limit in this outage
}

// New checks the options and makes a Worker. Its error names the field that is wrong.
func New[M any](o Options[M]) (*Worker[M], error) {
	switch {
	case absent.Is(o.Limiter):
		return nil, errors.New("worker: Options.Limiter is missing")
	case o.Entity == nil:
		return nil, errors.New("worker: Options.Entity is missing")
	case o.Attempts < 0:
		return nil, fmt.Errorf("worker: Options.Attempts is %d; it must not be below 0", o.Attempts)
	case o.RetryDelay < 0:
		return nil, fmt.Errorf("worker: Options.RetryDelay is %v; it must not be below 0", o.RetryDelay)
	case o.MaxPostponements < 0:
		return nil, fmt.Errorf("worker: Options.MaxPostponements is %d; it must not be below 0", o.MaxPostponements)
	case o.MaxAge < 0:
		return nil, fmt.Errorf("worker: Options.MaxAge is %v; it must not be below 0", o.MaxAge)
	}
	l, books := o.Limiter.(Admitter)
	if !books && o.Request != nil {
		return nil, errors.New("worker: Options.Request needs a Limiter that is an Admitter")
	}
	o.RetryDelay = cmp.Or(o.RetryDelay, time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if !books {
		l = plain{o.Limiter}
	}
	return &Worker[M]{o: o, limiter: careful{l}, books: books}, nil
}

// Kind is the kind of an Outcome.
type Kind string

// The kinds of an Outcome. The Delay of the first three is zero; the Delay of the others is above zero.
const (
	Done      Kind = "done"      // its operation has succeeded
	Failed    Kind = "failed"    // its operation has failed, and the queue's own retries decide
	GivenUp   Kind = "given up"  // it must not run any more
	Postponed Kind = "postponed" // by the limit
	Refused   Kind = "refused"   // by the provider: its operation returned Throttled or Later
	Retried   Kind = "retried"   // its operation has failed and is tried again
	Waiting   Kind = "waiting"   // it came early, the limiter gives no answer, its lease was lost, or ctx has ended; nothing is spent
)

// Outcome tells the queue's code how to settle a delivery. If Delay is above zero, postpone the message by Delay, with
// Note. Else acknowledge it if Err is nil. Else it has failed; if Kind is GivenUp, drop it or send it to the dead
// letters.
type Outcome struct {
	Kind  Kind          // the kind of outcome
	Delay time.Duration // how long to postpone the message; 0: not at all
	Note  Note          // the note to store with a postponed message
	Err   error         // of a failure, a refusal, an outage, or of giving up; from Do its text is valid UTF-8 without NUL
}

// Reason returns the text of Err for the dead letter of a message that is given up, empty without an Err. It is valid
// UTF-8 of at most 1,000 bytes: a queue that refuses a longer text would deliver the message again.
func (o Outcome) Reason() string {
	if o.Err == nil {
		return ""
	}
	text := o.Err.Error()
	return strings.ToValidUTF8(text[:min(len(text), mostReason)], "?")
}

const mostReason = 1000

// Message is one delivery in hand. It is not safe for concurrent use.
type Message struct {
	Entity  string       // the entity whose limit it falls under
	Request drip.Request // the request to the limiter; Admit takes the ticket from the Note
	Note    Note         // the note that came with the delivery, kept up to date
	ID      string       // for the log; may be empty

	carried   drip.Ticket // the ticket that the delivery came with
	booked    bool        // the limiter has a slot for the Note's ticket
	unlimited bool        // admitted without an answer of the limiter: there is nothing to give back
	lease     drip.Lease
}

// Errors of a message that is given up, besides permanent errors.
var (
	// ErrTooOld means that the message is older than Options.MaxAge.
	ErrTooOld = errors.New("the message is too old")

	// ErrTooOften means that the message was postponed Options.MaxPostponements times and may still not run.
	ErrTooOften = errors.New("the message was postponed too often")
)

const (
	// patience is how long Do waits while the limiter gives no answer. Then it postpones the message by outagePause. Queues
	// take back a message that is in hand for long.
	patience    = 2 * time.Second
	outagePause = 5 * time.Second

	// soon is how long Do holds a message that has come back and may not run yet, instead of postponing it again. A message that
	// waits for a limiter before its deadline asks again after no less.
	soon = 250 * time.Millisecond
)

// Do handles a delivery. It asks the limiter and, if the message may run, calls run and gives the token back on every
// path. note is the text that the last Outcome's Note had, and is empty for a new message. A text that is no note makes
// the message a new one.
//
// The context of run ends with ctx and when the lease is lost. OperationOf returns the Operation of that context. Do
// returns a panic of run as an error. An Outcome that postpones spends none of the attempts unless it is Retried. Do
// waits for the limiter at most until a moment before the deadline of ctx.
func (w *Worker[M]) Do(ctx context.Context, msg M, note string, run func(context.Context) error) Outcome {
	m, ended := newMessage(ParseNote(note)), false
	defer func() {
		if !ended { // nobody gets an Outcome
			w.o.Logger.ErrorContext(ctx, "runtime.Goexit leaves a message unsettled", "entity", m.Entity, "message_id", m.ID)
		}
	}()
	err := w.open(m, msg)
	var out Outcome
	switch rest := time.Until(m.Note.Due); {
	case rest > soon: // whatever err is: the attempt has its time
		out = Outcome{Kind: Waiting, Delay: rest, Note: m.Note}
	case err != nil:
		out = w.Fail(ctx, m, err)
	default:
		out = w.step(ctx, m, run)
	}
	if out.Delay == 0 {
		w.Abandon(ctx, m, out.Kind == Failed)
	}
	if out.Kind == GivenUp && (outlived(out.Err) || errors.Is(out.Err, ErrTooOften)) {
		w.o.Logger.WarnContext(ctx, "a message is given up", "entity", m.Entity, "message_id", m.ID, "reason", out.Err)
	}
	if w.o.Observe != nil {
		if err := caught(func() error { w.o.Observe(ctx, m, out); return nil }); err != nil { // the outcome stands
			w.o.Logger.ErrorContext(ctx, "Options.Observe failed", "entity", m.Entity, "message_id", m.ID, "error", err)
		}
	}
	ended = true
	return out
}

func (w *Worker[M]) step(ctx context.Context, m *Message, run func(context.Context) error) Outcome {
	back, began := m.Note.Postponements > 0, time.Now()
	if !sleep.For(ctx, time.Until(m.Note.Due)) {
		return Outcome{Kind: Waiting, Delay: w.o.RetryDelay, Note: m.Note, Err: ctx.Err()}
	}
	for {
		asked := time.Now()
		a, err := w.Admit(ctx, m, func(pause time.Duration) bool {
			return pause < inTime(ctx, patience-time.Since(asked)) && sleep.For(ctx, pause)
		})
		switch {
		case outlived(err):
			return w.GiveUp(m, err)
		case IsPermanent(err):
			return w.Fail(ctx, m, err)
		case err != nil:
			return w.wait(m, outagePause, err)
		case a.Delay == 0:
			return w.Run(ctx, m, run)
		case !back || a.Delay > soon-time.Since(began): // a sum might overflow
			return w.Postpone(m, a.Delay)
		}
		if !sleep.For(ctx, a.Delay) {
			return w.Postpone(m, a.Delay)
		}
	}
}

// DrainTime is how long the context of Drain lasts after the consumer's context has ended.
const DrainTime = 30 * time.Second

// Drain returns a context for messages in hand, which ends DrainTime after ctx, so that handlers may finish their work.
// Call end when no message is in hand any more.
func Drain(ctx context.Context) (hands context.Context, end context.CancelFunc) {
	hands, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		sleep.For(hands, DrainTime)
		cancel()
	})
	return hands, func() { stop(); cancel() }
}

// The methods below are the steps of Do, for a queue's code that puts steps of its own between them.

// Open makes the Message of a delivery, with its entity and its request. A panic of the functions in Options becomes an
// error. The Message is never nil, so that Fail can take it after an error.
func (w *Worker[M]) Open(msg M, n Note) (*Message, error) {
	m := newMessage(n)
	return m, w.open(m, msg)
}

func newMessage(n Note) *Message {
	return &Message{Note: n, carried: n.Ticket, booked: !n.Ticket.IsZero()}
}

// open sets what the functions in Options tell of a message.
func (w *Worker[M]) open(m *Message, msg M) error {
	err := caught(func() (err error) {
		if w.o.ID != nil {
			m.ID = w.o.ID(msg)
		}
		m.Entity, err = w.o.Entity(msg)
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", ErrEntity, err)
	case m.Entity == "":
		return Permanent(fmt.Errorf("%w: it is empty", ErrEntity))
	case w.o.Request == nil:
		return nil
	}
	return caught(func() error {
		m.Request = w.o.Request(msg)
		return nil
	})
}

// Postpone returns the Outcome of a message that the limit does not let run. The Outcome postpones it, or gives it up:
// with ErrTooOften after Options.MaxPostponements, with drip.ErrDeadline if it would come back after its Deadline.
func (w *Worker[M]) Postpone(m *Message, delay time.Duration) Outcome {
	return w.postpone(m, Postponed, delay, nil)
}

func (w *Worker[M]) postpone(m *Message, kind Kind, delay time.Duration, cause error) Outcome {
	if w.o.MaxPostponements > 0 && m.Note.Postponements >= w.o.MaxPostponements {
		return w.GiveUp(m, because(ErrTooOften, cause))
	}
	m.Note.Postponements++
	return m.later(kind, delay, cause)
}

// wait postpones a message that spends neither an attempt nor a postponement. It may run before its deadline, if another process
// takes it or the limiter answers again.
func (w *Worker[M]) wait(m *Message, delay time.Duration, cause error) Outcome {
	delay = sleep.Jitter(delay)
	if end := m.Request.Deadline; !end.IsZero() {
		delay = min(delay, max(time.Until(end)/2, soon))
	}
	return m.later(Waiting, delay, cause)
}

func (m *Message) later(kind Kind, delay time.Duration, cause error) Outcome {
	delay = min(max(delay, time.Millisecond), longestDelay)
	m.Note.Due = time.Now().Add(delay + time.Microsecond - 1).Truncate(time.Microsecond) // never early
	if end := m.Request.Deadline; !end.IsZero() && m.Note.Due.After(end) {
		return Outcome{Kind: GivenUp, Note: m.Note, Err: because(drip.ErrDeadline, cause)}
	}
	return Outcome{Kind: kind, Delay: delay, Note: m.Note, Err: cause}
}

// because returns err, with the cause of the delay that the message cannot wait for if there is a cause.
func because(err, cause error) error {
	if cause == nil {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// outlived reports whether a message is given up because of its age or deadline, which spends no attempt.
func outlived(err error) bool { return errors.Is(err, ErrTooOld) || errors.Is(err, drip.ErrDeadline) }

// GiveUp returns the Outcome of a message that must not run any more. It logs nothing.
func (w *Worker[M]) GiveUp(m *Message, cause error) Outcome {
	return Outcome{Kind: GivenUp, Note: m.Note, Err: cause}
}

// Fail spends an attempt of a message that has failed, and retries it or gives it up. Without Options.Attempts the
// queue decides that, unless the error is permanent.
func (w *Worker[M]) Fail(ctx context.Context, m *Message, cause error) Outcome {
	m.Note.Attempts++
	log := w.o.Logger.With("entity", m.Entity, "attempt", m.Note.Attempts, "message_id", m.ID, "error", cause)
	var panicked *PanicError
	if errors.As(cause, &panicked) {
		log = log.With("stack", string(panicked.Stack))
	}
	final := IsPermanent(cause)
	if w.o.Attempts == 0 && !final {
		if panicked != nil { // which the queue does not store
			log.ErrorContext(ctx, "an operation panicked")
		}
		return Outcome{Kind: Failed, Note: m.Note, Err: cause}
	}
	out := w.GiveUp(m, cause)
	if !final && m.Note.Attempts < w.o.Attempts {
		out = m.later(Retried, sleep.Jitter(retryDelay(w.o.RetryDelay, m.Note.Attempts)), cause)
	}
	if out.Kind == Retried {
		log.WarnContext(ctx, "a message failed and will be tried again", "delay", out.Delay.String())
	} else {
		log.ErrorContext(ctx, "a message failed for the last time")
	}
	return out
}

const (
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
	longestRetry   = time.Hour

	// longestDelay bounds the delays that a handler may ask for, and the time that a note may contain.
	longestDelay = 366 * 24 * time.Hour
)

// retryDelay returns the time before a message that has failed failures times is tried again, without the jitter: base, which
// is above zero, then twice as long each time, up to an hour, or base if that is longer.
func retryDelay(base time.Duration, failures int) time.Duration {
	longest := max(base, longestRetry)
	doublings := min(max(failures-1, 0), 62)
	if base > longest>>doublings {
		return longest
	}
	return base << doublings
}

// inTime returns d, or less if ctx ends sooner: a moment is left to return the Outcome. A queue that ends the context at a message's
// timeout counts a failure, whatever the Outcome is.
func inTime(ctx context.Context, d time.Duration) time.Duration {
	end, ok := ctx.Deadline()
	if rest := time.Until(end); ok && rest > 0 {
		return min(d, max(rest-soon/2, rest/2))
	}
	return d
}
