package storagetest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
	"github.com/drip-go/drip/storage/storagetest"
)

// The test of a backend: every rule is a subtest.
func ExampleRun() {
	_ = func(t *testing.T) { // TestStorage
		storagetest.Run(t, func(t *testing.T) storage.Storage { return memory.New() })
	}
}

// A backend that decides beside its data is compared with the plain path, decision by decision.
func ExampleCompare() {
	_ = func(t *testing.T) { // TestAtomic
		for seed := range uint64(20) {
			storagetest.Compare(t, memory.New(), seed, 1000)
		}
	}
}

// Nothing is forgotten too early, for as long as the test can move the backend's clock on.
func ExampleKeeps() {
	_ = func(t *testing.T) { // TestExpiry
		synctest.Test(t, func(t *testing.T) {
			storagetest.Keeps(t, memory.New(), time.Sleep, 400*24*time.Hour)
		})
	}
}
