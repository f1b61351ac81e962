// Package consumer runs RabbitMQ consumers whose messages call rate-limited services.
//
// Most callers use [New] and [Consumer.Run]:
//
//	c, err := consumer.New(consumer.Options{URL: url, Queue: "orders", Limiter: bucket, Entity: shop, Handler: handler})
//	err = c.Run(ctx)
//
// The Consumer handles a message whose entity may run now. It republishes any other message to a delay queue, from which
// the message comes back when it is due. No handler sleeps, and a slow entity does not stand in the way of another. For a
// consume loop of your own put [Limit] around its handler.
//
// # What is promised
//
// Nothing is lost: a message is acknowledged only when it was handled, or when the broker has confirmed its copy
// in a delay queue or the dead-letter queue. A crash between that and the acknowledgement, which waits up to five
// milliseconds for others to go along, leaves two copies, so a handler may see a message twice. One exception is the
// broker's: RabbitMQ 3.10 that is killed within some three seconds of declaring a quorum queue for the first time may come
// up without it. And what a quorum queue is dead-lettering when its node dies comes late: the broker tries again after
// 3 minutes, or after the milliseconds of its setting rabbit.dead_letter_worker_publisher_confirm_timeout. Until then no
// queue counts it: docs/operating.md says how to set it.
//
// # Queues
//
// For the work queue "orders" there are "orders.drip.due" (what has waited), "orders.drip.dead" (what was given
// up, with the reason in its headers) and the delay queues "orders.drip.due.v1.250ms.00" to "….1024s.15", of which a
// name says their layout's version, how long a slot is and which one it is. They are shared by all processes, and the broker
// removes one that nobody has used for 30 days. Delay queues of another version send what is due to the same queue, so
// processes of several versions run side by side, and what waited in queues that are used no more comes back, too. The clocks of the processes should agree to a quarter of a second: with more between them
// messages come back late by the difference, and those that come too early are asked about again.
//
// # Metrics and traces
//
// With Options.MeterProvider a Consumer counts, under the names of OpenTelemetry's conventions where there are some:
//
//	messaging.client.consumed.messages   deliveries, by the queue they came from
//	drip.consumer.settlements            what became of each: drip.outcome is handled, postponed (by the limit), throttled
//	                                     (by the provider), retried, forwarded (on a delay of several trips, or because
//	                                     the limiter gives no answer, its lease was lost or there is no place for it),
//	                                     returned (to the broker) or dead_lettered, with the drip.reason
//	drip.consumer.in_hand                messages in hand, by queue: at most Prefetch of the work queue, Hold of the other
//	drip.consumer.lateness               from when a postponed message was due until it was asked about, in seconds
//	messaging.process.duration           what handlers took; error.type is failed, panic or throttled
//	messaging.client.sent.messages       copies for the delay queues and the dead letters; with an error.type those
//	                                     that have failed, of which each is tried again
//	messaging.client.operation.duration  what the broker took to confirm them
//
// With Options.TracerProvider each delivery is a span, from its receipt to its acknowledgement, with an event when the
// handler begins. Its parent is the span that the message's traceparent header names, which is where [TraceHeaders]
// helps a publisher to write it: so a message is one trace, over all postponements, and its handler's context carries
// it on. What the limiter decides is measured in package telemetry.
package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/worker"
)

