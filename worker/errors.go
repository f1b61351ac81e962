package worker

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip"
)

// ThrottledError is the error of Throttled, ThrottledShared and Later.
type ThrottledError struct {
	RetryAfter  time.Duration // how long the provider asks to wait
	MessageOnly bool          // it comes from Later
	Shared      string        // the limit that ThrottledShared names, else ""
	Cause       error         // may be nil
}

// Throttled returns the error of an operation that the provider has refused because of its limit. No message of the
// entity runs for retryAfter, in any process. Then this message runs, before newcomers. It spends no attempt. Some
// providers send retryAfter 0: the wait is at least Options.RetryDelay. With a Limiter that is no Admitter only the
// message waits. cause may be nil.
func Throttled(retryAfter time.Duration, cause error) error {
	return &ThrottledError{RetryAfter: retryAfter, Cause: sound(cause)}
}

// ThrottledShared is Throttled for a limit of drip.Options.Shared, such as the app's limit. No message within it runs
// for retryAfter, of any entity. The entity keeps the tokens of its own limit. If no shared limit has that name, the
// Worker logs an error and only the message waits.
func ThrottledShared(limit string, retryAfter time.Duration, cause error) error {
	return &ThrottledError{RetryAfter: retryAfter, Shared: limit, Cause: sound(cause)}
}

// Later returns the error of an operation that is to run again after d, while other operations of the entity run. For
// example, a resource is busy, or the provider refuses calls to one endpoint. The message keeps its place before
// newcomers and spends no attempt. d is at least a millisecond. cause may be nil.
func Later(d time.Duration, cause error) error {
	return &ThrottledError{RetryAfter: d, MessageOnly: true, Cause: sound(cause)}
}

// Error returns a text with RetryAfter, the shared limit and the cause.
func (e *ThrottledError) Error() string {
	text := fmt.Sprintf("throttled for %v", e.RetryAfter)
	switch {
	case e.Shared != "":
		text = fmt.Sprintf("throttled for %v by the limit %q", e.RetryAfter, e.Shared)
	case e.MessageOnly:
		text = fmt.Sprintf("postponed by %v", e.RetryAfter)
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *ThrottledError) Unwrap() error { return e.Cause }

// refusals returns the refusals in an error: several, if an operation joins the errors of several calls.
func refusals(err error) (all []*ThrottledError) {
	switch e := err.(type) {
	case *ThrottledError:
		return []*ThrottledError{e}
	case interface{ Unwrap() error }:
		return refusals(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, joined := range e.Unwrap() {
			all = append(all, refusals(joined)...)
		}
	}
	return all
}

// Permanent returns the error of an operation, or of an entity function, that would fail again. The Worker gives the
// message up without further attempts, also if cause comes from Throttled or Later. cause may be nil.
func Permanent(cause error) error { return &permanentError{cause} }

type permanentError struct{ cause error }

func (e *permanentError) Error() string {
	if e.cause == nil {
		return "it would fail again"
	}
	return e.cause.Error()
}

func (e *permanentError) Unwrap() error { return e.cause }

// final are errors of the limiter and of a Worker after which the Worker does not ask again.
var final = []error{ErrTooOld, ErrTooOften, drip.ErrCost, drip.ErrUnit, drip.ErrDeadline, drip.ErrNoShared, drip.ErrNoEntity, drip.ErrTime}

// IsPermanent reports whether a message would fail again. Then err comes from Permanent, or is ErrTooOld, ErrTooOften,
// drip.ErrCost, ErrUnit, ErrDeadline, ErrNoShared, ErrNoEntity or ErrTime.
func IsPermanent(err error) bool {
	e := (*permanentError)(nil)
	return slices.ContainsFunc(final, func(f error) bool { return errors.Is(err, f) }) || errors.As(err, &e)
}

// ErrEntity is the error of a message whose entity function failed, panicked or returned an empty entity.
var ErrEntity = errors.New("cannot determine the entity")

// PanicError is the error of an operation that panicked.
type PanicError struct {
	Value any    // the value of the panic
	Stack []byte // the stack of the panic
}

// Error returns a text with the value of the panic.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// caught calls a function of the user. It returns a panic as a PanicError, also a panic of the error's own methods, such as those of a
// nil pointer.
func caught(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = told(&PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	return told(f())
}

// sound returns err, or a PanicError if its methods panic.
func sound(err error) error {
	if broken := caught(func() error { _ = told(err); return nil }); broken != nil {
		return broken
	}
	return err
}

// told returns err with its text, which it makes once: valid UTF-8 without NUL. A queue that cannot store the text runs the message
// again, and River then stores no outcome of other jobs either. If a method of err panics, it does so here, and not later.
func told(err error) error {
	if err == nil {
		return nil
	}
	IsPermanent(err) // calls the methods of all that err wraps
	return &toldError{err, strings.ReplaceAll(strings.ToValidUTF8(err.Error(), "?"), "\x00", "?")}
}

type toldError struct {
	error
	text string
}

func (e *toldError) Error() string { return e.text }
func (e *toldError) Unwrap() error { return e.error }
