package postgres_test

import (
	"testing"

	"github.com/drip-go/drip/internal/buckettest"
)

func TestManyLeasesEnded(t *testing.T) { buckettest.EndedLeases(t, newStorage(t)) }