// Options says what a Consumer consumes, by which limits, and what it does when things go wrong.
type Options struct {
	// URL of the broker, amqp:// or amqps://. Required.
	URL string

	// TLS configures amqps. Defaults to what the URL says and the system's certificates.
	TLS *tls.Config

	// Queue is the work queue. It must exist. Required.
	Queue string

	// Limiter decides when a message may run: a *drip.Bucket. Required.
	Limiter Limiter

	// Entity tells whose limit a message falls under. Required.
	Entity EntityFunc

	// Cost tells how many calls the operation of a message takes, before it runs. The handler may correct it: see
	// Operation.SetCost. For other units see the Costs of Request, and Operation.SetCosts. It needs a Limiter that is an Admitter. Defaults to that of Request.
	Cost func(d *amqp.Delivery) int

	// Request returns what else the limiter is to know of a message: the shared limits that it is Within, whether it is
	// Urgent, its Deadline. One that cannot run before its Deadline goes to the dead letters at once, for the reason
	// "expired". The Consumer sets the ticket. It needs a Limiter that is an Admitter. Defaults to the zero Request, which
	// costs 1 and is within all shared limits.
	Request func(d *amqp.Delivery) drip.Request

	// FailOpen runs messages without a limit while the limiter gives no answer. Defaults to false: they wait.
	FailOpen bool

	// Handler does the work. It is called from many goroutines at once, with a context that ends when the drain
	// time is over, when the connection is lost and the message will be delivered again, or when its lease is
	// lost. An error is retried; see Throttled for the other kind, and OperationOf for what else the context tells.
	// Required.
	Handler Handler

	// Prefetch is the most messages of the work queue in hand at once: with their handlers, waiting for the limiter, or
	// being postponed. Defaults to 128.
	Prefetch int

	// Hold is the most postponed messages in hand at once, likewise. They come a moment early and are held until they are
	// due, so it should be above the number of messages that are due in a second. Up to half of them may be waiting for a
	// token, or for a window, for up to five seconds.
	// Defaults to 4096.
	Hold int

	// Handlers is the most handlers at once. An entity takes at most three times as many of them, and of Prefetch, as it
	// leaves free, which is three quarters when no other runs: its messages beyond that wait in delay queues when none of
	// its handlers ends for a second. Defaults to 1024.
	Handlers int

	// Attempts is how often a message whose handler fails is handled in all, before it goes to the dead letters.
	// Defaults to 5.
	Attempts int

	// RetryDelay is the time before the second attempt; it doubles with each further one, up to an hour unless it is
	// longer itself, and up to a quarter is added at random. Defaults to one second.
	RetryDelay time.Duration

	// MaxPostponements is how often the limit may postpone a message before it goes to the dead letters.
	// Defaults to 0: as often as it takes.
	MaxPostponements int

	// MaxAge is how long after its first postponement a message goes to the dead letters instead of to the
	// handler. Defaults to 0: at any age.
	MaxAge time.Duration

	// DrainTime is how long Run waits for the handlers in flight once its context has ended. Defaults to 30
	// seconds.
	DrainTime time.Duration

	// FailFast has Run return an error when the broker cannot be reached at the start. Defaults to false: it is waited for.
	FailFast bool

	// QueueType of the queues that are declared. Defaults to Quorum. Queues that exist with another type are an
	// error.
	QueueType QueueType

	// FewQueues takes 18 delay queues instead of 64, and 16 more for delays above two minutes. Messages are as exact, but come
	// up to five seconds early to be held: Hold should be above the number that are due in that time. Processes may differ.
	// Defaults to false.
	FewQueues bool

	// Logger gets what happens to the connection and to messages that fail. Defaults to slog.Default().
	Logger *slog.Logger

	// MeterProvider gets the metrics, TracerProvider a span for each delivery: see the package's documentation. They
	// default to nil, which is none.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
}

// Consumer consumes a queue by the limits of its entities. Make one with New and call Run.
type Consumer struct {
	o      Options
	worker *limited
	held   *heldQueue
	delays *DelayQueues

	fresh, handlers *places // of the work queue's messages, and of all
	publishing      outage.Outage

	telemetry *telemetry // nil when nobody wants it
}

// New checks the options; its error names the field that is wrong. It connects to nothing.
func New(o Options) (*Consumer, error) {
	for _, f := range []struct {
		name    string
		missing bool
	}{{"Limiter", o.Limiter == nil}, {"Entity", o.Entity == nil}, {"Handler", o.Handler == nil}} {
		if f.missing {
			return nil, fmt.Errorf("consumer: Options.%s is missing", f.name)
		}
	}
	for _, f := range []struct {
		name    string
		v       *int
		initial int
	}{{"Prefetch", &o.Prefetch, 128}, {"Hold", &o.Hold, 4096}, {"Handlers", &o.Handlers, 1024}, {"Attempts", &o.Attempts, 5}, {"MaxPostponements", &o.MaxPostponements, 0}} {
		if *f.v < 0 {
			return nil, fmt.Errorf("consumer: Options.%s is %d; it must be above 0, or 0 for the default", f.name, *f.v)
		}
		if *f.v == 0 {
			*f.v = f.initial
		}
	}
	for _, f := range []struct {
		name    string
		v       *time.Duration
		initial time.Duration
	}{{"RetryDelay", &o.RetryDelay, time.Second}, {"MaxAge", &o.MaxAge, 0}, {"DrainTime", &o.DrainTime, 30 * time.Second}} {
		if *f.v < 0 {
			return nil, fmt.Errorf("consumer: Options.%s is %v; it must be above 0, or 0 for the default", f.name, *f.v)
		}
		if *f.v == 0 {
			*f.v = f.initial
		}
	}
	if max(o.Prefetch, o.Hold) > maxPrefetch {
		return nil, fmt.Errorf("consumer: Options.Prefetch and Options.Hold may be at most %d", maxPrefetch)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = o.Logger.With("queue", o.Queue)
	w, err := worker.New(worker.Options[*amqp.Delivery]{
		Limiter: o.Limiter, Entity: o.Entity, Request: o.request(), FailOpen: o.FailOpen, Attempts: o.Attempts, RetryDelay: o.RetryDelay,
		MaxPostponements: o.MaxPostponements, MaxAge: o.MaxAge, Logger: o.Logger, ID: func(d *amqp.Delivery) string { return d.MessageId },
	})
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
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
		held:   &heldQueue{slots: map[string][]*heldSlot{}, most: o.Hold / 2},
		delays: delays,
		fresh:  newPlaces(o.Prefetch), handlers: newPlaces(o.Handlers),
	}
	if c.telemetry, err = newTelemetry(c); err != nil {
		return nil, fmt.Errorf("consumer: Options.MeterProvider: %w", err)
	}
	c.o.Handler = c.telemetry.measured(o.Handler)
	return c, nil
}

