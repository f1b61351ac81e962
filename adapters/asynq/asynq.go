// Package dripasynq takes asynq tasks through a rate limit of drip.
//
// A Limit postpones a task that may not run yet until its slot, as a retry that counts as no failure. Its ticket travels in
// the task's headers, so the task runs then, before newcomers.
package dripasynq

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/worker"
)

// Options configure a Limit. Limiter and Entity are required. Leave Attempts at 0: asynq retries.
type Options = worker.Options[*asynq.Task]

// Limit takes tasks through a limit. Use its Middleware in a server whose Config went through Configure. Make one with New,
// and end it with Close. It is safe for concurrent use.
//
// asynq retries a handler's error. worker.Throttled and worker.Later postpone the task, worker.Permanent archives it.
//
// asynq stores the headers that a handler writes only if the task was enqueued with headers. It archives a task that is
// postponed at its last attempt. So a Limit postpones a task without headers, or at its last attempt, as a copy: a new task
// with another ID, which is not unique even if the task was. Enqueue tasks with Headers to avoid the copy at the first
// postponement. Without Configure each postponement is a copy, because asynq would count a failure.
type Limit struct {
	w         *worker.Worker[*asynq.Task]
	client    *asynq.Client
	inspector *asynq.Inspector

	configured atomic.Bool
}

// New checks the options and makes a Limit. Its error names the field that is wrong. It connects to nothing yet.
func New(redis asynq.RedisConnOpt, o Options) (*Limit, error) {
	if o.ID == nil {
		o.ID = func(t *asynq.Task) string {
			if w := t.ResultWriter(); w != nil {
				return w.TaskID()
			}
			return ""
		}
	}
	w, err := worker.New(o)
	if err != nil {
		return nil, err
	}
	return &Limit{w: w, client: asynq.NewClient(redis), inspector: asynq.NewInspector(redis)}, nil
}

// Close ends the connections. Call it after the server's Shutdown.
func (l *Limit) Close() error { return errors.Join(l.client.Close(), l.inspector.Close()) }

// header is the name of the note's header.
const header = "drip"

// Headers returns headers for asynq.NewTaskWithHeaders, for a task without headers of its own.
func Headers() map[string]string { return map[string]string{header: ""} }

// Configure returns the configuration of a server whose handlers use the Middleware. It makes RetryDelayFunc, IsFailure and
// ErrorHandler handle postponed tasks. DelayedTaskCheckInterval, which bounds how late they come, defaults to a second
// instead of five.
func (l *Limit) Configure(c asynq.Config) asynq.Config {
	l.configured.Store(true)
	delay, failure, report := c.RetryDelayFunc, c.IsFailure, c.ErrorHandler
	if delay == nil {
		delay = asynq.DefaultRetryDelayFunc
	}
	c.RetryDelayFunc = func(n int, err error, t *asynq.Task) time.Duration {
		if p := (*postponed)(nil); errors.As(err, &p) {
			return time.Until(p.due)
		}
		return delay(n, err, t)
	}
	c.IsFailure = func(err error) bool {
		if p := (*postponed)(nil); errors.As(err, &p) {
			return false
		}
		return failure == nil && err != nil || failure != nil && failure(err)
	}
	if report != nil {
		c.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, t *asynq.Task, err error) {
			if p := (*postponed)(nil); !errors.As(err, &p) {
				report.HandleError(ctx, t, err)
			}
		})
	}
	c.DelayedTaskCheckInterval = cmp.Or(c.DelayedTaskCheckInterval, time.Second)
	return c
}

type postponed struct {
	due   time.Time
	cause error
}

func (e *postponed) Error() string {
	text := "postponed until " + e.due.Format(time.RFC3339)
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

// Middleware is an asynq.MiddlewareFunc.
func (l *Limit) Middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		retried, _ := asynq.GetRetryCount(ctx)
		most, _ := asynq.GetMaxRetry(ctx)
		h := t.Headers()
		note := h[header]
		if h != nil && retried >= most {
			h[header] = "" // asynq may archive the task at its timeout, and an archived task begins anew if somebody runs it
		}
		out := l.w.Do(ctx, t, note, func(running context.Context) error {
			err := next.ProcessTask(running, t)
			if err != nil && ctx.Err() != nil { // asynq has given the task up, and does not look at err
				return ctx.Err()
			}
			return err
		})
		if out.Delay == 0 {
			if out.Kind == worker.GivenUp {
				out.Err = fmt.Errorf("%w: %w", out.Err, asynq.SkipRetry)
			}
			if h != nil && retried < most && out.Err != nil && ctx.Err() == nil { // else asynq has given the task up
				h[header] = out.Note.String() // a failed task keeps its place for the next attempt, too
				if errors.Is(out.Err, asynq.SkipRetry) {
					h[header] = ""
				}
			}
			return out.Err
		}
		// asynq cuts the time to whole seconds, which would be early. The worker holds a task that comes a moment early.
		due := out.Note.Due.Add(time.Second - early).Truncate(time.Second)
		if h != nil && retried < most && l.configured.Load() {
			if ctx.Err() != nil {
				return ctx.Err() // asynq has given the task up and stores it: do not write into its map
			}
			h[header] = out.Note.String()
			return &postponed{due, out.Err}
		}
		return l.copy(ctx, t, out.Note, due, most-retried)
	})
}

// early is less time than a worker holds a task that comes early.
const early = 100 * time.Millisecond

// copy enqueues the task anew. After nil the task in hand is done. After an error asynq counts a failure, and at the last attempt
// archives a task that has not run. So copy tries for a while.
func (l *Limit) copy(ctx context.Context, t *asynq.Task, n worker.Note, due time.Time, retries int) error {
	id, _ := asynq.GetTaskID(ctx)
	ctx, cancel := context.WithTimeout(ctx, copyTime)
	defer cancel()
	anew := rand.Text() // of the copy, which an answer that was lost may have made
	for {
		err := l.tryCopy(ctx, t, id, anew, n, due, retries)
		if err == nil || errors.Is(err, asynq.ErrTaskIDConflict) {
			return nil
		}
		if !sleep.For(ctx, copyPause) {
			return fmt.Errorf("dripasynq: postpone task %s: %w", id, err)
		}
	}
}

const (
	copyTime  = time.Minute
	copyPause = 500 * time.Millisecond
)

func (l *Limit) tryCopy(ctx context.Context, t *asynq.Task, id, anew string, n worker.Note, due time.Time, retries int) error {
	queue, _ := asynq.GetQueueName(ctx)
	info, err := l.inspector.GetTaskInfo(queue, id)
	if err != nil {
		return err
	}
	headers := maps.Clone(t.Headers())
	if headers == nil {
		headers = map[string]string{}
	}
	headers[header] = n.String()
	o := []asynq.Option{asynq.Queue(queue), asynq.TaskID(anew), asynq.ProcessAt(due), asynq.MaxRetry(retries), asynq.Retention(info.Retention)}
	if info.Timeout > 0 {
		o = append(o, asynq.Timeout(info.Timeout))
	}
	if !info.Deadline.IsZero() {
		o = append(o, asynq.Deadline(info.Deadline))
	}
	_, err = l.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(t.Type(), t.Payload(), headers), o...)
	return err
}
