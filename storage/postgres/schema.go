package postgres

import (
	"context"
	_ "embed"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed schema.sql
var schemaSource string

// SchemaSQL is what CreateSchema runs, for those who migrate by hand. schema is Options.Schema; empty means the default.
//
// Those who only decide need usage of the schema, and select, insert, update and delete on its table.
func SchemaSQL(schema string) string { return in(schema, schemaSource) }

// in makes a text that is written for the schema drip one for another.
func in(schema, sql string) string {
	if schema == "" || schema == "drip" {
		return sql
	}
	quoted := pgx.Identifier{schema}.Sanitize()
	return strings.NewReplacer("exists drip;", "exists "+quoted+";", "drip.entity", quoted+".entity").Replace(sql)
}

// CreateSchema makes the schema and the table with the text of [SchemaSQL], if they are not there. Every process may
// call it when it starts.
func (s *Storage) CreateSchema(ctx context.Context) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	return s.retry(ctx, func() error {
		var there bool
		err := s.pool.QueryRow(ctx, "select to_regclass($1) is not null", pgx.Identifier{s.schema, "entity"}.Sanitize()).Scan(&there)
		if err == nil && !there { // or it would ask for the right to create
			_, err = s.pool.Exec(ctx, SchemaSQL(s.schema)) // one transaction
		}
		return err
	})
}
