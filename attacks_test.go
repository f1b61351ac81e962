package drip_test

import (
	"testing"

	"github.com/drip-go/drip/internal/attacks"
)

func TestAttacks(t *testing.T) {
	for name, open := range storages {
		n := 100_000
		if name == "get/set" {
			n = 5_000 // each decision copies the leases that are out
		}
		t.Run(name, func(t *testing.T) { attacks.Run(t, n, open) })
	}
}
