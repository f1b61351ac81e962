package postgres

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statement is one that has a row, of which row is told, or none that matters.
type statement struct {
	text
	args []any
	row  func(pgx.Row) error
}

// command is a statement without values.
func command(sql string) statement { return statement{text: text{sql: sql}} }

// send sends statements that have a row each in one round trip, as one transaction.
func (s *Storage) send(ctx *deadline, statements ...statement) error {
	switch {
	case len(statements) == 0:
		return nil
	case len(statements) > 1:
		return sendBatch(ctx, s.pool, statements)
	case s.plain:
		return s.sendAlone(ctx, &statements[0])
	}
	alone := &statements[0]
	return alone.row(s.pool.QueryRow(ctx, alone.sql, alone.args...))
}

// sendBatch sends statements in one round trip. They are one transaction, as long as none of them begins or ends one.
func sendBatch(ctx context.Context, to batcher, statements []statement) error {
	var b pgx.Batch
	for _, s := range statements {
		if q := b.Queue(s.sql, s.args...); s.row != nil {
			q.QueryRow(s.row)
		}
	}
	return to.SendBatch(ctx, &b).Close()
}

type batcher interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}

// plain tells whether a pool sends statements as pgx does by default: prepared, and traced by nobody. BeforeConnect may
// change that for a connection.
func plain(c *pgxpool.Config) bool {
	return c.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && c.ConnConfig.Tracer == nil && c.BeforeConnect == nil
}

// encodings are those that can be used again.
var encodings = sync.Pool{New: func() any { return new(encoded) }}

// sendAlone does what Query of pgx does, for a statement that nobody shares, in a few microseconds less: values are
// encoded here, and the end of the context is waited for once for all.
func (s *Storage) sendAlone(ctx *deadline, alone *statement) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	c := conn.Conn()
	prepared, err := c.Prepare(ctx, alone.name, alone.sql) // which it is but for the first time
	if err != nil {
		return err
	}
	e := encodings.Get().(*encoded)
	defer encodings.Put(e)
	if err := e.encode(c.TypeMap(), prepared.ParamOIDs, alone.args); err != nil {
		return err
	}
	if err := ctx.begin(c.PgConn()); err != nil {
		return err
	}
	defer ctx.end(c.PgConn())
	answer := c.PgConn().ExecStatement(context.Background(), prepared, e.values, binaryFormat, binaryFormat)
	err = alone.row(firstRow{answer, c.TypeMap()})
	if _, refused := answer.Close(); refused != nil {
		if !again(refused) {
			_ = c.Deallocate(ctx, alone.name) // it may be that which is wrong; if this fails the connection is gone
		}
		if over := ctx.Err(); over != nil {
			return fmt.Errorf("%w: %w", over, refused)
		}
		return refused
	}
	return err
}
