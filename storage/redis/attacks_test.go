package redis_test

import (
	"testing"

	"github.com/drip-go/drip/internal/attacks"
	"github.com/drip-go/drip/storage"
)

func TestAttacks(t *testing.T) {
	attacks.Run(t, 2_000, func(t *testing.T) storage.Storage { return newStorage(t, connectShared(t)) })
}
