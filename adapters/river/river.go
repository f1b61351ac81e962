// Package dripriver takes River jobs through a rate limit of drip.
//
// A Limit snoozes a job that may not run yet until its slot. Its ticket travels in the job's metadata, so the job runs then,
// before newcomers. A snooze spends none of the job's attempts.
package dripriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/drip-go/drip/worker"
)

// Options configure a Limit. Limiter and Entity are required. Leave Attempts at 0: River retries.
type Options = worker.Options[*rivertype.JobRow]

// Limit is a worker middleware of River. Put it into Config.Middleware to limit all jobs, or return it from the
// Middleware method of a worker to limit its own. Make one with New; it is safe for concurrent use.
//
// River retries a worker's error. worker.Throttled and worker.Later snooze the job, worker.Permanent cancels it.
// river.JobSnooze is like worker.Later, and river.JobCancel like worker.Permanent.
type Limit struct {
	river.MiddlewareDefaults
	w *worker.Worker[*rivertype.JobRow]
}

// New checks the options and makes a Limit. Its error names the field that is wrong.
func New(o Options) (*Limit, error) {
	if o.ID == nil {
		o.ID = func(j *rivertype.JobRow) string { return strconv.FormatInt(j.ID, 10) }
	}
	w, err := worker.New(o)
	if err != nil {
		return nil, err
	}
	return &Limit{w: w}, nil
}

// Keys in a job's metadata.
const (
	noteKey = "drip"

	// cancelledKey is River's, and stays when somebody retries a job that was cancelled: the job begins anew.
	cancelledKey = "cancel_attempted_at"
)

// Work implements rivertype.WorkerMiddleware.
func (l *Limit) Work(ctx context.Context, job *rivertype.JobRow, run func(context.Context) error) error {
	metadata := map[string]json.RawMessage{}
	if json.Unmarshal(job.Metadata, &metadata) != nil { // River has appended to what is no object, such as the null of a nil map
		var appended []map[string]json.RawMessage
		_ = json.Unmarshal(job.Metadata, &appended) // an element that is none is a nil map then
		for _, m := range appended {
			maps.Copy(metadata, m)
		}
	}
	var note string
	if metadata[cancelledKey] == nil {
		_ = json.Unmarshal(metadata[noteKey], &note) // without a text the job is a new job
	}
	out := l.w.Do(ctx, job, note, func(ctx context.Context) error { return outcome(run(ctx)) })
	last := job.Attempt >= job.MaxAttempts
	if out.Kind == worker.Failed && interrupted(ctx, out.Err) {
		last = false
		out.Note.Attempts--
	}
	kept := out.Note.String() // a failed job keeps its place for the next attempt, too
	if out.Kind == worker.Done || out.Kind == worker.GivenUp || out.Kind == worker.Failed && last {
		kept = "" // a job that is over begins anew if somebody retries it; it is over also if this cannot be stored
	}
	if kept != note {
		if err := river.MetadataSet(ctx, noteKey, kept); err != nil && kept != "" {
			return fmt.Errorf("dripriver: keep the ticket of job %d: %w", job.ID, err)
		}
	}
	switch {
	case out.Kind == worker.Done:
		return nil
	case out.Kind == worker.GivenUp:
		var snooze *river.JobSnoozeError
		if errors.As(out.Err, &snooze) { // the cause, which River would obey
			return river.JobCancel(errors.New(out.Err.Error()))
		}
		return river.JobCancel(out.Err)
	case out.Delay > 0:
		return river.JobSnooze(out.Delay)
	}
	return out.Err
}

// interrupted reports whether River runs a job again and counts no failure, because its client stops: the cause is River's own then.
func interrupted(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	return cause != ctx.Err() && (errors.Is(err, context.Canceled) || errors.Is(err, cause))
}

// outcome makes worker's errors of River's own.
func outcome(err error) error {
	var snooze *river.JobSnoozeError
	var cancel *river.JobCancelError
	switch {
	case errors.As(err, &snooze):
		return worker.Later(snooze.Duration, err)
	case errors.As(err, &cancel):
		return worker.Permanent(err)
	}
	return err
}

// Arg returns a text of the job's arguments by its name in their JSON, for Options.Entity:
//
//	Entity: func(j *rivertype.JobRow) (string, error) { return dripriver.Arg(j, "shop") },
func Arg(job *rivertype.JobRow, name string) (text string, err error) {
	var args map[string]json.RawMessage
	if err = json.Unmarshal(job.EncodedArgs, &args); err == nil {
		err = json.Unmarshal(args[name], &text)
	}
	if err != nil {
		return "", fmt.Errorf("dripriver: argument %q of a %s: %w", name, job.Kind, err)
	}
	return text, nil
}
