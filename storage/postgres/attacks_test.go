package postgres_test

import (
	"testing"

	"github.com/drip-go/drip/internal/attacks"
	"github.com/drip-go/drip/storage"
)

func TestAttacks(t *testing.T) {
	attacks.Run(t, 1_000, func(t *testing.T) storage.Storage { return newStorage(t) })
}
