package drip_test

import (
	"testing"
	"testing/synctest"

	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

func TestInspectAfterManyLeasesEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { buckettest.EndedLeases(t, memory.New()) })
}
