// Package consumer runs RabbitMQ consumers whose messages call rate-limited services.
//
// Most callers use [New] and [Consumer.Run]:
//
//	c, err := consumer.New(consumer.Options{URL: url, Queue: "orders", Limiter: bucket, Entity: shop, Handler: handler})
//	err = c.Run(ctx)
//
// The Consumer handles a message whose entity may run now. It republishes any other message to a delay queue, from
// which the message comes back when it is due. No handler sleeps, and a slow entity does not hold up another. For a
// consume loop of your own put [Limit] around its handler.
//
// # Delivery
//
// No message is lost. The Consumer acknowledges a message when it was handled, or when the broker has confirmed its
// copy in a delay queue or the dead-letter queue, and not before. An acknowledgement waits up to five milliseconds for
// others. A crash before it is sent leaves two copies, so a handler may see a message twice. The broker may lose
// messages in one case: RabbitMQ 3.10, killed within some three seconds of the first declaration of a quorum queue, may
// come up without it.
//
// # Queues
//
// The work queue "orders" has these queues besides, which all processes share:
//
//   - "orders.drip.due" holds messages that have waited.
//   - "orders.drip.dead" holds messages that the Consumer has given up, with the reason in their headers.
//   - "orders.drip.due.v1.250ms.00" to "….1024s.15" are the delay queues. A name gives the version of the layout, the length
//     of a slot and the slot's number.
//
// docs/operating.md describes them, and the fate of their messages when a broker dies.
//
// The clocks of the processes should agree to a quarter of a second. With a larger difference messages come back late
// by that difference, and the Consumer asks the limiter again about messages that come too early.
//
// # Metrics and traces
//
// With Options.MeterProvider a Consumer counts, under the names of OpenTelemetry's conventions where there are some:
//
//	messaging.client.consumed.messages   deliveries, by the queue they came from
//	drip.consumer.settlements            outcomes of deliveries: drip.outcome is handled, postponed (by the limit), throttled
//	                                     (by the provider, or by Later), retried, forwarded (on a delay of several trips, or
//	                                     because the limiter gives no answer, its lease was lost or there is no place for
//	                                     it), returned (to the broker) or dead_lettered, with the drip.reason
//	drip.consumer.in_hand                messages in hand, by queue: at most Prefetch of the work queue, Hold of the other
//	drip.consumer.lateness               time from when a postponed message was due until the limiter was asked, in seconds
//	messaging.process.duration           duration of handlers, in seconds; error.type is failed, panic or throttled
//	messaging.client.sent.messages       copies for the delay queues and the dead letters; error.type marks a copy that
//	                                     failed, and each of these is tried again
//	messaging.client.operation.duration  time until the broker confirmed a copy, in seconds
//
// With Options.TracerProvider each delivery is a span, from its receipt to its acknowledgement, with an event when the
// handler begins. Its parent is the span that the message's traceparent header names. A publisher writes that header
// with [TraceHeaders]. So a message is one trace, over all postponements, and its handler's context carries the trace
// on. Package telemetry measures the decisions of the limiter.
package consumer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/worker"
)

