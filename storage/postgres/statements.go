package postgres

import (
	"context"
	_ "embed"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed schema.sql
var schemaSource string

// SchemaSQL returns the SQL that CreateSchema runs, for your own migrations. schema is Options.Schema; "" means the
// default.
//
// A user that only decides needs usage of the schema, and select, insert, update and delete on its two tables.
func SchemaSQL(schema string) string { return in(schema, schemaSource) }

// in turns SQL for the schema drip into SQL for another schema.
func in(schema, sql string) string {
	if schema == "" || schema == "drip" {
		return sql
	}
	name := pgx.Identifier{schema}.Sanitize()
	return strings.NewReplacer("exists drip;", "exists "+name+";", "drip.", name+".").Replace(sql)
}

// The time is the server's. clock_timestamp() goes on during a transaction, now() does not. date_part is a float64, which
// holds the microseconds and is several times quicker than numeric.
const (
	micros = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint"
	millis = micros + " / 1000"

	// With the lock the row stays locked until the decision is stored. lockedSQL sets a timeout for a process that stops
	// meanwhile, and returns the time.
	beginSQL  = "begin isolation level read committed"
	clockSQL  = "select " + micros
	lockedSQL = clockSQL + ", set_config('idle_in_transaction_session_timeout', $1, true)"
	commitSQL = "commit"

	// columns are the fields of a record.
	columns = "revision, expires, callers_clock, decided, until, leases, first_end, last_end, data"

	// A decision that was made before it is sent holds if the row still has its revision and the server's clock is
	// between $2 and $3. PostgreSQL does not test the clock again after it has waited for a row that came free
	// unchanged. So the answer tests it: a late statement fails, because it divides by zero (22012).
	swapSQL = "update drip.entity set (" + columns + ") = ($5, $6, $7, $8, $9, $10, $11, $12, $13) " +
		"where key = $1 and revision = $4 and clock_timestamp() between $2 and $3"
	stillInTime = micros + " / (clock_timestamp() <= $3)::int as clock"

	// All is done or nothing: the row is changed if the leases $14 still end at $15, and leases are changed if the row
	// is. The limit changes only the estimate of the planner: one lease. So the plan looks up each lease by itself. A
	// plan for more might read all leases of the entity.
	known = "known as (select id, goes, (select ends from drip.lease l where l.key = $1 and l.id = c.id) = was as there " +
		"from unnest($14::bigint[], $15::bigint[], $16::boolean[]) c (id, was, goes) limit cardinality($14::bigint[])), "
	asKnown      = " and (select count(*) from known where there) = cardinality($14::bigint[])"
	changeLeases = "gone as (delete from drip.lease l using known where l.key = $1 and l.id = known.id and goes and exists (select from stored)), " +
		"held as (insert into drip.lease (key, id, ends) select $1::bytea, id, ends from unnest($17::bigint[], $18::bigint[]) c (id, ends) " +
		"where exists (select from stored) on conflict (key, id) do update set ends = excluded.ends) "

	// The leases are numbers, an id and an end for each, the first to end first. If there are more than $2, ended leases are
	// left out, unless the server's clock says nothing about their ends.
	told         = "(e.callers_clock or e.leases <= $2::bigint or l.ends > " + millis + ")"
	entryColumns = columns + ", case when leases > 0 then (select array_agg(array[id, ends] order by ends, id) from " +
		"(select id, ends from drip.lease l where l.key = e.key and " + told + " order by ends, id limit $2::bigint) l) end, " +
		"case when leases > $2::bigint then (select count(*) from drip.lease l where l.key = e.key and " + told + ") else leases end, key, coalesce(entity, key), " + micros

	setValues   = "$2, " + millis + " + $3, true, $4, $5, 0, $7, 0, $6"
	clearLeases = "gone as (delete from drip.lease where key = $1 and exists (select from stored)) select count(*) from stored"
)

// sql is the statements in the storage's schema.
type sql struct{ swap, swapLeases, check, lock, named, create, clear, purge, read, list, set, setNew, deletion string }

func newSQL(schema string) *sql {
	text := func(parts ...string) string { return in(schema, strings.Join(parts, "")) }
	return &sql{
		swap:       text(swapSQL, " returning ", stillInTime),
		swapLeases: text("with ", known, "stored as (", swapSQL, asKnown, " returning ", stillInTime, "), ", changeLeases, "select clock from stored"),
		check:      text("select ", micros, " from drip.entity where key = $1 and revision = $4 and clock_timestamp() between $2 and $3"),
		lock:       text("select ", columns, " from drip.entity where key = $1 for no key update"),
		named: text("select array_agg(array[l.id, l.ends]) from unnest($2::bigint[]) c (id), ",
			"lateral (select id, ends from drip.lease where key = $1 and id = c.id limit 1) l"),
		// An entity whose row somebody else has deleted may have left leases.
		create: text("with gone as (delete from drip.lease where key = $1 and id <> all ($12::bigint[])), stored as (insert into drip.entity (key, entity, ", columns, ") values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ",
			"returning ", micros, " as clock), held as (insert into drip.lease (key, id, ends) ",
			"select $1::bytea, id, ends from unnest($12::bigint[], $13::bigint[]) c (id, ends)) select clock from stored"),
		clear: text("delete from drip.lease where key = $1"),
		purge: text("with upto as (select greatest($2::bigint, case when $6 then ", millis, " end) as at), ",
			"doomed as (select id from drip.lease where key = $1 and ends <= (select at from upto) order by ends, id limit $3), ",
			"gone as (delete from drip.lease l using doomed where l.key = $1 and l.id = doomed.id) ",
			"update drip.entity set revision = $4, leases = leases - (select count(*) from doomed), ",
			"first_end = case when (select count(*) from doomed) = $3 then first_end else coalesce((select ends from drip.lease ",
			"where key = $1 and ends > (select at from upto) order by ends limit 1), $5) end where key = $1 ",
			"returning (select count(*) from doomed), revision, leases, first_end"),
		read: text("select ", entryColumns, " from drip.entity e where key = $1"),
		list: text("select ", entryColumns, " from drip.entity e where key > $1 and expires > ", millis, " order by key limit $3"),
		set: text("with stored as (update drip.entity set (", columns, ") = (", setValues, ") ",
			"where key = $1 and revision = $8 and expires > ", millis, " returning key), ", clearLeases),
		setNew: text("with stored as (insert into drip.entity as e (key, entity, ", columns, ") values ($1, $8, ", setValues, ") ",
			"on conflict (key) do update set (", columns, ") = (excluded.", strings.ReplaceAll(columns, ", ", ", excluded."), ") ",
			"where e.expires <= ", millis, " returning key), ", clearLeases),
		deletion: text("with stored as (delete from drip.entity where key = any (array(select key from drip.entity, (select ", millis,
			" as clock) c where expires <= clock limit $1 for update of entity skip locked)) returning key), ",
			"gone as (delete from drip.lease l using stored where l.key = stored.key) select count(*) from stored"),
	}
}

// statement is a statement that returns one row, which send scans into to, or no row.
type statement struct {
	sql  string
	args []any
	to   []any
	row  *row // nil if it is about no row of an entity
}

// send sends statements in one round trip. They are one transaction, unless one of them begins or ends one. It sets slow of
// the row whose statement took too long.
func send(ctx context.Context, conn *pgxpool.Conn, statements ...statement) error {
	if len(statements) == 1 && statements[0].to != nil { // quicker than a batch
		return statements[0].scan(conn.QueryRow(ctx, statements[0].sql, statements[0].args...))
	}
	var b pgx.Batch
	for _, s := range statements {
		if q := b.Queue(s.sql, s.args...); s.to != nil {
			q.QueryRow(s.scan)
		}
	}
	return conn.SendBatch(ctx, &b).Close()
}

func (s statement) scan(row pgx.Row) error {
	err := row.Scan(s.to...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if s.row != nil {
		s.row.slow = answered(err, "57014", "55P03") // query_canceled, lock_not_available: statement_timeout and lock_timeout
	}
	return err
}

// onConn calls f with a connection. If f fails, no transaction is left.
func (s *Storage) onConn(ctx context.Context, f func(*pgxpool.Conn) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return unsent{err}
	}
	defer conn.Release()
	if err = f(conn); err != nil && conn.Conn().PgConn().TxStatus() != 'I' {
		_, _ = conn.Exec(ctx, "rollback") // if that fails, the pool closes the connection
	}
	return err
}

// send sends statements in one round trip, and again if the server refuses them because of concurrent changes.
func (s *Storage) send(ctx context.Context, statements ...statement) error {
	return s.retry(ctx, func() error {
		return s.onConn(ctx, func(conn *pgxpool.Conn) error { return send(ctx, conn, statements...) })
	})
}
