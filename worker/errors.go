package worker

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/drip-go/drip"
)

// ThrottledError is the error of Throttled, ThrottledShared and Later.
type ThrottledError struct {
	RetryAfter  time.Duration // how long the provider wants to wait
	MessageOnly bool          // it is Later's
	Shared      string        // the limit that ThrottledShared names, else ""
	Cause       error         // may be nil
}

// Throttled is the error of an operation that the provider has refused because of its limit. Nothing of the entity runs
// for retryAfter, in any process; then the message does, before newcomers. No attempt is spent. Providers say 0, too: it is
// at least Options.RetryDelay. With a Limiter that is no Admitter only the message waits. cause may be nil.
func Throttled(retryAfter time.Duration, cause error) error {
	return &ThrottledError{RetryAfter: retryAfter, Cause: cause}
}

// ThrottledShared is Throttled by a limit of drip.Options.Shared, such as that of the app: nothing within it runs for
// retryAfter, of any entity, and what the entity had gathered for itself stays. A name that is no shared limit's is logged,
// and the message waits alone.
func ThrottledShared(limit string, retryAfter time.Duration, cause error) error {
	return &ThrottledError{RetryAfter: retryAfter, Shared: limit, Cause: cause}
}

// Later is the error of an operation that is to run again after d, when others of the entity may go on meanwhile: its
// provider refuses calls to one endpoint, or a resource is busy. The message keeps its place before newcomers, and no
// attempt is spent. d is at least a millisecond. cause may be nil.
func Later(d time.Duration, cause error) error {
	return &ThrottledError{RetryAfter: d, MessageOnly: true, Cause: cause}
}

// Error says for how long, by which limit, and the cause.
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

// Permanent is the error of an operation, or of an entity function, that would fail again: the message is given up without
// further attempts.
func Permanent(cause error) error { return &permanentError{cause} }

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// final are errors of the limiter and of a Worker which ask no second time.
var final = []error{ErrTooOld, ErrTooOften, drip.ErrCost, drip.ErrUnit, drip.ErrDeadline, drip.ErrNoShared, drip.ErrNoEntity, drip.ErrTime}

// IsPermanent reports whether err is Permanent's, or says by itself that its message can never run.
func IsPermanent(err error) bool {
	for _, f := range final {
		if errors.Is(err, f) {
			return true
		}
	}
	e := (*permanentError)(nil)
	return errors.As(err, &e)
}

// ErrEntity is the error of a message whose entity function failed, panicked or returned an empty entity.
var ErrEntity = errors.New("entity of the message")

// PanicError is the error of an operation that panicked.
type PanicError struct {
	Value any    // what it panicked with
	Stack []byte // where
}

// Error says what it panicked with.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// caught calls f. A panic of f is an error.
func caught(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}

// told is err with its text made once, while a panic of the user's methods is caught, as it is while look looks at err.
func told(err error, look func()) error {
	t := &toldError{error: err}
	if broken := caught(func() error { t.text = err.Error(); look(); return nil }); broken != nil {
		return broken
	}
	return t
}

type toldError struct {
	error
	text string
}

func (e *toldError) Error() string { return e.text }
func (e *toldError) Unwrap() error { return e.error }
