package postgres

import (
	"context"
	"encoding/binary"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statement is one that has a row, of which row is told, or none that matters.
type statement struct {
	sql  string
	args []any
	row  func(pgx.Row) error
}

// send sends statements that have a row each in one round trip, as one transaction.
func (s *Storage) send(ctx context.Context, statements ...statement) error {
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

// sendAlone does what Query of pgx does, for a statement that nobody shares, in a few microseconds less: integers are
// encoded here, and the connection has the deadline, so that no context has to be watched.
func (s *Storage) sendAlone(ctx context.Context, alone *statement) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	c := conn.Conn()
	name := s.sql.names[alone.sql]
	prepared, err := c.Prepare(ctx, name, alone.sql) // which it is but for the first time
	if err != nil {
		return err
	}
	values, err := encode(c.TypeMap(), prepared.ParamOIDs, alone.args)
	if err != nil {
		return err
	}
	connection, watched := c.PgConn().Conn(), context.Background()
	deadline, _ := ctx.Deadline()
	if connection.SetDeadline(deadline) != nil {
		watched = ctx // a tunnel may have no deadlines
	}
	defer connection.SetDeadline(time.Time{})
	answer := c.PgConn().ExecStatement(watched, prepared, values, binaryFormat, binaryFormat)
	err = alone.row(firstRow{answer, c.TypeMap()})
	if _, refused := answer.Close(); refused != nil {
		if !again(refused) {
			_ = c.Deallocate(ctx, name) // it may be that which is wrong; if this fails the connection is gone
		}
		return refused
	}
	return err
}

var binaryFormat = []int16{pgx.BinaryFormatCode} // of all of them

// encode makes values those of PostgreSQL's binary format: an integer is its bytes, the highest first, a null has none.
func encode(types *pgtype.Map, oids []uint32, values []any) (encoded [][]byte, err error) {
	encoded = make([][]byte, len(values))
	b := make([]byte, 0, 10*len(values))
	for i, v := range values {
		from := len(b)
		if n, ok := v.(int64); ok && oids[i] == pgtype.Int8OID {
			b = binary.BigEndian.AppendUint64(b, uint64(n))
		} else {
			next, err := types.Encode(oids[i], pgx.BinaryFormatCode, v, b)
			if err != nil {
				return nil, err
			}
			if next == nil { // null
				continue
			}
			b = next
		}
		encoded[i] = b[from:]
	}
	return encoded, nil
}

// firstRow is that of an answer.
type firstRow struct {
	answer *pgconn.ResultReader
	types  *pgtype.Map
}

func (r firstRow) Scan(to ...any) error {
	if !r.answer.NextRow() {
		return pgx.ErrNoRows
	}
	columns := r.answer.FieldDescriptions()
	for i, v := range r.answer.Values() {
		switch to := to[i].(type) {
		case *int64:
			if columns[i].DataTypeOID == pgtype.Int8OID && len(v) == 8 {
				*to = int64(binary.BigEndian.Uint64(v))
				continue
			}
		case *float64:
			if columns[i].DataTypeOID == pgtype.Float8OID && len(v) == 8 {
				*to = math.Float64frombits(binary.BigEndian.Uint64(v))
				continue
			}
		}
		if err := r.types.Scan(columns[i].DataTypeOID, pgx.BinaryFormatCode, v, to[i]); err != nil {
			return err
		}
	}
	return nil
}
