package mapstorage_test

import (
	"testing"

	"github.com/drip-go/drip/examples/customstorage/mapstorage"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/storagetest"
)

func TestStorage(t *testing.T) {
	storagetest.Run(t, func(*testing.T) storage.Storage { return mapstorage.New() })
}
