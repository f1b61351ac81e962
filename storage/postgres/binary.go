package postgres

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

var binaryFormat = []int16{pgx.BinaryFormatCode} // of all of them

// encoded is values in PostgreSQL's binary format. A null has none.
type encoded struct {
	values [][]byte
	bytes  []byte // of all values
}

// encode makes e the values.
func (e *encoded) encode(types *pgtype.Map, oids []uint32, values []any) error {
	e.values, e.bytes = e.values[:0], e.bytes[:0]
	for i, v := range values {
		next, err := appendValue(e.bytes, types, oids[i], v)
		if err != nil {
			return err
		}
		if next == nil {
			e.values = append(e.values, nil)
		} else {
			e.values, e.bytes = append(e.values, next[len(e.bytes):]), next
		}
	}
	return nil
}

// year2000 is where PostgreSQL's times begin, in microseconds since 1970.
const year2000 = 946_684_800_000_000

// appendValue appends a value. For a null it is nil. An integer is its bytes, the highest first, and a time is an integer.
func appendValue(b []byte, types *pgtype.Map, oid uint32, value any) ([]byte, error) {
	switch v := value.(type) {
	case int64:
		if oid == pgtype.Int8OID {
			return binary.BigEndian.AppendUint64(b, uint64(v)), nil
		}
	case time.Time:
		if oid == pgtype.TimestamptzOID {
			return binary.BigEndian.AppendUint64(b, uint64(v.UnixMicro()-year2000)), nil
		}
	case []byte:
		if oid == pgtype.ByteaOID && v != nil {
			return append(b, v...), nil
		}
	}
	return types.Encode(oid, pgx.BinaryFormatCode, value, b)
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
