package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/batch"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/storage"
)

var (
	// ErrNoAnswer is in the error of a call that the server did not answer: the call did not reach it, the connection
	// broke, or Options.Timeout passed. Unless the cause is a failure to connect, the call may have been done all the
	// same. The error wraps the error of a context only if the caller's context has ended.
	//
	// If the server answers with an error instead of doing the call, the call returns a [pgconn.PgError]. Nothing has
	// changed then.
	ErrNoAnswer = errors.New("postgres: no answer")

	// ErrNoSchema is in the error of a call that found no table. Call CreateSchema. Nothing has changed.
	ErrNoSchema = errors.New("postgres: the schema is missing or not complete; CreateSchema creates it")

	// ErrNotState is in the error of Do and Read if the row holds no state. Nothing has changed. If a later version of
	// drip wrote the state, the error is storage.ErrLater, too. A state of an earlier version is no error: the entity
	// begins anew, with empty windows.
	ErrNotState = errors.New("postgres: the row holds something else than the state of an entity")

	// ErrClosed is the error of every call after Close.
	ErrClosed = errors.New("postgres: the storage is closed")

	errTimeout = errors.New("Options.Timeout is over")
)

// notState returns ErrNotState with the error of storage.Decode. Only one of them is in the text: they say the same, or
// a later version wrote the state.
func notState(err error) error {
	if errors.Is(err, storage.ErrLater) {
		return fmt.Errorf("postgres: %w%.0w", err, ErrNotState) // %.0w prints nothing
	}
	return fmt.Errorf("%w%.0w", ErrNotState, err)
}

// limited returns a context that ends when Options.Timeout is over, with errTimeout as the cause.
func (s *Storage) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.timeout, errTimeout)
}

// retry calls f again while the server refuses it because of concurrent changes, until ctx ends.
func (s *Storage) retry(ctx context.Context, f func() error) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := f()
		if !answered(err, momentary...) || !sleep.For(ctx, rand.N(wait)) {
			return s.failure(ctx, err)
		}
	}
}

// answered reports whether the server answered with one of these codes. Nothing has changed then.
func answered(err error, codes ...string) bool {
	var answer *pgconn.PgError
	return errors.As(err, &answer) && slices.Contains(codes, answer.Code)
}

// momentary are the codes of errors that come from concurrent changes, a late statement or a stop of this process.
var momentary = []string{
	"40001", "40P01", "23505", // serialization_failure, deadlock_detected, unique_violation
	"22012",          // division_by_zero: the statement was late
	"25P03",          // idle_in_transaction_session_timeout: this process was stopped for so long
	"42P06", "42P07", // duplicate_schema, duplicate_table: two of CreateSchema
}

// failure turns an error of pgx into one that this package documents.
func (s *Storage) failure(ctx context.Context, err error) error {
	var answer *pgconn.PgError
	switch {
	case err == nil:
		return nil
	case answered(err, "3F000", "42P01", "42703"): // invalid_schema_name, undefined_table, undefined_column
		return fmt.Errorf("%w: %w", ErrNoSchema, err)
	case errors.As(err, &answer) && answer.SeverityUnlocalized != "FATAL": // a fatal error ends the connection
		return err
	case s.closed.Load():
		return ErrClosed
	case context.Cause(ctx) == errTimeout && errors.As(err, new(unsent)):
		advice := ""
		if pool := s.pool.Stat(); !s.owned && pool.AcquiredConns() == pool.MaxConns() {
			advice = " (all are in use; give the storage a pool of its own)"
		}
		return fmt.Errorf("%w: the pool gave no connection%s: %w: %v", ErrNoAnswer, advice, unsent{errTimeout}, err) // no error of a context
	case context.Cause(ctx) == errTimeout:
		return fmt.Errorf("%w: %w: %v", ErrNoAnswer, errTimeout, err)
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %v", ErrNoAnswer, err) // also not the error of connect_timeout
	}
	return fmt.Errorf("%w: %w", ErrNoAnswer, err)
}

// unsent is the error of statements that were surely not sent.
type unsent struct{ error }

func (u unsent) Unwrap() error { return u.error }

// fail sets the error of a call. The call may be made again if nothing was done, or if it only gives back a lease.
func fail(c *batch.Call, err error) {
	undone := !errors.Is(err, ErrNoAnswer) && err != ErrClosed || errors.As(err, new(unsent))
	c.Answer, c.Err = decision.Answer{}, err
	c.Again = undone || c.Op.Kind == decision.Cancel && c.Op.Ticket.Number == 0 && err != ErrClosed
}

// usable returns the error of a call that cannot succeed.
func (s *Storage) usable(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	return ctx.Err()
}