// request is the function of a message that the limiter is asked with.
func (o *Options) request() func(*amqp.Delivery) drip.Request {
	if o.Cost == nil {
		return o.Request
	}
	cost, request := o.Cost, o.Request
	return func(d *amqp.Delivery) (r drip.Request) {
		if request != nil {
			r = request(d)
		}
		r.Cost = cost(d)
		return r
	}
}

const maxPrefetch = 65_535 // AMQP's

func (c *Consumer) dueQueue() string  { return c.delays.target }
func (c *Consumer) deadQueue() string { return c.o.Queue + ".drip.dead" }

// Run consumes until ctx ends, and then until the handlers in flight have returned or the drain time is over;
// what was not acknowledged goes back to its queue. It returns nil when it ended so, and ErrStillRunning when
// there were handlers that did not return.
//
// A second signal should end the process at once, whatever handlers do. What is in hand is then delivered again:
//
//	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
//	context.AfterFunc(ctx, stop) // after the first signal the second is the default again
//
// It waits for a broker that is down, unless Options.FailFast is set, and returns an error at once when it can't begin with
// the one there is: no work queue, or one that is a stream, a permission that is missing, a queue it can't declare. The
// error says what to do. Once it has begun it reconnects whatever happens. A Consumer runs once.
func (c *Consumer) Run(ctx context.Context) error {
	defer c.delays.Close()
	ctx, hopeless := context.WithCancelCause(ctx)
	defer hopeless(nil)
	// Handlers live on while Run drains. over ends the connections of those that outlive even that.
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
	backoff := firstBackoff
	for s != nil {
		c.o.Logger.Info("consuming")
		began, ended := time.Now(), s
		s.run(ctx)
		// What is in hand is still acknowledged on this connection, if it lives.
		sessions.Go(func() { ended.finish(over) })
		if time.Since(began) > backoff {
			backoff = firstBackoff // it was a session, not a try that failed
		}
		s, backoff = c.again(ctx, handlers, hopeless, backoff)
	}
	drained := make(chan struct{})
	go func() {
		sessions.Wait()
		close(drained)
	}()
	if within(c.o.DrainTime, drained) {
		if cause := context.Cause(ctx); errors.Is(cause, ErrQueue) {
			return fmt.Errorf("consumer: %w", cause)
		}
		return nil
	}
	stopHandlers()
	if within(handlerGrace, drained) {
		return nil
	}
	return fmt.Errorf("consumer: drain: %w after %v", ErrStillRunning, c.o.DrainTime)
}

// ErrStillRunning is returned by Run when handlers did not return although their context has ended. Their
// messages went back to the queue.
var ErrStillRunning = errors.New("handlers are still running")

// again begins a new session after one has ended, however long it takes. It returns nil when ctx has ended, and
// the pause to begin with should that session end soon.
func (c *Consumer) again(ctx, handlers context.Context, hopeless context.CancelCauseFunc, backoff time.Duration) (*session, time.Duration) {
	for {
		if !sleep(ctx, jitter(backoff)) {
			return nil, 0
		}
		backoff = min(2*backoff, longestBackoff)
		s, err := c.begin(ctx, handlers, hopeless, false)
		if err == nil {
			return s, backoff
		}
		if ctx.Err() == nil {
			c.o.Logger.Warn("cannot consume, will try again", "error", err)
		}
	}
}

const (
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second

	// handlerGrace is what handlers get to return once the drain time is over and their context has ended.
	handlerGrace = time.Second
)

// jitter adds up to a quarter, so that many who failed together don't come back together. It never takes away.
func jitter(d time.Duration) time.Duration { return d + rand.N(min(d/4, math.MaxInt64-d)+1) }

// sleep waits for d and reports whether ctx lived that long.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// within reports whether done is closed before d is over.
func within(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
