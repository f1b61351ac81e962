package postgres

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Values are what pgx makes of them.
func TestEncode(t *testing.T) {
	values := []any{
		int64(0), int64(-1), int64(math.MaxInt64), int64(math.MinInt64), time.UnixMicro(0), time.UnixMicro(1_750_000_000_123_456),
		time.Date(1999, 12, 31, 23, 59, 59, 999_999_000, time.UTC), time.Date(2026, 7, 1, 0, 0, 0, 1999, time.Local),
		[]byte("shop"), []byte{0}, []byte(nil), true, false, []int64{1, -2}, []int64(nil), int64(5),
	}
	oids := []uint32{
		pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID, pgtype.TimestamptzOID, pgtype.TimestamptzOID,
		pgtype.TimestamptzOID, pgtype.TimestamptzOID,
		pgtype.ByteaOID, pgtype.ByteaOID, pgtype.ByteaOID, pgtype.BoolOID, pgtype.BoolOID, pgtype.Int8ArrayOID, pgtype.Int8ArrayOID,
		pgtype.Int4OID, // not what an int64 is
	}
	types := pgtype.NewMap()
	var e encoded
	for range 2 { // it is used again
		if err := e.encode(types, oids, values); err != nil {
			t.Fatal(err)
		}
	}
	got := e.values
	for i, v := range values {
		want, err := types.Encode(oids[i], pgx.BinaryFormatCode, v, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got[i], want) || (got[i] == nil) != (want == nil) {
			t.Errorf("%v as type %d is %x, want %x", v, oids[i], got[i], want)
		}
	}
	if err := e.encode(types, []uint32{pgtype.Int4OID}, []any{int64(math.MaxInt64)}); err == nil {
		t.Error("a number that its type cannot hold is encoded")
	}
}