// Options configure a Consumer: its queue, its limits, and its retries. Several goroutines call its functions at once.
type Options struct {
	// URL of the broker, amqp:// or amqps://. Required.
	URL string

	// TLS configures amqps, which the URL must then have. Defaults to the parameters of the URL and the system's
	// certificates.
	TLS *tls.Config

	// Queue is the work queue. It must exist. Required.
	Queue string

	// Limiter decides when a message may run: a *drip.Bucket. Required.
	Limiter Limiter

	// Entity returns the entity whose limit a message falls under. Required.
	Entity EntityFunc

	// Cost returns how many calls the operation of a message takes, before it runs. The handler may correct it: see
	// Operation.SetCost. For other units see the Costs of Request, and Operation.SetCosts. A cost of 0 means 1. It takes
	// the place of the Cost of Request. It needs a Limiter that is an Admitter. Defaults to the Cost of Request.
	Cost func(d *amqp.Delivery) int

	// Request returns further facts about a message for the limiter: the shared limits that it is Within, whether it is
	// Urgent, its Deadline. A message that cannot run before its Deadline goes to the dead letters at once, for the reason
	// "expired". The Consumer calls Request at each return of the message, so a Deadline must come from the message, not
	// from the time of the call. The Consumer sets the ticket. It needs a Limiter that is an Admitter. Defaults to the
	// zero Request, which costs 1 and is within all shared limits.
	Request func(d *amqp.Delivery) drip.Request

	// FailOpen runs messages without a limit while the limiter gives no answer, and lets handlers go on whose lease ends
	// then. Defaults to false: messages wait, and the context of such a handler ends.
	FailOpen bool

	// Handler does the work. The Consumer calls it from many goroutines at once. Its context ends when the drain time is
	// over or the lease is lost. It also ends when the connection is lost: the broker then delivers the message again.
	// The Consumer retries an error; see Throttled for the other kind. OperationOf returns the Operation of the context.
	// Required.
	Handler Handler

	// Prefetch is the most messages of the work queue in hand at once: in their handlers, waiting for the limiter, or
	// being postponed. Defaults to 128.
	Prefetch int

	// Hold is the most postponed messages in hand at once. They come a moment early, and the Consumer holds them until
	// they are due. So Hold should be above the number of messages that are due in a second. Up to half of them may wait
	// for a token, or for a window, for up to five seconds. Defaults to 4096.
	Hold int

	// Handlers is the most handlers at once. An entity takes at most three quarters of the places of Handlers and of
	// Prefetch that the other entities leave. Its further messages wait in delay queues when none of its
	// handlers ends for a second. Defaults to 1024.
	Handlers int

	// Attempts is how often in all the Consumer handles a message whose handler fails, before the message goes to the dead
	// letters. Defaults to 5.
	Attempts int

	// RetryDelay is the time before the second attempt. It doubles with each further attempt, up to an hour unless
	// RetryDelay is longer itself. The Consumer adds up to a quarter at random. Defaults to one second.
	RetryDelay time.Duration

	// MaxPostponements is how often a message may be postponed before it goes to the dead letters. Postponements by the
	// limit count, and those after Throttled or Later. Defaults to 0: there is no maximum.
	MaxPostponements int

	// MaxAge is how long after its first delivery a message goes to the dead letters instead of to the handler. Defaults
	// to 0: at any age.
	MaxAge time.Duration

	// DrainTime is how long Run waits for running handlers once its context has ended. Then their contexts end, too, and
	// Run waits 1.25 seconds more. Defaults to 30 seconds.
	DrainTime time.Duration

	// FailFast makes Run return an error when it cannot reach the broker at the start. Defaults to false: Run waits for
	// it.
	FailFast bool

	// QueueType is the type of the queues that the Consumer declares. Defaults to Quorum. Run returns an error for a queue
	// that exists with another type.
	QueueType QueueType

	// FewQueues uses 18 delay queues instead of 64, and 16 more for delays above two minutes. Messages are as exact, but
	// come up to five seconds early and are held: Hold should be above the number that are due in that time. Processes may
	// differ. Defaults to false.
	FewQueues bool

	// Logger logs events of the connection and messages that fail. Defaults to slog.Default().
	Logger *slog.Logger

	// MeterProvider gets the metrics, TracerProvider a span for each delivery: see the package's documentation. Both
	// default to nil: no metrics and no spans.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Consumer consumes a queue by the limits of its entities. Make one with New and call Run.
type Consumer struct {
	o      Options
	worker *limited
	held   *heldQueue
	delays *DelayQueues

	fresh, handlers     *places // of the work queue's messages, and of all
	publishing, burying outage.Outage

	telemetry *telemetry // nil without providers

	begun atomic.Bool // Run was called
}

// New checks the options and makes a Consumer. Its error names the field that is wrong. It connects to nothing.
func New(o Options) (*Consumer, error) {
	if handle, isFunc := o.Handler.(HandlerFunc); o.Handler == nil || isFunc && handle == nil {
		return nil, errors.New("consumer: Options.Handler is missing")
	}
	if _, books := o.Limiter.(Admitter); o.Limiter != nil && o.Cost != nil && !books {
		return nil, errors.New("consumer: Options.Cost needs a Limiter that is an Admitter")
	}
	for _, f := range []struct {
		name    string
		v       *int
		initial int
	}{{"Prefetch", &o.Prefetch, 128}, {"Hold", &o.Hold, 4096}, {"Handlers", &o.Handlers, 1024}} {
		if *f.v < 0 {
			return nil, fmt.Errorf("consumer: Options.%s is %d; it must be above 0, or 0 for the default", f.name, *f.v)
		}
		*f.v = cmp.Or(*f.v, f.initial)
	}
	if o.DrainTime < 0 {
		return nil, fmt.Errorf("consumer: Options.DrainTime is %v; it must be above 0, or 0 for the default", o.DrainTime)
	}
	o.DrainTime = cmp.Or(o.DrainTime, 30*time.Second)
	if max(o.Prefetch, o.Hold) > math.MaxUint16 { // AMQP's
		return nil, fmt.Errorf("consumer: Options.Prefetch and Options.Hold may be at most %d", math.MaxUint16)
	}
	o.Logger = cmp.Or(o.Logger, slog.Default()).With("queue", o.Queue)
	w, err := worker.New(worker.Options[*amqp.Delivery]{
		Limiter: o.Limiter, Entity: o.Entity, Request: o.request(), FailOpen: o.FailOpen, Attempts: cmp.Or(o.Attempts, 5), RetryDelay: o.RetryDelay,
		MaxPostponements: o.MaxPostponements, MaxAge: o.MaxAge, Logger: o.Logger, ID: func(d *amqp.Delivery) string { return d.MessageId },
	})
	if err != nil {
		return nil, errors.New(strings.Replace(err.Error(), "worker", "consumer", 1))
	}
	delays, err := newDelayQueues(DelayQueuesOptions{URL: o.URL, TLS: o.TLS, Queue: o.Queue, QueueType: o.QueueType, FewQueues: o.FewQueues}, o.Logger)
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	delays.target = o.Queue + ".drip.due"
	delays.prefix = delays.target + "."
	delays.held = true
	c := &Consumer{
		o:      o,
		worker: w,
		held:   &heldQueue{most: o.Hold / 2},
		delays: delays,
		fresh:  newPlaces(o.Prefetch), handlers: newPlaces(o.Handlers),
	}
	if c.telemetry, err = newTelemetry(c); err != nil {
		return nil, fmt.Errorf("consumer: Options.MeterProvider: %w", err)
	}
	c.o.Handler = c.telemetry.measured(o.Handler)
	return c, nil
}

// request returns the function that makes the limiter's Request for a message.
func (o Options) request() func(*amqp.Delivery) drip.Request {
	if o.Cost == nil {
		return o.Request
	}
	return func(d *amqp.Delivery) (r drip.Request) {
		if o.Request != nil {
			r = o.Request(d)
		}
		r.Cost = o.Cost(d)
		return r
	}
}

func (c *Consumer) dueQueue() string  { return c.delays.target }
func (c *Consumer) deadQueue() string { return c.o.Queue + ".drip.dead" }

// Run consumes until ctx ends, and then until the running handlers have returned or the drain time is over. Messages
// that it did not acknowledge go back to their queue. It then returns nil, or ErrStillRunning when handlers did not
// return.
//
// A second signal should end the process at once, whatever handlers do. The broker then delivers the messages in hand
// again:
//
//	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
//	context.AfterFunc(ctx, stop) // after the first signal the second is the default again
//
// Run waits for a broker that is down, unless Options.FailFast is set. It returns an error at once when the broker is
// up but Run can't begin. Either the work queue does not exist or is a stream, or a permission is missing, or Run can't
// declare a queue. The error says how to fix it. Once Run has begun it reconnects after any failure. One failure ends
// it, with ErrQueue: the work queue turns out to be a stream. Without the permission to configure that queue Run sees
// it at a message. A Consumer runs once: a second call returns an error.
func (c *Consumer) Run(ctx context.Context) error {
	if c.begun.Swap(true) {
		return errors.New("consumer: Run was called before; make a new Consumer to run again")
	}
	defer c.delays.Close()
	ctx, hopeless := context.WithCancelCause(ctx)
	defer hopeless(nil)
	// Handlers continue while Run drains. over ends the connections of handlers that run even longer.
	handlers, stopHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer stopHandlers()
	over := make(chan struct{})
	defer close(over)
	var s *session
	err := start(ctx, c.o.FailFast, c.o.Logger, func() (err error) {
		s, err = c.begin(ctx, handlers, hopeless, true)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("consumer: %w", err)
	}
	var sessions sync.WaitGroup
	var p pace
	for s != nil {
		c.o.Logger.Info("consuming")
		began, ended := time.Now(), s
		s.run(ctx)
		// Messages in hand are still acknowledged on this connection, if it is open.
		sessions.Go(func() { ended.finish(over) })
		if time.Since(began) > p.last {
			p = pace{} // it was a session, not a failed try
		}
		s = c.again(ctx, handlers, hopeless, &p)
	}
	drained := make(chan struct{})
	go func() {
		sessions.Wait()
		close(drained)
	}()
	if !within(c.o.DrainTime, drained) {
		stopHandlers()
		if !within(handlerGrace+settleTime, drained) {
			err = fmt.Errorf("consumer: drain: %w after %v", ErrStillRunning, c.o.DrainTime)
		}
	}
	if cause := context.Cause(ctx); errors.Is(cause, ErrQueue) {
		err = errors.Join(fmt.Errorf("consumer: %w", cause), err)
	}
	return err
}

// ErrStillRunning is the error of Run when handlers did not return although their context has ended. Their messages
// went back to the queue.
var ErrStillRunning = errors.New("handlers are still running")

// again begins a new session after one has ended, however long it takes. It returns nil when ctx has ended.
func (c *Consumer) again(ctx, handlers context.Context, hopeless context.CancelCauseFunc, p *pace) *session {
	for p.wait(ctx) {
		s, err := c.begin(ctx, handlers, hopeless, false)
		if err == nil {
			return s
		}
		if errors.Is(err, errStream) {
			hopeless(err)
		}
		if ctx.Err() == nil && p.Fails(err) {
			c.o.Logger.Warn("cannot consume, will try again", "error", err)
		}
	}
	return nil
}

const (
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second

	// handlerGrace is the time handlers have to return once the drain time is over and their context has ended.
	handlerGrace = time.Second
)

// within reports whether done is closed before d is over.
func within(d time.Duration, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-time.After(d):
		return false
	}
}
