package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/drip-go/drip/storage"
)

const (
	// listAtOnce is how many rows List reads in a round trip.
	listAtOnce = 1000

	listSQL = "select key, entity, " + numbers + ", clock from drip.entity, (select " + seconds + " as clock) c " +
		"where key > $1 and expires > clock * 1000 order by key limit $2"
)

// List implements [storage.Lister], in the order of the keys, a thousand rows in each round trip. What is no state is left
// out.
func (s *Storage) List(ctx context.Context, each func(storage.Entry) error) error {
	if err := s.usable(ctx); err != nil {
		return err
	}
	for after, more := []byte{}, true; more; {
		var rows []row
		err := s.retry(ctx, func() (err error) {
			rows, err = s.rowsAfter(ctx, after)
			return err
		})
		if err != nil {
			return err
		}
		for _, r := range rows {
			entry := storage.Entry{Key: string(r.Key), Time: time.UnixMicro(toMicros(r.Clock))}
			if r.Entity != nil {
				entry.Key = string(r.Entity)
			}
			if entry.State, err = storage.StateOf(r.State); err != nil {
				continue
			}
			if err := each(entry); err != nil {
				return err
			}
		}
		if more = len(rows) == listAtOnce; more {
			after = rows[len(rows)-1].Key
		}
	}
	return nil
}

type row struct {
	Key, Entity []byte
	State       []int64
	Clock       float64
}

func (s *Storage) rowsAfter(ctx context.Context, key []byte) ([]row, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	rows, err := s.pool.Query(ctx, s.sql.list.sql, key, listAtOnce)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[row])
}
